"""When lost nodes come back: for many runs at once. `course._Nodes` says the same for one.

Method     A run that began with s spares lacks a node while more than s are in repair. So it is enough to know when nodes come back: one row each, the latest
           first. A loss goes in by comparing each row with it, and with the row before. Rows are added when what would drop out has not come back yet;
           where runs wait instead of shrinking, only the s + 1 latest matter.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outlast.planner.saves import Floats
from outlast.planner.scenario import Scenario

Rows = slice | NDArray[np.intp]  # some of the replicas; ALL gives views, the others copies
ALL = slice(None)
LONG_AGO = -np.inf
IN_CACHE = 512  # runs; a hundred rows of them fit into a processor's second cache


class Returns:
    """back_s (rows, R): when nodes come back, the latest first."""

    def __init__(self, scenario: Scenario, replicas: int) -> None:
        self._spares = scenario.repair.spare_nodes
        self._nodes = scenario.job.nodes
        self._most = None if scenario.recovery.shrinks else self._spares + 1
        self._all_back_s = np.full((min(8, self._most or 8), replicas), LONG_AGO)
        self.narrow(replicas)

    def narrow(self, replicas: int) -> None:
        """From now on it is about the first so many."""
        self._back_s = self._all_back_s[:, :replicas]

    def lose(self, at_s: Floats, back_s: Floats, count: NDArray[np.int64]) -> None:
        """All of (n,). `at_s` may be anything where `count` is 0."""
        one = count == 1
        self._insert(ALL, np.where(one, at_s, np.inf), np.where(one, back_s, LONG_AGO), 1)
        several = np.flatnonzero(count > 1)
        for nodes in set(count[several].tolist()):
            runs = several[count[several] == nodes]
            self._insert(runs, at_s[runs], back_s[runs], nodes)

    def _insert(self, runs: Rows, at_s: Floats, back_s: Floats, nodes: int) -> None:
        rows = len(self._back_s)
        while (self._most is None or rows < self._most) and (rows < nodes or bool((self._back_s[rows - nodes :, runs] > at_s).any())):
            more = rows // 2 + 1 if self._most is None else min(rows // 2 + 1, self._most - rows)
            self._all_back_s = np.concatenate([self._all_back_s, np.full((more, self._all_back_s.shape[1]), LONG_AGO)])
            self.narrow(self._back_s.shape[1])
            rows += more
        if runs is not ALL:
            self._back_s[:, runs] = _merged(self._back_s[:, runs], back_s, nodes)
            return
        for begin in range(0, len(back_s), IN_CACHE):
            columns = slice(begin, begin + IN_CACHE)
            _merged(self._back_s[:, columns], back_s[columns], nodes)

    def complete_s(self, runs: Rows, at_s: Floats) -> Floats:
        """From `at_s` on, the first time at which nobody is lacking."""
        return np.maximum(at_s, self._back_s[self._spares, runs]) if len(self._back_s) > self._spares else at_s

    def lacking(self, runs: Rows, at_s: Floats) -> NDArray[np.int64]:
        in_repair = (self._back_s[:, runs] > at_s).sum(axis=0)
        lacking: NDArray[np.int64] = np.clip(in_repair - self._spares, 0, self._nodes)
        return lacking

    def next_s(self, runs: Rows, at_s: Floats) -> Floats:
        """When the next one comes back; inf: nobody is in repair."""
        back = self._back_s[:, runs]
        soonest: Floats = np.where(back > at_s, back, np.inf).min(axis=0, initial=np.inf)
        return soonest


def _merged(back_s: Floats, more_s: Floats, times: int) -> Floats:
    """In place: (rows, n) descending, and each of `more_s` so many times; the smallest drop out. Row i is max(row i, min(row i - times, more))."""
    moved = np.minimum(back_s[:-times], more_s)
    np.maximum(back_s[times:], moved, out=back_s[times:])
    np.maximum(back_s[:times], more_s, out=back_s[:times])
    return back_s
