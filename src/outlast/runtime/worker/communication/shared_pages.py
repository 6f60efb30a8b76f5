"""Shared memory through which the ranks of a node exchange votes and script positions."""

from __future__ import annotations

from outlast.runtime.worker.communication import script_position, shared_vote
from outlast.runtime.worker.communication.script_position import Elsewhere, ScriptPositions
from outlast.runtime.worker.communication.shared_rows import Participant
from outlast.runtime.worker.communication.shared_vote import SharedVote


class SharedPages:
    """One rank's pages for votes and positions in one generation.

    Positions are counted in votes.
    """

    def __init__(self, memory: memoryview, participant: Participant) -> None:
        """Use `memory`, which all ranks share: `size(world_size)` bytes, zero at first."""
        of_votes = shared_vote.LAYOUT.size(participant.world_size)
        self.vote = SharedVote(memory[:of_votes], participant)
        self._positions = ScriptPositions(memory[of_votes:], participant)

    @property
    def entered(self) -> int:
        """Return how often this rank has waited for the others here."""
        return self.vote.cast + self._positions.met

    def goes_on_to(self, does: str) -> None:
        """Record what this rank does next, for peers that wait in `meet`."""
        self._positions.goes_on_to(does, votes=self.vote.cast)

    def meet(self, does: str) -> Elsewhere | None:
        """Wait for all ranks, and return the first rank that does something else next, or None.

        Raises Cut.
        """
        return self._positions.meet(does, votes=self.vote.cast)

    def has_left(self, where: str) -> None:
        """Record that this rank's script has left its loop early, and has ended."""
        self._positions.has_left(where, votes=self.vote.cast)

    def who_left(self) -> Elsewhere | None:
        """Return a rank that has left its loop at a place where this one has gone on, or None."""
        return self._positions.who_left(votes=self.vote.passed)

    def wake(self) -> None:
        """Let a thread that waits here see that the generation is over. Any thread may call it."""
        self.vote.wake()
        self._positions.wake()


def size(world_size: int) -> int:
    """Return how many bytes the pages of all ranks need."""
    return shared_vote.LAYOUT.size(world_size) + script_position.LAYOUT.size(world_size)
