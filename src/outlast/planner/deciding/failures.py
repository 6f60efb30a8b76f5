"""Prepare the failures of a history for decision mode.

This module turns the random numbers of a history into seconds. It also decides which of the extra
failures of lemons happen. Lemons are nodes that fail more often than others.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlast.model.terms import Cause
from outlast.planner.histories import History, Luck
from outlast.planner.scenario import Extent, FailureRate, Scenario, Unit


@dataclass(frozen=True, slots=True)
class PlannedFailure:
    """One failure, with the durations that the recovery from it would take.

    at_s       wall-clock time of the failure
    worked_s   the same, without the maintenance stops before it
    rate       the rate of the scenario that it belongs to
    extra      True for a failure that only lemons have: see LemonCount.happens
    repair_s   seconds until a lost node is back
    restore_s  for each tier, the seconds to restore from it
    luck       random numbers in [0, 1), by column: see histories.Luck
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

    def phases(
        self,
        *,
        detected_s: float,
        regrouped_s: float,
        ready_s: float,
        takes: bool,
        tier: int | None,
    ) -> tuple[tuple[Cause, float], ...]:
        """Return the phases of the recovery: for each its cause, and the time at which it ends.

        ready_s  from this time on, the needed nodes are at hand
        takes    nodes were lost, and others take their places
        tier     the tier to restore from; None if the run starts over
        """
        taken_s = ready_s + (self.take_s if takes else 0.0)
        restored_s = taken_s + (self.restore_s[tier] if tier is not None else 0.0)
        return (
            (Cause.DETECTION, detected_s),
            (Cause.REGROUP, regrouped_s),
            (Cause.REGROUP, taken_s),
            (Cause.RESTORE, restored_s),
        )


def failures(scenario: Scenario, history: History) -> Iterator[PlannedFailure]:
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
        yield PlannedFailure(
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
class LemonCount:
    """The number of lemons, the nodes that fail more often than others.

    Only their number is known, not which nodes they are: see scenario.py.
    """

    scenario: Scenario
    count: int

    def happens(self, failure: PlannedFailure) -> bool:
        """Return whether this failure happens.

        An extra failure happens with a probability that is proportional to the number of lemons.
        """
        bound = self.scenario.lemons_bound
        return not failure.extra or failure.luck[Luck.LEMON] < min(self.count, bound) / bound

    def book(self, failure: PlannedFailure) -> None:
        """Adjust the number of lemons after a node failed.

        A lemon may be found and replaced. A healthy node may be repaired badly and become a lemon.
        """
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
