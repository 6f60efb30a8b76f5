"""Send signals to the processes of one run, and to no others.

    run = Target(launcher.pid)          # an `outlast run` that this process has started itself
    worker = run.find("outlast-rank2")  # None while there is no such process
    run.send(worker, signal.SIGKILL)    # False: it is gone, or it is not what it was

A process gets a signal only if it is a child of that launcher, has the title that outlast gave it,
and has the same start time as when it was found. All of this is checked again once its pidfd is
open. So a process that has got the same pid meanwhile never gets a signal. The launcher itself has
to be the one that was started, so its start time is kept. A run on several hosts has several
launchers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outlast.runtime.linux import stat_fields

_TITLE_BYTES = 15  # the kernel keeps this many bytes
# indices in the fields from the third on; see proc(5)
_STATE, _PARENT, _THREADS, _BEGAN = 0, 1, 17, 19


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A process as it was found.

    began    its start time, in ticks since the machine booted
    parent   the pid of its launcher
    """

    pid: int
    began: int
    title: str
    parent: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a launcher uses now. `zombies`: ended children that it has not reaped."""

    descriptors: int
    threads: int
    memory_bytes: int
    zombies: int

    def most(self, other: Usage) -> Usage:
        """Return the larger of both, for each resource."""
        return Usage(
            max(self.descriptors, other.descriptors),
            max(self.threads, other.threads),
            max(self.memory_bytes, other.memory_bytes),
            max(self.zombies, other.zombies),
        )


class Target:
    """The run into whose processes faults may be injected.

    Its launchers descend from this process.
    """

    def __init__(self, *launchers: int) -> None:
        self._launchers: dict[int, int] = {}  # the start time of each launcher, by its pid
        for launcher in launchers:
            self.add(launcher)

    def add(self, launcher: int) -> None:
        """Add a launcher that this process has started."""
        self._launchers[launcher] = _began(launcher)

    def drop(self, launcher: int) -> None:
        """Remove a launcher that has ended, or is about to end.

        Removing it twice is not an error.
        """
        self._launchers.pop(launcher, None)

    def find(self, title: str) -> RunProcess | None:
        """Return the newest living child of a launcher with this title, or None."""
        found = [one for one in self.children() if one.title == title[:_TITLE_BYTES]]
        return max(found, key=lambda one: (one.began, one.pid), default=None)

    def children(self) -> list[RunProcess]:
        """Return the launchers' living children. This reads one file for each process here."""
        there = {launcher for launcher in self._launchers if self._is_there(launcher)}
        if not there:
            return []
        return [
            RunProcess(pid, int(fields[_BEGAN]), title, int(fields[_PARENT]))
            for pid, title, fields in _processes()
            if int(fields[_PARENT]) in there and fields[_STATE] not in (b"Z", b"X")
        ]

    def send(self, process: RunProcess, what: signal.Signals) -> bool:
        """Send a signal. Return False, and send nothing, if it is not that process any more."""

        def is_same(title: str, fields: list[bytes]) -> bool:
            same = int(fields[_BEGAN]) == process.began and title == process.title
            return same and fields[_STATE] != b"Z" and self._is_there(int(fields[_PARENT]))

        return _send(process.pid, what, is_same)

    def send_launcher(self, launcher: int, what: signal.Signals) -> bool:
        """Send a signal to a launcher. Return False, and send nothing, if it has ended."""

        def is_same(title: str, fields: list[bytes]) -> bool:
            return self._launchers.get(launcher) == int(fields[_BEGAN]) and fields[_STATE] != b"Z"

        return _send(launcher, what, is_same)

    def usages(self) -> dict[int, Usage]:
        """Return what each living launcher uses now, by its pid."""
        out, processes = {}, _processes()
        for launcher in filter(self._is_there, self._launchers):
            zombies = sum(
                int(one[_PARENT]) == launcher and one[_STATE] == b"Z" for _, _, one in processes
            )
            usage = _usage(launcher, zombies)
            if usage is not None:
                out[launcher] = usage
        return out

    def _is_there(self, launcher: int) -> bool:
        began = self._launchers.get(launcher, 0)
        return began != 0 and _began(launcher) == began


def _send(pid: int, what: signal.Signals, is_same: Callable[[str, list[bytes]], bool]) -> bool:
    """Send a signal to the process that has this pid, if it is the same one as before."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        now = _look(pid)
        if now is None or not is_same(*now):
            return False
        signal.pidfd_send_signal(fd, what)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def _usage(launcher: int, zombies: int) -> Usage | None:
    try:
        fields = stat_fields(Path(f"/proc/{launcher}/stat").read_bytes())
        pages = int(Path(f"/proc/{launcher}/statm").read_bytes().split()[1])
        descriptors = len(os.listdir(f"/proc/{launcher}/fd"))
    except (OSError, IndexError):
        return None
    return Usage(descriptors, int(fields[_THREADS]), pages * os.sysconf("SC_PAGE_SIZE"), zombies)


def titles_below(some: list[RunProcess]) -> set[str]:
    """Return the titles of the children of these processes."""
    pids = {one.pid for one in some}
    return {title for _, title, fields in _processes() if int(fields[_PARENT]) in pids}


def still_there(some: set[RunProcess]) -> list[RunProcess]:
    """Return those of the processes that are still alive."""
    found = []
    for one in some:
        now = _look(one.pid)
        if now is not None and int(now[1][_BEGAN]) == one.began and now[1][_STATE] != b"Z":
            found.append(one)
    return found


def _began(pid: int) -> int:
    """Return the start time of a process, or 0 if it is gone."""
    now = _look(pid)
    return 0 if now is None else int(now[1][_BEGAN])


def _look(pid: int) -> tuple[str, list[bytes]] | None:
    """Return title and fields of a process (those of /proc/<pid>/stat); None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat_fields(stat)
    if len(fields) <= _BEGAN:
        return None
    title = stat.partition(b"(")[2].rpartition(b")")[0]
    return title.decode(errors="replace"), fields


def _processes() -> list[tuple[int, str, list[bytes]]]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and (now := _look(int(name))) is not None:
            found.append((int(name), *now))
    return found
