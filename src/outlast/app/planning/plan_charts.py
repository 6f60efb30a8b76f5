"""The charts of a plan, as data."""

from __future__ import annotations

import math

from outlast.app.charts import Bars, Chart, Curves, Line
from outlast.app.planning.plan_answer import PlanFindings
from outlast.app.words import long_duration
from outlast.planner.optimise import ParameterCurve
from outlast.planner.plan import Plan
from outlast.planner.scale import Scale

SWINGS_MOST = 15
SWING_LEAST = 5e-4  # of ETTR: an input that moves it less says nothing
NOTHING = 5e-5  # a share that would be printed as 0.00 %
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def share_words(share: float) -> str:
    """Write a share to a hundredth of a percent; below that, as a power of ten."""
    return f"{share * 100:.2f} %" if share >= NOTHING or share == 0 else f"{share * 100:.0e} %"


def gpus_words(gpus: float) -> str:
    """Write a number of GPUs as 1,024; 100k; 4.4M; 5.8e+18."""
    if gpus < 1e4:
        return f"{gpus:,.0f}"
    if gpus >= 1e15:
        return f"{gpus:.2g}"
    size, unit = next((size, unit) for size, unit in PREFIXES if gpus >= size * 0.9995)
    return f"{gpus / size:.3g}{unit}"


def charts(found: PlanFindings) -> list[Chart]:
    """Return the charts that were asked for; without any, the one of where the time goes."""
    out: list[Chart] = []
    if found.optimum is not None:
        curves = [
            one for one in found.optimum.curves if max(one.value) - min(one.value) >= SWING_LEAST
        ]
        out += [_searched(one) for one in curves]
    if found.asked_sensitivity:
        out += [_tornado(found.plan)]
    if found.scale is not None:
        out += [_scale(found.scale)]
    return out or [_lost(found.plan)]


def _lost(plan: Plan) -> Bars:
    terms = sorted(
        ((share, term.value) for term, share in plan.lost.items() if share >= NOTHING), reverse=True
    )
    return Bars(
        "Where the time goes that is not productive",
        "share of the wall clock",
        tuple((name, 0.0, share) for share, name in terms),
        share_words,
    )


def _tornado(plan: Plan) -> Bars:
    swings = plan.sensitivity[:SWINGS_MOST]
    rows = tuple(
        (one.path, min(one.ettr_low, one.ettr_high), max(one.ettr_low, one.ettr_high))
        for one in swings
    )
    notes = tuple(f"{one.low} .. {one.high}" for one in swings)
    return Bars(
        "What ETTR depends on", "ETTR", rows, share_words, base=plan.sensitivity_base, notes=notes
    )


def _searched(curve: ParameterCurve) -> Curves:
    say_x = gpus_words if curve.parameter == "repair.spares" else long_duration
    chosen = curve.x.index(curve.chosen)
    line = Line("productive", curve.x, curve.value)
    title = (
        "spare nodes"
        if curve.parameter == "repair.spares"
        else f"interval of {curve.parameter.split('.')[1]}"
    )
    return Curves(
        f"Productive share of all GPUs, by {title}",
        title,
        "productive share of all GPUs",
        (line,),
        say_x,
        share_words,
        x_log=curve.parameter != "repair.spares",
        marks=(("chosen", curve.x[chosen], curve.value[chosen]),),
    )


def _scale(scale: Scale) -> Curves:
    x = tuple(float(row.gpus) for row in scale.rows)
    lines = (
        Line("model as it is", x, tuple(row.ettr for row in scale.rows)),
        Line("model grows too", x, tuple(row.ettr_growing for row in scale.rows)),
        Line("Daly's formula, model as it is", x, tuple(row.ettr_formula for row in scale.rows)),
    )
    marks = tuple(
        (f"{share}", gpus, float(share.removesuffix(" %")) / 100)
        for share, gpus in _usable(scale)
        if x[0] <= gpus <= x[-1]
    )
    return Curves(
        "ETTR by the number of GPUs",
        "GPUs",
        "ETTR",
        lines,
        gpus_words,
        share_words,
        marks=marks,
        y_from_zero=True,
    )


def _usable(scale: Scale) -> list[tuple[str, float]]:
    """Return the sizes at which the formula comes to an ETTR of 90 % and of 50 %."""
    found = []
    for name, gpus in scale.max_gpus.items():
        if name.startswith("ETTR ") and name.endswith("fixed model") and math.isfinite(gpus):
            found.append((name.split(",")[0].removeprefix("ETTR ").replace("%", " %"), gpus))
    return found
