"""Run many simulations, and return a summary of each.

This module decides which simulations share a task. A summary is small enough to be sent from
another process or machine.

Common random numbers  All scenarios of one task have the same failures and the same luck. So do
                       tasks with the same seed, as far as their rates agree.
Where                  A task holds all that it needs. So its results are the same here, on other
                       cores and on Ray. The caller's `Mapper` decides where tasks run. The default
                       runs one task after the other.
Windows                If too many failures are expected, only the first part of the run (the
                       window) is simulated, at the mean rates of the run. Only the second half of
                       the window counts, because the first half has no repairs yet. Work that is
                       kept at the end without a save cancels out. `long_run` gives the spread of
                       whole runs then. The window is long enough for lost nodes to come back, if
                       that takes no more than FAILURES_MOST failures.
Batches                Replicas are simulated in batches of BATCH on any number of cores, so that
                       the same floats are added in the same order.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from outlast.model.terms import Cause
from outlast.planner import histories
from outlast.planner.outcomes import Outcomes
from outlast.planner.resolve import rate_per_s, with_known_rate
from outlast.planner.runs import run
from outlast.planner.scenario import FailureRate, Scenario

Floats: TypeAlias = NDArray[np.float64]
FAILURES_MOST = 2_000  # failures that are simulated in one replica, at most
REPAIRS_LEAST = 2.0  # a window lasts at least this many repair times, if possible
BATCH = 512  # replicas; a multiple of the block size of histories
TASK_MOST = 8  # scenarios in one task; a sweep is spread over cores by tasks


class Term(str, Enum):
    """One cause of lost time of a run."""

    SAVES = "saves"
    REPEATED = "repeated work"
    DETECTION = "detection"
    RESTART = "restart"
    WAITING = "waiting for nodes"
    RESTORE = "restore"
    FEWER = "fewer nodes"
    MAINTENANCE = "maintenance"


TERM_OF = {
    Cause.STALL: Term.SAVES,
    Cause.REPEATED: Term.REPEATED,
    Cause.DETECTION: Term.DETECTION,
    Cause.REGROUP: Term.RESTART,
    Cause.RESTORE: Term.RESTORE,
    Cause.DEGRADED: Term.FEWER,
    Cause.OTHER: Term.MAINTENANCE,
}


@dataclass(frozen=True, slots=True)
class Task:
    """Scenarios with the same failures. They differ in tiers, intervals, spares or durations.

    first, replicas  the task simulates replicas `first` to `first + replicas - 1` of the seed
    uncertain        rates are drawn from the posterior of their counts
    steady           only the second half of each run counts
    """

    scenarios: tuple[Scenario, ...]
    seed: int
    replicas: int
    first: int = 0
    uncertain: bool = False
    steady: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one simulation.

    ettr       (R,): the ETTR of each replica
    shares     the share of wall-clock time that each term takes; with the mean ETTR they sum to 1
    by_class   the share of wall-clock time that each class of failure takes
    """

    ettr: Floats
    shares: dict[Term, float]
    interruptions: float
    by_class: dict[str, float]

    @property
    def mean(self) -> float:
        return float(self.ettr.mean())

    @property
    def mean_se(self) -> float:
        """Return the standard error of the simulated mean."""
        return (
            float(self.ettr.std(ddof=1) / math.sqrt(len(self.ettr)))
            if len(self.ettr) > 1
            else math.nan
        )


Mapper: TypeAlias = Callable[
    [Callable[[Task], tuple[Summary, ...]], Sequence[Task]], Iterable[tuple[Summary, ...]]
]


def in_order(
    function: Callable[[Task], tuple[Summary, ...]], tasks: Sequence[Task]
) -> Iterable[tuple[Summary, ...]]:
    """Map on one core, one task after the other."""
    return map(function, tasks)


def run_all(
    scenarios: Sequence[Scenario],
    *,
    seed: int,
    replicas: int,
    failures_most: float | None = None,
    uncertain: bool = False,
    mapper: Mapper = in_order,
) -> list[Summary]:
    """Return a summary of each scenario, in order. Scenarios with equal rates share failures.

    failures_most  if more are expected, a window with this many is simulated; None: the whole
                   runs are simulated
    """
    whole = scenarios
    scenarios = whole if failures_most is None else [window(one, failures_most) for one in whole]
    alike: dict[tuple[object, ...], list[int]] = {}
    for at, scenario in enumerate(scenarios):
        alike.setdefault((scenario is not whole[at], *_what_fails(scenario)), []).append(at)
    groups = [
        several[at : at + TASK_MOST]
        for several in alike.values()
        for at in range(0, len(several), TASK_MOST)
    ]
    work = [(group, first) for group in groups for first in range(0, replicas, BATCH)]
    tasks = [
        Task(
            tuple(scenarios[at] for at in group),
            seed,
            min(BATCH, replicas - first),
            first,
            uncertain,
            steady=scenarios[group[0]] is not whole[group[0]],
        )
        for group, first in work
    ]
    parts: list[list[Summary]] = [[] for _ in scenarios]
    for (group, _), summaries in zip(work, mapper(simulate, tasks), strict=True):
        for at, summary in zip(group, summaries, strict=True):
            parts[at].append(summary)
    return [_joined(one) for one in parts]


