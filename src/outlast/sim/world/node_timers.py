"""The timers of an agent's session. They run by the clock of its node."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from outlast.engine.protocol.outputs import SetTimer
from outlast.sim.world.node_clock import NodeClock
from outlast.sim.world.timeline import ROUTINE, Timeline

BEAT, BATCH = "beat", "batch"  # names of the timers
ROUNDING_S = 1e-9


class NodeTimers:
    """The timers of the session of one agent.

    `rings(name, number)` is called when a timer is due. `take_due` says whether it is still valid,
    because it may have been set again while the agent stood still.
    """

    def __init__(
        self, timeline: Timeline, clock: NodeClock, rings: Callable[[str, int], None]
    ) -> None:
        self._timeline = timeline
        self._clock = clock
        self._rings = rings
        # name -> its number, and the number of its event, or 0 when it has rung
        self._timers: dict[str, tuple[int, int]] = {}
        self._count = 0  # number of timers that were set
        self._beat_due_s = 0.0

    def set(self, order: SetTimer) -> None:
        """Set a timer again, or cancel it."""
        _, before = self._timers.pop(order.name, (0, 0))
        if before:
            self._timeline.cancel(before, sort=ROUTINE)
        if order.at_s is None:
            return
        # By rounding, it must not come too early by the clock of the node.
        due_s = self._clock.world_s(order.at_s) + ROUNDING_S
        self._count += 1
        ring = partial(self._ring, order.name, self._count)
        self._timers[order.name] = self._count, self._timeline.at(due_s, ring, sort=ROUTINE)
        if order.name == BEAT:
            self._beat_due_s = due_s

    def _ring(self, name: str, number: int) -> None:
        self._timers[name] = number, 0
        self._rings(name, number)

    def take_due(self, name: str, number: int) -> bool:
        """Return True, once, if the timer that has rung was not set again since."""
        if name not in self._timers or self._timers[name][0] != number:
            return False
        del self._timers[name]
        return True

    def cancel_all(self) -> None:
        """Cancel all timers, because the node loses power."""
        for name in list(self._timers):
            self.set(SetTimer(name, None))

    def last_beat_s(self, until_s: float, every_s: float) -> float:
        """Return the time of the last heartbeat up to `until_s`; 0 if there is none."""
        if BEAT not in self._timers or self._beat_due_s > until_s:
            return 0.0
        return self._beat_due_s + math.floor((until_s - self._beat_due_s) / every_s) * every_s
