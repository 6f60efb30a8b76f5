"""A script that communicates before run.steps only once it has a checkpoint of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(200)]
SCRIPT = str(Path(__file__).parent / "scripts" / "finds_own.py")


def test_a_collective_of_some_starts_only_is_refused_with_the_way_out(tmp_path: Path) -> None:
    outcome = drilled(tmp_path, SCRIPT, tmp_path, workers=2)
    assert outcome.code == 2, outcome
    assert "finds_own.py:26" in outcome.stderr, outcome
    assert "call torch.distributed.barrier() in front of run.steps" in outcome.stderr, outcome


def test_a_collective_of_every_start_costs_no_step(tmp_path: Path) -> None:
    """This is the way out that the error names. The file makes the calm run of the same bits."""
    hit, calm = tmp_path / "hit", tmp_path / "calm"
    hit.mkdir()
    calm.mkdir()
    (calm / "own").touch()
    outcome = drilled(hit, SCRIPT, hit, "--always", workers=2)
    expected = drilled(calm, SCRIPT, calm, "--always", workers=2)
    assert (outcome.code, expected.code) == (0, 0), outcome
    assert len(outcome.interruptions) == 1, outcome
    assert outcome.digests == expected.digests != {}, outcome
    outcome.ledger_is_sound()
