"""Make one process run out of memory, so that the kernel kills it (`outlast drill`, kind "oom").

    with MemoryGroups() as groups:
        groups.starve(pid)      # it may have LIMIT_BYTES more
        groups.look()           # now and then: removes groups that are empty

The process is moved into a control group of its own. What it holds already is not counted there.
Once it has taken LIMIT_BYTES more, the kernel's OOM killer ends it, and counts that. A process that
trains may not allocate more for a long time, so it is also told to
(`worker/instructions/drill_code.py`).

Needs the right to make control groups, which root has where their tree may be written to.
`may_be_made` says why they cannot be made here, or "".
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path

from outlast.runtime import clock
from outlast.runtime.cgroups import MOUNT
from outlast.runtime.drill.control_groups import PREFIX, REMOVE_S, TICK_S, move_up
from outlast.runtime.worker.instructions.drill_code import STARVED_BYTES

LIMIT_BYTES = STARVED_BYTES // 2


@functools.cache
def may_be_made() -> str:
    """Return why no process can be starved of memory here, or ""."""
    try:
        _made(f"try-{os.getpid()}").rmdir()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return f"control groups for memory need root, and a tree that may be written to: {why}"
    return ""


class MemoryGroups:
    """The control groups of one drill. At exit the processes leave them, and they are removed."""

    def __init__(self, mount: Path = MOUNT) -> None:
        self._mount = mount
        self._made: list[Path] = []

    def starve(self, pid: int) -> bool:
        """Limit the memory of a process. Return False if it is gone.

        Raises OSError if no group can be made.
        """
        group = _made(f"{os.getpid()}-{pid}", self._mount)
        self._made.append(group)
        try:
            (group / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            return False
        return True

    def look(self) -> None:
        """Remove the groups whose process has ended."""
        for group in list(self._made):
            with contextlib.suppress(OSError):
                group.rmdir()
                self._made.remove(group)

    def __enter__(self) -> MemoryGroups:
        return self

    def __exit__(self, *_: object) -> None:
        until_s = clock.now_s() + REMOVE_S
        for group in self._made:
            move_up(group)
        self.look()
        while self._made and clock.now_s() < until_s:
            time.sleep(TICK_S)
            self.look()


def _made(name: str, mount: Path = MOUNT) -> Path:
    """Make a group with little memory, under either hierarchy. Raises OSError."""
    first = (mount / "memory" / "memory.limit_in_bytes").exists()
    group = (mount / "memory" if first else mount) / f"{PREFIX}{name}"
    group.mkdir()
    try:
        limit = group / ("memory.limit_in_bytes" if first else "memory.max")
        if not limit.exists():
            raise FileNotFoundError(None, f"{mount} does not control memory", str(limit))
        limit.write_text(str(LIMIT_BYTES))
        with contextlib.suppress(OSError):  # no swap, or no account of it
            swap = group / ("memory.memsw.limit_in_bytes" if first else "memory.swap.max")
            swap.write_text(str(LIMIT_BYTES if first else 0))
    except OSError:
        group.rmdir()
        raise
    return group
