"""Records that the ranks of one node leave for each other in shared memory.

Each rank has a row: a word that changes with each of its records, and places for records, used in
turn. A record is written before its word changes, and carries generation, number, length and
checksum. If memory is not read in the order in which it was written, a reader reads again. A
generation begins when no rank writes in an older one any more: all of its ranks have paused or are
dead.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from outlast.model.limits import BALLOT_LOOK_S
from outlast.runtime import clock, linux

_HEAD = struct.Struct("<QQII")  # generation, number, length, checksum
# a line of the processor's cache; the word that other ranks read has one to itself
_LINE_BYTES = 64
_WORD = 0xFFFF_FFFF


class Cut(RuntimeError):
    """Raised if the generation is over, or if a rank did not come within the time-out.

    It is not known what the other ranks have seen.
    """


@dataclass(frozen=True, slots=True)
class Participant:
    """One rank of one generation, as it waits for the others.

    cancelled   returns whether the generation is over
    names       the ranks, for people, if `rank` and `world_size` count those of one node; ():
                they are 0, 1, 2 ...
    """

    generation: int
    rank: int
    world_size: int
    timeout_s: float
    cancelled: Callable[[], bool]
    names: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The number of records in a row, and the length of the longest."""

    places: int
    record_bytes: int

    @property
    def place_bytes(self) -> int:
        return -(-(_HEAD.size + self.record_bytes) // _LINE_BYTES) * _LINE_BYTES

    @property
    def row_bytes(self) -> int:
        return _LINE_BYTES + self.places * self.place_bytes

    def size(self, world_size: int) -> int:
        """Return how many bytes the rows of all ranks need."""
        return world_size * self.row_bytes


class SharedRows:
    """One rank's side of the rows of one generation."""

    def __init__(
        self, memory: memoryview, layout: RowLayout, participant: Participant, *, act: str
    ) -> None:
        """Use `memory`, which all ranks share.

        It has at least `layout.size(world_size)` bytes, all of them zero before the first
        generation. `act` is the verb, for messages, for what a rank does when it writes a record:
        "vote" or "come".
        """
        self.ranks = range(participant.world_size)
        self._memory = memory
        self._words = memory.cast("I")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._row_bytes, self._place_bytes = layout.row_bytes, layout.place_bytes
        self._layout = layout
        self._generation = participant.generation
        self._participant = participant
        self._act = act

    def deadline_s(self) -> float:
        """Return when a wait that begins now has lasted too long."""
        return clock.now_s() + self._participant.timeout_s

    def put(self, number: int, record: bytes) -> None:
        """Write this rank's record of that number, over the earlier record in its place."""
        start = self._participant.rank * self._row_bytes
        at = self._place(start, number)
        self._memory[at + _HEAD.size : at + _HEAD.size + len(record)] = record
        checksum = self._checksum(number, record)
        _HEAD.pack_into(self._memory, at, self._generation, number, len(record), checksum)
        self._words[start // 4] = (self._words[start // 4] + 1) & _WORD
        linux.futex_wake(self._address + start)

    def take(
        self, rank: int, number: int, over_s: float, *, later: bool = False
    ) -> tuple[int, bytes]:
        """Wait for the record of that number of `rank`, and return its number and the record.

        `later`: a record of a higher number is accepted, too. Raises Cut.
        """
        start = rank * self._row_bytes
        at = self._place(start, number)
        while True:
            word = self._words[start // 4]
            generation, found, length, checksum = _HEAD.unpack_from(self._memory, at)
            fits = found == number or (later and found > number)
            if generation == self._generation and fits:
                end = at + _HEAD.size + min(length, self._layout.record_bytes)
                record = bytes(self._memory[at + _HEAD.size : end])
                if self._checksum(found, record) == checksum:
                    return found, record
            if self._participant.cancelled():
                raise Cut("the generation is over")
            if clock.now_s() > over_s:
                names = self._participant.names or self.ranks
                raise Cut(
                    f"rank {names[rank]} did not {self._act} within"
                    f" {self._participant.timeout_s:.0f} s"
                )
            linux.futex_wait(self._address + start, word, BALLOT_LOOK_S)

    def newest(self, rank: int) -> tuple[int, bytes] | None:
        """Return the number and the record that `rank` has left in its first place, or None.

        It does not wait. A record that is being written counts as none.
        """
        at = self._place(rank * self._row_bytes, 0)
        generation, number, length, checksum = _HEAD.unpack_from(self._memory, at)
        end = at + _HEAD.size + min(length, self._layout.record_bytes)
        record = bytes(self._memory[at + _HEAD.size : end])
        whole = generation == self._generation and self._checksum(number, record) == checksum
        return (number, record) if whole else None

    def wake(self) -> None:
        """Let a thread that waits in `take` see that the generation is over.

        Any thread may call it.
        """
        for rank in self.ranks:
            linux.futex_wake(self._address + rank * self._row_bytes)

    def _place(self, start: int, number: int) -> int:
        return start + _LINE_BYTES + number % self._layout.places * self._place_bytes

    def _checksum(self, number: int, record: bytes) -> int:
        return zlib.crc32(record, (self._generation << 20 ^ number) & _WORD)
