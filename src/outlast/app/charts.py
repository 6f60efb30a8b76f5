"""Charts as data, curves and bars, which are drawn with letters here.

`charts_file.py` draws the same data as PNG and SVG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from outlast.app.words import bar

BAR_COLUMNS = 40
ROWS_MOST = 24


@dataclass(frozen=True, slots=True)
class Line:
    """One line, with its points in the order of x. `low` and `high` are a band, or empty."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Curves:
    """Lines over one x.

    marks          points with a name
    say_x, say_y   functions that write a number in words
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    say_x: Callable[[float], str]
    say_y: Callable[[float], str]
    x_log: bool = True
    marks: tuple[tuple[str, float, float], ...] = ()
    y_from_zero: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars from `low` to `high`, each with its label. `base` is where all bars would be.

    A plain bar begins at the base.
    """

    title: str
    x_label: str
    rows: tuple[tuple[str, float, float], ...]
    say_x: Callable[[float], str]
    base: float = 0.0
    notes: tuple[str, ...] = field(default=())  # the text at the end of each row


Chart: TypeAlias = Curves | Bars


def drawn(chart: Chart, *, blocks: bool) -> list[str]:
    """Return the lines of a chart. `blocks` is True if the output can show more than ASCII."""
    body = (
        _curves(chart, blocks=blocks) if isinstance(chart, Curves) else _bars(chart, blocks=blocks)
    )
    return [chart.title, *(f"  {line}".rstrip() for line in body)]


def _curves(chart: Curves, *, blocks: bool) -> Iterator[str]:
    """Yield one row for each x: a bar for the first line, numbers for the others."""
    first = chart.lines[0]
    top, bottom = max(first.y, default=1.0), 0.0 if chart.y_from_zero else _floor(first.y)
    rows = [
        (chart.say_x(x), *(chart.say_y(line.y[at]) for line in chart.lines))
        for at, x in enumerate(first.x)
    ]
    heads = (chart.x_label, *(line.name for line in chart.lines))
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    yield "  ".join(head.rjust(width) for head, width in zip(heads, widths, strict=True))
    named = {x: name for name, x, _ in chart.marks}
    for row, x, y in zip(rows, first.x, first.y, strict=True):
        share = (y - bottom) / (top - bottom) if top > bottom else 1.0
        words = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        drawn = bar(share, BAR_COLUMNS, blocks=blocks) if share > 0 else ""
        yield f"{words}  {drawn}{'  ' + named[x] if x in named else ''}"
    if bottom:
        yield f"bars begin at {chart.say_y(bottom)}"


def _floor(values: Sequence[float]) -> float:
    """Return where bars begin, so that differences can be seen.

    That is somewhat below the least value, or 0 if that is near.
    """
    least, most = min(values, default=0.0), max(values, default=1.0)
    room = (most - least) * 0.25 or most * 0.1
    return 0.0 if least - room < most / 3 else _round_down(least - room, room)


def _round_down(value: float, step: float) -> float:
    size = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return math.floor(value / size) * size


def _bars(chart: Bars, *, blocks: bool) -> Iterator[str]:
    """Yield a row for each value.

    Bars reach to both sides of the base if any does, and are plain otherwise.
    """
    rows = chart.rows[:ROWS_MOST]
    label_width = max((len(label) for label, _, _ in rows), default=0)
    least, most = (
        min((low for _, low, _ in rows), default=0.0),
        max((high for _, _, high in rows), default=1.0),
    )
    least, most = min(least, chart.base), max(most, chart.base)
    for at, (label, low, high) in enumerate(rows):
        note = f"  {chart.notes[at]}" if at < len(chart.notes) else ""
        if least < chart.base:
            words = f"{chart.say_x(low)} to {chart.say_x(high)}"
            yield (
                f"{label.ljust(label_width)}  {_around(low, high, chart.base, least, most)} "
                f" {words}{note}"
            )
        else:
            share = (high - chart.base) / (most - chart.base) if most > chart.base else 0.0
            yield (
                f"{label.ljust(label_width)}  {chart.say_x(high).rjust(8)} "
                f" {bar(share, BAR_COLUMNS, blocks=blocks) if share > 0 else ''}{note}"
            )


def _around(low: float, high: float, base: float, least: float, most: float) -> str:
    """Return `---|+++`: what is below the base and what is above it, on one scale."""
    scale = (BAR_COLUMNS) / (most - least) if most > least else 0.0
    left, right = round((base - least) * scale), round((most - base) * scale)
    below, above = round((base - min(low, base)) * scale), round((max(high, base) - base) * scale)
    return " " * (left - below) + "-" * below + "|" + "+" * above + " " * (right - above)
