"""The launcher itself is killed, and checkpoints are interrupted or find no room. The run goes on
from the newest good state.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from outlast.app.reports.report_facts import report_facts
from outlast.model import limits
from outlast.runtime.ledger.view import look
from outlast.runtime.tiers import local
from tests.drills._pids import alive, below, until, zombies_of
from tests.drills._run import CalmRun, Drill, Outcome, drilled

STEPS = 60
SHARDED_STEPS = 30  # as in test_fsdp.py


def kill_launcher(drill: Drill) -> None:
    """Kill the launcher, and check that no process is left behind."""
    pids = below(drill.process.pid)
    assert len(pids) >= 6, pids  # four ranks, the zygote, and the store's host
    drill.process.kill()
    drill.process.wait(10)
    until("every process of the run has ended", lambda: not alive(pids), within_s=10.0)


def resumed(
    folder: Path, script: str, *arguments: str | int, flags: tuple[str | int, ...] = ()
) -> Outcome:
    return drilled(folder, script, *arguments, flags=("--resume", *flags))


def two_sessions_that_sum_up(folder: Path, outcome: Outcome) -> None:
    assert len(look(str(folder / "run")).records.sessions) == 2, outcome
    outcome.ledger_is_sound()


# --- the launcher ---------------------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_sharded_state_outlives_its_launcher_in_the_vault(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """No checkpoint is ever written: the images of a step that all ranks sealed are enough."""
    expected = calm_run("fsdp.py", "--steps", SHARDED_STEPS).digests
    with Drill(tmp_path, "fsdp.py", "--steps", SHARDED_STEPS, "--step-s", 0.05) as drill:
        drill.until(lambda: drill.step >= 10, "step 10")
        kill_launcher(drill)
        everywhere = min(
            max(step for of, step, _ in drill.commits if of == rank) for rank in range(4)
        )
        assert drill.status["state"] == "lost"
        assert {worker["state"] for worker in drill.status["workers"]} == {"lost"}
    outcome = resumed(tmp_path, "fsdp.py", "--steps", SHARDED_STEPS)
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    said = next(line for line in outcome.stderr.splitlines() if "resuming" in line)
    assert int(said.rpartition("at step ")[2].split()[0]) >= everywhere, (said, everywhere)
    two_sessions_that_sum_up(tmp_path, outcome)


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_replicated_state_goes_on_from_the_newest_checkpoint(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """Two loader workers for each rank are alive as well when the launcher is killed."""
    expected = calm_run("ddp.py", "--steps", STEPS).digests
    flags = ("--checkpoint-every", 5)
    with Drill(
        tmp_path,
        "ddp.py",
        "--steps",
        STEPS,
        "--loaders",
        2,
        flags=flags,
        strikes=[{"at": "forward", "rank": 2, "step": 18, "do": "sleep"}],
    ) as drill:
        root = drill.folder / "checkpoints"
        drill.until(
            lambda: (found := local.checkpoints(root)) and found[0].manifest.step == 15,
            "the checkpoint of step 15",
        )
        kill_launcher(drill)
    outcome = resumed(tmp_path, "ddp.py", "--steps", STEPS, flags=flags)
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    assert "at step 15 from" in outcome.stderr, outcome
    assert len(look(str(tmp_path / "run")).records.sessions) == 2, outcome
    total_s = outcome.report["world_size"] * outcome.report["wall_s"]
    assert (
        abs(sum(value or 0.0 for value in outcome.report["rank_seconds"].values()) - total_s) < 1e-6
    ), outcome.report


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_no_zombie_stays_with_the_launcher(tmp_path: Path) -> None:
    """Method: a rank with two loader workers is killed. A few seconds later no zombie of it is
    left.
    """
    strikes = [{"at": "forward", "rank": 1, "step": 5, "do": "SIGKILL"}]
    with Drill(tmp_path, "ddp.py", "--steps", 400, "--loaders", 2, strikes=strikes) as drill:
        drill.until(
            lambda: drill.fired(kind="strike") and drill.step >= 10, "training after the fault"
        )
        until("no zombies", lambda: not zombies_of(drill.process.pid), within_s=5.0)


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_a_checkpoint_cut_short_is_never_offered(
    tmp_path: Path, calm_run: CalmRun, script: str
) -> None:
    """Method: rank 2 is held up at its save of step 10 while the others write theirs. Then
    everything is killed.
    """
    expected = calm_run(script, "--steps", 20).digests
    flags = ("--checkpoint-every", 5)
    with Drill(
        tmp_path,
        script,
        "--steps",
        20,
        flags=flags,
        marks=[{"mark": "saving", "rank": 2, "step": 10, "do": "sleep"}],
    ) as drill:
        folder = local.checkpoint_folder(drill.folder / "checkpoints", 10)
        drill.until(
            lambda: drill.fired() and len(list(folder.glob("rank-*.safetensors"))) == 3,
            "three of four shards",
        )
        vault = drill.vault()
        kill_launcher(drill)
    shutil.rmtree(vault)  # as after a reboot
    assert [one.manifest.step for one in local.checkpoints(tmp_path / "run" / "checkpoints")] == [5]
    outcome = resumed(tmp_path, script, "--steps", 20, flags=flags)
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    assert "at step 5 from" in outcome.stderr, outcome


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_rank_killed_in_its_save_costs_that_checkpoint_only(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    expected = calm_run("ddp.py", "--steps", 20).digests
    outcome = drilled(
        tmp_path,
        "ddp.py",
        "--steps",
        20,
        flags=("--checkpoint-every", 5),
        marks=[{"mark": "saving", "rank": 2, "step": 10, "do": "SIGKILL"}],
    )
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    outcome.ledger_is_sound()
    assert [one.manifest.step for one in local.checkpoints(tmp_path / "run" / "checkpoints")] == [
        20,
        15,
    ]


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_full_disk_costs_the_checkpoint_and_nothing_else(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """Method: a small file system of its own has room for the first checkpoints only."""
    if not can_mount():
        pytest.skip("needs the right to mount a small file system (root)")
    expected = calm_run("ddp.py", "--steps", 20).digests
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    mount = (
        f'mount -t tmpfs -o size=2200k tmpfs {disk} && "$@"; code=$?; cp -r {disk} {kept}; exit'
        " $code"
    )
    outcome = drilled(
        tmp_path,
        "ddp.py",
        "--steps",
        20,
        flags=("--checkpoint-every", 5, "--checkpoint-dir", disk),
        before=("unshare", "-m", "sh", "-c", mount, "sh"),
    )
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    assert re.search(r"the checkpoint of step \d+ failed: .*No space left", outcome.stderr), outcome
    events = [
        event for part in look(str(tmp_path / "run")).records.sessions for event in part.events
    ]
    written = [event.data["step"] for event in events if event.kind == "checkpoint"]
    failed = sorted({event.data["step"] for event in events if event.kind == "checkpoint_failed"})
    assert written + failed == [5, 10, 15, 20], outcome
    assert failed, "the disk was not full: a fault that never fired"
    found = local.newest_good(kept).checkpoint
    assert found is not None, outcome
    assert found.manifest.step == written[-1], outcome


def can_mount() -> bool:
    return (
        os.geteuid() == 0
        and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    )


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_damaged_checkpoint_is_passed_over_when_all_ranks_are_lost(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """Method: rank 2 is held up in step 18, a bit flips in the checkpoint of step 15, and then
    every rank is killed. The run goes on by itself.
    """
    expected = calm_run("ddp.py", "--steps", STEPS).digests
    # A copy in shared memory may be newer than the checkpoint before the damaged one.
    flags = ("--checkpoint-every", 5, "--keep", "vault:never")
    with Drill(
        tmp_path,
        "ddp.py",
        "--steps",
        STEPS,
        flags=flags,
        strikes=[{"at": "forward", "rank": 2, "step": 18, "do": "sleep"}],
    ) as drill:
        root = drill.folder / "checkpoints"
        drill.until(
            lambda: (found := local.checkpoints(root)) and found[0].manifest.step == 15,
            "the checkpoint of step 15",
        )
        shard = local.checkpoint_folder(root, 15) / local.shard_name(1)
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        for rank in range(4):
            os.kill(drill.pid_of(rank), signal.SIGKILL)
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    assert "a checkpoint was refused" in outcome.stderr, outcome
    assert (root / f"refused-{local.checkpoint_folder(root, 15).name}").is_dir(), outcome
    assert 5 <= outcome.interruptions[0]["steps_lost"] <= 7, outcome
    outcome.ledger_is_sound(lossless=False)


# --- stopped, then resumed ------------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_goes_on_from_the_checkpoint_of_its_stop(
    tmp_path: Path, calm_run: CalmRun, number: signal.Signals, code: int
) -> None:
    expected = calm_run("ddp.py", "--steps", STEPS).digests
    flags = ("--checkpoint-every", 1000)
    with Drill(tmp_path, "ddp.py", "--steps", STEPS, flags=flags) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        drill.process.send_signal(number)
        stopped = drill.finish()
    assert stopped.code == code, stopped
    (step,) = {max(step for of, step, _ in stopped.commits if of == rank) for rank in range(4)}
    assert [one.manifest.step for one in local.checkpoints(tmp_path / "run" / "checkpoints")] == [
        step
    ], stopped
    assert report_facts(look(str(tmp_path / "run")))["interruptions"] == []
    outcome = resumed(tmp_path, "ddp.py", "--steps", STEPS, flags=flags)
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    two_sessions_that_sum_up(tmp_path, outcome)


# --- a checkpoint as often as it pays ------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_checkpoints_are_written_automatically_as_often_as_they_pay(tmp_path: Path) -> None:
    """The first checkpoint comes after ten seconds of training. Its cost decides when the next one
    comes.

    The run is stopped after that, and leaves a last checkpoint.
    """
    flags = ("--keep", "disk:auto")
    with Drill(tmp_path, "ddp.py", "--steps", 10_000, "--pause", 0.05, flags=flags) as drill:
        drill.until(lambda: "--keep disk:auto: a checkpoint each" in drill.said(), "a decision")
        drill.process.send_signal(signal.SIGTERM)
        outcome = drill.finish()
    assert outcome.code == 143, outcome
    records = look(str(tmp_path / "run")).records
    decided = [one for one in records.sessions[-1].events if one.kind == "checkpoint_interval"]
    assert decided
    assert "the rate of Llama 3's GPUs, for 4 GPUs" in str(decided[0].data["why"])
    saved = [one for one in records.sessions[-1].events if one.kind == "checkpoint"]
    assert len(saved) == 2
    assert saved[0].at_s - records.sessions[-1].began_s >= limits.SAVE_FIRST_S
