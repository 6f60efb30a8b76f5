"""Control groups that a drill makes for processes of its run, and removes again."""

from __future__ import annotations

import contextlib
from pathlib import Path

PREFIX = "outlast-drill-"  # how their names begin
REMOVE_S = 2.0  # the kernel needs a moment until a group of a process that has ended is empty
TICK_S = 0.02


def move_up(group: Path) -> None:
    """Give the processes of a group back to the group above, as far as the kernel allows it."""
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(pid)
