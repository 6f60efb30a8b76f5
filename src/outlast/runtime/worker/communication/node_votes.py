"""Votes of ranks on several nodes: shared memory on each node, messages of gloo between nodes.

On each node one rank, its *speaker*, takes the ballots of the node's other ranks from shared
memory. The speakers exchange all ballots in rounds. In each round a speaker sends all that it has
to one other speaker, and receives as much from another one, so that it has twice as many
afterwards. That is Bruck's algorithm, for any number of nodes: n nodes need log2(n) rounds, rounded
up, of n messages each. An all-to-all needs n (n - 1) messages, and gloo's all-reduce goes round a
ring, where 2 (n - 1) messages follow one another. Each speaker then counts the ballots, and the
other ranks of its node read the result from shared memory.

A vote passes on no rank before all ranks have put their ballots in. If a rank is lost meanwhile,
the vote may pass on some ranks. The others raise, or wait until they are woken (wake.py). A rank
that waits for a lost rank raises. The coordinator wakes those that wait for a rank that is alive.

A vote does not wait until what it sent is on its way, because gloo forgets a send to a process that
was killed (wake.py). Each of two buffers is used in every second vote instead. A rank whose vote
n + 1 has passed knows that all ranks have put in ballot n + 1. So they have received all of vote n.
A rank that may end after a vote calls `flush`.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from outlast.model.limits import VOTE_SENT_S
from outlast.runtime.worker.communication import groups
from outlast.runtime.worker.communication.shared_rows import Participant, SharedRows
from outlast.runtime.worker.communication.shared_vote import LAYOUT

ROW_LENGTH = 35  # the longest ballot, in numbers; each ballot has this much room
_TAG = 0x6F75_746C  # the tag of the messages; no script is likely to use it
Rows = list[list[float]]


@dataclass(frozen=True, slots=True)
class Round:
    """This is what one speaker sends and receives in one round of a vote. Nodes are counted from 0.

    to, given      the node to send to, and how many ballots: the first that this one holds
    source, taken  the node to receive from, and how many ballots: they follow those that are held
    """

    to: int
    given: int
    source: int
    taken: int


def plan_rounds(sizes: Sequence[int], mine: int) -> list[Round]:
    """Return the rounds of node `mine`. `sizes` says how many ranks each node has.

    A node holds ballots in the order of the nodes, from itself on, and round again.
    """
    nodes = len(sizes)
    rounds, held = [], 1

    def ballots(node: int, count: int) -> int:
        return sum(sizes[(node + offset) % nodes] for offset in range(count))

    while held < nodes:
        count = min(held, nodes - held)
        source = (mine + held) % nodes
        rounds.append(
            Round((mine - held) % nodes, ballots(mine, count), source, ballots(source, count))
        )
        held += count
    return rounds


class _Buffer:
    """The ballots of all ranks in one vote, and the messages that carry them.

    What was sent is kept until the buffer is used again, because gloo must find its memory. Nothing
    else is kept, because a message keeps gloo's group alive.
    """

    def __init__(self, rounds: Sequence[Round], speakers: Sequence[int], world_size: int) -> None:
        # one memory, as numbers and as the tensor that gloo sends from and receives into
        self._memory = bytearray(world_size * ROW_LENGTH * 8)
        self._numbers: Any = memoryview(self._memory).cast("d")
        rows = torch.frombuffer(self._memory, dtype=torch.float64).view(world_size, ROW_LENGTH)
        self._ways: list[tuple[int, list[torch.Tensor], int, list[torch.Tensor]]] = []
        held = world_size - sum(one.taken for one in rounds)
        for one in rounds:
            given, taken = rows[: one.given], rows[held : held + one.taken]
            self._ways.append((speakers[one.to], [given], speakers[one.source], [taken]))
            held += one.taken
        self._sends: list[Any] = []

    def exchange(self, mine: Rows, timeout: timedelta | None) -> None:
        """Put the ballots of this node in, and wait for those of all others.

        What comes in a round is expected from the beginning of that round. To expect all of it from
        the beginning of the vote is not faster, and is slower on busy processors (measured).
        """
        for row, ballot in enumerate(mine):
            struct.pack_into(f"{len(ballot)}d", self._memory, row * ROW_LENGTH * 8, *ballot)
        backend, self._sends = _backend(), []
        for tag, (to, given, source, taken) in enumerate(self._ways, _TAG):
            receive = backend.recv(taken, source, tag)
            self._sends.append(backend.send(given, to, tag))
            _wait(receive, timeout)

    def read(self, row: int, length: int) -> list[float]:
        """Return the first numbers of a row."""
        start = row * ROW_LENGTH
        numbers: list[float] = self._numbers[start : start + length].tolist()
        return numbers

    def flush(self, timeout: timedelta | None) -> None:
        """Wait until the kernel has everything that was sent, and forget it."""
        for send in self._sends:
            _wait(send, timeout)
        self._sends = []


def _wait(message: Any, timeout: timedelta | None) -> None:
    """Wait for a message. Without `timeout`, wait as long as the group's own time-out."""
    message.wait() if timeout is None else message.wait(timeout)


