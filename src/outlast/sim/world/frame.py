"""The frame of a simulated run, which every part of the world is given.

Example
    frame = Frame(options, began_s=100.0)
    frame.timeline.after(2.0, lambda: frame.say("two seconds are over"))
    frame.see(StepDone(...))  # the rules look at it

The frame has the options, the clock, the trace and the rules. It knows no part of the world. So a
part that is given only the frame cannot change any other part.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from outlast.engine.protocol.outputs import End
from outlast.sim.options import Options
from outlast.sim.rules.checkers import Checkers
from outlast.sim.rules.observations import Observation
from outlast.sim.world.timeline import Timeline
from outlast.sim.world.trace import Trace


class Frame:
    """Options, clock, trace and rules of one simulated run.

    end        how the run ended; None while it goes on
    untold     the nodes that the trace does not show
    bound_s    the time at which the world gives up
    also_see   parts of the world that get each observation before the rules
    """

    def __init__(self, options: Options, *, began_s: float) -> None:
        self.options = options
        self.timeline = Timeline(began_s=began_s)
        self.trace = Trace(began_s=began_s)
        self.checkers = Checkers()
        self.end: End | None = None
        self.untold: frozenset[str] = frozenset()
        self.bound_s = math.inf
        self.also_see: list[Callable[[Observation], None]] = []
        self._began_s = began_s

    @property
    def now_s(self) -> float:
        """Return the time by the world's clock."""
        return self.timeline.now_s

    @property
    def age_s(self) -> float:
        """Return the seconds since the run began."""
        return self.timeline.now_s - self._began_s

    def see(self, seen: Observation) -> None:
        """Let the rules look at what has happened just now."""
        for look in self.also_see:
            look(seen)
        self.checkers.see(self.timeline.now_s - self._began_s, seen)

    def say(self, what: str) -> None:
        """Write a line into the trace."""
        self.trace.line(self.timeline.now_s, what)
