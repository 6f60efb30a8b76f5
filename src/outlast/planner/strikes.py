"""Which of the failures drawn ahead strike, what they take, and how long the recovery from each lasts: for many runs at once.

A failure drawn ahead does not strike after the end, during a stop, or where it was drawn for a lemon that is not there (any more). How many lemons there are
depends on the failures before it and on nothing else, so that nothing here asks how far training got.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from outlast.planner.histories import Histories, Luck
from outlast.planner.saves import Floats
from outlast.planner.scenario import Extent, Maintenance, Scenario, Unit
from outlast.planner.spread import Shape, Spread

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Seconds:
    """A duration of each failure: its spread at the failure's luck. One number where it does not vary."""

    def __init__(self, spread: Spread, histories: Histories, column: Luck) -> None:
        fixed = spread.shape is Shape.CONSTANT or (spread.shape is Shape.MEASURED and len(spread.numbers) == 1) or spread.mean_s == 0
        self._each = np.full((1, 1), spread.numbers[0]) if fixed else spread.quantile(histories.luck(column).T)
        self._fixed = fixed

    def of(self, k: int) -> Floats:
        """Of the k-th failure of all replicas: (R,), or (1,)."""
        row: Floats = self._each[0 if self._fixed else k]
        return row

    def at(self, k: int, runs: slice | NDArray[np.intp]) -> Floats:
        seconds: Floats = self._each[0] if self._fixed else self._each[k][runs]
        return seconds


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
        self._wrong = scenario.repair.wrong > histories.luck(Luck.DIAGNOSIS).T if scenario.repair.wrong and self.loses_nodes else None
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
        if self._wrong is not None:
            lost += self._now & self._wrong[k] & (self.extent[k] == Extent.NODE)
        return lost

    @property
    def beyond_bound(self) -> Flags:
        return self._lemons.beyond_bound if self._lemons else np.zeros(self.replicas, dtype=np.bool_)


class _Lemons:
    """How many there are in each replica."""

    def __init__(self, scenario: Scenario, histories: Histories) -> None:
        self._bound, self._nodes = scenario.lemons_bound, scenario.job.nodes
        self._caught, self._missed = scenario.lemons.caught, scenario.repair.missed
        self._here, self._mended = histories.luck(Luck.LEMON).T, histories.luck(Luck.MENDED).T
        self._extra = histories.extra.T
        self._of_node = np.array([rate.unit in (Unit.GPU, Unit.NODE) for rate in scenario.failures], dtype=np.bool_)[histories.which.T]
        self._now = histories.lemons.copy()
        self.beyond_bound = np.zeros(histories.replicas, dtype=np.bool_)

    def are_there(self, k: int) -> Flags:
        """A lemon's extra failure happens as often as there are lemons; any other always does."""
        there: Flags = ~self._extra[k] | (self._here[k] < np.minimum(self._now, self._bound) / max(1, self._bound))
        return there

    def are_struck(self, k: int, one_node: Flags) -> None:
        """One node: a lemon may be caught, a healthy one mended badly."""
        lemon = self._extra[k] | (self._of_node[k] & (self._here[k] < self._now / self._nodes))
        chance = np.where(lemon, self._caught, self._missed)
        changed = one_node & (self._mended[k] < chance)
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
