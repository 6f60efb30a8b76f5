"""Virtual time: a heap of future events. Times are in seconds.

Events of the same time come in the order of their priorities, and then in the order in which they
were planned. So a seed has only one course.
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

    `now_s` changes only in `step` and `leap`. There are three sorts of events:

    BUSY     the end of a process's work, or the arrival of a message; `busy` is their number
    FIXED    a fault or a deadline; no leap passes it
    ROUTINE  heartbeats, leases and ticks; the code that plans them handles a leap
    """

    def __init__(self, *, began_s: float) -> None:
        self.now_s = began_s
        self.events = 0  # the number of events that have happened
        self.busy = 0
        self._heap: list[tuple[float, int, int, Act, str]] = []
        self._fixed: list[tuple[float, int]] = []
        self._void: set[int] = set()
        self._planned = 0

    def after(self, delay_s: float, act: Act, *, priority: int = NORMAL, sort: str = BUSY) -> int:
        """Plan `act` for `delay_s` from now. Return the number of the event, for `cancel`.

        With a delay of 0 or less it happens at once, but after the present event.
        """
        return self.at(
            self.now_s + delay_s if delay_s > 0.0 else self.now_s, act, priority=priority, sort=sort
        )

    def at(self, at_s: float, act: Act, *, priority: int = NORMAL, sort: str = BUSY) -> int:
        """Plan `act` for that time. Return the number of the event, for `cancel`."""
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
        """Return the time of the next event that no leap may pass."""
        while self._fixed and (self._fixed[0][1] in self._void or self._fixed[0][0] < self.now_s):
            heapq.heappop(self._fixed)
        return self._fixed[0][0] if self._fixed else None

    def step(self, *, until_s: float = math.inf) -> bool:
        """Let the next event happen. Return False if there is none up to `until_s`."""
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
        """Advance the time. Nothing happens until then, because no process is busy.

        Routine events that were due in between are planned again by the code that planned them.
        """
        assert self.next_fixed_s is None or self.next_fixed_s >= to_s
        self.now_s = to_s
