"""Nested data is turned into text and tensors and back, bit for bit."""

from __future__ import annotations

import collections
import enum
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import CorruptError, StateError
from outlast.runtime.worker.tensors.tree import decode, encode


class Colour(enum.Enum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


def same(left: Any, right: Any) -> bool:
    """Return True if both are equal in type, order and bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)
    if isinstance(left, (np.ndarray, np.generic)):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def there_and_back(value: Any) -> Any:
    encoded = encode(value, "x")
    assert all(name.startswith("x") for name in encoded.tensors)
    return decode(encoded.text, encoded.tensors)


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
floats = st.floats(allow_nan=True) | st.integers(0, 2**64 - 1).map(
    lambda word: struct.unpack("<d", word.to_bytes(8, "little"))[0]
)
keys = (
    st.text(max_size=8)
    | st.integers()
    | st.booleans()
    | st.none()
    | st.tuples(st.integers(), st.text(max_size=3))
)
tensors = st.builds(
    lambda data, dtype: torch.tensor(data).to(dtype),
    st.lists(st.integers(-5, 5), max_size=4),
    st.sampled_from(DTYPES),
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | floats
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.complex_numbers()
)
values = st.recursive(
    scalars | tensors | st.sets(st.integers() | st.text(max_size=3), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(values)
def test_nested_data_comes_back_bit_for_bit(value: Any) -> None:
    """Method: data drawn by hypothesis; types, order of keys, NaN payloads and tensor bytes are
    compared.
    """
    assert same(there_and_back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict([("b", 1), ("a", 2)]),
        collections.Counter({3: 2, 7: 1}),
        collections.deque([1, (2,)], maxlen=5),
        10**5000,
        -(1 << 64),
        -0.0,
        math.inf,
        Colour.RED,
        Point(1, torch.ones(2)),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cpu"),
        range(3, 9, 2),
        slice(1, None, 2),
        frozenset({(1, 2)}),
        "\ud800 lone",
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.array(["ab", "c"]),
        np.float32(0.1),
        np.datetime64("2026-01-01"),
        np.zeros((0, 3)),
        torch.tensor(3.0),
        torch.zeros(0, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_special_type_comes_back_as_itself(value: Any) -> None:
    assert same(there_and_back({"k": [value]}), {"k": [value]})


def test_a_tensor_that_occurs_twice_is_stored_once_and_names_never_collide() -> None:
    shared = torch.ones(3)
    out = there_and_back(
        {"a": shared, "b": [shared], 1: torch.zeros(1), "1": torch.full((1,), 5.0)}
    )
    assert out["a"] is out["b"][0]
    assert (out[1].item(), out["1"].item()) == (0, 5)


@pytest.mark.parametrize(
    "bad",
    [
        object(),
        lambda: 0,
        np.array([object()]),
        torch.ones(1).to_sparse(),
        torch.ones(1, device="meta"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused_by_its_path(bad: Any) -> None:
    with pytest.raises(StateError, match="scheduler/inner/1"):
        encode({"inner": [0, bad]}, "scheduler")


BROKEN = [
    "",
    "{",
    '{"?":1}',
    '{"T":"gone"}',
    '{"e":["os","system","x"]}',
    '{"nt":["os","path",[]]}',
    '{"dtype":"load"}',
    '{"f":"00"}',
    "{}",
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_foreign_text_is_corrupt_and_runs_no_code(text: str) -> None:
    with pytest.raises(CorruptError):
        decode(text, {})
