"""Which of the failures drawn ahead strike, what they take, and how long the recovery from each lasts: for many runs at once.

A failure drawn ahead does not strike after the end, during a stop, or where it was drawn for a lemon that is not there (any more). How many lemons there are
depends on the failures before it and on nothing else, so that nothing here asks how far training got.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from outlast.planner.histories import ROWS, Histories, Luck
from outlast.planner.repairs import Rows
from outlast.planner.saves import Floats
from outlast.planner.scenario import Extent, Maintenance, Scenario, Unit
from outlast.planner.spread import Shape, Spread

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Seconds:
    """A duration of each failure: its spread at the failure's luck. One number where it does not vary. To be asked in the order of failures."""

    def __init__(self, spread: Spread, histories: Histories, column: Luck) -> None:
        fixed = spread.shape is Shape.CONSTANT or (spread.shape is Shape.MEASURED and len(spread.numbers) == 1) or spread.mean_s == 0
        self._fixed = np.array([spread.numbers[0]]) if fixed else None
        self._rows = _InOrder(histories, column, spread.quantile)

    def at(self, k: int, runs: Rows) -> Floats:
        """Of the k-th failure of these replicas: (n,), or (1,) for all."""
        return self._rows.at(k)[runs] if self._fixed is None else self._fixed


class _InOrder:
    """A column of luck, or what is made of it, row by row."""

    def __init__(self, histories: Histories, column: Luck, made: Callable[[Floats], Floats]) -> None:
        self._chunks = histories.luck_in_order(column)
        self._made = made
        self._first = -ROWS
        self._rows = np.zeros((0, 0))

    def at(self, k: int) -> Floats:
        while k >= self._first + ROWS:
            self._first += ROWS
            rows = next(self._chunks)
            self._rows = self._made(rows) if k < self._first + ROWS else rows
        row: Floats = self._rows[k - self._first]
        return row


def _itself(luck: Floats) -> Floats:
    return luck


class Strikes:
    """The failures of all replicas, one by one."""

    def __init__(self, scenario: Scenario, histories: Histories) -> None:
        rates, stops = scenario.failures, scenario.maintenance
        self.count, self.replicas = histories.at_s.shape[1], histories.replicas
        wall_s = histories.at_s.T
        self._happens = (wall_s < scenario.job.duration_s) & ~_stands(stops, wall_s)
        self.at_s = _worked(stops, np.minimum(wall_s, scenario.job.duration_s))
        self.failure_class = histories.which.T
        self.extent = np.array([int(rate.extent) for rate in rates], dtype=np.int8)[self.failure_class]
        self.loses_nodes = any(scenario.nodes_lost(rate.extent) for rate in rates)
        self._nodes_lost = np.array([scenario.nodes_lost(extent) for extent in Extent])
        self._lemons = _Lemons(scenario, histories) if scenario.lemons.factor > 1 else None
        self._wrong = scenario.repair.wrong
        self._diagnosis = _InOrder(histories, Luck.DIAGNOSIS, _itself)
        self._now: Flags = np.zeros(self.replicas, dtype=np.bool_)
        self.interruptions: Counts = np.zeros(self.replicas, dtype=np.int64)

    def now(self, k: int) -> Flags:
        """(R,): does the k-th strike? To be asked once for each k, in order."""
        self._now = self._happens[k]
        if self._lemons:
            self._now = self._now & self._lemons.are_there(k)
            self._lemons.are_struck(k, self._now & (self.extent[k] == Extent.NODE))
        self.interruptions += self._now
        return self._now

    def nodes_lost(self, k: int) -> Counts:
        """(R,): by the k-th failure; 0 where it does not strike."""
        lost = np.where(self._now, self._nodes_lost[self.extent[k]], 0)
        if self._wrong:
            lost += self._now & (self._diagnosis.at(k) < self._wrong) & (self.extent[k] == Extent.NODE)
        return lost

    @property
    def beyond_bound(self) -> Flags:
        return self._lemons.beyond_bound if self._lemons else np.zeros(self.replicas, dtype=np.bool_)


class _Lemons:
    """How many there are in each replica."""

    def __init__(self, scenario: Scenario, histories: Histories) -> None:
        self._bound, self._nodes = scenario.lemons_bound, scenario.job.nodes
        self._caught, self._missed = scenario.lemons.caught, scenario.repair.missed
        self._here, self._mended = _InOrder(histories, Luck.LEMON, _itself), _InOrder(histories, Luck.MENDED, _itself)
        self._extra = histories.extra.T
        self._of_node = np.array([rate.unit in (Unit.GPU, Unit.NODE) for rate in scenario.failures], dtype=np.bool_)[histories.which.T]
        self._now = histories.lemons.copy()
        self.beyond_bound = np.zeros(histories.replicas, dtype=np.bool_)

    def are_there(self, k: int) -> Flags:
        """A lemon's extra failure happens as often as there are lemons; any other always does."""
        there: Flags = ~self._extra[k] | (self._here.at(k) < np.minimum(self._now, self._bound) / max(1, self._bound))
        return there

    def are_struck(self, k: int, one_node: Flags) -> None:
        """One node: a lemon may be caught, a healthy one mended badly."""
        lemon = self._extra[k] | (self._of_node[k] & (self._here.at(k) < self._now / self._nodes))
        chance = np.where(lemon, self._caught, self._missed)
        changed = one_node & (self._mended.at(k) < chance)
        self._now += np.where(lemon, -1, 1) * changed
        np.minimum(self._now, self._nodes, out=self._now)
        self.beyond_bound |= self._now > self._bound


def _stands(stops: Maintenance, wall_s: Floats) -> Flags:
    """`Maintenance.stands_at` of many."""
    if not stops.lasts_s or math.isinf(stops.every_s):
        return np.zeros((1, 1), dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        stands: Flags = (wall_s >= stops.every_s) & (np.mod(wall_s, stops.every_s) < stops.lasts_s)
    return stands


def _worked(stops: Maintenance, wall_s: Floats) -> Floats:
    """`Maintenance.worked_s` of many, all finite."""
    if not stops.lasts_s or math.isinf(stops.every_s):
        return wall_s
    begun = np.floor(wall_s / stops.every_s)
    return np.where(wall_s < stops.every_s, wall_s, wall_s - (begun - 1) * stops.lasts_s - np.minimum(wall_s - begun * stops.every_s, stops.lasts_s))
