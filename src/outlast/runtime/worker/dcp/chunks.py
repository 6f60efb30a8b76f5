"""Read the chunks of a checkpoint of kind "dcp", and compare them with their checksums."""

from __future__ import annotations

import torch
import xxhash

from outlast.errors import CorruptError, UsageError
from outlast.model.limits import READ_BLOCK_BYTES, RECORD_MAX_BYTES
from outlast.model.manifest import Manifest
from outlast.runtime.tiers.image import TensorSpec
from outlast.runtime.tiers.tensor_record import (
    RECORD_NAME,
    Stored,
    TensorRecord,
    WholeTensor,
    decode,
    file_of,
)
from outlast.runtime.tiers.tier import CheckpointTier
from outlast.runtime.worker.tensors.tensors import dtype_of, view_of


def read_record(tier: CheckpointTier, step: int) -> tuple[Manifest, TensorRecord]:
    """Return the manifest and the record of a checkpoint. Raises CorruptError.

    Raises UsageError if DCP has not written the checkpoint.
    """
    manifest = tier.manifest(step)
    if manifest.kind != "dcp":
        raise UsageError(
            f"the checkpoint of step {step} in {tier.place} is one of `outlast run`",
            hint="go on from it with `outlast run --resume`, or take weights by outlast.load",
        )
    entry = next((one for one in manifest.files if one.name == RECORD_NAME), None)
    if entry is None or entry.length > RECORD_MAX_BYTES:
        raise CorruptError(f"the checkpoint of step {step} in {tier.place} has no {RECORD_NAME}")
    data = bytearray(entry.length)
    stored = Stored(entry.name, 0, entry.length, entry.checksum)
    read_verified(tier, manifest, stored, memoryview(data))
    return manifest, decode(bytes(data), manifest)


def read_verified(
    tier: CheckpointTier, manifest: Manifest, stored: Stored, target: memoryview
) -> None:
    """Read bytes into `target`, and compare them with their checksum. Raises CorruptError."""
    entry, digest = file_of(stored, manifest), xxhash.xxh3_64()
    for at in range(0, stored.length, READ_BLOCK_BYTES):
        block = target[at : at + READ_BLOCK_BYTES]
        tier.read(manifest.step, entry, stored.begin + at, block)
        digest.update(block)
    if digest.intdigest() != stored.checksum:
        raise CorruptError(
            f"step {manifest.step} in {tier.place}: {stored.file} does not match its checksum from"
            f" byte {stored.begin:,} to {stored.begin + stored.length:,}",
            hint="load an older checkpoint; `outlast ckpt verify` says which are good",
        )


def whole(tier: CheckpointTier, manifest: Manifest, name: str, one: WholeTensor) -> torch.Tensor:
    """Return a tensor that is put together from its chunks. Raises CorruptError."""
    tensor = torch.empty(one.size, dtype=dtype_of(name, one.dtype))
    for chunk in one.chunks:
        data = bytearray(chunk.stored.length)
        read_verified(tier, manifest, chunk.stored, memoryview(data))
        part = view_of(TensorSpec(name, one.dtype, chunk.sizes), memoryview(data))
        place = tuple(
            slice(begin, begin + size)
            for begin, size in zip(chunk.offsets, chunk.sizes, strict=True)
        )
        tensor[place] = part
    return tensor
