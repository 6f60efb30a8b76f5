"""What happened, for people and for comparison: the newest lines in full, all lines in one digest.

Two runs of the same seed and version have the same digest, whatever PYTHONHASHSEED and the version of Python.
"""

from __future__ import annotations

import hashlib
from collections import deque

KEPT_LINES = 120


class Trace:
    """Lines are `<seconds since the beginning> <what>`, to the microsecond."""

    def __init__(self, *, began_s: float) -> None:
        self.newest: deque[str] = deque(maxlen=KEPT_LINES)
        self._began_s = began_s
        self._digest = hashlib.blake2b(digest_size=16)

    def line(self, at_s: float, what: str) -> None:
        text = f"{at_s - self._began_s:12.6f}  {what}"
        self.newest.append(text)
        self._digest.update(text.encode() + b"\n")

    def digest(self) -> str:
        return self._digest.hexdigest()
