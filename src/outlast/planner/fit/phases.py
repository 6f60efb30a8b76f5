"""Measure how long each part of a recovery takes, from the interruptions in ledgers.

Units      seconds on the clock of the launcher's node.
Phases     detect      from the fault to its detection
           regroup     from detection until all ranks have joined the group; this includes the
                       replacement of lost processes
           take        the extra regroup time if a node was lost: that regroup, less the median of
                       the regroups that lost no node
           restore     from the regroup until the state is in place on all ranks
           first step  from there to the first new commit: one step, and the extra time of the first
                       one
           relaunch    from the end of a launcher that failed or vanished to the next session, which
                       a person or a scheduler started
Method     With at least ENOUGH samples, the measured distribution is taken, as KEPT quantiles. Each
           quantile is a sample. Interpolation would halve the weights of the least and the greatest
           sample, and the greatest costs most.
           With at least FEW samples, a lognormal with their mean and coefficient of variation is
           taken. It is fitted to moments, because a plan needs the mean. A fit to logarithms would
           go wrong if some failures are found at once and others after a deadline: it would contain
           times that never occurred.
           With fewer samples, their mean is taken as a constant.
Which      Only interruptions that are over count. A failure during a recovery starts the recovery
           again. So interruptions with children, and the children, count for detection only. If the
           time of a fault is unknown, it is taken as the middle between the last commit and the
           detection. The number of such faults is reported.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from outlast.model.records import Interruption, Records, StepsBucket
from outlast.model.terms import Mechanism
from outlast.planner.scenario import Extent, Recovery
from outlast.planner.spread import Spread, constant, lognormal, measured

ENOUGH = 20
FEW = 3
KEPT = 101
_P95_Z = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class PhaseSamples:
    """The samples of one phase.

    spread  the fitted distribution; None if there is no sample
    by      for each kind (mechanism, rung), the number of samples and their mean in seconds
    """

    name: str
    samples_s: tuple[float, ...]
    spread: Spread | None
    how: str
    by: Mapping[str, tuple[int, float]]

    @property
    def mean_s(self) -> float | None:
        """The mean of the samples in seconds; None without samples."""
        return statistics.fmean(self.samples_s) if self.samples_s else None

    @property
    def median_s(self) -> float | None:
        """The median of the samples in seconds; None without samples."""
        return statistics.median(self.samples_s) if self.samples_s else None

    @property
    def p95_s(self) -> float | None:
        """The 95th percentile of the samples in seconds; None without samples."""
        return float(np.quantile(self.samples_s, 0.95)) if self.samples_s else None


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of recoveries, and facts that belong to them.

    unknown_faults  number of samples of detection whose beginning is the middle of an interval
    unfinished      number of interruptions after which no step was committed (yet)
    step_s          mean length of a step in undisturbed training; None if there was no step
    survived        the largest extent of failure up to which no committed step was ever lost; None
                    if one was lost after the failure of a process, or if nothing failed
    """

    detect: PhaseSamples
    regroup: PhaseSamples
    take: PhaseSamples
    restore: PhaseSamples
    first_step: PhaseSamples
    relaunch: PhaseSamples
    unknown_faults: int
    unfinished: int
    step_s: float | None
    survived: Extent | None

    def all(self) -> tuple[PhaseSamples, ...]:
        """Return the samples of all phases, in the order of a recovery."""
        return (self.detect, self.regroup, self.take, self.restore, self.first_step, self.relaunch)

    @property
    def slow_start_s(self) -> float:
        """Return the extra seconds of the first step after a recovery, on average.

        The result is 0 if that step is shorter than others. The ledger books this time as
        productive, unless the step is done again. So it does not lower the ETTR.
        """
        if self.step_s is None or self.first_step.mean_s is None:
            return 0.0
        return max(0.0, self.first_step.mean_s - self.step_s)

    def recovery(self, *, source: str) -> Recovery | None:
        """Return the recovery for a Scenario; None if no recovery was seen.

        If no loss of a node was seen, its extra time is 0, and the calibration says so.
        """
        if self.detect.spread is None or self.regroup.spread is None:
            return None
        return Recovery(
            self.detect.spread,
            self.regroup.spread,
            self.take.spread or constant(0.0),
            source=source,
        )


def fit_spread(samples_s: Sequence[float]) -> tuple[Spread | None, str]:
    """Return a spread, and how it was derived. The head of this module describes the method."""
    count = len(samples_s)
    if count == 0:
        return None, "never seen"
    mean_s = statistics.fmean(samples_s)
    if count >= ENOUGH:
        return measured(
            np.quantile(samples_s, np.linspace(0, 1, KEPT), method="inverted_cdf")
        ), "measured"
    if count < FEW or min(samples_s) == max(samples_s) or mean_s == 0:
        return constant(mean_s), "constant"
    variance_of_log = math.log1p((statistics.stdev(samples_s) / mean_s) ** 2)
    median_s = mean_s / math.exp(variance_of_log / 2)
    return lognormal(
        median_s, median_s * math.exp(_P95_Z * math.sqrt(variance_of_log))
    ), "lognormal"


