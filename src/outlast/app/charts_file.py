"""Draw charts as PNG and SVG, by matplotlib (extra `outlast[plot]`).

matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from outlast.app.charts import Bars, Chart, Curves
from outlast.errors import UsageError
from outlast.runtime.folders.given import write_bytes

FORMATS = ("svg", "png")
WIDTH_INCHES, HEIGHT_INCHES, ROW_INCHES = 8.0, 4.2, 0.38
COLOURS = ("#1f5fa8", "#c8502a", "#6b7780", "#3f8f5a")
TICKS_MOST = 7
BELOW, ABOVE = "#c8502a", "#1f5fa8"
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e7ea",
    "axes.axisbelow": True,
    # text stays text; the same chart is the same file
    "svg.fonttype": "none",
    "svg.hashsalt": "outlast",
}


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def format_of(path: str) -> str:
    """Return the format that the file's name asks for. Raises UsageError."""
    suffix = path.rpartition(".")[2].lower()
    if suffix not in FORMATS:
        raise UsageError(
            f"{path}: charts are drawn as {' or '.join(FORMATS)}",
            hint="name a file that ends in .svg or .png",
        )
    if not can_draw():
        raise UsageError(
            "--chart needs the package matplotlib",
            hint="pip install 'outlast[plot]'; charts in letters need nothing",
        )
    return suffix


def draw(charts: Sequence[Chart], path: str) -> None:
    """Draw all charts in one picture, one below the other. Raises UsageError."""
    write_bytes(path, picture(charts, format_of(path)))


def picture(charts: Sequence[Chart], kind: str) -> bytes:
    """Return the picture of all charts as bytes. `kind` is one of FORMATS. Needs matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    heights = [
        HEIGHT_INCHES if isinstance(one, Curves) else 1.2 + ROW_INCHES * max(3, len(one.rows))
        for one in charts
    ]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
        # so that long labels of one do not squeeze the others
        parts = figure.subfigures(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
        for chart, part in zip(charts, parts, strict=True):
            place = part.subplots()
            place.set_title(chart.title, loc="left", fontsize=11)
            if isinstance(chart, Curves):
                _curves(place, chart)
            else:
                _bars(place, chart)
        out = io.BytesIO()
        figure.savefig(
            out,
            format=kind,
            dpi=144,
            metadata={"Date": None} if kind == "svg" else {"Software": None},
        )
    return out.getvalue()


def _curves(place: Any, chart: Curves) -> None:
    for at, line in enumerate(chart.lines):
        colour = COLOURS[at % len(COLOURS)]
        place.plot(
            line.x,
            line.y,
            color=colour,
            label=line.name,
            marker="o",
            markersize=3.5,
            linestyle=":" if "formula" in line.name else "-",
        )
        if line.low:
            place.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if chart.x_log:
        place.set_xscale("log")
    if chart.y_from_zero:
        place.set_ylim(bottom=0)
    for name, x, y in chart.marks:
        place.plot(
            [x],
            [y],
            marker="o",
            markersize=7,
            markerfacecolor="none",
            markeredgecolor="black",
            linestyle="none",
        )
        at_the_end = x == chart.lines[0].x[-1]
        place.annotate(
            f"{name}: {chart.say_x(x)}",
            (x, y),
            textcoords="offset points",
            xytext=(-8 if at_the_end else 8, 6),
            ha="right" if at_the_end else "left",
            fontsize=9,
        )
    _ticks(place, chart)
    place.set_xlabel(chart.x_label)
    place.set_ylabel(chart.y_label)
    if len(chart.lines) > 1:
        place.legend(frameon=False, fontsize=9)


def _ticks(place: Any, chart: Curves) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if chart.x_log:
        place.set_xticks(_apart(chart.lines[0].x))
        place.xaxis.set_minor_formatter(NullFormatter())
        place.minorticks_off()
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _: chart.say_x(value)))
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.6g} %"))


def _apart(xs: Sequence[float]) -> list[float]:
    """Return those of the points that leave room for their names."""
    gap = math.log(xs[-1] / xs[0]) / TICKS_MOST
    taken = [xs[0]]
    for x in xs[1:]:
        if math.log(x / taken[-1]) >= gap:
            taken.append(x)
    return taken


def _bars(place: Any, chart: Bars) -> None:
    from matplotlib.ticker import FuncFormatter

    rows = list(enumerate(chart.rows))
    for at, (_, low, high) in rows:
        place.barh(at, min(low, chart.base) - chart.base, left=chart.base, color=BELOW, height=0.65)
        place.barh(
            at, max(high, chart.base) - chart.base, left=chart.base, color=ABOVE, height=0.65
        )
    place.set_yticks([at for at, _ in rows], [_label(chart, at) for at, _ in rows])
    place.invert_yaxis()
    place.axvline(chart.base, color="black", linewidth=0.8)
    place.grid(axis="y", visible=False)
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.6g} %"))
    place.set_xlabel(chart.x_label)


def _label(chart: Bars, at: int) -> str:
    name = chart.rows[at][0]
    return f"{name}\n{chart.notes[at]}" if at < len(chart.notes) and chart.notes[at] else name
