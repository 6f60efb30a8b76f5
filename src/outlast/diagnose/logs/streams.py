"""Read findings from the lines of a file, with any writer and in any packing.

Lines are read in blocks. Where something packed them (`envelopes.py`), they are opened first, and
each writer has a reader of its own (`lines.py`): its tracebacks and stacks are whole, though the
lines of others stand between theirs.

A file whose records stand over many lines each is read record by record (`exports.py`). If the
records come newest first, they are turned around.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.envelopes import Opener, opener_of
from outlast.diagnose.logs.exports import Numbered, records_of
from outlast.diagnose.logs.json_lines import Inner, OfPod
from outlast.diagnose.logs.lines import LINE_BYTES, LineReader
from outlast.diagnose.rules import RULES
from outlast.model.verdict import Evidence

BLOCK_LINES = 4096
BLOCK_BYTES = 1 << 20
READERS_MAX = 1024  # writers beyond these share one reader
PART_BYTES = 4 * LINE_BYTES  # of a line that comes in parts
TURNED_MAX = 50_000  # records that are held at once to turn them around
POD = RULES["kube.pod"]


def read_lines(lines: Iterable[bytes], *, name: str) -> Iterator[Finding]:
    """Yield the findings of one file, in about the order of its lines.

    `name` is what evidence calls the file.
    """
    source = iter(lines)
    first = list(islice(source, 2))
    numbered: Iterator[Numbered] = enumerate(chain(first, source), 1)
    numbered = records_of(first, numbered)
    reading = _Reading(name)
    block = _block(numbered)
    opener = opener_of([line for _, line in block], name)
    if _is_newest_first(block, opener):
        yield from _turned(reading, chain(block, numbered))
        return
    while block:
        yield from reading.opened(block, opener)
        block = _block(numbered)
        opener = opener_of([line for _, line in block], name)
    yield from reading.end()


def _block(source: Iterator[Numbered]) -> list[Numbered]:
    """Return up to `BLOCK_LINES` lines and about `BLOCK_BYTES`, so that few long ones pile up."""
    block: list[Numbered] = []
    size = 0
    while len(block) < BLOCK_LINES and size < BLOCK_BYTES:
        some = list(islice(source, 64))
        block += some
        size += sum(len(line) for _, line in some)
        if len(some) < 64:
            break
    return block


@dataclass(slots=True)
class _Part:
    """The lines of one writer in a block."""

    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    times_s: dict[int, float] = field(default_factory=dict)


class _Reading:
    """The readers of one file, one for each of its writers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._readers: dict[str, LineReader] = {}
        self._held: dict[str, tuple[int, bytes]] = {}  # beginnings of lines that come in parts

    def block(self, block: Sequence[Numbered]) -> Iterator[Finding]:
        return self.opened(block, opener_of([line for _, line in block], self._name))

    def opened(self, block: Sequence[Numbered], opener: Opener | None) -> Iterator[Finding]:
        """Read a block of which it is known what opens its lines."""
        if opener is None:
            plain = [_cut(line) for _, line in block]
            yield from self._reader(Inner(b"")).block(plain, [number for number, _ in block])
            return
        parts: dict[str, _Part] = {}
        for number, line in block:
            for inner in opener(line) or (Inner(line),):
                if inner.writer not in self._readers:
                    yield from self._new(inner, number)
                self._add(parts.setdefault(inner.writer, _Part()), number, inner)
        for writer, part in parts.items():
            yield from self._readers[writer].block(part.lines, part.numbers, part.times_s)

    def end(self) -> Iterator[Finding]:
        for writer, (number, text) in self._held.items():
            yield from self._readers[writer].block([_cut(text)], [number])
        for reader in self._readers.values():
            yield from reader.end()

    def _add(self, part: _Part, number: int, inner: Inner) -> None:
        first, held = self._held.pop(inner.writer, (number, b""))
        text = held + inner.text
        if inner.is_part and len(text) < PART_BYTES:
            self._held[inner.writer] = first, text
            return
        part.lines.append(_cut(text))
        part.numbers.append(first)
        if inner.at_s is not None:
            part.times_s[first] = inner.at_s

    def _reader(self, inner: Inner) -> LineReader:
        if inner.writer not in self._readers:
            shared = len(self._readers) >= READERS_MAX
            self._readers[inner.writer] = (
                next(iter(self._readers.values()))
                if shared
                else LineReader(self._name, node=inner.node)
            )
        return self._readers[inner.writer]

    def _new(self, inner: Inner, number: int) -> Iterator[Finding]:
        self._reader(inner)
        if inner.is_pod and inner.node is not None:
            said = Evidence(self._name, number, f"lines of pod {inner.node}", POD.role)
            yield OfPod(said, POD.name, order=number, node=inner.node, host=inner.host or "")


def _cut(line: bytes) -> bytes:
    return line if len(line) <= LINE_BYTES else line[:LINE_BYTES] + b"\x00cut"


# --- newest first -------------------------------------------------------------------------------


def _is_newest_first(block: Sequence[Numbered], opener: Opener | None) -> bool:
    if opener is None:
        return False
    opened = [opener(line) or () for _, line in block[:256]]
    times_s = [one[0].at_s for one in opened if one and one[0].at_s is not None]
    earlier = sum(later < one for one, later in pairwise(times_s))
    later = sum(later > one for one, later in pairwise(times_s))
    return earlier > 3 * later and earlier > 2


def _turned(reading: _Reading, numbered: Iterator[Numbered]) -> Iterator[Finding]:
    """Yield the findings of records that come newest first; their order is that of time."""

    def in_time(some: Iterable[Finding]) -> Iterator[Finding]:
        return (replace(one, order=-one.order) for one in some)

    while some := list(islice(numbered, TURNED_MAX)):
        some.reverse()
        for at in range(0, len(some), BLOCK_LINES):
            yield from in_time(reading.block(some[at : at + BLOCK_LINES]))
    yield from in_time(reading.end())
