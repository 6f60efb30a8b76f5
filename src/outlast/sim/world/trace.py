"""The trace of a run, for people and for comparison.

It has the newest lines, and one digest of all lines. Two runs of the same seed and version have the
same digest, with any PYTHONHASHSEED and any version of Python.
"""

from __future__ import annotations

import hashlib
from collections import deque

KEPT_LINES = 120
AT_ONCE_LINES = 256  # this many lines are added to the digest at once


class Trace:
    """A trace. A line is `<seconds since the beginning>  <text>`, to the microsecond."""

    def __init__(self, *, began_s: float) -> None:
        self.newest: deque[str] = deque(maxlen=KEPT_LINES)
        self._began_s = began_s
        self._unhashed: list[str] = []
        self._digest = hashlib.blake2b(digest_size=16)

    def line(self, at_s: float, what: str) -> None:
        text = f"{at_s - self._began_s:12.6f}  {what}"
        self.newest.append(text)
        self._unhashed.append(text)
        if len(self._unhashed) >= AT_ONCE_LINES:
            self._hash()

    def _hash(self) -> None:
        if self._unhashed:
            self._digest.update(("\n".join(self._unhashed) + "\n").encode())
            self._unhashed.clear()

    def digest(self) -> str:
        self._hash()
        return self._digest.hexdigest()
