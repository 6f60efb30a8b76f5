"""`outlast ckpt now` and `outlast stop`, requested of a run that trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outlast.runtime.tiers import local
from tests.app.command import outlast
from tests.drills._pids import alive, below
from tests.drills._run import Drill
from tests.drills.test_signals import ended_at_one_step


def asked(*words: str | Path) -> dict[str, Any]:
    """Run a command that is to be carried out, and return its answer."""
    said = outlast(*words, "--json")
    assert said.returncode == 0, said
    found: dict[str, Any] = json.loads(said.stdout)
    assert found["state"] == "done", found
    return found


@pytest.mark.timeout(200)
def test_a_run_is_saved_and_stopped_by_command(tmp_path: Path) -> None:
    """The run writes no checkpoints by itself. Once `outlast stop` returns, its folder is free."""
    run = tmp_path / "run"
    with Drill(tmp_path, "ddp.py", "--steps", 100_000, "--pause", 0.1) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        pids = below(drill.process.pid)
        before = drill.step
        saved = asked("ckpt", "now", run)
        asked("stop", run, "--reason", "the queue is needed")
        assert drill.process.wait(10) == 143
        outcome = drill.finish()
    last = ended_at_one_step(outcome, 143)
    found = local.newest_good(run / "checkpoints").checkpoint
    assert found is not None
    assert before < found.manifest.step <= last
    assert str(found.folder) in saved["text"]
    assert outcome.report["reason"].startswith("the run is stopped, asked for by ")
    assert outcome.report["reason"].endswith("): the queue is needed")
    assert not alive(pids)
    assert not (run / "control").exists()
