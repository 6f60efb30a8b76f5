"""Read flight recorder dumps, as pickle or JSON, into a small `Dump`.

Versions 1.x to 2.x of NCCL, gloo and others are read; 2.10 is the newest known. They differ in the
following:
    nccl_version     2.9 and older; comm_lib_version since. Neither is needed.
    seq_id           1.x; collective_seq_id, p2p_seq_id and is_p2p since.
    pg_config        gives each group's members as text; of gloo it has one empty row. Keyed by name
                     alone.
    pg_status        keyed by a number of the process, not by name; see `_counters`. Counts send and
                     receive too, so it is used only where there are none.
    state            of NCCL: scheduled, started, completed; an operation that is retired but not
                     completed has failed, and counts as not finished. Of gloo always "scheduled":
                     `retired` stands for it, and is true after a failure too.
    coalesced        operations of one launch share their numbers; the last of them carries the
                     state.

Each field that is used is checked for its type, and other fields are not looked at. Most of a long
dump in torch's own bytes is not even unpickled (shortening.py). Source: the headers and the
analyser of torch 2.13.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from outlast.diagnose.collectives.entries import (
    ORDER_KEPT_COUNT,
    TIMES_KEPT_COUNT,
    Entry,
    States,
    group_states,
    worth_reading,
)
from outlast.diagnose.collectives.naming import RANKS_MAX, rank_of_dump
from outlast.diagnose.collectives.pickles import OversizedDump, UnreadableDump, unpickled
from outlast.diagnose.collectives.shortening import shortened
from outlast.diagnose.collectives.state import NOBODY, Dump, GroupState
from outlast.model.texts import cut_at_word

DUMP_BYTES_MAX = 1 << 30  # 2,000 entries with stacks are a few megabytes
GROUPS_MAX = 4_096  # of one rank; Megatron makes a dozen
_VERSION = re.compile(r"([12])\.(\d{1,3})")
_RANKS = re.compile(r"\[(?:[0-9]{1,7}(?:, ?[0-9]{1,7})*)?\]")
_FIELDS: Callable[[Any], Entry] = operator.itemgetter(
    "process_group",
    "pg_id",
    "profiling_name",
    "collective_seq_id",
    "p2p_seq_id",
    "is_p2p",
    "state",
    "retired",
    "record_id",
)


def looks_like_dump(head: bytes) -> bool:
    """Return True for a file that begins like a dump: a binary pickle, or JSON with a recorder's
    keys.

    This is for choosing among files. `read_dump` judges.
    """
    if head[:1] == b"\x80":
        return head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return head.lstrip()[:1] == b"{" and any(
        key in head
        for key in (b'"comm_lib_version"', b'"nccl_version"', b'"pg_config"', b'"pg_status"')
    )


def read_dump(raw: bytes, *, name: str) -> Dump:
    """Return what a dump says.

    Raises UnreadableDump for whatever is not a whole dump. That is OversizedDump if it takes more
    memory than this process can have. Pickles of strangers are read only under limits (pickles.py).
    """
    if len(raw) > DUMP_BYTES_MAX:
        raise UnreadableDump(f"{len(raw)} bytes: no recorder writes so much")
    try:
        if (dump := _of_shortened(raw, name)) is not None:
            return dump
        top = _from_json(raw) if raw[:64].lstrip()[:1] in (b"{", b"[") else unpickled(raw)
        return _dump(top, name)
    except RecursionError:
        raise UnreadableDump("nested too deep: a dump has five levels") from None
    except MemoryError:
        raise OversizedDump(f"{len(raw)} bytes that ask for more memory than there is") from None


def _of_shortened(raw: bytes, name: str) -> Dump | None:
    """Return the dump, or None if all of it has to be read.

    Reading all of it also tells what is wrong with it.
    """
    short = shortened(raw, last_count=ORDER_KEPT_COUNT, each_count=TIMES_KEPT_COUNT)
    if short is None:
        return None
    try:
        top = unpickled(short.raw)
    except UnreadableDump:
        return None
    is_fitting = (
        type(top) is dict
        and type(entries := top.get("entries")) is list
        and short.is_fitting(entries)
    )
    return _dump(top, name, short.entries_count) if is_fitting else None


def _from_json(raw: bytes) -> object:
    try:
        return json.loads(raw)
    except ValueError as error:
        # also of bytes that are not UTF-8, and of numbers with thousands of digits
        cut = isinstance(error, json.JSONDecodeError) and error.pos >= len(error.doc.rstrip()) - 1
        why = f"not JSON: {cut_at_word(str(error), 120)}"
        if cut:
            why = f"cut short: the JSON ends in its middle, after {len(raw)} bytes"
        raise UnreadableDump(why) from None


def refuse(what: str) -> NoReturn:
    """Raise UnreadableDump, which says what the file is instead of a dump."""
    raise UnreadableDump(f"not a flight recorder's dump: {what}")


def _dump(top: object, name: str, entries_count: int | None = None) -> Dump:
    """Return the dump of what was unpickled.

    `entries_count` is how many entries a dump had before it was shortened.
    """
    if type(top) is not dict:
        refuse(f"a {type(top).__name__} where a table was expected")
    version, entries = top.get("version"), top.get("entries", [])
    if type(version) is not str or not _VERSION.fullmatch(version):
        if type(version) is not str:
            refuse("it names no version")
        refuse(f"version {cut_at_word(version, 20)!r}; known are 1.x and 2.x")
    if type(entries) is not list:
        refuse("its entries are not a list")
    config, counters = _config(top.get("pg_config", {})), _status(top.get("pg_status", {}))
    states, ids, issued = _states(entries, {group: listed[1] for group, listed in config.items()})
    if len(states) + len(config) > GROUPS_MAX:
        refuse(f"more than {GROUPS_MAX} groups")
    states = _with_counters(states, ids, config, counters)
    rank, possible = _rank(name, config)
    count = len(entries) if entries_count is None else entries_count
    return Dump(
        rank=rank,
        name=name,
        version=version,
        groups=tuple(states),
        entry_count=count,
        is_blank=not entries and not counters,
        is_whole=_is_whole(entries, count),
        newest_ns=max((at for state in states for _, at in state.created_ns), default=0),
        is_sure=possible is None,
        possible=possible or (),
        issued=issued,
    )


# --- entries --------------------------------------------------------------------------------------


def _states(entries: list[Any], members: Mapping[str, tuple[int, ...]]) -> States:
    try:
        entries = worth_reading(entries)
        return group_states(map(_FIELDS, entries), entries, members)
    except (KeyError, TypeError):
        pass  # of an older version, or not a dump's
    try:
        return group_states(
            [_of_any_version(entry, place) for place, entry in enumerate(entries)], entries, members
        )
    except (KeyError, TypeError) as error:
        refuse(f"an entry with a field of another kind ({cut_at_word(str(error), 60)})")


def _of_any_version(entry: object, place: int) -> Entry:
    if type(entry) is not dict:
        refuse(f"entry {place} is a {type(entry).__name__}")
    said = entry.get("profiling_name")
    group = entry.get("process_group") or (str(entry.get("pg_id", 0)), "")
    is_p2p = entry.get(
        "is_p2p",
        (type(said) is str and ":send " in said) or (type(said) is str and ":recv " in said),
    )
    seq = entry.get("collective_seq_id", entry.get("seq_id"))
    record, retired = entry.get("record_id", entry.get("id", place)), entry.get("retired", False)
    return (
        group,
        entry.get("pg_id", 0),
        said,
        seq,
        entry.get("p2p_seq_id", 0),
        is_p2p,
        entry.get("state"),
        retired,
        record,
    )


def _is_whole(entries: list[object], count: int) -> bool:
    """Return True if the record numbers run from 0 without a gap."""
    first = entries[0] if entries else None
    last = entries[-1] if entries else None
    if not isinstance(first, dict) or not isinstance(last, dict):
        return False
    return bool(first.get("record_id") == 0 and last.get("record_id") == count - 1)


# --- groups and their counters --------------------------------------------------------------------


@functools.lru_cache(maxsize=1 << 15)
def _members(text: str) -> tuple[tuple[int, ...], frozenset[int]]:
    """Return the ranks of a text such as "[0, 1, 2]".

    The same text gives the same object, which all ranks of a group then share.
    """
    if not _RANKS.fullmatch(text):
        refuse(f"members {cut_at_word(text, 40)!r}")
    ranks = tuple(map(int, text[1:-1].split(","))) if len(text) > 2 else ()
    if (ranks and max(ranks) >= RANKS_MAX) or len(set(ranks)) != len(ranks):
        refuse(f"members {cut_at_word(text, 40)!r}")
    return ranks, frozenset(ranks)


_Config = dict[str, tuple[str, "tuple[int, ...]", "frozenset[int]"]]


def _config(given: object) -> _Config:
    """Return the description and the members of each group, by name.

    The empty row that gloo leaves is left out.
    """
    if type(given) is not dict or len(given) > GROUPS_MAX:
        refuse("its groups are not a table, or too many")
    config: _Config = {}
    for name, row in given.items():
        if type(name) is not str or type(row) is not dict:
            refuse("a group without a name or a row")
        ranks, desc = row.get("ranks", "[]"), row.get("desc", "")
        if type(ranks) is list and all(type(rank) is int for rank in ranks):
            ranks = str(ranks)
        if type(ranks) is not str or type(desc) is not str:
            refuse(f"a row of group {cut_at_word(name, 40)!r}")
        if (members := _members(ranks))[0]:
            config[name] = (desc[:200], *members)
    return config


def _status(given: object) -> dict[int, tuple[int, int]]:
    """Return the last collective that was enqueued and completed, by the process's number of a
    group.

    -1 stands for none.
    """
    if type(given) is not dict or len(given) > GROUPS_MAX:
        refuse("its counters are not a table, or too many")
    status: dict[int, tuple[int, int]] = {}
    for key, row in given.items():
        if type(row) is not dict:
            refuse("a row of its counters")
        said = [
            key,
            row.get("last_enqueued_collective", -1),
            row.get("last_completed_collective", -1),
        ]
        try:
            number, enqueued, completed = (
                int(value) if type(value) in (int, str) else refuse("a row of its counters")
                for value in said
            )
        except ValueError:
            refuse("a row of its counters")
        status[number] = (enqueued, completed)
    return status


def _counters(
    ids: Mapping[str, int], config: _Config, status: Mapping[int, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Return the counters by the name of the group, as far as that is known.

    Entries tie a name to a number. Names that are numbers are given out in the order in which
    groups are made, as are the process's own numbers. So if both lists have one length, they are
    paired in order, provided that all entries agree with that.
    """
    known = {name: status[number] for name, number in ids.items() if number in status}
    if len(config) != len(status) or not all(
        name.isdecimal() and len(name) < 10 for name in config
    ):
        return known
    pairs = dict(zip(sorted(config, key=int), sorted(status), strict=True))
    if any(pairs.get(name, number) != number for name, number in ids.items()):
        return known
    return {name: status[number] for name, number in pairs.items()}