def phases_of(ledgers: Iterable[Records]) -> Phases:
    """Fit the phases over all ledgers together."""
    everything = list(ledgers)
    interruptions = [one for records in everything for one in _with_family(records)]
    over = [one for one, _ in interruptions if one.resumed_s is not None]
    alone = [
        one
        for one, alone in interruptions
        if alone and one.resumed_s is not None and one.regrouped_s is not None
    ]
    processes, nodes = (
        [one for one in alone if not _lost_node(one)],
        [one for one in alone if _lost_node(one)],
    )
    detected = [(one, sample_s) for one in over if (sample_s := _detection_s(one)) is not None]
    usual_s = (
        statistics.median([_between(one.detected_s, one.regrouped_s) for one in processes])
        if processes
        else 0.0
    )
    return Phases(
        detect=_phase("detect", detected, lambda one: one.mechanism.value),
        regroup=_phase(
            "regroup",
            [(one, _between(one.detected_s, one.regrouped_s)) for one in processes or nodes],
            _rung,
        ),
        take=_phase(
            "take",
            [
                (one, max(0.0, _between(one.detected_s, one.regrouped_s) - usual_s))
                for one in nodes
                if processes
            ],
            _rung,
        ),
        restore=_phase(
            "restore",
            [
                (one, _between(one.regrouped_s, one.restored_s))
                for one in alone
                if one.restored_s is not None
            ],
            _rung,
        ),
        first_step=_phase(
            "first step",
            [
                (one, _between(one.restored_s, one.resumed_s))
                for one in alone
                if one.restored_s is not None
            ],
            _rung,
        ),
        relaunch=_phase(
            "relaunch",
            [(None, gap_s) for records in everything for gap_s in _relaunches(records)],
            lambda _: "session",
        ),
        unknown_faults=sum(one.fault_s is None for one, _ in detected),
        unfinished=len(interruptions) - len(over),
        step_s=_step_s(everything),
        survived=_survived(over),
    )


def _phase(
    name: str,
    samples: Sequence[tuple[Interruption | None, float]],
    kind: Callable[[Interruption], str],
) -> PhaseSamples:
    seconds = [sample_s for _, sample_s in samples]
    by: dict[str, list[float]] = {}
    for one, sample_s in samples:
        by.setdefault("all" if one is None else kind(one), []).append(sample_s)
    spread, how = fit_spread(seconds)
    return PhaseSamples(
        name,
        tuple(sorted(seconds)),
        spread,
        how,
        {key: (len(some), statistics.fmean(some)) for key, some in sorted(by.items())},
    )


def _with_family(records: Records) -> list[tuple[Interruption, bool]]:
    """Return each interruption, and whether it was over before another failure came."""
    everything = [one for one, _ in records.unique_interruptions()]
    parents = {one.parent for one in everything}
    return [(one, one.parent is None and one.id not in parents) for one in everything]


def _lost_node(one: Interruption) -> bool:
    return one.mechanism is Mechanism.LOST_NODE


def _survived(over: Iterable[Interruption]) -> Extent | None:
    lost: dict[Extent, int] = {}
    for one in over:
        extent = Extent.NODE if _lost_node(one) else Extent.PROCESS
        lost[extent] = lost.get(extent, 0) + max(0, one.steps_lost)
    if lost.get(Extent.PROCESS, 0) or not lost:
        return None
    return Extent.NODE if lost.get(Extent.NODE) == 0 else Extent.PROCESS


def _rung(one: Interruption) -> str:
    return "unknown" if one.rung is None else one.rung.value


def _between(from_s: float | None, to_s: float | None) -> float:
    assert from_s is not None
    assert to_s is not None
    return max(0.0, to_s - from_s)


def _detection_s(one: Interruption) -> float | None:
    if one.fault_s is not None:
        return max(0.0, one.detected_s - one.fault_s)
    if one.fault_not_before_s is not None:
        return max(0.0, one.detected_s - one.fault_not_before_s) / 2
    return None


def _relaunches(records: Records) -> list[float]:
    """Return the seconds between a launcher that failed or vanished and the next session.

    They are on the time scale of the run.
    """
    gaps = []
    for before, after in pairwise(records.sessions):
        if before.session.state != "stopped":  # a stop that was asked for is not a failure
            gaps.append(
                (after.session.started_s - after.began_s) - (before.session.over_s - before.began_s)
            )
    return [max(0.0, gap_s) for gap_s in gaps]


def _step_s(ledgers: Sequence[Records]) -> float | None:
    """Return the mean length of a step, over the buckets of steps without an interruption.

    If each bucket had an interruption, the mean is over all buckets.
    """
    everything = [
        (one, _is_disturbed(one, part.interruptions))
        for records in ledgers
        for part in records.sessions
        for one in part.steps
    ]
    undisturbed = [one for one, disturbed in everything if not disturbed] or [
        one for one, _ in everything
    ]
    steps = sum(one.to_step - one.from_step for one in undisturbed)
    return math.fsum(one.to_s - one.from_s for one in undisturbed) / steps if steps > 0 else None


def _is_disturbed(bucket: StepsBucket, interruptions: Iterable[Interruption]) -> bool:
    def began_s(one: Interruption) -> float:
        return next(
            at_s
            for at_s in (one.fault_s, one.fault_not_before_s, one.detected_s)
            if at_s is not None
        )

    return any(
        began_s(one) < bucket.to_s and (one.resumed_s is None or one.resumed_s > bucket.from_s)
        for one in interruptions
    )
