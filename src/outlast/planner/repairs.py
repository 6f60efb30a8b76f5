"""Calculate when lost nodes come back, for many runs at once.

`_Nodes` in tests/planner/course.py does this for one run.

Method     A run that began with s spares lacks a node while more than s nodes are in repair. For
           each run, a time is kept from which on at most s of the nodes lost so far are in repair,
           and the number of nodes that come back after it. A loss adds to that number. Only if the
           number exceeds s, the nodes in repair are counted again, and the time moves on to the
           return of the next node, and so on. So for most losses, nothing but the time of their
           return is stored. Each loss takes one column, in no order. When all columns are full,
           those of nodes that have come back are freed.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outlast.planner.saves import Floats
from outlast.planner.scenario import Scenario

Rows = slice | NDArray[np.intp]  # some of the replicas; ALL gives views, others give copies
ALL = slice(None)
LONG_AGO = -np.inf
# Columns that are free after each cleaning: at least so many, and a share of those in use. With
# more, each count would be slower. With fewer, the columns would be cleaned more often.
FREE_COLUMNS, FREE_SHARE = 16, 0.25


class Returns:
    """The nodes in repair.

    back_s      (R, columns): when the nodes of a loss come back; LONG_AGO if the column is free
    lost        (R, columns): the number of nodes of a loss; 0 if the column is free
    complete_s  (R,): the first time, from the last count on, at which no node is lacking
    later       (R,): the number of nodes that come back after `complete_s`. It is never more than
                there are spares
    """

    def __init__(self, scenario: Scenario, replicas: int) -> None:
        self._scenario = scenario
        self._all_complete_s = np.full(replicas, LONG_AGO)
        self._all_later: NDArray[np.int64] = np.zeros(replicas, dtype=np.int64)
        self._clear(replicas, columns=FREE_COLUMNS)
        self.narrow(replicas)

    @property
    def _spares(self) -> int:
        return self._scenario.repair.spare_nodes

    def _clear(self, replicas: int, *, columns: int) -> None:
        self._all_back_s = np.full((replicas, columns), LONG_AGO)
        self._all_lost: NDArray[np.int64] = np.zeros((replicas, columns), dtype=np.int64)
        self._written = 0  # number of columns in use

    def narrow(self, replicas: int) -> None:
        """Narrow all state to the first `replicas` replicas."""
        self._back_s, self._lost = self._all_back_s[:replicas], self._all_lost[:replicas]
        self._complete_s = self._all_complete_s[:replicas]
        self._later = self._all_later[:replicas]

    def lose(self, at_s: Floats, back_s: Floats, count: NDArray[np.int64]) -> None:
        """Note losses. All arguments have the shape (n,).

        Later calls must not ask about a replica at a time before its `at_s`, even if `count` is 0.
        """
        if self._written == self._back_s.shape[1]:
            self._strike_out(at_s)
        self._back_s[:, self._written] = np.where(count > 0, back_s, LONG_AGO)
        self._lost[:, self._written] = count
        self._written += 1
        self._later += count * (back_s > self._complete_s)
        many = np.flatnonzero(self._later > self._spares)
        if many.size:
            self._move_on(many, at_s[many])

    def _move_on(self, runs: NDArray[np.intp], at_s: Floats) -> None:
        """Move `complete_s` of these runs to the first time at which no node is lacking.

        At that time, at most as many nodes are in repair as there are spares.
        """
        # Later calls ask only about later times, so nodes that are back by now do not count.
        past = self._complete_s[runs] < at_s
        self._complete_s[runs] = np.maximum(self._complete_s[runs], at_s)
        self._later[runs[past]] = self._in_repair(runs[past], at_s[past])
        while (runs := runs[self._later[runs] > self._spares]).size:
            self._complete_s[runs] = self.next_s(runs, self._complete_s[runs])
            self._later[runs] = self._in_repair(runs, self._complete_s[runs])

    def _strike_out(self, at_s: Floats) -> None:
        """Forget the nodes that have come back."""
        replicas = len(self._all_later)
        now_s = np.concatenate([at_s, np.full(replicas - len(at_s), LONG_AGO)])
        runs, columns = np.nonzero(self._all_back_s > now_s[:, None])
        place = np.arange(runs.size) - np.searchsorted(runs, np.arange(replicas))[runs]
        back_s, lost = self._all_back_s[runs, columns], self._all_lost[runs, columns]
        written = int(place.max(initial=-1)) + 1
        self._clear(replicas, columns=written + max(FREE_COLUMNS, int(written * FREE_SHARE)))
        self._all_back_s[runs, place], self._all_lost[runs, place] = back_s, lost
        self._written = written
        self.narrow(len(at_s))

    def _in_repair(self, runs: NDArray[np.intp], at_s: Floats) -> NDArray[np.int64]:
        some = slice(0, self._written)
        in_repair: NDArray[np.int64] = (
            (self._back_s[runs, some] > at_s[:, None]) * self._lost[runs, some]
        ).sum(axis=1)
        return in_repair

    def complete_s(self, at_s: Floats) -> Floats:
        """Return, for all replicas, the first time from `at_s` on at which no node is lacking."""
        complete_s: Floats = np.maximum(self._complete_s, at_s)
        return complete_s

    def lacking(self, runs: Rows, at_s: Floats) -> NDArray[np.int64]:
        """Return how many nodes each of these runs lacks at the given time."""
        lacking: NDArray[np.int64] = np.zeros(len(at_s), dtype=np.int64)
        some = np.flatnonzero(self._complete_s[runs] > at_s)
        if some.size:
            in_repair = self._in_repair(some if isinstance(runs, slice) else runs[some], at_s[some])
            lacking[some] = np.clip(in_repair - self._spares, 0, self._scenario.job.nodes)
        return lacking

    def next_s(self, runs: NDArray[np.intp], at_s: Floats) -> Floats:
        """Return when the next node comes back; inf if none is in repair."""
        back_s = self._back_s[runs, : self._written]
        soonest: Floats = np.where(back_s > at_s[:, None], back_s, np.inf).min(
            axis=1, initial=np.inf
        )
        return soonest
