"""Replicated state that is split among the files of a checkpoint: each rank writes its share.

    tensors   a 4 MB   b 1 MB   c 3 MB          four ranks, 2 MB for each
    rank 0    rows of a, the first half         rank-0.safetensors
    rank 1    rows of a, the second half        rank-1.safetensors
    rank 2    b, and the first rows of c        rank-2.safetensors
    rank 3    the other rows of c               rank-3.safetensors

All ranks hold the same tensors, so each computes the same shares from their names and sizes, and
nobody is asked. Tensors are taken in the order of their names. Where a share ends inside a large
tensor, the tensor is cut between two rows of its first dimension that has several. So a part is a
view of the tensor's memory, and no more tensors are cut than there are ranks.

In a file   A header has torch's DCP_SHARDING_INFO, which says where each part begins in the whole.
            So torch's HuggingFaceStorageReader reads the files without outlast. The header of
            rank 0's file names all tensors, with the sizes of the whole (`Contents`).
Promises    `Contents.check` accepts only files that have each byte of each tensor exactly once.
Limits      A tensor with fewer rows than ranks is split less evenly. Ranks that have diverged
            without being noticed each write their own values.

This module uses no torch, opens no file, and trusts no header.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from outlast.errors import CorruptError
from outlast.model.limits import SPLIT_LEAST_BYTES
from outlast.model.texts import cut_at_word
from outlast.runtime.tiers.image import ITEM_BYTES, ImageHeader, TensorSpec

_SHARDING, _CONTENTS = "DCP_SHARDING_INFO", "outlast_contents"


class SharePart(NamedTuple):
    """The rows `begin` to `end` of a tensor along `dim`. `spec` is that of the whole.

    A tensor that is not cut is one part with all rows.
    """

    spec: TensorSpec
    dim: int
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Return whether the part is all of the tensor."""
        return self.begin == 0 and self.end == _rows(self.spec)[1]

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return where the part begins in the whole."""
        offsets = [0] * len(self.spec.shape)
        if offsets:
            offsets[self.dim] = self.begin
        return tuple(offsets)

    @property
    def own_spec(self) -> TensorSpec:
        """Return the spec of the part, as a file has it."""
        shape = list(self.spec.shape)
        if shape:
            shape[self.dim] = self.end - self.begin
        return self.spec._replace(shape=tuple(shape))

    def within(self, memory: memoryview) -> memoryview:
        """Return the bytes of this part in `memory`, which has those of the whole tensor."""
        row_bytes = self.spec.nbytes // max(_rows(self.spec)[1], 1)
        return memory[self.begin * row_bytes : self.end * row_bytes]


@lru_cache(maxsize=8)
def split(specs: tuple[TensorSpec, ...], ranks: int) -> tuple[tuple[SharePart, ...], ...]:
    """Return the parts that each of `ranks` ranks writes.

    Every rank that holds the same tensors gets the same answer, in whatever order it names them.
    Fewer ranks write if shares would be smaller than SPLIT_LEAST_BYTES. Rank 0 is one of them.
    """
    total = sum(spec.nbytes for spec in specs)
    writers = min(ranks, max(1, total // SPLIT_LEAST_BYTES))
    shares: list[list[SharePart]] = [[] for _ in range(ranks)]
    at = 0
    for spec in sorted(specs):
        for part in _cut(spec, at, total, writers):
            twice = (part.begin + part.end) * spec.nbytes // max(_rows(spec)[1], 1)
            middle = (2 * at + twice) * writers // max(2 * total, 1)
            writer = min(middle, writers - 1)
            share = shares[writer * ranks // writers]
            if share and share[-1].spec is spec:  # both fell to one rank: a file has a name once
                part = share.pop()._replace(end=part.end)
            share.append(part)
        at += spec.nbytes
    return tuple(map(tuple, shares))


def sharding_metadata(offsets: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return what torch's HuggingFaceStorageReader looks for in the header of a file.

    offsets   by the name of a tensor: where the part in this file begins in the whole
    """
    info = {name: {"saved_offsets": list(begin)} for name, begin in offsets.items()}
    return {"format": "pt", _SHARDING: _json(info), "DCP_VERSION": "1.0"}


def metadata_of(
    specs: Iterable[TensorSpec],
    parts: Iterable[SharePart],
    *,
    contents: Iterable[TensorSpec] | None = None,
) -> dict[str, str]:
    """Return what the header of a rank's file says beside the tensors.

    specs      of all tensors in the file
    parts      those of the split state among them
    contents   the whole tensors of the split state, which rank 0's file names
    """
    offsets = {spec.name: (0,) * len(spec.shape) for spec in specs}
    offsets |= {part.spec.name: part.offsets for part in parts}
    metadata = sharding_metadata(offsets)
    if contents is not None:
        body = {spec.name: [spec.dtype, spec.shape] for spec in sorted(contents)}
        metadata[_CONTENTS] = _json(body)
    return metadata


