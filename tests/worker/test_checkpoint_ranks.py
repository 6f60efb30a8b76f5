"""outlast.checkpoint on several ranks: what N ranks save, M ranks can load, and stock torch can
too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.runtime.tiers.local import checkpoint_folder
from tests.tiers.saved import flip_bit
from tests.worker._ranks import Rank, run_ranks

STEPS = 2


@contextmanager
def group(rank: Rank) -> Iterator[None]:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", rank.port, is_master=False)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("test", store), rank=rank.rank, world_size=rank.world_size
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def trained(steps: int) -> dict[str, Any]:
    """Return the state of a sharded model after some steps. Its first dimensions are 5, 7 and 2: no
    number of ranks splits them evenly, and on more than two ranks some hold nothing of the last.
    """
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(7, 2))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(step)  # the batch is the same on each rank
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, states = get_state_dict(model, optimizer)
    return {"model": weights, "optim": states, "step": steps}


def whole(state: dict[str, Any]) -> dict[str, list[Any]]:
    """Return all tensors of a state, put together, by flat name. float32 values are returned as
    Python's floats, which hold every bit of them. Tensors themselves would go through shared memory
    that ends with the rank.
    """
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    flat, _ = flatten_state_dict(state)
    return {
        name: (one.full_tensor() if hasattr(one, "full_tensor") else one).tolist()
        for name, one in flat.items()
        if isinstance(one, torch.Tensor)
    }


def saves(rank: Rank, root: str, asynchronously: bool) -> dict[str, list[Any]]:
    import torch.distributed.checkpoint as dcp

    from outlast.checkpoint import Writer

    with group(rank):
        state = trained(STEPS)
        for step in (1, 2):
            writer = Writer(root, step=step, run="fsdp")
            if asynchronously:
                dcp.async_save(state, storage_writer=writer).result()
            else:
                dcp.save(state, storage_writer=writer)
        return whole(state)


def loads(rank: Rank, root: str, stock: str) -> tuple[int | None, dict[str, list[Any]]]:
    import torch.distributed.checkpoint as dcp

    import outlast.checkpoint

    with group(rank):
        state = trained(1)
        if stock:
            tensors = {"model": state["model"]}
            dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(stock))
            return None, whole(tensors)
        step = outlast.checkpoint.load(state, root)
        assert state["step"] == STEPS
        return step, whole(state)


def same(left: dict[str, list[Any]], right: dict[str, list[Any]]) -> bool:
    return set(left) <= set(right) and all(left[name] == right[name] for name in left)


@pytest.mark.drill
@pytest.mark.parametrize(
    ("ranks", "readers"),
    [(3, (2,)), (4, (1, 2, 3, 4))],
)
def test_any_number_of_ranks_loads_what_another_number_has_saved(
    ranks: int, readers: tuple[int, ...], tmp_path: Path
) -> None:
    """Method: FSDP2 with AdamW, saved by `ranks` and loaded by `readers`. Stock torch loads the
    model on two ranks. Then the newest checkpoint is damaged.
    """
    saved = run_ranks(ranks, saves, str(tmp_path), ranks == 4)
    assert all(same(saved[0], one) for one in saved[1:])
    for number in readers:
        for step, found in run_ranks(number, loads, str(tmp_path), ""):
            assert step == 2
            assert same(found, saved[0])
            assert len(found) == len(saved[0])
    for _, found in run_ranks(2, loads, str(tmp_path), str(checkpoint_folder(tmp_path, 2))):
        assert same(found, saved[0])
    flip_bit(checkpoint_folder(tmp_path, 2) / "rank-1.safetensors")
    for step, found in run_ranks(2, loads, str(tmp_path), ""):
        assert step == 1
        assert same(found, saved[0])
