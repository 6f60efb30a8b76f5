"""Scripts of the shapes that people have, adopted by the calls for real loops: a function that
draws batches, a resume from the script's own file.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.drills._run import Drill, Outcome

DRAWS = str(Path(__file__).with_name("scripts") / "draws.py")


def struck(folder: Path, *arguments: str, at: tuple[int, ...], flags: tuple[str, ...]) -> Outcome:
    """Run draws.py on two ranks, and kill rank 1 at each of these steps."""
    folder.mkdir()
    with Drill(folder, DRAWS, *arguments, workers=2, flags=flags) as drill:
        for number, step in enumerate(at):
            drill.until(lambda step=step: drill.status.get("step", 0) >= step, f"step {step}")
            (pid,) = [one["pid"] for one in drill.status["workers"] if one["rank"] == 1]
            os.kill(pid, signal.SIGKILL)
            over = number + 1
            drill.until(lambda over=over: resumed(drill) == over, f"recovery {over}")
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert all(one["steps_lost"] == 0 for one in outcome.interruptions), outcome
    assert len(outcome.interruptions) == len(at), outcome
    return outcome


@pytest.mark.parametrize("spares", [0, 1])
def test_drawn_batches_are_the_same_after_kills(tmp_path: Path, spares: int) -> None:
    """Rank 1 is killed twice, and draws what its predecessor would have drawn. Neither kills nor
    prefetch change a bit, and nothing is said to be carried.
    """
    calm = struck(tmp_path / "calm", "--no-prefetch", at=(), flags=())
    hit = struck(tmp_path / "hit", at=(10, 30), flags=("--spares", str(spares)))
    assert hit.digests == calm.digests != {}, hit
    assert "not bit-exact" not in hit.stderr, hit
    assert "carried" not in hit.stderr, hit


def resumed(drill: Drill) -> int:
    """How many interruptions are over."""
    some = drill.status.get("interruptions", ())
    return sum(one["resumed_s"] is not None for one in some)
