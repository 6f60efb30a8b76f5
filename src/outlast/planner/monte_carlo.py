"""Simulate many runs at once in NumPy, for sweeps, optimisation and scale.

`estimate` draws histories, batch by batch, and simulates them with `runs.run`. It returns what to
expect of a run, how far a single run may be from that, and the standard error of the mean. The
result for each replica is the same as in `tests/planner/course.py`, which computes it in plain
Python.

Units      Times are seconds of wall-clock time.
Limits     If more than `failures_max` failures are expected, only the beginning of the run is
           simulated (`simulated_s`), in which `failures_max` are expected. Its progress is
           extrapolated to the whole run, and `remarks` says so. That is right only if repairs and
           waves are short compared with the simulated time.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.errors import UsageError
from outlast.model.terms import Cause, FailureClass
from outlast.model.time_units import DAY_S, HOUR_S
from outlast.planner.histories import BLOCK, draw, expected_by_s, expected_failures
from outlast.planner.outcomes import Outcomes
from outlast.planner.runs import run
from outlast.planner.scenario import Scenario

FAILURES_MAX = 5_000  # of one replica; that is some seconds of work
BATCH_FAILURES = 2_500_000  # of all replicas that are simulated together: about 100 MB
BATCH_REPLICAS = 4_096
INTERVAL = (0.05, 0.95)


@dataclass(frozen=True)
class Estimate:
    """An estimate says what to expect of one run of `duration_s`.

    Most values are means over replicas.

    simulated_s        the part of the run that was simulated
    ettr_mean          productive seconds kept / duration
    ettr_mean_se       the standard error of `ettr_mean`
    ettr_low           5th percentile of the ETTR of single runs. It includes the uncertainty of
                       rates that were estimated from counts
    ettr_high          95th percentile, likewise
    seconds            seconds by cause; they sum to the duration
    lost_s             seconds of repeated work and of recovery, by class of failure
    interruptions      number of failures that struck; `_low` and `_high` are percentiles as above
    mttf_s             duration / interruptions
    wait_s, waits      seconds for which a run waited for nodes, and how often
    throughput         the samples that the run makes, as a share of those of an undisturbed run at
                       full speed. ETTR, throttling and stragglers lower it
    gpu_hours, money   what the job and its spares use and cost
    remarks            further sentences that the reader has to know
    """

    replicas: int
    duration_s: float
    simulated_s: float
    ettr_mean: float
    ettr_mean_se: float
    ettr_low: float
    ettr_high: float
    seconds: dict[Cause, float]
    lost_s: dict[FailureClass, float]
    interruptions: float
    interruptions_low: float
    interruptions_high: float
    mttf_s: float
    wait_s: float
    waits: float
    throughput: float
    samples_per_day: float
    gpu_hours: float
    money: float
    remarks: tuple[str, ...]


def estimate(
    scenario: Scenario,
    *,
    seed: int,
    replicas: int,
    uncertain: bool = True,
    failures_max: int = FAILURES_MAX,
) -> Estimate:
    """Estimate what to expect of a run from `replicas` runs of this seed.

    With the same seed, every scenario with the same failures gets the same random numbers. Raises
    UsageError for fewer than two replicas, and if `failures_max` is below 1.
    """
    if replicas < 2 or failures_max < 1:
        raise UsageError(
            f"{replicas} replicas with at most {failures_max} failures",
            hint="simulate at least two replicas, with at least one failure",
        )
    simulated = _shortened(scenario, failures_max)
    parts = [
        run(simulated, draw(simulated, seed=seed, replicas=count, first=first, uncertain=uncertain))
        for first, count in _batches(simulated, replicas)
    ]
    return _summed_up(scenario, simulated, parts)


def _shortened(scenario: Scenario, failures_max: int) -> Scenario:
    if expected_failures(scenario) <= failures_max:
        return scenario
    return replace(
        scenario, job=replace(scenario.job, duration_s=expected_by_s(scenario, failures_max))
    )


def _batches(scenario: Scenario, replicas: int) -> list[tuple[int, int]]:
    """Return (first, count) of each batch: whole blocks of replicas that fit into memory."""
    fit = int(BATCH_FAILURES / max(1.0, expected_failures(scenario))) // BLOCK * BLOCK
    size = min(max(fit, BLOCK), BATCH_REPLICAS)
    return [(first, min(size, replicas - first)) for first in range(0, replicas, size)]


def _summed_up(scenario: Scenario, simulated: Scenario, parts: list[Outcomes]) -> Estimate:
    job = scenario.job
    longer = job.duration_s / simulated.job.duration_s

    def all_of(pick: Callable[[Outcomes], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([pick(part) for part in parts])

    def mean(pick: Callable[[Outcomes], NDArray[Any]]) -> float:
        return longer * float(all_of(pick).mean())

    # Work since the last save says nothing about the pace of the run. So if the run is simulated in
    # part, only what was kept when training last went on is extrapolated.
    ettr = (
        all_of(lambda part: part.kept_s * longer + (part.position_s - part.kept_s)) / job.duration_s
    )
    ettr_low, ettr_high = np.quantile(ettr, INTERVAL).tolist()
    interruptions_low, interruptions_high = (
        np.quantile(all_of(lambda part: part.interruptions), INTERVAL) * longer
    ).tolist()

    def seconds_of(cause: Cause) -> float:
        return mean(lambda part: part.seconds[cause])

    def lost_to(index: int) -> float:
        return mean(lambda part: part.lost_s[:, index])

    seconds = {cause: seconds_of(cause) for cause in Cause}
    productive_s = float(ettr.mean()) * job.duration_s
    seconds[Cause.REPEATED] += max(0.0, seconds[Cause.PRODUCTIVE] - productive_s)
    seconds[Cause.PRODUCTIVE] = productive_s
    lost_s = dict.fromkeys((rate.failure_class for rate in scenario.failures), 0.0)
    for index, rate in enumerate(scenario.failures):
        lost_s[rate.failure_class] += lost_to(index)
    interruptions = mean(lambda part: part.interruptions)
    throughput = float(ettr.mean()) * _speed(scenario)
    gpu_hours = (
        (job.gpus + scenario.repair.spare_nodes * job.gpus_per_node) * job.duration_s / HOUR_S
    )
    return Estimate(
        replicas=len(ettr),
        duration_s=job.duration_s,
        simulated_s=simulated.job.duration_s,
        ettr_mean=float(ettr.mean()),
        ettr_mean_se=float(ettr.std(ddof=1)) / math.sqrt(len(ettr)),
        ettr_low=ettr_low,
        ettr_high=ettr_high,
        seconds=seconds,
        lost_s=lost_s,
        wait_s=mean(lambda part: part.wait_s),
        waits=mean(lambda part: part.waits),
        interruptions=interruptions,
        interruptions_low=interruptions_low,
        interruptions_high=interruptions_high,
        mttf_s=_mttf_s(scenario, interruptions),
        throughput=throughput,
        samples_per_day=throughput * job.samples_per_step * DAY_S / job.step_s,
        gpu_hours=gpu_hours,
        money=gpu_hours * job.gpu_hour_price,
        remarks=tuple(_remarks(scenario, simulated, parts)),
    )


def _speed(scenario: Scenario) -> float:
    """Return the mean speed of training, as a share of full speed.

    Throttling follows a sine over the day. The run is slower while there is any straggler. The
    number of stragglers is Poisson, because each node may become one.
    """
    slow = scenario.stragglers
    is_slow = -math.expm1(-scenario.job.nodes * slow.lasts.mean_s / slow.mttf_s)
    return (1 - scenario.job.throttle / 2) * (1 - is_slow * (1 - 1 / slow.slowdown))


def _mttf_s(scenario: Scenario, interruptions: float) -> float:
    """Return the MTTF of the run.

    If no failure struck in the simulation, it follows from the rates. It is inf if nothing fails.
    """
    expected = interruptions or expected_failures(scenario)
    return scenario.job.duration_s / expected if expected else math.inf


def _remarks(scenario: Scenario, simulated: Scenario, parts: list[Outcomes]) -> list[str]:
    remarks = []
    if simulated is not scenario:
        days, of_days = simulated.job.duration_s / DAY_S, scenario.job.duration_s / DAY_S
        remarks.append(
            f"so many failures are expected that only the first {days:.3g} of {of_days:.3g} days"
            " were simulated; the rest is taken to go on as these did, and the interval is that of"
            " so short a run: no narrower than it should be"
        )
        if simulated.job.duration_s < 5 * scenario.repair.time.mean_s:
            remarks.append(
                "that is less than five times as long as a repair takes: fewer nodes were in repair"
                " than will be"
            )
    beyond = sum(int(part.beyond_bound.sum()) for part in parts)
    if beyond:
        remarks.append(
            f"in {beyond} replicas there were more than {simulated.lemons_bound} lemons, which is"
            " the most that is reckoned with"
        )
    return remarks
