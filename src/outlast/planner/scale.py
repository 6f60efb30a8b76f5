"""Calculate how far a run can grow.

For each size, the answer has the ETTR and what limits the run. For each named assumption, it has
the largest number of GPUs.

Rows     Each size is simulated twice: with the model as it is, and with a model that grows with the
         cluster (parameters ~ sqrt(GPUs), Chinchilla, from the given size on). Intervals are chosen
         again at each size. So are the spares, if they were not given as a number (Poisson, enough
         at 99.9 % of all moments). Storage keeps its bandwidth, and a bandwidth per GPU grows with
         the GPUs. For comparison, each row has Daly's exact efficiency with the same numbers.
Windows  If many failures are expected, only a part of the run with 300 failures is simulated
         (`sweep.window`). With many GPUs, this part is far shorter than a repair. Then the run gets
         all the spares that it needs, and `lacking` is the share of moments at which its own spares
         would not suffice (Poisson).
Caps     At a cap, the mean time between failures is as short as one save (`model/scaling.py`), so
         progress is 0. The usable sizes are `at 90 % ETTR` and `at 50 % ETTR`. They include the
         time of restarts.

This module is pure: data in, data out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outlast.model import intervals, scaling
from outlast.planner.cluster_file import Cluster, Origin
from outlast.planner.readers import AUTO
from outlast.planner.resolve import rate_per_s, resolve
from outlast.planner.scenario import Scenario, ScenarioTier
from outlast.planner.sweep import REPAIRS_LEAST, Mapper, Summary, Term, in_order, run_all, window

PER_DECADE = 2
FAILURES_MOST = 300
GPU_BANDWIDTH = 50e9  # bytes per second: a 400 Gb/s link
HOP_S = 1e-6
USABLE = (0.9, 0.5)


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """The results at one size.

    ettr           simulated ETTR with the model as it is
    ettr_growing   simulated ETTR with a model that grows with the cluster
    ettr_formula   Daly's exact efficiency, for comparison with `ettr`
    """

    gpus: int
    mttf_s: float
    save_s: float
    interval_s: dict[str, float]
    ettr: float
    ettr_se: float
    ettr_formula: float
    ettr_growing: float
    ettr_growing_se: float
    spares: int
    binding: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A row for each size, and the largest number of GPUs under each assumption."""

    rows: tuple[ScaleRow, ...]
    max_gpus: dict[str, float]

    def facts(self) -> dict[str, Any]:
        return {
            "scale": [asdict(one) for one in self.rows],
            "max_gpus": {
                name: gpus if math.isfinite(gpus) else None for name, gpus in self.max_gpus.items()
            },
        }


