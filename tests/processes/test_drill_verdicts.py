"""A drill finds the verdicts that its run has not found by its end.

Method: a run's folder made by hand, with the evidence that a run writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outlast.model.drills.drill_faults import KERNEL_LINES, KINDS
from outlast.runtime.drill.drill_verdicts import KERNEL_LOG, add_lines, find_missing


def interruption(number: int, *, parent: int | None = None) -> dict[str, Any]:
    return {
        "id": number,
        "parent": parent,
        "class": "unknown",
        "mechanism": "signal",
        "ranks": [1],
        "pids": [77],
        "nodes": ["host0"],
        "rung": "respawn",
        "step": 39,
        "detected_s": 5.0,
        "resumed_s": 6.0,
        "mttr_s": 1.0,
        "steps_seen": True,
        "steps_repeated": 1,
        "steps_lost": 0,
        "reason": "rank 1 died of signal 6",
        "error": "signal 6",
        "traceback": "",
    }


def evidence(folder: Path, number: int) -> Path:
    place = folder / "evidence" / f"interruption-{number}"
    place.mkdir(parents=True)
    record = {"schema": 1, "outlast": "standing", "interruption": interruption(number)}
    (place / "standing.json").write_text(json.dumps(record | {"processes": []}, indent=1))
    return place


def test_what_the_run_has_no_verdict_for_is_looked_for_in_its_evidence(tmp_path: Path) -> None:
    """The second one's search had begun; the third happened while another node led.

    The fourth came during the third and has no evidence of its own, and the fifth has none.
    """
    evidence(tmp_path, 1)
    (evidence(tmp_path, 2) / "verdict.part").write_text('{"class": "gpu"')
    evidence(tmp_path / "nodes" / "host1", 3)
    report = {
        "interruptions": [
            *map(interruption, (1, 2, 3)),
            interruption(4, parent=3),
            interruption(5),
        ],
        "verdicts": [{"interruption": 1, "class": "unknown"}],
    }
    told: list[int] = []
    found = find_missing(tmp_path, report, told.append)
    assert [one["interruption"] for one in found] == [2, 3]
    assert all("SIGABRT" in one["reason"] for one in found)
    assert told == [2]
    kept = json.loads((tmp_path / "evidence" / "interruption-2" / "verdict.json").read_text())
    assert "SIGABRT" in kept["reason"]


def test_a_verdict_that_came_too_late_for_the_ledger_is_taken_as_it_is(tmp_path: Path) -> None:
    place = evidence(tmp_path, 1)
    (place / "verdict.json").write_text('{"class": "hbm", "reason": "said"}')
    report = {"interruptions": [interruption(1)], "verdicts": []}
    assert find_missing(tmp_path, report) == [{"class": "hbm", "reason": "said", "interruption": 1}]


def test_where_nothing_is_missing_nobody_is_told(tmp_path: Path) -> None:
    evidence(tmp_path, 1)
    report = {"interruptions": [interruption(1)], "verdicts": [{"interruption": 1}]}
    assert find_missing(tmp_path, report, lambda count: 1 / 0) == []


@pytest.mark.parametrize("kind", sorted(KERNEL_LINES))
def test_a_line_of_the_kernel_is_read_with_the_evidence(tmp_path: Path, kind: str) -> None:
    """The run had found a verdict without it. That of another interruption stays."""
    place = evidence(tmp_path, 1)
    (place / "verdict.json").write_text('{"class": "unknown"}')
    said = [{"interruption": 1, "class": "unknown"}, {"interruption": 2, "class": "unknown"}]
    report = {"interruptions": [interruption(1), interruption(2)], "verdicts": said}
    add_lines(tmp_path, report, {1: "[ 5.0] " + KERNEL_LINES[kind].format(pid=77)})
    assert report["verdicts"] == said[1:]
    assert "outlast drill" in (place / KERNEL_LOG).read_text(), "nobody takes it for the kernel's"
    (found,) = find_missing(tmp_path, report)
    assert found["interruption"] == 1
    assert found["class"] in {one.value for one in KINDS[kind].classes}
    assert found["confidence"] >= 0.8
