"""Faults that a drill injects inside a script's own code.

The environment variable DRILL_STRIKES holds a JSON list of
    {"at": place, "rank": r, "step": n, "do": what, "once": path}
Each fault fires at the first visit of its place at or after step n, on rank r (-1: any), unless the
file `once` exists. The file is made when the fault fires.

do        a signal's name, "raise", "sleep" (`for_s`), "exit" (`code`), "sysexit" (the same as
          SystemExit), "gil" (holds the interpreter lock for ever), "spin" (loops for ever), "eat"
          (takes memory without end), or a name that the script has added to `also`
visit     not before the n-th visit of this process (a DataLoader worker knows no step)
after_s   not at once, but from a thread, that many seconds later
always    at each visit, even if the file `once` exists
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any


class Struck(RuntimeError):
    """The exception that a strike raises if it was asked to."""


also: dict[str, Callable[[], None]] = {}


def strike(place: str, *, rank: int, step: int) -> None:
    _visits[place] += 1
    for fault in _faults:
        here = fault["at"] == place and fault.get("rank", -1) in (-1, rank)
        if (
            here
            and step >= fault.get("step", 0)
            and _visits[place] >= fault.get("visit", 0)
            and _take(fault)
        ):
            if "after_s" in fault:
                threading.Timer(fault["after_s"], _act, (fault,)).start()
            else:
                _act(fault)


def _take(fault: dict[str, Any]) -> bool:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(fault["once"], os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        return True
    return bool(fault.get("always"))


def _act(fault: dict[str, Any]) -> None:
    do = fault["do"]
    if do == "raise":
        raise Struck(f"struck at {fault['at']}")
    if do == "exit":
        os._exit(int(fault.get("code", 0)))
    if do == "sysexit":
        sys.exit(fault.get("code", 0))
    if do == "sleep":
        time.sleep(float(fault.get("for_s", 3600.0)))
    elif do == "gil":
        _hold_interpreter_lock()
    elif do == "spin":
        _spin()
    elif do == "eat":
        _eat(fault["group"])
    elif do in also:
        also[do]()
    else:
        os.kill(os.getpid(), signal.Signals[do])


def _hold_interpreter_lock() -> None:
    """Wait for ever in C code. No signal ends this wait, as it would end a sleep."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    for _ in range(2):  # zeros are a mutex that no thread holds
        libc.pthread_mutex_lock(mutex)


def _spin() -> None:
    while True:
        pass


def _eat(group: str) -> None:
    """Move into a control group with little memory, and ask for more."""
    with open(group, "w") as file:
        file.write(str(os.getpid()))
    held = []
    while True:
        held.append(b"x" * (8 << 20))


_visits: Counter[str] = Counter()
_faults: list[dict[str, Any]] = json.loads(os.environ.get("DRILL_STRIKES", "[]"))
