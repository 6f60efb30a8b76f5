"""Write files past the kernel's cache (O_DIRECT), where the file system allows that.

The bytes of an image are in shared memory already. A copy of them in the cache would take as much
memory again, and processor time. It would also push out what the training reads.

Limits     Direct writes need memory addresses, offsets in the file and lengths that are multiples
           of DIRECT_ALIGN_BYTES. Other bytes, such as the end of a file, go through the cache. On a
           file system without direct writes, all bytes do. A file is synced after each
           SYNC_EVERY_BYTES that went through the cache. So no sync takes long, and a disk that
           hangs can be told from a slow one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from outlast.errors import RunFolderError
from outlast.model.limits import DIRECT_ALIGN_BYTES, DIRECT_BLOCK_BYTES, SYNC_EVERY_BYTES
from outlast.runtime.tiers.local import Disk


def in_blocks(image: memoryview, moved: Callable[[], None]) -> Iterator[memoryview]:
    """Yield an image in blocks that can be written directly. `moved` is called after each."""
    for at in range(0, len(image), DIRECT_BLOCK_BYTES):
        yield image[at : at + DIRECT_BLOCK_BYTES]
        moved()


class DirectDisk(Disk):
    """A disk to which aligned memory is written directly. `direct_bytes` counts these bytes.

    why_late   returns why a file must not get its name any more, or "". Another process may be
               writing a file of that name by then
    """

    def __init__(self, why_late: Callable[[], str] = lambda: "") -> None:
        self.direct_bytes = 0
        self._why_late = why_late
        self._unsynced: dict[int, int] = {}  # by descriptor: bytes in the cache since the last sync

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file. Raises RunFolderError if `why_late` gives a reason not to."""
        if why := self._why_late():
            raise RunFolderError(f"{target} is not written: {why}")
        super().rename(source, target)

    def write(self, fd: int, data: memoryview) -> None:
        """Write all of `data`, directly as far as possible."""
        whole = len(data) // DIRECT_ALIGN_BYTES * DIRECT_ALIGN_BYTES
        written = self._write_directly(fd, data[:whole]) if whole and _switch(fd, on=True) else 0
        _switch(fd, on=False)
        super().write(fd, data[written:])
        cached = self._unsynced.get(fd, 0) + len(data) - written
        self._unsynced[fd] = cached
        if cached >= SYNC_EVERY_BYTES:
            os.fdatasync(fd)
            self._unsynced[fd] = 0

    def sync(self, fd: int) -> None:
        """Wait until a file or a folder is on the disk."""
        self._unsynced.pop(fd, None)
        super().sync(fd)

    def _write_directly(self, fd: int, data: memoryview) -> int:
        """Write as long as direct writes are possible. Return how many bytes were written."""
        written = 0
        try:
            while written < len(data) and written % DIRECT_ALIGN_BYTES == 0:
                count = os.write(fd, data[written:])
                written += count
                self.direct_bytes += count
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: the memory or the offset is not aligned
                raise
        return written


def _switch(fd: int, *, on: bool) -> bool:
    """Switch direct writes on or off. Return False if the file system does not support them."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return True
