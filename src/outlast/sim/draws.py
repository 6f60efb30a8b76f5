"""Random numbers from a seed, in one stream for each purpose.

A new draw in one stream does not change the others. Only `random.Random.random` is used, because
its values for a seed are the same in every version of Python. Those of the methods built on it are
not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
POOL_UNITS = 65_536


class Draws(Protocol):
    """A source from which numbers can be drawn."""

    def between(self, low: float, high: float) -> float: ...


class Stream:
    """Draws for one purpose.

    With `steady`, nothing varies: a number between two others is the lower one.
    """

    def __init__(self, seed: int, purpose: str, *, steady: bool = False) -> None:
        self._unit = random.Random(f"{seed}/{purpose}").random
        self._steady = self._always = steady

    def calm(self, now: bool) -> None:
        """Draw nothing from now on, or draw again, as a stream does."""
        self._steady = now or self._always

    def between(self, low: float, high: float) -> float:
        return low if self._steady else low + (high - low) * self._unit()

    def below(self, count: int) -> int:
        """Draw a whole number from 0 to `count` - 1."""
        return int(self._unit() * count)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def chance(self, probability: float) -> bool:
        return self._unit() < probability


class Pool:
    """Numbers that are drawn once for many processes with equal draws: see `ProcessDraws`."""

    def __init__(self, stream: Stream, *, steady: bool) -> None:
        self.units = [stream.between(0.0, 1.0) for _ in range(POOL_UNITS)]
        self.steady = self._always = steady

    def calm(self, now: bool) -> None:
        """Draw nothing from now on, or draw again, as a stream does."""
        self.steady = now or self._always


class ProcessDraws:
    """The draws of one process, taken from a place in the pool on.

    Processes that begin at the same place and do the same get the same numbers, in any order.
    """

    __slots__ = ("_at", "_pool", "place")

    def __init__(self, pool: Pool, *place: int) -> None:
        self._pool = pool
        self.goes_to(*place)

    def goes_to(self, *place: int) -> None:
        """Go to a place in the pool. All processes that go there draw the same from then on."""
        at = 0
        for number in place:
            at = (at * 40_503 + number + 1) % POOL_UNITS
        self.place = self._at = at

    def between(self, low: float, high: float) -> float:
        if self._pool.steady:
            return low
        self._at = at = (self._at + 1) % POOL_UNITS
        return low + (high - low) * self._pool.units[at]

    def once(self, low: float, high: float) -> float:
        """Draw a number that does not depend on earlier draws."""
        return self._aside(low, high, self.place)

    def aside(self, low: float, high: float) -> float:
        """Draw a number without changing the next draws."""
        return self._aside(low, high, self._at)

    def _aside(self, low: float, high: float, at: int) -> float:
        return (
            low
            if self._pool.steady
            else low + (high - low) * self._pool.units[(at * 31 + 17) % POOL_UNITS]
        )

    def copy(self) -> ProcessDraws:
        """Return a source with the same next draws as this one."""
        other = ProcessDraws(self._pool)
        other.place, other._at = self.place, self._at
        return other
