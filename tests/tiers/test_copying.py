"""On one core and on two: the bytes arrive, and the checksum is theirs."""

from __future__ import annotations

import threading
from unittest import mock

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.runtime.tiers import copying, image
from outlast.runtime.tiers.copying import copy_on_one_core, copy_on_two_cores
from outlast.runtime.tiers.image import Piece, TensorSpec, image_bytes, read_image, write_image

WAYS = pytest.mark.parametrize("copy", [copy_on_one_core, copy_on_two_cores])


@WAYS
@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 300), max_size=8), block=st.sampled_from([1, 7, 64]), seed=st.integers(0, 255))
def test_whatever_the_buffers_are_the_checksum_is_that_of_all_bytes(copy: copying.Copy, sizes: list[int], block: int, seed: int) -> None:
    """Method: blocks of a few bytes, so that every way of crossing an edge comes up. What lies behind the image is not touched."""
    buffers = [bytes((seed + index * 31 + at) % 256 for at in range(size)) for index, size in enumerate(sizes)]
    whole = b"".join(buffers)
    memory = bytearray(b"\xee" * (len(whole) + 5))
    with mock.patch.multiple(copying, CHECKSUM_BLOCK_BYTES=block, COPY_BLOCK_BYTES=block):
        checksum = copy(memoryview(memory), [memoryview(buffer) for buffer in buffers])
    assert bytes(memory) == whole + b"\xee" * 5
    assert checksum == xxhash.xxh3_64_intdigest(whole)


def test_an_error_in_the_copy_leaves_no_thread_behind() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        copy_on_two_cores(memoryview(bytearray(10)), [memoryview(bytes(20))])
    assert not [thread for thread in threading.enumerate() if thread.name == "outlast-checksum"]


@pytest.mark.parametrize("spare_core", [False, True])
def test_a_large_image_reads_back_from_either(spare_core: bool) -> None:
    with mock.patch.object(image, "TWO_CORES_BYTES", 1 << 20):
        pieces = [Piece(TensorSpec(f"t{index}", "U8", (700_001,)), memoryview(bytes([index]) * 700_001)) for index in range(5)]
        target = memoryview(bytearray(image_bytes([piece.spec for piece in pieces])))
        length, checksum = write_image(target, pieces=pieces, metadata={"step": "3"}, spare_core=spare_core)
    back = read_image(target, length, checksum)
    assert {name: bytes(data) for name, (_, data) in back.tensors.items()} == {piece.spec.name: bytes(piece.data) for piece in pieces}
