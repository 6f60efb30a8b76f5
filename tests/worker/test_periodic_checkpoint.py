"""A periodic checkpoint that cannot be written is reported, and training goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.model.messages import Checkpointed
from outlast.runtime.image_writer import captured
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.tiers.room import Room
from outlast.runtime.worker.saving.checkpoints import Checkpoints

BODY = bytes(range(64))


def a_rank(root: Path) -> tuple[Checkpoints, list[Checkpointed]]:
    """Return rank 1 in generation 3, which saves each step, and the list of what it reports."""
    said: list[Checkpointed] = []
    session: Any = SimpleNamespace(
        spec=SimpleNamespace(
            worker=7,
            options={"checkpoint_every": 1, "checkpoint_root": str(root)},
            vault_folder=str(root),
        ),
        machine=SimpleNamespace(generation=3, broken=False),
        beacon=SimpleNamespace(rank=1),
        say=said.append,
    )
    piece = TensorPiece(TensorSpec("weights", "U8", (len(BODY),)), memoryview(BODY))
    return Checkpoints(session, lambda: ([piece], {})), said


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_a_save_is_reported_and_the_next_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, said = a_rank(tmp_path)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        saves.save(1)
    saves.wait()
    saves.save(2)
    saves.wait()
    failed, written = said
    assert (failed.generation, failed.rank, failed.step, failed.file) == (3, 1, 1, "")
    assert "can't start new thread" in failed.error
    assert (written.step, written.error) == (2, "")
    assert list(tmp_path.rglob(written.file))


def test_without_memory_for_a_copy_a_save_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, said = a_rank(tmp_path)
    with monkeypatch.context() as limited:
        limited.setattr(captured, "memory_left", lambda groups: Room(0, "memory", "free some"))
        saves.save(1)
    saves.wait()
    (failed,) = said
    assert (failed.step, failed.file) == (1, "")
    assert "no memory for a copy of" in failed.error