def _with_counters(
    states: list[GroupState],
    ids: Mapping[str, int],
    config: _Config,
    status: Mapping[int, tuple[int, int]],
) -> list[GroupState]:
    """Add states from counters alone.

    They are of groups whose entries the ring has lost, or, in a dump of active entries only, of
    groups that have finished everything.
    """
    # gloo: what it counts are operations, send and receive included, and all groups that matter
    # have entries
    if not config:
        return states
    told, seen = _counters(ids, config, status), {state.name for state in states}
    backend = states[0].backend if states else "nccl"
    idle = []
    for name, (desc, members, _) in config.items():
        if name not in seen and name in told:
            enqueued, completed = told[name]
            head = completed + 1 if 0 <= completed < enqueued else None
            idle.append(GroupState(name[:200], desc, backend, members, head, 0, max(enqueued, 0)))
    return states + idle


# --- whose it is ----------------------------------------------------------------------------------


def _rank(name: str, config: _Config) -> tuple[int, tuple[int, ...] | None]:
    """Return the rank of a dump.

    A rank is in all of its groups, and few others are, so the content tells it if it leaves one.
    Otherwise it is what the name claims, together with the ranks that it may be.
    """
    possible: frozenset[int] | None = None
    for _, _, members in sorted(config.values(), key=lambda row: len(row[2])):
        possible = members if possible is None else possible & members
        if len(possible) == 1:
            return next(iter(possible)), None
        if not possible:
            refuse("its groups have no rank in common")
    named = rank_of_dump(name)
    return NOBODY if named is None else named, tuple(sorted(possible or ()))
