"""Checkpoints that the launcher writes and removes: what fails is a reason, and never an error."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from outlast.engine.durable import Retention
from outlast.engine.protocol.outputs import WriteManifest as ManifestOrder
from outlast.errors import RunFolderError
from outlast.runtime.coordinator.pruner import Pruner
from outlast.runtime.coordinator.saves import write_checkpoint
from outlast.runtime.tiers import local
from outlast.runtime.tiers.disk_tier import DiskTier
from tests.tiers.saved import put

ORDER = ManifestOrder(5, sharded=False, shards=(("rank-0.safetensors", 8, "0" * 16),))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOSPC, "No space left on device"),
        RunFolderError("it cannot be removed", hint="mount it"),
    ],
    ids=repr,
)
def test_what_cannot_be_written_or_removed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A checkpoint that is written stays one, whatever becomes of older ones."""

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(local, "prune", fails)
    pruner = Pruner(tmp_path, Retention())
    pruner.ask()
    pruner.finish()
    error_text = pruner.take_error()
    assert error_text
    assert "hint" not in error_text, "a sentence goes on behind it"
    assert pruner.take_error() == "", "it is told once"
    monkeypatch.setattr(local, "write_manifest", fails)
    folder, why = write_checkpoint(tmp_path, ORDER, "run", 1)
    assert folder == ""
    assert why


def test_nobody_waits_while_a_checkpoint_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: reading takes until the test ends it. What is asked meanwhile is done once more."""
    reads, goes_on = list[str](), threading.Event()

    def slow(*_: object, **__: object) -> None:
        reads.append(threading.current_thread().name)
        assert goes_on.wait(20)

    monkeypatch.setattr(local, "prune", slow)
    pruner = Pruner(tmp_path, Retention())
    for _ in range(3):
        pruner.ask()
    assert len(reads) <= 1
    goes_on.set()
    pruner.finish()
    assert reads == ["outlast-pruner"] * 2 or reads == ["outlast-pruner"], reads
    assert pruner.take_error() == ""


def test_the_end_of_a_run_waits_for_a_disk_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(local, "prune", lambda *_, **__: goes_on.wait(20))
    monkeypatch.setattr("outlast.runtime.coordinator.pruner.PRUNE_WAIT_S", 0.01)
    pruner = Pruner(tmp_path, Retention())
    pruner.ask()
    pruner.finish()
    assert "not read in full within 0.01 s" in pruner.take_error()
    goes_on.set()


def test_a_run_keeps_what_its_options_say(tmp_path: Path) -> None:
    """The newest two, and each third step. Method: a manifest is ordered for each step."""
    pruner = Pruner(tmp_path, Retention(2, 3))
    for step in range(1, 9):
        shards = tuple(
            (entry.name, entry.length, f"{entry.checksum:016x}")
            for entry in (put(DiskTier(tmp_path), step, rank) for rank in range(2))
        )
        order = ManifestOrder(step, sharded=True, shards=shards)
        folder, why = write_checkpoint(tmp_path, order, "run", 1)
        assert (folder, why) == (str(local.checkpoint_folder(tmp_path, step)), "")
        pruner.ask()
        pruner.finish()
    assert [one.manifest.step for one in local.checkpoints(tmp_path)] == [8, 7, 6, 3]
