"""Checkpoints of replicated state that is split among the files of several ranks, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outlast.model.limits import SPLIT_LEAST_BYTES
from outlast.model.manifest import SPLIT, FileEntry, Manifest
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_chunks
from outlast.runtime.tiers.local import CheckpointFolder, shard_name
from outlast.runtime.tiers.split_state import SharePart, metadata_of, split
from outlast.runtime.tiers.tier import CheckpointTier

ROW = SPLIT_LEAST_BYTES // 4 // 8  # float32 elements in an eighth of the least share


def state(step: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return tensors of which one is larger than a share of four ranks, and some are tiny."""
    rng = np.random.default_rng(step)
    return {
        "shared/large": rng.random((56, ROW), np.float32),
        "shared/tiny": rng.random((3,), np.float32),
        "shared/step": np.float32(step).reshape(()),
        "shared/none": np.zeros((0, 4), np.float32),
        "shared/wide": rng.random((1, 16, ROW), np.float32),
    }


def specs_of(tensors: Mapping[str, np.ndarray[Any, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, "F32", one.shape) for name, one in tensors.items())


def pieces(
    tensors: Mapping[str, np.ndarray[Any, Any]], parts: Sequence[SharePart], rank: int
) -> list[TensorPiece]:
    """Return the pieces of a rank's file: its parts, its private state, and rank 0's text."""
    texts = {"private/text": f"rank {rank}".encode()}
    if rank == 0:
        texts["shared/text"] = b"{}"
    found = [
        TensorPiece(TensorSpec(name, "U8", (len(text),)), memoryview(text))
        for name, text in texts.items()
    ]
    for part in parts:
        data = memoryview(tensors[part.spec.name].tobytes())
        found.append(TensorPiece(part.own_spec, part.within(data)))
    return found


def put(
    tier: CheckpointTier,
    step: int,
    *,
    ranks: int = 4,
    lost: str = "",
    twice: bool = False,
) -> Manifest:
    """Write the files of all ranks, and return their manifest.

    lost    the parts of this tensor are left out on the rank that has the last of them
    twice   rank 1 writes what rank 0 writes
    """
    tensors = state(step)
    specs = specs_of(tensors)
    shares = list(split(specs, ranks))
    if lost:
        last = max(
            at for at, share in enumerate(shares) if lost in [one.spec.name for one in share]
        )
        shares[last] = tuple(one for one in shares[last] if one.spec.name != lost)
    if twice:
        shares[1] = shares[0]
    entries = []
    for rank, parts in enumerate(shares):
        of_rank = pieces(tensors, parts, rank)
        metadata = metadata_of(
            [piece.spec for piece in of_rank], parts, contents=None if rank else specs
        )
        chunks = image_chunks(pieces=of_rank, metadata={"step": str(step), **metadata})
        entries.append(tier.put(step, shard_name(rank), chunks))
    return manifest_of(step, entries)


def manifest_of(step: int, entries: Sequence[FileEntry]) -> Manifest:
    return Manifest("run-1", 1, step, len(entries), SPLIT, tuple(entries))


def folder_of(root: Path, step: int, manifest: Manifest) -> CheckpointFolder:
    return CheckpointFolder(root / f"step-{step:012d}", manifest)
