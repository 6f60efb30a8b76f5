"""Whether this process may start the threads that a process group needs.

A limit of threads (of a control group, a user or the machine) may be reached for a while. A rank
that gets none while it builds a group fails, and breaks the group of its peers. So it waits before
that, when no peer has begun to connect to it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

from outlast.errors import CapacityError
from outlast.model.limits import THREADS_LOOK_S

LACKING = "a limit of the machine, of its user or of its control group is reached"
HINT = "raise `ulimit -u`, or pids.max of the control group, or start fewer processes"
# of a gloo group: its loop, two workers, and the thread that drops the group
GROUP_THREADS_COUNT = 4


def wait_for_threads(
    cancelled: Callable[[], bool], waits: Callable[[], None], *, within_s: float = math.inf
) -> None:
    """Wait until a group's threads can be started, or until `cancelled()` is true.

    waits   called once, if they cannot be started at first

    Raises CapacityError if they cannot be started for `within_s`.
    """
    first_s = time.monotonic()
    has_told = False
    while not can_start(GROUP_THREADS_COUNT) and not cancelled():
        if not has_told:
            waits()
            has_told = True
        _look_again(first_s, within_s)


def start(target: Callable[[], None], name: str, *, within_s: float) -> None:
    """Start a daemon thread, now or later. Raises CapacityError if that fails for `within_s`."""
    first_s = time.monotonic()
    while True:
        with contextlib.suppress(RuntimeError):  # boundary: "can't start new thread"
            return threading.Thread(target=target, name=name, daemon=True).start()
        _look_again(first_s, within_s)


def _look_again(first_s: float, within_s: float) -> None:
    if time.monotonic() - first_s >= within_s:
        raise CapacityError(
            f"can't start new thread, tried for {within_s:g} s: {LACKING}", hint=HINT
        )
    time.sleep(THREADS_LOOK_S)


def can_start(count: int) -> bool:
    """Return whether `count` threads can be started now. They are started, and end at once."""
    over = threading.Event()
    started: list[threading.Thread] = []
    with contextlib.suppress(RuntimeError):  # boundary: "can't start new thread"
        for _ in range(count):
            thread = threading.Thread(target=over.wait, name="outlast-probe", daemon=True)
            thread.start()
            started.append(thread)
    over.set()
    for thread in started:
        thread.join()
    return len(started) == count
