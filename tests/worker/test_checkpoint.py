"""outlast.checkpoint: torch's distributed checkpoint, written and read by outlast alone, and by
stock torch.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

import outlast.checkpoint
from outlast.app.checkpoints import ckpt
from outlast.checkpoint import Reader, Writer
from outlast.errors import CapacityError, CorruptError, RunFolderError, StateError, UsageError
from outlast.runtime.coordinator.saves import find_checkpoint
from outlast.runtime.tiers import catalogue, tensor_record
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.local import MANIFEST_NAME, Disk, checkpoint_folder
from outlast.runtime.worker.tensors.tensors import DTYPES
from tests.tiers.faulty import FaultyDisk, crash, in_a_child
from tests.tiers.saved import flip_bit


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Silence DCP, which warns each time that there is no process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def net(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optim": optimizer.state_dict(),
        "step": 3,
        "notes": {"lr": [0.1, None], "name": "x"},
    }


def save(root: Path, step: int, state: dict[str, Any], **more: Any) -> None:
    dcp.save(state, storage_writer=Writer(root, step=step, **more))


def failure(error: CheckpointException) -> BaseException:
    ((one, _),) = error.failures.values()
    return one


def test_what_was_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    """Method: tensors, optimizer state and plain values, loaded as the newest step and by the
    number of a step.
    """
    before = state_of(*net(1))
    save(tmp_path, 3, before)
    save(tmp_path, 4, state_of(*net(2)))
    for reader in (Reader(tmp_path, step=3), None):
        after = state_of(*net(7)) | {"step": 0, "notes": {"lr": [0.0, 1], "name": ""}}
        if reader is not None:
            dcp.load(after, storage_reader=reader)
        else:
            assert outlast.checkpoint.load(after, tmp_path) == 4
            before = state_of(*net(2))
        assert (after.pop("step"), after.pop("notes")) == (3, before["notes"])
        same = {name: before[name] for name in ("model", "optim")}
        torch.testing.assert_close(after, same, rtol=0, atol=0)


def test_a_folder_without_checkpoints_loads_nothing(tmp_path: Path) -> None:
    state = state_of(*net())
    assert outlast.checkpoint.load(state, tmp_path / "none") is None
    with pytest.raises(CheckpointException, match="has no checkpoint"):
        dcp.load(state, storage_reader=Reader(tmp_path))


@pytest.mark.parametrize("kind", list(DTYPES), ids=str)
def test_every_dtype_comes_back_and_stock_torch_reads_all_but_two(
    kind: torch.dtype, tmp_path: Path
) -> None:
    """Torch's own reader does not support complex128 and float8_e8m0fnu. They are kept in a file
    that it does not list, so that it reads the others.
    """
    saved = {
        "x": (torch.arange(6).reshape(2, 3) % 2).to(kind),
        "scalar": torch.tensor(1).to(kind),
        "empty": torch.zeros(0, 3).to(kind),
        "hollow": torch.zeros(2, 0, 4).to(kind),
        "other": torch.arange(3.0),
    }
    save(tmp_path, 1, saved)
    found = {name: torch.zeros_like(one) for name, one in saved.items()}
    assert outlast.checkpoint.load(found, tmp_path) == 1
    for name, one in saved.items():
        assert found[name].dtype == one.dtype
        assert torch.equal(
            found[name].view(torch.uint8) if one.dim() else found[name],
            one.view(torch.uint8) if one.dim() else one,
        ), name
    stock = {name: torch.zeros_like(one) for name, one in saved.items()}
    is_left_out = kind in (torch.complex128, torch.float8_e8m0fnu)
    if is_left_out:
        stock = {"other": stock["other"]}
    reader = dcp.HuggingFaceStorageReader(str(checkpoint_folder(tmp_path, 1)))
    dcp.load(stock, storage_reader=reader)
    assert torch.equal(stock["other"], saved["other"])
    if not is_left_out:
        assert torch.equal(stock["x"].view(torch.uint8), saved["x"].view(torch.uint8))


def test_stock_torch_reads_the_tensors_of_a_training_by_flat_names(tmp_path: Path) -> None:
    model, optimizer = net(1)
    save(tmp_path, 3, state_of(model, optimizer))
    other, _ = net(2)
    reader = dcp.HuggingFaceStorageReader(str(checkpoint_folder(tmp_path, 3)))
    dcp.load({"model": other.state_dict()}, storage_reader=reader)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    from safetensors import safe_open

    with safe_open(checkpoint_folder(tmp_path, 3) / "rank-0.safetensors", "pt") as file:
        assert "model.0.weight" in file.keys()  # noqa: SIM118
        offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
    assert offsets["model.0.weight"] == {"saved_offsets": [0, 0]}


@pytest.mark.parametrize("way", [dcp.state_dict_saver.AsyncCheckpointerType.THREAD], ids=str)
def test_async_save_writes_what_was_there_when_it_was_called(way: Any, tmp_path: Path) -> None:
    """Method: the state changes as soon as the call returns. DCP needs a process group for this."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        state = {"x": torch.arange(1e5)}
        done = dcp.async_save(
            state, storage_writer=Writer(tmp_path, step=1), async_checkpointer_type=way
        )
        state["x"].zero_()
        done.result()
        found = {"x": torch.zeros(100_000)}
        assert outlast.checkpoint.load(found, tmp_path) == 1
        assert torch.equal(found["x"], torch.arange(1e5))
    finally:
        torch.distributed.destroy_process_group()


