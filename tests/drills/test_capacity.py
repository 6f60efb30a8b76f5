"""Too little shared memory, a shared memory that fills up, and run folders that cannot be used."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.drills._run import OUTLAST, SCRIPTS, Drill, drilled


def in_small_memory(mib: int) -> tuple[str, ...]:
    """Return a command prefix that gives a command a /dev/shm of its own, of this size.

    Skips the test if that is not possible.
    """
    if (
        os.geteuid() != 0
        or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode
    ):
        pytest.skip("needs the right to mount a small /dev/shm (root)")
    return (
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount -t tmpfs -o size={mib}m tmpfs /dev/shm && exec "$@"',
        "sh",
    )


@pytest.mark.timeout(200)
@pytest.mark.parametrize("script", ["fsdp.py"])
def test_too_little_shared_memory_is_refused_before_training_starts(
    tmp_path: Path, script: str
) -> None:
    outcome = drilled(tmp_path, script, "--width", 512, before=in_small_memory(48))
    assert outcome.code == 1, outcome
    assert outcome.commits == [], outcome
    said = (
        r"the vault needs [\d,]+ more bytes in /dev/shm/\S+ for 4 ranks with 2 slots of [\d,]+"
        r" bytes each; [\d,]+ are available"
    )
    assert re.search(said, outcome.stderr), outcome
    assert "hint: make /dev/shm larger" in outcome.stderr, outcome
    assert outcome.interruptions == [], outcome


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_no_room_for_a_vault_at_all_is_refused(tmp_path: Path) -> None:
    """Method: a /dev/shm that is full before the run begins."""
    before = list(in_small_memory(1))
    before[4] = (
        before[4].replace("exec", "{ head -c 2000000 /dev/zero > /dev/shm/full 2>/dev/null; exec")
        + "; }"
    )
    outcome = drilled(tmp_path, "ddp.py", before=before)
    assert outcome.code == 1, outcome
    assert "/dev/shm" in outcome.stderr, outcome
    assert "Traceback" not in outcome.stderr, outcome
    assert outcome.commits == [], outcome


@pytest.mark.drill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_training_goes_on_and_replaces_a_rank_in_full_shared_memory(
    tmp_path: Path, script: str
) -> None:
    """Method: another program takes all that is left of /dev/shm at step 5, and a rank dies at step
    10.
    """
    (tmp_path / "calm").mkdir()
    calm = drilled(tmp_path / "calm", script, "--steps", 20)
    hold = {"at": "forward", "rank": 0, "step": 5, "do": "sleep", "for_s": 0.8}
    strikes = [hold, {"at": "forward", "rank": 1, "step": 10, "do": "SIGKILL"}]
    with Drill(
        tmp_path, script, "--steps", 20, before=in_small_memory(64), strikes=strikes
    ) as drill:
        drill.until(lambda: drill.fired(0, kind="strike"), "step 5")
        fill(Path(f"/proc/{drill.process.pid}/root/dev/shm/somebody-else"))
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert outcome.digests == calm.digests, outcome
    assert drill.fired(1, kind="strike"), outcome
    outcome.ledger_is_sound()


def fill(path: Path) -> None:
    """Write to a file until no byte of room is left."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


# --- run folders ----------------------------------------------------------------------------------


def refused(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [OUTLAST, "run", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr.startswith("error: "), done.stderr
    assert "\nhint: " in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_run_folder_in_use_is_refused_with_its_holder(tmp_path: Path) -> None:
    """Both a new run and a resumed one are refused, and the run that holds the folder goes on."""
    with Drill(tmp_path, "ddp.py", "--steps", 100_000) as drill:
        drill.until(lambda: drill.step >= 2, "step 2")
        for flags in ([], ["--resume"]):
            said = refused(
                "--nproc-per-node",
                "2",
                "--run-dir",
                drill.folder,
                *flags,
                SCRIPTS / "ddp.py",
                cwd=tmp_path,
            )
            assert f"is in use by process {drill.process.pid}" in said, said
        at = drill.step
        drill.until(lambda: drill.step > at + 2, "further steps")


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_a_run_folder_that_is_done_or_of_another_version_is_refused(tmp_path: Path) -> None:
    assert drilled(tmp_path, "plain.py", tmp_path, "--numbers", 1, workers=1).code == 0
    folder = tmp_path / "run"
    said = refused("--run-dir", folder, SCRIPTS / "plain.py", tmp_path, cwd=tmp_path)
    assert "holds a run already" in said, said
    card = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(card | {"format": 99, "version": "9.9"}))
    said = refused("--run-dir", folder, "--resume", SCRIPTS / "plain.py", tmp_path, cwd=tmp_path)
    assert "was written by outlast 9.9 (format 99)" in said, said
    said = refused(
        "--run-dir", tmp_path / "nowhere", "--resume", SCRIPTS / "plain.py", tmp_path, cwd=tmp_path
    )
    assert "is not a run folder" in said, said


@pytest.mark.timeout(200)
def test_more_workers_than_a_node_may_have_are_refused(tmp_path: Path) -> None:
    said = refused("--nproc-per-node", "250", "--spares", "7", SCRIPTS / "ddp.py", cwd=tmp_path)
    assert "250 workers and 7 spares are more than the 256 that a node may have" in said, said
    assert not (tmp_path / "runs").exists()
