"""`outlast ckpt`: what it says of checkpoints, and what it does to damaged, hostile and
foreign folders.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import CorruptError, UsageError
from outlast.runtime.tiers.local import MANIFEST_NAME, checkpoint_folder
from tests.app.command import outlast
from tests.tiers.saved import flip_bit, forge, save


def facts(*words: str | Path, code: int = 0) -> dict[str, Any]:
    said = outlast("ckpt", *words, "--json")
    assert said.returncode == code, said
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def states(root: Path, command: str = "ls", code: int = 0) -> dict[int, str]:
    found = facts(command, root, code=code)["checkpoints"]
    return {one["step"]: one["state"] for one in found}


def test_ls_names_states_and_verify_knows_them(tmp_path: Path) -> None:
    """A flipped bit is seen by reading only; a missing file, by looking. A folder without a
    manifest is no checkpoint.
    """
    save(tmp_path, 1, 2, 3)
    (tmp_path / "step-000000000009").mkdir()
    assert states(tmp_path) == {9: "incomplete", 3: "unknown", 2: "unknown", 1: "unknown"}
    flip_bit(checkpoint_folder(tmp_path, 3) / "rank-1.safetensors")
    (checkpoint_folder(tmp_path, 2) / "rank-0.safetensors").unlink()
    assert states(tmp_path, code=1) == {9: "incomplete", 3: "unknown", 2: "bad", 1: "unknown"}
    found = states(tmp_path, "verify", code=1)
    assert found == {9: "incomplete", 3: "bad", 2: "bad", 1: "good"}
    said = outlast("ckpt", "verify", tmp_path)
    assert "step 3 is bad: " in said.stdout
    assert "rank-1.safetensors does not match its checksum" in said.stdout
    assert "rank-0.safetensors is missing" in said.stdout


def test_a_table_has_size_age_ranks_and_what_they_survive(tmp_path: Path) -> None:
    save(tmp_path, 12)
    said = outlast("ckpt", "ls", tmp_path)
    assert (said.returncode, said.stderr) == (0, "")
    row = next(line for line in said.stdout.splitlines() if line.startswith("disk"))
    assert row.split()[1] == "12"
    assert row.split()[-3:] == ["2", "sharded", "unknown"]
    assert "not the loss of the disk" in said.stdout
    (one,) = facts("ls", tmp_path)["checkpoints"]
    size = sum(path.stat().st_size for path in tmp_path.glob("step-*/rank-*"))
    assert (one["size_bytes"], one["files"], one["run"]) == (size, 2, "run-1")
    assert 0 <= one["age_s"] < 600


def test_plan_restore_passes_over_what_is_bad_and_says_why(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    flip_bit(checkpoint_folder(tmp_path, 3) / "rank-0.safetensors", at=8)
    (checkpoint_folder(tmp_path, 2) / MANIFEST_NAME).write_text("{")
    found = facts("plan-restore", tmp_path)
    assert found["restores"]["step"] == 1
    assert [one["step"] for one in found["refused"]] == [3, 2]
    assert found["read_s"] >= 0
    said = outlast("ckpt", "plan-restore", tmp_path)
    assert "step 1 would be restored" in said.stdout
    assert "step 3 is passed over" in said.stdout
    flip_bit(checkpoint_folder(tmp_path, 1) / "rank-0.safetensors")
    assert facts("plan-restore", tmp_path, code=1)["restores"] is None


def test_prune_keeps_the_newest_and_every_so_many_steps(tmp_path: Path) -> None:
    save(tmp_path, *range(1, 11))
    dry = facts("prune", tmp_path, "--keep-last", "2", "--keep-every", "4", "--dry-run")
    assert sorted(states(tmp_path)) == list(range(1, 11))
    found = facts("prune", tmp_path, "--keep-last", "2", "--keep-every", "4")
    assert [one["step"] for one in found["removed"]] == [7, 6, 5, 3, 2, 1]
    assert {**dry, "dry_run": False} | {"removed": 0} == {**found, "removed": 0}
    assert sorted(states(tmp_path)) == [4, 8, 9, 10]


def test_prune_never_removes_the_last_restorable_one(tmp_path: Path) -> None:
    """Method: all newer ones are damaged. If none is good, nothing is removed at all."""
    save(tmp_path, 1, 2, 3, 4)
    for step in (3, 4):
        flip_bit(checkpoint_folder(tmp_path, step) / "rank-0.safetensors")
    for _ in range(2):
        facts("prune", tmp_path, "--keep-last", "0")
        assert states(tmp_path, "verify", code=1) == {4: "bad", 3: "bad", 2: "good"}
    flip_bit(checkpoint_folder(tmp_path, 2) / "rank-0.safetensors")
    facts("prune", tmp_path, "--keep-last", "1")
    assert sorted(states(tmp_path, "verify", code=1)) == [2, 3, 4]


def test_prune_removes_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    save(tmp_path / "other", 1)
    save(tmp_path / "run", 2, 3)
    link = checkpoint_folder(tmp_path / "run", 1)
    link.symlink_to(checkpoint_folder(tmp_path / "other", 1).absolute())
    facts("prune", tmp_path / "run", "--keep-last", "1")
    assert not link.is_symlink()
    assert states(tmp_path / "other", "verify") == {1: "good"}


def test_a_run_is_found_by_its_folder_and_its_checkpoint_dir(tmp_path: Path) -> None:
    """Method: run.json as `outlast run --checkpoint-dir` writes it."""
    save(tmp_path / "elsewhere", 5)
    run = tmp_path / "run"
    run.mkdir()
    card = {"run": "run-1", "name": "x", "format": 2, "version": "0", "options": {}}
    (run / "run.json").write_text(
        json.dumps({**card, "options": {"checkpoints": str(tmp_path / "elsewhere")}})
    )
    assert states(run) == {5: "unknown"}
    assert states(checkpoint_folder(tmp_path / "elsewhere", 5), "verify") == {5: "good"}
    (run / "run.json").write_text(json.dumps(card))
    save(run / "checkpoints", 6)
    assert states(run) == {6: "unknown"}


# --- hostile and damaged folders ------------------------------------------------------------------


def outside(folder: Path) -> None:
    (entry, *_) = json.loads((folder / MANIFEST_NAME).read_text())["files"]
    forge(folder, files=[{**entry, "name": "../../secret"}])


def link_outside(folder: Path) -> None:
    shard = folder / "rank-0.safetensors"
    shutil.move(shard, folder.parent.parent / "secret")
    shard.symlink_to(folder.parent.parent / "secret")


def pipe(folder: Path) -> None:
    """Reading it would wait forever."""
    shard = folder / "rank-0.safetensors"
    shard.unlink()
    os.mkfifo(shard)
    (entry, *rest) = json.loads((folder / MANIFEST_NAME).read_text())["files"]
    forge(folder, files=[{**entry, "length": 0}, *rest])


def lying_header(folder: Path) -> None:
    """A header that says more bytes than the file has, with checksums that fit it."""
    import xxhash

    shard = folder / "rank-0.safetensors"
    data = shard.read_bytes().replace(b'"shape":[700]', b'"shape":[999]')
    shard.write_bytes(data)
    (entry, *rest) = json.loads((folder / MANIFEST_NAME).read_text())["files"]
    forge(folder, files=[{**entry, "xxh3_64": xxhash.xxh3_64_hexdigest(data)}, *rest])


def endless_header(folder: Path) -> None:
    import xxhash

    shard = folder / "rank-0.safetensors"
    data = (2**63).to_bytes(8, "little") + shard.read_bytes()[8:]
    shard.write_bytes(data)
    (entry, *rest) = json.loads((folder / MANIFEST_NAME).read_text())["files"]
    forge(folder, files=[{**entry, "xxh3_64": xxhash.xxh3_64_hexdigest(data)}, *rest])


def too_few_bytes(folder: Path) -> None:
    """A shard of four bytes, with a checksum that fits them."""
    import xxhash

    (folder / "rank-0.safetensors").write_bytes(b"four")
    (entry, *rest) = json.loads((folder / MANIFEST_NAME).read_text())["files"]
    changed = {**entry, "length": 4, "xxh3_64": xxhash.xxh3_64_hexdigest(b"four")}
    forge(folder, files=[changed, *rest])


def cut_short(folder: Path) -> None:
    os.truncate(folder / "rank-1.safetensors", 100)


def empty(folder: Path) -> None:
    os.truncate(folder / "rank-1.safetensors", 0)


def no_shard(folder: Path) -> None:
    (folder / "rank-1.safetensors").unlink()


def newer(folder: Path) -> None:
    forge(folder, schema=99)


def huge_manifest(folder: Path) -> None:
    os.truncate(folder / MANIFEST_NAME, 1 << 40)  # sparse: it takes no room


def other_step(folder: Path) -> None:
    forge(folder, step=77)


HOSTILE = {
    outside: "names a file by",
    link_outside: "is a link, or no ordinary file",
    pipe: "is a link, or no ordinary file",
    lying_header: "should begin at 0 and have",
    endless_header: "says that its header has",
    too_few_bytes: "4 bytes are too few for an image: it was cut short",
    cut_short: "and has 100",
    empty: "and has 0",
    no_shard: "is missing",
    newer: "schema 99, this version of outlast reads 1",
    huge_manifest: "longer than",
    other_step: "of step 77",
}


@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_a_damaged_or_hostile_checkpoint_is_refused_with_its_reason(
    harm: Any, tmp_path: Path
) -> None:
    """The one before it is the one to restore, and pruning does not take it."""
    root = tmp_path / "checkpoints"
    save(root, 1, 2)
    harm(checkpoint_folder(root, 2))
    entries = facts("verify", root, code=1)["checkpoints"]
    assert [one["state"] for one in entries] == ["bad", "good"]
    assert HOSTILE[harm] in entries[0]["reason"], entries[0]
    assert facts("plan-restore", root)["restores"]["step"] == 1
    facts("prune", root, "--keep-last", "1")
    assert states(root, "verify", code=1)[1] == "good"


@pytest.mark.parametrize("command", ["ls", "verify", "prune", "plan-restore"])
def test_a_folder_without_checkpoints_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for where, word in ((tmp_path, "is not a run folder"), (tmp_path / "no", "there is no run")):
        said = outlast("ckpt", command, where, cwd=tmp_path)
        assert said.returncode == UsageError.exit_code, said
        assert word in said.stderr, said
        assert "hint: " in said.stderr, said
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_wrong_step_names_those_that_are_there(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    said = outlast("ckpt", "verify", tmp_path, "--step", "7")
    assert said.returncode == UsageError.exit_code
    assert "no checkpoint of step 7" in said.stderr
    assert "2, 1" in said.stderr
    assert facts("verify", tmp_path, "--step", "2")["checkpoints"][0]["step"] == 2
    for words in (("prune", checkpoint_folder(tmp_path, 2)), ("prune", tmp_path, "--keep-last=-1")):
        assert outlast("ckpt", *words).returncode == UsageError.exit_code
    assert sorted(states(tmp_path)) == [1, 2]


def test_an_export_of_a_damaged_one_writes_nothing(tmp_path: Path) -> None:
    save(tmp_path / "c", 1)
    flip_bit(checkpoint_folder(tmp_path / "c", 1) / "rank-0.safetensors")
    said = outlast("ckpt", "export", tmp_path / "c", tmp_path / "a.pt")
    assert said.returncode == CorruptError.exit_code, said
    assert not (tmp_path / "a.pt").exists()
