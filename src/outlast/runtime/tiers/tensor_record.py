"""The record of a checkpoint of kind "dcp": where each tensor's chunks are, and their checksums.

It is the JSON file `tensors.json` of the checkpoint. It replaces torch's `.metadata`, which is a
pickle.

    tensors    by flat name: dtype, size, and chunks with offsets and sizes in the whole
    objects    by flat name: values that are not tensors, as bytes that torch.save has written
    paths      by flat name: the keys and indices that lead to it in the nested state

Each chunk has a checksum of its own, so that a rank that needs a part verifies what it reads and
reads no more. This module does not use torch, opens no file, and trusts nothing that it reads:
names, files, places and sizes are compared with the manifest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.errors import CorruptError
from outlast.model.manifest import FileEntry, Manifest
from outlast.model.texts import cut_at_word
from outlast.runtime.tiers.image import ITEM_BYTES

RECORD_NAME = "tensors.json"
RECORD_VERSION = 1
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes in a file of the checkpoint: `length` of them from `begin` on."""

    file: str
    begin: int
    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a tensor, which begins at `offsets` in the whole."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    stored: Stored


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """A tensor. `dtype` is a key of ITEM_BYTES."""

    dtype: str
    size: tuple[int, ...]
    requires_grad: bool
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """The contents of a checkpoint, and the place of each."""

    tensors: Mapping[str, WholeTensor] = field(default_factory=dict)
    objects: Mapping[str, Stored] = field(default_factory=dict)
    paths: Mapping[str, Path] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the record as JSON text."""
        tensors = {
            name: [
                one.dtype,
                one.size,
                one.requires_grad,
                [[chunk.offsets, chunk.sizes, *_words(chunk.stored)] for chunk in one.chunks],
            ]
            for name, one in self.tensors.items()
        }
        body = {
            "schema": RECORD_VERSION,
            "tensors": tensors,
            "objects": {name: _words(one) for name, one in self.objects.items()},
            "paths": self.paths,
        }
        return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes, manifest: Manifest) -> TensorRecord:
    """Read a record. Raises CorruptError unless all of it fits the files of the manifest."""
    files = {entry.name: entry for entry in manifest.files}
    try:
        body: Any = json.loads(data.decode())
        if body["schema"] != RECORD_VERSION:
            raise CorruptError(
                f"a record of tensors has schema {cut_at_word(str(body['schema']), 20)}, this"
                f" version of outlast reads {RECORD_VERSION}"
            )
        return TensorRecord(
            {name: _whole(name, one, files) for name, one in body["tensors"].items()},
            {name: _stored(name, one, files) for name, one in body["objects"].items()},
            {name: tuple(map(_step_of_path, one)) for name, one in body["paths"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError(f"a record of tensors cannot be read: {error}") from None


def file_of(stored: Stored, manifest: Manifest) -> FileEntry:
    """Return the entry of the file that contains these bytes."""
    return next(entry for entry in manifest.files if entry.name == stored.file)


def _words(one: Stored) -> list[str | int]:
    return [one.file, one.begin, one.length, f"{one.checksum:016x}"]


def _whole(name: str, words: Any, files: Mapping[str, FileEntry]) -> WholeTensor:
    dtype, size, requires_grad, chunks = words
    if dtype not in ITEM_BYTES or type(requires_grad) is not bool:
        raise CorruptError(f"{name} has the unknown dtype {cut_at_word(str(dtype), 20)}")
    whole = WholeTensor(
        dtype, _numbers(size), requires_grad, tuple(_chunk(name, one, files) for one in chunks)
    )
    for chunk in whole.chunks:
        inside = len(chunk.offsets) == len(chunk.sizes) == len(whole.size) and all(
            begin + length <= most
            for begin, length, most in zip(chunk.offsets, chunk.sizes, whole.size, strict=True)
        )
        if not inside or chunk.stored.length != math.prod(chunk.sizes) * ITEM_BYTES[dtype]:
            raise CorruptError(
                f"{name} of size {list(whole.size)} has a chunk of size {list(chunk.sizes)} at"
                f" {list(chunk.offsets)} in {chunk.stored.length:,} bytes"
            )
    if sum(math.prod(chunk.sizes) for chunk in whole.chunks) < math.prod(whole.size):
        raise CorruptError(f"{name} is not whole: its chunks do not fill {list(whole.size)}")
    return whole


def _chunk(name: str, words: Any, files: Mapping[str, FileEntry]) -> Chunk:
    offsets, sizes, *stored = words
    return Chunk(_numbers(offsets), _numbers(sizes), _stored(name, stored, files))


def _stored(name: str, words: Any, files: Mapping[str, FileEntry]) -> Stored:
    file, begin, length, checksum = words
    begin, length = _numbers((begin, length))
    if file not in files or begin + length > files[file].length:
        raise CorruptError(
            f"{name} should lie in {cut_at_word(str(file), 60)} from byte {begin:,} to"
            f" {begin + length:,}, where the checkpoint has no such bytes"
        )
    return Stored(file, begin, length, int(checksum, 16))


def _step_of_path(one: Any) -> str | int:
    if type(one) not in (str, int):
        raise TypeError(f"{one!r} is neither a key nor an index")
    return one  # type: ignore[no-any-return]


def _numbers(given: Any) -> tuple[int, ...]:
    numbers = tuple(given)
    if any(type(one) is not int or one < 0 for one in numbers):
        raise ValueError(f"{cut_at_word(str(given), 60)} should be whole numbers from 0")
    return numbers
