"""Between torch and bytes: every dtype, every odd shape, in place and into new memory."""

from __future__ import annotations

import mmap

import pytest
import torch

from outlast.errors import StateError
from outlast.runtime.tiers.image import (
    TensorSpec,
    header_bytes,
    image_bytes,
    read_image,
    write_image,
)
from outlast.runtime.worker.tensors.tensors import (
    DTYPES,
    Pieces,
    is_live,
    piece,
    spec_of,
    to_tensor,
    view_of,
)


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def as_bytes(tensor: torch.Tensor) -> bytes:
    return (
        tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        if tensor.numel()
        else b""
    )


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = random_tensor(dtype, shape)
    given = piece("t", tensor)
    assert given.spec == TensorSpec("t", DTYPES[dtype], shape)
    assert given.data.nbytes == given.spec.nbytes
    target = memoryview(bytearray(image_bytes([given.spec])))
    spec, data = read_image(
        target,
        *write_image(
            target, pieces=[given], metadata={}, header_bytes_reserved=header_bytes([given.spec])
        ),
    ).tensors["t"]
    new = to_tensor(spec, data)
    assert as_bytes(new) == as_bytes(tensor)
    assert new.dtype == dtype
    assert new.shape == tensor.shape


def test_a_contiguous_tensor_gives_a_live_piece_and_others_a_copy() -> None:
    flat, turned = torch.zeros(2, 3), torch.zeros(3, 2).t()
    live, copied = piece("a", flat), piece("b", turned)
    flat.fill_(1)
    turned.fill_(1)
    assert is_live(flat)
    assert not is_live(turned)
    assert bytes(live.data) == as_bytes(torch.ones(2, 3))
    assert bytes(copied.data) == bytes(24)


def test_views_are_kept_until_the_tensor_is_another() -> None:
    """Method: change values, storage, shape, dtype and strides of one name in turn; what is written
    must be what is there.
    """
    pieces, tensor = Pieces(), torch.zeros(2, 4)
    first = pieces.of([("a", tensor)])[0]
    tensor.fill_(1)
    assert pieces.of([("a", tensor)])[0] is first
    tensor.data = torch.full((2, 4), 2.0)
    for changed in (
        tensor,
        tensor.view(4, 2),
        tensor.view(torch.int32),
        tensor.t(),
        torch.tensor(5.0),
        torch.zeros(0),
        torch.zeros(0, 3),
    ):
        given = pieces.of([("a", changed)])[0]
        assert given.spec == spec_of("a", changed)
        assert torch.equal(to_tensor(*given), changed)


def test_tensors_of_other_strides_keep_their_values_both_ways() -> None:
    for tensor in (
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(5).expand(3, 5),
        torch.randn(8)[::2],
    ):
        given = piece("t", tensor)
        assert torch.equal(to_tensor(*given), tensor)
    for dtype in (torch.complex64, torch.complex128):
        for tensor in (torch.randn(3, dtype=dtype).conj(), torch.randn(3, 4, dtype=dtype).t()):
            assert torch.equal(to_tensor(*piece("c", tensor)), tensor)
    # numbers that no arithmetic keeps: NaNs with a payload, minus zero
    odd = torch.tensor([0x7FF8000000000123, -(2**63)], dtype=torch.int64).view(torch.complex128)
    assert as_bytes(to_tensor(*piece("c", odd))) == as_bytes(odd)


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 4)], ids=str)
def test_a_view_has_the_bytes_and_their_memory(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(dtype, shape)
    spec, data = piece("t", tensor)
    memory = memoryview(bytearray(data))
    seen, kept = view_of(spec, memory), view_of(spec, memoryview(bytes(data)))
    assert as_bytes(seen) == as_bytes(kept) == as_bytes(tensor)
    assert (seen.dtype, seen.shape) == (tensor.dtype, tensor.shape)
    if tensor.numel():
        memory[:] = bytes(len(memory))
        assert as_bytes(seen) == bytes(len(memory))
        assert as_bytes(kept) == as_bytes(tensor), "memory that cannot be written to is copied"


def test_tensors_that_no_image_can_hold_are_refused_by_name() -> None:
    for tensor in (
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.empty(2, dtype=torch.bits8),
    ):
        with pytest.raises(StateError, match="odd"):
            spec_of("odd", tensor)
    with pytest.raises(StateError):
        to_tensor(TensorSpec("t", "F8_E8M1", (1,)), memoryview(b"x"))


@pytest.mark.gpu
def test_a_cuda_tensor_comes_over_and_back() -> None:
    tensor = torch.randn(5, 3, device="cuda").t()
    given, target = piece("t", tensor), torch.zeros(3, 5, device="cuda")
    target.copy_(view_of(*given))
    assert not is_live(tensor)
    assert torch.equal(target, tensor)


@pytest.mark.gpu
@pytest.mark.parametrize("mapped", [True, False])
def test_cuda_tensors_are_fetched_into_the_image(mapped: bool) -> None:
    """Method: a kernel that takes long writes each tensor last, so a copy that does not wait for
    it is another. The image lies in a mapping, which gets registered, or in plain memory.
    """
    shapes: list[tuple[torch.dtype, tuple[int, ...]]] = [
        (torch.float32, (1 << 20,)),
        (torch.bfloat16, (3, 5)),
        (torch.uint8, (7,)),
        (torch.float32, ()),
        (torch.float32, (0, 4)),
        (torch.bool, (9, 2)),
    ]
    tensors = [torch.zeros(shape, dtype=dtype, device="cuda") for dtype, shape in shapes]
    tensors.append(torch.zeros(4, 6, device="cuda").t())
    named = [(f"t{number}", tensor) for number, tensor in enumerate(tensors)]
    pieces = Pieces()
    for value in (1, 0, 1):
        torch.cuda._sleep(50_000_000)
        for tensor in tensors:
            tensor.fill_(value)
        given = pieces.of([*named, ("host", torch.full((300_000,), float(value)))])
        size = image_bytes([one.spec for one in given])
        target = memoryview(mmap.mmap(-1, size) if mapped else bytearray(size))
        image = read_image(target, *write_image(target, pieces=given, metadata={}))
        for name, tensor in named:
            assert torch.equal(to_tensor(*image.tensors[name]), tensor.cpu()), name
            back = torch.full_like(tensor, 1 - value)
            back.copy_(view_of(*image.tensors[name]))
            assert torch.equal(back, tensor), name
