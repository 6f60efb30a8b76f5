"""Decide whether an exception is a bug of outlast.

It is if its innermost frame is in this package, and outlast does not raise it on purpose. What
the process has used up is no bug of the code that needed it next.

This module is pure.
"""

from __future__ import annotations

import re

_OURS = re.compile(r"(?:^|[/\\])outlast[/\\](?:app|diagnose|engine|model|planner|runtime|sim)[/\\]")
_FRAME = re.compile(r'^\s+File "([^"]+)", line \d+', re.MULTILINE)
# what outlast raises on purpose: its own errors, and torch's words for a loader's lost worker
_ON_PURPOSE = ("outlast.errors.", "RuntimeError: DataLoader worker (pid ")
# what a process gets in any code that runs in it, once the script or the machine has used up all of
# it: memory, threads, descriptors, the length of a file (`ulimit -f`), room on a disk
_USED_UP = re.compile(
    r"\[Errno (?:11|12|23|24|27|28|122)\]|^MemoryError\b|can't start new thread"
    r"|Cannot allocate memory"
)
REPORT = (
    "this is a bug in outlast, not in the script: report it with this traceback and the run's"
    " folder"
)


def raised_here(path: str, error: str) -> bool:
    """Return whether the error that `error` names was raised by mistake in a file of outlast.

    path   of the innermost frame
    error  the line of the traceback that names the exception
    """
    told = error.strip()
    if told.startswith(_ON_PURPOSE) or _USED_UP.search(told):
        return False
    return bool(_OURS.search(path))


def is_own_bug(traceback: str) -> bool:
    """Return whether a whole traceback ends in a bug of outlast."""
    frames = list(_FRAME.finditer(traceback))
    if not frames:
        return False
    after = traceback[frames[-1].end() :].splitlines()[1:]  # after the rest of the frame's line
    error = next((line for line in after if line and not line[0].isspace()), "")
    return raised_here(frames[-1][1], error)
