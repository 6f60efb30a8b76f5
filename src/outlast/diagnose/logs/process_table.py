"""Read the table of a job's processes that `outlast diagnose --collect` writes.

Its columns are rank, pid, state, wait channel, whether the process moved, and command.

If a process is stopped (T), or held in the kernel (D), that state is the reason, and not the line
in its stack.

Ranks that wait for a peer wait alike. So where there are no stacks, the table may show the one rank
that does not. Its main thread computes, or waits in another channel of the kernel than all the
others, and none of the others moved between the collector's two looks.

A job whose ranks all moved between the looks runs on. If none moved, and none stands apart, the
processes are there all the same, so the job was not ended. Ranks of the node that have ended are in
the table, too. If all but one have, what keeps the job from its end is in this one.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from outlast.diagnose.standing import rule_of_state

NEEDLES = (b"rank     pid stat wchan",)
ROWS_MAX = 4096
APART, MOVES, REMAINS = "standing.apart", "standing.moves", "standing.remains"
ALL_STILL = "standing.still"
COMPUTES, STOPPED = "computes", "stopped"
_DOES = {COMPUTES: "computes", STOPPED: "is stopped, by a signal or a debugger (state T)"}
STOPPED_PID = re.compile(rf"\(pid (\d{{1,9}})\) {_DOES[STOPPED].partition(',')[0]}")
STILL, RAN, MOVED, ENDED = "still", "ran", "moved", "ended"
RANKS_MIN = 3  # of two, either may be the odd one
_ROW = re.compile(
    r"^ {0,8}(\d{1,7}) {1,8}(\d{1,9}) ([A-Za-z?])\S{0,6} {1,6}(\S{1,64}) {1,32}"
    r"(?:(still|ran|moved|polls|ended)(?: |$))?"
)


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process whose state says something: the rule for it, its rank, and its line's number."""

    rule: str
    rank: int
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class _Rank:
    """This says where the main thread of a rank is, and whether it moved; "" if unknown."""

    where: str
    moved: str
    line: int
    pid: str


class ProcessTable:
    """A reader of the table's rows, from its header to the first line that is not a row."""

    def __init__(self) -> None:
        self._left = 0
        self._ranks: dict[int, _Rank] = {}

    @property
    def active(self) -> bool:
        return self._left > 0

    def begin(self) -> None:
        self._left = ROWS_MAX
        self._ranks = {}

    def feed(self, line: int, text: str) -> list[ProcessRow]:
        """Return what the row says, or what the whole table does if this line is not a row."""
        self._left -= 1
        found = _ROW.match(text)
        if found is None:
            return self.end()
        rank = int(found[1])
        # A rank's own process comes first, before those of its loader.
        where = {"R": COMPUTES, "T": STOPPED, "t": STOPPED}.get(found[3], found[4])
        self._ranks.setdefault(rank, _Rank(where, found[5] or "", line, found[2]))
        rule = rule_of_state(found[3], found[4])
        return [] if rule is None else [ProcessRow(rule, rank, line, text)]

    def end(self) -> list[ProcessRow]:
        """Return a row on the rank that stands apart, or on a job that runs on or stands still."""
        self._left = 0
        everyone, self._ranks = self._ranks, {}
        ranks = {rank: one for rank, one in everyone.items() if one.moved != ENDED}
        if len(ranks) == 1 < len(everyone):
            ((rank, one),) = ranks.items()
            said = (
                f"rank {rank} (pid {one.pid}) is the only one of {len(everyone)} not to have ended"
            )
            return [ProcessRow(REMAINS, rank, one.line, said)] if one.moved in (STILL, RAN) else []
        if len(ranks) > 1 and all(one.moved in (MOVED, RAN) for one in ranks.values()):
            first = next((rank for rank, one in ranks.items() if one.moved == MOVED), None)
            if first is not None:
                one = ranks[first]
                said = f"rank {first} (pid {one.pid}) moved, and so did all the others"
                return [ProcessRow(MOVES, first, one.line, said)]
        if apart := _apart(ranks):
            return apart
        if len(ranks) > 1 and all(one.moved == STILL for one in ranks.values()):
            first, one = next(iter(ranks.items()))
            said = f"none of the {len(ranks)} ranks moved between the two looks"
            return [ProcessRow(ALL_STILL, first, one.line, said)]
        return []


def _apart(ranks: dict[int, _Rank]) -> list[ProcessRow]:
    """Return a row on the one rank that stands apart while no other moves, if there is one."""
    usual = Counter(one.where for one in ranks.values()).most_common(1)
    odd = [rank for rank, one in ranks.items() if usual and one.where != usual[0][0]]
    if len(ranks) < RANKS_MIN or len(odd) != 1 or usual[0][0] == COMPUTES:
        return []
    alone = ranks[odd[0]]
    others_still = all(one.moved == STILL for rank, one in ranks.items() if rank != odd[0])
    # On a busy machine one that computes may have got too little time to be said to have run.
    stays = alone.moved in (STILL, RAN) or (alone.where == COMPUTES and alone.moved == MOVED)
    if not others_still or not stays:
        return []
    does = _DOES.get(alone.where, f"waits in {alone.where}")
    said = f"rank {odd[0]} (pid {alone.pid}) {does}; all the others wait in {usual[0][0]}"
    return [ProcessRow(APART, odd[0], alone.line, said)]
