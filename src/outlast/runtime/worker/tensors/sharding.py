"""Distributed tensors seen from one rank: the local shard, and where it is in the whole.

Only this file uses DTensor. torch.distributed.tensor takes long to import, so it is imported when
the first DTensor is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from outlast.errors import StateError
from outlast.runtime.worker.tensors.gather import gather_flat

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a tensor that this rank holds.

    `offsets` is where the local tensor begins in the tensor of `global_shape`; `placements` is one
    word per mesh dimension. `replica` is 0 on one rank of each replica set, the one whose copy
    should be stored. On the others it is a positive number.
    """

    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    placements: tuple[str, ...]
    replica: int


def is_distributed(tensor: object) -> bool:
    return (
        type(tensor) not in _PLAIN
        and isinstance(tensor, torch.Tensor)
        and hasattr(tensor, "to_local")
    )


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is distributed in such a way that no rank needs to hold all of it."""
    return is_distributed(tensor) and any(
        not placement.is_replicate()
        for placement in tensor.placements  # type: ignore[attr-defined]
    )


def is_plainly_cut(tensor: Any) -> bool:
    """Return whether the local part of a distributed tensor is one box of the whole.

    That is so for plain shards and replicas. A placement of another kind may cut in strides.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as Cut

    return all(type(placement) in (Cut, Replicate) for placement in tensor.placements)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that this rank holds. It is live and without autograd."""
    # it is slow to ask a plain tensor for an attribute that it does not have
    if type(tensor) not in _PLAIN and hasattr(tensor, "to_local"):
        with torch.no_grad():  # otherwise to_local is part of the graph
            tensor = tensor.to_local()
    return tensor.detach() if tensor.requires_grad or tensor.grad_fn is not None else tensor


def whole(tensor: Any) -> torch.Tensor:
    """Return all of a distributed tensor, a collective over its mesh. It may be on the host.

    Gloo's own gathering of CUDA tensors, which `full_tensor` uses, reads addresses of the GPU as if
    they were the host's, and the process dies (torch 2.11). So shards go over the host there.
    """
    with torch.no_grad():
        if tensor.is_cuda and "gloo" in _backends(tensor.device_mesh):
            return gathered_on_host(tensor)
        full: torch.Tensor = tensor.full_tensor()
    return full


def gathered_on_host(tensor: Any) -> torch.Tensor:
    """Return all of a distributed tensor on the CPU, a collective over its mesh's gloo groups.

    Raises StateError for a tensor that is neither sharded in a plain way nor replicated.
    """
    from torch.distributed.tensor import Shard as Cut

    mesh = tensor.device_mesh
    mine = local(tensor).cpu().contiguous()
    # The first dimension of the mesh was applied first when the tensor was cut, so the last one is
    # joined first.
    for number in reversed(range(mesh.ndim)):
        placement = tensor.placements[number]
        if placement.is_replicate():
            continue
        if type(placement) is not Cut:  # a placement of another kind may have cut in strides
            raise StateError(
                f"a tensor with the placement {placement} cannot be gathered by gloo from GPUs",
                hint="give each rank a GPU of its own, so that NCCL does it",
            )
        mine = torch.cat(_parts(mine, mesh.get_group(number)), dim=placement.dim)
    return mine


def _parts(mine: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Return the tensor of each rank of `group`. Their shapes may differ."""
    shape = torch.tensor(mine.shape, dtype=torch.int64)
    shapes = [torch.zeros_like(shape) for _ in range(group.size())]
    dist.all_gather(shapes, shape, group=group)
    parts = gather_flat(mine.reshape(-1), [int(one.prod()) for one in shapes], group)
    return [part.reshape(one.tolist()) for part, one in zip(parts, shapes, strict=True)]


def _backends(mesh: Any) -> set[str]:
    return {dist.get_backend(mesh.get_group(number)) for number in range(mesh.ndim)}


def shard_of(tensor: Any) -> Shard:
    """Return where the local part of a distributed tensor is in the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh = tensor.device_mesh
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
    coordinate = mesh.get_coordinate() or [0] * len(tensor.placements)
    replica = 0
    for size, place, placement in zip(mesh.shape, coordinate, tensor.placements, strict=True):
        replica = replica * size + place if placement.is_replicate() else replica
    return Shard(
        tuple(tensor.shape),
        tuple(offsets),
        tuple(str(placement) for placement in tensor.placements),
        replica,
    )


def like(whole: Any, shard: torch.Tensor) -> torch.Tensor:
    """Return a distributed tensor laid out as `whole`, of which this rank holds `shard`.

    It does not communicate.
    """
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        shard,
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def same_layout(left: Any, right: Any) -> bool:
    return (
        left.shape == right.shape
        and left.device_mesh == right.device_mesh
        and tuple(left.placements) == tuple(right.placements)
    )
