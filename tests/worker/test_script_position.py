"""What each rank's script does next: ranks compare it before a phase and at the end."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.runtime.worker.communication import script_position
from outlast.runtime.worker.communication.script_position import Elsewhere, ScriptPositions
from outlast.runtime.worker.communication.shared_rows import Cut, Participant

STEP, PHASE, END = "goes on to the next step", "enters the phase 'evaluate'", "ends run.steps"


def rows(world_size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, script_position.LAYOUT.size(world_size)))


def position(
    memory: memoryview,
    rank: int,
    world_size: int = 2,
    *,
    generation: int = 1,
    timeout_s: float = 20.0,
    cancelled: Callable[[], bool] = lambda: False,
) -> ScriptPositions:
    return ScriptPositions(memory, Participant(generation, rank, world_size, timeout_s, cancelled))


def test_ranks_that_enter_the_same_phase_wait_for_each_other() -> None:
    """Method: eight threads and 200 phases each. No thread is in a phase before all have arrived at
    it.
    """
    memory, world_size, phases = rows(8), 8, 200
    arrived, wrong = [0] * world_size, []

    def rank_of(rank: int) -> None:
        mine = position(memory, rank, world_size)
        for number in range(phases):
            arrived[rank] = number
            found = mine.meet(f"enters the phase {number}", votes=number)
            if found is not None or min(arrived) < number:
                wrong.append((rank, number, found, list(arrived)))

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert wrong == []


@pytest.mark.parametrize("other", [STEP, END, "enters the phase 'export'"])
def test_a_peer_that_does_something_else_is_named(other: str) -> None:
    memory = rows(2)
    position(memory, 1).goes_on_to(other, votes=6)
    assert position(memory, 0).meet(PHASE, votes=6) == Elsewhere(1, other)


def test_a_peer_that_is_not_there_yet_is_waited_for() -> None:
    """What the peer wrote after an earlier vote, or in an earlier generation, does not count."""
    memory = rows(2)
    for generation, votes in ((1, 6), (2, 5)):
        position(memory, 1, generation=generation).goes_on_to(STEP, votes=votes)
        with pytest.raises(Cut, match="rank 1 did not come"):
            position(memory, 0, generation=2, timeout_s=0.0).meet(PHASE, votes=6)


def test_a_loop_left_with_a_step_in_hand_is_not_another_path() -> None:
    """Method: `if done: break` before the block, and a phase after the loop. The step that the peer
    was given before is past.
    """
    memory = rows(2)
    mine, peer = position(memory, 0, timeout_s=0.0), position(memory, 1)
    for one in (mine, peer):
        one.goes_on_to(STEP, votes=6)
    with pytest.raises(Cut):
        mine.meet(PHASE, votes=6)
    peer.goes_on_to(PHASE, votes=6)
    again = position(memory, 0)
    again.goes_on_to(STEP, votes=6)
    assert again.meet(PHASE, votes=6) is None


def test_a_generation_that_is_over_ends_the_wait() -> None:
    memory, over = rows(2), threading.Event()
    mine = position(memory, 0, cancelled=over.is_set)
    ended: list[str] = []

    def wait() -> None:
        with pytest.raises(Cut, match="the generation is over"):
            mine.meet(PHASE, votes=1)
        ended.append("cut")

    thread = threading.Thread(target=wait)
    thread.start()
    over.set()
    mine.wake()
    thread.join(10)
    assert ended == ["cut"]


@given(one=st.text(), two=st.text())
def test_texts_of_any_length_are_distinguished(one: str, two: str) -> None:
    """Names of phases come from the user, so they may be long, empty, or of any alphabet."""
    one, two = (text.encode(errors="ignore").decode() for text in (one * 9, two * 9))
    memory = rows(2)
    position(memory, 1).goes_on_to(two, votes=0)
    found = position(memory, 0).meet(one, votes=0)
    assert (found is None) == (one == two)


def test_a_peer_that_has_left_its_loop_is_found_without_waiting() -> None:
    """Only a rank that has gone on after the same vote as the peer finds it."""
    memory = rows(2)
    mine, theirs = position(memory, 0), position(memory, 1)
    for one in (mine, theirs):
        one.goes_on_to(STEP, votes=7)
    assert mine.who_left(votes=7) is None
    theirs.has_left("train.py:9", votes=7)
    left = Elsewhere(1, "has left its loop at train.py:9, and its script has ended")
    assert mine.who_left(votes=7) == left
    assert mine.who_left(votes=6) is None, "this rank is about to come there"
    assert position(memory, 0, generation=2).who_left(votes=7) is None
