"""A live run asks its policy when a verdict comes, and does what a run on one node can do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.runtime.ledger.store import read_ledger
from tests.drills._run import Drill, Outcome


def struck(folder: Path, rule: str, *, steps: int) -> tuple[Outcome, list[dict[str, object]]]:
    """Kill rank 1 of four in its sixth step. Return the outcome, and the decisions of the policy in
    the ledger.
    """
    (folder / "policy.toml").write_text(f"schema = 1\n{rule}")
    with Drill(
        folder, "ddp.py", "--steps", steps, flags=("--policy", folder / "policy.toml")
    ) as drill:
        drill.until(lambda: drill.step >= 6, "step 6")
        os.kill(drill.pid_of(1), signal.SIGKILL)
        outcome = drill.finish()
    events = [
        event
        for part in read_ledger(folder / "run" / "ledger.db").sessions
        for event in part.events
        if event.kind == "policy"
    ]
    return outcome, [dict(event.data) for event in events]


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_page_is_reported_and_recorded_and_can_be_replayed(tmp_path: Path) -> None:
    rule = (
        '[[rule]]\nid = "tell"\nwhen = { exit_code = 137, mechanism = "signal" }\naction = "page"\n'
    )
    outcome, decided = struck(tmp_path, rule, steps=30)
    assert outcome.code == 0, outcome
    assert [(one["action"], one["rule"], one["interruption"]) for one in decided] == [
        ("page", "tell", 1)
    ], outcome
    assert "page: interruption 1: rule tell: page" in outcome.stderr, outcome
    command = [
        sys.executable,
        "-m",
        "outlast.app.cli",
        "policy",
        "test",
        str(tmp_path / "policy.toml"),
        str(tmp_path / "run"),
        "--json",
    ]
    [replayed] = json.loads(
        subprocess.run(command, capture_output=True, text=True, timeout=50, check=True).stdout
    )["incidents"]
    assert replayed["class"] == "unknown"


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_stop_ends_the_run_after_a_step(tmp_path: Path) -> None:
    outcome, decided = struck(tmp_path, '[[rule]]\nid = "enough"\naction = "stop"\n', steps=100_000)
    assert outcome.code == 1, outcome
    assert (outcome.report["state"], outcome.report["reason"]) == (
        "stopped",
        "rule enough: stop",
    ), outcome
    assert [one["action"] for one in decided] == ["stop"]
    last = max(step for _, step, _ in outcome.commits)
    assert {rank for rank, step, _ in outcome.commits if step == last} == {0, 1, 2, 3}, (
        "all came to the same step"
    )


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_the_only_node_is_not_taken_out(tmp_path: Path) -> None:
    outcome, decided = struck(tmp_path, '[[rule]]\naction = "drain"\n', steps=30)
    assert outcome.code == 0, outcome
    assert [(one["action"], one["wanted"], one["held"]) for one in decided] == [
        ("page", "drain", "nobody")
    ], decided
