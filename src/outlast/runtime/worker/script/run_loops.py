"""Wait for the threads of gloo groups before a group loses its last reference.

A gloo group has threads (`pt_gloo_runloop`) that carry out its collectives. Torch keeps a Python
object with each collective that a backward pass starts, and the thread drops that object when the
collective is done. For that it needs the interpreter lock. If meanwhile the main thread drops the
last reference to the group through a DDP module, it waits for the thread while it holds the lock,
and neither goes on. So the threads get time to finish what they do, while the lock is free.

Torch 2.13 hangs in the same way without outlast. It is rare: the last step has to take less than
the five milliseconds after which a thread must give up the lock.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from outlast.model.limits import RUN_LOOP_LOOK_S, RUN_LOOP_LOOKS_COUNT

_NAME = "pt_gloo_runloop"[:15]  # the kernel keeps 15 characters
_QUIET_LOOKS_COUNT = 2  # one thread may be between two collectives in a single look


def wait_until_quiet() -> None:
    """Wait until all run loops of this process wait for work, for a second at most.

    A loop that waits for a peer in a collective counts as quiet, because it needs no lock before
    the collective is over.
    """
    quiet = 0
    for _ in range(RUN_LOOP_LOOKS_COUNT):
        states = _states()
        if not states:
            return
        quiet = quiet + 1 if all(state == "S" for state in states) else 0
        if quiet == _QUIET_LOOKS_COUNT:
            return
        time.sleep(RUN_LOOP_LOOK_S)


def _states() -> list[str]:
    """Return the kernel's state of each run loop: S waits, R runs or wants to, ? is not known."""
    found = []
    try:
        threads = list(Path("/proc/self/task").iterdir())
    except OSError:  # the script has used up all descriptors
        return ["?"]
    for thread in threads:
        with contextlib.suppress(OSError):  # boundary: it has ended meanwhile
            if (thread / "comm").read_text().strip() == _NAME:
                found.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return found
