"""The drawings of a page: lanes, curves and bars as SVG.

They hold shapes only. All words and numbers stand beside them as HTML. So a drawing may be
stretched to any width, and a reader who does not see it misses nothing. Colours come from classes
in page.css. No text of a run goes into a drawing, only numbers.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from outlast.app.page.curves import Curve
from outlast.app.page.lanes import COLUMNS, DOWN, STARTING, UP, LaneRow, Lanes, Mark
from outlast.app.page.pace import PacePoint

LANE_HIGH = 10
CURVE_WIDE, CURVE_HIGH = 1000, 200
BAR_WIDE, BAR_HIGH = 1000, 10
FAINT_MOST = 150  # marks behind a curve; more would hide it
MANY = 5  # a place with this many marks, or more, is drawn in the strongest colour


def lane(row: LaneRow) -> Markup:
    """Draw one row of the timeline."""
    paths = dict.fromkeys((UP, STARTING, DOWN), "")
    for span in row.spans:
        paths[span.doing] += f"M{span.begin} 0h{span.end - span.begin}v{LANE_HIGH}H{span.begin}z"
    shapes = [f'<path class="{doing}" d="{path}"/>' for doing, path in paths.items() if path]
    return _svg("lane", COLUMNS, LANE_HIGH, shapes + _ticks(row.marks, LANE_HIGH))


def heads(timeline: Lanes) -> Markup:
    """Draw the interruptions of the whole run, above the rows, with the generations."""
    path = "".join(f"M{column} {LANE_HIGH}v-4" for column in timeline.generations)
    shapes = [f'<path class="generation" d="{path}"/>'] if path else []
    return _svg("lane", COLUMNS, LANE_HIGH, shapes + _ticks(timeline.all_marks, LANE_HIGH))


def curve(
    points: Sequence[PacePoint], marks: Iterable[Mark], *, to_s: float, most: float
) -> Markup:
    """Draw the steps per second. `most` is the value at the upper edge."""
    if not points or to_s <= 0 or most <= 0:
        return Markup("")
    x_scale, y_scale = CURVE_WIDE / to_s, CURVE_HIGH / most
    line, area = "", ""
    for one in points:
        begin, end = round(one.from_s * x_scale, 1), round(one.to_s * x_scale, 1)
        y = round(CURVE_HIGH - one.per_s * y_scale, 1)
        line += f"{'L' if line else 'M'}{begin:g} {y:g}H{end:g}"
        area += f"M{begin:g} {CURVE_HIGH}V{y:g}H{end:g}V{CURVE_HIGH}z"
    shapes = [f'<path class="area" d="{area}"/>', _faint(marks), f'<path class="line" d="{line}"/>']
    return _svg("curve", CURVE_WIDE, CURVE_HIGH, shapes)


def logged(one: Curve, marks: Iterable[Mark], *, to_s: float) -> Markup:
    """Draw logged values, from the smallest at the lower edge to the greatest at the upper one."""
    if to_s <= 0:
        return Markup("")
    x_scale = CURVE_WIDE / to_s
    # halved first: the difference of two large numbers may be infinite
    least, high = one.least / 2, one.most / 2 - one.least / 2
    line = ""
    for value in one.values:
        above = (value.value / 2 - least) / high if high > 0 else 0.5
        begin, end = round(value.from_s * x_scale, 1), round(value.to_s * x_scale, 1)
        line += f"{'L' if line else 'M'}{begin:g} {CURVE_HIGH * (1 - above):.1f}H{end:g}"
    shapes = [_faint(marks), f'<path class="line" d="{line}"/>']
    return _svg("curve", CURVE_WIDE, CURVE_HIGH, shapes)


def progress(
    lines: Sequence[Sequence[tuple[float, float]]],
    marks: Iterable[float],
    *,
    to_s: float,
    most: float,
) -> Markup:
    """Draw several lines, each of points (seconds, value), with upright marks at some seconds.

    The lines have the classes s1, s2 and so on.
    """
    if to_s <= 0 or most <= 0:
        return Markup("")
    x_scale, y_scale = CURVE_WIDE / to_s, CURVE_HIGH / most
    faint = "".join(f"M{at_s * x_scale:.1f} 0V{CURVE_HIGH}" for at_s in marks)
    shapes = [f'<path class="faint" d="{faint}"/>'] if faint else []
    for number, points in enumerate(lines, 1):
        path = "L".join(f"{x * x_scale:.1f} {CURVE_HIGH - y * y_scale:.1f}" for x, y in points)
        if path:
            shapes.append(f'<path class="line s{number}" d="M{path}"/>')
    return _svg("curve", CURVE_WIDE, CURVE_HIGH, shapes)


def bar(begin: float, end: float, kind: str) -> Markup:
    """Draw a bar from one share of the width to another."""
    x, width = round(begin * BAR_WIDE, 1), round(max(0.0, end - begin) * BAR_WIDE, 1)
    shape = f'<rect class="{kind}" x="{x:g}" width="{max(width, 2):g}" height="{BAR_HIGH}"/>'
    return _svg("bar", BAR_WIDE, BAR_HIGH, [shape])


def stages(parts: Sequence[tuple[str, float]]) -> Markup:
    """Draw the stages of a recovery one after the other, each with the class of its name."""
    total_s = sum(seconds for _, seconds in parts)
    if total_s <= 0:
        return Markup("")
    shapes, at = [], 0.0
    for name, seconds in parts:
        width = seconds / total_s * BAR_WIDE
        shapes.append(
            f'<rect class="{name}" x="{at:.1f}" width="{width:.1f}" height="{BAR_HIGH}"/>'
        )
        at += width
    return _svg("bar", BAR_WIDE, BAR_HIGH, shapes)


def _faint(marks: Iterable[Mark]) -> str:
    """Draw the interruptions behind a curve, if they are few."""
    stretch = CURVE_WIDE / COLUMNS
    drawn = [f"M{one.column * stretch:g} 0V{CURVE_HIGH}" for one in marks]
    faint = "".join(drawn) if len(drawn) <= FAINT_MOST else ""
    return f'<path class="faint" d="{faint}"/>' if faint else ""


def _ticks(marks: Iterable[Mark], high: int) -> list[str]:
    """Draw marks as upright lines, which keep their width however the drawing is stretched."""
    few = "".join(f"M{one.column} 0V{high}" for one in marks if one.count < MANY)
    many = "".join(f"M{one.column} 0V{high}" for one in marks if one.count >= MANY)
    found = [f'<path class="mark" d="{few}"/>'] if few else []
    return found + ([f'<path class="mark many" d="{many}"/>'] if many else [])


def _svg(kind: str, wide: int, high: int, shapes: Iterable[str]) -> Markup:
    # every shape above is made of numbers and of names in this package
    return Markup(
        f'<svg class="{kind}" viewBox="0 0 {wide} {high}" preserveAspectRatio="none"'
        f' aria-hidden="true" focusable="false">{"".join(shapes)}</svg>'
    )
