"""Whether the kernel's out-of-memory killer has killed a process.

The kernel counts its kills for the machine and for our control group. If a counter rises, some
process was killed for memory, but the counter does not say which. So a mistake is possible: another
tenant's process may be killed for memory within OOM_WINDOW_S of a foreign SIGKILL to a worker. The
kernel's log knows better, if it may be read.
"""

from __future__ import annotations

from pathlib import Path

from outlast.model.limits import OOM_WINDOW_S
from outlast.runtime.cgroups import OWN, memory_hierarchies

FOR_MEMORY = "while the kernel counted an OOM kill: the machine or a control group is out of memory"


class OomWatch:
    """Watch the kernel's counters. Call `look` now and then, and `judge` at a death by SIGKILL."""

    def __init__(self, sources: list[Path] | None = None) -> None:
        self._sources = counter_files(OWN) if sources is None else sources
        self._seen: dict[Path, int] = {}
        self._last_rise_s: float | None = None

    def look(self, now_s: float) -> None:
        for path in self._sources:
            count = _oom_kills(path)
            if count is None:
                self._seen.pop(path, None)
                continue
            if count > self._seen.get(path, count):
                self._last_rise_s = now_s
            self._seen[path] = count

    def judge(self, now_s: float) -> bool | None:
        """Return True if a counter rose lately, False if none did, None if none can be read."""
        self.look(now_s)
        if not self._seen:
            return None
        return self._last_rise_s is not None and now_s - self._last_rise_s <= OOM_WINDOW_S


def counter_files(own_groups: Path) -> list[Path]:
    """Return the files with a line "oom_kill N": the machine's, and our group's.

    The group's may be under either hierarchy.
    """
    files = [Path("/proc/vmstat")]
    for hierarchy in memory_hierarchies(own_groups):
        name = "memory.events" if hierarchy.version == 2 else "memory.oom_control"
        files += [level / name for level in (hierarchy.levels[0], hierarchy.levels[-1])]
    return [file for file in dict.fromkeys(files) if _oom_kills(file) is not None]


def _oom_kills(path: Path) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), None
    )
