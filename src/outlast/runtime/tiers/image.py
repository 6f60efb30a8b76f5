"""A safetensors image: the bytes in shared memory are the file.

Form       8 bytes little-endian header length, JSON header padded with spaces, raw tensors without
           holes. Tensors of whole cache lines come first, the others by decreasing size of their
           elements, so each is aligned to its own. The first tensor begins at
           `header_bytes_reserved`, a multiple of IMAGE_ALIGN_BYTES, however long this step's
           metadata is.
Checksum   xxh3_64 over the whole image. It is computed block by block, right after each block was
           copied, while the block is in the cache.
Units      Lengths and offsets are bytes.
Limits     An `Image` is a view: its tensors change if another process writes to the memory. A
           header says nothing about what the tensors mean; the reader compares names, dtypes and
           shapes. C128 is a name of our own: other readers of safetensors refuse an image with
           such a tensor.

This module uses no torch, no files and no clock: bytes in, bytes out.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import xxhash

from outlast.errors import CapacityError, CorruptError, StateError
from outlast.model.limits import (
    CHECKSUM_BLOCK_BYTES,
    IMAGE_ALIGN_BYTES,
    IMAGE_HEADER_MAX_BYTES,
    METADATA_RESERVE_BYTES,
)
from outlast.model.texts import cut_at_word
from outlast.runtime.tiers import streaming

ITEM_BYTES: Mapping[str, int] = {
    "C128": 16,
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_METADATA = "__metadata__"
_LENGTH_BYTES = 8


class TensorSpec(NamedTuple):
    """The name, dtype and shape of a tensor in an image. `dtype` is a key of ITEM_BYTES.

    It is a tuple because its hash is taken at each write (see `_lay_out`).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return how many bytes the tensor has."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Arriving(Protocol):
    """Bytes that have to be fetched into the image, such as those of a tensor on a GPU."""

    def __len__(self) -> int: ...

    def start(self, target: memoryview) -> None:
        """Begin to fill `target`, which has as many bytes. Nothing else uses it meanwhile."""

    def finish(self) -> None:
        """Wait until everything that was started has arrived."""


class TensorPiece(NamedTuple):
    """One tensor to be written. `data` are its bytes, one-dimensional, in format B.

    They may be a live view. Then the image has what the tensor contains at the moment of writing.
    """

    spec: TensorSpec
    data: memoryview | Arriving


class WrittenImage(NamedTuple):
    """The length and the checksum of an image that was written."""

    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Image:
    """An image that was read: its metadata, and for each name the spec and a view of the bytes."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, tuple[TensorSpec, memoryview]]


class _TensorLayout(NamedTuple):
    """The layout of tensors in an image.

    order        the indices of their specs, in the order in which the tensors are written
    sizes        their bytes, in that order
    header       the tensors' part of the header, without the outer braces
    data_bytes   the bytes of all tensors
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    header: bytes
    data_bytes: int


def header_bytes(
    specs: Sequence[TensorSpec], *, metadata_bytes: int = METADATA_RESERVE_BYTES
) -> int:
    """Return how many bytes to reserve in front of the first tensor.

    They are enough for the header with `metadata_bytes` of JSON as metadata.
    """
    return _aligned(
        _LENGTH_BYTES + len(_lay_out(tuple(specs)).header) + len(_METADATA) + 6 + metadata_bytes
    )


def image_bytes(
    specs: Sequence[TensorSpec], *, metadata_bytes: int = METADATA_RESERVE_BYTES
) -> int:
    """Return the length of an image of these tensors, with a header reserved by `header_bytes`."""
    return header_bytes(specs, metadata_bytes=metadata_bytes) + _lay_out(tuple(specs)).data_bytes


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """Return how many bytes `metadata` takes in the header of an image."""
    return len(_json(metadata))


def write_image(
    target: memoryview,
    *,
    pieces: Sequence[TensorPiece],
    metadata: Mapping[str, str],
    header_bytes_reserved: int = 0,
) -> WrittenImage:
    """Write an image to the start of `target`. Everything after its length stays as it is.

    `header_bytes_reserved` is where the first tensor begins; 0 takes the room that this header
    needs. Raises StateError for names, dtypes or sizes that no image can contain. Raises
    CapacityError if header or image do not fit. Then nothing was written. The write is not atomic:
    a process that may be killed during it seals afterwards.
    """
    layout = _lay_out(tuple([piece.spec for piece in pieces]))
    head = _header(layout, metadata, header_bytes_reserved)
    length = len(head) + layout.data_bytes
    if length > len(target):
        raise CapacityError(
            f"an image of {length:,} bytes does not fit into {len(target):,}",
            hint="the state has grown since room was reserved for it",
        )
    _check_sizes(layout, pieces)
    return WrittenImage(
        length, _copy(target, head, [pieces[index].data for index in layout.order], layout.sizes)
    )


