"""A plain variable of the script decides what comes next, and the ranks have different values in
it.

Before this was detected, one rank made the collectives of a phase and the other those of the next
step. The mismatch ended both, the phase was skipped, and the run ended with exit code 0 and
different weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import CalmRun, Drill, drilled

pytestmark = pytest.mark.timeout(150)
SCRIPT = "plain_variable.py"
KILL = {"at": "forward", "rank": 1, "step": 5, "do": "SIGKILL"}


@pytest.mark.drill
def test_a_phase_that_a_replaced_rank_would_skip_ends_the_run(tmp_path: Path) -> None:
    """Method: rank 1 is killed between the step that sets the variable and the phase that it
    decides on.
    """
    outcome = drilled(tmp_path, SCRIPT, workers=2, strikes=[KILL])
    assert outcome.code == 1, str(outcome)
    assert not outcome.digests, str(outcome)
    for said in (
        "plain_variable.py:",
        "after step 6, rank 0 enters the phase 'halve', and rank 1 goes on to the next step",
        "run.values",
    ):
        assert said in outcome.stderr, str(outcome)


@pytest.mark.drill
def test_a_phase_decided_by_a_kept_value_is_done_by_a_replaced_rank(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    outcome = drilled(tmp_path, SCRIPT, "--kept", workers=2, strikes=[KILL])
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == calm_run(SCRIPT, "--kept", workers=2).digests, str(outcome)
    assert len(outcome.interruptions) == 1, str(outcome)


@pytest.mark.drill
def test_a_variable_that_a_replacement_has_not_set_is_named(tmp_path: Path) -> None:
    """Method: step 5 sets the variable, rank 1 is killed in step 7, and its replacement begins with
    step 7.
    """
    kill = KILL | {"step": 7}
    outcome = drilled(tmp_path, SCRIPT, "--rolled", workers=2, strikes=[kill])
    assert outcome.code == 1, str(outcome)
    said = " ".join(outcome.stderr.split())
    assert "x is not set in this process: an earlier step had set it" in said, str(outcome)
    assert "kept = run.values(x=...)" in said, str(outcome)


@pytest.mark.drill
def test_ranks_with_different_numbers_of_steps_end_the_run(tmp_path: Path) -> None:
    with Drill(tmp_path, SCRIPT, "--later", workers=2) as drill:
        outcome = drill.finish()
    assert outcome.code == 1, str(outcome)
    assert "rank 0 ends run.steps, and rank 1 goes on to the next step" in outcome.stderr
