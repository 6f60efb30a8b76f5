"""A DCP StorageWriter that writes safetensors files, and commits by a manifest."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import xxhash
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from outlast.errors import CorruptError, RunFolderError, StateError, UsageError
from outlast.model.limits import CHECKSUM_BLOCK_BYTES
from outlast.model.manifest import FileEntry, Manifest
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.image import TensorSpec, draft, fetched
from outlast.runtime.tiers.split_state import sharding_metadata
from outlast.runtime.tiers.tensor_record import (
    RECORD_NAME,
    Chunk,
    Stored,
    TensorRecord,
    WholeTensor,
)
from outlast.runtime.tiers.tier import CheckpointTier, superfluous
from outlast.runtime.worker.tensors.tensors import DTYPES, NOT_FOR_OTHERS, piece

_STOCK, _OWN = ".safetensors", ".image"


class _Part(NamedTuple):
    """One item of a rank's plan, as it is written into a file of that rank."""

    item: WriteItem
    spec: TensorSpec
    data: memoryview | None  # the bytes of an object; a tensor is fetched when it is written


@dataclasses.dataclass(frozen=True)
class PlacedItem:
    """The place at which an item was written. It is sent to the coordinator of the save."""

    entry: FileEntry
    stored: Stored


class Writer(StorageWriter):
    """Write checkpoints of torch's distributed checkpoint into a folder.

        dcp.save(state, storage_writer=outlast.checkpoint.Writer("checkpoints", step=step))
        dcp.async_save(state, storage_writer=outlast.checkpoint.Writer("checkpoints", step=step))

    Each step gets a folder of its own below `root`. Each rank writes its part as safetensors files,
    synced and renamed. The manifest comes last, with a checksum of every byte: before that there is
    no checkpoint. A save that is cut short anywhere leaves the checkpoints before it as they were.

    `step` may be given by `checkpoint_id` of `dcp.save` instead, as a number or as `step-12`. With
    `keep_last`, older checkpoints are removed after each save, except those whose step is a
    multiple of `keep_every`, and never the newest one that can be restored. `run` is a name that
    `outlast ckpt ls --json` shows; a folder with checkpoints of another run is refused then.

    It raises UsageError where there is no step, RunFolderError where the step is there already,
    CapacityError where the disk is full, and StateError for tensors that are not dense. DCP hands
    them on inside its CheckpointException, on every rank.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        step: int | None = None,
        keep_last: int | None = None,
        keep_every: int = 0,
        run: str = "",
    ) -> None:
        if step is not None and (type(step) is not int or step < 0):
            raise UsageError(f"step is {step!r}", hint="it is a whole number from 0")
        for name, count in (("keep_last", keep_last), ("keep_every", keep_every)):
            if count is not None and (type(count) is not int or count < 0):
                raise UsageError(f"{name} is {count!r}", hint="it is a whole number from 0")
        self.tier: CheckpointTier = DiskTier(Path(root))
        self._step = step
        self._keep_last, self._keep_every = keep_last, keep_every
        self._run = run

    # --- called by DCP, in this order -------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another checkpoint. `checkpoint_id` names its step."""
        if checkpoint_id is not None:
            self._step = _step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuse what cannot be committed. Called on all ranks."""
        if not kwargs.get("use_collectives", True):
            raise UsageError(
                "use_collectives=False leaves nobody to commit the checkpoint",
                hint="leave it out: outlast's Writer needs one rank that hears of all others",
            )
        if self._step is None:
            raise UsageError(
                "the checkpoint has no step", hint="Writer(root, step=...), or checkpoint_id='12'"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Number the ranks. Remove the files of an earlier save of this step that did not finish.

        It is called on the coordinator, before any rank writes. Files that remain would be read by
        readers that know no manifest.
        """
        self._refuse_other_run()
        there = {one.step: one.has_manifest for one in self.tier.step_folders()}
        if there.get(self._at) is False:
            self.tier.remove(self._at)
        return [dataclasses.replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's files. It is called on all ranks."""
        results: list[WriteResult] = []
        for name, parts in _files(plan, planner):
            results += self._write_file(name, parts, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the record of the tensors, and then the manifest. Now the checkpoint exists.

        It is called on the coordinator, once all ranks have written.
        """
        record = _record(metadata, results)
        data = memoryview(record.encode())
        entries = {one.storage_data.entry for rank in results for one in rank}
        blocks = (
            data[at : at + CHECKSUM_BLOCK_BYTES] for at in range(0, len(data), CHECKSUM_BLOCK_BYTES)
        )
        entries.add(self.tier.put(self._at, RECORD_NAME, blocks))
        files = tuple(sorted(entries, key=lambda entry: entry.name))
        self.tier.commit(Manifest(self._run, 0, self._at, len(results), "dcp", files))
        if self._keep_last is not None:
            for step in superfluous(self.tier, keep=self._keep_last, every=self._keep_every):
                self.tier.remove(step)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether `checkpoint_id` names a step."""
        try:
            return _step_of(checkpoint_id) >= 0
        except UsageError:
            return False

    # --- one rank's files -------------------------------------------------------------------------

    @property
    def _at(self) -> int:
        assert self._step is not None, "set_up_storage_writer was called"
        return self._step

    def _refuse_other_run(self) -> None:
        newest = next((one.step for one in self.tier.step_folders() if one.has_manifest), None)
        if newest is None or not self._run:
            return
        try:
            run = self.tier.manifest(newest).run
        except CorruptError:  # the checkpoint names no run
            return
        if run and run != self._run:
            raise RunFolderError(
                f"{self.tier.place} holds checkpoints of the run {run!r}, not of {self._run!r}",
                hint="name another folder, or say Writer(..., run=...) as before",
            )

    def _write_file(self, name: str, parts: list[_Part], planner: SavePlanner) -> list[WriteResult]:
        offsets = {
            part.spec.name: part.item.tensor_data.chunk.offsets
            for part in parts
            if part.item.tensor_data is not None
        }
        plan = draft([part.spec for part in parts], sharding_metadata(offsets))
        checksums: list[int] = []

        def chunks() -> Iterator[memoryview]:
            yield memoryview(plan.head)
            for index in plan.order:
                data = _data_of(parts[index], planner)
                digest = xxhash.xxh3_64()
                for at in range(0, len(data), CHECKSUM_BLOCK_BYTES):
                    block = data[at : at + CHECKSUM_BLOCK_BYTES]
                    digest.update(block)
                    yield block
                checksums.append(digest.intdigest())

        entry = self.tier.put(self._at, name, chunks())
        results = []
        for index, begin, checksum in zip(plan.order, plan.begins, checksums, strict=True):
            part = parts[index]
            stored = Stored(name, begin, part.spec.nbytes, checksum)
            results.append(WriteResult(part.item.index, stored.length, PlacedItem(entry, stored)))
        return results


def _files(plan: SavePlan, planner: SavePlanner) -> Iterator[tuple[str, list[_Part]]]:
    """Yield the names of a rank's files, and what is written into each.

    A file that other programs read has each name once. So a second chunk of a tensor goes into a
    second file. What other programs cannot read goes into files that they do not list.
    """
    files: dict[str, dict[str, _Part]] = {}
    for item in plan.items:
        part = _part(item, planner)
        own = part.data is not None or part.spec.dtype in NOT_FOR_OTHERS
        number = 0
        while True:
            more = f"-{number + 1}" if number else ""
            name = f"rank-{plan.storage_data}{more}{_OWN if own else _STOCK}"
            if part.spec.name not in files.setdefault(name, {}):
                break
            number += 1
        files[name][part.spec.name] = part
    for name, parts in files.items():
        yield name, list(parts.values())


def _part(item: WriteItem, planner: SavePlanner) -> _Part:
    name = item.index.fqn
    if item.type == WriteItemType.BYTE_IO:
        data: Any = planner.resolve_data(item)
        view = data.getbuffer()
        return _Part(item, TensorSpec(name, "U8", (len(view),)), view)
    assert item.tensor_data is not None
    code = DTYPES.get(item.tensor_data.properties.dtype)
    if code is None:
        raise StateError(
            f"{name} is a tensor of {item.tensor_data.properties.dtype}",
            hint=f"a checkpoint holds dense tensors of {', '.join(DTYPES.values())}",
        )
    return _Part(item, TensorSpec(name, code, tuple(item.tensor_data.chunk.sizes)), None)


def _data_of(part: _Part, planner: SavePlanner) -> memoryview:
    """Return the bytes of a part. A tensor of a device is copied now, and not before."""
    if part.data is not None:
        return part.data
    tensor: Any = planner.resolve_data(part.item)
    found = piece(part.spec.name, tensor.detach())
    if found.spec != part.spec:
        raise StateError(
            f"{part.spec.name} is {found.spec.dtype} {list(found.spec.shape)}, and was planned as"
            f" {part.spec.dtype} {list(part.spec.shape)}",
            hint="do not change the state before the save has copied it",
        )
    return fetched(found.data)


def _record(metadata: Metadata, results: list[list[WriteResult]]) -> TensorRecord:
    stored: dict[MetadataIndex, Stored] = {
        one.index: one.storage_data.stored for rank in results for one in rank
    }
    tensors, objects = {}, {}
    for name, one in metadata.state_dict_metadata.items():
        if isinstance(one, BytesStorageMetadata):
            objects[name] = stored[MetadataIndex(name)]
        else:
            tensors[name] = _whole(name, one, stored)
    paths = {name: tuple(path) for name, path in (metadata.planner_data or {}).items()}
    return TensorRecord(tensors, objects, paths)


def _whole(
    name: str, one: TensorStorageMetadata, stored: dict[MetadataIndex, Stored]
) -> WholeTensor:
    chunks = tuple(
        Chunk(tuple(chunk.offsets), tuple(chunk.sizes), stored[MetadataIndex(name, chunk.offsets)])
        for chunk in one.chunks
    )
    properties = one.properties
    return WholeTensor(DTYPES[properties.dtype], tuple(one.size), properties.requires_grad, chunks)


def _step_of(checkpoint_id: str | os.PathLike[str]) -> int:
    name = Path(checkpoint_id).name.removeprefix("step-")
    if not name.isascii() or not name.isdecimal():
        raise UsageError(
            f"checkpoint_id {str(checkpoint_id)!r} names no step", hint="say '12' or 'step-12'"
        )
    return int(name)
