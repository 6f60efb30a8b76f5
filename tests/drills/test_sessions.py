"""`outlast run --resume`: steps that were lost between two launchers are booked as lost, a run that
ended well is not trained again without being told to, and of two launchers one wins.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outlast.model.terms import Cause
from outlast.runtime.tiers import local
from tests.drills._pids import alive, below, until
from tests.drills._run import CalmRun, Drill, Outcome, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(200)]
STEPS = 60


def quick(folder: Path, steps: int, *flags: str | int, workers: int = 2, **more: Any) -> Outcome:
    return drilled(folder, "quick.py", "--steps", steps, workers=workers, flags=flags, **more)


def folder_of(run: Path) -> dict[str, bytes]:
    """Return everything in a run's folder, except the ledger's lock files."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in ("lock", "ledger.db-shm", "ledger.db-wal")
    }


def reported(folder: Path) -> dict[str, Any]:
    """Return what the ledger says now. It may lack the last second of a run."""
    command = ["outlast", "report", folder / "run", "--json"]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, capture_output=True, check=True).stdout
    )
    return found


def killed_at(folder: Path, step: int, *flags: str | int, steps: int = STEPS) -> int:
    """Kill the launcher at this step, once the ledger has some steps.

    Remove the vault, as a reboot does. Return the newest step.
    """
    with Drill(folder, "quick.py", "--steps", steps, workers=2, flags=flags) as drill:
        drill.until(lambda: drill.step >= step, f"step {step}")
        drill.until(lambda: reported(folder)["steps"] > 0, "steps in the ledger")
        pids, vault = below(drill.process.pid), drill.vault()
        drill.process.kill()
        drill.process.wait(10)
        until("every process of the run has ended", lambda: not alive(pids), within_s=10.0)
        subprocess.run(["rm", "-rf", str(vault)], check=True)
        return drill.step


def test_steps_lost_between_sessions_are_booked_as_lost(tmp_path: Path) -> None:
    """The launcher is killed, and nothing that was saved is left: all steps are trained again."""
    steps = 400
    killed_at(tmp_path, 30, steps=steps)
    seen = reported(tmp_path)
    before_s = seen["rank_seconds"][Cause.PRODUCTIVE.value]
    outcome = quick(tmp_path, steps, "--resume")
    assert outcome.code == 0, str(outcome)
    report = outcome.report
    assert report["steps_lost_between_sessions"] == seen["steps"] > 0, str(outcome)
    assert [one["steps_lost"] for one in report["sessions"]] == [0, seen["steps"]], str(outcome)
    assert "will be trained again" in outcome.stderr, str(outcome)
    # The steps of the first session do not count as productive twice. All steps take about as long.
    seconds = report["rank_seconds"]
    repeated_s, again_s = seconds[Cause.REPEATED.value], seconds[Cause.PRODUCTIVE.value] - before_s
    assert repeated_s / (repeated_s + again_s) > seen["steps"] / steps / 3, seconds
    said = subprocess.run(["outlast", "report", tmp_path / "run"], capture_output=True, text=True)
    assert f"{seen['steps']} lost ({seen['steps']} of them between sessions)" in said.stdout


