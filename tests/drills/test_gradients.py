"""Gradients that are zeroed in place, and views of DDP's buckets: every rank's parameters and
optimizer state are compared.

There are three ranks, because DDP divides a view of a bucket and multiplies other gradients. That
gives the same bits only if the number of ranks is a power of two.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.drills._run import CalmRun, Drill, Fault, Outcome, drilled

pytestmark = pytest.mark.timeout(150)
SCRIPT, RANKS = "gradients.py", 3
PLACES = ("forward", "backward", "before_optimizer", "tail")  # of the script
MARKS = ("prepared", "passed", "committed")  # of the transaction
KINDS = {
    "unused views": ("--view", "--unused"),
    "views": ("--view",),
    "unused": ("--unused",),
    "dropped views": ("--view", "--unused", "--to-none"),
    "zeroed before": ("--view", "--unused", "--zero", "before"),
    "zeroed behind": ("--view", "--unused", "--zero", "behind", "--optimizer", "sgd"),
    "accumulated": ("--view", "--accumulate", "3", "--clip"),
    "no_sync": ("--view", "--accumulate", "3", "--no-sync", "--clip"),
}


def kill(kind: str, place: str, number: int) -> Fault:
    """Kill another rank every third step. The kills strike both when the occasionally used layer is
    in use and when it is not.
    """
    return {kind: place, "rank": (number + 1) % RANKS, "step": 4 + 3 * number, "do": "SIGKILL"}


def all_ranks_are_as_calm(outcome: Outcome, calm: Outcome, *, faults: int) -> None:
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == calm.digests, str(outcome)
    assert len(outcome.interruptions) == faults, str(outcome)
    outcome.ledger_is_sound()


@pytest.mark.drill
def test_a_kill_leaves_no_trace_with_bucket_views_and_unused_parameters(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """One kill in a backward: a short form of
    `test_a_kill_at_any_place_leaves_no_trace_in_gradients`.
    """
    arguments = KINDS["unused views"]
    strikes = [kill("at", "backward", 1)]
    outcome = drilled(tmp_path, SCRIPT, *arguments, workers=RANKS, strikes=strikes)
    all_ranks_are_as_calm(outcome, calm_run(SCRIPT, *arguments, workers=RANKS), faults=1)


@pytest.mark.drill
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_place_leaves_no_trace_in_gradients(
    tmp_path: Path, calm_run: CalmRun, kind: str
) -> None:
    """One run in which a rank is killed at each place of a step, in turn."""
    arguments = (*KINDS[kind], "--steps", 28)
    strikes = [kill("at", place, number) for number, place in enumerate(PLACES)]
    marks = [kill("mark", place, number) for number, place in enumerate(MARKS, len(PLACES))]
    outcome = drilled(
        tmp_path,
        SCRIPT,
        *arguments,
        workers=RANKS,
        flags=("--spares", 1),
        strikes=strikes,
        marks=marks,
    )
    calm = calm_run(SCRIPT, *arguments, workers=RANKS)
    all_ranks_are_as_calm(outcome, calm, faults=len(strikes) + len(marks))


@pytest.mark.drill
@pytest.mark.parametrize("kind", ["unused views", "views"])
def test_a_kill_in_the_all_reduce_leaves_no_trace(
    tmp_path: Path, calm_run: CalmRun, kind: str
) -> None:
    """Method: rank 0 is late for its backward, and rank 1 is killed while it waits in the
    all-reduce.
    """
    strikes = [
        {"at": "backward", "rank": 0, "step": 5, "do": "sleep", "for_s": 0.4},
        {"at": "backward", "rank": 1, "step": 5, "do": "SIGKILL", "after_s": 0.2},
    ]
    outcome = drilled(tmp_path, SCRIPT, *KINDS[kind], workers=RANKS, strikes=strikes)
    all_ranks_are_as_calm(outcome, calm_run(SCRIPT, *KINDS[kind], workers=RANKS), faults=1)


@pytest.mark.drill
@pytest.mark.parametrize("zero", ["after", "before"])
def test_restarted_ranks_know_which_gradients_are_zeros(
    tmp_path: Path, calm_run: CalmRun, zero: str
) -> None:
    """Method: with a collective before run.steps, every rank starts from what one survivor hands
    over.
    """
    arguments = (*KINDS["unused views"], "--zero", zero, "--collectives")
    strikes = [{"at": "forward", "rank": 1, "step": 7, "do": "SIGKILL"}]
    outcome = drilled(tmp_path, SCRIPT, *arguments, workers=RANKS, strikes=strikes)
    all_ranks_are_as_calm(outcome, calm_run(SCRIPT, *arguments, workers=RANKS), faults=1)


@pytest.mark.drill
@pytest.mark.parametrize("zero", ["after", "before"])
def test_a_checkpoint_tells_which_gradients_are_zeros(
    tmp_path: Path, calm_run: CalmRun, zero: str
) -> None:
    """Method: all ranks are killed at once, so that they start from a checkpoint."""
    arguments = (*KINDS["unused views"], "--zero", zero, "--steps", 60)
    flags = ("--checkpoint-every", 5)
    with Drill(tmp_path, SCRIPT, *arguments, workers=RANKS, flags=flags) as drill:
        drill.until(lambda: list(drill.folder.glob("checkpoints/*/manifest*")), "a checkpoint")
        for rank in range(RANKS):
            os.kill(drill.pid_of(rank), signal.SIGKILL)
        outcome = drill.finish()
    assert outcome.code == 0, str(outcome)
    assert outcome.interruptions[0]["rung"] == "restart", str(outcome)
    assert outcome.digests == calm_run(SCRIPT, *arguments, workers=RANKS).digests, str(outcome)
