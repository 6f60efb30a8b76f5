"""Code after the last step runs once, however a rank ends there by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.drills._run import Drill, Outcome, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(150)]
STEPS = 20


def struck(folder: Path, **fault: Any) -> Outcome:
    """Run the script while rank 1 does this each time it reaches that place."""
    strikes = [{"rank": 1, "always": True, **fault}]
    return drilled(folder, "quick.py", "--steps", STEPS, workers=2, strikes=strikes)


def ran_once(outcome: Outcome) -> None:
    lines = outcome.stdout.splitlines()
    assert [sum(line.startswith(f"digest {rank}") for line in lines) for rank in (0, 1)] == [1, 1]
    assert lines.count("over 0") == 1, str(outcome)
    assert outcome.last_step == STEPS, str(outcome)


@pytest.mark.parametrize(
    ("fault", "how"),
    [({"do": "SIGSEGV"}, "signal 11"), ({"do": "exit", "code": 7}, "exit code 7")],
    ids=["segfault", "exit-code"],
)
def test_a_crash_at_interpreter_exit_is_a_warning(
    tmp_path: Path, fault: dict[str, Any], how: str
) -> None:
    """The script has ended well: training is complete, and the exit code is that of the
    training.
    """
    outcome = struck(tmp_path, at="exit", **fault)
    assert outcome.code == 0, str(outcome)
    ran_once(outcome)
    assert outcome.stdout.splitlines().count("over 1") == 1, str(outcome)
    assert f"ended with {how} after its script had ended well" in outcome.stderr, str(outcome)
    assert "rank 1" in outcome.report["warnings"][0], outcome.report["warnings"]
    assert outcome.interruptions == [], str(outcome)


@pytest.mark.parametrize(
    ("fault", "why"),
    [({"do": "raise"}, "struck at after"), ({"do": "sysexit", "code": 3}, "exit code 3")],
    ids=["raises", "leaves"],
)
def test_a_script_that_fails_after_the_last_step_is_not_run_again(
    tmp_path: Path, fault: dict[str, Any], why: str
) -> None:
    """The run fails with the rank's own reason, and the other rank reaches its end."""
    outcome = struck(tmp_path, at="after", **fault)
    assert outcome.code == 1, str(outcome)
    ran_once(outcome)
    assert "error: rank 1 failed after the last step" in outcome.stderr, str(outcome)
    assert why in outcome.report["reason"], outcome.report["reason"]
    assert f"all {STEPS} steps are committed" in outcome.report["reason"], outcome.report["reason"]
    assert [(one["ranks"], one["rung"]) for one in outcome.interruptions] == [([1], "stop")]


def test_a_rank_that_leaves_with_an_exit_code_in_a_step_is_blamed(
    tmp_path: Path,
) -> None:
    outcome = struck(tmp_path, at="forward", step=10, do="sysexit", code="no such data")
    assert outcome.code == 1, str(outcome)
    assert {tuple(one["ranks"]) for one in outcome.interruptions} == {(1,)}, str(outcome)
    why = "the script left with exit code 1: no such data"
    assert why in outcome.report["reason"], outcome.report["reason"]
    assert "left the script with exit code 1: no such data" in outcome.stderr, str(outcome)


def test_a_rank_that_does_not_end_is_named_with_its_place_and_not_killed(tmp_path: Path) -> None:
    """A thread, a function given to atexit, and a destructor each keep one rank for 18 seconds."""
    with Drill(tmp_path, "linger.py", "--for-s", 18) as drill:
        drill.until(lambda: drill.said().count("has not ended") == 3, "three ranks are named")
        wait = "ranks 0, 1, 2 to end: the script is over"
        drill.until(lambda: wait in str(drill.status["waits_for"]), "the status says it too")
        status = drill.status
        outcome = drill.finish()
    for rank, place in ((0, "thread 'saver' at"), (1, "stands at"), (2, "stands at")):
        (said,) = [line for line in outcome.stderr.splitlines() if f"warning: rank {rank}" in line]
        assert place in said, said
        assert said.endswith("in __del__" if rank == 2 else "in saves"), said
        assert "linger.py:" in said, said
    assert status["state"] == "ending", status
    assert [one["state"] for one in status["workers"]] == ["finished"] * 3 + ["ended"], status
    assert outcome.code == 0, str(outcome)
    assert outcome.interruptions == [], str(outcome)
    assert len(outcome.report["warnings"]) == 3, outcome.report["warnings"]
