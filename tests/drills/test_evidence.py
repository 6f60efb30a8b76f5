"""Each interruption of a live run leaves its evidence, and ends in a verdict that names the rank
and how it failed.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from outlast.model.verdict import summary
from tests.drills._run import Drill, Outcome


def struck(folder: Path, do: str) -> Outcome:
    """Run a drill in which rank 1 of four is struck in its sixth step. `do` is a word of
    scripts/strikes.py, or a signal from outside.
    """
    strikes = (
        [{"at": "forward", "rank": 1, "step": 6, "do": do, "for_s": 60}] if do.islower() else ()
    )
    with Drill(folder, "ddp.py", "--steps", 30, strikes=strikes) as drill:
        if not strikes:
            drill.until(lambda: drill.step >= 6, "step 6")
            os.kill(drill.pid_of(1), signal.Signals[do])
        return drill.finish()


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (folder / "run" / "evidence" / "interruption-1" / "standing.json").read_text()
    )
    return next(one for one in found["processes"] if one["rank"] == 1)


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("do", "mechanism"),
    [("sleep", "hang"), ("gil", "hang"), ("SIGSTOP", "hang"), ("SIGKILL", "signal")],
)
def test_an_interruption_ends_in_a_verdict_that_names_the_rank(
    tmp_path: Path, do: str, mechanism: str
) -> None:
    outcome = struck(tmp_path, do)
    assert outcome.code == 0, outcome
    (verdict,) = outcome.report["verdicts"]
    assert (
        verdict["interruption"],
        verdict["mechanism"],
        [one["rank"] for one in verdict["ranks"]],
    ) == (1, mechanism, [1]), verdict
    assert verdict["suspects"] == [], verdict
    assert f"interruption 1: {summary(verdict)}\n" in outcome.stderr, "the terminal says it too"
    assert verdict["action"].endswith("the run went on by itself"), verdict
    if do == "SIGKILL":
        assert ") was killed by signal 9 (SIGKILL), sent neither by" in verdict["reason"]
        assert ", 1 step repeated, 0 lost." in verdict["reason"]
    assert (tmp_path / "run" / "evidence" / "interruption-1" / "verdict.json").exists()


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("do", "frame"), [("sleep", "_act"), ("gil", "_act")])
def test_a_hung_rank_leaves_the_stack_in_which_it_hung(tmp_path: Path, do: str, frame: str) -> None:
    """This holds if the interpreter lock is held too."""
    outcome = struck(tmp_path, do)
    folder = tmp_path / "run" / "evidence" / "interruption-1"
    assert f"in {frame}\n" in (folder / "stacks-rank1.txt").read_text(), outcome
    for rank in (0, 2, 3):
        assert (folder / f"recorder-rank{rank}.json").exists(), outcome
    assert told(tmp_path)["kernel"].keys() == {"stat", "wchan", "syscall"}


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_the_kernel_reports_a_stopped_process_as_stopped(tmp_path: Path) -> None:
    struck(tmp_path, "SIGSTOP")
    process = told(tmp_path)
    assert process["kernel"]["stat"].rpartition(")")[2].split()[0] == "T", process
    assert process["killed"], process


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_run_that_fails_waits_for_its_last_verdict(tmp_path: Path) -> None:
    """Method: rank 1 raises in each attempt of step 6."""
    with Drill(
        tmp_path,
        "ddp.py",
        "--steps",
        30,
        strikes=[{"at": "forward", "rank": 1, "step": 6, "do": "raise", "always": True}],
    ) as drill:
        outcome = drill.finish()
    assert outcome.code == 1, outcome
    assert outcome.report["verdicts"], outcome
    assert outcome.report["verdicts"][-1]["mechanism"] == "exception", outcome.report["verdicts"]
