"""The inputs of `outlast plan`: defaults, then a preset, a ledger or a cluster file, then flags.

Later ones override earlier ones. Each value keeps its source.

A flag is a short name of an input, or of several: `--restart 5min` is `--set
recovery.regroup=5min`, and leaves detection at 0 s.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping

from outlast.errors import UsageError
from outlast.model import quantities
from outlast.model.quantities import QuantityKind
from outlast.planner.cluster_file import Cluster, Origin, defaults, parse
from outlast.planner.resolve import rate_per_s, resolve
from outlast.runtime import shipped
from outlast.runtime.folders.given import read_text

PRESETS = ("outlast.planner", "presets", ".toml")
# flag -> the one input that it is a short name of
SHORT: Mapping[str, str] = {
    "gpus": "job.gpus",
    "gpus_per_node": "job.gpus_per_node",
    "nodes_per_rack": "job.nodes_per_rack",
    "step": "job.step",
    "detect": "recovery.detect",
    "take": "recovery.take",
    "repair": "repair.time",
    "spares": "repair.spares",
    "price": "money.gpu_hour",
}


def cluster_of(args: argparse.Namespace) -> Cluster:
    """Return the cluster that the flags describe.

    Raises UsageError for several bases, an input that does not exist, or a value that cannot be
    read.
    """
    given = [name for name in ("preset", "cluster", "ledger") if getattr(args, name) is not None]
    if len(given) > 1:
        raise UsageError(
            f"--{given[0]} and --{given[1]} both say what to begin with",
            hint="take one, and change it by flags or --set",
        )
    return _with_flags(_base(args), args)


def preset(name: str) -> Cluster:
    """Return the cluster of a preset. Raises UsageError if there is none of that name."""
    package, folder, suffix = PRESETS
    return parse(
        shipped.text(package, folder, name, suffix, what="preset"),
        source=f"the preset {name}",
        origin=Origin.PRESET,
    )


def _base(args: argparse.Namespace) -> Cluster:
    if args.preset is not None:
        return preset(args.preset)
    if args.cluster is not None:
        return parse(read_text(args.cluster), source=args.cluster)
    return defaults() if args.ledger is None else _of_ledger(args.ledger)


def _of_ledger(run: str) -> Cluster:
    """Return the cluster that `outlast calibrate RUN --out` would write.

    Raises UsageError where no step was ever committed.
    """
    from outlast.planner.fit.calibration import calibrate
    from outlast.planner.fit.cluster import cluster_of
    from outlast.planner.fit.ledgers import booked, observe
    from outlast.planner.fit.phases import phases_of
    from outlast.runtime.ledger.view import look

    view = look(run)
    record = observe(view.records, now_s=view.now_s, source=view.path.name)
    one = calibrate(
        [record], phases=phases_of([view.records]), booked=[booked(view.records, now_s=view.now_s)]
    )
    return cluster_of(one, name=view.path.name)


def _with_flags(cluster: Cluster, args: argparse.Namespace) -> Cluster:
    for name, path in SHORT.items():
        value = getattr(args, name)
        if value is not None:
            cluster = cluster.put(
                path, value, origin=Origin.FLAG, source=_flag(name), name=_flag(name)
            )
    for name, change in CHANGES.items():
        value = getattr(args, name)
        if value is not None:
            cluster = change(cluster, value)
    for text in args.set or ():
        path, equals, value = text.partition("=")
        if not equals:
            raise UsageError(
                f"--set {text!r} sets nothing", hint="as in --set tier.storage.stall=2s"
            )
        cluster = _settle(
            cluster.put(path.strip(), value.strip(), origin=Origin.FLAG, source="--set"),
            path.strip(),
        )
    return cluster


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# --- flags that are more than one input -----------------------------------------------------------


def _days(cluster: Cluster, text: str) -> Cluster:
    """Read a bare number of days, or a duration with its unit."""
    given = f"{text}d" if re.fullmatch(r"[0-9.]+(e[0-9]+)?", text) else text
    return cluster.put("job.duration", given, origin=Origin.FLAG, source="--days", name="--days")


def _params(cluster: Cluster, text: str) -> Cluster:
    return _settle(
        cluster.put("job.parameters", text, origin=Origin.FLAG, source="--params", name="--params"),
        "job.parameters",
    )


def _settle(cluster: Cluster, path: str) -> Cluster:
    """Remove the inputs that `path`, which is given now, replaces.

    They were computed from it, or are the same quantity in another form.
    """
    if path in ("job.parameters", "job.bytes_per_parameter"):
        return cluster.without("job.state")
    head, _, key = path.rpartition(".")
    if head.startswith("tier.") and key in ("bandwidth", "bandwidth_per_gpu"):
        other = "bandwidth_per_gpu" if key == "bandwidth" else "bandwidth"
        return cluster.without(*(f"{head}.{one}" for one in (other, "stall", "write", "restore")))
    if head.startswith("failure.") and key == "mttf":
        return cluster.without(f"{head}.count", f"{head}.exposure")
    return cluster


def _mttf(cluster: Cluster, text: str) -> Cluster:
    """Set the MTTF of one GPU, all classes together. Each class keeps its share.

    From here on the rate is taken as known.
    """
    wanted_s = quantities.parse(text, QuantityKind.DURATION, name="--mttf", endless=True)
    scenario = resolve(cluster).scenario
    total = math.fsum(rate_per_s(one, scenario.job) for one in scenario.failures)
    if not total:
        raise UsageError(
            "--mttf scales failures, and there is none", hint="give a [[failure]] in a cluster file"
        )
    factor = wanted_s * total / scenario.job.gpus
    for name, rate in zip(cluster.failures, scenario.failures, strict=True):
        path = f"failure.{name}.mttf"
        cluster = _settle(
            cluster.put_value(
                path,
                rate.mttf_s * factor,
                origin=Origin.FLAG,
                source="--mttf, shared out as before",
            ),
            path,
        )
    return cluster


def _durable(cluster: Cluster) -> str:
    """Return the tier that survives most failures. If there are several, return the last."""
    survives = {tier.name: tier.survives for tier in resolve(cluster).scenario.tiers}
    return max(reversed(cluster.tiers), key=lambda name: survives[name])


def _bandwidth(cluster: Cluster, text: str) -> Cluster:
    path = f"tier.{_durable(cluster)}.bandwidth"
    return _settle(
        cluster.put(path, text, origin=Origin.FLAG, source="--bandwidth", name="--bandwidth"), path
    )


def _save(cluster: Cluster, text: str) -> Cluster:
    return cluster.put(
        f"tier.{_durable(cluster)}.stall", text, origin=Origin.FLAG, source="--save", name="--save"
    )


def _restart(cluster: Cluster, text: str) -> Cluster:
    """Set the time from a failure to the restore, with detection and taking a spare in it."""
    cluster = cluster.put(
        "recovery.regroup", text, origin=Origin.FLAG, source="--restart", name="--restart"
    )
    for key in ("detect", "take"):
        path = f"recovery.{key}"
        if cluster.inputs[path].origin is not Origin.FLAG:
            cluster = cluster.put(path, "0s", origin=Origin.FLAG, source="in --restart")
    return cluster


def _interval(cluster: Cluster, texts: list[str]) -> Cluster:
    """Read `15min` for the durable tier, or `peer=30s` for a named one."""
    for text in texts:
        name, equals, value = text.rpartition("=")
        cluster = cluster.put(
            f"tier.{name if equals else _durable(cluster)}.interval",
            value,
            origin=Origin.FLAG,
            source="--interval",
            name="--interval",
        )
    return cluster


CHANGES: Mapping[str, Callable[[Cluster, str], Cluster]] = {
    "days": _days,
    "params": _params,
    "mttf": _mttf,
    "bandwidth": _bandwidth,
    "save": _save,
    "restart": _restart,
    "interval": _interval,  # type: ignore[dict-item]
}
