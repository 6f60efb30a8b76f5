"""Ranks are killed as fast as they come, for five seconds.

A run that stands still for that long may give up. It says what is kept then, and keeps it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from tests.drills._run import CalmRun, Drill, Outcome

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]
STEPS = ("--steps", 60)
FLAGS = ("--checkpoint-every", 10)
STORM_S = 5.0
PAUSE_S = (0.0, 0.3)  # between two kills


def storm(drill: Drill, chance: random.Random) -> int:
    """Kill random ranks until the storm, or the run, is over. Return how many were killed."""
    until_s, killed = time.monotonic() + STORM_S, 0
    while time.monotonic() < until_s and drill.process.poll() is None:
        living = [pid for rank in range(4) for pid in drill.children(f"outlast-rank{rank}")]
        if living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(living), signal.SIGKILL)
                killed += 1
        time.sleep(chance.uniform(*PAUSE_S))
    return killed


def kept_step(outcome: Outcome) -> int:
    """Return the step that the run says is kept. It names all that are lost."""
    saved = re.findall(r"the state of step (\d+) is saved in", outcome.stderr)
    there = re.findall(r"goes on from the checkpoint of step (\d+) in", outcome.stderr)
    lost = re.findall(r"(\d+) committed steps? (?:is|are) lost", outcome.stderr)
    assert len(saved) + len(there) == 1, str(outcome)
    (kept,) = map(int, saved or there)
    assert kept + sum(map(int, lost)) >= outcome.last_step, str(outcome)
    return kept


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_a_storm_of_kills_costs_no_step_that_is_said_to_be_kept(
    tmp_path: Path, calm_run: CalmRun, script: str, spares: int
) -> None:
    """Whether the run comes back or is resumed, it ends with the bits of a calm one.

    OUTLAST_SEED repeats a storm.
    """
    seed = int(os.environ.get("OUTLAST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"seed {seed}")
    expected = calm_run(script, *STEPS)
    flags = ("--spares", spares, *FLAGS)
    with Drill(tmp_path, script, *STEPS, flags=flags, within_s=150) as drill:
        drill.until(lambda: drill.oldest >= 15, "step 15 on all ranks")
        killed = storm(drill, random.Random(seed))
        outcome = drill.finish()
    assert killed >= 5, f"the storm was weak: {killed} kills\n{outcome}"
    if outcome.code == 0:
        assert outcome.digests == expected.digests, str(outcome)
        return
    assert outcome.code == 1, str(outcome)
    kept = kept_step(outcome)
    again = tmp_path / "again"
    again.mkdir()
    resuming = (*flags, "--resume", "--run-dir", drill.folder)
    with Drill(again, script, *STEPS, flags=resuming) as resumed:
        resumed.process.wait(90)
        said = resumed.said()
        digests = dict(
            re.findall(r"^digest (\d+) (\S+)$", (again / "stdout").read_text(), re.MULTILINE)
        )
    assert f"at step {kept} " in said, f"{kept} was to be kept\n{said}\n{outcome}"
    assert {int(rank): one for rank, one in digests.items()} == expected.digests, said
