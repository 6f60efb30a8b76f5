"""A DCP StorageReader over outlast's tiers, which compares all that it reads with checksums."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from outlast.errors import StateError, UsageError
from outlast.model.manifest import Manifest
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.image import TensorSpec
from outlast.runtime.tiers.tensor_record import Stored, TensorRecord, WholeTensor
from outlast.runtime.tiers.tier import CheckpointTier
from outlast.runtime.worker.dcp.chunks import read_record, read_verified
from outlast.runtime.worker.process.error_text import one_line
from outlast.runtime.worker.tensors.tensors import bytes_of, dtype_of, is_live, view_of


class Reader(StorageReader):
    """Read checkpoints that `outlast.checkpoint.Writer` has written.

        dcp.load(state, storage_reader=outlast.checkpoint.Reader("checkpoints", step=12))

    The number of ranks may differ from that of the save. Each rank reads the chunks that it needs,
    and no others. Without `step` the newest checkpoint is read. `outlast.checkpoint.load` also goes
    back to an older one if the newest is damaged.

    Objects that are not tensors were pickled by DCP. Reading them runs no code, because only types
    that `torch.load(weights_only=True)` takes are accepted. `weights_only=False` accepts all of
    them: use it for checkpoints that you have written yourself.

    If a byte is not as it was written, a CorruptError is raised inside DCP's CheckpointException,
    on every rank. The state is partly overwritten then, so load another checkpoint into it.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, step: int | None = None, weights_only: bool = True
    ) -> None:
        self.tier: CheckpointTier = DiskTier(Path(root))
        self._step = step
        self._weights_only = weights_only
        self._found: tuple[Manifest, TensorRecord] | None = None

    # --- called by DCP, in this order -------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load. `checkpoint_id` names its step ("step-12" or "12").

        Raises UsageError for a name that ends in no step.
        """
        self._found = None
        if checkpoint_id is not None:
            name = Path(checkpoint_id).name.removeprefix("step-")
            if not name.isascii() or not name.isdecimal():
                raise UsageError(f"checkpoint_id {str(checkpoint_id)!r} names no step")
            self._step = int(name)

    def read_metadata(self) -> Metadata:
        """Return what the checkpoint contains. It is called on all ranks."""
        if self._step is None:
            self._step = _newest(self.tier)
        self._found = manifest, record = read_record(self.tier, self._step)
        return Metadata(
            {
                **{name: _tensor(name, one) for name, one in record.tensors.items()},
                **{name: BytesStorageMetadata() for name in record.objects},
            },
            planner_data=dict(record.paths),
            storage_data=_places(record),
            storage_meta=StorageMeta(checkpoint_id=f"{self.tier.place}, step {manifest.step}"),
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing, because `read_metadata` has found everything."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add to the plan which step this rank has found."""
        return dataclasses.replace(plan, storage_data=self._step)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Refuse ranks that have found different checkpoints. It is called on the coordinator."""
        steps = sorted({plan.storage_data for plan in plans})
        if len(steps) > 1:
            raise UsageError(
                f"ranks found different newest checkpoints: of steps {steps}",
                hint="a save was just committed: name a step, or use outlast.checkpoint.load",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read and verify what the plan names. It is called on all ranks."""
        assert self._found is not None, "read_metadata was called"
        places = _places(self._found[1])
        # by tensor and offset: several tensors without elements are at the same place
        wanted: dict[MetadataIndex, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(item.storage_index, []).append(item)
        in_order = sorted(wanted, key=lambda one: (places[one].file, places[one].begin))
        for index in in_order:
            self._read(places[index], wanted[index], planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether `checkpoint_id` names a step."""
        name = Path(checkpoint_id).name.removeprefix("step-")
        return name.isascii() and name.isdecimal()

    # --- one chunk --------------------------------------------------------------------------------

    def _read(self, stored: Stored, items: list[ReadItem], planner: LoadPlanner) -> None:
        """Read a chunk once, for all that need a part of it."""
        assert self._found is not None
        manifest, record = self._found
        if items[0].type == LoadItemType.BYTE_IO:
            data = bytearray(stored.length)
            read_verified(self.tier, manifest, stored, memoryview(data))
            for item in items:
                planner.load_bytes(item, self._object(item.storage_index.fqn, data))
            return
        name = items[0].storage_index.fqn
        sizes = next(chunk.sizes for chunk in record.tensors[name].chunks if chunk.stored is stored)
        whole: torch.Tensor | None = None
        for item in items:
            target = planner.resolve_tensor(item).detach()
            if target.shape != item.lengths:
                raise StateError(
                    f"{name} has a part of {list(target.shape)}, not {list(item.lengths)}"
                )
            dtype = dtype_of(name, record.tensors[name].dtype)
            if target.shape == sizes and target.dtype == dtype and is_live(target):
                read_verified(self.tier, manifest, stored, bytes_of(target))
            else:
                if whole is None:
                    data = bytearray(stored.length)
                    read_verified(self.tier, manifest, stored, memoryview(data))
                    code = record.tensors[name].dtype
                    whole = view_of(TensorSpec(name, code, sizes), memoryview(data))
                target.copy_(_narrowed(whole, item))
            planner.commit_tensor(item, target)

    def _object(self, name: str, data: bytearray) -> io.BytesIO:
        if self._weights_only:
            try:
                torch.load(io.BytesIO(data), weights_only=True)
            except Exception as error:  # boundary: the unpickler may raise anything for these bytes
                raise StateError(
                    f"{name} is an object that cannot be read without running code:"
                    f" {one_line(error)}",
                    hint="Reader(..., weights_only=False), if you trust who wrote the checkpoint",
                ) from None
        return io.BytesIO(data)


def _newest(tier: CheckpointTier) -> int:
    step = next((one.step for one in tier.step_folders() if one.has_manifest), None)
    if step is None:
        raise UsageError(f"{tier.place} has no checkpoint")
    return step


def _places(record: TensorRecord) -> Mapping[MetadataIndex, Stored]:
    places = {MetadataIndex(name): stored for name, stored in record.objects.items()}
    for name, one in record.tensors.items():
        for chunk in one.chunks:
            places[MetadataIndex(name, chunk.offsets)] = chunk.stored
    return places


def _tensor(name: str, one: WholeTensor) -> TensorStorageMetadata:
    dtype = dtype_of(name, one.dtype)
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype, requires_grad=one.requires_grad),
        torch.Size(one.size),
        [
            ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
            for chunk in one.chunks
        ],
    )


def _narrowed(whole: torch.Tensor, item: ReadItem) -> torch.Tensor:
    for dimension, (begin, length) in enumerate(
        zip(item.storage_offsets, item.lengths, strict=True)
    ):
        whole = whole.narrow(dimension, begin, length)
    return whole
