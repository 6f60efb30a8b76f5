"""Copies past the caches: the compiled one and the one without a compiler do the same."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.runtime.tiers import streaming

Copy = Callable[[memoryview, memoryview], None]


COPIES = [streaming.copy, streaming.plain]


@pytest.mark.parametrize("copy", COPIES)
@given(
    length=st.integers(0, 700),
    target_at=st.integers(0, 70),
    source_at=st.integers(0, 70),
    seed=st.integers(0, 1000),
)
def test_exactly_the_bytes_asked_for_are_copied_wherever_they_lie(
    copy: Copy, length: int, target_at: int, source_at: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    source, target = random.integers(0, 256, 800, np.uint8), random.integers(0, 256, 800, np.uint8)
    expected = target.copy()
    expected[target_at : target_at + length] = source[source_at : source_at + length]
    copy(
        memoryview(target)[target_at : target_at + length],
        memoryview(source)[source_at : source_at + length],
    )
    assert (target == expected).all()


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize(("target_bytes", "source_bytes"), [(10, 11), (11, 10), (0, 1)])
def test_other_lengths_are_refused_before_a_byte_is_written(
    copy: Copy, target_bytes: int, source_bytes: int
) -> None:
    target = bytearray(target_bytes)
    with pytest.raises(ValueError):
        copy(memoryview(target), memoryview(b"x" * source_bytes))
    assert target == bytes(target_bytes)


@pytest.mark.parametrize("copy", COPIES)
def test_memory_that_must_not_change_does_not(copy: Copy) -> None:
    held = b"12345678"
    with pytest.raises((TypeError, BufferError)):
        copy(memoryview(held), memoryview(b"abcdefgh"))
    assert held == b"12345678"


@pytest.mark.skipif(
    shutil.which("cc") is None or not (Path(sysconfig.get_path("include")) / "Python.h").exists(),
    reason="needs a C compiler and Python's headers",
)
def test_where_there_is_a_compiler_the_installation_has_used_it() -> None:
    """Building is optional, so nothing else would say that it fails."""
    assert streaming.PAST_CACHES, (
        "pip install --editable . builds _stream.c; install again where that file is newer"
    )
