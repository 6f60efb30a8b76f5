"""model/attribution.py assigns each lost second to one interruption, or to none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.attribution import Seconds
from outlast.model.goodput import Accounting, account, account_session
from outlast.model.records import (
    Interruption,
    Life,
    Meta,
    Records,
    Session,
    SessionRecords,
    StepsBucket,
)
from outlast.model.terms import TAKEN_BY_INTERRUPTIONS, Cause, Mechanism, Tier
from outlast.model.waits import Spans
from tests.model.test_goodput import interruptions, lives

C = Cause
NO_WAITS = Spans()


def hit(number: int, at_s: float, *, rank: int = 1, repeated: int = 1) -> Interruption:
    """Return an interruption by a fault at `at_s`. It is detected 1 s later, regrouped after 3 s,
    restored after 7 s, and over after 8 s.
    """
    return Interruption(
        id=number,
        mechanism=Mechanism.SIGNAL,
        detected_s=at_s + 1,
        ranks=(rank,),
        fault_s=at_s,
        regrouped_s=at_s + 3,
        restored_s=at_s + 7,
        resumed_s=at_s + 8,
        steps_repeated=repeated,
    )


def life(rank: int, from_s: float, to_s: float | None, seconds: Seconds, cause: Cause) -> Life:
    return Life(
        int(from_s) * 10 + rank, 1, "here", rank, "rank", from_s, from_s, to_s, seconds, cause
    )


def accounted(
    some: list[Life],
    hits: list[Interruption],
    *,
    ranks: int = 1,
    waits: Spans = NO_WAITS,
    drained: tuple[int, ...] = (),
) -> Accounting:
    return account_session(
        world_size=ranks,
        started_s=0.0,
        over_s=100.0,
        now_s=100.0,
        alive=False,
        lives=some,
        interruptions=hits,
        waits=waits,
        drained=drained,
    )


@given(
    some=st.lists(lives, max_size=12),
    hits=st.lists(interruptions, max_size=6, unique_by=lambda one: one.id),
    alive=st.booleans(),
    waits=st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0)), max_size=3),
    drained=st.sets(st.integers(0, 6)),
)
def test_what_interruptions_took_sums_to_what_is_booked(
    some: list[Life],
    hits: list[Interruption],
    alive: bool,
    waits: list[tuple[float, float]],
    drained: set[int],
) -> None:
    books = account_session(
        world_size=4,
        started_s=0.0,
        over_s=None,
        now_s=100.0,
        alive=alive,
        lives=some,
        interruptions=hits,
        waits=Spans(waits),
        drained=drained,
    )
    assert min(value for rank in books.by_rank for value in rank.values()) >= 0.0
    booked_s = sum(books.rank_seconds[cause] for cause in TAKEN_BY_INTERRUPTIONS)
    given_s = [value for one in books.taken[0].values() for value in one.values()]
    assert math.isclose(
        sum(given_s) + sum(books.without_interruption.values()), booked_s, abs_tol=1e-5
    )
    assert min(given_s, default=0.0) >= 0.0
    by_node_s = sum(value for spent in books.by_node.values() for value in spent.values())
    assert math.isclose(by_node_s, 400.0, abs_tol=1e-5)


def test_a_rank_that_was_replaced_gives_its_gap_to_what_took_its_process() -> None:
    """The process dies at 20, in a step that began at 19. The next process opens its book at 22."""
    first = life(1, 0, 20.5, {C.STARTUP: 5.0, C.PRODUCTIVE: 14.0}, C.PRODUCTIVE)
    second = life(1, 22, 100, {C.REGROUP: 1.0, C.RESTORE: 4.0, C.PRODUCTIVE: 73.0}, C.OTHER)
    other = life(0, 0, 100, {C.PRODUCTIVE: 100.0}, C.OTHER)
    books = accounted([other, first, second], [hit(1, 20.0)], ranks=2)
    assert books.taken[0][1] == pytest.approx(
        {C.REPEATED: 1.0, C.DETECTION: 1.0, C.REGROUP: 2.0, C.RESTORE: 4.0}
    )
    assert books.without_interruption == {}


def test_a_process_that_lived_on_splits_by_what_it_lived_through() -> None:
    """There are two interruptions. The second one takes three times as many steps back."""
    seconds = {
        C.DETECTION: 2.0,
        C.REGROUP: 4.0,
        C.RESTORE: 8.0,
        C.REPEATED: 4.0,
        C.PRODUCTIVE: 70.0,
    }
    hits = [hit(1, 20.0), hit(2, 50.0, repeated=3)]
    books = accounted([life(0, 0, 100, seconds, C.OTHER)], hits)
    one, two = books.taken[0][1], books.taken[0][2]
    assert one == pytest.approx({C.DETECTION: 1.0, C.REGROUP: 2.0, C.RESTORE: 4.0, C.REPEATED: 1.0})
    assert two == pytest.approx({C.DETECTION: 1.0, C.REGROUP: 2.0, C.RESTORE: 4.0, C.REPEATED: 3.0})


def test_a_process_that_began_in_an_interruption_pays_for_the_rest() -> None:
    """The process opens its book at 22, when 1 s of the first regroup is left. It also lives
    through a second interruption.
    """
    first = life(0, 0, 20.0, {C.PRODUCTIVE: 20.0}, C.OTHER)
    second = life(0, 22, 100, {C.REGROUP: 3.0, C.PRODUCTIVE: 75.0}, C.OTHER)
    books = accounted([first, second], [hit(1, 20.0, rank=0), hit(2, 50.0)])
    assert books.taken[0][1][C.REGROUP] == pytest.approx(1.0 + 1.0)
    assert books.taken[0][2][C.REGROUP] == pytest.approx(2.0)


def long_hit() -> Interruption:
    """Return an interruption by a fault at 20. It is detected at 21, regrouped at 53, restored at
    57, and over at 58. The run waits for a node from 22 to 52.
    """
    return Interruption(
        id=1,
        mechanism=Mechanism.LOST_NODE,
        detected_s=21.0,
        ranks=(1,),
        fault_s=20.0,
        regrouped_s=53.0,
        restored_s=57.0,
        resumed_s=58.0,
    )


WAIT = Spans([(22.0, 52.0)])


def test_ranks_wait_for_a_node_while_no_node_has_room() -> None:
    """Rank 1 is lost at 20 with its node. Its next process opens its book at 53. Rank 0 lives, and
    also lives through a short interruption, which takes its own part of the regroups alone.
    """
    survivor = life(
        0, 0, 100, {C.DETECTION: 2.0, C.REGROUP: 34.0, C.RESTORE: 8.0, C.PRODUCTIVE: 56.0}, C.OTHER
    )
    first = life(1, 0, 20.0, {C.PRODUCTIVE: 20.0}, C.PRODUCTIVE)
    second = life(1, 53, 100, {C.RESTORE: 4.0, C.PRODUCTIVE: 43.0}, C.OTHER)
    hits = [long_hit(), hit(2, 70.0, rank=5)]
    books = accounted([survivor, first, second], hits, ranks=2, waits=WAIT)
    assert [rank[C.IDLE] for rank in books.by_rank] == pytest.approx([30.0, 30.0])
    assert [rank[C.REGROUP] for rank in books.by_rank] == pytest.approx([4.0, 2.0])
    assert books.taken[0][1][C.IDLE] == pytest.approx(60.0)
    assert books.taken[0][1][C.REGROUP] == pytest.approx(2.0 + 2.0)
    assert books.taken[0][2] == pytest.approx(
        {C.DETECTION: 1.0, C.REGROUP: 2.0, C.RESTORE: 4.0 + 2.0, C.IDLE: 0.0}, abs=1e-6
    )
    assert sum(books.rank_seconds.values()) == pytest.approx(200.0)


def test_a_run_that_ends_while_it_waits_for_a_node_waited_to_its_end() -> None:
    """Rank 1 is lost, and no node comes. Rank 0 stands in its step, and is killed at the end. Rank
    2 had ended well before, so it waits for nothing.
    """
    over = Interruption(
        id=1, mechanism=Mechanism.LOST_NODE, detected_s=21.0, ranks=(1,), fault_s=20.0
    )
    some = [
        life(0, 0, 100, {C.PRODUCTIVE: 19.0}, C.PRODUCTIVE),
        life(1, 0, 20.0, {C.PRODUCTIVE: 20.0}, C.PRODUCTIVE),
        life(2, 0, 20.5, {C.PRODUCTIVE: 18.0}, C.SHUTDOWN),
    ]
    books = accounted(some, [over], ranks=3, waits=Spans([(22.0, 100.0)]))
    assert [rank[C.IDLE] for rank in books.by_rank] == pytest.approx([78.0, 78.0, 0.0])
    assert [rank[C.SHUTDOWN] for rank in books.by_rank] == pytest.approx([1.0, 1.0, 81.0])
    assert books.taken[0][1][C.IDLE] == pytest.approx(156.0)


def test_a_drain_is_booked_as_such_and_not_as_regroup_or_restore() -> None:
    """Rank 1 is moved at 20, and a process of rank 1 dies at 50. Rank 0 lives through both."""
    seconds = {C.DETECTION: 2.0, C.REGROUP: 4.0, C.RESTORE: 8.0, C.PRODUCTIVE: 86.0}
    moved = [
        life(0, 0, 100, seconds, C.OTHER),
        life(1, 0, 20.0, {C.PRODUCTIVE: 20.0}, C.OTHER),
        life(1, 22, 50.0, {C.REGROUP: 1.0, C.RESTORE: 4.0, C.PRODUCTIVE: 23.0}, C.OTHER),
        life(1, 52, 100, {C.REGROUP: 1.0, C.RESTORE: 4.0, C.PRODUCTIVE: 43.0}, C.OTHER),
    ]
    books = accounted(moved, [hit(1, 20.0), hit(2, 50.0)], ranks=2, drained=(1,))
    assert books.by_rank[0][C.DRAIN] == pytest.approx(2.0 + 4.0)
    assert (books.by_rank[0][C.REGROUP], books.by_rank[0][C.RESTORE]) == pytest.approx((2.0, 4.0))
    assert books.by_rank[1][C.DRAIN] == pytest.approx(1.0 + 1.0 + 4.0)
    assert set(books.taken[0][1]) == {C.DETECTION, C.DRAIN}
    assert books.taken[0][1][C.DRAIN] == pytest.approx(12.0)
    assert C.DRAIN not in books.taken[0][2]
    assert sum(books.rank_seconds.values()) == pytest.approx(200.0)


def test_what_is_done_again_after_an_earlier_session_is_nobodys() -> None:
    books = accounted([life(0, 0, 100, {C.REPEATED: 9.0, C.PRODUCTIVE: 91.0}, C.OTHER)], [])
    assert (books.taken, books.without_interruption) == (({},), {C.REPEATED: 9.0})


def test_a_stall_is_split_over_tiers_as_it_was_measured() -> None:
    one = Life(1, 1, "here", 0, "rank", 0.0, 0.0, 100.0, {C.STALL: 8.0, C.PRODUCTIVE: 92.0})
    measured = Life(
        1,
        1,
        "here",
        0,
        "rank",
        0.0,
        0.0,
        100.0,
        one.seconds,
        stalls={Tier.MEMORY: 3, Tier.LOCAL: 1},
    )
    assert accounted([measured], []).stalls[Tier.MEMORY] == pytest.approx(6.0)
    assert accounted([measured], []).stalls[Tier.LOCAL] == pytest.approx(2.0)
    assert accounted([one], []).stalls == {}, "nobody measured it"


@pytest.mark.parametrize(("newest", "lost"), [(20, 40.0), (45, 15.0), (70, 0.0)])
def test_steps_that_are_gone_are_lost_until_they_are_done_again(newest: int, lost: float) -> None:
    """The first session does 60 steps of 1 s. The second one goes on from step 10, and has done the
    steps up to `newest` again. Once it is past the first session, no step is lost.
    """
    first = SessionRecords(
        Session(1, 1, 0.0, 5_000.0, seen_s=60.0, ended_s=60.0),
        0.0,
        lives=(life(0, 0, 60, {C.PRODUCTIVE: 60.0}, C.OTHER),),
        steps=(StepsBucket(0.0, 60.0, 0, 60, 1.0, 1.0, 1.0),),
    )
    again = min(newest, 60) - 10
    spent = {C.REPEATED: float(again), C.PRODUCTIVE: float(newest - 10 - again)}
    second = SessionRecords(
        Session(2, 1, 0.0, 5_100.0, seen_s=newest - 10.0, ended_s=newest - 10.0),
        -100.0,
        lives=(life(0, 0, newest - 10.0, spent, C.OTHER),),
        steps=(StepsBucket(0.0, newest - 10.0, 10, newest, 1.0, 1.0, 1.0),),
    )
    books = account(Records(Meta("r", "r", 1, "0", 0.0, 5_000.0), (first, second)), now_s=None)
    seconds = books.rank_seconds
    assert seconds[C.LOST] == pytest.approx(lost)
    assert seconds[C.PRODUCTIVE] == pytest.approx(newest)
    assert seconds[C.REPEATED] == pytest.approx(again)
    assert sum(seconds.values()) == pytest.approx(books.wall_s)
