"""A distributed tensor is put together on the host as torch itself does it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from outlast.runtime.worker.run_state import sameness
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.tensors import sharding
from tests.worker._ranks import Rank, run_ranks

SHAPES = ((7, 5), (4, 4), (1, 3), (3,), (2, 3, 5))


def put_together(rank: Rank) -> list[str]:
    """Return each layout for which the host's tensor differs from torch's. The collectives are
    gloo's.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    store = dist.TCPStore("127.0.0.1", rank.port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.world_size)
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    torch.manual_seed(0)
    wrong = []
    for shape in SHAPES:
        last = len(shape) - 1
        for mesh, placements in (
            (line, [Shard(0)]),
            (line, [Shard(last)]),
            (line, [Replicate()]),
            (square, [Replicate(), Shard(0)]),
            (square, [Shard(last), Replicate()]),
            (square, [Shard(0), Shard(last)]),
            (square, [Shard(0), Shard(0)]),
        ):
            tensor = distribute_tensor(torch.randn(shape), mesh, placements)
            if not torch.equal(sharding.gathered_on_host(tensor), tensor.full_tensor()):
                wrong.append(f"{shape} {placements}")
    dist.destroy_process_group()
    return wrong


def test_shards_are_put_together_on_the_host_as_torch_does_it() -> None:
    assert run_ranks(4, put_together, timeout_s=60.0) == [[], [], [], []]


def prints(rank: Rank) -> list[str]:
    """Return the keys by which this rank is compared under HSDP, HSDP with other values on ranks 2
    and 3, HSDP with a parameter that is not distributed, and FSDP2.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    store = dist.TCPStore("127.0.0.1", rank.port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.world_size)
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    line = init_device_mesh("cpu", (4,))
    found = []
    for kind in ("hsdp", "drifted", "mixed", "fsdp"):
        torch.manual_seed(rank.rank // 2 if kind == "drifted" else 0)
        model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4))
        split = model[0] if kind == "mixed" else model
        fully_shard(split, mesh=line if kind == "fsdp" else square)
        state = State(model=model, optimizer=torch.optim.AdamW(model.parameters()))
        found.append(sameness.print_of_shards(state))
    dist.destroy_process_group()
    return found


def test_ranks_of_two_replicas_are_found_to_hold_the_same_shards() -> None:
    """This holds only if each parameter is replicated over a dimension of the mesh, and has equal
    bytes.
    """
    hsdp, drifted, mixed, fsdp = zip(*run_ranks(4, prints, timeout_s=60.0), strict=True)
    assert (hsdp[0], hsdp[1]) == (hsdp[2], hsdp[3])
    assert len({*hsdp}) == 2
    assert len({*drifted}) == 4
    assert {*mixed, *fsdp} == {sameness.UNLIKE}