def _backend() -> Any:
    """Return the gloo group of the default group.

    It is not stored, because a group that was left has to be freed.
    """
    world = dist.group.WORLD
    assert world is not None
    return world._get_backend(torch.device("cpu"))


class NodeVotes:
    """One rank's side of the votes of one generation.

    cast   how many ballots this rank has put in
    """

    def __init__(
        self,
        nodes: Sequence[Sequence[int]],
        rank: int,
        *,
        timeout_s: float | None = None,
        rows: SharedRows | None = None,
    ) -> None:
        """Vote with the ranks of all `nodes`, which are in the same order on all ranks.

        timeout_s   how long a message is waited for; None: as long as the group says
        rows        memory that the ranks of this node share, a row for each in the order of
                    `nodes`; None: this rank is the only one of its node
        """
        self.cast = 0
        mine = next(index for index, ranks in enumerate(nodes) if rank in ranks)
        self._others = range(1, len(nodes[mine]))
        self._rows = rows
        self._timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        # what the group has counted before this vote, or -1 between votes; and how many of all
        # those were messages of votes
        self._counted = (-1, 0)
        self._buffers: list[_Buffer] = []
        self._place_of_rank: list[int] = []
        if nodes[mine][0] == rank:
            held = list(itertools.chain(*nodes[mine:], *nodes[:mine]))
            self._place_of_rank = sorted(range(len(held)), key=held.__getitem__)
            rounds = plan_rounds([len(ranks) for ranks in nodes], mine)
            speakers = [ranks[0] for ranks in nodes]
            self._buffers = [_Buffer(rounds, speakers, len(held)) for _ in range(2)]

    def exchange(self, ballot: list[float], tally: Callable[[Rows], list[float]]) -> list[float]:
        """Put `ballot` in, and return the tally of all ranks' ballots.

        `tally` gets them by rank, each cut to the length of the speaker's. What a shorter one lacks
        is left over from an older vote. `tally` runs on the speaker alone, so it must not depend on
        anything else. Raises Cut, or what torch raises if a peer is lost.
        """
        self._counted = (groups.collectives(), self._counted[1])
        self.cast += 1
        told = self._speak(ballot, tally) if self._buffers else self._listen(ballot)
        before, messages = self._counted
        self._counted = (-1, messages + max(0, groups.collectives() - before))
        return told

    def _speak(self, ballot: list[float], tally: Callable[[Rows], list[float]]) -> list[float]:
        buffer = self._buffers[self.cast % 2]
        ballots = [ballot]
        if self._rows is not None:
            over_s = self._rows.deadline_s()
            ballots += [
                _unpacked(self._rows.take(one, self.cast, over_s)[1]) for one in self._others
            ]
        buffer.exchange(ballots, self._timeout)
        told = tally([buffer.read(place, len(ballot)) for place in self._place_of_rank])
        if self._rows is not None:
            self._rows.put(self.cast, _packed(told))
        return told

    def _listen(self, ballot: list[float]) -> list[float]:
        assert self._rows is not None
        self._rows.put(self.cast, _packed(ballot))
        return _unpacked(self._rows.take(0, self.cast, self._rows.deadline_s())[1])

    def flush(self) -> None:
        """Wait until what this rank sent in its last vote has left, so that the process may end.

        All ranks have put their ballots in, and receive what was sent as soon as they get a
        processor. Raises what torch raises if a peer is lost.
        """
        if self._buffers:
            limit = None if self._timeout is None else timedelta(seconds=VOTE_SENT_S)
            self._buffers[self.cast % 2].flush(limit)

    def collectives(self) -> int:
        """Return how many collectives this rank has entered. A vote counts as one. -1: unknown.

        The messages of votes do not count, because only speakers send them. Any thread may call
        this.
        """
        counted, (before, messages) = groups.collectives(), self._counted
        if counted < 0:
            return counted
        return (counted if before < 0 else before) - messages + self.cast

    def wake(self) -> None:
        """Let a rank that waits in shared memory see that the generation is over.

        Any thread may call this. The speaker may wait for messages, so the sockets have to be shut,
        too.
        """
        if self._rows is not None:
            self._rows.wake()


def shared_rows(memory: memoryview, participant: Participant) -> SharedRows:
    """Return the rows for the ranks of one node, `LAYOUT.size` bytes of memory."""
    return SharedRows(memory, LAYOUT, participant, act="vote")


def _packed(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def _unpacked(record: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(record) // 8}d", record))
