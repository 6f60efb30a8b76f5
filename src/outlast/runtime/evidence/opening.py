"""Open evidence safely.

Only regular files are opened, and never through a symbolic link. Opening never blocks, and reading
stops at the size that was found.
"""

from __future__ import annotations

import os
import stat
from typing import Protocol

from outlast.model.limits import EVIDENCE_READ_BYTES


class ByteSource(Protocol):
    """A source of bytes. One call returns `size` bytes at most, and none at the end."""

    def read(self, size: int, /) -> bytes: ...


class NotRegular(OSError):
    """The path is not a regular file any more, but a FIFO, a device or a link."""


def open_regular(path: str) -> tuple[int, os.stat_result]:
    """Open a file for reading. Return the descriptor and its `os.fstat`.

    A FIFO may have taken the file's place since it was looked at. It is opened without waiting for
    its writer, and closed again unread. Raises OSError and NotRegular.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegular(f"{path} is not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def read_head(path: str, size: int) -> tuple[bytes, os.stat_result]:
    """Return the first `size` bytes. Raises OSError."""
    fd, status = open_regular(path)
    try:
        return os.read(fd, min(size, status.st_size)), status
    finally:
        os.close(fd)


class Bounded:
    """The first `size_bytes` of a regular file; a context manager."""

    def __init__(self, path: str, size_bytes: int) -> None:
        self._path = path
        self._left = size_bytes
        self._fd = -1

    def __enter__(self) -> Bounded:
        self._fd, _ = open_regular(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, size: int = EVIDENCE_READ_BYTES, /) -> bytes:
        data = os.read(self._fd, min(size, self._left)) if self._left > 0 else b""
        self._left -= len(data)
        return data


class Peeked:
    """A stream whose beginning can be read in advance."""

    def __init__(self, stream: ByteSource) -> None:
        self._stream = stream
        self._ahead = b""

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes; there are fewer only if the stream ends before."""
        while len(self._ahead) < size:
            more = self._stream.read(size - len(self._ahead))
            if not more:
                break
            self._ahead += more
        return self._ahead[:size]

    def read(self, size: int, /) -> bytes:
        if not self._ahead:
            return self._stream.read(size)
        out, self._ahead = self._ahead[:size], self._ahead[size:]
        return out

    def exactly(self, size: int) -> bytes:
        """Return `size` bytes, for headers. Raises EOFError if there are fewer."""
        parts: list[bytes] = []
        while size > 0:
            part = self.read(size)
            if not part:
                raise EOFError("it ends in the middle of a header")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
