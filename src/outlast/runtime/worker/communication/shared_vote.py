"""Votes of the ranks of one node through a few pages of shared memory.

A collective of gloo wakes three threads in each process for every message that it waits for. Four
busy ranks on two cores take 8 ms for its smallest all-reduce and 2.4 ms for its smallest
all-to-all. Through these pages it takes 0.06 ms, and a fortieth of the processor time.

Each rank has two places for ballots, used in turn. No rank writes ballot n + 2 over ballot n before
all ranks have read n, because before that it needs the ballots n + 1 of all ranks.
"""

from __future__ import annotations

from outlast.model.limits import BALLOT_MAX_BYTES
from outlast.runtime import linux
from outlast.runtime.worker.communication.shared_rows import Participant, RowLayout, SharedRows

LAYOUT = RowLayout(places=2, record_bytes=BALLOT_MAX_BYTES)


class SharedVote:
    """One rank's side of the votes of one generation.

    cast     how many ballots this rank has put in
    passed   how many of these votes have passed, as far as this rank has seen
    """

    def __init__(self, memory: memoryview, participant: Participant) -> None:
        """Vote through `memory`, which all ranks share: `LAYOUT.size(world_size)` bytes."""
        self.cast = self.passed = 0
        self._rows = SharedRows(memory, LAYOUT, participant, act="vote")

    def exchange(self, ballot: bytes) -> list[bytes]:
        """Put `ballot` in, of at most BALLOT_MAX_BYTES, and return those of all ranks, by rank.

        Raises Cut.
        """
        number = self.cast = self.cast + 1
        self._rows.put(number, ballot)
        over_s = self._rows.deadline_s()
        ballots = [self._rows.take(rank, number, over_s)[1] for rank in self._rows.ranks]
        self.passed = number
        return ballots

    def wake(self) -> None:
        """Let a thread that waits in `exchange` see that the generation is over.

        Any thread may call it.
        """
        self._rows.wake()


def is_offered(*, world_size: int, local_world_size: int) -> bool:
    """Return True if all ranks are on this node, and this kernel's futex can be called."""
    return world_size == local_world_size and linux.has_futex()
