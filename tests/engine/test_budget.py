"""Budgets refill with progress, and only with progress."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.budget import Budget, Budgets, default_budgets
from outlast.model import limits


def test_a_token_comes_back_after_enough_steps_and_not_before() -> None:
    budget = Budget(2, 10)
    assert budget.take(step=5)
    assert budget.take(step=5)
    assert not budget.take(step=14)
    assert budget.take(step=15)
    assert not budget.take(step=24), (
        "one token at a time: the second comes ten steps after the first"
    )
    assert budget.left(step=25) == 1


@given(
    steps=st.lists(st.integers(0, 500), min_size=1, max_size=60),
    capacity=st.integers(1, 5),
    refill=st.integers(1, 20),
)
def test_no_more_tokens_are_taken_than_were_given(
    steps: list[int], capacity: int, refill: int
) -> None:
    budget = Budget(capacity, refill)
    taken = [step for step in sorted(steps) if budget.take(step=step)]
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= capacity + (taken[last] - taken[first]) // refill + 1


@given(steps=st.lists(st.integers(0, 500), min_size=1, max_size=60))
def test_steps_committed_again_give_nothing_back(steps: list[int]) -> None:
    budget = Budget(3, 10)
    newest = 0
    for step in steps:
        newest = max(newest, step)
        budget.take(step=newest)
        assert 0 <= budget.left(step=newest) <= 3
        assert budget.left(step=newest) == budget.left(step=newest)


def test_faults_at_one_step_are_counted_until_it_is_committed() -> None:
    budgets = default_budgets(None)
    assert [budgets.note_fault(step=4, reached=4) for _ in range(3)] == [1, 2, 3]
    assert budgets.note_fault(step=5, reached=5) == 1
    assert budgets.note_fault(step=5, reached=4) == 1, "elsewhere: all went back to it"
    assert (budgets.note_fault(step=5, reached=5), budgets.since_step) == (2, 3), (
        "step 6 was not executed meanwhile"
    )


def test_a_step_executed_again_ends_the_count_of_faults_before_it() -> None:
    """Method: all ranks go back to step 20, and random faults strike on the way to step 30, which
    was committed before.
    """
    budgets = default_budgets(None)
    counts = [
        budgets.note_fault(step=30, reached=reached) for reached in (30, 20, 20, 24, 20, 23, 24, 30)
    ]
    assert counts == [1, 1, 2, 1, 1, 1, 2, 2]
    assert budgets.since_step == 8
    assert (budgets.note_fault(step=31, reached=31), budgets.since_step) == (1, 1)


@given(strays=st.lists(st.integers(20, 26), max_size=30))
def test_a_step_that_always_fails_is_counted_despite_earlier_faults(
    strays: list[int],
) -> None:
    """Step 28 never completes, although each attempt that no random fault cuts short reaches it."""
    budgets = default_budgets(None)
    count = 0
    for number, reached in enumerate(strays):
        budgets.note_fault(step=27, reached=reached)
        if number % 2:
            count += 1
            assert budgets.note_fault(step=27, reached=27) == count


def test_a_step_is_repeated_in_place_a_few_times_only() -> None:
    budgets = default_budgets(None)
    budgets.note_fault(step=1, reached=1)
    assert [budgets.take_repeat() for _ in range(limits.REPEATS_PER_STEP_COUNT + 1)] == [
        True
    ] * limits.REPEATS_PER_STEP_COUNT + [False]
    budgets.note_fault(step=2, reached=2)
    assert budgets.take_repeat()


def test_torchruns_flag_is_the_stock_of_restarts() -> None:
    assert not default_budgets(0).restarts.take(step=0)
    assert default_budgets(7).restarts.capacity == 7
    assert isinstance(default_budgets(None), Budgets)
