"""Shorten the bytes of a dump before it is unpickled, by the entries that are not needed.

Unpickling is most of the time that a dump takes. A recorder keeps 2,000 entries, nearly all of them
long finished, and only a few of those are looked at (`worth_reading` in entries.py). Torch writes
all entries in one way. Each begins with the same key. A string is written where it first occurs,
and is a reference from then on. So entries can be told apart by their bytes. Those between two kept
entries can be cut, if none of them brings a string that a later one refers to.

What is cut is not looked at, so it is neither refused nor carried out. Entries are cut only if all
of this holds: they are finished, none is a send or receive, and each has one group. Once the rest
is unpickled, `is_fitting` also checks that the records are numbered without a gap, and that none is
missing. All other dumps are read as a whole: those that torch did not write, or an older version,
and those that are damaged or have send and receive.

This module is pure.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PUT = rb"(q.|r.{4})"  # into the memo
_FIRST_KEY = re.compile(
    rb"X\x07\x00\x00\x00entries(?:q.|r.{4})\]\((\}\(X\t\x00\x00\x00record_id" + _PUT + rb")",
    re.DOTALL,
)
_GROUP = re.compile(rb"X\x05\x00\x00\x00pg_id" + _PUT + rb"K(.)", re.DOTALL)
_STATE = re.compile(
    rb"X\x05\x00\x00\x00state" + _PUT + rb"X\t\x00\x00\x00completed" + _PUT, re.DOTALL
)
_IS_P2P = re.compile(rb"X\x06\x00\x00\x00is_p2p" + _PUT + rb"\x89", re.DOTALL)
_STRING = re.compile(rb"X..\x00\x00", re.DOTALL)  # perhaps: a number can have these bytes too


@dataclass(frozen=True, slots=True)
class Shortened:
    """A pickle `raw` that holds `kept_count` of `entries_count` entries."""

    raw: bytes
    kept_count: int
    entries_count: int

    def is_fitting(self, entries: Sequence[object]) -> bool:
        """Return True if these entries of `raw` are what they were taken for."""
        if len(entries) != self.kept_count:
            return False
        first, last = entries[0], entries[-1]
        if type(first) is not dict or type(last) is not dict:
            return False
        begin, end = first.get("record_id"), last.get("record_id")
        return type(begin) is int and type(end) is int and end - begin + 1 == self.entries_count


def shortened(raw: bytes, *, last_count: int, each_count: int) -> Shortened | None:
    """Return the dump without finished entries that nothing looks at, or None.

    The last `last_count` of all entries stay, and the last `each_count` of each group. All entries
    from the first unfinished one on stay too, and so does the very first, which brings the keys. It
    is None if the dump would not be shorter by half, or might say something else.
    """
    if (
        not raw.startswith(b"\x80\x02}(")
        or (found := _FIRST_KEY.match(raw, max(0, raw.find(b"X\x07\x00\x00\x00entries")))) is None
    ):
        return None
    begins = found.start(1)
    entries, between = raw[begins:], b"u}(" + _reference(found.group(2))
    parts = entries.split(between)
    if (
        2 * (last_count + each_count) > len(parts)
        or (kept := _kept(entries, parts, between, last_count, each_count)) is None
        or 2 * len(kept) > len(parts)
    ):
        return None
    return Shortened(
        raw[:begins] + between.join(map(parts.__getitem__, kept)), len(kept), len(parts)
    )


def _reference(put: bytes) -> bytes:
    return (b"h" if put[:1] == b"q" else b"j") + put[1:]


def _kept(
    entries: bytes, parts: list[bytes], between: bytes, last_count: int, each_count: int
) -> list[int] | None:
    """Return the places of the entries that stay.

    The bytes of `entries` are counted as a whole: one by one it would take as long as to unpickle
    them.
    """
    state, group, is_p2p = (pattern.search(parts[0]) for pattern in (_STATE, _GROUP, _IS_P2P))
    if state is None or group is None or is_p2p is None:
        return None
    others = len(parts) - 1  # but the first, in which keys are not references
    if entries.count(_reference(is_p2p.group(1)) + b"\x89") != others:
        return None
    done, begin = _reference(state.group(1)) + _reference(state.group(2)), len(parts) - last_count
    end = _end(entries, parts, between, begin)
    if entries.count(done, 0, end) != begin - 1:
        begin = next((place for place, part in enumerate(parts[1:begin], 1) if done not in part), 0)
        end = _end(entries, parts, between, begin)
    if (
        not begin
        or (
            lasts := _lasts(
                entries, parts, (begin, end), _reference(group.group(1)), group.group(2), each_count
            )
        )
        is None
    ):
        return None
    return [*sorted({0, *_bring_strings(entries, between, end), *lasts}), *range(begin, len(parts))]


def _end(entries: bytes, parts: list[bytes], between: bytes, begin: int) -> int:
    """Return where the entry before `begin` ends."""
    return len(entries) - sum(map(len, parts[begin:])) - (len(parts) - begin) * len(between)


def _lasts(
    entries: bytes,
    parts: list[bytes],
    before: tuple[int, int],
    key: bytes,
    first: bytes,
    each_count: int,
) -> list[int] | None:
    """Return the places, before `before`, of the newest entries of each group.

    Fewer than `each_count` of its group follow each of them. None if a group's number is not a
    byte.
    """
    begin, end = before
    number = _number(key)
    later = Counter(number.findall(entries, end))
    if (
        min(later.values(), default=0) >= each_count
        and first in later
        and sum(entries.count(key + b"K" + one) for one in later) == len(parts) - 1
    ):
        return []
    numbers = [first, *number.findall(entries)]
    if len(numbers) != len(parts):
        return None
    found = []
    for one in set(numbers):
        places = [place for place in range(begin) if numbers[place] == one]
        found += places[-(each_count - later[one]) :] if later[one] < each_count else []
    return found


@functools.lru_cache(maxsize=1_024)
def _number(key: bytes) -> re.Pattern[bytes]:
    return re.compile(re.escape(key) + b"K(.)", re.DOTALL)


def _bring_strings(entries: bytes, between: bytes, end: int) -> Iterator[int]:
    place = last = 0
    for found in _STRING.finditer(entries, 0, end):
        place += entries.count(between, last, found.start())
        last = found.start()
        yield place
