"""The score of a drill as one page to mail: no script, and no reference to the outside."""

from __future__ import annotations

import typing

from outlast.app.drills.drill_result import Beside, Result
from outlast.app.drills.drill_sides_text import HEADS, cells
from outlast.app.drills.drill_text import LEGEND, by_kind, fallback, rows, said, verdict_word
from outlast.app.page.page_html import environment, shipped
from outlast.diagnose.self_output import DRILL_GENERATOR
from outlast.model.drills.drill_faults import ALL_KINDS
from outlast.model.drills.drill_sides import SideRun, began

POINTS = 400  # of a line in the chart
FAULTS_MOST = 500  # in the page; the newest ones


def drill_page(result: Result) -> str:
    """Return the page."""
    return (
        environment()
        .get_template("drill.html")
        .render(
            result=result,
            rows=rows(result),
            kinds=by_kind(result.found),
            most=FAULTS_MOST,
            how={name: one.how for name, one in ALL_KINDS.items()},
            verdict=verdict_word(result),
            style=shipped("page.css"),
            generator=DRILL_GENERATOR,
            said=said,
            fallback=fallback,
            legend=LEGEND,
            beside=None if result.beside is None else _beside(result.beside),
        )
    )


def _beside(beside: Beside) -> dict[str, typing.Any]:
    """Return what the template shows of other launchers: a table, and a line for each."""
    lines = [_line(one.run) for one in beside.shown]
    first = began(beside.shown[0].run.seen)
    begun_s = beside.shown[0].run.began_s if first is None else first.at_s
    return {
        "heads": HEADS,
        "rows": [cells(one) for one in beside.rows],
        "names": [one.name for one in beside.shown],
        "lines": lines,
        "marks": [max(0.0, fault.at_s - begun_s) for fault in beside.shown[0].run.faults],
        "to_s": max((line[-1][0] for line in lines if line), default=0.0),
        "most": max((step for line in lines for _, step in line), default=0),
    }


def _line(run: SideRun) -> list[tuple[float, float]]:
    """Return points (seconds since it trains, step): some for each stretch, and where it fell."""
    first = began(run.seen)
    if first is None:
        return []
    apart_s = (run.seen[-1].at_s - first.at_s) / POINTS
    points, last = [(0.0, float(first.step))], first
    for one in run.seen:
        if one.at_s < first.at_s:
            continue
        fell = one.step < last.step
        if fell:
            points.append((last.at_s - first.at_s, float(last.step)))
        if fell or one is run.seen[-1] or one.at_s - first.at_s >= points[-1][0] + apart_s:
            # it stood still between two steps that are far apart
            if one.at_s - last.at_s > apart_s:
                points.append((last.at_s - first.at_s, float(last.step)))
            points.append((one.at_s - first.at_s, float(one.step)))
        last = one
    return points
