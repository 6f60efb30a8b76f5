"""Read gzip, bzip2, xz and Zstandard as streams, in bounded memory.

Memory stays bounded however much a few bytes expand to. Zstandard needs a version of Python or a
package that can read it.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from outlast.model.limits import EVIDENCE_XZ_MEMORY_BYTES
from outlast.runtime.evidence.kinds import FileKind
from outlast.runtime.evidence.opening import ByteSource

_READ_BYTES = 64 << 10
_ZSTD_WINDOW_LOG = 27  # 128 MB, which zstd itself accepts by default


class Damaged(Exception):
    """The bytes do not fit the format that the first ones announced.

    What was read before is valid.
    """


class CannotRead(Exception):
    """This Python cannot read the format. The text says what to do."""


class _Decompressor(Protocol):
    """The interface that bz2, lzma and compression.zstd have in common."""

    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's object with the interface of the others."""

    def __init__(self) -> None:
        self._one = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._one.eof

    @property
    def unused_data(self) -> bytes:
        return self._one.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._one.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._one.decompress(self._one.unconsumed_tail + data, max_length)


class Unpacked:
    """The content of a compressed stream, all of its members one after the other.

    If the bytes after the last member do not begin another one, they are not read. `read` raises
    Damaged, and EOFError if the stream was cut short.
    """

    def __init__(self, stream: ByteSource, make: Callable[[], Any]) -> None:
        self._stream = stream
        self._make = make
        self._one: _Decompressor = make()
        self._members = 1
        self._begun = False  # whether this member has consumed any bytes

    def read(self, size: int, /) -> bytes:
        while not self._one.eof or self._next():
            data = self._stream.read(_READ_BYTES) if self._one.needs_input else b""
            if not data and self._one.needs_input:
                raise EOFError("it was cut short")
            try:
                out = self._one.decompress(data, size)
            except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
                if self._members > 1 and not self._begun:
                    return b""
                raise Damaged(str(error)) from None
            self._begun = True
            if out:
                return out
        return b""

    def _next(self) -> bool:
        """Go to the member after the one that ended. Return False if there is none.

        Zeros between members are padding.
        """
        rest = self._one.unused_data.lstrip(b"\x00")
        while not rest:
            more = self._stream.read(_READ_BYTES)
            if not more:
                return False
            rest = more.lstrip(b"\x00")
        self._stream = _Before(rest, self._stream)
        self._one, self._begun, self._members = self._make(), False, self._members + 1
        return True


class _Before:
    """Some bytes, followed by a stream."""

    def __init__(self, first: bytes, then: ByteSource) -> None:
        self._first = first
        self._then = then

    def read(self, size: int, /) -> bytes:
        if self._first:
            out, self._first = self._first[:size], self._first[size:]
            return out
        return self._then.read(size)


def decompressed(stream: ByteSource, kind: FileKind) -> ByteSource:
    """Return what `stream` contains, unpacked. Raises CannotRead."""
    if kind is FileKind.GZIP:
        return Unpacked(stream, _Gzip)
    if kind is FileKind.BZIP2:
        return Unpacked(stream, bz2.BZ2Decompressor)
    if kind is FileKind.XZ:
        return Unpacked(stream, lambda: lzma.LZMADecompressor(memlimit=EVIDENCE_XZ_MEMORY_BYTES))
    return _zstd(stream)


def _zstd(stream: ByteSource) -> ByteSource:
    # Python 3.14 has this module, and the package is its equivalent for older versions.
    module = _first_of("compression.zstd", "backports.zstd")
    if module is not None:
        options = {module.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        return Unpacked(stream, lambda: module.ZstdDecompressor(options=options))
    package = _first_of("zstandard")
    if package is None:
        raise CannotRead(
            "this Python cannot read Zstandard: unpack it first, with `zstd -d`, or `pip install"
            " zstandard`"
        )
    return _ZstandardStream(package, stream)


def _first_of(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


class _ZstandardStream:
    """The package `zstandard`, whose reader limits how much it returns at once."""

    def __init__(self, package: Any, stream: ByteSource) -> None:
        self._error = package.ZstdError
        self._reader = package.ZstdDecompressor(
            max_window_size=1 << _ZSTD_WINDOW_LOG
        ).stream_reader(stream, read_across_frames=True)

    def read(self, size: int, /) -> bytes:
        try:
            return bytes(self._reader.read(size))
        except self._error as error:
            raise Damaged(str(error)) from None
