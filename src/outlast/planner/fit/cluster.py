"""Write a calibration as a cluster file.

The file holds the measured values with their sources. All other values are the stated defaults.

Rates     A rate is written as `count` and `exposure`, so that a plan knows how uncertain it is. If
          the data show a Weibull law, it is written as `mttf`, `shape` and `age`. If nothing ever
          failed, count is 0, and a plan draws the rate from its posterior. If some classes
          occurred, the others are left out: in a short record, half a failure of each would
          outweigh everything that was measured. `never_seen` lists them for a comment.
Recovery  `detect`, `regroup` and `take` are written if they were seen.
Tier      If state came back from the memory of this run without a lost step, there is a tier
          `live`. It is saved each step, with the stall that the ledger booked. It survives the
          extents that it was seen to survive. Its restore does not include the extra time of the
          first step after a recovery, because the ledger, and so ETTR, counts that as productive.
Job       The ranks and the ranks per node are those of the last ledger. The length of a step does
          not include the stall, because a plan adds it.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from outlast.model.quantities import QuantityKind, echo
from outlast.model.terms import Cause
from outlast.planner.cluster_file import Cluster, Origin, defaults, parse
from outlast.planner.cluster_text import render
from outlast.planner.fit.calibration import Calibration, what_of
from outlast.planner.fit.rates import ClassRate
from outlast.planner.readers import Value
from outlast.planner.scenario import FailureRate, Unit
from outlast.planner.spread import Spread

LIVE = "live"

Said = tuple[str, Value, str]  # path, value, source


def cluster_of(one: Calibration, *, name: str) -> Cluster:
    """Return a cluster to plan with, or to be written by `cluster_text.render`.

    `name` is one line of text.
    """
    rates = [*one.rates] or [*one.bounds[:1]]
    names = _names(rates)
    laws = {id(rate): law for rate, law in zip(one.rates, one.scenario_rates(), strict=True)}
    said = [*_job(one), *_recovery(one), *_tier(one)]
    for title, rate in zip(names, rates, strict=True):
        said += _failure(f"failure.{title}", rate, laws.get(id(rate)))
    bare = defaults()
    tiers = (LIVE,) if any(path.startswith("tier.") for path, _, _ in said) else bare.tiers
    kept = {
        path: entry
        for path, entry in bare.inputs.items()
        if not path.startswith("failure.") and (tiers == bare.tiers or not path.startswith("tier."))
    }
    cluster = replace(
        bare,
        name=_line(name),
        about=_line(f"calibrated from {one.source}"),
        inputs=kept,
        failures=names,
        tiers=tiers,
    )
    for path, value, source in said:
        cluster = cluster.put_value(
            path, _short_value(value), origin=Origin.LEDGER, source=_line(source)
        )
    return parse(render(cluster), source=_line(name), origin=Origin.LEDGER)


def _names(rates: Iterable[ClassRate]) -> tuple[str, ...]:
    """Return a name for each rate: its class, and its extent if another rate has the same class."""
    out: list[str] = []
    for rate in rates:
        name = rate.failure_class.value
        name = f"{name}-{rate.extent.name.lower()}" if name in out else name
        out.append(name if name not in out else f"{name}-{len(out)}")
    return tuple(out)


def _failure(path: str, rate: ClassRate, law: FailureRate | None) -> Iterator[Said]:
    counted = "none" if rate.count == 0 else f"{rate.count:,}"
    source = f"{counted} seen: {rate.source}"
    values: dict[str, Value] = {
        "class": rate.failure_class.value,
        "unit": rate.unit.name.lower(),
        "extent": rate.extent.name.lower(),
    }
    if law is not None and law.shape != 1:
        values |= {
            "mttf": law.mttf_s,
            "shape": law.shape,
            "age": law.age_s,
            "count": float(rate.count),
        }
    else:
        values |= {"count": float(rate.count), "exposure": rate.exposure_s}
    yield from ((f"{path}.{key}", value, source) for key, value in values.items())


def _job(one: Calibration) -> Iterator[Said]:
    if not one.booked or one.phases is None:
        return
    record = one.records[-1]
    gpus = max(1, round(one.booked[-1].ranks))
    nodes = max(1.0, record.units.get(Unit.NODE, 1.0))
    yield "job.gpus", gpus, f"ranks of {record.source}"
    yield "job.gpus_per_node", max(1, round(gpus / nodes)), f"ranks of a node of {record.source}"
    if one.phases.step_s:
        yield (
            "job.step",
            one.phases.step_s - _stall_s(one),
            f"mean of the undisturbed steps of {one.source}, without their stalls",
        )


def _recovery(one: Calibration) -> Iterator[Said]:
    phases = one.phases
    if phases is None:
        return
    for phase in (phases.detect, phases.regroup, phases.take):
        if phase.spread is not None:
            yield (
                f"recovery.{phase.name}",
                phase.spread,
                f"{len(phase.samples_s):,} samples ({phase.how}): {one.source}",
            )


def _tier(one: Calibration) -> Iterator[Said]:
    phases = one.phases
    if (
        phases is None
        or phases.restore.spread is None
        or phases.step_s is None
        or phases.survived is None
    ):
        return
    stall_s = _stall_s(one)
    source = f"{len(phases.restore.samples_s):,} restores without a lost step: {one.source}"
    values: dict[str, Value] = {
        "interval": phases.step_s - stall_s,
        "survives": phases.survived.name.lower(),
        "stall": stall_s,
        "write": 0.0,
        "blocking": True,
        "restore": phases.restore.spread,
    }
    yield from ((f"tier.{LIVE}.{key}", value, source) for key, value in values.items())


def _stall_s(one: Calibration) -> float:
    """Return the booked stall of each step, in seconds."""
    step_s, training_s = (
        one.phases.step_s if one.phases is not None else None,
        sum(books.training_s for books in one.booked),
    )
    stalled_s = sum(books.seconds[Cause.STALL] / books.ranks for books in one.booked)
    return stalled_s / training_s * step_s if step_s is not None and training_s else 0.0


def never_seen(one: Calibration) -> tuple[str, ...]:
    """Return a TOML comment for each bound that the file leaves out."""
    left_out = one.bounds if one.rates else one.bounds[1:]
    return tuple(
        f"# never seen: {what_of(rate)}; at most once in"
        f" {echo(_short(1 / rate.high_per_s), QuantityKind.DURATION)}"
        f" of a {rate.unit.name.lower()} (95 %)"
        for rate in left_out
    )


def _short(value: float) -> float:
    """Round to six digits, because the measurements are not more precise."""
    return float(f"{value:.6g}")


def _short_value(value: Value) -> Value:
    if isinstance(value, Spread):
        return Spread(value.shape, tuple(map(_short, value.numbers)))
    return _short(value) if isinstance(value, float) else value


def _line(text: str) -> str:
    """Return the text on one line, without unprintable characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text) or "calibration"
