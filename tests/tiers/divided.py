"""Checkpoints of runs with a few small parameters, made without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outlast.model.manifest import Manifest
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.tiers.local import (
    CheckpointFolder,
    checkpoint_folder,
    write_manifest,
    write_shard,
)

A = np.arange(6, dtype=np.float32).reshape(3, 2)
STEPS = {"m": {"step": 7}}  # positions of loaders, as worker/tensors/tree.py writes them
STATEFUL = {"m": {"epoch": 0, "batches": 7, "base": 1, "state": {"m": {}}}}


def _text(name: str, value: Any) -> TensorPiece:
    data = json.dumps(value).encode()
    return TensorPiece(TensorSpec(name, "U8", (len(data),)), memoryview(data))


def _tensor(name: str, value: np.ndarray[Any, Any]) -> TensorPiece:
    return TensorPiece(TensorSpec(name, "F32", value.shape), memoryview(value.tobytes()))


def _private(position: Any) -> TensorPiece:
    return _text("private/text", [json.dumps([position, {"m": {}}, {"m": {}}]), ""])


def _save(
    root: Path, step: int, kind: str, run: str, images: list[list[TensorPiece]]
) -> CheckpointFolder:
    folder = checkpoint_folder(root, step)
    files = tuple(
        write_shard(folder, rank, pieces=pieces, metadata={"step": str(step)})
        for rank, pieces in enumerate(images)
    )
    return write_manifest(folder, Manifest(run, 1, step, len(images), kind, files))


def replicated(
    root: Path, step: int, *, run: str = "run", ranks: int = 2, position: Any = STEPS
) -> CheckpointFolder:
    """Rank 0 has the parameters, and each rank its private state."""
    images = [
        [_private(position), *([_tensor("shared/model.a", A)] if rank == 0 else [])]
        for rank in range(ranks)
    ]
    return _save(root, step, "replicated", run, images)


def sharded(
    root: Path,
    step: int,
    held: Mapping[int, Mapping[str, np.ndarray[Any, Any]]],
    *,
    run: str = "run",
    shards: Mapping[int, Mapping[str, Any]] | None = None,
    laid_out: bool = True,
) -> CheckpointFolder:
    """Each rank has its own parameters, by name, and a moment of an optimizer for each.

    shards     by rank and name: the shape of the whole, and where this rank's part begins
    laid_out   the images say how tensors are cut
    """
    images = []
    for rank, parameters in held.items():
        layout = {"shards": (shards or {}).get(rank, {}), "aliases": {}, "transient": []}
        described = {"m": {"optimizers": {"m": {"opt": {"m": {}}}}}}
        images.append(
            [
                _private(STEPS),
                *([_text("layout/text", layout)] if laid_out else []),
                _text("shared/text", described),
                *(_tensor(f"shared/{name}", one) for name, one in parameters.items()),
                *(
                    _tensor(f"shared/opt.0.{number}.exp_avg", one + rank)
                    for number, one in enumerate(parameters.values())
                ),
            ]
        )
    return _save(root, step, "sharded", run, images)