def test_tensors_of_any_layout_in_memory_come_back(tmp_path: Path) -> None:
    """Method: views, transposed and conjugated tensors, loaded into plain targets and into
    views.
    """
    base = torch.arange(24.0).reshape(4, 6)
    saved = {
        "transposed": base.t(),
        "part": base[1:3, 2:5],
        "conj": torch.complex(base, base).conj(),
        "expanded": torch.ones(1, 3).expand(2, 3),
    }
    save(tmp_path, 1, saved)
    plain = {name: torch.zeros_like(one).contiguous() for name, one in saved.items()}
    odd = {name: torch.zeros(*one.shape, 2, dtype=one.dtype)[..., 1] for name, one in saved.items()}
    for found in (plain, odd):
        outlast.checkpoint.load(found, tmp_path)
        assert all(torch.equal(found[name], one) for name, one in saved.items())


# --- what is refused ------------------------------------------------------------------------------


def test_a_step_is_never_written_over(tmp_path: Path) -> None:
    save(tmp_path, 1, {"x": torch.ones(3)})
    with pytest.raises(CheckpointException) as caught:
        save(tmp_path, 1, {"x": torch.zeros(3)})
    assert isinstance(failure(caught.value), RunFolderError)
    found = {"x": torch.zeros(3)}
    assert outlast.checkpoint.load(found, tmp_path) == 1
    assert bool(found["x"].all())


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for wrong in ({"step": -1}, {"step": True}, {"step": 1, "keep_last": -1}):
        with pytest.raises(UsageError, match="whole number"):
            Writer(tmp_path, **wrong)
    state = {"x": torch.ones(3)}
    for call in (
        lambda: dcp.save(state, storage_writer=Writer(tmp_path)),
        lambda: dcp.save(state, storage_writer=Writer(tmp_path), checkpoint_id="newest"),
        lambda: dcp.save(state, storage_writer=Writer(tmp_path, step=1), use_collectives=False),
    ):
        with pytest.raises((CheckpointException, UsageError)):
            call()
    assert list(tmp_path.iterdir()) == []
    dcp.save(state, storage_writer=Writer(tmp_path), checkpoint_id=tmp_path / "step-12")
    assert DiskTier(tmp_path).step_folders()[0].step == 12


def test_objects_that_would_run_code_are_loaded_by_request_only(tmp_path: Path) -> None:
    """NumPy's arrays are such objects, because they are pickled as a call of a function."""
    save(tmp_path, 1, {"random": np.arange(3), "x": torch.ones(2)})
    found: dict[str, Any] = {"random": None, "x": torch.zeros(2)}
    with pytest.raises(CheckpointException) as caught:
        outlast.checkpoint.load(found, tmp_path)
    error = failure(caught.value)
    assert isinstance(error, StateError)
    assert "random is an object" in str(error)
    assert "weights_only=False" in error.hint
    assert outlast.checkpoint.load(found, tmp_path, weights_only=False) == 1
    assert found["random"].tolist() == [0, 1, 2]


