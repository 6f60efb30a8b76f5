"""One rank loads a state that was saved by another number of ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from outlast.errors import StateError
from outlast.model.manifest import Manifest
from outlast.runtime.tiers import dividing
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.tiers.local import (
    CheckpointFolder,
    checkpoint_folder,
    write_manifest,
    write_shard,
)
from outlast.runtime.worker.data.sampler import StepSampler
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.saving.checkpoints import load_checkpoint
from outlast.runtime.worker.saving.resharding import load_resharded
from outlast.runtime.worker.tensors.tensors import piece


def trained(*, seed: int = 1, shard: bool = False, steps: int = 2) -> State:
    """Return a small model with a buffer and AdamW after some steps. `shard` makes it an FSDP2
    model on one rank.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    if shard:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return State(model=model, optimizer=optimizer)


def text(name: str, value: str) -> TensorPiece:
    data = value.encode()
    return TensorPiece(TensorSpec(name, "U8", (len(data),)), memoryview(data))


def named(prefix: str, said: str, tensors: dict[str, torch.Tensor]) -> list[TensorPiece]:
    return [
        text(prefix + "text", said),
        *(piece(prefix + name, one) for name, one in tensors.items()),
    ]


def saved(root: Path, kind: str, images: list[list[TensorPiece]]) -> CheckpointFolder:
    folder = checkpoint_folder(root, 4)
    files = tuple(
        write_shard(folder, rank, pieces=pieces, metadata={"step": "4"})
        for rank, pieces in enumerate(images)
    )
    return write_manifest(folder, Manifest("run", 1, 4, len(images), kind, files))


def replicated(root: Path, states: list[State]) -> CheckpointFolder:
    return saved(
        root,
        "replicated",
        [
            [
                *named("private/", *state.private.tensors()),
                *(named("shared/", *state.shared_tensors()) if rank == 0 else []),
            ]
            for rank, state in enumerate(states)
        ],
    )


def sharded(
    root: Path, state: State, ranks: int, *, drop: int = -1, drift: int = -1
) -> CheckpointFolder:
    """Cut the state of one rank by rows, as FSDP2 would for this many ranks. The last rank may have
    no rows.

    drop    this rank has no rows at all drift   this rank has another value of what is whole on all
    ranks
    """
    said, tensors = state.shared_tensors()
    described = json.loads(said)["m"]["optimizers"]["m"]["optimizer"]["m"]
    whole = {f"optimizer.{one}" for one in described["whole"]}
    images = []
    for rank in range(ranks):
        shards: dict[str, Any] = {}
        mine = {}
        for name, tensor in tensors.items():
            if name in whole or name.startswith("shared/"):
                mine[name] = tensor + (rank == drift)
                continue
            each = -(-len(tensor) // ranks)
            begin, end = (min(len(tensor), at * each) for at in (rank, rank + 1))
            mine[name] = tensor[begin : begin if rank == drop else end].contiguous()
            if name in state.parameters:
                shards[name] = [list(tensor.shape), [begin, *[0] * (tensor.dim() - 1)]]
        laid_out = json.dumps({"shards": shards, "aliases": {}, "transient": []})
        images.append(
            [
                *named("private/", *state.private.tensors()),
                *named("shared/", said, mine),
                text("layout/text", laid_out),
            ]
        )
    return saved(root, "sharded", images)


def bits(state: State) -> dict[str, bytes]:
    return {name: one.numpy().tobytes() for name, one in state.shared_tensors()[1].items()}


@pytest.fixture
def alone() -> Iterator[None]:
    """Make a process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_shards_of_any_number_of_ranks_are_put_together(
    tmp_path: Path, alone: None, ranks: int
) -> None:
    """Method: load into a state that has not made its optimizer's tensors yet, as after a start."""
    before = trained(shard=True)
    checkpoint = sharded(tmp_path, before, ranks)
    after = trained(seed=2, shard=True, steps=0)
    assert load_resharded(after, checkpoint, 0) == []
    assert bits(after) == bits(before)
    assert after.private.tensors()[0] == before.private.tensors()[0]


def test_the_launcher_understands_what_ranks_have_written(tmp_path: Path, alone: None) -> None:
    """The launcher reads the texts without torch, so their form has to stay as it expects."""
    state = trained(shard=True)
    assert dividing.why_not(sharded(tmp_path / "whole", state, 3)) == ""
    assert "do not make a whole" in dividing.why_not(sharded(tmp_path / "hole", state, 3, drop=0))
    data = TensorDataset(torch.arange(8))
    for loader, expected in (
        (DataLoader(data, batch_sampler=StepSampler(data, 4)), ""),
        (StatefulDataLoader(data, batch_size=2), "StatefulDataLoader"),
    ):
        one = State(model=nn.Linear(1, 1), loader=loader)
        said = dividing.why_not(replicated(tmp_path / f"loader-{expected}", [one]))
        assert expected in said if expected else not said, said


def test_a_part_that_no_rank_has_is_named(tmp_path: Path, alone: None) -> None:
    checkpoint = sharded(tmp_path, trained(shard=True), 2, drop=0)
    with pytest.raises(StateError, match=r"parts of model\.\S+ do not make a whole"):
        load_resharded(trained(shard=True), checkpoint, 0)


def test_ranks_with_other_values_of_a_whole_tensor_are_named(tmp_path: Path, alone: None) -> None:
    checkpoint = sharded(tmp_path, trained(shard=True), 2, drift=1)
    with pytest.raises(StateError, match=r"rank 1 has saved values of its own for optimizer\.0"):
        load_resharded(trained(shard=True), checkpoint, 0)


def test_shards_are_not_loaded_into_a_state_without_shards(tmp_path: Path, alone: None) -> None:
    checkpoint = sharded(tmp_path, trained(shard=True), 2)
    with pytest.raises(StateError, match="no tensor of this state is sharded"):
        load_resharded(trained(), checkpoint, 0)


def test_a_rank_that_existed_before_keeps_its_private_state(tmp_path: Path) -> None:
    """Method: rank 1 of two goes on as rank 1 of three, with the parameters of rank 0 and its own
    buffers.
    """
    states = [trained(), trained(seed=5)]
    states[1].modules.buffers()["model.1.running_mean"].fill_(9)
    checkpoint = replicated(tmp_path, states)
    after = trained(seed=3, steps=0)
    assert load_checkpoint(after, str(checkpoint.folder), 1, 3) == []
    assert bits(after) == bits(states[0])
    assert set(after.modules.buffers()["model.1.running_mean"].tolist()) == {9.0}


@pytest.mark.parametrize(("seed", "taken"), [(1, True), (2, False)], ids=["alike", "by rank"])
def test_a_new_rank_takes_the_random_state_of_a_script_that_seeds_alike(
    tmp_path: Path, seed: int, taken: bool
) -> None:
    """Rank 0 was seeded with 1. A new rank with another seed keeps its own random state."""
    before = trained(seed=1)
    checkpoint = replicated(tmp_path, [before])
    there = torch.get_rng_state()
    after = trained(seed=seed, steps=0)
    own = torch.get_rng_state()
    found = load_resharded(after, checkpoint, 1)
    assert ("random" in found) == taken
    assert "buffer:model.1.running_mean" in found
    assert torch.equal(torch.get_rng_state(), there if taken else own)
    assert bits(after) == bits(before)
    assert load_resharded(after, checkpoint, 2) == [], "the first new rank speaks for all"
