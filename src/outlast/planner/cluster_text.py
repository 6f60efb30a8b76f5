"""Writing cluster files: a cluster with its sources, and a bare scenario as a ledger's calibration
makes one.

What is written is read back as the same values. Stated defaults are written as comments, so that
who takes the file on sees what it rests on.

This module is pure: data in, text out.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping

from outlast.planner import readers
from outlast.planner.cluster_file import SCHEMA, Cluster, Input, Origin, defaults
from outlast.planner.readers import Value
from outlast.planner.scenario import FailureRate, Scenario, Tier
from outlast.planner.schema import LISTS, TABLES


def render(cluster: Cluster) -> str:
    """TOML that `cluster_file.parse` reads as this cluster: its inputs, and its stated defaults as
    comments.
    """
    lines = [f"schema = {SCHEMA}", f"name = {json.dumps(cluster.name, ensure_ascii=False)}"]
    lines += [f"about = {json.dumps(cluster.about, ensure_ascii=False)}"] if cluster.about else []
    for table in TABLES:
        lines += _table(
            f"[{table}]",
            [
                cluster.inputs[f"{table}.{key}"]
                for key in TABLES[table]
                if f"{table}.{key}" in cluster.inputs
            ],
        )
    for table, names in (("failure", cluster.failures), ("tier", cluster.tiers)):
        for name in names:
            paths = [f"{table}.{name}.{key}" for key in LISTS[table]]
            given = [cluster.inputs[path] for path in paths if path in cluster.inputs]
            lines += _table(f"[[{table}]]", given, name=name)
    return "\n".join(lines) + "\n"


def _table(head: str, inputs: list[Input], *, name: str = "") -> list[str]:
    said = [one for one in inputs if one.origin is not Origin.DEFAULT or (name and _needed(one))]
    lines = ["", head, *([f"name = {json.dumps(name)}"] if name else [])]
    lines += [f"{_key(one)} = {one.reader.say(one.value)}" for one in said]
    lines += [
        f"# {_key(one)} = {one.reader.say(one.value)}  # {one.source}"
        for one in inputs
        if one not in said
    ]
    usual = Counter(one.source for one in said).most_common(1)
    lines += [f"source = {_quoted(usual[0][0])}"] if usual else []
    lines += _inline(
        "sources", [(_key(one), _quoted(one.source)) for one in said if one.source != usual[0][0]]
    )
    ranges = [
        (_key(one), f"[{one.reader.say(one.range[0])}, {one.reader.say(one.range[1])}]")
        for one in said
        if one.range is not None
    ]
    return lines + _inline("ranges", ranges) if said or name else ["", f"# {head}", *lines[2:]]


def _needed(one: Input) -> bool:
    """Of a stated default in a list, so that the list is not empty when it is read back."""
    return _key(one) in ("mttf", "count", "exposure", "bandwidth", "survives", "stall", "write")


def _inline(key: str, pairs: list[tuple[str, str]]) -> list[str]:
    return (
        [f"{key} = {{ {', '.join(f'{name} = {value}' for name, value in pairs)} }}"]
        if pairs
        else []
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(one: Input) -> str:
    return one.path.rpartition(".")[2]


# --- a scenario as a cluster ----------------------------------------------------------------------


def of_scenario(
    scenario: Scenario,
    *,
    about: str = "",
    source: str = "",
    origin: Origin = Origin.FILE,
    sources: Mapping[str, str] | None = None,
) -> Cluster:
    """A cluster of all that a scenario says.

    source   of what names no source itself; `sources`: of one input, by its path.
    """
    said, cluster = sources or {}, defaults()
    inputs: dict[str, Input] = {
        path: one
        for path, one in cluster.inputs.items()
        if not path.startswith(("failure.", "tier."))
    }

    def put(path: str, value: Value, usual: str = "") -> None:
        inputs[path] = Input(path, value, origin, said.get(path, usual or source))

    for path, value, usual in _once(scenario):
        put(path, value, usual)
    names = _names(rate.failure_class.value for rate in scenario.failures)
    for name, rate in zip(names, scenario.failures, strict=True):
        for key, value in _failure(rate).items():
            put(f"failure.{name}.{key}", value, rate.source)
    for tier in scenario.tiers:
        for key, value in _tier(tier).items():
            put(f"tier.{tier.name}.{key}", value, tier.source)
    return Cluster(scenario.name, about, inputs, names, tuple(tier.name for tier in scenario.tiers))


def _names(classes: Iterable[str]) -> tuple[str, ...]:
    """`gpu`, `gpu-2`: one for each."""
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


def _tier(tier: Tier) -> dict[str, Value]:
    interval: Value = tier.interval_s if not math.isnan(tier.interval_s) else readers.AUTO
    return {
        "interval": interval,
        "survives": tier.survives.name.lower(),
        "stall": tier.stall_s,
        "write": tier.write_s,
        "blocking": False,
        "restore": tier.restore,
    }
