"""Virtual time: a heap of what is going to happen.

Ties are broken by priority, then by the order in which things were planned, so that one seed has one course. Seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

URGENT, NORMAL, LATE = 0, 1, 2


class Timeline:
    """`now_s` moves only in `step`."""

    def __init__(self, *, began_s: float) -> None:
        self.now_s = began_s
        self.events = 0  # that have happened
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._planned = 0

    def after(self, delay_s: float, act: Callable[[], None], *, priority: int = NORMAL) -> None:
        """`act` happens `delay_s` from now; at once, but not before this event is over, where that is 0 or less."""
        self._planned += 1
        heapq.heappush(self._heap, (self.now_s + max(delay_s, 0.0), priority, self._planned, act))

    @property
    def next_s(self) -> float | None:
        """When the next event is due; None: nothing will ever happen again."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> None:
        """Let the next event happen."""
        at_s, _, _, act = heapq.heappop(self._heap)
        self.now_s = max(self.now_s, at_s)
        self.events += 1
        act()
