"""For how long a process was ready to run and had no processor.

Such a process is slow. It does not hang.

On a machine or in a control group with little processor time, a rank may make no progress and give
no answer, as if it hung. The kernel shows the difference. `/proc/<pid>/task/<tid>/schedstat`
counts, for each thread, the nanoseconds on a processor and the nanoseconds that it waited for one.
A wait is counted only once it is over. Until then it shows as a thread in state R whose counters do
not move. Kernels without these counters say 0. Then no process is excused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from outlast.model.limits import STARVED_MAX_S
from outlast.runtime.linux import stat_fields


class Patience:
    """The time for which a process that was asked for something may be silent.

    It may be silent for `deadline_s`, and for the time in which it had no processor. That second
    part is STARVED_MAX_S at most.
    """

    def __init__(self, pid: int, deadline_s: float, *, now_s: float) -> None:
        self._starving = Starving(pid)
        self._starving.look_with_children(now_s=now_s)
        self._deadline_s = deadline_s
        self._since_s = now_s
        self._starved_s = 0.0

    def left_s(self, *, now_s: float) -> float:
        """Return the seconds that are left. The result is not above 0 once the time is over.

        The more often it is called, the more exact the result is.
        """
        self._starved_s = max(
            self._starved_s, min(self._starving.look_with_children(now_s=now_s), STARVED_MAX_S)
        )
        return self._since_s + self._deadline_s + self._starved_s - now_s

    def __str__(self) -> str:
        """Return in words for people how long the process was waited for."""
        starved = (
            f", {self._starved_s:.0f} s in which it had no processor not counted"
            if self._starved_s >= 1.0
            else ""
        )
        return f"{self._deadline_s:.0f} s{starved}"


@dataclass(slots=True)
class _Thread:
    """The time for which one thread has waited for a processor.

    `first_ns`: how long it had waited when it was first seen. `counters` have not moved since
    `since_s`.
    """

    first_ns: int
    counters: tuple[int, int]
    since_s: float


class Starving:
    """The wait for a processor of one process, from the first look on.

    A look costs two small files for each thread.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._threads: dict[str, _Thread] = {}
        self._starved_s = 0.0

    def look(self, *, now_s: float) -> float:
        """Return for how many seconds since the first look a thread was ready and had no processor.

        It is the thread that waited longest. The number never falls.
        """
        for tid in _names(f"/proc/{self._pid}/task"):
            found = _counters(f"/proc/{self._pid}/task/{tid}")
            if found is not None:
                self._starved_s = max(self._starved_s, self._waited_s(tid, *found, now_s=now_s))
        return self._starved_s

    def look_with_children(self, *, now_s: float) -> float:
        """Return the same for a process of one thread that waits for each of its children in turn.

        All children were born after the first look, so the process waited whenever a child did.
        """
        return self.look(now_s=now_s) + sum(
            self._child_waited_s(pid, now_s=now_s) for pid in _children(self._pid)
        )

    def _child_waited_s(self, pid: str, *, now_s: float) -> float:
        found = _counters(f"/proc/{pid}/task/{pid}")
        if found is None:
            return 0.0
        self._threads.setdefault(pid, _Thread(0, found[1:], now_s))
        return self._waited_s(pid, *found, now_s=now_s)

    def _waited_s(
        self, tid: str, state: bytes, ran_ns: int, waited_ns: int, *, now_s: float
    ) -> float:
        counters = (ran_ns, waited_ns)
        thread = self._threads.setdefault(tid, _Thread(waited_ns, counters, now_s))
        if thread.counters != counters or state != b"R":
            thread.counters, thread.since_s = counters, now_s
        return (waited_ns - thread.first_ns) / 1e9 + (now_s - thread.since_s)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process is gone
        return []


def _children(pid: int) -> list[str]:
    """Return the children of the process's first thread.

    There are none if the process is gone, or if the kernel does not list them
    (CONFIG_PROC_CHILDREN).
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return file.read().decode().split()
    except OSError:
        return []


def _counters(folder: str) -> tuple[bytes, int, int] | None:
    """Return a thread's state, and its nanoseconds on a processor and waiting for one.

    The result is None if the thread is gone, or if the kernel does not count.
    """
    try:
        with open(f"{folder}/schedstat", "rb") as file:
            ran_ns, waited_ns, _ = file.read().split()
        with open(f"{folder}/stat", "rb") as file:
            return stat_fields(file.read())[0], int(ran_ns), int(waited_ns)
    except (OSError, ValueError, IndexError):
        return None
