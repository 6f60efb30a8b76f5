"""The environment variables of a rank, such as RANK, which a hot spare does not have yet.

A script that reads one of them would take the spare for a single process. `ask_in_front_of` lets
the spare wait for a rank at that place. The script then reads what a rank reads. Only reads in the
script's main thread count. Reads by torch and outlast do not count, and neither does a copy of the
whole environment.
"""

from __future__ import annotations

import _collections_abc
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

VARIABLES = frozenset({"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"})
_LOOKUP = (os.__file__, str(_collections_abc.__file__), "<frozen os>", "<frozen _collections_abc>")
_INNOCENT = (f"{os.sep}outlast{os.sep}runtime{os.sep}", f"{os.sep}torch{os.sep}")

_wait: Callable[[], object] | None = None


class _Asking(os._Environ):  # type: ignore[type-arg]  # generic in its stub alone
    """`os.environ` of a spare."""

    def __getitem__(self, key: Any) -> Any:
        if _wait is not None and key in VARIABLES and self.encodekey(key) not in self._data:  # type: ignore[attr-defined]  # as CPython keeps it
            _wait_for_rank()
        return super().__getitem__(key)


def ask_in_front_of(wait: Callable[[], object]) -> None:
    """Call `wait` from here on if the script reads a variable that a spare lacks."""
    global _wait
    _wait = wait
    os.environ.__class__ = _Asking


def _wait_for_rank() -> None:
    global _wait
    if threading.current_thread() is not threading.main_thread() or _reader_is_innocent():
        return
    wait, _wait = _wait, None
    if wait is not None:
        wait()


def _reader_is_innocent() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in (__file__, *_LOOKUP):
        frame = frame.f_back
    return frame is None or any(part in frame.f_code.co_filename for part in _INNOCENT)
