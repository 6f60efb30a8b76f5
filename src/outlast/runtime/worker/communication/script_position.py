"""Where the script of each rank is: in which step, in which phase, or at the end of run.steps.

All ranks of a run must enter the same steps and phases in the same order. A script can break that
rule after a fault. For example, a plain variable decides about a phase, and a process that replaces
a rank has another value in it. Then one rank makes the collectives of the phase, and another those
of the next step. Some of these fit together by chance. The weights would then be wrong, and nothing
would report it.

So each rank writes down what it does next, in memory that the ranks of a node share. A rank that
goes on to a step writes, and does not wait. A rank that enters a phase, or ends run.steps, waits
until every peer has come as far, and compares. Progress is counted in votes: two ranks that have
cast the same number of votes in a generation must do the same next. Most ranks write once between
two votes. If a rank is given a step and leaves its loop before the block, it writes again. So these
writes are counted too.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from outlast.runtime.worker.communication.shared_rows import Participant, RowLayout, SharedRows

_TEXT_BYTES = 228
_HAS_LEFT = "has left its loop"
LAYOUT = RowLayout(places=1, record_bytes=_TEXT_BYTES)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A peer whose script does something else than the script of this rank, after the same vote."""

    rank: int
    does: str


class ScriptPositions:
    """One rank's side of the comparison, in one generation.

    met   how often this rank has waited for the others
    """

    def __init__(self, memory: memoryview, participant: Participant) -> None:
        """Use `memory`, which all ranks share: `LAYOUT.size(world_size)` bytes."""
        self.met = 0
        self._at = (-1, 0)  # votes cast, and how often this rank has written since then
        self._rows = SharedRows(memory, LAYOUT, participant, act="come")

    def goes_on_to(self, does: str, *, votes: int) -> None:
        """Record what this rank does next, after it has voted `votes` times."""
        self._at = (votes, self._at[1] + 1 if self._at[0] == votes else 1)
        self._rows.put(self._number, _shortened(does))

    def meet(self, does: str, *, votes: int) -> Elsewhere | None:
        """Wait until all ranks have written what they do after `votes` votes.

        Return the first rank that does something else, or None. A rank that is further already has
        compared for both. Raises Cut if the generation is over, or if a rank does not come within
        the time-out.
        """
        self.goes_on_to(does, votes=votes)
        self.met += 1
        mine, over_s = _shortened(does), self._rows.deadline_s()
        for rank in self._rows.ranks:
            number, theirs = self._rows.take(rank, self._number, over_s, later=True)
            if number == self._number and theirs != mine:
                return Elsewhere(rank, theirs.decode(errors="replace"))
        return None

    def has_left(self, where: str, *, votes: int) -> None:
        """Record that this rank has left its loop early, and that its script is over.

        It is written last, because only the script's end shows that no error was the cause.
        """
        self.goes_on_to(f"{_HAS_LEFT} at {where}, and its script has ended", votes=votes)

    def who_left(self, *, votes: int) -> Elsewhere | None:
        """Return a rank that has left its loop for good after `votes` votes.

        None where there is none. It does not wait.
        """
        for rank in self._rows.ranks:
            number, theirs = self._rows.newest(rank) or (0, b"")
            if number >> 16 == votes and theirs.startswith(_HAS_LEFT.encode()):
                return Elsewhere(rank, theirs.decode(errors="replace"))
        return None

    def wake(self) -> None:
        """Let a thread that waits in `meet` see that the generation is over.

        Any thread may call it.
        """
        self._rows.wake()

    @property
    def _number(self) -> int:
        """Return one number that orders the votes and the count since then."""
        votes, count = self._at
        return votes << 16 | count


def _shortened(does: str) -> bytes:
    """Encode `does` for its place in a row. A long text keeps its beginning and its checksum."""
    whole = does.encode(errors="backslashreplace")
    if len(whole) <= _TEXT_BYTES:
        return whole
    end = f"... {zlib.crc32(whole):08x}".encode()
    kept = whole[: _TEXT_BYTES - len(end)].decode(errors="ignore").encode()
    return kept + end
