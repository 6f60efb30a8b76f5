"""Read a log as a stream of lines, each of bounded length.

No more of the file is read than was there when it was found. A line ends at a newline. A progress
bar overwrites itself with carriage returns. If such a line is long, only what was written last is
returned. Of any other line longer than EVIDENCE_LINE_MAX_BYTES, the beginning and the end are
returned. Zero bytes, which a crash leaves in logs, are left out. UTF-16 with its mark is converted
to UTF-8.

An export that has many records on one line is returned record by record (`log_answers.py`).
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator
from itertools import chain

from outlast.diagnose.logs.log_answers import open_answer
from outlast.model.limits import EVIDENCE_LINE_MAX_BYTES, EVIDENCE_READ_BYTES
from outlast.model.pieces import Piece
from outlast.runtime.evidence.opening import Bounded, ByteSource, open_regular

_END_BYTES = EVIDENCE_LINE_MAX_BYTES // 4
_GAP = b" [...] "
_DRAWN_OVER_BYTES = 2 << 10


class Lines:
    """The lines of a log. Iterate over it once.

    `cut_count` lines were longer than the limit. `on_bytes` is called with the size of each piece
    that was read. Raises OSError.
    """

    def __init__(self, piece: Piece, *, on_bytes: Callable[[int], None] | None = None) -> None:
        assert piece.path is not None, piece.name
        self._path = piece.path
        self._size = piece.size_bytes
        self._on_bytes = on_bytes
        self.cut_count = 0

    def __iter__(self) -> Iterator[bytes]:
        with Bounded(self._path, self._size) as file:
            yield from self._split(file)

    def _split(self, file: ByteSource) -> Iterator[bytes]:
        chunks = self._chunks(file)
        first = next(chunks, b"")
        while (answer := open_answer(first, chunks)) is not None:
            yield from answer
            first = answer.rest
        yield from self._plain(chain((first,), chunks))

    def _plain(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        held = b""  # the beginning of a line that goes on in the next chunk
        cut = False
        for chunk in chunks:
            lines = chunk.split(b"\n")
            held += lines[0]
            if len(lines) == 1:
                if len(held) > EVIDENCE_LINE_MAX_BYTES + EVIDENCE_READ_BYTES:
                    held, cut = self._cut(held), True
                continue
            yield self._ended(held, cut)
            for line in lines[1:-1]:
                yield line if len(line) <= _DRAWN_OVER_BYTES else self._ended(line, False)
            held, cut = lines[-1], False
        if held:
            yield self._ended(held, cut)

    def _chunks(self, file: ByteSource) -> Iterator[bytes]:
        decoder = None
        first = True
        while data := file.read(EVIDENCE_READ_BYTES):
            if self._on_bytes is not None:
                self._on_bytes(len(data))
            if first:
                first = False
                if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    decoder = codecs.getincrementaldecoder("utf-16")("replace")
            if decoder is not None:
                data = decoder.decode(data).encode("utf-8", "replace")
            yield data.translate(None, b"\x00") if b"\x00" in data else data

    def _ended(self, line: bytes, cut: bool) -> bytes:
        if len(line) > _DRAWN_OVER_BYTES and b"\r" in line:
            line = line.rstrip(b"\r").rpartition(b"\r")[2]
        if len(line) > EVIDENCE_LINE_MAX_BYTES:
            line, cut = self._cut(line), True
        self.cut_count += cut
        return line

    @staticmethod
    def _cut(line: bytes) -> bytes:
        return line[: EVIDENCE_LINE_MAX_BYTES - _END_BYTES - len(_GAP)] + _GAP + line[-_END_BYTES:]


def last_lines(piece: Piece, *, size: int = EVIDENCE_LINE_MAX_BYTES) -> list[bytes]:
    """Return the complete lines within the last `size` bytes, unchanged. Raises OSError.

    If a progress bar takes all of these bytes, what it wrote is returned.
    """
    assert piece.path is not None, piece.name
    fd, _ = open_regular(piece.path)
    try:
        data = os.pread(fd, size, max(0, piece.size_bytes - size))
    finally:
        os.close(fd)
    lines = data.split(b"\n")
    if len(lines) == 1 and b"\r" in data:
        lines = data.split(b"\r")
    return lines if piece.size_bytes <= size else lines[1:]
