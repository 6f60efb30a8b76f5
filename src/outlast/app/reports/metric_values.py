"""The metrics of a run: their names, and their values at one moment.

Names      are those of Prometheus: base units (seconds, ratios), `_total` for what only grows. Once
           published, a name or a label keeps its meaning.
Labels     Every metric has `run`. Other labels come from short lists: states, causes, mechanisms,
           classes, and the names that the script gives to `step.log`, LOGGED_MAX_COUNT at most.
           There is no label for a rank, a node or an interruption, so a run of 16,384 ranks has as
           many series as one of two.
Unknown    What is not known has no sample; it is never 0.
"""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from outlast.app.reports.failure_classes import classes_of
from outlast.app.reports.status import status_facts
from outlast.model.gauges import GAUGES_MAX_COUNT
from outlast.model.records import Interruption
from outlast.model.terms import SPARE_KINDS, UNMEASURED, FailureClass, Mechanism
from outlast.runtime.coordinator.pager import is_page
from outlast.runtime.ledger.view import STATES, RunView

LOGGED_MAX_COUNT = GAUGES_MAX_COUNT
RECOVERY_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0)
WORKER_STATES = ("starting", "training", "finished", "ended", "dead", "gone", "lost")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `labels` are the labels besides `run`; `kind` is gauge, counter or histogram."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


METRICS = (
    Metric(
        "outlast_run_info",
        "gauge",
        "1; name and outlast's version are its labels.",
        ("name", "version"),
    ),
    Metric(
        "outlast_run_state",
        "gauge",
        "1 for the state that the run is in, 0 for the others.",
        ("state",),
    ),
    Metric("outlast_step", "gauge", "Newest committed step."),
    Metric("outlast_target_step", "gauge", "Last step of the present call of run.steps."),
    Metric(
        "outlast_steps_per_second", "gauge", "Committed steps per second, over the last seconds."
    ),
    Metric(
        "outlast_time_left_seconds",
        "gauge",
        "Time to the target step at the pace of the last ten minutes.",
    ),
    Metric(
        "outlast_logged",
        "gauge",
        "Newest value that the script has logged under this name.",
        ("value",),
    ),
    Metric("outlast_ettr_ratio", "gauge", "Share of the time in productive steps, 0 to 1."),
    Metric("outlast_wall_seconds", "gauge", "Time with a launcher, over all sessions."),
    Metric(
        "outlast_rank_seconds",
        "gauge",
        "Seconds of all ranks by cause; they sum to ranks times wall seconds. A fault "
        "may move some to another cause, so this is no counter.",
        ("cause",),
    ),
    Metric("outlast_world_size", "gauge", "Ranks that the run was asked to have."),
    Metric("outlast_ranks", "gauge", "Ranks by the state of their process.", ("state",)),
    Metric("outlast_nodes", "gauge", "Nodes that hold ranks or spares."),
    Metric("outlast_spares", "gauge", "Spares by kind.", ("kind",)),
    Metric("outlast_spares_ready", "gauge", "Spares that can take a rank now."),
    Metric(
        "outlast_state_copies",
        "gauge",
        "Ranks that hold all of the state; no sample for sharded state.",
    ),
    Metric("outlast_generation", "gauge", "Number of the present membership."),
    Metric("outlast_sessions", "gauge", "Launchers that this run has had."),
    Metric(
        "outlast_interruptions_total",
        "counter",
        "Interruptions by how they showed themselves, without those that are part of another.",
        ("mechanism",),
    ),
    Metric(
        "outlast_interruptions_by_class",
        "gauge",
        "The same by the class of the verdict; unknown until there is one.",
        ("class",),
    ),
    Metric(
        "outlast_interruptions_open", "gauge", "Interruptions after which no step is committed yet."
    ),
    Metric(
        "outlast_recovery_seconds",
        "histogram",
        "From a fault to the next committed step, where both are known.",
    ),
    Metric(
        "outlast_steps_repeated_total", "counter", "Steps that were done again after interruptions."
    ),
    Metric("outlast_steps_lost_total", "counter", "Committed steps that interruptions took back."),
    Metric("outlast_checkpoints_total", "counter", "Checkpoints that were completed."),
    Metric("outlast_checkpoints_failed_total", "counter", "Checkpoints that failed."),
    Metric("outlast_last_checkpoint_step", "gauge", "Step of the newest checkpoint."),
    Metric(
        "outlast_last_checkpoint_timestamp_seconds",
        "gauge",
        "When the newest checkpoint was completed, seconds since 1970.",
    ),
    Metric("outlast_uploads_total", "counter", "Checkpoints that were uploaded."),
    Metric("outlast_uploads_failed_total", "counter", "Tries of an upload that failed."),
    Metric("outlast_last_upload_step", "gauge", "Step of the newest checkpoint that was uploaded."),
    Metric(
        "outlast_last_upload_timestamp_seconds",
        "gauge",
        "When the newest upload was completed, seconds since 1970.",
    ),
    Metric("outlast_warnings_total", "counter", "Warnings."),
    Metric("outlast_pages_total", "counter", "Times that the policy told a person."),
    Metric(
        "outlast_seen_timestamp_seconds",
        "gauge",
        "The launcher's last sign of life in the ledger, seconds since 1970.",
    ),
    Metric(
        "outlast_ledger_readable",
        "gauge",
        "1 if the ledger could be read just now; at 0 the other values are old.",
    ),
)
NAMES: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


