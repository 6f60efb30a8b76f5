"""Votes of ranks on several nodes: which rank sends what, and what happens if a rank does
not come.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.logs import read_lines
from outlast.runtime.worker.communication import groups, node_votes
from outlast.runtime.worker.communication.node_votes import NodeVotes, Rows, plan_rounds
from outlast.runtime.worker.communication.wake import SocketWatch
from outlast.runtime.worker.member import ballot_box
from tests.worker._node_votes import votes_of
from tests.worker._ranks import Rank, run_ranks

FIVE_RANKS = [[0, 3], [1], [2, 4]]


def listing(rows: Rows) -> list[float]:
    """Return the first number of each rank's ballot."""
    return [row[0] for row in rows]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_all_ballots_reach_every_node_in_few_messages(sizes: list[int]) -> None:
    """Method: draw the number of ranks of each node, and carry out the plans of all nodes
    on lists.
    """
    nodes, first = len(sizes), [sum(sizes[:node]) for node in range(len(sizes))]
    held = [list(range(first[node], first[node] + sizes[node])) for node in range(nodes)]
    plans = [plan_rounds(sizes, node) for node in range(nodes)]
    assert {len(plan) for plan in plans} == {math.ceil(math.log2(nodes))}
    for rounds in zip(*plans, strict=True):
        given_to = {one.to: held[node][: one.given] for node, one in enumerate(rounds)}
        for node, one in enumerate(rounds):
            assert rounds[one.source].to == node
            assert len(given_to[node]) == one.taken
            held[node] += given_to[node]
    for node in range(nodes):
        assert sorted(held[node]) == list(range(sum(sizes)))
        assert held[node][0] == first[node]


def test_nodes_are_distinguished_by_their_keys() -> None:
    """Ranks 0 and 3 share a node, and so do 1 and 4. Ranks 2 and 5 share memory with no
    other rank.
    """
    assert ballot_box.nodes_of([7, 9, 0, 7, 9, 0]) == [[0, 3], [1, 4], [2], [5]]


def test_the_key_of_a_node_is_unique() -> None:
    keys = {ballot_box.node_key(f"10.0.0.{host}:29400") for host in range(200)}
    assert len(keys) == 200
    assert 0 not in keys
    assert max(keys) < 2**63, "it travels as a signed number"
    assert ballot_box.node_key("") == 0, "a run on one node"


def _vote_often(rank: Rank, folder: str, times: int) -> list[str]:
    votes, chance = votes_of(rank, FIVE_RANKS, folder), random.Random(rank.rank)
    wrong: list[str] = []
    for number in range(times):
        if chance.random() < 0.05:
            time.sleep(chance.random() / 200)  # a slow rank or a fast one, which is not waited for
        told = votes.exchange([10.0 * number + rank.rank], listing)
        if told != [10.0 * number + other for other in range(5)]:
            wrong.append(f"rank {rank.rank} was told {told} in vote {number}")
    votes.flush()  # because this process ends at once
    return wrong


def test_every_vote_has_the_ballots_of_all_ranks(tmp_path: Path) -> None:
    """Method: five ranks on three nodes cast 200 votes as fast as they can, with pauses at random.

    A fast rank must not overwrite what a slow one still sends.
    """
    assert run_ranks(5, _vote_often, str(tmp_path), 200, timeout_s=100.0) == [[]] * 5


def _count(rank: Rank, folder: str) -> tuple[list[int], int]:
    """Return what this rank has counted after each of three votes and barriers, and what gloo has
    counted.
    """
    votes = votes_of(rank, FIVE_RANKS, folder)
    counts, of_gloo = [votes.collectives()], groups.collectives()
    for _ in range(3):
        votes.exchange([0.0], listing)
        dist.barrier()
        counts.append(votes.collectives())
    return [count - counts[0] for count in counts], groups.collectives() - of_gloo


def test_a_vote_counts_as_one_collective_on_every_rank(tmp_path: Path) -> None:
    """The counts show which rank is behind. gloo counts messages, and only the ranks that speak for
    their node send any.
    """
    said = run_ranks(5, _count, str(tmp_path))
    assert [counts for counts, _ in said] == [[0, 2, 4, 6]] * 5
    of_gloo = [count for _, count in said]
    assert min(of_gloo[:3]) > max(of_gloo[3:]) == 3, of_gloo


