"""Virtual time: a heap of future events. Times are in seconds.

Ties are broken by priority, then by the order in which things were planned, so that one seed has
one course.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

URGENT, NORMAL, LATE = 0, 1, 2
BUSY, FIXED, ROUTINE = "busy", "fixed", "routine"

Act = Callable[[], object]


class Timeline:
    """Run events in the order of their times.

    `now_s` moves only in `step` and `leap`. What is planned is of one of three sorts:

    BUSY     a process is at work, or a message on its way; `busy`: how many of these there are
    FIXED    a fault, a deadline: no leap passes it
    ROUTINE  heartbeats, leases, ticks, whose planners know what a leap makes of them
    """

    def __init__(self, *, began_s: float) -> None:
        self.now_s = began_s
        self.events = 0  # that have happened
        self.busy = 0
        self._heap: list[tuple[float, int, int, Act, str]] = []
        self._fixed: list[tuple[float, int]] = []
        self._void: set[int] = set()
        self._planned = 0

    def after(self, delay_s: float, act: Act, *, priority: int = NORMAL, sort: str = BUSY) -> int:
        """Plan `act` for `delay_s` from now. Return what `cancel` takes.

        With a delay of 0 or less it happens at once, but not before this event is over.
        """
        return self.at(
            self.now_s + delay_s if delay_s > 0.0 else self.now_s, act, priority=priority, sort=sort
        )

    def at(self, at_s: float, act: Act, *, priority: int = NORMAL, sort: str = BUSY) -> int:
        """Plan `act` for that moment. Return what `cancel` takes."""
        self._planned = number = self._planned + 1
        heapq.heappush(self._heap, (at_s, priority, number, act, sort))
        if sort is BUSY:
            self.busy += 1
        elif sort is FIXED:
            heapq.heappush(self._fixed, (at_s, number))
        return number

    def cancel(self, number: int, *, sort: str) -> None:
        """Cancel an event of this sort that has not happened yet."""
        self._void.add(number)
        if sort is BUSY:
            self.busy -= 1

    @property
    def next_fixed_s(self) -> float | None:
        """Return when the next event is due that no leap may pass."""
        while self._fixed and (self._fixed[0][1] in self._void or self._fixed[0][0] < self.now_s):
            heapq.heappop(self._fixed)
        return self._fixed[0][0] if self._fixed else None

    def step(self, *, until_s: float = math.inf) -> bool:
        """Let the next event happen. False: there is none up to then."""
        heap, void = self._heap, self._void
        while heap:
            if heap[0][0] > until_s:
                return False
            at_s, _, number, act, sort = heapq.heappop(heap)
            if number in void:
                void.discard(number)
                continue
            if at_s > self.now_s:
                self.now_s = at_s
            if sort is BUSY:
                self.busy -= 1
            self.events += 1
            act()
            return True
        return False

    def leap(self, to_s: float) -> None:
        """Move the time on. Nothing happens until then, because no process is busy.

        Routine events that were due in between are planned again by their planners.
        """
        assert self.next_fixed_s is None or self.next_fixed_s >= to_s
        self.now_s = to_s
