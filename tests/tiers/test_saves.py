"""A checkpoint that the launcher cannot write is a reason, and never an error."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from outlast.engine.protocol.outputs import Manifest as ManifestOrder
from outlast.runtime.coordinator.saves import write_checkpoint
from outlast.runtime.tiers import local

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