def _wait_for_a_rank_that_never_votes(rank: Rank, folder: str) -> tuple[float, int]:
    """Return how long a rank took to leave its vote once it was woken, and its count during the
    vote.
    """
    over, watch = threading.Event(), SocketWatch()
    watch.install()
    votes = votes_of(rank, FIVE_RANKS, folder, watch=watch, cancelled=over.is_set)
    store = groups.connect("127.0.0.1", rank.port, 20.0)
    if rank.rank == 1:
        store.wait(["out"])
        return 0.0, votes.collectives()
    said: list[Any] = []

    def waker() -> None:
        store.add("in", 1)
        while store.add("in", 0) < 4 or votes.cast == 0:
            time.sleep(0.001)
        time.sleep(0.05)  # so that they are in the vote and not before it
        said.append(votes.collectives())
        over.set()
        said.append(time.monotonic())
        votes.wake()
        watch.wake()

    thread = threading.Thread(target=waker)
    thread.start()
    with pytest.raises(RuntimeError):
        votes.exchange([0.0], listing)
    left_s = time.monotonic()
    thread.join()
    if store.add("woken", 1) == 4:
        store.set("out", "yes")
    return left_s - said[1], said[0]


def test_ranks_that_wait_for_another_node_are_woken(tmp_path: Path) -> None:
    """Rank 1 never votes. The others leave at once, whether they speak for their node or not, and
    their counts are ahead of rank 1's.
    """
    said = run_ranks(5, _wait_for_a_rank_that_never_votes, str(tmp_path))
    assert max(took_s for took_s, _ in said) < 1.0
    counts = [count for _, count in said]
    assert counts == [counts[1] + 1, counts[1], *[counts[1] + 1] * 3]


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _vote_until_a_rank_is_killed(rank: Rank, folder: str, victim: int) -> tuple[int, list[float]]:
    """Return how many votes have passed here, and the result of the next generation's vote."""
    over, watch = threading.Event(), SocketWatch()
    watch.install()
    votes = votes_of(rank, FIVE_RANKS, folder, watch=watch, cancelled=over.is_set)
    store = groups.connect("127.0.0.1", rank.port, 20.0)
    if rank.rank == victim:
        store.set("pid", str(os.getpid()))
    pid = int(store.get("pid"))
    store.add("built", 1)
    while store.add("built", 0) < 5:
        time.sleep(0.001)
    if rank.rank == victim:
        after_s = random.Random(victim).random() / 50
        threading.Timer(after_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

    def leave_with_the_others() -> None:
        """Leave as the listener does: one rank has raised, or the agent of the victim's node has
        noticed the death.
        """
        knows = rank.rank in (2, 4)
        while not store.check(["leave"]) and not (knows and victim == 4 and _has_ended(pid)):
            time.sleep(0.001)
        over.set()
        votes.wake()
        watch.wake()

    listener = threading.Thread(target=leave_with_the_others)
    listener.start()
    again = groups.connect("127.0.0.1", rank.port, 20.0)
    passed: list[list[float]] = []

    def vote_on() -> None:
        while True:
            passed.append(votes.exchange([0.0], listing))

    with pytest.raises(RuntimeError):
        vote_on()
    again.set("leave", "yes")
    listener.join()
    again.add("still", 1)
    while again.add("still", 0) < 4:
        time.sleep(0.001)
    groups.destroy(groups.BuiltGroup(1, rank.rank, 5, "gloo", sys.excepthook, watch))
    survivors = [one for one in range(5) if one != victim]
    mine = Rank(survivors.index(rank.rank), 4, rank.port)
    newer = votes_of(mine, [[0, 1], [2, 3]], folder, watch=watch, generation=2)
    told = newer.exchange([float(mine.rank)], listing)
    newer.flush()
    return len(passed), told


@pytest.mark.parametrize("victim", [0, 1, 4], ids=["speaker", "alone_on_its_node", "listener"])
def test_a_killed_rank_ends_the_votes_of_all_others(victim: int, tmp_path: Path) -> None:
    """A rank that waits for the lost one raises, and the others are woken. Then all vote again.

    In the next generation, the nodes share the same files, with the contents of the old generation.
    """
    said = run_ranks(
        5, _vote_until_a_rank_is_killed, str(tmp_path), victim, may_die=(victim,), timeout_s=60.0
    )
    left = [one for rank, one in enumerate(said) if rank != victim]
    assert all(told == [0.0, 1.0, 2.0, 3.0] for _, told in left)
    passed = [count for count, _ in left]
    assert max(passed) - min(passed) <= 1, "a vote passes nowhere before all have voted"


def test_a_rank_that_waits_here_is_known_as_waiting_by_its_stack() -> None:
    """`diagnose` recognises these files by their names. This test fails if the wait moves to
    another file.
    """
    for code in (NodeVotes.exchange.__code__, node_votes._Buffer.exchange.__code__):
        frame = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno + 9})"
        stack = f'Process 7: python train.py\n\nThread 7 (idle): "MainThread"\n    {frame}\n\n'
        (one,) = read_lines(stack.encode().splitlines(keepends=True), name="stack.txt")
        assert one.rule == "stack.waiting"
