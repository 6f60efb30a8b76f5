"""Randomness with a seed: one stream for each purpose, so that a new draw in one does not shift the others.

Only `random.Random.random` is used: its values for a seed are the same in every version of Python, those of the methods built on it are not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Stream:
    """Draws for one purpose. `steady`: nothing varies; what lies between two numbers is the lower one."""

    def __init__(self, seed: int, purpose: str, *, steady: bool = False) -> None:
        self._unit = random.Random(f"{seed}/{purpose}").random
        self._steady = steady

    def between(self, low: float, high: float) -> float:
        return low if self._steady else low + (high - low) * self._unit()

    def below(self, count: int) -> int:
        """A whole number from 0 to `count` - 1."""
        return int(self._unit() * count)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def chance(self, probability: float) -> bool:
        return self._unit() < probability
