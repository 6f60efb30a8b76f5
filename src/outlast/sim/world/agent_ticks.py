"""The ticks of an agent, without those that change nothing.

Leaving them out does not change the course, and saves time. Ticks lie on a grid that begins with
the run, so that leaving some out does not move the others. A tick comes after all other events of
the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

from outlast.engine.agent.agent import Agent
from outlast.model import limits
from outlast.sim.world.timeline import LATE, ROUTINE, Timeline

REST_MAX_S = 60.0


class Clock(Protocol):
    """The clock of a node, which differs from the world's."""

    def local_s(self, at_s: float) -> float: ...

    def world_s(self, local_s: float) -> float: ...


@dataclass(frozen=True, slots=True)
class _Grid:
    """The grid of ticks, which begins at `began_s`. Ticks of one time come in `priority` order."""

    began_s: float
    priority: int


class _State(Enum):
    """The state of an agent's ticks.

    RUNS   ticks come
    HELD   the agent stands still
    OVER   the agent is gone
    """

    RUNS = "runs"
    HELD = "held"
    OVER = "over"


class AgentTicks:
    """The ticks of one agent, without those that change nothing.

    look    lets the agent look at its processes, and returns whether it has to look again at the
            next tick
    rests   False: every tick is carried out
    clock   the clock of the agent
    place   the place of the node among all; ticks of one time come in that order
    """

    def __init__(
        self,
        timeline: Timeline,
        agent: Agent,
        *,
        look: Callable[[], bool],
        rests: bool,
        clock: Clock,
        place: int,
    ) -> None:
        self._timeline = timeline
        self._agent = agent
        self._look = look
        self._rests = rests
        self._clock = clock
        self._grid = _Grid(timeline.now_s, LATE + place)
        self._done = 0  # number of the last tick, counted from the beginning
        self._due = 0  # number of the next tick
        self._tick_at = 0  # number of the event of the next tick; 0 if none is planned
        self._state = _State.RUNS

    def hold(self) -> None:
        """Stop the ticks until `go_on`. The first tick after that is late."""
        if self._state is not _State.HELD:
            self._state = _State.HELD if self._state is _State.RUNS else self._state
            self._cancel()
            self._agent.rest(until_s=self._clock.local_s(self._timeline.now_s))

    def go_on(self) -> None:
        if self._state is _State.HELD:
            self._plan(math.floor((self._timeline.now_s - self._grid.began_s) / limits.TICK_S) + 1)
            self._state = _State.RUNS

    def begin(self) -> None:
        self._plan(1)

    def event_ends(self) -> None:
        """End the rest of the agent, because something that it looks at has changed.

        The next tick is the next one on the grid.
        """
        if self._due == self._done + 1:
            return  # that tick is already planned
        number = (
            max(self._done, math.floor((self._timeline.now_s - self._grid.began_s) / limits.TICK_S))
            + 1
        )
        if self._state is _State.RUNS and number < self._due:
            self._agent.rest(until_s=self._clock.local_s(self._at_s(number - 1)))
            self._plan(number)

    def ends(self) -> None:
        """Stop the ticks: there is no agent any more."""
        self._state = _State.OVER
        self._cancel()

    def leapt(self) -> None:
        """Note that the world has skipped ticks that changed nothing."""
        self._done = math.floor((self._timeline.now_s - self._grid.began_s) / limits.TICK_S)
        self._agent.rest(until_s=self._clock.local_s(self._at_s(self._done)))
        self._plan(self._done + 1)

    def _at_s(self, number: int) -> float:
        return self._grid.began_s + number * limits.TICK_S

    def _plan(self, number: int) -> None:
        self._cancel()
        self._due = number
        self._tick_at = self._timeline.after(
            self._at_s(number) - self._timeline.now_s,
            partial(self._tick, number),
            priority=self._grid.priority,
            sort=ROUTINE,
        )

    def _cancel(self) -> None:
        if self._tick_at:
            self._timeline.cancel(self._tick_at, sort=ROUTINE)
            self._tick_at = 0

    def _tick(self, number: int) -> None:
        self._done, self._tick_at = number, 0
        busy = self._look()
        if self._state is not _State.RUNS:
            return
        quiet_until_s = (
            self._clock.world_s(self._agent.quiet_until_s()) if self._rests and not busy else 0.0
        )
        following = math.floor(
            (min(quiet_until_s, self._timeline.now_s + REST_MAX_S) - self._grid.began_s)
            / limits.TICK_S
        )
        if following > number + 1:
            self._agent.rest(until_s=self._clock.local_s(self._at_s(following - 1)))
        self._plan(max(number + 1, following))
