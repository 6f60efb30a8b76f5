"""model/goodput.py: the causes sum to ranks x wall seconds, and each second has the cause that the
rules give it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outlast.model.goodput import Accounting, account, account_session, recovery
from outlast.model.records import (
    Interruption,
    Life,
    Meta,
    Records,
    Session,
    SessionRecords,
    StepsBucket,
    began_on_each_clock,
)
from outlast.model.terms import CAUSES, Cause, Mechanism

C = Cause

moments = st.floats(min_value=-10, max_value=110)
# a torn beacon may say anything
seconds = st.dictionaries(st.sampled_from(CAUSES), st.floats(), max_size=5)
lives = st.builds(
    Life,
    worker=st.integers(0, 9),
    pid=st.just(1),
    node=st.just("here"),
    rank=st.integers(-1, 4),
    kind=st.just("rank"),
    assigned_s=moments,
    opened_s=st.none() | moments,
    ended_s=st.none() | moments,
    seconds=seconds,
    cause=st.sampled_from(CAUSES),
)
interruptions = st.builds(
    Interruption,
    id=st.integers(0, 9),
    mechanism=st.sampled_from(Mechanism),
    detected_s=moments,
    parent=st.none() | st.integers(0, 9),
    ranks=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    fault_s=st.none() | moments,
    fault_not_before_s=st.none() | moments,
    resumed_s=st.none() | moments,
)


def booked(
    *some: Life, hits: tuple[Interruption, ...] = (), end_s: float = 100.0, alive: bool = False
) -> dict[C, float]:
    """Return the seconds of one rank from 0 to `end_s`, rounded, without zeros."""
    books = account_session(
        world_size=1,
        started_s=0.0,
        over_s=end_s,
        now_s=end_s,
        alive=alive,
        lives=some,
        interruptions=hits,
    )
    assert math.isclose(sum(books.rank_seconds.values()), end_s, abs_tol=1e-6)
    return {cause: round(value, 6) for cause, value in books.rank_seconds.items() if value > 1e-9}


def life(
    assigned_s: float,
    ended_s: float | None,
    settled: dict[C, float],
    cause: C,
    *,
    opened_s: float | None = None,
) -> Life:
    return Life(
        1,
        11,
        "here",
        0,
        "rank",
        assigned_s,
        opened_s=assigned_s if opened_s is None else opened_s,
        ended_s=ended_s,
        seconds=settled,
        cause=cause,
    )


def hit(
    fault_s: float | None, detected_s: float, resumed_s: float | None = None, **more: int | None
) -> Interruption:
    number, parent = more.get("id") or 1, more.get("parent")
    return Interruption(
        number,
        Mechanism.SIGNAL,
        detected_s,
        parent=parent,
        ranks=(0,),
        fault_s=fault_s,
        resumed_s=resumed_s,
    )


# --- by construction ------------------------------------------------------------------------------


@given(
    some=st.lists(lives, max_size=12),
    hits=st.lists(interruptions, max_size=6),
    size=st.integers(1, 5),
    end_s=st.floats(0, 100),
    alive=st.booleans(),
)
def test_any_lives_and_gaps_sum_to_ranks_times_wall(
    some: list[Life], hits: list[Interruption], size: int, end_s: float, alive: bool
) -> None:
    books = account_session(
        world_size=size,
        started_s=0.0,
        over_s=None,
        now_s=end_s,
        alive=alive,
        lives=some,
        interruptions=hits,
    )
    assert math.isclose(sum(books.rank_seconds.values()), size * end_s, abs_tol=1e-6)
    assert all(math.isclose(sum(rank.values()), end_s, abs_tol=1e-6) for rank in books.by_rank)
    assert min(min(rank.values()) for rank in books.by_rank) >= 0
    assert 0 <= books.ettr <= books.ettr_training + 1e-9 <= 1 + 2e-9
    assert books.spare_seconds >= 0


def test_no_second_yet_is_no_division_by_zero() -> None:
    books = Accounting(0.0, 1, (dict.fromkeys(CAUSES, 0.0),), 0.0)
    assert (books.ettr, books.ettr_training) == (0.0, 0.0)


# --- the rules ------------------------------------------------------------------------------------


def test_before_the_first_life_is_startup_and_after_the_last_shutdown() -> None:
    found = booked(life(10, 90, {C.PRODUCTIVE: 79.0}, C.OTHER, opened_s=11))
    assert found == {C.STARTUP: 11, C.PRODUCTIVE: 79, C.SHUTDOWN: 10}


def test_a_rank_that_never_had_a_process_is_startup() -> None:
    assert booked() == {C.STARTUP: 100}


def test_a_process_that_began_beside_its_successor_takes_nothing_from_it() -> None:
    """A node stands still, and starts the process once it goes on. Its successor has held the rank
    in the meantime.
    """
    late = Life(1, 11, "here", 0, "rank", 40.0, opened_s=None, ended_s=41.0)
    assert booked(late, life(20, 90, {C.PRODUCTIVE: 70.0}, C.OTHER)) == {
        C.STARTUP: 20,
        C.PRODUCTIVE: 70,
        C.SHUTDOWN: 10,
    }


def test_no_rounding_books_less_than_no_seconds() -> None:
    """The settled seconds of a process sum to a little more than the time that it lived."""
    settled = {
        C.STARTUP: 0.08559796326846936,
        C.PRODUCTIVE: 8.2582893007949,
        C.STALL: 0.06322016800993424,
        C.DETECTION: 600.0379715332194,
        C.REGROUP: 30.148504414205604,
        C.RESTORE: 0.007988014813420818,
    }
    one = life(100.01863239, 738.6202037851257, settled, C.PRODUCTIVE)
    hits = (hit(738.6137339787211, 738.61434824484, 746.5397282707711),)
    seconds = account_session(
        world_size=1,
        started_s=0.0,
        over_s=746.7,
        now_s=746.7,
        alive=False,
        lives=(one,),
        interruptions=hits,
    ).by_rank[0]
    assert min(seconds.values()) >= 0.0


def test_a_gap_is_repeated_until_the_fault_then_detection_then_regroup() -> None:
    """The step in flight at 39 is lost at 40. The kernel reports that at 42. The next process takes
    the rank at 50, and opens its book at 51.
    """
    first, second = (
        life(0, 41, {C.PRODUCTIVE: 39.0}, C.PRODUCTIVE),
        life(50, 100, {C.PRODUCTIVE: 49.0}, C.OTHER, opened_s=51),
    )
    found = booked(first, second, hits=(hit(40, 42, 60),))
    assert found == {C.PRODUCTIVE: 39 + 49, C.REPEATED: 1, C.DETECTION: 2, C.REGROUP: 9}


def test_a_gap_keeps_the_cause_that_was_not_productive() -> None:
    first, second = life(0, 41, {C.PRODUCTIVE: 35.0}, C.STALL), life(50, None, {}, C.RESTORE)
    assert booked(first, second, hits=(hit(40, 42),), alive=True) == {
        C.PRODUCTIVE: 35,
        C.STALL: 5,
        C.DETECTION: 2,
        C.REGROUP: 8,
        C.RESTORE: 50,
    }


def test_an_unknown_fault_books_no_detection() -> None:
    found = booked(
        life(0, 42, {C.PRODUCTIVE: 39.0}, C.PRODUCTIVE),
        life(50, 100, {C.PRODUCTIVE: 50.0}, C.OTHER),
        hits=(hit(None, 42),),
    )
    assert found == {C.PRODUCTIVE: 89, C.REPEATED: 3, C.REGROUP: 8}


def test_start_up_of_a_replacement_is_regroup() -> None:
    first, second = (
        life(0, 40, {C.STARTUP: 10, C.PRODUCTIVE: 30.0}, C.OTHER),
        life(40, 100, {C.STARTUP: 5.0, C.PRODUCTIVE: 55.0}, C.OTHER),
    )
    assert booked(first, second, hits=(hit(40, 40),)) == {
        C.STARTUP: 10,
        C.PRODUCTIVE: 85,
        C.REGROUP: 5,
    }


def test_while_an_interruption_is_open_the_gap_is_regroup_and_not_shutdown() -> None:
    assert booked(life(0, 40, {C.PRODUCTIVE: 40.0}, C.OTHER), hits=(hit(40, 41),), alive=True) == {
        C.PRODUCTIVE: 40,
        C.DETECTION: 1,
        C.REGROUP: 59,
    }
    assert booked(life(0, 40, {C.PRODUCTIVE: 40.0}, C.OTHER), hits=(hit(40, 41),)) == {
        C.PRODUCTIVE: 40,
        C.DETECTION: 1,
        C.SHUTDOWN: 59,
    }


def test_a_rank_without_a_process_is_degraded_once_training_goes_on() -> None:
    found = booked(
        life(0, 40, {C.PRODUCTIVE: 40.0}, C.OTHER),
        life(80, 100, {C.PRODUCTIVE: 20.0}, C.OTHER),
        hits=(hit(40, 41, 50),),
    )
    assert found == {C.PRODUCTIVE: 60, C.DETECTION: 1, C.REGROUP: 9, C.DEGRADED: 30}


def test_a_step_in_flight_is_productive_while_its_process_lives() -> None:
    running = life(0, None, {C.PRODUCTIVE: 90.0}, C.PRODUCTIVE)
    assert booked(running, alive=True) == {C.PRODUCTIVE: 100}
    assert booked(running) == {C.PRODUCTIVE: 90, C.REPEATED: 10}


def test_a_life_that_says_too_much_is_scaled_to_what_it_lasted() -> None:
    assert booked(
        life(0, 100, {C.PRODUCTIVE: 150.0, C.STALL: 50.0, C.OTHER: math.nan}, C.OTHER)
    ) == {C.PRODUCTIVE: 66.666667, C.STALL: 33.333333}


def test_a_fault_after_a_rank_is_done_takes_nothing_from_it() -> None:
    done = life(0, 90, {C.PRODUCTIVE: 90.0}, C.SHUTDOWN)
    assert booked(done, hits=(hit(30, 31, 32),)) == {C.PRODUCTIVE: 90, C.SHUTDOWN: 10}


def test_spares_are_apart() -> None:
    spare = Life(9, 99, "here", -1, "hot", 10.0, ended_s=30.0)
    books = account_session(
        world_size=1,
        started_s=0,
        over_s=50.0,
        now_s=50,
        alive=False,
        lives=[spare],
        interruptions=[],
    )
    assert (books.spare_seconds, sum(books.rank_seconds.values())) == (20.0, 50.0)


# --- sessions -------------------------------------------------------------------------------------


def test_sessions_add_up_and_the_time_between_them_is_nobodys() -> None:
    """The machine is rebooted between two sessions, so the second launcher's monotonic clock starts
    at zero. The first launcher was killed at its last sign of life.
    """
    sessions = (
        Session(1, 1, 1_000.0, 5_000.0, seen_s=1_060.0),
        Session(2, 2, 7.0, 5_100.0, seen_s=27.0, ended_s=27.0, state="ended"),
    )
    began_s = began_on_each_clock(sessions)
    assert began_s == [1_000.0, 7.0 - 100.0]
    first = SessionRecords(
        sessions[0], began_s[0], lives=(life(1_000, None, {C.PRODUCTIVE: 50.0}, C.PRODUCTIVE),)
    )
    second = SessionRecords(
        sessions[1], began_s[1], lives=(life(7, 27, {C.PRODUCTIVE: 20.0}, C.OTHER),)
    )
    books = account(Records(Meta("r", "r", 1, "0", 1_000.0, 5_000.0), (first, second)), now_s=None)
    assert books.wall_s == 80.0
    assert {cause: value for cause, value in books.rank_seconds.items() if value} == {
        C.PRODUCTIVE: 70.0,
        C.REPEATED: 10.0,
    }


def session_of(number: int, ranks: int, began_s: float, lasted_s: float) -> SessionRecords:
    """Return a session in which each rank is productive from its first second to its last. Each
    second has a step.
    """
    over_s = began_s + lasted_s
    session = Session(
        number, number, began_s, 5_000.0 + began_s, seen_s=over_s, ended_s=over_s, world_size=ranks
    )
    lives = tuple(
        replace(life(began_s, over_s, {C.PRODUCTIVE: lasted_s}, C.OTHER), rank=rank, worker=rank)
        for rank in range(ranks)
    )
    return SessionRecords(session, 0.0, lives=lives)


def test_sessions_with_other_ranks_sum_to_the_ranks_of_each() -> None:
    """There are 4 ranks for 10 s, 1 rank for 30 s, and then 3 ranks for 20 s."""
    parts = (session_of(1, 4, 0, 10), session_of(2, 1, 10, 30), session_of(3, 3, 40, 20))
    books = account(Records(Meta("r", "r", 4, "0", 0.0, 5_000.0), parts), now_s=None)
    assert (books.world_size, books.wall_s, books.held_s) == (3, 60.0, 130.0)
    assert [rank[C.PRODUCTIVE] for rank in books.by_rank] == [60.0, 30.0, 30.0, 10.0]
    assert sum(books.rank_seconds.values()) == books.held_s
    assert sum(sum(spent.values()) for spent in books.by_node.values()) == books.held_s
    assert (books.ettr, books.mean_ranks) == (1.0, 130.0 / 60.0)


def test_steps_that_are_lost_cost_the_ranks_of_their_session() -> None:
    """Ten steps of 1 s are done on 4 ranks. Then one rank goes on from step 5, and has reached step
    6.
    """
    first, second = session_of(1, 4, 0, 10), session_of(2, 1, 10, 1)
    first = replace(first, steps=(StepsBucket(0.0, 10.0, 0, 10, 1.0, 1.0, 1.0),))
    second = replace(second, steps=(StepsBucket(10.0, 11.0, 5, 6, 1.0, 1.0, 1.0),))
    books = account(Records(Meta("r", "r", 4, "0", 0.0, 5_000.0), (first, second)), now_s=None)
    assert abs(books.rank_seconds[C.LOST] - 4 * 4.0) < 1e-9
    assert sum(books.rank_seconds.values()) == books.held_s == 41.0


def test_a_ledger_that_says_no_ranks_of_sessions_has_those_of_the_run() -> None:
    parts = tuple(
        replace(one, session=replace(one.session, world_size=0))
        for one in (session_of(1, 2, 0, 10), session_of(2, 2, 10, 5))
    )
    records = Records(Meta("r", "r", 2, "0", 0.0, 5_000.0), parts)
    assert (records.sizes, records.world_size) == ((2, 2), 2)
    books = account(records, now_s=None)
    assert (books.held_s, books.mean_ranks) == (30.0, 2)


def test_a_wall_clock_that_went_back_makes_no_sessions_overlap() -> None:
    sessions = (
        Session(1, 1, 100.0, 5_000.0, seen_s=160.0),
        Session(2, 2, 200.0, 4_000.0, seen_s=210.0),
    )
    assert began_on_each_clock(sessions) == [100.0, 140.0]


@given(st.floats(0, 50))
def test_a_live_session_counts_up_to_now(now_s: float) -> None:
    session = Session(1, 1, 0.0, 5_000.0, seen_s=now_s / 2)
    records = Records(Meta("r", "r", 3, "0", 0.0, 5_000.0), (SessionRecords(session, 0.0),))
    assert account(records, now_s=now_s).wall_s == now_s
    assert account(records, now_s=None).wall_s == now_s / 2


# --- MTTR -----------------------------------------------------------------------------------------


def test_mttr_counts_children_with_their_parent() -> None:
    found = recovery(
        [hit(10, 11, 15, id=1), hit(12, 13, 15, id=2, parent=1), hit(20, 20.5, 21, id=3)]
    )
    assert (found.count, found.open_count, found.median_s, found.max_s) == (2, 0, 3.0, 5.0)
    assert found.max_range_s == (5.0, 5.0)


def test_an_unknown_fault_enters_as_an_interval() -> None:
    unknown = Interruption(
        id=2, mechanism=Mechanism.HANG, detected_s=30.0, fault_not_before_s=28.0, resumed_s=31.0
    )
    found = recovery([hit(10, 11, 12, id=1), unknown])
    assert (found.median_s, found.max_s) == (2.0, 2.0)
    assert found.median_range_s == (1.5, 2.5)
    assert found.max_range_s == (2.0, 3.0)


def test_an_open_interruption_is_counted_as_open() -> None:
    found = recovery([hit(10, 11)])
    assert (found.count, found.open_count, found.median_s, found.max_range_s) == (1, 1, None, None)


@given(some=st.lists(interruptions, max_size=8))
def test_mttr_ranges_are_ordered_and_never_negative(some: list[Interruption]) -> None:
    found = recovery(some)
    for range_s in (found.median_range_s, found.max_range_s):
        assert range_s is None or 0 <= range_s[0] <= range_s[1]
    assert found.median_s is None or found.max_s is None or 0 <= found.median_s <= found.max_s
