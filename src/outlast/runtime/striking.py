"""Send signals to the processes of one run, and to no others.

    run = Target(launcher.pid)          # an `outlast run` that this process has started itself
    worker = run.find("outlast-rank2")  # None while there is no such process
    run.send(worker, signal.SIGKILL)    # False: it is gone, or it is not what it was

A process gets a signal only if it is a child of that launcher, has the title that outlast gave it,
and has the start time with which it was found. All of this is checked again once its pidfd is open.
So a process that has got the same pid meanwhile never gets a signal. The launcher itself has to be
the one that was started: its start time is kept.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from outlast.runtime.linux import stat_fields

_TITLE_BYTES = 15  # the kernel keeps so many
_STATE, _PARENT, _THREADS, _BEGAN = 0, 1, 17, 19  # in the fields from the third on; see proc(5)


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A process as it was found. `began`: its start time, in ticks since the machine booted."""

    pid: int
    began: int
    title: str


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a launcher uses now. `zombies`: ended children that it has not reaped."""

    descriptors: int
    threads: int
    memory_bytes: int
    zombies: int

    def most(self, other: Usage) -> Usage:
        """Return the larger of both, one by one."""
        return Usage(
            max(self.descriptors, other.descriptors),
            max(self.threads, other.threads),
            max(self.memory_bytes, other.memory_bytes),
            max(self.zombies, other.zombies),
        )


class Target:
    """The run whose processes may be struck. `launcher` is a child of this process."""

    def __init__(self, launcher: int) -> None:
        self._launcher = launcher
        self._began = _began(launcher)

    def find(self, title: str) -> RunProcess | None:
        """Return the newest living child of the launcher with this title, or None."""
        found = [one for one in self.children() if one.title == title[:_TITLE_BYTES]]
        return max(found, key=lambda one: (one.began, one.pid), default=None)

    def children(self) -> list[RunProcess]:
        """Return the launcher's living children. This reads one file for each process here."""
        if not self._is_there():
            return []
        return [
            RunProcess(pid, int(fields[_BEGAN]), title)
            for pid, title, fields in _processes()
            if int(fields[_PARENT]) == self._launcher and fields[_STATE] not in (b"Z", b"X")
        ]

    def send(self, process: RunProcess, what: signal.Signals) -> bool:
        """Send a signal. Return False, and send nothing, if it is not that process any more."""
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        try:
            now = _look(process.pid)
            if now is None or not self._is_there():
                return False
            title, fields = now
            same = int(fields[_BEGAN]) == process.began and title == process.title
            if not same or int(fields[_PARENT]) != self._launcher or fields[_STATE] == b"Z":
                return False
            signal.pidfd_send_signal(fd, what)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def usage(self) -> Usage | None:
        """Return what the launcher uses now; None if it is gone."""
        try:
            fields = stat_fields(Path(f"/proc/{self._launcher}/stat").read_bytes())
            pages = int(Path(f"/proc/{self._launcher}/statm").read_bytes().split()[1])
            descriptors = len(os.listdir(f"/proc/{self._launcher}/fd"))
        except (OSError, IndexError):
            return None
        zombies = sum(
            int(one[_PARENT]) == self._launcher and one[_STATE] == b"Z"
            for _, _, one in _processes()
        )
        return Usage(
            descriptors, int(fields[_THREADS]), pages * os.sysconf("SC_PAGE_SIZE"), zombies
        )

    def _is_there(self) -> bool:
        return self._began != 0 and _began(self._launcher) == self._began


def still_there(some: set[RunProcess]) -> list[RunProcess]:
    """Return those of the processes that live on."""
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
