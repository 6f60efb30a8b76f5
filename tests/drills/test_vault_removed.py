"""The names of the run's shared memory are removed in the middle of training."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.drills._run import Drill, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(180)]
STEPS = ("--steps", 120)


@pytest.mark.parametrize(("script", "then"), [("ddp.py", (0,)), ("fsdp.py", (0, 1))])
def test_a_removed_vault_costs_nothing_at_the_next_faults(
    tmp_path: Path, script: str, then: tuple[int, ...]
) -> None:
    """Method: `rm -rf` during training, then SIGKILL to rank 1, and then to others. The bits are
    equal, and nothing is lost.

    Sharded state is sealed in the vault, so even all ranks may be killed at once.
    """
    calm, folder = tmp_path / "calm", tmp_path / "struck"
    calm.mkdir()
    folder.mkdir()
    expected = drilled(calm, script, *STEPS, workers=2)
    with Drill(folder, script, *STEPS, workers=2, within_s=120.0) as drill:
        drill.until(lambda: drill.status.get("step", 0) >= 8, "step 8, and a look at the vault")
        shutil.rmtree(drill.vault())
        drill.until(lambda: "was removed" in drill.said(), "a warning")
        old = drill.pid_of(1)
        os.kill(old, signal.SIGKILL)
        drill.until(lambda: drill.pid_of(1) != old, "the successor's first step")
        others = [drill.pid_of(rank) for rank in then]
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        drill.until(
            lambda: {drill.pid_of(rank) for rank in then}.isdisjoint(others), "their successors"
        )
        vault = drill.vault()
        outcome = drill.finish()
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == expected.digests, str(outcome)
    outcome.ledger_is_sound()
    assert outcome.stderr.count("was removed") == 1, str(outcome)
    assert not vault.exists(), "the run's own end removes it"
