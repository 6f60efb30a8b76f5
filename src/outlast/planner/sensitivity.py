"""Find the inputs that the answer is most sensitive to.

Each input is set to the low and the high end of its range, while all others stay as they are.

Ends         If the cluster file gives a range, its ends are taken. For a rate that was counted,
             they are those of its 90 % credible interval. Otherwise they are half and twice the
             value. A duration that varies becomes shorter or longer as a whole. A share ends at 1.
Decisions    Intervals and spares stay as the plan chose them. Only the world differs from the
             assumptions of the plan.
Method       All ends are simulated at known rates, with common random numbers. So a difference is
             far more precise than the ETTR itself.

This module is pure: data in, data out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlast.errors import UsageError
from outlast.model.reliability import rate_interval_per_s
from outlast.model.time_units import DAY_S
from outlast.planner.cluster_file import Cluster, Input, Origin, field_of
from outlast.planner.readers import Value
from outlast.planner.resolve import Resolved, resolve
from outlast.planner.scenario import Scenario
from outlast.planner.schema import SHARE
from outlast.planner.spread import Spread
from outlast.planner.sweep import Mapper, in_order, run_all

ALL_FAILURES = "all failures"
WHY_COUNT, WHY_RANGE, WHY_FACTOR = (
    "90 % interval of its count",
    "its range",
    "half and twice",
)
# These inputs are given by the task or chosen by the plan. They are not uncertain.
NOT_VARIED = (
    "job.gpus",
    "job.duration",
    "job.gpus_per_node",
    "job.nodes_per_rack",
    "job.bytes_per_parameter",
    "job.parameters",
    "job.samples_per_step",
    "repair.spares",
    "money.gpu_hour",
    "throttle.share",
    "power.gpu",
    "power.idle",
    "power.edge",
    "stragglers.mttf",
    "stragglers.slowdown",
    "stragglers.lasts",
)
KEYS_NOT_VARIED = ("interval", "count", "exposure", "shape", "age")
# the inputs that a plan looks at by default
FIRST = (
    ALL_FAILURES,
    "recovery.regroup",
    "recovery.detect",
    "repair.time",
    "job.state",
    "job.step",
)


@dataclass(frozen=True, slots=True)
class EttrSwing:
    """The ETTR with one input at its low end, and with it at its high end.

    `why` says where the ends come from.
    """

    path: str
    value: str
    low: str
    high: str
    why: str
    source: str
    ettr_low: float
    ettr_high: float

    @property
    def width(self) -> float:
        return abs(self.ettr_high - self.ettr_low)

    def facts(self) -> dict[str, Any]:
        return {
            "input": self.path,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "ettr_at_low": self.ettr_low,
            "ettr_at_high": self.ettr_high,
            "swing": self.width,
            "range": self.why,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class _Ends:
    """One input that is varied: its name, both ends as text, and the clusters with these ends."""

    path: str
    value: str
    low: str
    high: str
    why: str
    source: str
    clusters: tuple[Cluster, Cluster]


def tornado(
    resolved: Resolved,
    cluster: Cluster,
    *,
    seed: int,
    replicas: int,
    failures_most: int,
    everything: bool,
    mapper: Mapper = in_order,
) -> tuple[float, tuple[EttrSwing, ...]]:
    """Return the ETTR with nothing changed, and the swings, widest first.

    Swings that change nothing are left out.

    cluster        the cluster from which `resolved` was made
    failures_most  number of failures that are simulated in each replica, at most
    everything     True: vary every input. False: vary only those in FIRST, and the tiers
    """
    pinned = pin(cluster, resolved)
    ends = [
        one
        for one in _ends(pinned, resolved)
        if everything or one.path in FIRST or one.path.startswith("tier.")
    ]
    pairs = [tuple(map(_or_none, end.clusters)) for end in ends]
    scenarios = [resolved.scenario, *(one for pair in pairs for one in pair if one is not None)]
    summaries = run_all(
        scenarios, seed=seed, replicas=replicas, failures_most=failures_most, mapper=mapper
    )
    base, *means = (one.mean for one in summaries)
    results = iter(means)
    swings = []
    for end, pair in zip(ends, pairs, strict=True):
        low, high = (next(results) if scenario is not None else math.nan for scenario in pair)
        swings.append(
            EttrSwing(end.path, end.value, end.low, end.high, end.why, end.source, low, high)
        )
    return base, tuple(sorted((one for one in swings if one.width > 0), key=lambda one: -one.width))


def pin(cluster: Cluster, resolved: Resolved) -> Cluster:
    """Return the cluster in which the values that the plan chose are fixed."""
    for path, one in resolved.inputs.items():
        if one.origin is Origin.PLAN:
            cluster = cluster.put_value(path, one.value, origin=Origin.PLAN, source=one.source)
    return cluster


def _or_none(cluster: Cluster) -> Scenario | None:
    """Return the scenario, or None if it is impossible, such as maintenance that never ends."""
    try:
        return resolve(cluster).scenario
    except UsageError:
        return None


def _ends(cluster: Cluster, resolved: Resolved) -> Iterator[_Ends]:
    yield from _all_failures(cluster, resolved)
    for path, one in resolved.inputs.items():
        key = path.rpartition(".")[2]
        if path in NOT_VARIED or key in KEYS_NOT_VARIED:
            continue
        if path.startswith("failure.") and key == "mttf":
            yield from _rate(cluster, resolved, one)
        elif one.range is not None:
            yield _of(cluster, one, *one.range, WHY_RANGE)
        elif (pair := _half_and_twice(one)) is not None and not _follows(path, resolved):
            yield _of(cluster, one, *pair, WHY_FACTOR)


def _follows(path: str, resolved: Resolved) -> bool:
    """Return True if the input follows from a bandwidth or from the state, which are varied too."""
    return resolved.inputs[path].origin is Origin.WORKED_OUT and path.startswith("tier.")


def _of(cluster: Cluster, one: Input, low: Value, high: Value, why: str) -> _Ends:
    clusters = tuple(_settled(cluster, one.path, value, why) for value in (low, high))
    said = (
        ("half as long", "twice as long")
        if isinstance(low, Spread) and why == WHY_FACTOR
        else (_said(one, low), _said(one, high))
    )
    return _Ends(one.path, one.said, *said, why, one.source, (clusters[0], clusters[1]))


def _said(one: Input, value: Value) -> str:
    """Write an end with three digits, because it is not known better. A long time is in days."""
    short = value
    if isinstance(value, float) and math.isfinite(value):
        size = (
            DAY_S if value > DAY_S and one.path.endswith((".mttf", ".every", ".interval")) else 1.0
        )
        short = float(f"{value / size:.3g}") * size
    return one.reader.say(short).replace('"', "")


def _settled(cluster: Cluster, path: str, value: Value, why: str) -> Cluster:
    """Return the cluster with another value for one input. A rate is taken as known then."""
    head, _, key = path.rpartition(".")
    if head.startswith("failure.") and key == "mttf":
        cluster = cluster.without(f"{head}.count", f"{head}.exposure")
    return cluster.put_value(path, value, origin=Origin.FILE, source=why)


def _half_and_twice(one: Input) -> tuple[Value, Value] | None:
    """Return half and twice the value. Return None for 0, and for a value that is not an amount."""
    value = one.value
    if isinstance(value, Spread):
        return (value.scaled(0.5), value.scaled(2.0)) if value.mean_s > 0 else None
    if isinstance(value, (bool, str, tuple)) or value == 0 or not math.isfinite(value):
        return None
    if field_of(one.path).reader is SHARE:
        return value / 2, min(1.0, value * 2)
    if one.path == "lemons.factor":
        return (max(1.0, value / 2), value * 2) if value > 1 else None
    return value / 2, value * 2


# --- rates ----------------------------------------------------------------------------------------


def _rate(cluster: Cluster, resolved: Resolved, one: Input) -> Iterator[_Ends]:
    name = one.path.split(".")[1]
    value = one.value
    assert isinstance(value, (int, float))
    # If there is only one class, `_all_failures` varies it.
    if not math.isfinite(value) or (len(cluster.failures) == 1 and one.range is None):
        return
    if one.range is not None:
        yield _of(cluster, one, *one.range, WHY_RANGE)
        return
    low, high, why = _factors(_count_of(resolved, name))
    yield _of(cluster, one, value / high, value / low, why)  # the shorter MTTF comes first


def _all_failures(cluster: Cluster, resolved: Resolved) -> Iterator[_Ends]:
    """Yield one input that scales the rates of all failure classes together."""
    mttfs = {
        path: one
        for path, one in resolved.inputs.items()
        if path.startswith("failure.") and path.endswith(".mttf")
    }
    if not mttfs:
        return
    counts = [_count_of(resolved, path.split(".")[1]) for path in mttfs]
    low, high, why = _factors(math.fsum(counts) if all(counts) else 0.0)

    def scaled(factor: float) -> Cluster:
        out = cluster
        for path, one in mttfs.items():
            value = one.value
            assert isinstance(value, (int, float))
            out = _settled(out, path, value * factor, why)
        return out

    said = f"{len(mttfs)} class{'es' if len(mttfs) > 1 else ''}"
    clusters = (scaled(1 / high), scaled(1 / low))
    yield _Ends(
        ALL_FAILURES, said, f"x {high:.3g}", f"x {low:.3g}", why, "the sum of all rates", clusters
    )


def _count_of(resolved: Resolved, name: str) -> float:
    one = resolved.inputs.get(f"failure.{name}.count")
    return float(one.value) if one is not None and isinstance(one.value, (int, float)) else 0.0


def _factors(count: float) -> tuple[float, float, str]:
    """Return the factors for both ends of a rate with this count, and where they come from."""
    if count < 1:
        return 0.5, 2.0, WHY_FACTOR
    low, high = rate_interval_per_s(failures=count, exposure_s=1.0, level=0.9)
    return low / count, high / count, WHY_COUNT
