"""`outlast status` through the real command: the contract's JSON, and what people see."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from tests.app.command import outlast, same_as_golden
from tests.ledger import a_run

CONTRACT = {"run", "state", "generation", "step", "steps_per_s", "workers", "spares"}


def status(path: Path) -> dict:
    done = outlast("status", path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_live_run_shows_what_the_launcher_said_last(tmp_path: Path) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        ledger.set_snapshot(a_run.SNAPSHOT, now_s=a_run.clock.now_s())
        ledger.flush()
        facts = status(folder.path)
    assert set(facts) >= CONTRACT
    assert (
        facts["run"],
        facts["state"],
        facts["generation"],
        facts["step"],
        facts["steps_per_s"],
    ) == ("live", "training", 2, 200, 10.0)
    assert facts["workers"] == a_run.SNAPSHOT["workers"]
    assert facts["spares"] == a_run.SNAPSHOT["spares"]
    assert set(facts["workers"][0]) >= {"rank", "pid", "node", "state"}


def test_before_the_first_snapshot_a_run_is_starting(tmp_path: Path) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        facts = status(folder.path)
    assert (facts["state"], facts["step"], facts["steps_per_s"]) == ("starting", 0, 0.0)
    assert facts["workers"] == [{"rank": 0, "pid": 1001, "node": "here", "state": "starting"}]


@pytest.mark.parametrize("state", ["ended", "failed", "stopped"])
def test_a_run_that_is_over_has_nobody_training(tmp_path: Path, state: str) -> None:
    facts = status(a_run.ended_run(tmp_path, state=state, exit_code=1, reason="because"))
    assert (facts["state"], facts["reason"], facts["steps_per_s"], facts["spares"]) == (
        state,
        "because",
        0.0,
        [],
    )
    assert {worker["state"] for worker in facts["workers"]} == {"gone"}


def test_a_run_whose_launcher_vanished_is_lost(tmp_path: Path) -> None:
    """The lock is free though the run has not ended."""
    facts = status(a_run.lost_run(tmp_path))
    assert facts["state"] == "lost"
    assert {worker["state"] for worker in facts["workers"]} == {"lost"}


def test_without_run_the_newest_is_meant(tmp_path: Path) -> None:
    a_run.ended_run(tmp_path / "runs")
    done = outlast("status", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["run"] == a_run.META.run


def test_the_page_of_a_lost_run(tmp_path: Path) -> None:
    same_as_golden("status-lost.txt", outlast("status", a_run.lost_run(tmp_path)).stdout)


def test_the_page_of_a_failed_run(tmp_path: Path) -> None:
    same_as_golden(
        "status-failed.txt",
        outlast(
            "status",
            a_run.ended_run(tmp_path, state="failed", exit_code=1, reason="crash loop at step 170"),
        ).stdout,
    )
