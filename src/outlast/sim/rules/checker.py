"""The base of all rules. A rule looks at observations, and reports what breaks it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from outlast.sim.rules.observations import Observation

NEAR_S = 1e-6  # two times that are closer than this count as equal


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule. `rule` is the name of the checker; `at_s` counts from the beginning."""

    rule: str
    at_s: float
    what: str


class Checker(ABC):
    """Check one rule.

    of      the kinds of observation that it looks at
    now_s   the time of the present observation, in seconds since the beginning
    """

    of: ClassVar[tuple[type[Observation], ...]] = ()
    now_s = 0.0

    @abstractmethod
    def see(self, seen: Observation) -> Iterator[str]:
        """Yield a sentence for everything in `seen` that breaks the rule."""
