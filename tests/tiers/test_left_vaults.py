"""What killed launchers left in shared memory is said, with its size, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from outlast.runtime.tiers import left_vaults
from outlast.runtime.tiers.left_vaults import left_vaults_note
from outlast.runtime.tiers.vault_owner import OWNER, clean_stale, vault_folder


def _dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def _vault(parent: Path, run: str, pid: object, size_bytes: int) -> Path:
    folder = parent / vault_folder(run).name
    (folder / "0").mkdir(parents=True)
    (folder / OWNER).write_text(json.dumps({"version": 1, "run": run, "pid": pid}))
    (folder / "0" / "slot").write_bytes(bytes(size_bytes))
    return folder


def test_vaults_of_dead_runs_are_named_with_what_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of living runs, nor that of the run itself, which may be resumed."""
    monkeypatch.setattr(left_vaults, "LEFT_VAULTS_TOLD_BYTES", 3_000_000)
    dead = _dead_pid()
    own = _vault(tmp_path, "mine", dead, 2_000_000)
    _vault(tmp_path, "living", os.getpid(), 2_000_000)
    first = _vault(tmp_path, "one", dead, 2_000_000)
    assert left_vaults_note(own=own, parent=tmp_path) == "", "two megabytes are not worth a line"
    second = _vault(tmp_path, "two", dead, 2_000_000)
    said = left_vaults_note(own=own, parent=tmp_path)
    for words in ("4 MB of 2 runs whose launchers were killed,", f"{first}, {second}", "--resume"):
        assert words in said, said


@pytest.mark.parametrize("owner", ["", "[]", "{}", '{"pid": "x"}', '{"pid": 1e400}'])
def test_a_folder_that_is_no_vault_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    monkeypatch.setattr(left_vaults, "LEFT_VAULTS_TOLD_BYTES", 1)
    folder = _vault(tmp_path, "odd", 1, 2_000_000)
    (folder / OWNER).write_text(owner)
    (tmp_path / vault_folder("empty").name).mkdir()
    assert left_vaults_note(own=tmp_path / "mine", parent=tmp_path) == ""


@pytest.mark.parametrize("uid", [os.geteuid(), 65534], ids=["own", "another user's"])
def test_a_pipe_in_place_of_an_owner_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    """Everybody may write in /dev/shm. Who opens a pipe waits until somebody writes into it."""
    if uid != os.geteuid() and os.geteuid() != 0:
        pytest.skip("needs root, to make a folder of another user")
    monkeypatch.setattr(left_vaults, "LEFT_VAULTS_TOLD_BYTES", 1)
    folder = tmp_path / vault_folder("theirs").name
    folder.mkdir()
    os.mkfifo(folder / OWNER)
    os.chown(folder, uid, -1)
    assert left_vaults_note(own=tmp_path / "mine", parent=tmp_path) == ""
    assert clean_stale(tmp_path) == ()
