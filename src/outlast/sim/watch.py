"""The agent's ticks. Those that can lead to nothing are left out: the same course, in less time.

Ticks stand on a grid that begins with the run, so that leaving some out moves none. A tick comes after whatever else happens at its moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

from outlast.engine.protocol.agent import Agent
from outlast.model import limits
from outlast.sim.timeline import LATE, Timeline

REST_MAX_S = 60.0


class Clock(Protocol):
    """A node's, beside the world's."""

    def local_s(self, at_s: float) -> float: ...

    def world_s(self, local_s: float) -> float: ...


class Watch:
    """`look` lets the agent look at its processes. `rests`: False carries out every tick. `clock`: the agent's. `place`: of the
    node among all, whose ticks of one moment come in that order.
    """

    def __init__(self, timeline: Timeline, agent: Agent, *, look: Callable[[], None], rests: bool, clock: Clock, place: int) -> None:
        self._timeline = timeline
        self._agent = agent
        self._look = look
        self._rests = rests
        self._clock = clock
        self._priority = LATE + place
        self._began_s = timeline.now_s
        self._done = 0  # the last tick, counted from the beginning
        self._due = 0  # the next one
        self.over = False

    def begin(self) -> None:
        self._plan(1)

    def event_ends(self) -> None:
        """Something that the agent looks at has changed, which ends its rest: the next tick is the one that would have come anyway."""
        number = max(self._done, math.floor((self._timeline.now_s - self._began_s) / limits.TICK_S)) + 1
        if not self.over and number < self._due:
            self._agent.rest(until_s=self._clock.local_s(self._at_s(number - 1)))
            self._plan(number)

    def _at_s(self, number: int) -> float:
        return self._began_s + number * limits.TICK_S

    def _plan(self, number: int) -> None:
        self._due = number
        self._timeline.after(self._at_s(number) - self._timeline.now_s, partial(self._tick, number), priority=self._priority)

    def _tick(self, number: int) -> None:
        if number != self._due or self.over:
            return  # something happened since, and another tick took its place
        self._done = number
        self._look()
        quiet_until_s = self._clock.world_s(self._agent.quiet_until_s()) if self._rests else 0.0
        following = math.floor((min(quiet_until_s, self._timeline.now_s + REST_MAX_S) - self._began_s) / limits.TICK_S)
        if following > number + 1:
            self._agent.rest(until_s=self._clock.local_s(self._at_s(following - 1)))
        self._plan(max(number + 1, following))
