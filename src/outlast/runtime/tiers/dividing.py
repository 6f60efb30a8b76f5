"""Decide whether a checkpoint of a run can be divided among another number of ranks.

The launcher asks before it writes anything, so this reads the texts of the images without torch
(worker/tensors/layout.py, state.py and private.py write them). It reads one rank's file after the
other.

    replicated state     can be divided: all ranks have the same
    sharded state        can be divided, if each tensor is cut into parts that make a whole (FSDP2),
                         or is the same on all ranks
    values of each rank  cannot be divided: stages of a pipeline, experts as plain modules, a model
                         for each rank
    loader               can be divided, if its position is a number of batches; the position of a
                         StatefulDataLoader is that of one rank's share of the data
"""

from __future__ import annotations

import json
import math
from typing import Any

import xxhash

from outlast.errors import CorruptError
from outlast.runtime.tiers import local
from outlast.runtime.tiers.image import Image

_SHARED, _NESTED, _LAYOUT, _PRIVATE = "shared/", "shared/shared/", "layout/text", "private/text"
_STATEFUL = "state"  # a key in the position of a StatefulDataLoader, and of no other


def why_not(checkpoint: local.CheckpointFolder) -> str:
    """Return why only the same number of ranks can go on from a checkpoint; "" if others can.

    Raises CorruptError.
    """
    manifest = checkpoint.manifest
    is_sharded = manifest.kind == "sharded"
    parts = _Parts()
    for rank in range(manifest.world_size if is_sharded else 1):
        image = local.read_shard(checkpoint, rank)
        if rank == 0 and _is_stateful(image):
            return (
                "the loader is a StatefulDataLoader, and its place in the data is that of each"
                " rank's own share"
            )
        if is_sharded and (reason := parts.take(rank, image)):
            return reason
    return parts.missing()


class _Parts:
    """Compare the parameters of one saved rank after the other."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._digests: dict[str, int] = {}
        # for a parameter that is cut: its shape, and the number of elements of each part, by its
        # place
        self._cut: dict[str, tuple[tuple[int, ...], dict[tuple[int, ...], int]]] = {}

    def take(self, rank: int, image: Image) -> str:
        """Take the parameters of a rank. Return why they cannot be divided, or ""."""
        if _LAYOUT not in image.tensors:
            return "it was written by an older outlast, which did not say how tensors are cut"
        shards = _json(image, _LAYOUT).get("shards", {})
        names = _parameters(image)
        if rank == 0:
            self._names = names
        if unlike := sorted(names ^ self._names):
            holder, other = (rank, 0) if unlike[0] in names else (0, rank)
            return (
                f"ranks hold parts of their own: {unlike[0]} is on rank {holder}, and not on rank"
                f" {other}"
            )
        for name in sorted(names):
            spec, data = image.tensors[_SHARED + name]
            if name in shards:
                shape, offsets = (tuple(one) for one in shards[name])
                parts = self._cut.setdefault(name, (shape, {}))[1]
                parts[offsets] = max(math.prod(spec.shape), parts.get(offsets, 0))
            elif self._digests.setdefault(name, _digest(data)) != _digest(data):
                return f"each rank has values of its own for {name}"
        return ""

    def missing(self) -> str:
        """Return which parameter has parts that do not make a whole, or ""."""
        for name, (shape, parts) in self._cut.items():
            if sum(parts.values()) != math.prod(shape):
                return f"the parts of {name} do not make a whole"
        return ""


def _parameters(image: Image) -> set[str]:
    """Return the names of the parameters, without what an optimizer keeps for them."""
    described = _json(image, _SHARED + "text")["m"]["optimizers"]["m"]
    names = {
        name[len(_SHARED) :]
        for name in image.tensors
        if name.startswith(_SHARED) and not name.startswith(_NESTED)
    }
    return {name for name in names - {"text"} if name.partition(".")[0] not in described}


def _is_stateful(image: Image) -> bool:
    """Return whether the position of the loader is that of a StatefulDataLoader."""
    try:
        position = json.loads(_json(image, _PRIVATE)[0])[0]
        return position is not None and _STATEFUL in position["m"]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise CorruptError(f"the private state of rank 0 cannot be read: {error}") from None


def _json(image: Image, name: str) -> Any:
    try:
        return json.loads(bytes(image.tensors[name][1]))
    except (ValueError, KeyError, RecursionError) as error:
        raise CorruptError(f"an image has no readable {name}: {error}") from None


def _digest(data: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(data)
