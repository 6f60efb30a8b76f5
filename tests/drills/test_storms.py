"""Ranks are killed as fast as they start, for five seconds.

Kills from outside are no crash loop: the run goes on once they end. The rule that ends a run which
such kills hold up for long is tested in tests/engine/test_recovery.py.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.drills._run import CalmRun, Drill

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]
STEPS = ("--steps", 60)
FLAGS = ("--checkpoint-every", 10)
STORM_S = 5.0
PAUSE_S = {  # between two kills
    "some get through": (0.0, 0.3),
    "none gets through": (0.03, 0.15),  # no replacement lives long enough for a step
}


def storm(drill: Drill, chance: random.Random, pause_s: tuple[float, float]) -> int:
    """Kill random ranks until the storm, or the run, is over. Return how many were killed."""
    until_s, killed = time.monotonic() + STORM_S, 0
    while time.monotonic() < until_s and drill.process.poll() is None:
        living = [pid for rank in range(4) for pid in drill.children(f"outlast-rank{rank}")]
        if living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(living), signal.SIGKILL)
                killed += 1
        time.sleep(chance.uniform(*pause_s))
    return killed


@pytest.mark.parametrize("pause", PAUSE_S)
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_a_run_comes_back_from_a_storm_of_kills(
    tmp_path: Path, calm_run: CalmRun, script: str, spares: int, pause: str
) -> None:
    """The run ends with the bits of an undisturbed one. OUTLAST_SEED repeats a storm."""
    seed = int(os.environ.get("OUTLAST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"seed {seed}")
    expected = calm_run(script, *STEPS)
    flags = ("--spares", spares, *FLAGS)
    with Drill(tmp_path, script, *STEPS, flags=flags, within_s=150) as drill:
        drill.until(lambda: drill.oldest >= 15, "step 15 on all ranks")
        killed = storm(drill, random.Random(seed), PAUSE_S[pause])
        outcome = drill.finish()
    assert killed >= 5, f"the storm was weak: {killed} kills\n{outcome}"
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == expected.digests, str(outcome)
