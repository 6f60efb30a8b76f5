"""Copy a checkpoint from the disk to object storage, and back, and compare every byte.

Both directions work in the same way: the files are copied first, each with a checksum over its
bytes, then the manifest. So a source that is damaged gives no checkpoint at the target.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from outlast.errors import CorruptError
from outlast.model.manifest import FileEntry, Manifest
from outlast.runtime import clock
from outlast.runtime.tiers import local
from outlast.runtime.tiers.tier import CheckpointTier, Seen, unseen

_BLOCK_BYTES = 1 << 20


class BytePace:
    """Let bytes pass no faster than `bytes_per_s` (0: as fast as possible), and count them."""

    def __init__(
        self,
        bytes_per_s: float = 0.0,
        *,
        seen: Seen = unseen,
        now: Callable[[], float] = clock.now_s,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._seen = seen
        self._now = now
        self._pause = pause
        self._free_s = 0.0  # the bytes so far use up the rate until this time

    def through(self, chunks: Iterable[memoryview]) -> Iterator[memoryview]:
        """Yield the chunks, each at the time at which the rate allows it."""
        for chunk in chunks:
            if self._bytes_per_s:
                now_s = self._now()
                begins_s = max(self._free_s, now_s)
                self._free_s = begins_s + len(chunk) / self._bytes_per_s
                if begins_s > now_s:
                    self._pause(begins_s - now_s)
            yield chunk
            self._seen(len(chunk))


@contextlib.contextmanager
def held(folder: Path, manifest: Manifest) -> Iterator[Callable[[FileEntry], Iterator[memoryview]]]:
    """Open all files of a checkpoint on the disk. Yield a function that reads one of them.

    A checkpoint may be removed while it is uploaded, because newer ones were written. What is open
    can still be read, so a slow upload comes to its end. Raises CorruptError if a file is missing
    or has another length.
    """
    with contextlib.ExitStack() as closing:
        fds: dict[str, int] = {}
        for entry in manifest.files:
            # `opened` takes errors of its block for its own. Those of the target are not.
            with local.opened(folder / entry.name, entry) as file:
                fds[entry.name] = fd = os.dup(file.fileno())
            closing.callback(os.close, fd)

        def chunks(entry: FileEntry) -> Iterator[memoryview]:
            fd, at = fds[entry.name], 0
            try:
                while data := os.pread(fd, _BLOCK_BYTES, at):
                    at += len(data)
                    yield memoryview(data)
            except OSError as error:
                name = folder / entry.name
                raise CorruptError(f"{name} cannot be read: {error.strerror}") from error

        yield chunks


def copy(
    manifest: Manifest,
    target: CheckpointTier,
    *,
    chunks: Callable[[FileEntry], Iterator[memoryview]],
    source: str,
    pace: BytePace,
) -> None:
    """Copy a checkpoint into `target`. `chunks` reads one of its files, at `source`.

    Raises CorruptError if a file is not as the manifest says, and what `target` raises. Then the
    checkpoint does not exist there.
    """
    for entry in manifest.files:
        passed = pace.through(chunks(entry))
        written = target.put(manifest.step, entry.name, passed, length=entry.length)
        if written.length != entry.length:
            raise CorruptError(f"{source}/{entry.name} ended while it was read")
        if written != entry:
            raise CorruptError(f"{source}/{entry.name} does not match its checksum")
    target.commit(manifest)
