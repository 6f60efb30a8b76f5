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
from tests.model.test_goodput import interruptions, lives

C = Cause


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


def accounted(some: list[Life], hits: list[Interruption], *, ranks: int = 1) -> Accounting:
    return account_session(
        world_size=ranks,
        started_s=0.0,
        over_s=100.0,
        now_s=100.0,
        alive=False,
        lives=some,
        interruptions=hits,
    )


@given(
    some=st.lists(lives, max_size=12),
    hits=st.lists(interruptions, max_size=6, unique_by=lambda one: one.id),
    alive=st.booleans(),
)
def test_what_interruptions_took_sums_to_what_is_booked(
    some: list[Life], hits: list[Interruption], alive: bool
) -> None:
    books = account_session(
        world_size=4,
        started_s=0.0,
        over_s=None,
        now_s=100.0,
        alive=alive,
        lives=some,
        interruptions=hits,
    )
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
