"""A checkpoint that the launcher cannot write is a reason, and never an error."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from outlast.engine.durable import Retention
from outlast.engine.protocol.outputs import Manifest as ManifestOrder
from outlast.runtime.coordinator.saves import write_checkpoint
from outlast.runtime.tiers import local
from outlast.runtime.tiers.disk_tier import DiskTier
from tests.tiers.saved import put

ORDER = ManifestOrder(5, sharded=False, shards=(("rank-0.safetensors", 8, "0" * 16),))


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOSPC, "No space left on device")], ids=repr
)
@pytest.mark.parametrize("where", ["write_manifest", "prune"])
def test_what_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(local, "write_manifest", lambda *_: None)
    monkeypatch.setattr(local, where, fails)
    folder, why = write_checkpoint(tmp_path, ORDER, "run", 1)
    assert folder == ""
    assert why


def test_a_run_keeps_what_its_options_say(tmp_path: Path) -> None:
    """The newest two, and each third step. Method: a manifest is ordered for each step."""
    for step in range(1, 9):
        shards = tuple(
            (entry.name, entry.length, f"{entry.checksum:016x}")
            for entry in (put(DiskTier(tmp_path), step, rank) for rank in range(2))
        )
        order = ManifestOrder(step, sharded=True, shards=shards)
        folder, why = write_checkpoint(tmp_path, order, "run", 1, Retention(2, 3))
        assert (folder, why) == (str(local.checkpoint_folder(tmp_path, step)), "")
    assert [one.manifest.step for one in local.checkpoints(tmp_path)] == [8, 7, 6, 3]
