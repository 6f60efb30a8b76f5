"""The image: what stock safetensors opens, what comes back, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import deserialize
from safetensors.numpy import load_file

from outlast.errors import CapacityError, CorruptError, StateError
from outlast.model.limits import CHECKSUM_BLOCK_BYTES, IMAGE_ALIGN_BYTES
from outlast.runtime.tiers.image import (
    ITEM_BYTES,
    TensorPiece,
    TensorSpec,
    header_bytes,
    image_bytes,
    image_chunks,
    read_image,
    write_image,
)

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=8).filter(
    lambda name: name != "__metadata__"
)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
METADATA = st.dictionaries(
    NAMES, st.text(st.characters(exclude_categories=("Cs",)), max_size=20), max_size=4
)


def filled(name: str, dtype: str, shape: tuple[int, ...], seed: int = 0) -> TensorPiece:
    spec = TensorSpec(name, dtype, shape)
    return TensorPiece(
        spec, memoryview(np.random.default_rng(seed).integers(0, 256, spec.nbytes, dtype=np.uint8))
    )


@st.composite
def piece_lists(draw: st.DrawFn, dtypes: Iterable[str] = ITEM_BYTES) -> list[TensorPiece]:
    specs = draw(
        st.lists(
            st.tuples(NAMES, st.sampled_from(sorted(dtypes)), SHAPES),
            max_size=8,
            unique_by=lambda spec: spec[0],
        )
    )
    return [filled(*spec, seed=seed) for seed, spec in enumerate(specs)]


def written(
    pieces: Sequence[TensorPiece], metadata: dict[str, str], reserved: int = 0
) -> tuple[bytes, int]:
    specs = [piece.spec for piece in pieces]
    target = memoryview(bytearray(image_bytes(specs, metadata_bytes=4096) + reserved))
    length, checksum = write_image(
        target, pieces=pieces, metadata=metadata, header_bytes_reserved=reserved
    )
    return bytes(target[:length]), checksum


@settings(max_examples=150, deadline=None)
@given(piece_lists(set(ITEM_BYTES) - {"C128"}), METADATA)
def test_what_goes_in_comes_out_and_stock_safetensors_reads_the_same(
    pieces: list[TensorPiece], metadata: dict[str, str]
) -> None:
    data, checksum = written(pieces, metadata)
    image = read_image(memoryview(data), len(data), checksum)
    assert image.metadata == metadata
    assert {name: (spec, bytes(view)) for name, (spec, view) in image.tensors.items()} == {
        p.spec.name: (p.spec, bytes(p.data)) for p in pieces
    }
    stock = dict(deserialize(data))
    assert {
        name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in stock.items()
    } == {p.spec.name: (p.spec.dtype, p.spec.shape, bytes(p.data)) for p in pieces}


@settings(max_examples=60, deadline=None)
@given(piece_lists(), METADATA)
def test_chunks_are_the_image(pieces: list[TensorPiece], metadata: dict[str, str]) -> None:
    data, checksum = written(pieces, metadata)
    assert b"".join(image_chunks(pieces=pieces, metadata=metadata)) == data
    assert xxhash.xxh3_64_intdigest(data) == checksum


class Late:
    """Bytes that arrive when they are waited for, in memory that they were promised before."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._target = memoryview(b"")

    def __len__(self) -> int:
        return len(self._data)

    def start(self, target: memoryview) -> None:
        assert len(target) == len(self._data)
        self._target = target

    def finish(self) -> None:
        self._target[:] = self._data


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["U8", "F32"]),
            st.sampled_from([0, 1, 3, 17, CHECKSUM_BLOCK_BYTES // 4, CHECKSUM_BLOCK_BYTES]),
            st.booleans(),
        ),
        max_size=6,
    )
)
@settings(max_examples=25)
def test_what_is_fetched_makes_the_same_image(drawn: list[tuple[str, int, bool]]) -> None:
    here = [filled(f"t{n}", dtype, (size,), n) for n, (dtype, size, _) in enumerate(drawn)]
    mixed = [
        TensorPiece(one.spec, Late(memoryview(one.data)) if late else one.data)
        for one, (_, _, late) in zip(here, drawn, strict=True)
    ]
    expected, checksum = written(here, {"a": "b"})
    assert written(mixed, {"a": "b"}) == (expected, checksum)
    assert b"".join(image_chunks(pieces=mixed, metadata={"a": "b"})) == expected


def test_every_flipped_byte_is_refused() -> None:
    """Method: flip one bit of each byte in turn, padding included; the seal's checksum must not
    match.
    """
    data, checksum = written([filled("w", "F32", (3, 5)), filled("b", "BOOL", (7,))], {"step": "3"})
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        with pytest.raises(CorruptError):
            read_image(memoryview(broken), len(broken), checksum)


