"""Fingerprints of tensors: equal bytes, dtype and shape give equal fingerprints, on every rank.

They find accidental differences. XXH3 with 64 bits does not protect against a person who makes two
tensors with the same fingerprint on purpose.

Cost       A tensor on the CPU is read in place (10 GB/s and more). A tensor on a device is copied
           to the host in pieces of `PIECE_BYTES`, which waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import xxhash

from outlast.runtime.worker.tensors.sharding import local

PIECE_BYTES = 64 << 20  # the size of a piece of a tensor that is not on the host


def fingerprint(tensor: torch.Tensor) -> str:
    """Return 16 hexadecimal digits for the tensor's bytes, dtype and shape.

    Only this rank's part of a distributed tensor counts.
    """
    mine = local(tensor).detach()
    digest = xxhash.xxh3_64()
    for data in _pieces(mine.contiguous().reshape(-1)):
        digest.update(data.cpu().numpy().data)
    return f"{digest.hexdigest()} {mine.dtype} {list(mine.shape)}"


def word(flat: Iterable[torch.Tensor]) -> int:
    """Return 32 bits that stand for the bytes of flat, contiguous tensors."""
    digest = xxhash.xxh32()
    for tensor in flat:
        for data in _pieces(tensor):
            digest.update(data.cpu().numpy().data)
    return digest.intdigest()


def _pieces(flat: torch.Tensor) -> Iterator[torch.Tensor]:
    data = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
    yield from (data[start : start + PIECE_BYTES] for start in range(0, data.numel(), PIECE_BYTES))
