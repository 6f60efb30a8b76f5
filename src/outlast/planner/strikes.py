"""Decide which of the drawn failures strike, and what each takes with it, for many runs at once.

The module also gives the durations of the recovery from each failure.

A drawn failure does not strike after the end of the run or during a maintenance stop. Nor does it
strike if it was drawn for a lemon, and there are too few lemons at that time. The number of lemons
depends only on earlier failures, so all this is independent of how far training got.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from outlast.planner.histories import ROWS, Histories, Luck
from outlast.planner.saves import Floats
from outlast.planner.scenario import Extent, Maintenance, Scenario, Unit
from outlast.planner.spread import Shape, Spread, quantiles

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Strike:
    """The k-th failure of each of the n replicas that have a k-th failure. Each array is (n,).

    strikes        whether the failure strikes. If it does not, nodes_lost is 0, and the other
                   fields mean nothing
    at_s           when it strikes, in seconds without maintenance stops
    failure_class  index into scenario.failures
    """

    k: int
    strikes: Flags
    at_s: Floats
    failure_class: NDArray[np.int64]
    extent: NDArray[np.int8]
    nodes_lost: Counts


class Strikes:
    """The failures of all replicas, one after the other.

    Replicas are sorted by the number of failures that were drawn for them, most first. So the ones
    with a k-th failure are the first n. `order` holds their indices in the histories.
    """

    def __init__(self, scenario: Scenario, histories: Histories) -> None:
        drawn = np.isfinite(histories.at_s).sum(axis=1)
        self.order = np.argsort(-drawn, kind="stable")
        # _with_more[k]: the number of replicas that have more than k failures
        self._with_more = np.searchsorted(-drawn[self.order], -np.arange(histories.at_s.shape[1]))
        self._scenario, self._histories = scenario, histories
        self._extents = np.array([int(rate.extent) for rate in scenario.failures], dtype=np.int8)
        self._nodes_lost = np.array(
            [scenario.nodes_lost(rate.extent) for rate in scenario.failures], dtype=np.int64
        )
        self._diagnosis = OrderedColumn(histories, Luck.DIAGNOSIS, self.order)
        self._lemons = (
            _Lemons(scenario, histories, self.order) if scenario.lemons.factor > 1 else None
        )
        # the number of failures that struck each replica, in `order`
        self.interruptions: Counts = np.zeros(histories.replicas, dtype=np.int64)

    @property
    def loses_nodes(self) -> bool:
        """Return whether any failure of the scenario takes a node."""
        return bool(self._nodes_lost.any())

    @property
    def beyond_bound(self) -> Flags:
        return (
            self._lemons.beyond_bound
            if self._lemons
            else np.zeros(self._histories.replicas, dtype=np.bool_)
        )

    def __iter__(self) -> Iterator[Strike]:
        duration_s, wrong = self._scenario.job.duration_s, self._scenario.repair.wrong
        for k, replicas in enumerate(self._with_more.tolist()):
            here = self.order[:replicas]
            wall_s, stream = (
                np.take(self._histories.at_s[:, k], here),
                np.take(self._histories.stream[:, k], here),
            )
            failure_class = self._histories.stream_class[stream]
            extent, nodes_lost = self._extents[failure_class], self._nodes_lost[failure_class]
            at_s, strikes = _worked(self._scenario.maintenance, np.minimum(wall_s, duration_s))
            strikes &= wall_s < duration_s
            if self._lemons:
                extra = stream >= self._histories.class_count
                strikes &= self._lemons.are_there(k, extra)
                self._lemons.are_struck(k, extra, failure_class, strikes & (extent == Extent.NODE))
            if wrong:
                nodes_lost += (self._diagnosis.at(k)[:replicas] < wrong) & (extent == Extent.NODE)
            nodes_lost *= strikes
            self.interruptions[:replicas] += strikes
            yield Strike(k, strikes, at_s, failure_class, extent, nodes_lost)


class Seconds:
    """A duration for each failure: the quantile of a spread at the failure's random number.

    If the spread does not vary, it is the same number for all.
    """

    def __init__(
        self, spread: Spread, histories: Histories, column: Luck, order: NDArray[np.intp]
    ) -> None:
        self._fixed = np.array([spread.numbers[0]]) if _is_fixed(spread) else None
        self._rows = OrderedColumn(histories, column, order, spread.quantile)

    def at(self, strike: Strike) -> Floats:
        """Return the durations after this failure: (n,), or (1,) if they do not vary.

        Call it in the order of the failures.
        """
        return (
            self._rows.at(strike.k)[: len(strike.strikes)] if self._fixed is None else self._fixed
        )


class SecondsEach:
    """Several durations for each failure, all at the same random number."""

    def __init__(
        self, spreads: Sequence[Spread], histories: Histories, column: Luck, order: NDArray[np.intp]
    ) -> None:
        self._fixed = (
            np.array([[spread.numbers[0]] for spread in spreads]).reshape(-1, 1)
            if all(map(_is_fixed, spreads))
            else None
        )
        self._rows = OrderedColumn(histories, column, order, partial(quantiles, spreads))

    def at(self, strike: Strike) -> Floats:
        """Return the durations after this failure: (J, n), or (J, 1) if none of them varies.

        Call it in the order of the failures.
        """
        return (
            self._rows.at(strike.k)[:, : len(strike.strikes)]
            if self._fixed is None
            else self._fixed
        )


def _is_fixed(spread: Spread) -> bool:
    return (
        spread.shape is Shape.CONSTANT
        or spread.mean_s == 0
        or (spread.shape is Shape.MEASURED and len(spread.numbers) == 1)
    )


class OrderedColumn:
    """A column of random numbers, or the result of `made` for each, row by row.

    Rows are drawn a few at a time, when they are asked for. Replicas are in the given order.
    """

    def __init__(
        self,
        histories: Histories,
        column: Luck,
        order: NDArray[np.intp],
        made: Callable[[Floats], Floats] | None = None,
    ) -> None:
        self._chunks = histories.luck_in_order(column)
        self._order, self._made = order, made
        self._first = -ROWS
        self._rows = np.zeros((0, 0))

    def at(self, k: int) -> Floats:
        """Return row `k`, one number for each replica. `k` must not decrease from call to call."""
        while k >= self._first + ROWS:
            self._first += ROWS
            rows = next(self._chunks)
            if k < self._first + ROWS:
                rows = np.take(rows, self._order, axis=1)
                self._rows = self._made(rows) if self._made else rows
        row: Floats = self._rows[k - self._first]
        return row


class _Lemons:
    """The number of lemons in each replica."""

    def __init__(self, scenario: Scenario, histories: Histories, order: NDArray[np.intp]) -> None:
        self._bound, self._nodes = scenario.lemons_bound, scenario.job.nodes
        self._caught, self._missed = scenario.lemons.caught, scenario.repair.missed
        self._here, self._mended = (
            OrderedColumn(histories, Luck.LEMON, order),
            OrderedColumn(histories, Luck.MENDED, order),
        )
        self._of_node = np.array(
            [rate.unit in (Unit.GPU, Unit.NODE) for rate in scenario.failures], dtype=np.bool_
        )
        self._now = histories.lemons[order]
        self.beyond_bound: Flags = np.zeros(histories.replicas, dtype=np.bool_)

    def are_there(self, k: int, extra: Flags) -> Flags:
        """Return whether each failure happens.

        An extra failure happens with a probability in proportion to the number of lemons. All
        others happen.
        """
        there: Flags = self._here.at(k)[: len(extra)] < np.minimum(
            self._now[: len(extra)], self._bound
        ) / max(1, self._bound)
        there |= ~extra
        return there

    def are_struck(
        self, k: int, extra: Flags, failure_class: NDArray[np.int64], one_node: Flags
    ) -> None:
        """Change the number of lemons after failures that lose one node.

        A lemon may be caught. A healthy node may be repaired badly, and become a lemon.
        """
        now = self._now[: len(extra)]
        lemon = self._here.at(k)[: len(extra)] < now / self._nodes
        lemon &= self._of_node[failure_class]
        lemon |= extra
        mended = self._mended.at(k)[: len(extra)]
        now -= one_node & lemon & (mended < self._caught)
        now += one_node & ~lemon & (mended < self._missed)
        np.minimum(now, self._nodes, out=now)
        self.beyond_bound[: len(extra)] |= now > self._bound


def _worked(stops: Maintenance, wall_s: Floats) -> tuple[Floats, Flags]:
    """Return `Maintenance.worked_s` of many finite times, and whether they are outside of stops."""
    if not stops.lasts_s or math.isinf(stops.every_s):
        return wall_s, np.ones(wall_s.shape, dtype=np.bool_)
    begun = np.floor(wall_s / stops.every_s)
    into_s = wall_s - begun * stops.every_s
    before = begun < 1
    worked_s = np.where(
        before, wall_s, wall_s - (begun - 1) * stops.lasts_s - np.minimum(into_s, stops.lasts_s)
    )
    return worked_s, before | (into_s >= stops.lasts_s)
