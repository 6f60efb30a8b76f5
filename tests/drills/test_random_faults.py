"""A hundred random faults: at whatever moment they strike, the bits are those of an undisturbed
run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.drills._run import Drill, drilled

FAULTS = 100
LATE = "did not leave its collective in time"


@pytest.mark.drill
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("script", "steps", "flags"), [("ddp.py", 1200, ("--spares", 1)), ("fsdp.py", 1200, ())]
)
def test_a_hundred_random_faults(
    tmp_path: Path, script: str, steps: int, flags: tuple[str | int, ...]
) -> None:
    """SIGKILL and SIGSTOP go to random ranks at random moments, from outside. The seed is printed.

    OUTLAST_SEED repeats a run.
    """
    seed = int(os.environ.get("OUTLAST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    (tmp_path / "calm").mkdir()
    expected = drilled(tmp_path / "calm", script, "--steps", steps, within_s=300)
    with Drill(tmp_path, script, "--steps", steps, flags=flags, within_s=800) as drill:
        fired = []
        for number in range(FAULTS):
            at_step = 5 + number * (steps - 50) // FAULTS
            drill.until(
                lambda at_step=at_step: drill.oldest >= at_step, f"step {at_step} on all ranks"
            )
            time.sleep(chance.uniform(0.0, 0.1))
            rank, how = chance.randrange(4), chance.choice([signal.SIGKILL, signal.SIGSTOP])
            # the rank has committed since the last fault, so no other rank is dead
            os.kill(drill.pid_of(rank), how)
            fired.append((at_step, rank, how.name))
        outcome = drill.finish()
    print(json.dumps(fired))
    assert expected.code == 0, expected
    assert outcome.digests == expected.digests, str(outcome)
    assert outcome.code == 0, str(outcome)
    outcome.ledger_is_sound()
    # On a busy machine a survivor may get no processor for a second. It is replaced as well.
    late = sum(one["reason"].count(LATE) for one in outcome.interruptions)
    lost = sum(len(one["ranks"]) for one in outcome.interruptions)
    assert (lost - late, late <= 3) == (FAULTS, True), str(outcome)
