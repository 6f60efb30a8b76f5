"""Parts of a tensor, put together into another part of it, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outlast.runtime.worker.script.patchwork import Box, Patchwork


def cut(rows: int, ranks: int) -> list[tuple[int, int]]:
    """Return begin and end of the rows of each rank, cut as FSDP2 does. The last rank may have
    none.
    """
    each = -(-rows // ranks)
    return [(min(rows, rank * each), min(rows, rank * each + each)) for rank in range(ranks)]


@given(rows=st.integers(0, 9), before=st.integers(1, 5), after=st.integers(1, 5))
def test_any_cut_of_rows_can_be_cut_again_with_the_same_bits(
    rows: int, before: int, after: int
) -> None:
    """NaN and -0.0 are among the values."""
    whole = torch.randn(rows, 3)
    if rows:
        whole[0] = torch.tensor([float("nan"), -0.0, float("inf")])
    for begin, end in cut(rows, after):
        mine = Patchwork(Box((begin, 0), (end - begin, 3)), whole.dtype)
        for at, until in cut(rows, before):
            assert mine.lay(whole[at:until], (at, 0))
        assert mine.is_whole
        assert mine.tensor.numpy().tobytes() == whole[begin:end].numpy().tobytes()


def test_a_part_that_is_missing_leaves_a_hole() -> None:
    mine = Patchwork(Box((1, 0), (2, 2)), torch.float32)
    assert mine.lay(torch.ones(2, 2), (0, 0))
    assert not mine.is_whole
    assert mine.lay(torch.ones(1, 2), (2, 0))
    assert mine.is_whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128])
def test_a_replica_may_come_twice_but_not_with_other_bits(dtype: torch.dtype) -> None:
    mine = Patchwork(Box((0,), (4,)), dtype)
    assert mine.lay(torch.ones(3, dtype=dtype), (0,))
    assert mine.lay(torch.ones(3, dtype=dtype), (1,))
    assert not mine.lay(torch.zeros(1, dtype=dtype), (2,))
    assert bool(mine.tensor.all()), "nothing of the other is taken"


def test_a_tensor_without_dimensions_is_one_part() -> None:
    mine = Patchwork(Box((), ()), torch.float32)
    assert not mine.is_whole
    assert mine.lay(torch.tensor(3.0), ())
    assert (mine.is_whole, float(mine.tensor)) == (True, 3.0)
    assert not mine.lay(torch.tensor(4.0), ())
