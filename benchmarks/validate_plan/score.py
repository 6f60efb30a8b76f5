"""Predicted beside measured: the table, and what it shows.

Error of lost time is (predicted - measured) / measured, of 1 - ETTR. The naive predictor says that
every run has the ETTR of the run that was fitted to.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.validate_plan.measured import Measured
from benchmarks.validate_plan.predict import Prediction, Variant

LOST_WITHIN, MTTR_WITHIN = 0.15, 0.15
CASES_SHARE = 0.8  # of cases: inside the interval, and lost time within bounds


@dataclass(frozen=True, slots=True)
class Row:
    """`run` is None where the run did not last; `wrong` says why, or what else spoils it.

    `strikes`: that hit somebody.
    """

    variant: Variant
    predicted: Prediction
    naive_ettr: float
    run: Measured | None
    strikes: int = 0
    wrong: str = ""

    @property
    def inside(self) -> bool:
        return self.run is not None and self.predicted.low <= self.run.ettr <= self.predicted.high

    def error(self, ettr: float) -> float:
        assert self.run is not None
        return (1 - ettr) / self.run.lost - 1

    @property
    def mttr_error(self) -> float | None:
        if self.run is None or not self.run.mttr_median_s:
            return None
        return self.predicted.mttr_median_s / self.run.mttr_median_s - 1


@dataclass(frozen=True, slots=True)
class Line:
    """One statement. `reached` is None for what is only told."""

    text: str
    reached: bool | None


def lines(rows: Sequence[Row]) -> list[Line]:
    """Return what the runs show. Runs that did not last count against the planner."""
    ran = [row for row in rows if row.run is not None and not row.wrong]
    many, need = len(rows), CASES_SHARE * len(rows)
    within = sum(abs(row.error(row.predicted.ettr)) <= LOST_WITHIN for row in ran)
    told = sum(abs(row.error(row.predicted.told_ettr)) <= LOST_WITHIN for row in ran)
    inside = sum(row.inside for row in ran)
    mttr = sum(row.mttr_error is not None and abs(row.mttr_error) <= MTTR_WITHIN for row in ran)
    naive = sum(abs(row.error(row.naive_ettr)) <= LOST_WITHIN for row in ran)
    below = sum(row.run is not None and row.run.ettr < 0.8 for row in ran)
    return [
        Line(f"runs that lasted: {len(ran)} of {many}", len(ran) == many),
        Line(
            f"lost time within {LOST_WITHIN:.0%} of the prediction: {within} of {many}, wanted"
            f" {CASES_SHARE:.0%}",
            within >= need,
        ),
        Line(
            f"ETTR inside the 90 % interval: {inside} of {many}, wanted {CASES_SHARE:.0%}",
            inside >= need,
        ),
        Line(f"median MTTR within {MTTR_WITHIN:.0%}: {mttr} of {many}, wanted all", mttr == many),
        Line(f"runs with an ETTR below 80 %: {below}, wanted one", below > 0),
        Line(
            f"lost time within {LOST_WITHIN:.0%} once the strikes of the run are known (the model's"
            f" own error): {told} of {many}",
            None,
        ),
        Line(
            f"the naive predictor, the ETTR of the run that was fitted to: {naive} of {many} within"
            f" {LOST_WITHIN:.0%}",
            None,
        ),
    ]


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    head = (
        "run",
        "ranks",
        "strike each s",
        "image each",
        "spares",
        "strikes",
        "ETTR predicted",
        "90 % of runs",
        "measured",
        "inside",
        "lost time: error",
        "luck of one run",
        "error, strikes known",
        "naive: error",
        "MTTR median s: predicted",
        "measured",
        "error",
    )
    return "\n".join(
        "| " + " | ".join(cells) + " |"
        for cells in (head, ("---",) * len(head), *map(_cells, rows))
    )


def _cells(row: Row) -> tuple[str, ...]:
    variant, said = row.variant, row.predicted
    given = (
        variant.name,
        str(variant.world_size),
        f"{variant.mttf_s:g}",
        str(variant.snapshot_every),
        str(variant.spares),
    )
    predicted = f"{said.ettr:.1%}", f"{said.low:.1%} to {said.high:.1%}"
    if row.run is None:
        return (*given, "-", *predicted, row.wrong or "-", *("-",) * 8)
    mttr_s, error = row.run.mttr_median_s, row.mttr_error
    return (
        *given,
        str(row.strikes),
        *predicted,
        f"{row.run.ettr:.1%}" + (f" ({row.wrong})" if row.wrong else ""),
        "yes" if row.inside else "**no**",
        f"{row.error(said.ettr):+.0%}",
        f"{said.luck:.0%}",
        f"{row.error(said.told_ettr):+.0%}",
        f"{row.error(row.naive_ettr):+.0%}",
        f"{said.mttr_median_s:.3f}",
        "-" if mttr_s is None else f"{mttr_s:.3f}",
        "-" if error is None else f"{error:+.0%}",
    )
