"""The table of a job's processes that `outlast diagnose --collect` writes: rank, pid, state, wait
channel, command.

A process that is stopped (T) or that the kernel does not let go (D) says more than its stack does:
whatever line it stands in, that line is not why.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outlast.diagnose.standing import rule_of_state

NEEDLES = (b"rank     pid stat wchan",)
ROWS_MAX = 4096
_ROW = re.compile(r"^ {0,8}(\d{1,7}) {1,8}(\d{1,9}) ([A-Za-z?])\S{0,6} {1,6}(\S{1,64}) ")


@dataclass(frozen=True, slots=True)
class Row:
    """A process whose state says something: the rule for it, and its rank."""

    rule: str
    rank: int


class ProcessTable:
    """A reader of the table's rows, from its header to the first line that is no row."""

    def __init__(self) -> None:
        self._left = 0

    @property
    def active(self) -> bool:
        return self._left > 0

    def begin(self) -> None:
        self._left = ROWS_MAX

    def feed(self, text: str) -> Row | None:
        self._left -= 1
        found = _ROW.match(text)
        if found is None:
            self._left = 0
            return None
        rule = rule_of_state(found[3], found[4])
        return None if rule is None else Row(rule, int(found[1]))
