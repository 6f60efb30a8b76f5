"""This process's control groups for memory, under either hierarchy.

It finds their files, and how much memory their limits leave.

Units      bytes.
Limits     Trees are looked for where systemd and container engines mount them: v2 at the root of
           `mount`, v1 in its folder "memory". If a group is outside what is mounted here (its path
           begins with ".."), nothing is known about it. Swap is not counted as room.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

OWN = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One hierarchy of control groups that this process is in.

    `levels`: the folders of its group, of the parent group, and so on up to the root.

    Not all of them need to exist, because a container sees only its own part.
    """

    version: int
    levels: tuple[Path, ...]


def memory_hierarchies(own: Path = OWN, mount: Path = MOUNT) -> list[Hierarchy]:
    """Return the hierarchies that may count or limit our memory.

    `own` is written like /proc/self/cgroup. The result is empty if it cannot be read.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        parts = Path(path.lstrip("/"))
        if ".." in parts.parts:
            continue
        if controllers == "":
            found.append(Hierarchy(2, _up(mount, parts)))
        elif "memory" in controllers.split(","):
            found.append(Hierarchy(1, _up(mount / "memory", parts)))
    return found


def memory_room(hierarchies: list[Hierarchy]) -> tuple[int, Path] | None:
    """Return the bytes left under the tightest limit, and the folder of the group that sets it.

    The result is None if no group up to the root sets a limit. Cached pages of files, and what the
    kernel remembers of those files, count as room, as in its MemAvailable. The kernel frees them
    before it kills a process. Pages of tmpfs do not count as room. Control groups of version 1 do
    not report what the kernel remembers of files.
    """
    rooms = [
        (room, level)
        for hierarchy in hierarchies
        for level in hierarchy.levels
        if (room := _room(level, hierarchy.version)) is not None
    ]
    return min(rooms, default=None)


def _up(root: Path, own: Path) -> tuple[Path, ...]:
    return tuple(root / part for part in (own, *own.parents))


def _room(level: Path, version: int) -> int | None:
    limit_name, usage_name, prefix = (
        ("memory.max", "memory.current", "")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    )
    try:
        limit, usage = ((level / name).read_text().strip() for name in (limit_name, usage_name))
        stat = (level / "memory.stat").read_text()
    except OSError:
        return None
    if not limit.isdigit():  # the limit is "max"
        return None
    counts = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    cached = sum(
        int(counts.get(f"{prefix}{kind}", "0"))
        for kind in ("active_file", "inactive_file", "slab_reclaimable")
    )
    return max(0, int(limit) - int(usage) + cached)
