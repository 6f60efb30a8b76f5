"""The failures of a history, as decision mode takes them.

Luck becomes seconds, and it is decided which of a lemon's extra failures happen.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlast.model.terms import Cause
from outlast.planner.histories import History, Luck
from outlast.planner.scenario import Extent, FailureRate, Scenario, Unit


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure. `at_s` is wall-clock time, `worked_s` the same without maintenance stops.

    `restore_s`: of each tier. `luck`: by column.
    """

    at_s: float
    worked_s: float
    rate: FailureRate
    extra: bool
    detect_s: float
    regroup_s: float
    take_s: float
    repair_s: float
    restore_s: tuple[float, ...]
    luck: tuple[float, ...]

    def recovers(
        self,
        *,
        detected_s: float,
        regrouped_s: float,
        ready_s: float,
        takes: bool,
        tier: int | None,
    ) -> tuple[tuple[Cause, float], ...]:
        """Return what the run stands still for after this failure, and until when.

        The nodes that it needs are at hand from `ready_s` on.
        """
        taken_s = ready_s + (self.take_s if takes else 0.0)
        restored_s = taken_s + (self.restore_s[tier] if tier is not None else 0.0)
        return (
            (Cause.DETECTION, detected_s),
            (Cause.REGROUP, regrouped_s),
            (Cause.REGROUP, taken_s),
            (Cause.RESTORE, restored_s),
        )


def failures(scenario: Scenario, history: History) -> Iterator[Failure]:
    """Yield the failures before the end of the run."""
    recovery, repair, luck, stops = (
        scenario.recovery,
        scenario.repair,
        history.luck,
        scenario.maintenance,
    )
    spreads = (
        (recovery.detect, Luck.DETECT),
        (recovery.regroup, Luck.REGROUP),
        (recovery.take, Luck.TAKE),
        (repair.time, Luck.REPAIR),
    )
    detect, regroup, take, mend = (
        spread.quantile(luck[:, column]).tolist() for spread, column in spreads
    )
    restores = [tier.restore.quantile(luck[:, Luck.RESTORE]).tolist() for tier in scenario.tiers]
    for k, at_s in enumerate(history.at_s.tolist()):
        if at_s >= scenario.job.duration_s:
            return
        yield Failure(
            at_s,
            stops.worked_s(at_s),
            scenario.failures[history.which[k]],
            bool(history.extra[k]),
            detect[k],
            regroup[k],
            take[k],
            mend[k],
            tuple(restore[k] for restore in restores),
            tuple(luck[k].tolist()),
        )


@dataclass(slots=True)
class Lemons:
    """How many nodes fail more often. Nothing says which ones they are: see scenario.py."""

    scenario: Scenario
    count: int

    def strikes(self, failure: Failure) -> bool:
        """Return whether it happens: an extra failure does as often as there are lemons."""
        bound = self.scenario.lemons_bound
        return not failure.extra or failure.luck[Luck.LEMON] < min(self.count, bound) / bound

    def lost(self, failure: Failure) -> None:
        """Book a node that failed: a lemon may be caught, a healthy one repaired badly."""
        lemons, nodes, mended = (
            self.scenario.lemons,
            self.scenario.job.nodes,
            failure.luck[Luck.MENDED],
        )
        if lemons.factor == 1 or failure.rate.extent is not Extent.NODE:
            return
        if failure.extra or (
            failure.rate.unit in (Unit.GPU, Unit.NODE)
            and failure.luck[Luck.LEMON] < self.count / nodes
        ):
            self.count -= mended < lemons.caught
        else:
            self.count = min(self.count + (mended < self.scenario.repair.missed), nodes)
