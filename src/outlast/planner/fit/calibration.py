"""Collect the results of a calibration: rates, laws of age, phases, and what the data cannot tell.

`calibrate` makes them from records, and `app/planning/calibrate.py` shows them.

Units      As in the modules that it calls. The names in the JSON end with `_s`, `_per_s` or
           `count`.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from outlast.errors import UsageError
from outlast.model import texts
from outlast.model.quantities import finite_or_none
from outlast.model.terms import FailureClass
from outlast.planner.fit.ledgers import BookedSeconds
from outlast.planner.fit.observed import Observed
from outlast.planner.fit.phases import ENOUGH, Phases, PhaseSamples
from outlast.planner.fit.rates import (
    ClassRate,
    ScaleVerdict,
    SpreadVerdict,
    class_rates,
    decide_clumped,
    decide_scale,
    unseen_rates,
)
from outlast.planner.fit.weibull import ShapeVerdict, decide_shape
from outlast.planner.scenario import Extent, FailureRate, Unit

LIFE_FIT_KEYS = ("shape", "shape_se", "shape_low", "shape_high", "scale_s", "p_constant")


@dataclass(frozen=True, slots=True)
class Calibration:
    """The results of a calibration.

    `phases` and `booked` come from ledgers; a table of failures has none. `bounds` holds upper
    bounds for the rates of failures that were never seen.
    """

    records: tuple[Observed, ...]
    rates: tuple[ClassRate, ...]
    bounds: tuple[ClassRate, ...]
    shapes: Mapping[FailureClass, ShapeVerdict]
    clumps: tuple[SpreadVerdict, ...]
    scale: ScaleVerdict | None
    phases: Phases | None
    booked: tuple[BookedSeconds, ...]

    @property
    def failures(self) -> int:
        """The number of failures in all records."""
        return sum(len(one.failures) for one in self.records)

    @property
    def source(self) -> str:
        """The names of all sources, for people."""
        return ", ".join(one.source for one in self.records)

    def scenario_rates(self) -> tuple[FailureRate, ...]:
        """Return the rate of each class that was seen.

        If the data show that it changes with age, it is a Weibull law.
        """
        return tuple(self._scenario_rate(one) for one in self.rates)

    def _scenario_rate(self, rate: ClassRate) -> FailureRate:
        verdict = self.shapes.get(rate.failure_class)
        if verdict is None or verdict.fit is None or not verdict.varies:
            return rate.scenario_rate()
        age_s = self.records[0].age_s or 0.0
        return replace(
            rate.scenario_rate(), mttf_s=verdict.fit.scale_s, shape=verdict.fit.shape, age_s=age_s
        )

    def cannot_tell(self) -> tuple[str, ...]:
        """Return a sentence for each fact that these data cannot tell."""
        return tuple(dict.fromkeys(_cannot_tell(self)))

    def assumptions(self) -> tuple[str, ...]:
        """Return a sentence for each assumption behind the records."""
        return tuple(dict.fromkeys(text for record in self.records for text in record.assumptions))


def calibrate(
    records: Sequence[Observed],
    *,
    phases: Phases | None = None,
    booked: Sequence[BookedSeconds] = (),
) -> Calibration:
    """Calibrate from these records.

    Raises UsageError if there is no record, or if the records watched different kinds of unit.
    """
    if not records:
        raise UsageError(
            "there is nothing to calibrate from",
            hint="name runs, or a table of failures with --csv",
        )
    shapes = (
        {failure_class: decide_shape(lives) for failure_class, lives in records[0].lives.items()}
        if len(records) == 1
        else {}
    )
    return Calibration(
        tuple(records),
        class_rates(records),
        unseen_rates(records),
        shapes,
        tuple(decide_clumped(one) for one in records),
        decide_scale(records) if phases is not None else None,
        phases,
        tuple(booked),
    )


def _cannot_tell(one: Calibration) -> Iterator[str]:
    for bound in one.bounds:
        yield f"how often {what_of(bound)}: it was never seen, so there is only an upper bound"
    for record in one.records:
        yield from record.limits
    if one.scale is not None and one.scale.slope is None:
        yield one.scale.reason
    yield from (
        f"whether failures come in waves: {clump.reason}"
        for clump in one.clumps
        if clump.ratio is None
    )
    if one.phases is None:
        yield (
            "how long a recovery takes: a table of failures does not have that; calibrate from the"
            " ledger of a run as well"
        )
        return
    for phase in (one.phases.detect, one.phases.regroup, one.phases.restore):
        if len(phase.samples_s) < ENOUGH:
            yield _few_words(phase)
    if one.phases.take.spread is None:
        yield "what replacing a lost node takes: no recovery from the loss of a node was seen"
    if one.phases.unknown_faults:
        yield (
            f"when {one.phases.unknown_faults:,} of the faults came: they are taken to have come in"
            " the middle between the last commit and the detection"
        )
    yield (
        "how long repairs take, what is lost with a rack, what one save costs: a ledger does not"
        " have that"
    )


def _few_words(phase: PhaseSamples) -> str:
    if not phase.samples_s:
        return (
            f"how long {phase.name} takes: it was never seen from its beginning to its end without"
            " another failure in between"
        )
    taken = "the mean" if phase.how == "constant" else f"a {phase.how} with their mean and spread"
    samples = texts.count(len(phase.samples_s), "sample")
    return (
        f"how {phase.name} varies: with only {samples}, {taken} is taken; {ENOUGH} samples would"
        " show it"
    )


def what_of(rate: ClassRate) -> str:
    """Return in words what a failure of this rate does."""
    return "a node is lost" if rate.extent is Extent.NODE else "anything fails"


# --- for programs ---------------------------------------------------------------------------------


def facts(one: Calibration) -> dict[str, object]:
    """Return the JSON of `outlast calibrate`. Numbers that cannot be known are null."""
    return {
        "sources": [record.source for record in one.records],
        "failures": one.failures,
        "exposure_s": {
            unit.name.lower(): math.fsum(record.exposure_s.get(unit, 0.0) for record in one.records)
            for unit in Unit
        },
        "rates": [_rate_facts(rate) for rate in one.rates],
        "bounds": [_rate_facts(rate) | {"what": what_of(rate)} for rate in one.bounds],
        "shapes": {
            failure_class.value: _shape_facts(verdict)
            for failure_class, verdict in one.shapes.items()
        },
        "clumps": [
            {"clumped": clump.clumped, "ratio": clump.ratio, "reason": clump.reason}
            for clump in one.clumps
        ],
        "scale": (
            None
            if one.scale is None
            else {
                "slope": one.scale.slope,
                "low": one.scale.low,
                "high": one.scale.high,
                "reason": one.scale.reason,
            }
        ),
        "phases": {} if one.phases is None else _phase_facts(one.phases),
        "booked": [_booked_facts(books) for books in one.booked],
        "cannot_tell": list(one.cannot_tell()),
        "assumptions": list(one.assumptions()),
    }


def _rate_facts(rate: ClassRate) -> dict[str, object]:
    return {
        "class": rate.failure_class.value,
        "unit": rate.unit.name.lower(),
        "extent": rate.extent.name.lower(),
        "count": rate.count,
        "exposure_s": rate.exposure_s,
        "rate_per_s": rate.rate_per_s,
        "low_per_s": rate.low_per_s,
        "high_per_s": rate.high_per_s,
        "mttf_s": rate.mttf_s,
        "mttf_low_s": 1 / rate.high_per_s,
        "mttf_high_s": 1 / rate.low_per_s if rate.low_per_s else None,
    }


def _shape_facts(verdict: ShapeVerdict) -> dict[str, object]:
    fit = {} if verdict.fit is None else {key: getattr(verdict.fit, key) for key in LIFE_FIT_KEYS}
    return {
        "varies": verdict.varies,
        "reason": verdict.reason,
        **{key: finite_or_none(value) for key, value in fit.items()},
    }


def _phase_facts(phases: Phases) -> dict[str, object]:
    out: dict[str, object] = {
        phase.name.replace(" ", "_"): {
            "count": len(phase.samples_s),
            "mean_s": phase.mean_s,
            "median_s": phase.median_s,
            "p95_s": phase.p95_s,
            "how": phase.how,
            "by": {
                key: {"count": count, "mean_s": mean_s} for key, (count, mean_s) in phase.by.items()
            },
        }
        for phase in phases.all()
    }
    return out | {
        "step_s": phases.step_s,
        "unknown_faults": phases.unknown_faults,
        "unfinished": phases.unfinished,
    }


def _booked_facts(books: BookedSeconds) -> dict[str, object]:
    return {
        "ranks": books.ranks,
        "training_s": books.training_s,
        "ettr_training": books.ettr_training,
        "interruptions": books.interruptions,
        "lost_per_interruption_s": books.lost_per_interruption_s,
        "steady_s": {cause.value: value for cause, value in books.steady_s.items()},
    }