class MetricSample(typing.NamedTuple):
    """The value of one metric for one combination of labels."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """All values of one run at one moment. `recoveries_s` are the values of the histogram."""

    run: str
    samples: tuple[MetricSample, ...]
    recoveries_s: tuple[float, ...]


def metrics_of(view: RunView) -> RunMetrics:
    """Return the metrics of a run as its ledger shows them."""
    roots = [one for one, _ in view.records.unique_interruptions() if one.parent is None]
    samples = [
        MetricSample(name, labels, float(value))
        for name, labels, value in (
            *_of_run(view),
            *_of_interruptions(view, roots),
            *_of_events(view),
        )
        if value is not None
    ]
    return RunMetrics(
        view.records.meta.run,
        tuple(samples),
        tuple(one.mttr_s for one in roots if one.mttr_s is not None),
    )


_Found = Iterator[tuple[str, Mapping[str, str], float | None]]
_NO: Mapping[str, str] = {}


def _of_run(view: RunView) -> _Found:
    facts, records = status_facts(view, workers=True), view.records
    meta, session = records.meta, records.sessions[-1].session
    yield "outlast_run_info", {"name": meta.name, "version": meta.version}, 1
    for state in STATES:
        yield "outlast_run_state", {"state": state}, facts["state"] == state
    yield "outlast_step", _NO, facts["step"] if facts["steps_seen"] else None
    yield "outlast_target_step", _NO, facts["target_step"]
    yield "outlast_steps_per_second", _NO, facts["steps_per_s"] if facts["steps_seen"] else None
    yield "outlast_time_left_seconds", _NO, facts["time_left_s"]
    logged = (facts["logged"] or {}).get("values", {})
    for name, value in list(logged.items())[:LOGGED_MAX_COUNT]:
        yield "outlast_logged", {"value": name}, value
    yield "outlast_ettr_ratio", _NO, facts["ettr"]
    yield "outlast_wall_seconds", _NO, facts["wall_s"]
    if records.is_measured:
        for cause, seconds in view.books.rank_seconds.items():
            known = cause not in UNMEASURED or seconds > 0
            yield "outlast_rank_seconds", {"cause": cause.value}, seconds if known else None
    yield "outlast_world_size", _NO, records.world_size
    states = Counter(worker["state"] for worker in facts["workers"])
    for state in WORKER_STATES:
        yield "outlast_ranks", {"state": state}, states[state]
    yield "outlast_nodes", _NO, len(facts["nodes"])
    kinds = Counter(spare["kind"] for spare in facts["spares"])
    for kind in SPARE_KINDS:
        yield "outlast_spares", {"kind": kind}, kinds[kind]
    redundancy = facts["redundancy"] or {}
    yield "outlast_spares_ready", _NO, redundancy.get("spares_ready")
    yield "outlast_state_copies", _NO, redundancy.get("copies")
    yield "outlast_generation", _NO, facts["generation"]
    yield "outlast_sessions", _NO, session.session
    yield "outlast_seen_timestamp_seconds", _NO, _wall_s(view, session.over_s)
    yield "outlast_ledger_readable", _NO, 1


def _of_interruptions(view: RunView, roots: list[Interruption]) -> _Found:
    mechanisms = Counter(Mechanism(one.mechanism) for one in roots)
    for mechanism in Mechanism:
        yield "outlast_interruptions_total", {"mechanism": mechanism.value}, mechanisms[mechanism]
    classes: Counter[FailureClass] = Counter()
    for part in view.records.sessions:
        named = classes_of(part)
        classes.update(named[one.id] for one in part.interruptions if one.parent is None)
    for name in FailureClass:
        yield "outlast_interruptions_by_class", {"class": name.value}, classes[name]
    yield "outlast_interruptions_open", _NO, sum(one.resumed_s is None for one in roots)
    yield "outlast_steps_repeated_total", _NO, sum(max(0, one.steps_repeated) for one in roots)
    yield "outlast_steps_lost_total", _NO, sum(max(0, one.steps_lost) for one in roots)


def _of_events(view: RunView) -> _Found:
    events = [event for part in view.records.sessions for event in part.events]
    kinds = Counter(event.kind for event in events)
    yield "outlast_checkpoints_total", _NO, kinds["checkpoint"]
    yield "outlast_checkpoints_failed_total", _NO, kinds["checkpoint_failed"]
    yield "outlast_warnings_total", _NO, kinds["warning"]
    yield "outlast_pages_total", _NO, sum(is_page(event) for event in events)
    yield "outlast_uploads_total", _NO, kinds["uploaded"]
    yield "outlast_uploads_failed_total", _NO, kinds["upload_failed"]
    for kind, name in (("checkpoint", "checkpoint"), ("uploaded", "upload")):
        last = next((event for event in reversed(events) if event.kind == kind), None)
        if last is not None and isinstance(step := last.data.get("step"), int):
            yield f"outlast_last_{name}_step", _NO, step
            yield f"outlast_last_{name}_timestamp_seconds", _NO, last.wall_s


def _wall_s(view: RunView, at_s: float) -> float:
    session = view.records.sessions[-1].session
    return session.started_wall_s + (at_s - session.started_s)
