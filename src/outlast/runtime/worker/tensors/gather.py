"""Gather bytes of every rank on every rank: a collective of the default group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from outlast.runtime.worker.process import devices


def gather_bytes(mine: bytes) -> list[bytes]:
    """Return what each rank gave, by rank. Lengths may differ; none is 0.

    Every rank of the default group has to call. Nothing is unpickled: the caller decides what the
    bytes mean. Raises what torch raises when a peer is lost.
    """
    device = devices.mine() if dist.get_backend() == "nccl" else torch.device("cpu")
    world = dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(lengths, torch.tensor([len(mine)], dtype=torch.int64, device=device))
    sizes = [int(length) for length in lengths]
    flat = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
    return [bytes(one.tolist()) for one in gather_flat(flat, sizes)]


def gather_flat(
    mine: torch.Tensor, lengths: list[int], group: dist.ProcessGroup | None = None
) -> list[torch.Tensor]:
    """Return the tensor of each rank of `group`, or of the default group.

    `lengths` gives their lengths. They have one dimension, one dtype, and are on the device on
    which the group communicates.
    """
    padded = mine.new_zeros(max(lengths))
    padded[: mine.numel()] = mine
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded, group=group)
    return [one[:length] for one, length in zip(gathered, lengths, strict=True)]
