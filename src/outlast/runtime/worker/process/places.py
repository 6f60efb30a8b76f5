"""Say where the threads of this process are, for people: "file:line in function"."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType

_SHOWN_COUNT = 3
_LIBRARY = os.path.dirname(threading.__file__) + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


def place_of_process() -> str:
    """Return the main thread's place, outside torch and outlast.

    At its end the interpreter waits for threads that are not daemons. Then the places of these
    threads are returned, with their names.
    """
    frames = sys._current_frames()
    main = frames.get(threading.main_thread().ident or 0)
    if _waits_for_threads(main):
        awaited = [
            f"thread {one.name!r} at {_place(frames[one.ident], skip_library=True)}"
            for one in threading.enumerate()
            if not one.daemon and one is not threading.main_thread() and one.ident in frames
        ]
        if awaited:
            more = len(awaited) - _SHOWN_COUNT
            return "; ".join(awaited[:_SHOWN_COUNT]) + (f"; and {more} more" if more > 0 else "")
    return _place(main)


def _waits_for_threads(main: FrameType | None) -> bool:
    """Return whether the interpreter ends, and waits for threads before it goes on."""
    frame = main
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_shutdown" and code.co_filename == threading.__file__:
            return True
        frame = frame.f_back
    return False


def _place(innermost: FrameType | None, *, skip_library: bool = False) -> str:
    """Return the innermost frame outside torch and outlast, or else the innermost of all.

    skip_library   Python's own library does not count either, because a lock's `wait` says little
    """
    frame = innermost
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_inner(name, skip_library=skip_library):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    if innermost is None:
        return ""
    if skip_library:
        return _place(innermost)
    return f"{innermost.f_code.co_filename}:{innermost.f_lineno}"


def _is_inner(name: str, *, skip_library: bool) -> bool:
    if "/torch/" in name or "/outlast/" in name or name.startswith("<"):
        return True
    in_library = name.startswith(_LIBRARY) and not any(part in name for part in _INSTALLED)
    return skip_library and in_library