def image_chunks(
    *, pieces: Sequence[TensorPiece], metadata: Mapping[str, str], header_bytes_reserved: int = 0
) -> Iterator[memoryview]:
    """Yield the same image as buffers, for writing to a file.

    None is longer than CHECKSUM_BLOCK_BYTES. Raises what `write_image` does.
    """
    layout = _lay_out(tuple([piece.spec for piece in pieces]))
    head = _header(layout, metadata, header_bytes_reserved)
    _check_sizes(layout, pieces)
    # Tensors of a GPU are fetched one after the other, so that only one at a time is on the host.
    arrived = (fetched(pieces[index].data) for index in layout.order)
    for view in itertools.chain((memoryview(head),), arrived):
        for start in range(0, len(view), CHECKSUM_BLOCK_BYTES):
            yield view[start : start + CHECKSUM_BLOCK_BYTES]


def fetched(data: memoryview | Arriving) -> memoryview:
    """Return the bytes on the host, in memory of their own if they had to be fetched."""
    if isinstance(data, memoryview):
        return data
    target = memoryview(bytearray(len(data)))
    data.start(target)
    data.finish()
    return target


class Draft(NamedTuple):
    """An image without its tensors: its header, and the order in which they follow it.

    order    indices of the specs
    begins   where each of them begins in the image, in that order
    """

    head: bytes
    order: tuple[int, ...]
    begins: tuple[int, ...]


