"""torchrun's table of failures: which rank ended how, where and when.

Times are those of the agent, to the second, so ties are common.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NEEDLES = (b"root cause (first observed failure)", b"failures:")
_FIELD = re.compile(
    r"^(?:.{0,60}?)\b(time|host|rank|exitcode|error_file|traceback) {1,6}: (.{0,400})$"
)
_RANK = re.compile(r"^(\d{1,6}) \(local_rank: (\d{1,6})\)")
_EXIT = re.compile(r"^(-?\d{1,3}) ")
LINES_MAX = 4000


@dataclass(slots=True)
class FailureEntry:
    """One rank's entry in the table. `first`: the table calls it the root cause."""

    line: int
    text: str
    first: bool
    rank: int | None = None
    exit_code: int | None = None
    fields: dict[str, str] = field(default_factory=dict)


class FailureTable:
    """Read the table line by line: `begin` at its heading, and then each line after it."""

    def __init__(self) -> None:
        self._first = False
        self._entry: FailureEntry | None = None
        self._left = 0
        self._last: int | None = None  # rank of the newest entry: its last line may say more

    @property
    def active(self) -> bool:
        return self._left > 0

    @property
    def rank(self) -> int | None:
        return self._last

    def begin(self, low: str) -> None:
        self._first = "root cause" in low
        self._left, self._entry, self._last = LINES_MAX, None, None

    def feed(self, line: int, text: str) -> FailureEntry | None:
        """Return a whole entry if this line is its last one (`traceback`)."""
        self._left -= 1
        if "====" in text and self._entry is None and self._first:
            self._left = 0
        found = _FIELD.match(text)
        if not found:
            return None
        key, value = found[1], found[2]
        if key == "time":
            self._entry, self._last = FailureEntry(line, text, self._first), None
        entry = self._entry
        if entry is None:
            return None
        entry.fields[key] = value
        rank, code = (
            _RANK.match(value) if key == "rank" else None,
            _EXIT.match(value) if key == "exitcode" else None,
        )
        if rank:
            entry.rank = self._last = int(rank[1])
        if code:
            entry.exit_code, entry.line, entry.text = int(code[1]), line, text
        if key == "traceback":
            self._entry = None
            return entry
        return None
