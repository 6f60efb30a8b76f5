"""model/redundancy.py: every formula against visiting all that can fail."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.redundancy import (
    Code,
    chance_within,
    copies,
    loss_bound_gemini,
    loss_of_any,
    loss_of_group,
)


def lost(code: Code, groups: list[list[int]], down: set[int]) -> bool:
    return any(len(down.intersection(group)) > code.parity for group in groups)


@given(data=st.integers(1, 5), parity=st.integers(0, 3), chance=st.floats(0, 1))
def test_the_loss_of_a_group_is_the_sum_over_all_its_subsets(
    data: int, parity: int, chance: float
) -> None:
    size = data + parity
    truth = math.fsum(
        chance ** sum(state) * (1 - chance) ** (size - sum(state))
        for state in itertools.product((0, 1), repeat=size)
        if sum(state) > parity
    )
    assert loss_of_group(Code(data, parity), chance) == pytest.approx(truth, abs=1e-14)


@given(
    code=st.sampled_from([copies(1), copies(2), copies(3), Code(2, 1), Code(3, 2)]),
    groups=st.integers(1, 4),
    failed=st.integers(0, 12),
)
def test_the_chance_that_some_nodes_take_a_group_is_a_count_of_subsets(
    code: Code, groups: int, failed: int
) -> None:
    nodes = groups * code.size
    assume(failed <= nodes <= 12)
    layout = [list(range(at, at + code.size)) for at in range(0, nodes, code.size)]
    subsets = [set(subset) for subset in itertools.combinations(range(nodes), failed)]
    assert loss_of_any(code, groups=groups, failed=failed) == pytest.approx(
        sum(lost(code, layout, down) for down in subsets) / len(subsets), abs=1e-15
    )


@given(copy=st.integers(1, 4), groups=st.integers(1, 20), failed=st.integers(0, 20))
def test_geminis_bound_is_never_below_the_truth_and_exact_for_few_failures(
    copy: int, groups: int, failed: int
) -> None:
    assume(failed <= copy * groups)
    truth = loss_of_any(copies(copy), groups=groups, failed=failed)
    bound = loss_bound_gemini(nodes=copy * groups, copies=copy, failed=failed)
    assert truth <= bound + 1e-15
    if failed < 2 * copy:
        assert bound == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize(
    ("nodes", "failed", "recovered", "digits"),
    [(16, 2, 0.933, 3), (16, 3, 0.800, 3), (2048, 2, 0.9995, 4), (2048, 5, 0.995, 3)],
)
def test_geminis_figures_for_two_copies(
    nodes: int, failed: int, recovered: float, digits: int
) -> None:
    assert round(1 - loss_bound_gemini(nodes=nodes, copies=2, failed=failed), digits) == recovered
    assert round(1 - loss_of_any(copies(2), groups=nodes // 2, failed=failed), digits) == recovered


def test_a_small_chance_keeps_its_digits() -> None:
    assert loss_of_group(copies(2), 1e-12) == pytest.approx(1e-24, rel=1e-12)
    assert chance_within(60.0, 1e15) == pytest.approx(6e-14, rel=1e-12)
    assert chance_within(60.0, math.inf) == 0.0


def test_parity_holds_less_and_copies_are_parity_of_one() -> None:
    assert (copies(1), copies(2), copies(3)) == (Code(1, 0), Code(1, 1), Code(1, 2))
    assert (copies(2).memory, Code(4, 1).memory, Code(8, 2).memory) == (2.0, 1.25, 1.25)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Code(0, 1),
        lambda: Code(1, -1),
        lambda: Code(1000, 1),
        lambda: copies(0),
        lambda: loss_of_any(copies(2), groups=2, failed=5),
        lambda: loss_bound_gemini(nodes=15, copies=2, failed=2),
        lambda: chance_within(-1.0, 1.0),
    ],
)
def test_what_cannot_be_laid_out_is_refused(call: object) -> None:
    with pytest.raises(UsageError):
        call()  # type: ignore[operator]
