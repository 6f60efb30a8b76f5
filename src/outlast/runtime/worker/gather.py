"""Gather bytes of every rank on every rank: a collective of the default group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from outlast.runtime.worker import devices


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
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    gathered = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(gathered, padded)
    return [bytes(data.tolist())[:size] for data, size in zip(gathered, sizes, strict=True)]
