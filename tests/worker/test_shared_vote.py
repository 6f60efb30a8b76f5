"""The ballot box: all ranks read what each rank puts in, even if a rank is slow, dead or
left over.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.diagnose.logs import read_lines
from outlast.model.limits import BALLOT_LOOK_S, BALLOT_MAX_BYTES
from outlast.runtime import linux
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.communication import shared_vote
from outlast.runtime.worker.communication.shared_rows import Cut, Participant, SharedRows
from outlast.runtime.worker.communication.shared_vote import SharedVote

_FORKS = multiprocessing.get_context("fork")


def never() -> bool:
    return False


def box(
    rows: memoryview,
    rank: int,
    world_size: int,
    *,
    cancelled: Callable[[], bool] = never,
    timeout_s: float = 20.0,
    generation: int = 1,
) -> SharedVote:
    return SharedVote(rows, Participant(generation, rank, world_size, timeout_s, cancelled))


@pytest.fixture
def rows() -> memoryview:
    """Return memory that is shared with the children that a test forks."""
    return memoryview(mmap.mmap(-1, shared_vote.LAYOUT.size(4)))


@pytest.fixture
def ended() -> Iterator[list[Any]]:
    processes: list[Any] = []
    yield processes
    for process in processes:
        process.kill()
        process.join(5)


def ballot(rank: int, number: int) -> bytes:
    """Return a ballot of another length each time, including the longest one."""
    return bytes([rank, number % 256]) * (1 + (rank + number) * 7 % (BALLOT_MAX_BYTES // 2))


def vote_often(rows: memoryview, rank: int, times: int, said: Any) -> None:
    mine = box(rows, rank, 4)
    for number in range(times):
        if mine.exchange(ballot(rank, number)) != [ballot(other, number) for other in range(4)]:
            said.send(f"rank {rank} read something else in vote {number}")
            os._exit(1)
    said.send("")


def test_every_rank_reads_every_ballot_of_every_vote(rows: memoryview, ended: list[Any]) -> None:
    """Method: four processes cast 3,000 votes as fast as they can. A fast process must not
    overwrite what a slow one still reads.
    """
    ours = []
    for rank in range(4):
        here, there = _FORKS.Pipe(duplex=False)
        ended.append(_FORKS.Process(target=vote_often, args=(rows, rank, 3_000, there)))
        ended[-1].start()
        ours.append(here)
    for here in ours:
        assert here.poll(60), "a rank did not come through"
        assert here.recv() == ""


def test_a_rank_that_waits_for_a_stopped_one_is_woken_at_once(
    rows: memoryview, ended: list[Any]
) -> None:
    """Rank 1 is stopped before it casts its ballot.

    Method: the wake-up comes from another thread, as a message of the agent does.
    """
    over = threading.Event()
    waiting = box(rows, 0, 2, cancelled=over.is_set)
    left_s: list[float] = []

    def vote() -> None:
        with pytest.raises(Cut):
            waiting.exchange(b"mine")
        left_s.append(time.monotonic())

    thread = threading.Thread(target=vote)
    thread.start()
    while waiting.cast == 0:
        os.sched_yield()
    over.set()
    waiting.wake()
    thread.join(10)
    assert left_s


def test_a_wake_up_that_comes_too_early_costs_one_look(rows: memoryview) -> None:
    """Method: no thread wakes the rank, which looks by itself every BALLOT_LOOK_S."""
    looks: list[int] = []

    def cancelled() -> bool:
        looks.append(1)
        return len(looks) > 3

    with pytest.raises(Cut):
        box(rows, 0, 2, cancelled=cancelled).exchange(b"mine")
    assert len(looks) == 4
    assert BALLOT_LOOK_S < 0.05


def test_a_rank_that_never_votes_is_named(rows: memoryview) -> None:
    box(rows, 0, 3).cast = 1
    with pytest.raises(Cut, match="rank 1 did not vote"):
        box(rows, 0, 3, timeout_s=0.03).exchange(b"mine")


def test_a_rank_killed_in_the_middle_of_its_ballot_has_not_voted(
    rows: memoryview, ended: list[Any]
) -> None:
    """Method: the child dies after its ballot is written and before its head is."""

    def die_in_between() -> None:
        mine = box(rows, 1, 2)
        mine._rows._generation = Dying()  # type: ignore[assignment]
        mine.exchange(b"theirs")

    ended.append(_FORKS.Process(target=die_in_between))
    ended[-1].start()
    ended[-1].join(20)
    assert ended[-1].exitcode == -signal.SIGKILL
    assert b"theirs" in bytes(rows)
    with pytest.raises(Cut, match="rank 1"):
        box(rows, 0, 2, timeout_s=0.05).exchange(b"mine")


class Dying:
    """A generation number that ends the process when its ballot is written and its head would
    follow.
    """

    def __lshift__(self, other: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 1


def test_a_ballot_that_is_seen_half_written_is_read_again(rows: memoryview) -> None:
    """This happens on processors whose stores become visible in another order: the number of the
    vote has changed before the ballot is visible.
    """
    theirs = box(rows, 1, 2)
    theirs._rows.put(1, b"all of it")
    place = bytes(rows[:])
    damaged = place.index(b"all of it")
    rows[damaged] = 0
    repaired: list[bool] = []

    def repair() -> bool:
        rows[damaged] = b"a"[0]
        repaired.append(True)
        return False

    mine = box(rows, 0, 2, cancelled=repair)
    assert mine.exchange(b"mine") == [b"mine", b"all of it"]
    assert repaired


def test_votes_of_an_older_generation_do_not_count(rows: memoryview) -> None:
    """The ranks left that generation at different votes, and one of the ranks is new.

    Method: all in one thread, in which the last rank reads.
    """
    for number in range(1, 4):
        box(rows, 1, 2, generation=3)._rows.put(number, b"old")
    with pytest.raises(Cut, match="rank 1"):
        box(rows, 0, 2, generation=4, timeout_s=0.02).exchange(b"new")
    for number in range(1, 6):
        box(rows, 1, 2, generation=4)._rows.put(number, b"newer")
    mine = box(rows, 0, 2, generation=4)
    mine.cast = 4
    assert mine.exchange(b"new") == [b"new", b"newer"]


def test_the_ballot_box_is_empty_for_a_run_that_takes_the_vault_over(tmp_path: Path) -> None:
    """A resumed run may count its generations as the dead one did."""
    vault = Vault.create(tmp_path / "vault", "a-run")
    memory = vault.vote_memory(shared_vote.LAYOUT.size(2))
    box(memory, 1, 2)._rows.put(1, b"of the dead")
    assert (
        bytes(vault.vote_memory(shared_vote.LAYOUT.size(2)))
        == bytes(memory)
        != bytes(shared_vote.LAYOUT.size(2))
    )
    vault.close()
    again = Vault.adopt(tmp_path / "vault", "a-run")
    assert bytes(again.vote_memory(shared_vote.LAYOUT.size(2))) == bytes(shared_vote.LAYOUT.size(2))
    again.remove()


def test_a_rank_that_waits_here_is_known_as_waiting_by_its_stack() -> None:
    """`diagnose` recognises this file by its name. This test fails if the wait moves to another
    file.
    """
    code = SharedRows.take.__code__
    frame = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno + 20})"
    stack = f'Process 7: python train.py\n\nThread 7 (idle): "MainThread"\n    {frame}\n\n'
    (one,) = read_lines(stack.encode().splitlines(keepends=True), name="stack.txt")
    assert one.rule == "stack.waiting"


def test_ranks_on_several_nodes_vote_by_a_collective() -> None:
    assert not shared_vote.is_offered(world_size=8, local_world_size=4)
    assert shared_vote.is_offered(world_size=4, local_world_size=4) == linux.has_futex()