def test_an_object_that_fails_without_a_text_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error raised while reading the bytes may have no text. Then its type is the reason."""

    def fails(*_: object, **__: object) -> None:
        raise AssertionError

    save(tmp_path, 1, {"random": np.arange(3)})
    monkeypatch.setattr(torch, "load", fails)
    with pytest.raises(CheckpointException) as caught:
        outlast.checkpoint.load({"random": None}, tmp_path)
    assert "random is an object that cannot be read without running code: AssertionError" in str(
        failure(caught.value)
    )


def test_a_missing_key_is_an_error_of_dcp_and_not_damage(tmp_path: Path) -> None:
    save(tmp_path, 1, {"x": torch.ones(2)})
    with pytest.raises(CheckpointException, match="Missing key"):
        outlast.checkpoint.load({"y": torch.ones(2)}, tmp_path)
    planner = DefaultLoadPlanner(allow_partial_load=True)
    assert outlast.checkpoint.load({"y": torch.ones(2)}, tmp_path, planner=planner) == 1


def test_a_folder_of_another_run_is_refused_if_runs_have_names(tmp_path: Path) -> None:
    save(tmp_path, 1, {"x": torch.ones(3)}, run="mine")
    save(tmp_path, 2, {"x": torch.ones(3)}, run="mine")
    with pytest.raises(CheckpointException) as caught:
        save(tmp_path, 3, {"x": torch.zeros(3)}, run="theirs", keep_last=1)
    assert isinstance(failure(caught.value), RunFolderError)
    assert "of the run 'mine', not of 'theirs'" in str(failure(caught.value))
    assert [one.step for one in DiskTier(tmp_path).step_folders()] == [2, 1]


# --- damage ---------------------------------------------------------------------------------------


def files_of(root: Path, step: int) -> list[str]:
    return sorted(path.name for path in checkpoint_folder(root, step).iterdir())


def test_a_flipped_bit_is_found_and_the_previous_checkpoint_is_loaded(tmp_path: Path) -> None:
    """Method: flip one bit in each file, at its beginning, in its middle, and at its end. A header
    is not among the loaded data, but `verify` checks it.
    """
    save(tmp_path, 1, {"x": torch.ones(1000), "note": "old"})
    save(tmp_path, 2, {"x": torch.zeros(1000), "note": "new"})
    assert files_of(tmp_path, 2) == [
        MANIFEST_NAME,
        "rank-0.image",
        "rank-0.safetensors",
        tensor_record.RECORD_NAME,
    ]
    for name in files_of(tmp_path, 2):
        path = checkpoint_folder(tmp_path, 2) / name
        good = path.read_bytes()
        for at in (0, len(good) // 2, len(good) - 1):
            flip_bit(path, at)
            states = [one.state for one in catalogue.verify(DiskTier(tmp_path))]
            assert states == ["bad", "good"], (name, at)
            found: dict[str, Any] = {"x": torch.full((1000,), 5.0), "note": ""}
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                step = outlast.checkpoint.load(found, tmp_path)
            is_header = name.startswith("rank-") and at == 0
            assert step == (2 if is_header else 1), (name, at)
            assert found["note"] == ("new" if is_header else "old")
            assert bool((found["x"] == (0 if is_header else 1)).all())
            assert is_header or any("step 2" in str(one.message) for one in said)
            path.write_bytes(good)


@pytest.mark.parametrize("harm", ["cut", "empty", "missing", "all"])
def test_truncated_and_missing_files_are_damage(harm: str, tmp_path: Path) -> None:
    save(tmp_path, 1, {"x": torch.ones(1000)})
    if harm != "all":
        save(tmp_path, 2, {"x": torch.zeros(1000)})
    shard = checkpoint_folder(tmp_path, 1 if harm == "all" else 2) / "rank-0.safetensors"
    data = shard.read_bytes()
    if harm == "missing":
        shard.unlink()
    else:
        shard.write_bytes(b"" if harm == "empty" else data[:-5])
    found = {"x": torch.zeros(1000)}
    if harm == "all":
        with pytest.raises(CorruptError, match="can be loaded: step 1: "):
            outlast.checkpoint.load(found, tmp_path)
        return
    with pytest.warns(UserWarning, match="passed over: step 2"):
        assert outlast.checkpoint.load(found, tmp_path) == 1
    assert bool(found["x"].all())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["F32", [3], False, [[[0], [3], "../secret", 0, 12, "00"]]], "no such bytes"),
        (["F32", [3], False, [[[0], [3], "rank-0.safetensors", 1 << 60, 12, "00"]]], "no such"),
        (["F32", [9], False, [[[0], [9], "rank-0.safetensors", 0, 12, "00"]]], "in 12 bytes"),
        (["F32", [3], False, [[[1], [3], "rank-0.safetensors", 0, 12, "00"]]], r"at \[1\]"),
        (["F32", [1 << 60], False, []], "is not whole"),
        (["F32", [-1], False, []], "whole numbers"),
        (["OBJ", [3], False, []], "unknown dtype"),
        (["F32"], "cannot be read"),
        ("F32", "cannot be read"),
    ],
)
def test_a_record_with_wrong_contents_is_refused(words: Any, why: str, tmp_path: Path) -> None:
    save(tmp_path, 1, {"x": torch.ones(1000)})
    manifest = DiskTier(tmp_path).manifest(1)
    body = {"schema": 1, "tensors": {"x": words}, "objects": {}, "paths": {}}
    with pytest.raises(CorruptError, match=why):
        tensor_record.decode(json.dumps(body).encode(), manifest)
    for wrong in (b"[]", b"{", b'{"schema": 2}', b"\xff", b'{"schema": 1, "tensors": []}'):
        with pytest.raises(CorruptError):
            tensor_record.decode(wrong, manifest)


# --- room -----------------------------------------------------------------------------------------


def test_older_checkpoints_are_removed_as_the_options_say(tmp_path: Path) -> None:
    for step in range(1, 8):
        save(tmp_path, step, {"x": torch.full((3,), step)}, keep_last=2, keep_every=3)
    assert [one.step for one in DiskTier(tmp_path).step_folders()] == [7, 6, 3]
    save(tmp_path, 8, {"x": torch.full((3,), 8)})
    assert len(DiskTier(tmp_path).step_folders()) == 4


def test_the_remains_of_an_interrupted_save_are_not_read_later(tmp_path: Path) -> None:
    """Method: the folder has a shard of a rank that the next save of the step does not have."""
    left = checkpoint_folder(tmp_path, 1)
    save(tmp_path / "more", 1, {"x": torch.ones(3)})
    left.mkdir(parents=True)
    shard = checkpoint_folder(tmp_path / "more", 1) / "rank-0.safetensors"
    shard.rename(left / "rank-7.safetensors")
    save(tmp_path, 1, {"y": torch.ones(3)})
    assert "rank-7.safetensors" not in files_of(tmp_path, 1)


# --- faults of the disk ---------------------------------------------------------------------------


def save_on(disk: Disk, root: Path, step: int) -> None:
    writer = Writer(root, step=step, keep_last=1)
    writer.tier = DiskTier(root, disk=disk)
    dcp.save({"x": torch.full((70_000,), float(step)), "note": step}, storage_writer=writer)


def loaded(root: Path) -> int | None:
    found = {"x": torch.zeros(70_000), "note": 0}
    step = outlast.checkpoint.load(found, root)
    assert step is None or (found["note"] == step and bool((found["x"] == step).all()))
    return step


def operations(root: Path) -> list[str]:
    counting = FaultyDisk()
    save_on(Disk(), root, 1)
    save_on(counting, root, 2)
    assert loaded(root) == 2
    return counting.names


def test_a_save_killed_at_any_write_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    """Method: a dry run counts the writes, syncs, renames and removals of a save. Then the process
    dies at each of them in turn, in the middle if it is a write. The next save of that step works.
    """
    names = operations(tmp_path / "dry")
    committed_after = names.index(f"rename {MANIFEST_NAME}")
    assert len(names) > 15
    assert "remove" in names[committed_after:]
    for at in range(len(names)):
        root = tmp_path / f"at-{at}"
        save_on(Disk(), root, 1)
        assert in_a_child(lambda root=root, at=at: save_on(FaultyDisk(at, crash), root, 2)) == 7
        assert loaded(root) == (2 if at > committed_after else 1), names[at]
        save_on(Disk(), root, 3 if at > committed_after else 2)
        assert loaded(root) == (3 if at > committed_after else 2)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, CapacityError), (errno.EROFS, RunFolderError)]
)
def test_a_disk_that_is_full_or_read_only_is_an_error_and_loses_nothing(
    number: int, kind: type[Exception], tmp_path: Path
) -> None:
    """Method: each operation of a save fails in turn."""

    def fault() -> None:
        raise OSError(number, os.strerror(number))

    names = operations(tmp_path / "dry")
    for at in range(names.index(f"rename {MANIFEST_NAME}")):
        root = tmp_path / f"at-{at}"
        save_on(Disk(), root, 1)
        with pytest.raises(CheckpointException) as caught:
            save_on(FaultyDisk(at, fault), root, 2)
        assert isinstance(failure(caught.value), kind), (names[at], failure(caught.value))
        assert loaded(root) == 1


# --- beside the rest of outlast -------------------------------------------------------------------


def test_outlast_load_and_export_read_the_weights(tmp_path: Path) -> None:
    model, optimizer = net(1)
    save(tmp_path / "c", 3, state_of(model, optimizer))
    other, _ = net(2)
    assert outlast.load(tmp_path / "c", model=other) == 3
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert ckpt.main(["export", str(tmp_path / "c"), str(tmp_path / "a.pt")]) == 0
    torch.testing.assert_close(
        torch.load(tmp_path / "a.pt"), dict(model.state_dict()), rtol=0, atol=0
    )


def test_a_run_does_not_resume_from_such_a_checkpoint_and_keeps_it(tmp_path: Path) -> None:
    save(tmp_path, 3, {"x": torch.ones(3)})
    step, folder, refused = find_checkpoint(tmp_path)
    assert (step, folder) == (0, "")
    assert "written by outlast.checkpoint.Writer" in refused[0]
    assert outlast.checkpoint.load({"x": torch.zeros(3)}, tmp_path) == 3