def draft(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> Draft:
    """Return the header of an image of these tensors. Raises what `write_image` does."""
    layout = _lay_out(tuple(specs))
    head = _header(layout, metadata, 0)
    begins = itertools.accumulate(layout.sizes, initial=len(head))
    return Draft(head, layout.order, tuple(begins)[:-1])


def read_image(source: memoryview, length: int, checksum: int | None) -> Image:
    """Return views of the tensors of the image in `source[:length]`.

    With a checksum every changed byte is refused. Without one, only changes that break the form are
    refused. Raises CorruptError.
    """
    if not _LENGTH_BYTES <= length <= len(source):
        raise CorruptError(
            f"an image of {length:,} bytes cannot lie in {len(source):,}: it was cut short"
        )
    view = source[:length]
    if checksum is not None and xxhash.xxh3_64_intdigest(view) != checksum:
        raise CorruptError(
            f"the checksum of an image of {length:,} bytes does not match its seal",
            hint="an older image or another copy has to be used",
        )
    header = read_header(lambda begin, size: bytes(view[begin : begin + size]), length)
    data = view[header.data_begin :]
    return Image(
        header.metadata,
        {spec.name: (spec, data[begin:end]) for spec, begin, end in header.spans},
    )


class ImageHeader(NamedTuple):
    """The header of an image, which says where each tensor is in it.

    data_begin   where the tensors begin in the image
    spans        each tensor's spec, and where it begins and ends after `data_begin`
    """

    metadata: Mapping[str, str]
    data_begin: int
    spans: tuple[tuple[TensorSpec, int, int], ...]


def read_header(read: Callable[[int, int], bytes], length: int) -> ImageHeader:
    """Read the header of an image of `length` bytes. `read(begin, size)` returns some of them.

    Raises CorruptError unless its tensors fill the image without holes, each in the size that its
    dtype and shape say.
    """
    if length < _LENGTH_BYTES:
        raise CorruptError(f"{length:,} bytes are too few for an image: it was cut short")
    start = _LENGTH_BYTES + int.from_bytes(read(0, _LENGTH_BYTES), "little")
    if start > min(length, _LENGTH_BYTES + IMAGE_HEADER_MAX_BYTES):
        raise CorruptError(
            f"an image of {length:,} bytes says that its header has {start - _LENGTH_BYTES:,}"
        )
    entries = _parse(read(_LENGTH_BYTES, start - _LENGTH_BYTES))
    metadata = entries.pop(_METADATA, {})
    if type(metadata) is not dict or not all(type(value) is str for value in metadata.values()):
        raise CorruptError("an image's metadata is not a map of strings")
    return ImageHeader(metadata, start, _spans(entries, length - start))


# --- writing --------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _lay_out(specs: tuple[TensorSpec, ...]) -> _TensorLayout:
    """Return where each tensor is.

    The last results are cached, because each step asks for the same.
    """
    names = {spec.name for spec in specs}
    if len(names) != len(specs) or _METADATA in names:
        raise StateError(
            "two tensors of an image have the same name, or one is called __metadata__",
            hint="names must be unique",
        )
    for spec in specs:
        if spec.dtype not in ITEM_BYTES or any(size < 0 for size in spec.shape):
            raise StateError(
                f"{spec.name} has dtype {spec.dtype} and shape {list(spec.shape)}, which an image"
                " cannot hold"
            )
    order = sorted(
        range(len(specs)),
        key=lambda index: (
            specs[index].nbytes % IMAGE_ALIGN_BYTES != 0,
            -ITEM_BYTES[specs[index].dtype],
        ),
    )
    sizes = tuple(specs[index].nbytes for index in order)
    entries, at = {}, 0
    for index, size in zip(order, sizes, strict=True):
        spec = specs[index]
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    return _TensorLayout(tuple(order), sizes, _json(entries)[1:-1], at)


def _header(layout: _TensorLayout, metadata: Mapping[str, str], reserved: int) -> bytes:
    parts = [
        part
        for part in (
            f'"{_METADATA}":'.encode() + _json(metadata) if metadata else b"",
            layout.header,
        )
        if part
    ]
    text = b"{" + b",".join(parts) + b"}"
    needed = _aligned(_LENGTH_BYTES + len(text))
    reserved = reserved or needed
    if needed - _LENGTH_BYTES > IMAGE_HEADER_MAX_BYTES:
        raise CapacityError(
            f"an image's header would have {needed:,} bytes, {IMAGE_HEADER_MAX_BYTES:,} are"
            " allowed",
            hint="keep large values in tensors",
        )
    if needed > reserved or reserved % IMAGE_ALIGN_BYTES:
        raise CapacityError(
            f"an image's header needs {needed:,} bytes, {reserved:,} are reserved",
            hint="reserve by header_bytes()",
        )
    return (reserved - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "little") + text.ljust(
        reserved - _LENGTH_BYTES
    )


def _check_sizes(layout: _TensorLayout, pieces: Sequence[TensorPiece]) -> None:
    if [len(pieces[index].data) for index in layout.order] == list(layout.sizes):
        return
    for spec, data in pieces:
        if len(data) != spec.nbytes:
            raise StateError(
                f"{spec.name} is {spec.dtype} {list(spec.shape)}, {spec.nbytes:,} bytes, but came"
                f" with {len(data):,}"
            )


def _copy(
    target: memoryview,
    head: bytes,
    buffers: Sequence[memoryview | Arriving],
    sizes: Sequence[int],
) -> int:
    """Copy header and tensors into `target`, and return their checksum.

    Tensors that have to be fetched arrive while the others are copied. A large tensor is copied
    past the caches, block by block, and each block is summed right after it was read. A small one
    costs one slice assignment.
    """
    digest, size_of_block = xxhash.xxh3_64(), CHECKSUM_BLOCK_BYTES
    target[: len(head)] = head
    begins = itertools.accumulate(sizes, initial=len(head))
    for data, begin, size in zip(buffers, begins, sizes, strict=False):  # begins has the end, too
        if not isinstance(data, memoryview):
            data.start(target[begin : begin + size])
    at, hashed = len(head), 0
    for data, size in zip(buffers, sizes, strict=True):
        if not isinstance(data, memoryview) or size < size_of_block:
            if isinstance(data, memoryview):
                target[at : at + size] = data
            else:
                data.finish()
            at += size
            if at - hashed >= size_of_block:
                digest.update(target[hashed:at])
                hashed = at
            continue
        digest.update(target[hashed:at])
        for start in range(0, size, size_of_block):
            block = data[start : start + size_of_block]
            streaming.copy(target[at : at + len(block)], block)
            digest.update(block)
            at += len(block)
        hashed = at
    digest.update(target[hashed:at])
    return digest.intdigest()


def _json(value: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        said = cut_at_word(str(value), 80)
        raise StateError(f"an image's header cannot say {said!r}: {error}") from error


def _aligned(size: int) -> int:
    return -(-size // IMAGE_ALIGN_BYTES) * IMAGE_ALIGN_BYTES


# --- reading --------------------------------------------------------------------------------------


def _parse(text: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"an image's header is not JSON: {error}") from error
    if type(entries) is not dict:
        raise CorruptError("an image's header is not a JSON object")
    return entries


def _spans(entries: Mapping[str, Any], data_bytes: int) -> tuple[tuple[TensorSpec, int, int], ...]:
    spans = sorted(
        (_span(name, entry) for name, entry in entries.items()), key=lambda span: (span[1], span[2])
    )
    at = 0
    for spec, begin, end in spans:
        if begin != at or end - begin != spec.nbytes:
            raise CorruptError(
                f"{spec.name} should begin at {at:,} and have {spec.nbytes:,} bytes, its header"
                f" says {begin:,} to {end:,}"
            )
        at = end
    if at != data_bytes:
        raise CorruptError(
            f"an image's tensors have {at:,} bytes, {data_bytes:,} follow its header"
        )
    return tuple(spans)


def _span(name: str, entry: Any) -> tuple[TensorSpec, int, int]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = [*shape, begin, end]
    except (TypeError, KeyError, ValueError) as error:
        said = cut_at_word(str(entry), 80)
        raise CorruptError(f"an image's header describes {name} by {said}") from error
    if (
        len(entry) != 3
        or type(dtype) is not str
        or dtype not in ITEM_BYTES
        or any(type(value) is not int or value < 0 for value in whole)
    ):
        raise CorruptError(f"an image's header describes {name} by {cut_at_word(str(entry), 80)}")
    return TensorSpec(name, dtype, tuple(shape)), begin, end
