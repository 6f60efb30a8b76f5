"""Checkpoints of a small state in a folder, for tests that need some."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from outlast.model.manifest import FileEntry, Manifest
from outlast.runtime.tiers import local
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_chunks

RANKS = 2


def pieces(step: int, rank: int) -> list[TensorPiece]:
    values = np.full(700, step * 10 + rank, np.float32)
    return [TensorPiece(TensorSpec("w", "F32", values.shape), values.view(np.uint8).data)]


def put(tier: DiskTier, step: int, rank: int) -> FileEntry:
    chunks = image_chunks(pieces=pieces(step, rank), metadata={})
    return tier.put(step, local.shard_name(rank), chunks)


def save(root: Path, *steps: int, run: str = "run-1") -> DiskTier:
    """Save a checkpoint of each step, by two ranks."""
    tier = DiskTier(root)
    for step in steps:
        files = tuple(put(tier, step, rank) for rank in range(RANKS))
        tier.commit(Manifest(run, 1, step, RANKS, "sharded", files))
    return tier


def flip_bit(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def forge(folder: Path, **changes: object) -> None:
    """Change a manifest as somebody does who knows how its own checksum is made."""
    path = folder / local.MANIFEST_NAME
    body = {**json.loads(path.read_text()), **changes}
    body.pop("checksum")
    from outlast.model.manifest import _canonical, _digest

    path.write_text(json.dumps({**body, "checksum": _digest(_canonical(body)).hex()}))
