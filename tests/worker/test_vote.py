"""A vote tells all ranks the same, whichever medium carries the ballots."""

from __future__ import annotations

import contextlib
import mmap
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from outlast.runtime.worker.communication import shared_pages
from outlast.runtime.worker.communication.shared_rows import Participant
from outlast.runtime.worker.member import ballot_box
from outlast.runtime.worker.steps.vote import LOGGED_MAX, Ballot, VoteOutcome, vote
from tests.worker._node_votes import votes_of
from tests.worker._ranks import Rank, run_ranks

WORLD = 3


def member_of(where: ballot_box.BallotBox) -> Any:
    guards = types.SimpleNamespace(ours=contextlib.nullcontext)
    return types.SimpleNamespace(world_size=WORLD, ballots=where, guards=guards)


def on_nodes(rank: Rank, nodes: list[list[int]], memory: str) -> list[VoteOutcome]:
    votes = votes_of(rank, nodes, memory)
    told = [vote(member_of(ballot_box.BallotBox(None, votes)), one) for one in cast(rank.rank)]
    votes.flush()
    return told


def through_shared_memory() -> list[list[VoteOutcome]]:
    """Let three threads stand for three processes. The ballot box cannot tell the difference."""
    rows = memoryview(mmap.mmap(-1, shared_pages.size(WORLD)))
    told: list[list[VoteOutcome]] = [[] for _ in range(WORLD)]

    def one(rank: int) -> None:
        pages = shared_pages.SharedPages(
            rows, Participant(1, rank, WORLD, timeout_s=10.0, cancelled=lambda: False)
        )
        told[rank] += [vote(member_of(ballot_box.BallotBox(pages)), each) for each in cast(rank)]

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return told


def cast(rank: int) -> list[Ballot]:
    """Return ballots for these cases: all is well; one rank has not sealed; one is asked to stop;
    values; other names on one rank; as many values as possible; and what is compared.
    """
    return [
        Ballot(True, False, ready_s=1.5 + rank),
        Ballot(rank != 1, False),
        Ballot(True, rank == 2),
        Ballot(True, False, (("loss", 0.1 * rank), ("norm", 2.0)), (("late", 1.0),)),
        Ballot(
            True,
            False,
            (("loss", 1.0),) if rank else (("other", 1.0), ("more", 1.0)),
            (("late", 1.0),),
        ),
        Ballot(
            True, False, tuple((f"name {index}", float(index)) for index in range(LOGGED_MAX)), ()
        ),
        Ballot(True, False, movers=7.0, watched=9.0),
        Ballot(True, False, movers=7.0 + (rank == 1), watched=9.0 + (rank == 2)),
        Ballot(True, False, watched=9.0 if rank else -8.0),
        Ballot(True, rank == 1, save=rank == 2, unsure=rank == 0),
        Ballot(True, False, unsure=rank == 0, late=rank == 1),
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([[0, 1, 2]], id="one_node"),
        pytest.param([[0], [1], [2]], id="three_nodes"),
        pytest.param([[0, 2], [1]], id="two_nodes"),
    ],
)
def test_every_rank_learns_the_same_outcome(nodes: list[list[int]], tmp_path: Path) -> None:
    told = (
        through_shared_memory()
        if len(nodes) == 1
        else run_ranks(WORLD, on_nodes, nodes, str(tmp_path))
    )
    assert told[0] == told[1] == told[2]
    well, unsealed, stopped, values, mixed, full, alike, unlike, apart, unsure, late = told[0]
    assert (well.sealed, well.stop) == (True, False)
    assert well.ready_s == (1.5, 1.5 + WORLD - 1), "the first rank and the last"
    assert (unsealed.sealed, stopped.stop) == (False, True)
    assert values.current == (("loss", 0.0 + 0.1 + 0.2), ("norm", 6.0))
    assert values.earlier == (("late", 3.0),)
    assert mixed.current is None
    assert mixed.earlier is None
    assert full.current is not None
    assert full.current[-1] == (f"name {LOGGED_MAX - 1}", 3.0 * (LOGGED_MAX - 1))
    assert (alike.same_movers, alike.same_watched) == (True, True)
    assert (unlike.same_movers, unlike.same_watched) == (False, False)
    # one rank looked before its optimizer and the others after theirs, which shows nothing
    assert apart.same_watched
    assert (unsure.unsure, unsure.stop, unsure.save) == (True, True, True)
    assert (late.unsure, late.stop, late.save) == (False, False, False), "one rank votes late"
