"""Whether this process may start the threads that a process group needs.

A limit of threads (of a control group, a user or the machine) may be reached for a while. A rank
that finds none in the middle of building a group fails, and takes its peers' group with it. So it
waits in front of that, where nobody has begun to connect to it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from outlast.model.limits import THREADS_LOOK_S

GROUP_THREADS_COUNT = 4  # of a gloo group: its loop, two workers, and the one that lets it go


def wait_for_threads(
    cancelled: Callable[[], bool], waits: Callable[[], None], *, count: int = GROUP_THREADS_COUNT
) -> None:
    """Return once `count` threads can be started, or as soon as `cancelled()`.

    waits   called once, if they cannot be started at first
    """
    said = False
    while not can_start(count) and not cancelled():
        if not said:
            waits()
            said = True
        time.sleep(THREADS_LOOK_S)


def can_start(count: int) -> bool:
    """Return whether `count` threads can be started now. They are, and end at once."""
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
