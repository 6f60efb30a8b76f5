"""The process that writes checkpoints is killed and stopped, and ranks die while it writes.

Training goes on, and what was captured becomes a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from outlast.runtime.tiers import local
from tests.drills._pids import alive, below
from tests.drills._run import CalmRun, Drill

STEPS = 60
EVERY = ("--checkpoint-every", 5)


def steps_in(drill: Drill) -> list[int]:
    return [one.manifest.step for one in local.checkpoints(drill.folder / "checkpoints")]


def oldest_since(drill: Drill, before: list[int]) -> int:
    """Return the newest step that all four ranks have committed in other processes than these."""
    newest = {rank: step for rank, step, pid in drill.commits if pid not in before}
    return min(newest.values()) if len(newest) == 4 else 0


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_each_writer_is_killed_and_no_step_is_lost(tmp_path: Path, calm_run: CalmRun) -> None:
    """Method: each writer that is seen is killed, up to five. The last checkpoint is whole."""
    expected = calm_run("ddp.py", "--steps", STEPS).digests
    killed = set[int]()
    with Drill(tmp_path, "ddp.py", "--steps", STEPS, "--pause", 0.1, flags=EVERY) as drill:

        def kills() -> bool:
            for pid in drill.children("outlast-writer"):
                if pid not in killed and len(killed) < 5:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            return drill.step >= STEPS - 5

        drill.until(kills, "the last steps")
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    assert len(killed) >= 2, "fewer than two writers were killed: a fault that never fired"
    assert "the process that writes checkpoints: it has ended with exit code -9" in outcome.stderr
    assert outcome.interruptions == [], outcome
    outcome.ledger_is_sound()
    found = local.newest_good(tmp_path / "run" / "checkpoints")
    assert found.checkpoint is not None
    assert (found.checkpoint.manifest.step, found.refused) == (STEPS, ())


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_what_a_killed_rank_had_captured_becomes_a_checkpoint(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """Method: the writer is stopped before step 10 is captured, and rank 2 is killed after that.
    Once the run trains again, the writer goes on, and completes the checkpoint of step 10.
    """
    expected = calm_run("ddp.py", "--steps", STEPS).digests
    flags = ("--checkpoint-every", 10, "--keep-last", 10)
    with Drill(tmp_path, "ddp.py", "--steps", STEPS, "--pause", 0.1, flags=flags) as drill:
        drill.until(lambda: drill.children("outlast-writer"), "a writer")
        drill.until(lambda: drill.step >= 3, "some steps")
        (writer,) = drill.children("outlast-writer")
        os.kill(writer, signal.SIGSTOP)
        assert drill.step < 10, "the writer was stopped too late"
        drill.until(lambda: drill.oldest >= 12, "step 12 on all ranks")
        assert steps_in(drill) == []
        os.kill(drill.pid_of(2), signal.SIGKILL)
        drill.until(lambda: drill.oldest >= 14, "training after the fault")
        os.kill(writer, signal.SIGCONT)
        drill.until(lambda: 10 in steps_in(drill), "the checkpoint of step 10")
        pids = below(drill.process.pid)
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    assert len(outcome.interruptions) == 1, outcome
    assert not re.search(r"the checkpoint of step 10 failed", outcome.stderr), outcome
    assert steps_in(drill) == [60, 50, 40, 30, 20, 10]
    assert local.newest_good(tmp_path / "run" / "checkpoints").refused == ()
    assert alive(pids) == []


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_an_image_of_a_rolled_back_step_replaces_no_file(tmp_path: Path, calm_run: CalmRun) -> None:
    """Method: the writer is stopped before step 10 is captured, and then all ranks are killed. They
    start again from the first step, and capture step 10 once more. Only then the writer goes on.
    """
    expected = calm_run("ddp.py", "--steps", STEPS).digests
    flags = ("--checkpoint-every", 10, "--keep-last", 10)
    with Drill(tmp_path, "ddp.py", "--steps", STEPS, "--pause", 0.1, flags=flags) as drill:
        drill.until(lambda: drill.children("outlast-writer"), "a writer")
        drill.until(lambda: drill.step >= 3, "some steps")
        (writer,) = drill.children("outlast-writer")
        os.kill(writer, signal.SIGSTOP)
        assert drill.step < 10, "the writer was stopped too late"
        drill.until(lambda: drill.oldest >= 12, "step 12 on all ranks")
        ranks = [drill.pid_of(rank) for rank in range(4)]
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        drill.until(lambda: oldest_since(drill, ranks) >= 12, "step 12 once more")
        os.kill(writer, signal.SIGCONT)
        drill.until(lambda: 10 in steps_in(drill), "the checkpoint of step 10")
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    assert len(outcome.interruptions) == 1, outcome
    assert steps_in(drill) == [60, 50, 40, 30, 20, 10]
    for one in local.checkpoints(drill.folder / "checkpoints"):
        local.verify(one)


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_no_writer_is_started_where_no_checkpoint_is_written(tmp_path: Path) -> None:
    with Drill(tmp_path, "ddp.py", "--steps", 20) as drill:
        drill.until(lambda: drill.step >= 5, "some steps")
        assert drill.children("outlast-writer") == []
        assert drill.finish().code == 0
