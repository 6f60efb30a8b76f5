"""Parity: whatever is lost is rebuilt bit for bit, and all ways to compute it do the same."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import CorruptError
from outlast.runtime.tiers import parity
from outlast.runtime.tiers.parity import (
    PLACES_MAX,
    ROWS_MAX,
    fold,
    part_of,
    plain_fold,
    rows_to_try,
    weight,
    weights_to_rebuild,
)

Fold = Callable[[memoryview, memoryview, int], None]
FOLDS = [fold, plain_fold]
HAS_COMPILER = (
    shutil.which("cc") is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()
)
needs_compiler = pytest.mark.skipif(
    not HAS_COMPILER, reason="needs a C compiler and Python's headers"
)


def encoded(parts: dict[int, bytes], rows: int) -> list[bytearray]:
    """Return the rows of parity of `parts`, as long as the longest part."""
    out = [bytearray(max(map(len, parts.values()), default=0)) for _ in range(rows)]
    for row, sums in enumerate(out):
        for place, data in parts.items():
            fold(memoryview(sums)[: len(data)], memoryview(data), weight(row, place))
    return out


def rebuilt(
    place: int, parts: dict[int, bytes], lost: tuple[int, ...], rows: dict[int, bytearray]
) -> bytes:
    """Return the part at `place`, as long as the rows are, without a look at what is lost."""
    left = {one: data for one, data in parts.items() if one not in lost}
    of_part, of_row = weights_to_rebuild(place, lost=lost, left=left, rows=sorted(rows))
    out = bytearray(max(map(len, rows.values())))
    for one, factor in of_part.items():
        fold(memoryview(out)[: len(left[one])], memoryview(left[one]), factor)
    for row, factor in of_row.items():
        fold(memoryview(out), memoryview(rows[row]), factor)
    return bytes(out)


def times(a: int, b: int) -> int:
    """The product in GF(256), by the definition: an oracle that shares nothing with the code."""
    out = 0
    for bit in range(8):
        if b >> bit & 1:
            out ^= a << bit
    for bit in range(14, 7, -1):
        if out >> bit & 1:
            out ^= 0x11D << (bit - 8)
    return out


# --- the sums ------------------------------------------------------------------------------------


@given(
    parts=st.dictionaries(st.integers(0, 9), st.binary(max_size=100), min_size=1, max_size=8),
    rows=st.integers(1, ROWS_MAX),
)
def test_any_lost_parts_are_rebuilt_bit_for_bit(parts: dict[int, bytes], rows: int) -> None:
    """Method: of parts of unequal lengths, some of which are empty, lose each choice of up to
    `rows` of parts and rows together, and rebuild each part that is lost.
    """
    sums = dict(enumerate(encoded(parts, rows)))
    for count in range(1, min(rows, len(parts)) + 1):
        for lost in combinations(sorted(parts), count):
            for left in rows_to_try(sums, lost=count):
                for place in lost:
                    found = rebuilt(place, parts, lost, {row: sums[row] for row in left})
                    data = parts[place]
                    assert found[: len(data)] == data
                    assert not any(found[len(data) :]), "zeros follow a short part"


def test_any_two_places_of_the_widest_group_are_told_apart() -> None:
    """Method: of all 255 places, rebuild each of a pair, for neighbours and the two ends."""
    parts = {place: bytes([place, 255 - place, place * 7 % 256]) for place in range(PLACES_MAX)}
    sums = dict(enumerate(encoded(parts, 2)))
    for lost in [(0, 1), (0, 254), (100, 101), (127, 128), (253, 254)]:
        for place in lost:
            assert rebuilt(place, parts, lost, sums) == parts[place]


def test_more_losses_than_rows_are_refused() -> None:
    with pytest.raises(CorruptError, match="2 parts are lost, and 1 rows of parity are left"):
        weights_to_rebuild(0, lost=(0, 1), left=(2,), rows=(1,))


def test_a_second_row_can_stand_in_for_a_damaged_one() -> None:
    assert list(rows_to_try({0, 1}, lost=1)) == [(0,), (1,)]
    assert list(rows_to_try({1}, lost=1)) == [(1,)]
    assert list(rows_to_try({1}, lost=2)) == []


@given(length=st.integers(0, 1000), data=st.integers(1, 16))
def test_parts_follow_each_other_and_make_up_the_image(length: int, data: int) -> None:
    parts = [part_of(length, data=data, place=place) for place in range(data)]
    assert (parts[0][0], parts[-1][1]) == (0, length)
    for (_, end), (begin, _) in pairwise(parts):
        assert end == begin
    sizes = [end - begin for begin, end in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == -(-length // data)


# --- the bytes -----------------------------------------------------------------------------------


def portable(folder: Path) -> Fold:
    """Compile _parity.c without AVX2, and return its `fold`."""
    source = Path(parity.__file__).with_name("_parity.c")
    made = folder / "_parity.so"
    headers = f"-I{sysconfig.get_path('include')}"
    command = ["cc", "-O1", "-DPORTABLE", "-shared", "-fPIC", headers, str(source), "-o", str(made)]
    subprocess.run(command, check=True, timeout=100)
    loader = importlib.machinery.ExtensionFileLoader("_parity", str(made))
    spec = importlib.util.spec_from_loader("_parity", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert module.AVX2 == 0
    of_module: Fold = module.fold
    return of_module


def check(by: Fold, length: int, target_at: int, source_at: int, factor: int) -> None:
    """Fold a stretch of known bytes, and compare each byte with the definition."""
    source = bytes((at * 37 + at // 256) % 256 for at in range(900))
    target = bytearray((at * 11 + 5) % 256 for at in range(900))
    expected = bytearray(target)
    for at in range(length):
        expected[target_at + at] ^= times(source[source_at + at], factor)
    by(
        memoryview(target)[target_at : target_at + length],
        memoryview(source)[source_at : source_at + length],
        factor,
    )
    assert target == expected


@pytest.mark.parametrize("by", FOLDS)
@given(
    length=st.integers(0, 800),
    target_at=st.integers(0, 70),
    source_at=st.integers(0, 70),
    factor=st.integers(0, 255),
)
def test_exactly_the_bytes_asked_for_are_folded_wherever_they_lie(
    by: Fold, length: int, target_at: int, source_at: int, factor: int
) -> None:
    check(by, length, target_at, source_at, factor)


@needs_compiler
def test_a_processor_without_wide_vectors_folds_the_same(tmp_path: Path) -> None:
    by = portable(tmp_path)
    for factor in range(256):
        check(by, 300, factor % 33, factor % 7, factor)


@pytest.mark.parametrize("by", FOLDS)
@pytest.mark.parametrize(
    ("target_bytes", "source_bytes", "factor"),
    [(10, 11, 1), (11, 10, 1), (0, 1, 2), (4, 4, -1), (4, 4, 256)],
)
def test_bad_arguments_are_refused_before_a_byte_is_written(
    by: Fold, target_bytes: int, source_bytes: int, factor: int
) -> None:
    target = bytearray(target_bytes)
    with pytest.raises(ValueError):
        by(memoryview(target), memoryview(b"x" * source_bytes), factor)
    assert target == bytes(target_bytes)


@pytest.mark.parametrize("by", FOLDS)
def test_memory_that_must_not_change_does_not(by: Fold) -> None:
    held = b"12345678"
    with pytest.raises((TypeError, BufferError, ValueError)):
        by(memoryview(held), memoryview(b"abcdefgh"), 1)
    assert held == b"12345678"


@needs_compiler
def test_where_there_is_a_compiler_the_installation_has_used_it() -> None:
    """Building is optional, so nothing else would say that it fails."""
    assert parity.IS_COMPILED, (
        "pip install --editable . builds _parity.c; install again where that file is newer"
    )
