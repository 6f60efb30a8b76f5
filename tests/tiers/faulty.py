"""A disk that fails at an operation of one's choice, and processes that end there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from outlast.runtime.tiers.local import MANIFEST_NAME, Disk


class FaultyDisk(Disk):
    """Calls `fault` before the operation of that number, and in the middle of it if it is a
    write.
    """

    def __init__(self, at: int = -1, fault: Callable[[], None] = lambda: None) -> None:
        self.names: list[str] = []
        self._at, self._fault = at, fault

    def _next(self, name: str) -> bool:
        self.names.append(name)
        return len(self.names) - 1 == self._at

    def make_folder(self, folder: Path) -> None:
        if self._next("make_folder"):
            self._fault()
        super().make_folder(folder)

    def write(self, fd: int, data: memoryview) -> None:
        if self._next("write"):
            super().write(fd, data[: len(data) // 2])
            self._fault()
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        if self._next("sync"):
            self._fault()
        super().sync(fd)

    def rename(self, source: Path, target: Path) -> None:
        if self._next(f"rename {target.name}"):
            self._fault()
        super().rename(source, target)

    def remove(self, folder: Path) -> None:
        if self._next("remove"):
            (folder / MANIFEST_NAME).unlink()
            self._fault()
        super().remove(folder)


def crash() -> None:
    os._exit(7)


def in_a_child(work: Callable[[], object]) -> int:
    """Runs `work` in a fork that ends without any clean-up; its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(9)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
