"""Recognise outlast's own earlier output, so that a verdict is never its own witness.

A text verdict stands between a first and a last line that no program writes by accident.
`without_own_verdicts` empties the lines between them, so that line numbers stay. A block that does
not end within OWN_OUTPUT_LINES_MAX lines is read as evidence after all. So a first line alone,
forged or cut, hides nothing. A single line of ours (`is_own_line`) repeats evidence and concludes
from it, so it does not count either.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from outlast.model.limits import OWN_OUTPUT_LINES_MAX
from outlast.model.terms import FailureClass

GENERATOR = "outlast diagnose"  # the HTML's <meta name="generator">
PLAN_GENERATOR = "outlast plan"
REPORT_GENERATOR = "outlast report"
DRILL_GENERATOR = "outlast drill"
FIRST_WORDS = "outlast diagnose: "
LAST_WORDS = "end of outlast diagnose"

_CLASS = rb'"class":\s*"[a-z_]+",\s*"mechanism":\s*(?:null|"[a-z_]+"),\s*"confidence":'
_JSON = re.compile(rb"\s*\{\s*" + _CLASS)
_COLLECTED = re.compile(rb'\{\s*"collected_at_s":')  # what `--collect` had and had not
# as runtime/agent/evidence.py writes it
_PROCESSES = re.compile(rb'\{\s*"schema": \d{1,9},\s*"outlast": "processes",')
_REPORT = re.compile(
    rb"\S+  (?:starting|training|regrouping|ended|failed|stopped|lost)  [\d,]+ steps? on [\d,]+"
    rb" ranks? in "
)
_FIRST = re.compile(rb"outlast diagnose: [a-z_]+ \(\d")
_BATCH_LINES = 128
_LAST = LAST_WORDS.encode()
_CLASS_LINE = re.compile(rb'"class":\s*"[a-z_]+",\s*$')
_ONE_LINE = re.compile(rb"\{\s*" + _CLASS)


LINE_NEEDLES = (
    b"outlast diagnose",
    b"outlast report",
    b"refuted_by",
    b"where the rank-seconds went",
    b"refuted by",
)
_LINE = re.compile(
    r"^\W{0,8}(?:outlast (?:diagnose|report|status)\b|where the rank-seconds went|<!doctype"
    r' html><!-- outlast)|"refuted_by"\s?:|^\W{0,4}refuted by\b',
    re.IGNORECASE,
)
_CLASS_NAMED = re.compile(
    r'"class"\s?:\s?"(?:' + "|".join(one.value for one in FailureClass) + ')"'
)


def is_own_line(text: str) -> bool:
    """Return True for a line of outlast's own output; it has one of `LINE_NEEDLES` in it."""
    return bool(_LINE.search(text[:400]) or ('"refuted_by"' in text and _CLASS_NAMED.search(text)))


def is_own_file(head: bytes) -> bool:
    """Return True for a whole file that outlast wrote.

    It is a verdict in JSON or HTML, the record of a collection, what `outlast report` and
    `outlast status` print, or the processes of one of several nodes, which are also in
    standing.json.
    """
    if any(kind.match(head) for kind in (_JSON, _REPORT, _COLLECTED, _PROCESSES)):
        return True
    start = head[:2048]
    pages = any(
        f'name="generator" content="{one}'.encode() in start
        for one in (GENERATOR, PLAN_GENERATOR, REPORT_GENERATOR, DRILL_GENERATOR)
    )
    return pages or (start.lstrip()[:1] == b"{" and b'"ettr"' in head and b'"rank_seconds"' in head)


def not_collected(record: bytes) -> tuple[str, ...]:
    """Return what `--collect` could not get, as sentences; empty for any other file.

    `record` is the whole file, or its beginning. One that is cut or changed says nothing.
    """
    if not _COLLECTED.match(record):
        return ()
    try:
        lacking = json.loads(record).get("lacking")
    except (ValueError, RecursionError):
        return ()
    return tuple(map(str, lacking)) if isinstance(lacking, list) else ()


def without_own_verdicts(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same number of lines, with those of an earlier verdict left empty."""
    source = iter(lines)
    # looked at together: two searches a line would cost as much as reading it
    while batch := list(islice(source, _BATCH_LINES)):
        text = b"\n".join(batch)
        if b"outlast diagnose" in text or b'"class":' in text:
            yield from _looked_at(_Feed(batch, source))
        else:
            yield from batch


def _looked_at(feed: _Feed) -> Iterator[bytes]:
    while feed.batch:
        line = next(feed)
        if b"outlast diagnose" not in line and b'"class":' not in line:
            yield line
        elif _FIRST.search(line):
            yield from _block(line, feed, lambda one: _LAST in one)
        elif _CLASS_LINE.search(line):
            yield from _block(
                line,
                feed,
                _closing_brace(line),
                holds=(b'"mechanism":', b'"confidence":', b'"refuted_by":', b'"next_test":'),
            )
        else:
            yield b"" if _ONE_LINE.search(line) and b'"refuted_by":' in line else line


class _Feed:
    """A batch of lines, and then what comes after it."""

    def __init__(self, batch: Iterable[bytes], source: Iterator[bytes]) -> None:
        self.batch = deque(batch)
        self._source = source

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> bytes:
        return self.batch.popleft() if self.batch else next(self._source)


def _closing_brace(first: bytes) -> Callable[[bytes], bool]:
    """Return a test for the closing line.

    Its brace is two columns left of the first key, after the same prefix.
    """
    closing = first[: first.index(b'"class"')][:-2] + b"}"
    return lambda line: line.rstrip() == closing


def _block(
    first: bytes,
    source: Iterator[bytes],
    is_last: Callable[[bytes], bool],
    *,
    holds: tuple[bytes, ...] = (),
) -> Iterator[bytes]:
    held = [first]
    for line in source:
        held.append(line)
        if is_last(line):
            ours = all(any(part in one for one in held) for part in holds)
            yield from [b""] * len(held) if ours else held
            return
        if len(held) > OWN_OUTPUT_LINES_MAX:
            break
    yield from held
