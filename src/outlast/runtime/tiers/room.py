"""How much shared memory can still be allocated, and what sets that limit."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from outlast.runtime.cgroups import Hierarchy, memory_room

MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that can still be allocated, what sets that limit, and how it is raised."""

    free: int
    of: str
    hint: str


def room_in(folder: Path, groups: list[Hierarchy]) -> Room:
    """Return the tightest limit on a file in `folder`, which is in shared memory.

    tmpfs may be larger than the memory that the machine or the control group has left. An
    allocation would then end in the OOM killer.
    """
    found = os.statvfs(folder)
    size_hint = (
        "make /dev/shm larger (docker run --shm-size=..., mount -o remount,size=... /dev/shm), free"
        " memory"
    )
    in_folder = Room(found.f_bavail * found.f_frsize, "free space of the file system", size_hint)
    return min(in_folder, memory_left(groups), key=lambda room: room.free)


def memory_left(groups: list[Hierarchy], meminfo: Path = MEMINFO) -> Room:
    """Return the tightest limit on memory: that of the machine, or of a control group.

    `meminfo` is written like /proc/meminfo. Some sandboxes do not say there how much is left. If no
    control group sets a limit either, none is known, and an allocation that is too large fails.
    """
    rooms = []
    for line in meminfo.read_text().splitlines() if meminfo.exists() else ():
        if line.startswith("MemAvailable:"):
            rooms.append(Room(int(line.split()[1]) * 1024, "memory of this machine", "free memory"))
    if (limited := memory_room(groups)) is not None:
        limit_hint = (
            "raise that limit (docker run --memory=..., limits.memory of a pod, MemoryMax= of a"
            " unit)"
        )
        rooms.append(
            Room(limited[0], f"memory limit of the control group {limited[1]}", limit_hint)
        )
    unknown = Room(sys.maxsize, "no limit on memory is known", "free memory")
    return min(rooms, key=lambda room: room.free, default=unknown)
