"""Uploads in the ledger: what the report and the metrics make of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from outlast.app.reports.metric_values import metrics_of
from outlast.app.reports.report_facts import report_facts
from outlast.model.records import Event
from outlast.runtime.ledger.view import RunView, look
from tests.ledger import a_run

URL = "s3://bucket/run"
DONE = {"step": 20, "url": URL, "bytes": 9, "seconds": 0.5}
FAILED = {"url": URL, "error": "the server answers 503", "failures": 1}


def with_events(folder: Path) -> RunView:
    view = look(str(a_run.ended_run(folder)))
    (part,) = view.records.sessions
    told = (Event(5.0, 105.0, "upload_failed", FAILED), Event(6.0, 106.0, "uploaded", DONE))
    session = replace(part, events=(*part.events, *told))
    return replace(view, records=replace(view.records, sessions=(session,)))


def test_the_report_lists_them_as_checkpoints_of_their_tier(tmp_path: Path) -> None:
    found = report_facts(with_events(tmp_path))["checkpoints"]
    failed, done = [one for one in found if one["tier"] == "object"]
    assert (failed["outcome"], failed["error"]) == ("failed", "the server answers 503")
    assert (done["outcome"], done["step"], done["folder"]) == ("written", 20, URL)


def test_the_metrics_count_them_apart_from_checkpoints(tmp_path: Path) -> None:
    values = {one.name: one.value for one in metrics_of(with_events(tmp_path)).samples}
    assert values["outlast_uploads_total"] == 1
    assert values["outlast_uploads_failed_total"] == 1
    assert values["outlast_last_upload_step"] == 20
    assert values["outlast_last_upload_timestamp_seconds"] == 106.0
    assert values["outlast_checkpoints_total"] == 0
