"""A script that communicates before run.steps only once it has a checkpoint of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import Outcome, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(200)]
SCRIPT = str(Path(__file__).parent / "scripts" / "finds_own.py")


def hit_and_calm(tmp_path: Path, *arguments: str, flags: tuple[str, ...] = ()) -> Outcome:
    """Return the run in which rank 1 is killed. Check that it has the bits of a run in which it is
    not.
    """
    hit, calm = tmp_path / "hit", tmp_path / "calm"
    hit.mkdir()
    calm.mkdir()
    for name in ("own", "later"):
        (calm / name).touch()
    outcome = drilled(hit, SCRIPT, hit, *arguments, workers=2, flags=flags)
    expected = drilled(calm, SCRIPT, calm, *arguments, workers=2)
    assert (outcome.code, expected.code) == (0, 0), outcome
    assert not expected.interruptions, expected
    assert outcome.digests == expected.digests != {}, outcome
    outcome.ledger_is_sound()
    return outcome


def test_a_collective_of_some_starts_lets_main_be_entered_again(tmp_path: Path) -> None:
    """The replacement reaches the collective alone. The second loss is answered at once."""
    outcome = hit_and_calm(tmp_path, "--twice")
    first, second = outcome.interruptions
    assert "rank 1 cannot be replaced in place" in first["reason"], outcome
    assert "finds_own.py:" in first["reason"], outcome
    assert "all enter main's function again" in first["reason"], outcome
    assert len(first["pids"]) == 1, outcome
    assert "in place" not in second["reason"], outcome
    assert outcome.stderr.count("torch.distributed.barrier() in front of run.steps") == 1, outcome


def test_a_collective_of_some_starts_costs_no_step_with_spares(tmp_path: Path) -> None:
    """A spare may have started before the file existed, or after that."""
    outcome = hit_and_calm(tmp_path, "--twice", flags=("--spares", "1"))
    assert len(outcome.interruptions) == 2, outcome


def test_a_collective_of_some_starts_without_main_restarts_all(tmp_path: Path) -> None:
    (one,) = hit_and_calm(tmp_path, "--flat").interruptions
    assert "rank 1 cannot be replaced in place" in one["reason"], one
    assert "all ranks restart" in one["reason"], one


def test_a_collective_of_every_start_is_known_beforehand(tmp_path: Path) -> None:
    """The warning recommends this."""
    outcome = hit_and_calm(tmp_path, "--always")
    (one,) = outcome.interruptions
    assert "in place" not in one["reason"], outcome
    assert "torch.distributed.barrier()" not in outcome.stderr, outcome
