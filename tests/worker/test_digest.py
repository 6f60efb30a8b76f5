"""One hash of all tensors: the same bits give the same digest, also for shards, and over ranks."""

from __future__ import annotations

import json
import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from outlast.errors import StateError
from outlast.runtime.worker.run_state.digest import digest
from outlast.runtime.worker.run_state.state import State
from tests.worker._ranks import Rank, run_ranks

JOIN_S = 60


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for number in range(steps):
        torch.manual_seed(number)
        model(torch.randn(6, 7)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_digest_is_stable_for_ever() -> None:
    """These are golden values: digests of runs of different versions are compared."""
    tensors = {
        "b": torch.arange(6, dtype=torch.int32).reshape(2, 3),
        "a": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
        "c": torch.tensor(True),
    }
    assert digest(tensors) == GOLDEN
    assert digest(dict(reversed(tensors.items()))) == GOLDEN


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.tensor([0.0, 2.0])},
        {"w": torch.tensor([-0.0, 1.0])},
        {"w": torch.tensor([0.0, 1.0], dtype=torch.float64)},
        {"w": torch.tensor([[0.0, 1.0]])},
        {"v": torch.tensor([0.0, 1.0])},
        {"w": torch.tensor([0.0, 1.0]), "x": torch.empty(0)},
    ],
    ids=["value", "sign-of-zero", "dtype", "shape", "name", "one-more"],
)
def test_any_difference_shows(other: dict[str, torch.Tensor]) -> None:
    assert digest(other) != digest({"w": torch.tensor([0.0, 1.0])})


def test_strides_wrappers_and_the_name_given_do_not_matter() -> None:
    model = net()
    assert digest(torch.compile(model, backend="eager")) == digest(model)
    assert digest({"module.w": torch.ones(2)}) == digest({"w": torch.ones(2)})
    square = torch.arange(9.0).reshape(3, 3)
    assert digest({"w": square.t().contiguous().t()}) == digest({"w": square})


def test_the_digest_includes_buffers_and_of_a_state_the_optimizer() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    state = State(model=model, optimizer=optimizer)
    first = digest(model), digest(state)
    model[1].running_mean.add_(1)  # type: ignore[operator, union-attr]
    second = digest(model), digest(state)
    trained(model, optimizer, 1)
    third = digest(state)
    optimizer.state[model[0].weight]["exp_avg"].add_(1)
    assert first[0] == first[1], "no optimizer state yet"
    assert len({*first, *second, third, digest(state)}) == 4
    assert digest(model, all=True) != digest(model), "alone, it is the hash of one hash"


def test_what_has_no_bytes_is_refused() -> None:
    with pytest.raises(StateError, match="layout"):
        digest({"w": torch.ones(2).to_sparse()})
    with pytest.raises(StateError, match="digest of a int"):
        digest(3)  # type: ignore[arg-type]


def replica(rank: int, folder: str) -> dict[str, Any]:
    """Run two ranks under DDP, each with its own data and therefore its own BatchNorm
    statistics.
    """
    model = nn.parallel.DistributedDataParallel(net(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = State(model=model, optimizer=optimizer)
    model(torch.randn(6, 7) + rank).square().mean().backward()
    optimizer.step()
    return {
        "parameters": digest(dict(model.named_parameters())),
        "plain": digest({"w": torch.ones(2)}),
        "model": digest(model),
        "all": digest(state, all=True),
    }


def shard(rank: int, folder: str) -> dict[str, Any]:
    """Under fully_shard, return the digest of the whole, and save and load this rank's shards into
    a differently trained model.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))

    def make(steps: int) -> tuple[nn.Module, torch.optim.Optimizer, State]:
        model = net()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        state = State(model=model, optimizer=optimizer)
        trained(model, optimizer, steps)
        return model, optimizer, state

    at_0 = digest(make(0)[0])
    model, optimizer, state = make(2)
    text, tensors = state.shared_tensors()
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    private = state.private.tensors()
    private = (private[0], {name: tensor.clone() for name, tensor in private[1].items()})
    shards = state.shards()
    trained(model, optimizer, 2)
    out: dict[str, Any] = {
        "at_0": at_0,
        "sharded": state.sharded,
        "after_4": digest(state),
        "undo_bytes": state.undo_bytes,
        "signature": state.signature(),
    }
    out["offsets"] = {
        name: [list(part.global_shape), list(part.offsets), list(saved[name].shape), part.replica]
        for name, part in shards.items()
    }
    for steps in (0, 1):  # into a state without optimizer tensors, and into one with them
        again, optimizer, state = make(steps)
        _, shared = state.bytes_needed()
        state.load_shared(text, saved)
        state.private.load(*private)
        assert sum(tensor.nbytes for tensor in saved.values()) <= shared
        trained(again, optimizer, 2)
        out[f"restored_{steps}"] = digest(state)
        state.check_signature()
        out["kept"] = state.undo_bytes
        state.keep_undo()
        trained(again, optimizer, 1)
        state.undo()
        out[f"undone_{steps}"] = digest(dict(again.named_parameters()))
    out["parameters_4"] = digest(dict(model.named_parameters()))
    return out


def _rank(rank: Rank, work: Any, folder: str) -> str:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank.rank, world_size=2
    )
    said = json.dumps(work(rank.rank, folder))
    dist.destroy_process_group()
    return said


def on_two_ranks(work: Any) -> list[dict[str, Any]]:
    """Run two processes over gloo, for at most JOIN_S."""
    with tempfile.TemporaryDirectory() as folder:
        return [json.loads(said) for said in run_ranks(2, _rank, work, folder, timeout_s=JOIN_S)]


def test_ranks_agree_on_a_digest_and_all_covers_their_own_buffers() -> None:
    left, right = on_two_ranks(replica)
    assert left["parameters"] == right["parameters"]
    assert left["model"] != right["model"], "each rank has its own BatchNorm statistics"
    assert left["all"] == right["all"]
    assert left["all"] not in (left["model"], right["model"])


def test_shards_have_the_digest_of_the_whole_and_are_put_back_bit_for_bit() -> None:
    """Under fully_shard on two ranks, the digest equals that of the unsharded model, and a restored
    state goes on like the saved one.
    """
    ranks = on_two_ranks(shard)
    for out in ranks:
        assert out["sharded"]
        assert out["restored_0"] == out["restored_1"] == out["after_4"]
        assert out["undone_0"] == out["undone_1"] == out["parameters_4"]
        assert out["after_4"] == ranks[0]["after_4"]
        assert out["at_0"] == digest(net())
    assert ranks[0]["signature"] == ranks[1]["signature"]
    weights = [out["offsets"]["model.0.weight"] for out in ranks]
    assert weights == [[[5, 7], [0, 0], [3, 7], 0], [[5, 7], [3, 0], [2, 7], 0]]
    assert "optimizer.0.0.exp_avg" in ranks[0]["offsets"]


GOLDEN = "31f5527fa5d5441e47e17fec6fe417e6"
