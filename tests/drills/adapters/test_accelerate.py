"""A loop with accelerate on outlast: a kill loses no update, and changes no bit on any rank."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.drills._run import Drill, Outcome, drilled

pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'outlast[hf]'")

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "accelerate_loop.py")
# all well before the last step, 40, because the status may be late
KILLS = ((5, 1), (12, 0), (19, 1), (26, 0))


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return an undisturbed run."""
    outcome = drilled(tmp_path_factory.mktemp("calm"), EXAMPLE, workers=2, within_s=60)
    assert outcome.code == 0, outcome
    return outcome


def evaluations(outcome: Outcome) -> set[str]:
    return {line for line in outcome.stdout.splitlines() if line.startswith("step ")}


def same(hit: Outcome, calm: Outcome) -> None:
    assert hit.code == 0, hit
    assert hit.digests == calm.digests != {}, hit
    assert evaluations(hit) == evaluations(calm) != set(), hit
    assert not any(one["steps_lost"] for one in hit.interruptions), hit
    assert "not bit-exact" not in hit.stderr, hit


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("spares", [0, 1])
def test_kills_under_accelerate_cost_no_update_and_no_bit(
    tmp_path: Path, calm: Outcome, spares: int
) -> None:
    """Each rank is killed twice. The digest covers the buffers of all ranks."""
    flags = ("--spares", spares)
    with Drill(tmp_path, EXAMPLE, "--pause", "0.12", workers=2, flags=flags, within_s=90) as drill:
        for number, (step, rank) in enumerate(KILLS, 1):
            drill.until(lambda step=step: drill.status.get("step", 0) >= step, f"step {step}")
            (pid,) = [one["pid"] for one in drill.status["workers"] if one["rank"] == rank]
            os.kill(pid, signal.SIGKILL)
            drill.until(lambda number=number: resumed(drill) >= number, f"recovery {number}")
        hit = drill.finish()
    assert len(hit.interruptions) >= len(KILLS), hit
    same(hit, calm)


def resumed(drill: Drill) -> int:
    """Return how many interruptions are over, not counting those that belong to another one."""
    some = drill.status.get("interruptions", ())
    return sum(one["resumed_s"] is not None and one["parent"] is None for one in some)


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_kill_between_two_batches_of_an_update_repeats_both(
    tmp_path: Path, calm: Outcome, rank: int
) -> None:
    """accelerate counts batches by itself, and has to count again from the beginning of the
    update.
    """
    script = str(Path(__file__).with_name("scripts") / "dies_accumulating.py")
    once = tmp_path / "once"
    env = {"DIES": str(rank), "ONCE": str(once)}
    hit = drilled(tmp_path, script, workers=2, env=env, within_s=60)
    assert once.exists()
    assert hit.interruptions, hit
    same(hit, calm)