def _joined(parts: Sequence[Summary]) -> Summary:
    """Join the summaries of batches of the same scenario."""
    weights = [len(one.ettr) for one in parts]

    def mean(values: Iterable[float]) -> float:
        return math.fsum(
            value * weight for value, weight in zip(values, weights, strict=True)
        ) / sum(weights)

    return Summary(
        np.concatenate([one.ettr for one in parts]),
        {term: mean(one.shares[term] for one in parts) for term in Term},
        mean(one.interruptions for one in parts),
        {name: mean(one.by_class[name] for one in parts) for name in parts[0].by_class},
    )


def _what_fails(scenario: Scenario) -> tuple[object, ...]:
    """Return all values from which histories are drawn."""
    job = scenario.job
    return (
        job.gpus,
        job.gpus_per_node,
        job.nodes_per_rack,
        job.duration_s,
        scenario.failures,
        scenario.lemons,
        scenario.repair.missed,
    )


def simulate(task: Task) -> tuple[Summary, ...]:
    """Simulate all scenarios of a task over the same failures, and sum up each."""
    scenarios = task.scenarios if task.uncertain else tuple(map(at_known_rates, task.scenarios))
    drawn = histories.draw(
        scenarios[0],
        seed=task.seed,
        replicas=task.replicas,
        first=task.first,
        uncertain=task.uncertain,
    )
    whole = tuple(_summary(scenario, run(scenario, drawn)) for scenario in scenarios)
    if not task.steady:
        return whole
    halves = [
        replace(one, job=replace(one.job, duration_s=one.job.duration_s / 2)) for one in scenarios
    ]
    return tuple(
        _second_half(one, _summary(half, run(half, drawn)))
        for one, half in zip(whole, halves, strict=True)
    )


def _second_half(whole: Summary, first: Summary) -> Summary:
    """Return the summary of the second half of the same runs."""
    return Summary(
        2 * whole.ettr - first.ettr,
        {term: 2 * whole.shares[term] - first.shares[term] for term in Term},
        whole.interruptions - first.interruptions,
        {name: 2 * whole.by_class[name] - first.by_class[name] for name in whole.by_class},
    )


def _summary(scenario: Scenario, outcomes: Outcomes) -> Summary:
    """Sum up the outcomes by term. In the ledger, waiting for nodes is a part of regroup."""
    duration_s = scenario.job.duration_s
    waiting = float(outcomes.wait_s.mean()) / duration_s
    shares = dict.fromkeys(Term, 0.0)
    for cause, term in TERM_OF.items():
        shares[term] += (
            float(outcomes.seconds[cause].mean()) / duration_s if cause in outcomes.seconds else 0.0
        )
    shares[Term.RESTART] -= waiting
    shares[Term.WAITING] = waiting
    by_class: dict[str, float] = {}
    for index, rate in enumerate(scenario.failures):
        name = rate.failure_class.value
        by_class[name] = (
            by_class.get(name, 0.0) + float(outcomes.lost_s[:, index].mean()) / duration_s
        )
    return Summary(
        outcomes.position_s / duration_s, shares, float(outcomes.interruptions.mean()), by_class
    )


def at_known_rates(scenario: Scenario) -> Scenario:
    """Return the scenario with its rates as known ones."""
    return replace(
        scenario,
        failures=tuple(replace(with_known_rate(rate), count=0.0) for rate in scenario.failures),
    )


# --- windows --------------------------------------------------------------------------------------


def window(scenario: Scenario, failures_most: float) -> Scenario:
    """Return the scenario, or a part of it that is short enough for `failures_most` failures.

    That part has the mean rates of the whole.
    """
    per_s = math.fsum(rate_per_s(rate, scenario.job) for rate in scenario.failures)
    expected = per_s * scenario.job.duration_s
    repairs = per_s * REPAIRS_LEAST * scenario.repair.time.mean_s
    most = max(failures_most, repairs) if repairs <= FAILURES_MOST else failures_most
    if expected <= most:
        return scenario
    steady = tuple(_steady(rate, scenario) for rate in scenario.failures)
    return replace(
        scenario,
        failures=steady,
        job=replace(scenario.job, duration_s=scenario.job.duration_s * most / expected),
    )


def _steady(rate: FailureRate, scenario: Scenario) -> FailureRate:
    """Return the class with the mean of its rate over the whole run. Its uncertainty stays."""
    per_s = rate_per_s(rate, scenario.job)
    known = with_known_rate(rate).mttf_s
    mttf_s = scenario.job.units(rate.unit) / per_s * (rate.mttf_s / known) if per_s else math.inf
    return replace(rate, mttf_s=mttf_s, shape=1.0, waves=())


def long_run(known: Summary, uncertain: Summary, *, share: float) -> tuple[float, float]:
    """Return the 5th and 95th percentile of a whole run of which a `share` was simulated.

    The spread by luck shrinks with the length of the run, but the spread by uncertain rates does
    not. Both are taken as normal. `known` was simulated at known rates, `uncertain` at drawn ones.
    """
    luck = float(known.ettr.var())
    rates = max(0.0, float(uncertain.ettr.var()) - luck)
    half = 1.6448536269514722 * math.sqrt(rates + luck * share)
    return max(0.0, uncertain.mean - half), min(1.0, uncertain.mean + half)
