"""model/booking.py: every second of a rank has exactly one cause, for any events in any order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.booking import Book
from outlast.model.terms import CAUSES, Cause

moments = st.floats(min_value=0, max_value=50, allow_nan=False)
calls = st.one_of(
    st.tuples(st.just("switch"), st.sampled_from(CAUSES)),
    st.tuples(st.just("begin")),
    st.tuples(st.just("commit"), st.booleans(), st.sampled_from(CAUSES)),
    st.tuples(st.just("hold"), st.floats(-60, 10), st.sampled_from(CAUSES)),
    st.tuples(
        st.just("roll_back"),
        st.none() | st.floats(-10, 60),
        st.none() | st.floats(-10, 60),
        st.sampled_from(CAUSES),
    ),
)


def play(book: Book, call: tuple[object, ...], now_s: float) -> None:
    match call:
        case ("switch", Cause() as cause):
            book.switch(now_s=now_s, cause=cause)
        case ("begin",):
            book.begin_step(now_s=now_s)
        case ("commit", bool() as first, Cause() as then):
            book.commit_step(now_s=now_s, first=first, then=then)
        case ("hold", float() as offset, Cause() as cause):
            book.hold(now_s=now_s, until_s=now_s + offset, cause=cause)
        case ("roll_back", fault, detected, Cause() as then):
            since = [
                None if offset is None else now_s + float(str(offset)) - 30
                for offset in (fault, detected)
            ]
            book.roll_back(now_s=now_s, fault_s=since[0], detected_s=since[1], then=then)


@given(history=st.lists(st.tuples(moments, calls), max_size=30), rest_s=moments)
def test_seconds_sum_to_the_life_of_the_book_in_any_order_of_calls(
    history: list[tuple[float, tuple[object, ...]]], rest_s: float
) -> None:
    book = Book(now_s=7.0, cause=Cause.STARTUP)
    now_s = 7.0
    for pause_s, call in history:
        now_s += pause_s
        play(book, call, now_s)
        totals = book.totals(now_s=now_s + rest_s)
        assert math.isclose(sum(totals.values()), now_s + rest_s - 7.0, abs_tol=1e-6)
        assert min(totals.values()) >= 0


@given(history=st.lists(st.tuples(moments, calls), max_size=20))
def test_what_is_settled_never_shrinks(history: list[tuple[float, tuple[object, ...]]]) -> None:
    """A death keeps the settled seconds. They only grow, and the unsettled rest begins where they
    end.
    """
    book = Book(now_s=0.0, cause=Cause.STARTUP)
    now_s = 0.0
    before = dict.fromkeys(CAUSES, 0.0)
    for pause_s, call in history:
        now_s += pause_s
        play(book, call, now_s)
        seconds, since_s, _ = book.settled()
        assert all(seconds[cause] >= before[cause] for cause in CAUSES)
        assert math.isclose(sum(seconds.values()), since_s, abs_tol=1e-6)
        before = dict(seconds)


@given(pauses=st.lists(moments, min_size=1, max_size=10))
def test_nothing_is_productive_before_it_is_committed(pauses: list[float]) -> None:
    """Method: begin a step, go through causes, and roll the step back. No productive second may
    remain.
    """
    book = Book(now_s=0.0, cause=Cause.OTHER)
    book.begin_step(now_s=0.0)
    now_s = 0.0
    for index, pause_s in enumerate(pauses):
        now_s += pause_s
        book.switch(now_s=now_s, cause=(Cause.STALL, Cause.PRODUCTIVE, Cause.DATA_WAIT)[index % 3])
    book.roll_back(now_s=now_s, fault_s=None, detected_s=None, then=Cause.REGROUP)
    assert book.totals(now_s=now_s)[Cause.PRODUCTIVE] == 0


def test_a_step_that_waited_for_another_rank_was_not_productive_until_then() -> None:
    """The step begins at 10 and passes its vote at 20. The last rank was ready at 14."""
    book = Book(now_s=0.0, cause=Cause.OTHER)
    book.begin_step(now_s=10.0)
    book.switch(now_s=11.0, cause=Cause.DATA_WAIT)
    book.switch(now_s=12.0, cause=Cause.PRODUCTIVE)
    book.hold(now_s=20.0, until_s=14.0, cause=Cause.RESTORE)
    book.commit_step(now_s=21.0, first=True, then=Cause.OTHER)
    found = {cause: value for cause, value in book.totals(now_s=21.0).items() if value}
    assert found == {
        Cause.OTHER: 10.0,
        Cause.DATA_WAIT: 1.0,
        Cause.RESTORE: 3.0,
        Cause.PRODUCTIVE: 7.0,
    }


def test_a_clock_that_steps_back_books_nothing_negative() -> None:
    book = Book(now_s=10.0, cause=Cause.OTHER)
    book.switch(now_s=9.0, cause=Cause.STALL)
    assert book.totals(now_s=9.0) == dict.fromkeys(CAUSES, 0.0)


def test_a_roll_back_splits_at_fault_and_detection() -> None:
    book = Book(now_s=0.0, cause=Cause.OTHER)
    book.begin_step(now_s=1.0)
    book.roll_back(now_s=5.0, fault_s=2.0, detected_s=4.0, then=Cause.REGROUP)
    totals = book.totals(now_s=6.0)
    assert {cause: value for cause, value in totals.items() if value} == {
        Cause.OTHER: 1.0,
        Cause.REPEATED: 1.0,
        Cause.DETECTION: 2.0,
        Cause.REGROUP: 2.0,
    }


@pytest.mark.parametrize(("first", "cause"), [(True, Cause.PRODUCTIVE), (False, Cause.REPEATED)])
def test_only_the_first_execution_is_productive(first: bool, cause: Cause) -> None:
    book = Book(now_s=0.0, cause=Cause.OTHER)
    book.begin_step(now_s=0.0)
    book.switch(now_s=2.0, cause=Cause.STALL)
    book.commit_step(now_s=3.0, first=first, then=Cause.OTHER)
    totals = book.totals(now_s=3.0)
    assert totals[cause] == 2.0
    assert totals[Cause.STALL] == 1.0
