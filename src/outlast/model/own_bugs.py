"""Decide whether an exception is a bug of outlast.

It is one if its innermost frame is in this package, and outlast does not raise it on purpose. If
the process has used up memory, threads or another resource, this is not a bug of the code that
needs it next.

Nor is it a bug of outlast if torch reports an error of a peer, a device or a network to its caller.
The failure is elsewhere then, and neither outlast nor the script is to blame.

This module is pure.
"""

from __future__ import annotations

import re

_OURS = re.compile(r"(?:^|[/\\])outlast[/\\](?:app|diagnose|engine|model|planner|runtime|sim)[/\\]")
_FRAME = re.compile(r'^\s+File "([^"]+)", line \d+', re.MULTILINE)
# errors that outlast raises on purpose: its own, and torch's text for a loader's lost worker
_ON_PURPOSE = ("outlast.errors.", "RuntimeError: DataLoader worker (pid ")
# those of them that are not about the script: what was stored is damaged, or the machine has too
# little memory, disk or processes
_DAMAGED = "outlast.errors.CorruptError"
_TOO_LITTLE = "outlast.errors.CapacityError"
# Errors that any code gets once the script or the machine has used up a resource: memory, threads,
# descriptors, the length of a file (`ulimit -f`), or room on a disk.
_USED_UP = re.compile(
    r"\[Errno (?:11|12|23|24|27|28|122)\]|^MemoryError\b|can't start new thread"
    r"|Cannot allocate memory"
)
# torch's words for what happened to a peer, a device or the network
_REPORTED = re.compile(
    r"\b(?:CUDA|HIP|NCCL|cuDNN|MPS) (?:error|failure)|out of memory|OutOfMemoryError|CUBLAS_STATUS"
    r"|CUDNN_STATUS|gloo|\bc10d\b|ProcessGroup|torch\.distributed\.Dist\w+Error|\[enforce fail at"
    r"|Connection (?:closed|reset|refused)|Timed out waiting|Broken pipe|uncorrectable",
    re.IGNORECASE,
)
# torch, and Python's own library
_BELOW = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]torch[/\\]|^<"
    r"|[/\\]lib(?:64)?[/\\]python\d[\d.]*[/\\](?!site-packages|dist-packages)",
    re.IGNORECASE,
)
REPORT = (
    "this is a bug in outlast, not in the script: report it with this traceback and the run's"
    " folder"
)


def raised_here(path: str, error: str) -> bool:
    """Return whether the error that `error` names was raised by mistake in a file of outlast.

    path   the file of the innermost frame
    error  the line of the traceback that names the exception
    """
    told = error.strip()
    if is_on_purpose(told) or _USED_UP.search(told) or _REPORTED.search(told):
        return False
    return bool(_OURS.search(path))


def is_below_outlast(path: str, above: bool) -> bool:
    """Return whether a frame runs for outlast and not for the script, from the outermost on.

    path    of the frame: one of outlast, or of torch or Python's library below such a frame
    above   what this function returned for the frame that called it; False for the first one
    """
    return bool(_OURS.search(path)) or (above and bool(_BELOW.search(path)))


def is_called_by_outlast(traceback: str) -> bool:
    """Return whether outlast itself called what raised: no frame of the script is below its own.

    What outlast raises on purpose is about the script, and does not count.
    """
    below = False
    for frame in _FRAME.finditer(traceback):
        below = is_below_outlast(frame[1], below)
    return below and not is_on_purpose(_error_of(traceback))


def is_on_purpose(error: str) -> bool:
    """Return whether outlast itself raises the error that `error` names, to say what is wrong."""
    return error.strip().startswith(_ON_PURPOSE)


def is_damage(traceback: str) -> bool:
    """Return whether a traceback ends in the error that outlast raises for damaged state."""
    return _error_of(traceback).startswith(_DAMAGED)


def is_shortage(traceback: str) -> bool:
    """Return whether a traceback ends in the error that outlast raises for a lack of room."""
    return _error_of(traceback).startswith(_TOO_LITTLE)


def is_own_bug(traceback: str) -> bool:
    """Return whether a whole traceback ends in a bug of outlast."""
    frames = list(_FRAME.finditer(traceback))
    return bool(frames) and raised_here(frames[-1][1], _error_of(traceback))


def _error_of(traceback: str) -> str:
    """Return the line that names the exception; "" without one."""
    frames = list(_FRAME.finditer(traceback))
    if not frames:
        return ""
    after = traceback[frames[-1].end() :].splitlines()[1:]  # after the rest of the frame's line
    return next((line for line in after if line and not line[0].isspace()), "")