def test_a_killed_launcher_leaves_copies_that_a_resumed_run_goes_on_from(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """Replicated state without a checkpoint: the vault has a copy of the newest step."""
    flags = ("--keep", "vault:step")
    with Drill(tmp_path, "quick.py", "--steps", STEPS, workers=2, flags=flags) as drill:
        drill.until(lambda: drill.step >= 30, "step 30")
        pids = below(drill.process.pid)
        drill.process.kill()
        drill.process.wait(10)
        until("every process of the run has ended", lambda: not alive(pids), within_s=10.0)
    outcome = quick(tmp_path, STEPS, "--resume", *flags)
    assert outcome.code == 0, str(outcome)
    assert "from what lies in shared memory" in outcome.stderr, str(outcome)
    assert outcome.report["steps_lost_between_sessions"] <= 1, str(outcome)
    assert outcome.digests == calm_run("quick.py", "--steps", STEPS, workers=2).digests


def test_a_run_that_ended_well_goes_on_from_its_newest_checkpoint(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """A larger target continues the run, with the weights of a run that had that target from the
    start.
    """
    flags = ("--checkpoint-every", 10)
    assert quick(tmp_path, 30, *flags).code == 0
    outcome = quick(tmp_path, STEPS, "--resume", *flags)
    assert outcome.code == 0, str(outcome)
    assert "at step 30 from" in outcome.stderr, str(outcome)
    assert outcome.digests == calm_run("quick.py", "--steps", STEPS, workers=2).digests
    assert outcome.report["steps_lost_between_sessions"] == 0, str(outcome)


def test_a_run_that_ended_well_without_checkpoint_is_not_trained_again(tmp_path: Path) -> None:
    """Nothing in its folder changes, and the exit code is 2. With --from-scratch it is trained
    again.
    """
    assert quick(tmp_path, 20).code == 0
    before = folder_of(tmp_path / "run")
    refused = quick(tmp_path, 20, "--resume")
    assert refused.code == 2, str(refused)
    assert "has ended well at step 20, and has no checkpoint" in refused.stderr, str(refused)
    assert "--from-scratch" in refused.stderr, str(refused)
    assert folder_of(tmp_path / "run") == before
    (tmp_path / "commits").write_text("")
    again = quick(tmp_path, 20, "--resume", "--from-scratch")
    assert (again.code, again.last_step) == (0, 20), str(again)
    assert again.report["steps_lost_between_sessions"] == 20, str(again)


def test_from_scratch_does_not_find_the_checkpoints_of_before(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """All ranks are killed before the first checkpoint of the new training, which begins at
    step 0.
    """
    assert quick(tmp_path, STEPS, "--checkpoint-every", 20).code == 0
    (tmp_path / "commits").write_text("")
    flags = ("--resume", "--from-scratch", "--checkpoint-every", 50)
    with Drill(tmp_path, "quick.py", "--steps", STEPS, workers=2, flags=flags) as drill:
        drill.until(lambda: drill.step >= 10, "step 10")
        for rank in (0, 1):
            os.kill(drill.pid_of(rank), 9)
        outcome = drill.finish()
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == calm_run("quick.py", "--steps", STEPS, workers=2).digests
    lying = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert [name for name in lying if name.startswith("earlier-")], lying
    found = [one.manifest.step for one in local.checkpoints(tmp_path / "run" / "checkpoints")]
    assert found == [50], lying


def test_another_world_size_needs_a_checkpoint(tmp_path: Path) -> None:
    """What is in shared memory cannot be divided among other ranks: exit code 2, and nothing is
    changed.
    """
    with Drill(tmp_path, "quick.py", "--steps", 400, workers=2) as drill:
        drill.until(lambda: drill.step >= 15, "step 15")
        drill.until(lambda: reported(tmp_path)["steps"] > 0, "steps in the ledger")
        pids = below(drill.process.pid)
        drill.process.kill()
        drill.process.wait(10)
        until("every process of the run has ended", lambda: not alive(pids), within_s=10.0)
    before = folder_of(tmp_path / "run")
    refused = quick(tmp_path, 400, "--resume", workers=3)
    assert refused.code == 2, str(refused)
    assert "this run has had 2 ranks, this command asks for 3" in refused.stderr, str(refused)
    assert "resume with 2 ranks" in refused.stderr, str(refused)
    assert folder_of(tmp_path / "run") == before
    again = quick(tmp_path, 100, "--resume")
    assert again.code == 0, str(again)
    assert "from what lies in shared memory" in again.stderr, str(again)


def test_of_two_launchers_that_resume_one_wins_and_the_other_is_refused(tmp_path: Path) -> None:
    """Both start at the same moment. The loser's exit code is 2, and it changes nothing."""
    killed_at(tmp_path, 15, "--checkpoint-every", 10)
    (tmp_path / "commits").write_text("")
    flags = ("--resume", "--checkpoint-every", 10)
    command = [
        "outlast",
        "run",
        "--nproc-per-node",
        "2",
        "--run-dir",
        tmp_path / "run",
        *flags,
        Path(__file__).parent / "scripts" / "quick.py",
        "--steps",
        STEPS,
    ]
    given = os.environ | {"OMP_NUM_THREADS": "1", "DRILL_COMMITS": str(tmp_path / "commits")}
    two = [
        subprocess.Popen(
            list(map(str, command)), env=given, stdout=-1, stderr=-1, text=True, cwd=tmp_path
        )
        for _ in range(2)
    ]
    said = [one.communicate(timeout=120) for one in two]
    assert sorted(one.returncode for one in two) == [0, 2], said
    loser = next(text for one, (_, text) in zip(two, said, strict=True) if one.returncode == 2)
    assert "is in use by process" in loser, said
    assert sum(out.count("digest 0") for out, _ in said) == 1, said
