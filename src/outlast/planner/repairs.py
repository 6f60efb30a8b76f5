"""Calculate when lost nodes come back, for many runs at once.

`_Nodes` in tests/planner/course.py does this for one run.

Method     A run that began with s spares lacks a node while more than s nodes are in repair. An
           upper bound of their number is kept: the number at the last count, plus all losses since.
           The nodes in repair are counted again only if this bound is above s. So for most losses,
           only their return is stored. Each loss takes one column, in no order. When all columns
           are full, those of nodes that have come back are freed.

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
FREE_COLUMNS = 16  # columns that are free after each cleaning; more would make each count slower


class Returns:
    """The nodes in repair.

    back_s   (R, columns): when the nodes of a loss come back
    lost     (R, columns): the number of nodes of a loss; 0 if the column is free
    most     (R,): an upper bound of the number of nodes in repair
    """

    def __init__(self, scenario: Scenario, replicas: int) -> None:
        self._spares = scenario.repair.spare_nodes
        self._nodes = scenario.job.nodes
        self._all_most: NDArray[np.int64] = np.zeros(replicas, dtype=np.int64)
        self._clear(replicas, columns=FREE_COLUMNS)
        self.narrow(replicas)

    def _clear(self, replicas: int, *, columns: int) -> None:
        self._all_back_s = np.full((replicas, columns), LONG_AGO)
        self._all_lost: NDArray[np.int64] = np.zeros((replicas, columns), dtype=np.int64)
        self._written = 0  # number of columns in use

    def narrow(self, replicas: int) -> None:
        """Narrow all state to the first `replicas` replicas."""
        self._back_s, self._lost, self._most = (
            self._all_back_s[:replicas],
            self._all_lost[:replicas],
            self._all_most[:replicas],
        )

    def lose(self, at_s: Floats, back_s: Floats, count: NDArray[np.int64]) -> None:
        """Note losses. All arguments have the shape (n,).

        Later calls must not ask about a replica at a time before its `at_s`, even if `count` is 0.
        """
        if self._written == self._back_s.shape[1]:
            self._strike_out(at_s)
        self._back_s[:, self._written] = back_s
        self._lost[:, self._written] = count
        self._written += 1
        self._most += count
        many = np.flatnonzero(self._most > self._spares)
        if many.size:
            self._most[many] = self._in_repair(many, at_s[many])

    def _strike_out(self, at_s: Floats) -> None:
        """Forget the nodes that have come back."""
        replicas = len(self._all_most)
        now_s = np.concatenate([at_s, np.full(replicas - len(at_s), LONG_AGO)])
        runs, columns = np.nonzero((self._all_back_s > now_s[:, None]) & (self._all_lost > 0))
        place = np.arange(runs.size) - np.searchsorted(runs, np.arange(replicas))[runs]
        back_s, lost = self._all_back_s[runs, columns], self._all_lost[runs, columns]
        written = int(place.max(initial=-1)) + 1
        self._clear(replicas, columns=written + FREE_COLUMNS)
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
        runs = np.flatnonzero(self._most > self._spares)
        if not runs.size:
            return at_s
        back_s = self._back_s[runs, : self._written]
        latest_first = np.argsort(-back_s, axis=1)
        upto = np.cumsum(
            np.take_along_axis(self._lost[runs, : self._written], latest_first, axis=1), axis=1
        )
        last = np.argmax(upto > self._spares, axis=1)  # the last loss that has to come back
        within = np.arange(runs.size)
        complete_s = at_s.copy()
        complete_s[runs] = np.maximum(at_s[runs], back_s[within, latest_first[within, last]])
        return complete_s

    def lacking(self, runs: Rows, at_s: Floats) -> NDArray[np.int64]:
        """Return how many nodes each of these runs lacks at the given time."""
        lacking: NDArray[np.int64] = np.zeros(len(at_s), dtype=np.int64)
        some = np.flatnonzero(self._most[runs] > self._spares)
        if some.size:
            in_repair = self._in_repair(some if isinstance(runs, slice) else runs[some], at_s[some])
            lacking[some] = np.clip(in_repair - self._spares, 0, self._nodes)
        return lacking

    def next_s(self, runs: NDArray[np.intp], at_s: Floats) -> Floats:
        """Return when the next node comes back; inf if none is in repair."""
        back_s = self._back_s[runs, : self._written]
        soonest: Floats = np.where(
            (back_s > at_s[:, None]) & (self._lost[runs, : self._written] > 0), back_s, np.inf
        ).min(axis=1, initial=np.inf)
        return soonest
