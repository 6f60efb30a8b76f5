"""Read from processes that are about to be killed. Reads are bounded, and wait for no writer.

A read cannot be cancelled once the kernel has begun it. So nothing is opened that could wait for
another process (a FIFO, a socket, a device). /proc is read only where the kernel answers by itself.
A long file is read in pieces, and the reader may stop between two pieces.

Not promised: a file system that does not answer (a network mount that hangs). It would hold up the
run's ledger as well, which is in the same folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from outlast.runtime import clock

PIECE_BYTES = 64 * 1024
_PROC_BYTES = 4096
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Glance:
    """Read what the kernel and the disk know about a process, and send it signals.

    It also reads the clock. So a test can pass a reader whose reads take as long as the test wants.
    """

    def now_s(self) -> float:
        return clock.now_s()

    def wall_s(self) -> float:
        return clock.wall_s()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal. Nothing happens if the process is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)

    def kernel(self, pid: int, name: str) -> str:
        """Return /proc/<pid>/<name>, or "" if the process is gone or this user may not read it."""
        try:
            with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
                return file.read(_PROC_BYTES).decode("ascii", "backslashreplace").strip()
        except OSError:
            return ""

    def catches(self, pid: int, number: int) -> bool:
        """Return whether the process has a handler for the signal; without one it would end."""
        found = self.kernel(pid, "status").partition("SigCgt:")[2].split()
        return bool(found) and bool(int(found[0], 16) >> (number - 1) & 1)

    def written_s(self, path: Path) -> float:
        """Return when the file was last written, on the wall clock; 0 if it does not exist."""
        try:
            found = path.lstat()
        except OSError:
            return 0.0
        return found.st_mtime if stat.S_ISREG(found.st_mode) else 0.0

    def clear(self, path: Path) -> None:
        """Empty the file, so that it holds only the next output. Its writer appends."""
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_WRONLY | _FLAGS)
            try:
                os.ftruncate(fd, 0)
            finally:
                os.close(fd)

    def pieces(self, path: Path, *, most_bytes: int, end: bool = False) -> Iterator[bytes]:
        """Yield the file's beginning, or its `end`, in pieces of PIECE_BYTES.

        There are no pieces if there is no such file, or if it is not a regular file.
        """
        try:
            fd = os.open(path, _FLAGS)
        except OSError:
            return
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return
            at = max(0, found.st_size - most_bytes) if end else 0
            # this does not wait for bytes that are written meanwhile
            left = min(most_bytes, found.st_size - at)
            while left > 0 and (piece := os.pread(fd, min(PIECE_BYTES, left), at)):
                yield piece
                at, left = at + len(piece), left - len(piece)
        except OSError:
            return
        finally:
            os.close(fd)

    def read(self, path: Path, *, most_bytes: int, end: bool = False) -> bytes:
        """Return all `pieces`, if there is time for them."""
        return b"".join(self.pieces(path, most_bytes=most_bytes, end=end))
