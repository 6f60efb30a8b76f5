"""Make a scenario from a cluster.

This module calculates the values that follow from the given ones, and chooses those that are
`auto`. Each value has its reason.

Intervals  Each tier gets the interval that is exact for a single tier under Daly's cost, for the
           failures that no cheaper tier survives.
Spares     As many spare nodes as it takes to replace every lost node at 99.9 % of all moments. The
           number of nodes in repair is taken as Poisson, and its mean is the number of losses in
           the time of one repair.
Limits     Both are closed forms, for a constant rate and for any number of repairs at a time.
           `optimise.py` searches in simulation instead.

This module is pure: data in, data out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from outlast.model import intervals, reliability
from outlast.model.quantities import QuantityKind, echo
from outlast.model.terms import FailureClass
from outlast.model.time_units import DAY_S
from outlast.planner.cluster_file import Cluster, Input, Origin
from outlast.planner.readers import AUTO, Value, redundancy_numbers
from outlast.planner.scenario import (
    Extent,
    FailureRate,
    Job,
    Lemons,
    Maintenance,
    Recovery,
    Repair,
    Scenario,
    ScenarioTier,
    Stragglers,
    Unit,
)
from outlast.planner.spread import Spread, constant

SPARE_CONFIDENCE = 0.999
INTERVAL_MOST_S = DAY_S
ALMOST_NONE_COUNT = 1e-9  # stands for a count of 0 failures


@dataclass(frozen=True, slots=True)
class Resolved:
    """A scenario, and all inputs by path, including those that were calculated or chosen."""

    scenario: Scenario
    inputs: dict[str, Input]

    def note(self, path: str, value: Value, origin: Origin, why: str) -> None:
        """Record an input that was calculated or chosen, and why."""
        self.inputs[path] = Input(path, value, origin, why)


@dataclass(frozen=True, slots=True)
class _Working:
    """The inputs of a cluster, to which the missing ones are added."""

    cluster: Cluster
    inputs: dict[str, Input] = field(default_factory=dict)

    def value(self, path: str) -> Value | None:
        return self.inputs[path].value if path in self.inputs else None

    def number(self, path: str) -> float:
        value = self.inputs[path].value
        assert isinstance(value, (int, float)), path
        return float(value)

    def spread(self, path: str) -> Spread:
        value = self.inputs[path].value
        assert isinstance(value, Spread), path
        return value

    def text(self, path: str) -> str:
        return str(self.inputs[path].value)

    def work_out(
        self, path: str, value: Callable[[], Value], why: str, *, origin: Origin = Origin.WORKED_OUT
    ) -> None:
        """Set an input, unless it is given."""
        if self.value(path) in (None, AUTO):
            self.inputs[path] = Input(path, value(), origin, why)


def resolve(cluster: Cluster) -> Resolved:
    """Return the scenario of a cluster. Raises UsageError if the inputs allow none."""
    working = _Working(cluster, dict(cluster.inputs))
    job = _job(working)
    failures = tuple(_failure(working, name) for name in cluster.failures)
    recovery = Recovery(
        detect=working.spread("recovery.detect"),
        regroup=working.spread("recovery.regroup"),
        take=working.spread("recovery.take"),
        shrinks=bool(working.value("recovery.shrinks")),
        source=working.inputs["recovery.regroup"].source,
    )
    scenario = Scenario(
        name=cluster.name,
        job=job,
        failures=failures,
        tiers=_tiers(working, job, failures),
        recovery=recovery,
        repair=_repair(working, job, failures),
        lemons=_lemons(working),
        stragglers=_stragglers(working),
        maintenance=Maintenance(
            working.number("maintenance.every"),
            working.number("maintenance.lasts"),
            working.inputs["maintenance.every"].source,
        ),
    )
    return Resolved(scenario, working.inputs)


def _job(working: _Working) -> Job:
    working.work_out(
        "job.state",
        lambda: working.number("job.parameters") * working.number("job.bytes_per_parameter"),
        "parameters x bytes per parameter",
    )
    return Job(
        gpus=int(working.number("job.gpus")),
        duration_s=working.number("job.duration"),
        gpus_per_node=int(working.number("job.gpus_per_node")),
        nodes_per_rack=int(working.number("job.nodes_per_rack")),
        step_s=working.number("job.step"),
        state_bytes=working.number("job.state"),
        throttle=working.number("throttle.share"),
        samples_per_step=working.number("job.samples_per_step"),
        gpu_hour_price=(
            working.number("money.gpu_hour") if working.value("money.gpu_hour") is not None else 0.0
        ),
    )


def _failure(working: _Working, name: str) -> FailureRate:
    path = f"failure.{name}"
    count = working.number(f"{path}.count") if working.value(f"{path}.count") is not None else 0.0
    if working.value(f"{path}.exposure") is not None:
        exposure_s = working.number(f"{path}.exposure")
        # If no failure was seen, the rate is not zero: it is drawn from the posterior
        # Gamma(1/2, exposure).
        seen = max(count, ALMOST_NONE_COUNT)
        working.work_out(
            f"{path}.mttf",
            lambda: exposure_s / seen,
            "exposure / count"
            if count
            else f"none seen in {echo(exposure_s, QuantityKind.DURATION)}",
        )
        count = seen
    waves = working.value(f"{path}.waves") or ()
    assert isinstance(waves, tuple)
    return FailureRate(
        failure_class=FailureClass(working.text(f"{path}.class")),
        unit=Unit[working.text(f"{path}.unit").upper()],
        extent=Extent[working.text(f"{path}.extent").upper()],
        mttf_s=working.number(f"{path}.mttf"),
        shape=working.number(f"{path}.shape"),
        age_s=working.number(f"{path}.age"),
        count=count,
        waves=waves,
        source=working.inputs[f"{path}.mttf"].source,
    )


def _lemons(working: _Working) -> Lemons:
    share, factor, caught = (
        working.number(f"lemons.{key}") for key in ("share", "factor", "caught")
    )
    return Lemons(share, factor, caught, working.inputs["lemons.share"].source)


def _stragglers(working: _Working) -> Stragglers:
    return Stragglers(
        working.number("stragglers.mttf"),
        working.number("stragglers.slowdown"),
        working.spread("stragglers.lasts"),
        working.inputs["stragglers.mttf"].source,
    )


# --- rates ----------------------------------------------------------------------------------------


def rate_per_s(rate: FailureRate, job: Job) -> float:
    """Return the failures of this class per second in the whole run.

    The result is the mean over the run. It includes waves and the change with age. If no failure of
    the class was seen, it is the mean of the posterior rate: half a failure in the exposure.
    """
    if not math.isfinite(rate.mttf_s):
        return 0.0
    rate = with_known_rate(rate)
    edges = sorted(
        {
            0.0,
            job.duration_s,
            *(
                edge
                for wave in rate.waves
                for edge in (wave.begins_s, wave.ends_s)
                if 0 < edge < job.duration_s
            ),
        }
    )
    grown = [
        _grown(rate.age_s + begin_s, rate.age_s + end_s, rate)
        * math.prod(one.factor for one in rate.waves if one.begins_s <= begin_s < one.ends_s)
        for begin_s, end_s in itertools.pairwise(edges)
    ]
    return job.units(rate.unit) * math.fsum(grown) / job.duration_s


def with_known_rate(rate: FailureRate) -> FailureRate:
    """Return the rate as a known one.

    For a class that was never seen, this is the mean of its posterior.
    """
    if not 0 < rate.count < 1:
        return rate
    return replace(
        rate, mttf_s=rate.mttf_s * rate.count / (rate.count + reliability.JEFFREYS_COUNT), count=0.0
    )


def _grown(begin_s: float, end_s: float, rate: FailureRate) -> float:
    """Return (end/scale)^shape - (begin/scale)^shape; at most e^600."""
    if rate.shape == 1:
        return (end_s - begin_s) / rate.mttf_s
    at_end = math.exp(min(600.0, rate.shape * math.log(end_s / rate.mttf_s)))
    return at_end - (
        math.exp(min(600.0, rate.shape * math.log(begin_s / rate.mttf_s))) if begin_s else 0.0
    )


def rates_by_extent(failures: tuple[FailureRate, ...], job: Job) -> dict[Extent, float]:
    """Return the failures per second of the whole job, by extent."""
    return {
        extent: math.fsum(rate_per_s(one, job) for one in failures if one.extent is extent)
        for extent in Extent
    }


# --- tiers ----------------------------------------------------------------------------------------


def _tiers(
    working: _Working, job: Job, failures: tuple[FailureRate, ...]
) -> tuple[ScenarioTier, ...]:
    half_done = [_tier(working, name, job) for name in working.cluster.tiers]
    rates = rates_by_extent(failures, job)
    return tuple(_with_interval(working, tier, half_done, rates, job) for tier in half_done)


def _tier(working: _Working, name: str, job: Job) -> ScenarioTier:
    """Return the tier. Its interval is NaN if the plan has to choose it."""
    path = f"tier.{name}"
    traffic = _traffic(working, path)
    working.work_out(
        f"{path}.survives",
        lambda: _survives(working, path),
        (
            "the places of its copies decide it"
            if traffic != 1 or working.value(f"{path}.redundancy")
            else "it is kept outside the nodes"
        ),
    )
    seconds = _write_s(working, path, job) * traffic
    if working.value(f"{path}.blocking") and not math.isnan(seconds):
        working.work_out(
            f"{path}.stall", lambda: seconds, "state / bandwidth; training waits for the write"
        )
        working.work_out(f"{path}.write", lambda: 0.0, "training has waited for it")
    working.work_out(f"{path}.stall", lambda: 0.0, "the save overlaps training; no stall is given")
    working.work_out(
        f"{path}.write", lambda: 0.0 if math.isnan(seconds) else seconds, "state / bandwidth"
    )
    stall_s, write_s = working.number(f"{path}.stall"), working.number(f"{path}.write")
    back_s = stall_s + write_s if math.isnan(seconds) else seconds / traffic
    working.work_out(
        f"{path}.restore",
        lambda: constant(back_s),
        "as long as the save takes" if math.isnan(seconds) else "state / bandwidth, read back",
    )
    interval = working.value(f"{path}.interval")
    return ScenarioTier(
        name=name,
        interval_s=math.nan if interval == AUTO else working.number(f"{path}.interval"),
        stall_s=stall_s,
        write_s=write_s,
        survives=Extent[working.text(f"{path}.survives").upper()],
        restore=working.spread(f"{path}.restore"),
        source=working.inputs[
            f"{path}.bandwidth" if f"{path}.bandwidth" in working.inputs else f"{path}.stall"
        ].source,
    )


def _write_s(working: _Working, path: str, job: Job) -> float:
    """Return how long it takes to write the state once; NaN if no bandwidth is given."""
    if working.value(f"{path}.bandwidth") is not None:
        return job.state_bytes / working.number(f"{path}.bandwidth")
    if working.value(f"{path}.bandwidth_per_gpu") is not None:
        return job.state_bytes / (working.number(f"{path}.bandwidth_per_gpu") * job.gpus)
    return math.nan


def _traffic(working: _Working, path: str) -> float:
    """Return how often the state crosses the network in a save.

    That is once for each copy. With k shares of data and m of parity it is (k + m - 1) / k, because
    each share is sent to its group.
    """
    redundancy = working.value(f"{path}.redundancy")
    if redundancy is None:
        return 1.0
    copies, k, m = redundancy_numbers(str(redundancy))
    return float(copies) if copies else (k + m - 1) / k if k else 1.0


def _survives(working: _Working, path: str) -> str:
    redundancy = working.value(f"{path}.redundancy")
    if redundancy is None:
        return "run"
    if redundancy == "none":
        return "process"
    return "rack" if working.text(f"{path}.apart") == "rack" else "node"


def _with_interval(
    working: _Working,
    tier: ScenarioTier,
    tiers: list[ScenarioTier],
    rates: dict[Extent, float],
    job: Job,
) -> ScenarioTier:
    if not math.isnan(tier.interval_s):
        return tier
    interval_s, why = chosen_interval_s(tier, tiers, rates, step_s=job.step_s)
    working.inputs[f"tier.{tier.name}.interval"] = Input(
        f"tier.{tier.name}.interval", interval_s, Origin.PLAN, why
    )
    return replace(tier, interval_s=interval_s)


def chosen_interval_s(
    tier: ScenarioTier, tiers: list[ScenarioTier], rates: dict[Extent, float], *, step_s: float
) -> tuple[float, str]:
    """Return the interval for the failures that need this tier, and the reason.

    `rates` holds failures per second by extent.
    """
    cheaper = [
        other.survives
        for other in tiers
        if other.survives < tier.survives and other.interval_s != math.inf
    ]
    served = [
        extent for extent in Extent if extent <= tier.survives and extent > max(cheaper, default=-1)
    ]
    rate = math.fsum(rates[extent] for extent in served)
    words = f"failures of {' or '.join(extent.name.lower() for extent in served)}"
    if rate == 0:
        return INTERVAL_MOST_S, f"no {words} are expected; one save a day is kept all the same"
    mttf_s = 1 / rate
    if tier.stall_s == 0:
        interval_s = min(INTERVAL_MOST_S, max(step_s, tier.write_s))
        return (
            _in_steps_s(interval_s, step_s),
            f"a save stalls nothing, so it is made as often as it can be written; for {words}",
        )
    best_s = intervals.best_s(tier.stall_s, mttf_s)
    why = (
        f"costs least (exact for Daly's cost) for {words}, one each"
        f" {echo(round(mttf_s), QuantityKind.DURATION)}"
    )
    return _in_steps_s(min(INTERVAL_MOST_S, max(best_s, tier.write_s)), step_s), why


def _in_steps_s(interval_s: float, step_s: float) -> float:
    return max(1.0, math.floor(interval_s / step_s + 0.5)) * step_s


# --- spares ---------------------------------------------------------------------------------------


def _repair(working: _Working, job: Job, failures: tuple[FailureRate, ...]) -> Repair:
    time = working.spread("repair.time")
    wrong = working.number("repair.wrong")
    losses = {Extent.NODE: 1 + wrong, Extent.RACK: min(job.nodes, job.nodes_per_rack)}
    down_mean = (
        math.fsum(rate_per_s(one, job) * losses.get(one.extent, 0) for one in failures)
        * time.mean_s
    )
    chosen = _spares(down_mean, job.nodes)
    enough = (
        f"{SPARE_CONFIDENCE:.1%} of the time there is a spare for every lost node"
        if chosen < job.nodes
        else "as many as nodes, which may not suffice"
    )
    working.work_out(
        "repair.spares",
        lambda: chosen,
        f"{enough}; on average {down_mean:,.1f} nodes are in repair",
        origin=Origin.PLAN,
    )
    return Repair(
        spare_nodes=int(working.number("repair.spares")),
        time=time,
        wrong=wrong,
        missed=working.number("repair.missed"),
        source=working.inputs["repair.time"].source,
    )


def _spares(down_mean: float, nodes: int) -> int:
    """Return how many spares suffice. It is never more than there are nodes."""
    return (
        nodes
        if down_mean >= nodes
        else min(
            nodes, reliability.spares_poisson(down_mean=down_mean, availability=SPARE_CONFIDENCE)
        )
    )