def test_every_truncation_is_refused_even_without_a_checksum() -> None:
    data, checksum = written([filled("w", "F32", (3, 5))], {})
    for length in range(len(data)):
        for known in (checksum, None):
            with pytest.raises(CorruptError):
                read_image(memoryview(data)[:length], length, known)
            with pytest.raises(CorruptError):
                read_image(memoryview(data)[:length], len(data), known)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_broken_form_is_refused_by_name_and_never_by_another_error(data: st.DataObject) -> None:
    """Method: without a checksum, replace a few bytes of header or length; either it reads or it is
    CorruptError.
    """
    image, _ = written([filled("w", "F32", (3, 5)), filled("b", "U8", (2,))], {"a": "b"})
    broken = bytearray(image)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, 180))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptError):
        read_image(memoryview(broken), len(broken), None)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b'{"w":1}',
        b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}}',
        b'{"w":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}}',
        b'{"__metadata__":{"a":1},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}',
        b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}',
        b"[" * 5000,
    ],
)
def test_a_header_that_lies_is_refused(header: bytes) -> None:
    data = len(header).to_bytes(8, "little") + header + b"\0\0\0\0"
    with pytest.raises(CorruptError):
        read_image(memoryview(data), len(data), None)


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        CHECKSUM_BLOCK_BYTES - 1,
        CHECKSUM_BLOCK_BYTES,
        CHECKSUM_BLOCK_BYTES + 1,
        3 * CHECKSUM_BLOCK_BYTES + 77,
    ],
)
@pytest.mark.parametrize("lead", [0, 5, CHECKSUM_BLOCK_BYTES, 2 * CHECKSUM_BLOCK_BYTES + 3])
def test_the_fused_checksum_is_that_of_the_whole_image(size: int, lead: int) -> None:
    """Method: sizes around the block's edge, after a header shorter and longer than a block, among
    tiny tensors.
    """
    pieces = [
        filled("lead", "U8", (lead,)),
        filled("x", "U8", (size,), 1),
        *(filled(f"t{index}", "F32", ()) for index in range(50)),
    ]
    for reserved in (0, CHECKSUM_BLOCK_BYTES * 2 + IMAGE_ALIGN_BYTES):
        data, checksum = written(pieces, {}, reserved)
        assert checksum == xxhash.xxh3_64_intdigest(data)
        image = read_image(memoryview(data), len(data), checksum)
        assert all(image.tensors[piece.spec.name][1] == piece.data for piece in pieces)


def test_stock_safetensors_opens_the_bytes_as_a_file(tmp_path: Path) -> None:
    values = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "n": np.array(7, dtype=np.int64),
        "mask": np.array([True, False, True]),
    }
    dtypes = {"w": "F32", "n": "I64", "mask": "BOOL"}
    pieces = [
        TensorPiece(TensorSpec(k, dtypes[k], v.shape), v.reshape(-1).view(np.uint8).data)
        for k, v in values.items()
    ]
    data, _ = written(pieces, {"step": "1"}, header_bytes([piece.spec for piece in pieces]))
    (tmp_path / "image.safetensors").write_bytes(data)
    loaded = load_file(tmp_path / "image.safetensors")
    assert loaded.keys() == values.keys()
    assert all(
        np.array_equal(loaded[name], values[name]) and loaded[name].dtype == values[name].dtype
        for name in values
    )


def test_tensors_lie_at_the_same_place_whatever_the_metadata() -> None:
    pieces = [filled("mask", "BOOL", (3,)), filled("w", "F64", (5,))]
    reserved = header_bytes([piece.spec for piece in pieces], metadata_bytes=600)
    short, long = (written(pieces, metadata, reserved)[0] for metadata in ({}, {"note": "x" * 500}))
    assert reserved % IMAGE_ALIGN_BYTES == 0
    assert short[reserved:] == long[reserved:] == bytes(pieces[1].data) + bytes(pieces[0].data), (
        "whichever is whole cache lines first, then larger elements"
    )


def test_what_cannot_be_held_is_refused_before_a_byte_is_written() -> None:
    twice = [filled("w", "F32", (2,)), filled("w", "F32", (2,))]
    short = [TensorPiece(TensorSpec("w", "F32", (2,)), memoryview(bytes(7)))]
    odd = [TensorPiece(TensorSpec("w", "Q4", (2,)), memoryview(bytes(8)))]
    named = [filled("__metadata__", "U8", (2,))]
    surrogate = [filled("\ud800", "U8", (2,))]
    target = memoryview(bytearray(b"\xff" * 512))
    for pieces in (twice, short, odd, named, surrogate):
        with pytest.raises(StateError):
            write_image(target, pieces=pieces, metadata={})
    fine = [filled("w", "F32", (2,))]
    with pytest.raises(CapacityError):
        write_image(target, pieces=fine, metadata={"a": "x" * 200}, header_bytes_reserved=128)
    with pytest.raises(CapacityError):
        write_image(target[:70], pieces=fine, metadata={})
    assert bytes(target) == b"\xff" * 512
