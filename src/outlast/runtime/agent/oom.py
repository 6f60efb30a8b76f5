"""Find out whether the kernel's out-of-memory killer has killed a process of this run.

The kernel counts its kills for the machine and for each control group. It writes each kill with the
pid into its log. What can be read differs between machines:

    its log          names the process. It can be used only if this process sees the kernel's own
                     pids, and may read the log
    our group        its counter rises for a process of the group, and of the groups below it
    the machine      its counter rises for any process. It may have been another tenant's process
                     that was killed, while a person sent a SIGKILL to a worker. So the kill is
                     possible, and not certain

One kill of a group explains one death. Version 1 of control groups does not count the groups below,
so a worker that has left our group is counted by the machine alone.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from outlast.model.limits import OOM_WINDOW_S
from outlast.runtime.cgroups import OWN, memory_hierarchies

FOR_MEMORY = "while the kernel counted an OOM kill: the machine or a control group is out of memory"
MACHINE = Path("/proc/vmstat")
KERNEL_LOG = Path("/dev/kmsg")
_RECORDS_MAX = 4_096  # how many records of the kernel's log are read at one look
_KILLED = re.compile(rb"[Kk]illed process (\d{1,9})[ ,]")
_FIRST_PIDS = "pid:[4026531836]"  # the namespace of the kernel's own pids (PROC_PID_INIT_INO)


class OomKill(str, Enum):
    """Say whether a death by SIGKILL was an OOM kill, by the kernel's counters and log."""

    NOT_READ = "not read"
    NONE = "none"
    SOMEBODY = "somebody's"  # a process was killed for memory, and nothing shows which one
    OURS = "ours"

    @property
    def is_possible(self) -> bool:
        """Return whether the killed process may have been one of this run."""
        return self in (OomKill.SOMEBODY, OomKill.OURS)


@dataclass(frozen=True, slots=True)
class Sources:
    """The places where the kernel reports its OOM kills, as far as they can be read.

    own      counters of the group that this process is in
    machine  the counter of all processes
    log      the kernel's log, if its pids are those that this process sees
    """

    own: tuple[Path, ...] = ()
    machine: Path | None = None
    log: Path | None = None


class OomWatch:
    """Watch the kernel's counters and its log, from the creation of the watch until `close`.

    Call `look` from time to time, and `judge` at a death by SIGKILL. The owner of a watch closes
    it, because it holds a descriptor. A watch that is closed goes on with the counters.
    """

    def __init__(self, sources: Sources | None = None) -> None:
        self._sources = find_sources() if sources is None else sources
        self._seen: dict[Path, int] = {}
        # when each kill was seen that does not explain a death yet
        self._rises: dict[Path, list[float]] = {}
        self._log = _open_log(self._sources.log)
        self._logged: dict[int, float] = {}  # pid -> when its record was read

    def look(self, now_s: float) -> None:
        """Read what the kernel has counted and logged since the last look."""
        for path in (*self._sources.own, *filter(None, (self._sources.machine,))):
            count = _oom_kills(path)
            if count is None:
                self._seen.pop(path, None)
                continue
            # A control group may be made again while we run, and then counts from zero.
            rose = count - self._seen.get(path, count)
            rises = [at_s for at_s in self._rises.get(path, ()) if now_s - at_s <= OOM_WINDOW_S]
            self._rises[path] = [*rises, *[now_s] * max(0, min(rose, _RECORDS_MAX))]
            self._seen[path] = count
        self._read_log(now_s)

    def judge(self, now_s: float, pid: int = 0) -> OomKill:
        """Decide whether the process that has just died by SIGKILL was killed by an OOM killer.

        `pid` is 0 if it does not matter which process was killed.
        """
        self.look(now_s)
        if not self._seen:
            return OomKill.NOT_READ
        named = {one for one, at_s in self._logged.items() if now_s - at_s <= OOM_WINDOW_S}
        if pid and named:
            if pid not in named:
                return OomKill.NONE
            self._explained(self._sources.own)
            return OomKill.OURS
        own = [path for path in self._sources.own if self._rises.get(path)]
        if own:
            self._explained(own)
            return OomKill.OURS
        machine = self._sources.machine
        is_counted = machine is not None and bool(self._rises.get(machine))
        return OomKill.SOMEBODY if is_counted else OomKill.NONE

    def close(self) -> None:
        """Close the kernel's log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _explained(self, paths: tuple[Path, ...] | list[Path]) -> None:
        for path in paths:
            del self._rises.get(path, [])[:1]

    def _read_log(self, now_s: float) -> None:
        if self._log is None:
            return
        for _ in range(_RECORDS_MAX):
            try:
                record = os.read(self._log, 8_192)
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError:
                return  # there are no more records
            if found := _KILLED.search(record):
                self._logged[int(found[1])] = now_s
        if len(self._logged) > _RECORDS_MAX:
            self._logged.clear()


def find_sources(own_groups: Path = OWN) -> Sources:
    """Return the sources that can be read here. The group's counter may be under either hierarchy.

    In a container our group has the name that it has outside, and is at the root of what is
    mounted.
    """
    own = []
    for hierarchy in memory_hierarchies(own_groups):
        name = "memory.events" if hierarchy.version == 2 else "memory.oom_control"
        files = (level / name for level in (hierarchy.levels[0], hierarchy.levels[-1]))
        own += [file for file in files if _oom_kills(file) is not None][:1]
    sees_pids = False
    with contextlib.suppress(OSError):
        sees_pids = os.readlink("/proc/self/ns/pid") == _FIRST_PIDS
    return Sources(
        tuple(dict.fromkeys(own)),
        MACHINE if _oom_kills(MACHINE) is not None else None,
        KERNEL_LOG if sees_pids else None,
    )


def _open_log(path: Path | None) -> int | None:
    """Open the kernel's log at its end. Return None if it may not be read."""
    if path is None:
        return None
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.lseek(log, 0, os.SEEK_END)
    return log


def _oom_kills(path: Path) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), None
    )