@dataclass(frozen=True, slots=True)
class Contents:
    """The tensors of the state that was split, by name, as the header of rank 0's file names them.

        contents = Contents.of(headers["rank-0.safetensors"].metadata)
        contents.check(headers)

    Each spec is that of the whole tensor, and not of a part.
    """

    tensors: Mapping[str, TensorSpec]

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Contents:
        """Read them from the header of rank 0's file. Raises CorruptError."""
        try:
            body: Any = json.loads(metadata[_CONTENTS])
            return cls({name: _spec(name, *one) for name, one in body.items()})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(f"no header says what was split among the ranks: {error}") from None

    def check(self, headers: Mapping[str, ImageHeader]) -> None:
        """Raise CorruptError unless the files have all rows of each tensor, and none twice.

        headers   by the name of the file
        """
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in self.tensors}
        for file, header in headers.items():
            for part in self.parts_of(file, header):
                found[part.spec.name].append((part.begin, part.end))
        for name, rows in found.items():
            at, count = 0, _rows(self.tensors[name])[1]
            for begin, end in sorted(rows):
                if begin != at:
                    raise _not_whole(name, at, begin)
                at = end
            if at != count or not rows:
                raise _not_whole(name, at, count)

    def parts_of(self, file: str, header: ImageHeader) -> Iterator[SharePart]:
        """Yield the parts that a file has, in the order of its bytes. Raises CorruptError."""
        offsets = _offsets(file, header)
        for spec, _, _ in header.spans:
            whole = self.tensors.get(spec.name)
            if whole is not None:
                yield _part(file, spec, whole, offsets)


def check_files(headers: Mapping[str, ImageHeader], first: str) -> None:
    """Raise CorruptError unless files have the whole split state. `first` is rank 0's file."""
    if first not in headers:
        raise CorruptError(f"the checkpoint has no {first}")
    Contents.of(headers[first].metadata).check(headers)


def is_split(metadata: Mapping[str, str]) -> bool:
    """Return whether the image of rank 0 with this metadata has a share, and not all."""
    return _CONTENTS in metadata


# --- splitting ------------------------------------------------------------------------------------


def _rows(spec: TensorSpec) -> tuple[int, int]:
    """Return the dimension along which a tensor is cut, and how many rows it has there.

    All dimensions before it have one row, so that each part is one piece of the tensor's bytes.
    """
    for dim, size in enumerate(spec.shape):
        if size != 1:
            return dim, size
    return 0, 1


def _cut(spec: TensorSpec, at: int, total: int, writers: int) -> Iterator[SharePart]:
    """Yield the parts of a tensor that begins `at` bytes after the first one."""
    (dim, rows), size = _rows(spec), spec.nbytes
    begin = 0
    if size >= SPLIT_LEAST_BYTES:
        for number in range(at * writers // total + 1, writers):
            edge = total * number // writers - at
            if edge >= size:
                break
            row = (2 * edge * rows + size) // (2 * size)  # the nearest
            if begin < row < rows:
                yield SharePart(spec, dim, begin, row)
                begin = row
    yield SharePart(spec, dim, begin, rows)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- reading --------------------------------------------------------------------------------------


def _spec(name: str, dtype: Any, shape: Any) -> TensorSpec:
    if dtype not in ITEM_BYTES or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{name} is {cut_at_word(str((dtype, shape)), 60)}")
    return TensorSpec(name, dtype, tuple(shape))


def _offsets(file: str, header: ImageHeader) -> Any:
    try:
        return json.loads(header.metadata[_SHARDING])
    except (ValueError, KeyError, RecursionError) as error:
        raise CorruptError(f"the header of {file} does not say where its parts are: {error}") from (
            None
        )


def _part(file: str, spec: TensorSpec, whole: TensorSpec, offsets: Any) -> SharePart:
    """Return which part of `whole` a file has under its name. Raises CorruptError."""
    try:
        begins = tuple(offsets[spec.name]["saved_offsets"])
        dim, _ = _rows(whole)
        begin = begins[dim] if begins else 0
        end = begin + (spec.shape[dim] if spec.shape else 1)
    except (TypeError, KeyError, IndexError):
        begins, begin, end, dim = (), -1, -1, 0
    part = SharePart(whole, dim, begin, end)
    fits = type(begin) is int and 0 <= begin <= end <= _rows(whole)[1]
    if fits and spec == part.own_spec and begins == part.offsets:
        return part
    raise CorruptError(
        f"{file} has a part of {spec.name} that does not fit: {spec.dtype} {list(spec.shape)} of"
        f" {whole.dtype} {list(whole.shape)}"
    )


def _not_whole(name: str, at: int, begin: int) -> CorruptError:
    if begin < at:
        return CorruptError(f"two files have row {begin:,} of {name}")
    return CorruptError(
        f"{name} is not whole: no file has its rows {at:,} to {begin:,}",
        hint="an older checkpoint has to be used",
    )
