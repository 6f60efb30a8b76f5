"""Checkpoints that --resume refuses are set aside: kept, and out of the way of the next save of
their step.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.errors import CorruptError
from outlast.model.manifest import Manifest
from outlast.runtime.coordinator.saves import newest_start
from outlast.runtime.tiers import local
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.image import TensorPiece, TensorSpec


def save(root: Path, step: int, run: str = "a") -> Path:
    folder = local.checkpoint_folder(root, step)
    entry = local.write_shard(
        folder,
        0,
        pieces=[TensorPiece(TensorSpec("t", "U8", (64,)), memoryview(bytearray(64)))],
        metadata={},
    )
    local.write_manifest(
        folder,
        Manifest(run=run, generation=1, step=step, world_size=1, kind="sharded", files=(entry,)),
    )
    return folder


def test_a_refused_checkpoint_is_kept_and_its_step_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 1)
    shard = save(tmp_path, 2) / local.shard_name(0)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    start, checkpoint, refused = newest_start(tmp_path, None, 1)
    assert (start.step, checkpoint[1]) == (1, 1)
    (said,) = refused
    assert "kept as refused-step-000000000002" in said
    assert (tmp_path / "refused-step-000000000002" / local.shard_name(0)).read_bytes() == data
    save(tmp_path, 2)
    assert newest_start(tmp_path, None, 1)[1][1] == 2


def test_a_checkpoint_of_another_run_is_passed_over_and_left_there(tmp_path: Path) -> None:
    """Two runs that were given one --checkpoint-dir."""
    save(tmp_path, 1, run="mine")
    save(tmp_path, 2, run="theirs")
    _, checkpoint, refused = newest_start(tmp_path, None, 1, "mine")
    assert checkpoint[1] == 1
    assert "it is of another run, theirs" in refused[0]
    assert newest_start(tmp_path, None, 1, "theirs")[1][1] == 2


def test_the_reason_of_a_refusal_is_printed_without_its_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint of an error stands on a line of its own; here the sentence goes on behind it.

    Method: the check of the bytes raises an error with a hint, on --resume and in `outlast ckpt`.
    """

    def raises(*_: object, **__: object) -> None:
        raise CorruptError("the bytes are wrong", hint="use another copy")

    folder = save(tmp_path, 1)
    monkeypatch.setattr(local, "verify", raises)
    assert DiskTier(tmp_path).why_not(1) == "the bytes are wrong"
    assert newest_start(tmp_path, None, 1)[2] == [
        f"a checkpoint was refused: {folder}: the bytes are wrong; it is kept as"
        " refused-step-000000000001"
    ]
