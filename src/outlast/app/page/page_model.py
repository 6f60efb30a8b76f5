"""What the page of a run says, computed once from the run's folder.

    page = page_of(look("runs/x"))
    page.answers[0].answer            "yes"

The page as HTML, as Markdown and as JSON all come from this. Every text in it went through
`escaped_all`, so that it holds no control characters; HTML and Markdown escape it once more in
their own way.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.app import words
from outlast.app.page.advice import Advice, advice
from outlast.app.page.answers import PageAnswer, PageMoment, answers
from outlast.app.page.curves import Curve, curves
from outlast.app.page.failed import FAILED
from outlast.app.page.health import NodeHealth, health, node_of_rank
from outlast.app.page.lanes import Lanes, timeline
from outlast.app.page.pace import PacePoint, pace
from outlast.app.reports.report_facts import report_facts
from outlast.app.reports.status import OVER, status_facts
from outlast.app.words import Facts
from outlast.model.terms import MEANING, NOT_SHOWN, Cause, Mechanism
from outlast.runtime.ledger.view import RunView

# what a verdict has, for those that an earlier version wrote with less
NO_VERDICT: dict[str, Any] = {
    **dict.fromkeys(("reason", "action", "refuted_by", "next_test"), ""),
    **dict.fromkeys(("ranks", "suspects", "evidence", "commands", "stacks", "cleared"), ()),
}


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """One step of the waterfall: the rank-seconds of a cause, and what was left before it."""

    cause: str
    seconds: float
    share: float
    before: float
    meaning: str


@dataclass(frozen=True, slots=True)
class Page:
    """The contents of the page of one run.

    report, status  the JSON of `outlast report` and `outlast status`
    points          the pace: steps per second
    curves          what the script has logged, such as the loss
    losses          from all rank-seconds down to the productive ones, the largest loss first
    verdicts        by the id of the interruption
    kinds           the classes or mechanisms of failures, each with its count
    made_wall_s     when the run was read, by the wall clock
    by_rank         the seconds of each rank by cause
    """

    report: Facts
    status: Facts
    answers: tuple[PageAnswer, ...]
    timeline: Lanes
    points: tuple[PacePoint, ...]
    curves: tuple[Curve, ...]
    losses: tuple[WaterfallStep, ...]
    verdicts: Mapping[int, Facts]
    kinds: tuple[tuple[str, int], ...]
    nodes: tuple[NodeHealth, ...]
    advice: tuple[Advice, ...]
    made_wall_s: float
    began_wall_s: float
    by_rank: tuple[Mapping[Cause, float], ...]

    @property
    def is_over(self) -> bool:
        """Return whether nothing in it will change any more."""
        return self.report["state"] in OVER


def page_of(view: RunView, *, wall_s: float) -> Page:
    """Compute the page of a run. `wall_s` is the time of the wall clock when the run was read."""
    report: Facts = words.escaped_all(report_facts(view))
    status: Facts = words.escaped_all(status_facts(view, workers=True))
    records = view.records
    books = view.books
    nodes = node_of_rank(records, status["workers"])
    points = pace(records)
    now_s = report["elapsed_s"]
    newest = records.sessions[-1]
    moment = PageMoment(
        now_s,
        0.0 if view.now_s is None else max(0.0, view.now_s - newest.session.seen_s),
        points[-1].to_s if points else None,
    )
    return Page(
        report=report,
        status=status,
        answers=answers(report, status, points, moment),
        timeline=timeline(records, report["interruptions"], to_s=now_s, nodes=nodes),
        points=points,
        curves=curves(records),
        losses=losses(report["rank_seconds"], imported=report["imported"]),
        verdicts={one["interruption"]: NO_VERDICT | one for one in report["verdicts"]},
        kinds=_kinds(report),
        nodes=health(records, books, status, report["interruptions"], nodes),
        advice=advice(view, report),
        made_wall_s=wall_s,
        began_wall_s=records.meta.started_wall_s,
        by_rank=books.by_rank,
    )


def losses(seconds: Mapping[str, Any], *, imported: bool = False) -> tuple[WaterfallStep, ...]:
    """Return the waterfall, without causes that took no time or are not measured (None).

    The productive seconds come last: they remain when all losses are subtracted. If they are not
    known, nothing is returned. An import does not show them, so they are left out there.
    """
    if seconds.get("productive", 0.0) is None:
        return ()
    total_s = math.fsum(value or 0.0 for value in seconds.values())
    taken = sorted(
        ((value, cause) for cause, value in seconds.items() if value and cause != "productive"),
        reverse=True,
    )
    out, before = [], 1.0
    for value, cause in taken:
        share = value / total_s
        meaning = NOT_SHOWN if imported else MEANING[Cause(cause)]
        out.append(WaterfallStep(cause, value, share, before, meaning))
        before -= share
    if imported:
        return tuple(out)
    kept_s = seconds.get("productive") or 0.0
    share = kept_s / total_s if total_s > 0 else 0.0
    out.append(WaterfallStep("productive", kept_s, share, share, MEANING[Cause.PRODUCTIVE]))
    return tuple(out)


def _kinds(report: Facts) -> tuple[tuple[str, int], ...]:
    verdicts = {one["interruption"]: str(one.get("class", "")) for one in report["verdicts"]}

    def kind(one: Facts) -> str:
        names = (one["class"], verdicts.get(one["id"], "unknown"))
        known = next((name for name in names if name != "unknown"), "")
        why = f", {known.replace('_', ' ')}" if known else ""
        drained = words.drain(one) is not None
        return (
            "moved off a drained node" if drained else FAILED[Mechanism(one["mechanism"])]
        ) + why

    return tuple(Counter(kind(one) for one in report["interruptions"]).most_common())
