"""Where the script of each rank is: in which step, in which phase, or at the end of run.steps.

All ranks of a run must enter the same steps and phases in the same order. A script can break that
rule after a fault. For example, a plain variable decides about a phase, and a process that replaces
a rank has another value in it. Then one rank makes the collectives of the phase, and another those
of the next step. Some of these fit together by chance. The weights would then be wrong, and nothing
would report it.

So each rank writes down what it does next, in memory that the ranks of a node share. A rank that
goes on to a step writes, and does not wait. A rank that enters a phase, or ends run.steps, waits
until every peer has come as far, and compares. Votes are the clock: two ranks that have cast
equally many votes in a generation must do the same next. Most ranks write once between two votes. A
rank that is given a step, and leaves its loop before the block, writes again. So these writes are
counted too.

A row holds a word that changes whenever its rank writes, and the written text with a checksum.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from outlast.model.limits import BALLOT_LOOK_S
from outlast.runtime import clock, linux
from outlast.runtime.worker.shared_vote import Cut

_HEAD = struct.Struct("<QQIII")  # generation, votes cast, count since then, length, checksum
_AT = 64  # of the head in a row: the word that others look at has a line of the cache to itself
_ROW_BYTES = 320
_TEXT_BYTES = _ROW_BYTES - _AT - _HEAD.size
_WORD = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A peer whose script does something else than this rank's after the same vote."""

    rank: int
    does: str


class ScriptPositions:
    """One rank's side of the comparison, in one generation.

    met   how often this rank has waited for the others
    """

    def __init__(
        self,
        rows: memoryview,
        *,
        generation: int,
        rank: int,
        world_size: int,
        timeout_s: float,
        cancelled: Callable[[], bool],
    ) -> None:
        """Write into and read from `rows`, which all ranks share: `size(world_size)` bytes."""
        self.met = 0
        self._at = (-1, 0)  # votes cast, and how often this rank has written since then
        self._generation = generation
        self._rank = rank
        self._timeout_s = timeout_s
        self._cancelled = cancelled
        self._rows = rows
        self._words = rows.cast("I")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(rows))
        self._ranks = range(world_size)

    def goes_on_to(self, does: str, *, votes: int) -> None:
        """Write down what this rank does next, after it has cast so many `votes`."""
        text = _shortened(does)
        self._at = (votes, self._at[1] + 1 if self._at[0] == votes else 1)
        start = self._rank * _ROW_BYTES
        at = start + _AT
        self._rows[at + _HEAD.size : at + _HEAD.size + len(text)] = text
        checksum = self._checksum(self._at, text)
        _HEAD.pack_into(self._rows, at, self._generation, *self._at, len(text), checksum)
        self._words[start // 4] = (self._words[start // 4] + 1) & _WORD
        linux.futex_wake(self._address + start)

    def meet(self, does: str, *, votes: int) -> Elsewhere | None:
        """Wait until all ranks have written what they do after so many `votes`.

        Return the first rank that does something else, or None. A rank that is further already has
        compared for both. Raises Cut if the generation is over, or if a rank does not come within
        the time-out.
        """
        self.goes_on_to(does, votes=votes)
        self.met += 1
        mine, over_s = _shortened(does).decode(), clock.now_s() + self._timeout_s
        for rank in self._ranks:
            at, does = self._look(rank, over_s)
            if at == self._at and does != mine:
                return Elsewhere(rank, does)
        return None

    def wake(self) -> None:
        """Let a thread that waits in `meet` see that the generation is over. For any thread."""
        for rank in self._ranks:
            linux.futex_wake(self._address + rank * _ROW_BYTES)

    def _look(self, rank: int, over_s: float) -> tuple[tuple[int, int], str]:
        """Wait until `rank` is as far as this one, and return where it is and what it does."""
        start = rank * _ROW_BYTES
        at = start + _AT
        while True:
            word = self._words[start // 4]
            generation, votes, count, length, checksum = _HEAD.unpack_from(self._rows, at)
            if generation == self._generation and (votes, count) >= self._at:
                end = at + _HEAD.size + min(length, _TEXT_BYTES)
                text = bytes(self._rows[at + _HEAD.size : end])
                if self._checksum((votes, count), text) == checksum:
                    return (votes, count), text.decode(errors="replace")
            if self._cancelled():
                raise Cut("the generation is over")
            if clock.now_s() > over_s:
                raise Cut(f"rank {rank} did not come within {self._timeout_s:.0f} s")
            linux.futex_wait(self._address + start, word, BALLOT_LOOK_S)

    def _checksum(self, at: tuple[int, int], text: bytes) -> int:
        votes, count = at
        return zlib.crc32(text, (self._generation << 20 ^ votes << 4 ^ count) & _WORD)


def size(world_size: int) -> int:
    """Return how many bytes the positions of so many ranks need."""
    return world_size * _ROW_BYTES


def _shortened(does: str) -> bytes:
    """Encode `does` for its place in a row. A long text keeps its beginning and its checksum."""
    whole = does.encode(errors="backslashreplace")
    if len(whole) <= _TEXT_BYTES:
        return whole
    end = f"... {zlib.crc32(whole):08x}".encode()
    kept = whole[: _TEXT_BYTES - len(end)].decode(errors="ignore").encode()
    return kept + end
