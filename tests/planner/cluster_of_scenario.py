"""Turn a scenario into a cluster file, so that tests can write any scenario and read it back."""

from __future__ import annotations

import math
from collections.abc import Iterable

from outlast.planner import readers
from outlast.planner.cluster_file import Cluster, Input, Origin, defaults
from outlast.planner.readers import Value
from outlast.planner.scenario import FailureRate, Scenario, ScenarioTier


def of_scenario(scenario: Scenario, *, source: str = "") -> Cluster:
    """Return a cluster with all inputs of a scenario.

    source  the source of inputs that name no source themselves
    """
    cluster = defaults()
    inputs: dict[str, Input] = {
        path: one
        for path, one in cluster.inputs.items()
        if not path.startswith(("failure.", "tier."))
    }

    def put(path: str, value: Value, usual: str = "") -> None:
        inputs[path] = Input(path, value, Origin.FILE, usual or source)

    for path, value, usual in _once(scenario):
        put(path, value, usual)
    names = _names(rate.failure_class.value for rate in scenario.failures)
    for name, rate in zip(names, scenario.failures, strict=True):
        for key, value in _failure(rate).items():
            put(f"failure.{name}.{key}", value, rate.source)
    for tier in scenario.tiers:
        for key, value in _tier(tier).items():
            put(f"tier.{tier.name}.{key}", value, tier.source)
    return Cluster(scenario.name, "", inputs, names, tuple(tier.name for tier in scenario.tiers))


def _names(classes: Iterable[str]) -> tuple[str, ...]:
    """Return a name for each class. The second `gpu` is `gpu-2`."""
    seen: dict[str, int] = {}
    out = []
    for one in classes:
        seen[one] = seen.get(one, 0) + 1
        out.append(one if seen[one] == 1 else f"{one}-{seen[one]}")
    return tuple(out)


def _once(scenario: Scenario) -> Iterable[tuple[str, Value, str]]:
    job, recovery, repair = scenario.job, scenario.recovery, scenario.repair
    lemons, stragglers, maintenance = scenario.lemons, scenario.stragglers, scenario.maintenance
    yield from (
        ("job.gpus", job.gpus, ""),
        ("job.duration", job.duration_s, ""),
        ("job.gpus_per_node", job.gpus_per_node, ""),
        ("job.nodes_per_rack", job.nodes_per_rack, ""),
        ("job.step", job.step_s, ""),
        ("job.samples_per_step", job.samples_per_step, ""),
        ("recovery.detect", recovery.detect, recovery.source),
        ("recovery.regroup", recovery.regroup, recovery.source),
        ("recovery.take", recovery.take, recovery.source),
        ("recovery.shrinks", recovery.shrinks, recovery.source),
        ("repair.spares", repair.spare_nodes, repair.source),
        ("repair.time", repair.time, repair.source),
        ("repair.wrong", repair.wrong, repair.source),
        ("repair.missed", repair.missed, repair.source),
        ("lemons.share", lemons.share, lemons.source),
        ("lemons.factor", lemons.factor, lemons.source),
        ("lemons.caught", lemons.caught, lemons.source),
        ("stragglers.mttf", stragglers.mttf_s, stragglers.source),
        ("stragglers.slowdown", stragglers.slowdown, stragglers.source),
        ("stragglers.lasts", stragglers.lasts, stragglers.source),
        ("maintenance.every", maintenance.every_s, maintenance.source),
        ("maintenance.lasts", maintenance.lasts_s, maintenance.source),
        ("throttle.share", job.throttle, ""),
    )
    if job.state_bytes:
        yield "job.state", job.state_bytes, ""
    if job.gpu_hour_price:
        yield "money.gpu_hour", job.gpu_hour_price, ""


def _failure(rate: FailureRate) -> dict[str, Value]:
    out: dict[str, Value] = {
        "class": rate.failure_class.value,
        "unit": rate.unit.name.lower(),
        "extent": rate.extent.name.lower(),
        "shape": rate.shape,
        "age": rate.age_s,
        "mttf": rate.mttf_s,
        "count": rate.count,
    }
    return out | ({"waves": rate.waves} if rate.waves else {})


def _tier(tier: ScenarioTier) -> dict[str, Value]:
    interval: Value = tier.interval_s if not math.isnan(tier.interval_s) else readers.AUTO
    return {
        "interval": interval,
        "survives": tier.survives.name.lower(),
        "stall": tier.stall_s,
        "write": tier.write_s,
        "blocking": False,
        "restore": tier.restore,
    }