def grid(low: float, high: float) -> tuple[int, ...]:
    """Return the sizes 1 and 3 of each decade between `low` and `high`, and both ends."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    inside = [
        factor * 10.0**power
        for power in range(first, last + 1)
        for factor in (1, 3)
        if low < factor * 10.0**power < high
    ]
    return tuple(sorted({round(low), *map(round, inside), round(high)}))


def scale(
    cluster: Cluster, sizes: Sequence[int], *, seed: int, replicas: int, mapper: Mapper = in_order
) -> Scale:
    """Return rows for these numbers of GPUs, in their order."""
    both = [_sized(cluster, gpus, growing=growing) for gpus in sizes for growing in (False, True)]
    scenarios = [resolve(one).scenario for one in both]
    summaries = run_all(
        list(map(_with_enough_spares, scenarios)),
        seed=seed,
        replicas=replicas,
        failures_most=FAILURES_MOST,
        mapper=mapper,
    )
    rows = [
        _row(scenario, fixed, growing)
        for scenario, fixed, growing in zip(
            scenarios[::2], summaries[::2], summaries[1::2], strict=True
        )
    ]
    return Scale(tuple(rows), max_gpus(cluster))


def _sized(cluster: Cluster, gpus: int, *, growing: bool) -> Cluster:
    base = resolve(cluster)
    out = cluster.put_value("job.gpus", gpus, origin=Origin.FLAG, source="--scale")
    for name in cluster.tiers:
        out = (
            out.put(f"tier.{name}.interval", AUTO, origin=Origin.PLAN, source="chosen at each size")
            if _is_chosen(cluster, name)
            else out
        )
    out = out.put(
        "repair.spares", AUTO, origin=Origin.PLAN, source="as many as it needs at each size"
    )
    if not growing:
        return out
    factor = math.sqrt(gpus / base.scenario.job.gpus)
    out = out.put_value(
        "job.state",
        base.scenario.job.state_bytes * factor,
        origin=Origin.FLAG,
        source="grows with the square root of the GPUs",
    )
    for name in cluster.tiers:  # durations that were given as numbers grow with the state
        for key in ("stall", "write"):
            path = f"tier.{name}.{key}"
            if (
                path in cluster.inputs
                and f"tier.{name}.bandwidth" not in cluster.inputs
                and f"tier.{name}.bandwidth_per_gpu" not in cluster.inputs
            ):
                out = out.put_value(
                    path,
                    cluster.value(path) * factor,
                    origin=Origin.FLAG,
                    source="grows with the state",
                )
    return out


def _is_chosen(cluster: Cluster, name: str) -> bool:
    one = cluster.inputs[f"tier.{name}.interval"]
    return one.value == AUTO or one.origin in (Origin.PLAN, Origin.PRESET)


def _with_enough_spares(scenario: Scenario) -> Scenario:
    """Give the scenario enough spares if the simulated part is too short for a repair.

    Then no node is ever lacking in that part.
    """
    part = window(scenario, FAILURES_MOST)
    if part is scenario or part.job.duration_s >= REPAIRS_LEAST * scenario.repair.time.mean_s:
        return scenario
    return replace(scenario, repair=replace(scenario.repair, spare_nodes=scenario.job.nodes))


def _row(scenario: Scenario, fixed: Summary, growing: Summary) -> ScaleRow:
    mttf_s = mttf_of(scenario)
    tier = durable(scenario)
    job = scenario.job
    restart_s = (
        scenario.recovery.detect.mean_s
        + scenario.recovery.regroup.mean_s
        + scenario.recovery.take.mean_s
        + tier.restore.mean_s
    )
    return ScaleRow(
        gpus=job.gpus,
        mttf_s=mttf_s,
        save_s=tier.stall_s + tier.write_s,
        interval_s={one.name: scenario.interval_s(one) for one in scenario.tiers},
        ettr=fixed.mean,
        ettr_se=fixed.mean_se,
        ettr_formula=intervals.best_efficiency(tier.stall_s, mttf_s, restart_s),
        ettr_growing=growing.mean,
        ettr_growing_se=growing.mean_se,
        spares=scenario.repair.spare_nodes,
        binding=binding_of(fixed.shares),
    )


def mttf_of(scenario: Scenario) -> float:
    """Return the MTTF of the whole run; inf if nothing fails."""
    per_s = math.fsum(rate_per_s(rate, scenario.job) for rate in scenario.failures)
    return 1 / per_s if per_s else math.inf


def durable(scenario: Scenario) -> ScenarioTier:
    """Return the tier in use that survives the largest failures; if there are several, the last."""
    in_use = [tier for tier in scenario.tiers if math.isfinite(tier.interval_s)] or list(
        scenario.tiers
    )
    return max(reversed(in_use), key=lambda tier: tier.survives)


def binding_of(shares: dict[Term, float]) -> str:
    """Return the name of the term that takes the most time; "nothing" if none takes any."""
    most = max(shares, key=lambda term: shares[term], default=None)
    return most.value if most is not None and shares[most] > 0 else "nothing"


# --- caps -----------------------------------------------------------------------------------------


def max_gpus(cluster: Cluster) -> dict[str, float]:
    """Return the largest number of GPUs under each assumption; inf if there is no cap below 1e40.

    Failures come at the mean rate of one GPU, with all classes together.
    """
    scenario = resolve(cluster).scenario
    job = scenario.job
    mttf_s = mttf_of(scenario)
    if not math.isfinite(mttf_s) or not job.state_bytes:
        return {}
    unit_mttf_s = mttf_s * job.gpus
    storage = scaling.constant_storage(_storage_bandwidth(scenario))
    fixed, growing = (
        scaling.fixed_model(job.state_bytes),
        scaling.chinchilla(job.state_bytes, job.gpus),
    )
    restart_s = (
        scenario.recovery.detect.mean_s
        + scenario.recovery.regroup.mean_s
        + scenario.recovery.take.mean_s
    )
    out = {
        f"ETTR {share:.0%}, {growth.name}": scaling.gpus_at_efficiency(
            share, unit_mttf_s=unit_mttf_s, growth=growth, network=storage, restart_s=restart_s
        )
        for growth in (fixed, growing)
        for share in USABLE
    }
    out |= {
        f"storage as it is, {growth.name}": scaling.cap_gpus(unit_mttf_s, growth, storage)
        for growth in (fixed, growing)
    }
    networks = [
        scaling.torus(2, GPU_BANDWIDTH),
        scaling.torus(3, GPU_BANDWIDTH),
        scaling.full_bisection(GPU_BANDWIDTH),
    ]
    networks += [
        scaling.full_bisection(GPU_BANDWIDTH).with_latency(kind, HOP_S)
        for kind in (scaling.Latency.RING, scaling.Latency.TREE)
    ]
    for network in networks:
        out |= {
            f"memory of peers, {network.name}, {growth.name}": scaling.cap_gpus(
                unit_mttf_s, growth, network
            )
            for growth in (fixed, growing)
        }
    return out


def _storage_bandwidth(scenario: Scenario) -> float:
    """Return the bandwidth at which the durable tier saves the state."""
    tier = durable(scenario)
    seconds = tier.stall_s + tier.write_s
    return scenario.job.state_bytes / seconds if seconds else math.inf
