"""Read replicated state from a checkpoint on the disk, in each form that `outlast run` has written.

    replicated   rank 0's file has all of it; the other files have private state only
    split        each file has a share of it (split_state.py)

The bytes of a share are read to their place in the whole tensor at once, so reading takes no more
memory than the state itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from outlast.errors import CorruptError
from outlast.model.limits import READ_BLOCK_BYTES
from outlast.model.manifest import SPLIT, FileEntry
from outlast.runtime.tiers import local
from outlast.runtime.tiers.image import Image, ImageHeader, TensorSpec
from outlast.runtime.tiers.split_state import Contents, SharePart, is_split

_SHARED, _LAYOUT = "shared/", "layout/text"
_Tensors = dict[str, tuple[TensorSpec, memoryview]]


def read_replicated(checkpoint: local.CheckpointFolder, like: int = 0) -> Image:
    """Return the replicated state of a checkpoint, and the private state of the rank `like`.

    It is verified. Raises CorruptError.
    """
    if checkpoint.manifest.kind == SPLIT:
        return _Split(checkpoint, like).read()
    first = local.read_shard(checkpoint, 0)
    return _with_private(first, first if like == 0 else local.read_shard(checkpoint, like))


def put_together(images: Sequence[Image], like: int) -> Image:
    """Return the same, of images in memory, one for each rank. Tensors that are not cut are views.

    Raises CorruptError unless they have the whole state.
    """
    if not is_split(images[0].metadata):
        return _with_private(images[0], images[like])
    contents, headers = check_together(images)
    whole: _Tensors = {}
    for (file, header), image in zip(headers.items(), images, strict=True):
        for part in contents.parts_of(file, header):
            name, (_, data) = part.spec.name, image.tensors[part.spec.name]
            if part.is_whole:
                whole[name] = (part.spec, data)
                continue
            if name not in whole:
                whole[name] = (part.spec, memoryview(bytearray(part.spec.nbytes)))
            part.within(whole[name][1])[:] = data
    common = {
        name: one
        for name, one in images[0].tensors.items()
        if _is_common(name) and name not in contents.tensors
    }
    private = {name: one for name, one in images[like].tensors.items() if not _is_common(name)}
    return Image(images[like].metadata, {**common, **whole, **private})


def check_together(images: Sequence[Image]) -> tuple[Contents, dict[str, ImageHeader]]:
    """Return what was split among images, and their headers, by the names of files.

    Raises CorruptError unless they have all of it.
    """
    headers = {
        local.shard_name(rank): ImageHeader(
            image.metadata, 0, tuple((spec, 0, 0) for spec, _ in image.tensors.values())
        )
        for rank, image in enumerate(images)
    }
    contents = Contents.of(images[0].metadata)
    contents.check(headers)
    return contents, headers


def _with_private(first: Image, own: Image) -> Image:
    """Return what rank 0's image has for all ranks, with the private state of another rank."""
    if own is first:
        return first
    common = {name: one for name, one in first.tensors.items() if _is_common(name)}
    return Image(own.metadata, {**common, **own.tensors})


def _is_common(name: str) -> bool:
    """Return whether only rank 0's file has this tensor, for all ranks."""
    return name.startswith(_SHARED) or name == _LAYOUT


class _Split:
    """Read the files of a checkpoint of kind "split"."""

    def __init__(self, checkpoint: local.CheckpointFolder, like: int) -> None:
        self._folder = checkpoint.folder
        self._entries = {entry.name: entry for entry in checkpoint.manifest.files}
        self._own = local.shard_name(like)
        if self._own not in self._entries:
            raise CorruptError(
                f"the checkpoint in {self._folder} has no {self._own}",
                hint=f"it was written by {checkpoint.manifest.world_size} ranks",
            )
        self._headers = {
            name: local.header_of(self._folder / name, entry)
            for name, entry in self._entries.items()
        }
        local.check_split(checkpoint, self._headers)
        self._contents = Contents.of(self._headers[local.shard_name(0)].metadata)
        self._tensors: _Tensors = {
            name: (spec, memoryview(bytearray(spec.nbytes)))
            for name, spec in self._contents.tensors.items()
        }

    def read(self) -> Image:
        """Return the whole state, once every file that has a part of it was read and verified."""
        for name, header in self._headers.items():
            parts = {part.spec.name: part for part in self._contents.parts_of(name, header)}
            if parts or name in (self._own, local.shard_name(0)):
                rooms = [self._room(spec, name, parts.get(spec.name)) for spec, *_ in header.spans]
                self._read_file(self._entries[name], header, rooms)
        return Image(self._headers[self._own].metadata, self._tensors)

    def _room(self, spec: TensorSpec, file: str, part: SharePart | None) -> memoryview:
        """Return where the bytes of a tensor in a file go."""
        if part is not None:
            return part.within(self._tensors[spec.name][1])
        memory = memoryview(bytearray(spec.nbytes))
        # Private state of other ranks is read for the checksum alone.
        if file == (local.shard_name(0) if _is_common(spec.name) else self._own):
            self._tensors[spec.name] = (spec, memory)
        return memory

    def _read_file(self, entry: FileEntry, header: ImageHeader, rooms: list[memoryview]) -> None:
        path, digest = self._folder / entry.name, xxhash.xxh3_64()
        head = memoryview(bytearray(header.data_begin))
        with local.opened(path, entry) as file:
            for target in (head, *rooms):
                for at in range(0, len(target), READ_BLOCK_BYTES):
                    block = target[at : at + READ_BLOCK_BYTES]
                    local.read_fully(file, block)
                    digest.update(block)
        if digest.intdigest() != entry.checksum:
            raise CorruptError(f"{path} does not match its checksum")
