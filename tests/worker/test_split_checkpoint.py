"""Each rank writes its share of replicated state, and every reader puts the whole together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn

from outlast.engine.protocol.outputs import WriteManifest
from outlast.model.messages import Checkpointed
from outlast.runtime.coordinator.saves import write_checkpoint
from outlast.runtime.tiers import dividing, local
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.saving import saved_weights, weights_diff
from outlast.runtime.worker.saving.checkpoints import Checkpoints, load_checkpoint
from outlast.runtime.worker.saving.images import RankImages


class Net(nn.Module):
    """Some layers that are cut, some that are not, tied weights, buffers, and another layout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 96)
        self.conv = nn.Conv2d(3, 64, 7).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm1d(96)
        self.narrow = nn.Linear(96, 300, dtype=torch.bfloat16)
        self.flat = nn.Parameter(torch.randn(1, 1, 40_000))
        self.head = nn.Linear(96, 500, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(tokens))
        more = self.narrow(hidden.bfloat16()).float().sum()
        image = self.conv(hidden[:, :75].reshape(-1, 3, 5, 5).repeat(1, 1, 2, 2)).sum()
        return self.head(hidden).square().mean() + more + image + self.flat.square().mean()


def trained(*, seed: int = 1, steps: int = 2) -> State:
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randint(500, (8,))).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return State(model=model, optimizer=optimizer, schedule=schedule)


def written(root: Path, states: list[State], *, step: int = 4) -> tuple[str, str]:
    """Save as a run does: each rank by its own `Checkpoints`, and then the launcher's manifest.

    Return the folder, and why there is no checkpoint.
    """
    said: list[Checkpointed] = []
    for rank, state in enumerate(states):
        session: Any = SimpleNamespace(
            spec=SimpleNamespace(
                worker=rank, options={"checkpoint_root": str(root)}, vault_folder=str(root)
            ),
            machine=SimpleNamespace(generation=1, broken=False),
            beacon=SimpleNamespace(rank=rank),
            say=said.append,
        )
        member: Any = SimpleNamespace(
            rank=lambda rank=rank: rank, world_size=len(states), session=None, generation=1
        )
        saves = Checkpoints(session, RankImages(member, state).of_checkpoint)
        saves.save(step)
        saves.wait()
    assert not any(one.error for one in said), said
    shards = tuple((one.file, one.length, one.checksum) for one in said)
    return write_checkpoint(root, WriteManifest(step, False, shards), "run", 1)


def save(root: Path, ranks: int) -> local.CheckpointFolder:
    """Save the same state by so many ranks. Rank 1 has buffers of its own."""
    states = [trained() for _ in range(ranks)]
    for state in states[1:2]:
        state.modules.buffers()["model.norm.running_mean"].fill_(9)
    folder, error = written(root, states)
    assert error == ""
    found = local.read_manifest(Path(folder))
    assert isinstance(found, local.CheckpointFolder)
    return found


def bits(state: State) -> dict[str, bytes]:
    return {
        name: one.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for name, one in state.shared_tensors()[1].items()
    }


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_each_rank_loads_the_whole_state_and_its_own_private_state(
    tmp_path: Path, ranks: int
) -> None:
    checkpoint = save(tmp_path, ranks)
    expected = trained()
    for rank in range(ranks):
        after = trained(seed=5, steps=0)
        assert load_checkpoint(after, str(checkpoint.folder), rank, ranks) == []
        assert bits(after) == bits(expected)
        assert after.shared_tensors()[0] == expected.shared_tensors()[0]
        mean = after.modules.buffers()["model.norm.running_mean"]
        assert (set(mean.tolist()) == {9.0}) == (rank == 1)


def test_the_bytes_are_divided_among_the_files(tmp_path: Path) -> None:
    sizes = [entry.length for entry in save(tmp_path, 4).manifest.files]
    whole = sum(one.nbytes for one in trained().shared_tensors()[1].values())
    assert max(sizes) < 1.15 * whole / 4 + 30_000, sizes


@pytest.mark.parametrize(("ranks", "now"), [(4, 2), (4, 3), (2, 4), (3, 1), (1, 3)])
def test_another_number_of_ranks_loads_the_same_bits(tmp_path: Path, ranks: int, now: int) -> None:
    checkpoint = save(tmp_path, ranks)
    assert dividing.why_not(checkpoint) == ""
    for rank in range(now):
        after = trained(seed=5, steps=0)
        load_checkpoint(after, str(checkpoint.folder), rank, now)
        assert bits(after) == bits(trained())


def test_weights_are_read_without_the_run(tmp_path: Path) -> None:
    """By outlast.load, `ckpt export` and `ckpt diff`, which share this code."""
    save(tmp_path / "a", 3)
    save(tmp_path / "b", 2)
    model = trained().given["model"]
    assert isinstance(model, nn.Module)
    found = saved_weights.read(tmp_path / "a")
    expected = model.state_dict()
    torch.testing.assert_close(found.state_dict("model"), expected, rtol=0, atol=0)
    file = tmp_path / "model.safetensors"
    saved_weights.export(found, file, name="model")
    torch.testing.assert_close(load_file(file), expected, rtol=0, atol=0)
    sides = [weights_diff.read_any(str(tmp_path / one)) for one in ("a", "b")]
    assert weights_diff.compare(*sides)[0] == []


def test_stock_torch_reads_the_files_by_its_own_sharding_header(tmp_path: Path) -> None:
    folder = save(tmp_path, 4).folder
    before, other = trained(), trained(seed=7, steps=1)
    wanted = {f"shared/{name}": one.detach().contiguous() for name, one in other.parameters.items()}
    dcp.load(wanted, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    for name, one in before.parameters.items():
        assert torch.equal(wanted[f"shared/{name}"], one), name


def test_state_that_the_ranks_do_not_hold_alike_is_never_committed(tmp_path: Path) -> None:
    """Method: rank 1 has no optimizer state yet. So the ranks compute different shares."""
    folder, error = written(tmp_path, [trained(), trained(steps=0)])
    assert folder == ""
    assert "is not whole" in error or "two files have row" in error, error
    assert local.checkpoints(tmp_path) == ()
