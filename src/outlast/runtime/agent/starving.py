"""How long a process has been ready to run and had no processor: it is slow for want of one, and does not hang.

On a machine or in a control group that gives it little, a rank stands still as if it hung, and does not answer. The kernel knows better:
`/proc/<pid>/task/<tid>/schedstat` counts, for each thread, nanoseconds on a processor and nanoseconds that it waited for one. A wait that goes on is in
there only once it is over; till then it shows as a thread in state R whose counters stand. Kernels without these counters say 0: then nobody is excused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from outlast.runtime.linux import stat_fields


@dataclass(slots=True)
class _Thread:
    """`first_ns`: had waited when it was first seen. `counters` stand since `since_s`."""

    first_ns: int
    counters: tuple[int, int]
    since_s: float


class Starving:
    """Of one process, from the first look on. A look costs two small files for each thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._threads: dict[str, _Thread] = {}
        self._starved_s = 0.0

    def look(self, *, now_s: float) -> float:
        """Seconds since the first look in which one and the same thread, that which waited longest, was ready and had no processor. Never less than before."""
        for tid in _names(f"/proc/{self._pid}/task"):
            found = _counters(f"/proc/{self._pid}/task/{tid}")
            if found is not None:
                self._starved_s = max(self._starved_s, self._waited_s(tid, *found, now_s=now_s))
        return self._starved_s

    def _waited_s(self, tid: str, state: bytes, ran_ns: int, waited_ns: int, *, now_s: float) -> float:
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


def _counters(folder: str) -> tuple[bytes, int, int] | None:
    """State, and nanoseconds on a processor and waiting for one; None: the thread is gone, or the kernel does not count."""
    try:
        with open(f"{folder}/schedstat", "rb") as file:
            ran_ns, waited_ns, _ = file.read().split()
        with open(f"{folder}/stat", "rb") as file:
            return stat_fields(file.read())[0], int(ran_ns), int(waited_ns)
    except (OSError, ValueError, IndexError):
        return None
