"""What ranks may rely on where they meet before a group is built: in the simulated store as in a
real one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.hosts import RealHost
from tests.conformance.stores import (
    FAILED,
    MET,
    RANKS,
    WAITS,
    Meeting,
    RealMeeting,
    SimulatedMeeting,
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHost]:
    pytest.importorskip("torch")
    one = RealHost(tmp_path_factory.mktemp("house"), preload="torch")
    yield one
    one.close()


@pytest.fixture(params=["simulated", "real"])
def meeting(request: pytest.FixtureRequest) -> Iterator[Meeting]:
    one: Meeting
    if request.param == "real":
        real = request.getfixturevalue("house")
        real.start_over()
        one = RealMeeting(real.house.folder, real.house)
    else:
        one = SimulatedMeeting()
    yield one
    one.close()


def all_come(meeting: Meeting, *, generation: int, port: int) -> list[int]:
    return [meeting.come(rank, generation=generation, port=port) for rank in range(RANKS)]


def test_nobody_has_met_before_all_have_come_and_then_all_have(meeting: Meeting) -> None:
    port = meeting.host()
    for rank in range(RANKS - 1):
        meeting.come(rank, generation=1, port=port)
    meeting.settle()
    assert meeting.came == [WAITS] * (RANKS - 1)
    meeting.come(RANKS - 1, generation=1, port=port)
    meeting.until(lambda: meeting.came == [MET] * RANKS)


def test_generations_do_not_meet_each_other(meeting: Meeting) -> None:
    port = meeting.host()
    for rank in range(RANKS):
        meeting.come(rank, generation=1 + rank % 2, port=port)
    meeting.settle()
    assert meeting.came == [WAITS] * RANKS
    meeting.end()
    meeting.until(lambda: meeting.came == [FAILED] * RANKS)


def test_one_store_serves_one_generation_after_the_other(meeting: Meeting) -> None:
    port = meeting.host()
    for generation in (1, 2, 3):
        all_come(meeting, generation=generation, port=port)
        meeting.until(lambda generation=generation: meeting.came == [MET] * RANKS * generation)  # type: ignore[misc]
    assert meeting.news == [("up", port)]


def test_who_waits_in_a_store_that_ends_fails(meeting: Meeting) -> None:
    port = meeting.host()
    meeting.come(0, generation=1, port=port)
    meeting.settle()
    meeting.end()
    meeting.until(lambda: meeting.came == [FAILED])
    assert meeting.news == [("up", port), ("lost",)]


def test_who_comes_to_a_store_that_has_ended_fails(meeting: Meeting) -> None:
    port = meeting.host()
    meeting.end()
    meeting.come(0, generation=1, port=port)
    meeting.until(lambda: meeting.came == [FAILED])


def test_those_that_have_met_do_not_mind_the_end_of_the_store(meeting: Meeting) -> None:
    port = meeting.host()
    all_come(meeting, generation=1, port=port)
    meeting.until(lambda: meeting.came == [MET] * RANKS)
    meeting.end()
    meeting.settle()
    assert meeting.came == [MET] * RANKS


def test_a_new_host_knows_nothing_of_what_was_said_in_the_old_one(meeting: Meeting) -> None:
    old = meeting.host()
    meeting.come(0, generation=1, port=old)
    meeting.settle()
    meeting.end()
    new = meeting.host()
    for rank in range(1, RANKS):
        meeting.come(rank, generation=1, port=new)
    meeting.settle()
    assert meeting.came == [FAILED] + [WAITS] * (RANKS - 1)
    meeting.come(0, generation=1, port=new)
    meeting.until(lambda: meeting.came == [FAILED] + [MET] * RANKS)


def test_a_rank_told_that_its_generation_is_over_waits_no_longer(
    meeting: Meeting,
) -> None:
    port = meeting.host()
    gone, stays = meeting.come(0, generation=1, port=port), meeting.come(1, generation=1, port=port)
    meeting.settle()
    meeting.leave(gone)
    meeting.until(lambda: meeting.came[gone] == FAILED)
    meeting.settle()
    assert meeting.came[stays] == WAITS
    meeting.leave(stays)
    meeting.until(lambda: meeting.came[stays] == FAILED)
