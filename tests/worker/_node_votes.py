"""Ranks of one machine that vote as if they were on several nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from outlast.runtime.tiers.area import allocate, map_file
from outlast.runtime.worker.communication import groups, node_votes, shared_vote
from outlast.runtime.worker.communication.node_votes import NodeVotes
from outlast.runtime.worker.communication.shared_rows import Participant
from outlast.runtime.worker.communication.wake import SocketWatch
from tests.worker._ranks import Rank


def votes_of(
    rank: Rank,
    nodes: list[list[int]],
    folder: str,
    *,
    watch: SocketWatch | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    generation: int = 1,
) -> NodeVotes:
    """Build the group of all ranks, and return the rank's side of its votes.

    The ranks of a node share a file in `folder`.
    """
    store = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    groups.build(
        store=store,
        generation=generation,
        rank=rank.rank,
        world_size=sum(map(len, nodes)),
        backend="gloo",
        timeout_s=60.0,
        watch=watch,
        cancelled=cancelled,
    )
    rows, here = None, next(ranks for ranks in nodes if rank.rank in ranks)
    if len(here) > 1:
        path = Path(folder) / f"votes-{here[0]}"
        allocate(path, shared_vote.LAYOUT.size(len(here)))
        participant = Participant(
            generation, here.index(rank.rank), len(here), 60.0, cancelled, tuple(here)
        )
        rows = node_votes.shared_rows(map_file(path), participant)
    return NodeVotes(nodes, rank.rank, timeout_s=60.0, rows=rows)
