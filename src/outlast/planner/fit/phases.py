"""How long each part of a recovery takes, from the interruptions that ledgers hold.

Units      seconds on the clock of the launcher's node.
Phases     detect     fault to detection
           regroup    detection to a group that all have joined, the replacement of lost processes
                      included
           take       what losing a node adds to regroup: its regroup less the median of those that
                      lost no node
           restore    from there to state in place everywhere
           first step state in place to the first new commit: a step, and what the first one takes
           longer than others
           relaunch   a launcher that ended badly to the next session, which a person or a scheduler
           started
Method     With ENOUGH samples: the measured distribution, as KEPT quantiles. Each quantile is a
           sample: to interpolate between samples would give half the weight to the least and the
           greatest, and the greatest costs most. From FEW samples on: a lognormal with their mean
           and coefficient of variation. It is fitted to moments and not to logarithms, because a
           plan needs the mean. With two kinds of failure, one found at once and one after a
           deadline, a lognormal fitted to logarithms would have times that never occurred. With
           fewer samples: their mean, as a constant.
Which      Interruptions that are over. A failure during a recovery starts it again. So
           interruptions that have children, and the children, give detection only. If the time of a
           fault is unknown, it is between the last commit and its detection: the middle is taken,
           and the number of such faults is reported.

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
    """`spread` is None where no sample was seen.

    `by`: how many samples there are of each kind (mechanism, rung), and their mean in seconds.
    """

    name: str
    samples_s: tuple[float, ...]
    spread: Spread | None
    how: str
    by: Mapping[str, tuple[int, float]]

    @property
    def mean_s(self) -> float | None:
        return statistics.fmean(self.samples_s) if self.samples_s else None

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.samples_s) if self.samples_s else None

    @property
    def p95_s(self) -> float | None:
        return float(np.quantile(self.samples_s, 0.95)) if self.samples_s else None


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases that recoveries took, and:

    unknown_faults  samples of detection whose beginning is the middle of an interval
    unfinished      interruptions after which nothing was committed (yet)
    step_s          mean of a step in undisturbed training; None without a step
    survived        the largest extent of failure after which, and below which, no committed step
                    was ever lost; None where one was, or nothing failed
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
        return (self.detect, self.regroup, self.take, self.restore, self.first_step, self.relaunch)

    @property
    def slow_start_s(self) -> float:
        """Return how much longer the first step after a recovery takes on average than another.

        It is 0 if it takes less. The ledger books it as productive, unless the step is done again.
        So it is time, and no loss of ETTR.
        """
        if self.step_s is None or self.first_step.mean_s is None:
            return 0.0
        return max(0.0, self.first_step.mean_s - self.step_s)

    def recovery(self, *, source: str) -> Recovery | None:
        """Return the recovery for a Scenario; None where no recovery was seen.

        What a node's loss adds is 0 where none was seen: `limits` says so.
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
    """Return a spread and how it was derived, as the head of this module says."""
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

    They are on the run's line of time.
    """
    gaps = []
    for before, after in pairwise(records.sessions):
        if before.session.state != "stopped":  # a stop that was asked for is no failure
            gaps.append(
                (after.session.started_s - after.began_s) - (before.session.over_s - before.began_s)
            )
    return [max(0.0, gap_s) for gap_s in gaps]


def _step_s(ledgers: Sequence[Records]) -> float | None:
    """Return the mean length of a step, over the buckets without an interruption.

    If each bucket had one, it is over all buckets.
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
