"""The JSON of `outlast report`: one run, from its ledger. docs/reference/account.md explains it.

Clocks   `wall_s`, `rank_seconds` and ETTR count from the start of the launcher to its end. For a
         resumed run, the sessions are summed. Between two sessions no process holds a rank: that
         time is `downtime_s`. `elapsed_s` is the sum of `wall_s` and `downtime_s`. Times of
         interruptions, events and sessions are seconds since the run began, as `elapsed_s` counts.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from outlast.app.reports import report_sums
from outlast.app.reports.report_sums import Given
from outlast.app.reports.report_table import component_rows
from outlast.app.words import Facts
from outlast.engine.coordinator.policy_actions import REQUESTED
from outlast.engine.coordinator.requests import ANSWERED
from outlast.model.goodput import Accounting, recovery
from outlast.model.records import (
    DRAINING,
    LEADS,
    NODE_AWAITED,
    NODE_FOUND,
    Event,
    Records,
    SessionRecords,
)
from outlast.model.step_buckets import median_step_s
from outlast.model.terms import CAUSES, TIERS, UNMEASURED, UNMEASURED_ELSEWHERE, Cause, Tier
from outlast.model.verdict_classes import class_of, nodes_of, sure_verdicts
from outlast.planner.foreign_records import is_imported
from outlast.runtime.ledger.view import RunView

# It grows if a key changes its meaning or is removed, but not if a key is added.
SCHEMA = "outlast.report/2"
UNMEASURED_TIERS = (Tier.PEER, Tier.PARITY, Tier.OBJECT)  # shown only where something was booked

_NODE_EVENTS = (
    "node_joined",
    "node_lost",
    "node_barred",
    "node_unbarred",
    DRAINING,
    NODE_AWAITED,
    NODE_FOUND,
    "node_departed",
    LEADS,
)
_SAVES = ("checkpoint", "checkpoint_failed", "checkpoint_refused", "uploaded", "upload_failed")


def report_facts(view: RunView, given: Given = report_sums.NOTHING_GIVEN) -> dict[str, typing.Any]:
    """Return the JSON of `outlast report` of one run."""
    records = view.records
    books = view.books
    newest = records.sessions[-1]
    over_s = newest.session.over_s if view.now_s is None else view.now_s
    elapsed_s = max(books.wall_s, over_s - newest.began_s)
    facts: dict[str, typing.Any] = {
        "schema": SCHEMA,
        "run": records.meta.run,
        "state": view.state,
        "reason": newest.session.reason,
        "path": str(view.path),
        "version": records.meta.version,
        "world_size": records.world_size,
        "mean_ranks": books.mean_ranks,
        "steps": view.step,
        "generation": records.newest_generation,
        "wall_s": books.wall_s,
        "elapsed_s": elapsed_s,
        "downtime_s": elapsed_s - books.wall_s,
        "imported": is_imported(records),
        "calls_outlast": records.calls_outlast,
        "steps_seen": records.steps_seen,
        "ettr": books.ettr if records.is_measured else None,
        "ettr_training": books.ettr_training if records.is_measured else None,
        **_account(books, _unmeasured(records), whole="lives" not in records.missing),
        "step_median_s": median_step_s(
            bucket for part in records.sessions for bucket in part.steps
        ),
        "mttr": asdict(recovery(one for one, _ in records.unique_interruptions())),
        "interruptions": _interruptions(view, books),
        "verdicts": [
            _recorded_verdict(event.data)
            for _, event in _events(view, ("verdict",))
            if isinstance(event.data.get("verdict"), dict)
        ],
        "warnings": [str(one.data.get("text", "")) for _, one in _events(view, ("warning",))],
        "missing": list(records.missing.values()),
        "lacks": list(records.missing),
        "damage": records.damage,
        "copy_of_ledger": view.copy_of_ledger,
        "checkpoints": [_saved(at_s, one) for at_s, one in _events(view, _SAVES)],
        "decisions": [{"at_s": at_s, **one.data} for at_s, one in _events(view, ("policy",))],
        "requests": _requests(view),
        "node_events": [
            {"at_s": at_s, "kind": one.kind.removeprefix("node_"), **one.data}
            for at_s, one in _events(view, _NODE_EVENTS)
        ],
        "steps_lost_between_sessions": records.lost_between_sessions,
        "sessions": [
            _session(part, size) for part, size in zip(records.sessions, records.sizes, strict=True)
        ],
    }
    return facts | {"components": component_rows([facts])} | report_sums.sums([facts], given)


def _requests(view: RunView) -> list[dict[str, typing.Any]]:
    """Return the requests of people, each with its state: done, refused, or None if it is open."""
    found: list[dict[str, typing.Any]] = []
    for part in view.records.sessions:
        answers = {one.data.get("number"): one.data for one in part.events if one.kind == ANSWERED}
        for one in part.events:
            if one.kind == REQUESTED:
                answer = answers.get(one.data.get("number"), {})
                why_not = one.data.get("refused")
                found.append(
                    {
                        "at_s": round(one.at_s - part.began_s, 6),
                        **{key: one.data.get(key) for key in ("what", "node", "by", "reason")},
                        "state": "refused" if why_not else answer.get("state"),
                        "answer": why_not or answer.get("text"),
                    }
                )
    return found


def _unmeasured(records: Records) -> frozenset[Cause]:
    """Return the causes that are null unless something was booked: nothing has measured them."""
    unknown = UNMEASURED if records.steps_seen else UNMEASURED | {Cause.LOST}
    return unknown | UNMEASURED_ELSEWHERE if is_imported(records) else unknown


def _account(books: Accounting, unknown: frozenset[Cause], *, whole: bool) -> dict[str, typing.Any]:
    """Return the seconds by cause, by tier and by node, and whether they sum up.

    unknown   the causes that are null unless something was booked
    whole     False: some lives of processes are missing, so no cause's seconds are known
    """
    seconds = books.rank_seconds
    return {
        "productive_s": seconds[Cause.PRODUCTIVE] / max(1, books.mean_ranks),
        "rank_seconds": {
            cause.value: seconds[cause]
            if whole and (seconds[cause] or cause not in unknown)
            else None
            for cause in CAUSES
        },
        "stall_by_tier": {
            tier.value: None
            if not books.stalls or (tier in UNMEASURED_TIERS and not books.stalls[tier])
            else books.stalls[tier]
            for tier in TIERS
        },
        "seconds_by_node": {
            node: {cause.value: value for cause, value in spent.items() if value}
            for node, spent in sorted(books.by_node.items())
        },
        "spare_seconds": books.spare_seconds,
        "lost_to_nobody": {
            cause.value: value for cause, value in books.without_interruption.items()
        },
        "balance": report_sums.balance(books),
    }


def _interruptions(view: RunView, books: Accounting) -> list[dict[str, typing.Any]]:
    """Return all interruptions, each with the seconds that it took and with its cause."""
    records = view.records
    anywhere = sure_verdicts(event for part in records.sessions for event in part.events)
    by_session = [sure_verdicts(part.events) for part in records.sessions]
    out = []
    for one, began_s, session, own_id in records.numbered:
        # A later session may say what it found out about an earlier one's.
        verdict = by_session[session].get(own_id) or anywhere.get(own_id)
        verdicts = {} if verdict is None else {one.id: verdict}
        taken: Mapping[Cause, float] = (
            books.taken[session].get(own_id, {}) if session < len(books.taken) else {}
        )
        public = one.public(began_s=began_s)
        public["class"] = class_of(one, verdicts).value
        public["blamed_nodes"] = list(nodes_of(one, verdicts))
        public["seconds"] = {cause.value: value for cause, value in taken.items() if value}
        public["lost_rank_s"] = sum(taken.values())
        out.append(public)
    return out


def _events(view: RunView, kinds: tuple[str, ...]) -> Iterator[tuple[float, Event]]:
    """Yield the events of these kinds, each with its time since the run began."""
    for part in view.records.sessions:
        for event in part.events:
            if event.kind in kinds:
                yield round(event.at_s - part.began_s, 6), event


def _recorded_verdict(data: typing.Any) -> dict[str, typing.Any]:
    """Return the contents of an event of kind "verdict", and the interruption that it is about."""
    return {**data["verdict"], "interruption": data["interruption"]}


def _saved(at_s: float, event: Event) -> dict[str, typing.Any]:
    """Return the fate of a checkpoint: written, failed, or refused when it was read."""
    data: Facts = event.data
    is_written = event.kind in ("checkpoint", "uploaded")
    return {
        "at_s": at_s,
        "step": data.get("step"),
        "tier": (Tier.OBJECT if event.kind.startswith("upload") else Tier.LOCAL).value,
        "outcome": "written" if is_written else event.kind.rpartition("_")[2],
        "folder": data.get("folder", data.get("url")),
        "error": data.get("error", data.get("why")),
    }


def _session(part: SessionRecords, size: int) -> dict[str, typing.Any]:
    return {
        "session": part.session.session,
        "world_size": size,
        "pid": part.session.pid,
        "from_s": part.session.started_s - part.began_s,
        "to_s": part.session.over_s - part.began_s,
        "from_wall_s": part.session.started_wall_s,
        "state": part.session.state,
        "exit_code": part.session.exit_code,
        "reason": part.session.reason,
        "from_step": part.resumed.get("step", 0),
        "steps_lost": part.lost_before,
    }
