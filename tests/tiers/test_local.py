"""Local checkpoints: shards first, manifest last; whatever breaks on the way is never offered for
restore.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from outlast.errors import CapacityError, CorruptError, RunFolderError
from outlast.model.manifest import Manifest
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_bytes, write_image
from outlast.runtime.tiers.local import (
    MANIFEST_NAME,
    CheckpointFolder,
    Disk,
    checkpoint_folder,
    checkpoints,
    clean,
    newest_good,
    prune,
    read_shard,
    set_aside,
    verify,
    write_manifest,
    write_shard,
    write_shard_bytes,
)
from tests.tiers.faulty import FaultyDisk, crash, in_a_child

WORLD = 2


def state(step: int, rank: int) -> list[TensorPiece]:
    values = np.full(700, step * 10 + rank, np.float32)
    return [TensorPiece(TensorSpec("w", "F32", values.shape), values.view(np.uint8).data)]


def save(root: Path, step: int, disk: Disk | None = None) -> CheckpointFolder:
    disk = disk or Disk()
    folder = checkpoint_folder(root, step)
    files = tuple(
        write_shard(folder, rank, pieces=state(step, rank), metadata={"step": str(step)}, disk=disk)
        for rank in range(WORLD)
    )
    return write_manifest(folder, Manifest("run-1", 1, step, WORLD, "replicated", files), disk=disk)


def restorable(root: Path) -> int | None:
    found = newest_good(root).checkpoint
    return found.manifest.step if found else None


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def operations(tmp_path: Path) -> list[str]:
    counting = FaultyDisk()
    save(tmp_path / "dry", 2, counting)
    return counting.names


def test_a_save_cut_short_at_any_write_is_never_offered_for_restore(tmp_path: Path) -> None:
    """A checkpoint exists only once its manifest does.

    Method: dry-run one save to count its operations, then replay it once per operation in a process
    that ends there without clean-up (in the middle, if it is a write). The step already committed
    must stay the newest restorable one, until the manifest's rename is past; the next save of the
    same step must work, and leftovers go.
    """
    names = operations(tmp_path)
    committed_after = names.index(f"rename {MANIFEST_NAME}")
    assert len(names) > 10
    for at in range(len(names)):
        root = tmp_path / f"at-{at}"
        save(root, 1)
        assert in_a_child(lambda root=root, at=at: save(root, 2, FaultyDisk(at, crash))) == 7
        search = newest_good(root)
        assert (search.checkpoint.manifest.step if search.checkpoint else None) == (
            2 if at > committed_after else 1
        ), names[at]
        assert search.refused == ()
        if at <= committed_after:
            if at % 2:
                leftover = checkpoint_folder(root, 2).exists()
                assert clean(root) == ((checkpoint_folder(root, 2),) if leftover else ())
            save(root, 2)
            assert restorable(root) == 2


def test_a_disk_full_at_any_write_costs_no_checkpoint(
    tmp_path: Path,
) -> None:
    """The save fails with a capacity error, and what was committed before stays restorable."""
    names = operations(tmp_path)
    for at in range(len(names)):
        root = tmp_path / f"at-{at}"
        save(root, 1)
        with pytest.raises(CapacityError):
            save(root, 2, FaultyDisk(at, full))
        assert restorable(root) == (2 if at > names.index(f"rename {MANIFEST_NAME}") else 1)
        assert not list(root.rglob("*.tmp")) or names[at].startswith("rename"), "room is given back"


def test_a_disk_that_is_really_full_is_a_capacity_error(tmp_path: Path) -> None:
    """Method: the disk writes to /dev/full."""

    class ReallyFull(Disk):
        def write(self, fd: int, data: memoryview) -> None:
            with open("/dev/full", "wb", buffering=0) as device:
                device.write(data)

    folder = checkpoint_folder(tmp_path, 1)
    with pytest.raises(CapacityError):
        write_shard(folder, 0, pieces=state(1, 0), metadata={}, disk=ReallyFull())
    assert list(folder.iterdir()) == []


def test_late_bytes_of_a_hung_process_reach_no_file_of_another_save(tmp_path: Path) -> None:
    """Method: a first save has its file open, and writes to it once a second save is over."""
    folder = checkpoint_folder(tmp_path, 1)
    folder.mkdir()
    with open(folder / "rank-0.safetensors.tmp", "wb", buffering=0) as hung:
        save(tmp_path, 1)
        hung.write(b"late")
    (found,) = checkpoints(tmp_path)
    verify(found)


def test_everything_is_synced_before_the_manifest_gets_its_name(tmp_path: Path) -> None:
    names = [name for name in operations(tmp_path) if name != "write"]
    assert names == [
        "make_folder",
        "sync",
        "rename rank-0.safetensors",
        "make_folder",
        "sync",
        "rename rank-1.safetensors",
        "sync",
        "sync",
        f"rename {MANIFEST_NAME}",
        "sync",
        "sync",
    ]


def test_a_checkpoint_reads_back_and_its_shards_are_safetensors(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 3)
    assert checkpoints(tmp_path) == (checkpoint,)
    for rank in range(WORLD):
        image = read_shard(checkpoint, rank)
        assert image.metadata == {"step": "3"}
        assert bytes(image.tensors["w"][1]) == bytes(state(3, rank)[0].data)
        assert load_file(checkpoint.folder / f"rank-{rank}.safetensors")["w"].min() == 30 + rank
    with pytest.raises(CorruptError):
        read_shard(checkpoint, WORLD)


def test_an_image_of_the_vault_becomes_the_same_file(tmp_path: Path) -> None:
    pieces = state(1, 0)
    target = memoryview(bytearray(image_bytes([pieces[0].spec])))
    length, checksum = write_image(target, pieces=pieces, metadata={})
    entry = write_shard_bytes(tmp_path / "a", 0, target[:length])
    assert (entry.length, entry.checksum) == (length, checksum)
    assert (tmp_path / "a" / entry.name).read_bytes() == target[:length]


def test_the_newest_good_checkpoint_is_found_by_walking_back(tmp_path: Path) -> None:
    """Method: five checkpoints, four broken in different ways."""
    made = {step: save(tmp_path, step) for step in (1, 2, 3, 4, 5)}
    (made[5].folder / "rank-1.safetensors").unlink()
    flipped = bytearray((made[4].folder / "rank-0.safetensors").read_bytes())
    flipped[-1] ^= 1
    (made[4].folder / "rank-0.safetensors").write_bytes(flipped)
    os.truncate(made[3].folder / "rank-1.safetensors", 100)
    (made[2].folder / MANIFEST_NAME).write_text("{}")
    search = newest_good(tmp_path)
    assert search.checkpoint == made[1]
    assert [refusal.folder for refusal in search.refused] == [
        made[step].folder for step in (5, 4, 3, 2)
    ]
    assert all(
        word in refusal.reason
        for word, refusal in zip(
            ("is missing", "checksum", "has 100", "schema"), search.refused, strict=True
        )
    )
    with pytest.raises(CorruptError):
        read_shard(made[4], 0)
    assert newest_good(tmp_path / "nowhere").checkpoint is None


def test_a_manifest_in_the_folder_of_another_step_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1).folder.rename(checkpoint_folder(tmp_path, 9))
    assert newest_good(tmp_path).checkpoint is None
    assert len(newest_good(tmp_path).refused) == 1


def test_a_manifest_that_names_a_missing_shard_is_not_written(tmp_path: Path) -> None:
    entry = write_shard(checkpoint_folder(tmp_path, 1), 0, pieces=state(1, 0), metadata={})
    (checkpoint_folder(tmp_path, 1) / entry.name).unlink()
    with pytest.raises(CorruptError):
        write_manifest(
            checkpoint_folder(tmp_path, 1), Manifest("run-1", 1, 1, 1, "replicated", (entry,))
        )
    assert checkpoints(tmp_path) == ()


def test_a_committed_checkpoint_is_never_written_over(
    tmp_path: Path,
) -> None:
    """One that was refused can be set aside, and its step saved again."""
    for _ in range(2):
        checkpoint = save(tmp_path, 1)
        with pytest.raises(RunFolderError):
            save(tmp_path, 1)
        verify(checkpoint)
        set_aside(checkpoint.folder)
    assert restorable(tmp_path) is None
    assert len(list(tmp_path.glob("refused-*"))) == 2
    save(tmp_path, 1)
    assert restorable(tmp_path) == 1


def test_pruning_keeps_the_newest_and_removes_older_leftovers(tmp_path: Path) -> None:
    for step in (1, 3, 4, 6):
        save(tmp_path, step)
    for step in (2, 5, 7):
        write_shard(checkpoint_folder(tmp_path, step), 0, pieces=state(step, 0), metadata={})
    removed = prune(tmp_path, 2)
    assert removed == tuple(checkpoint_folder(tmp_path, step) for step in (5, 3, 2, 1))
    assert sorted(path.name[-1] for path in tmp_path.iterdir()) == [
        "4",
        "6",
        "7",
    ], "7 may be a save in progress"
    assert prune(tmp_path, 0) == (checkpoint_folder(tmp_path, 4),), "one is always kept"


def test_the_last_restorable_checkpoint_is_never_pruned(tmp_path: Path) -> None:
    made = [save(tmp_path, step) for step in (1, 2, 3, 4)]
    for checkpoint in made[2:]:
        os.truncate(checkpoint.folder / "rank-0.safetensors", 10)
    assert prune(tmp_path, 1) == (made[0].folder,)
    assert restorable(tmp_path) == 2
    os.truncate(made[1].folder / "rank-0.safetensors", 10)
    assert prune(tmp_path, 1) == (), "where nothing is good, nothing is removed"


def test_a_pruning_cut_short_leaves_no_checkpoint_with_holes(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    assert in_a_child(lambda: prune(tmp_path, 1, disk=FaultyDisk(0, crash))) == 7
    assert [found.manifest.step for found in checkpoints(tmp_path)] == [2]
    assert newest_good(tmp_path).refused == ()
    assert clean(tmp_path) == (checkpoint_folder(tmp_path, 1),)
