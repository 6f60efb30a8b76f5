"""The clock of one node, which has an offset and a rate of its own."""

from __future__ import annotations

from outlast.sim.world.timeline import Timeline


class NodeClock:
    """The clock of a node. Its times have `local` in their names; those of the world do not."""

    def __init__(self, timeline: Timeline, offset_s: float, rate: float) -> None:
        self.rate = rate
        self._timeline = timeline
        self._offset_s = offset_s

    @property
    def now_s(self) -> float:
        """Return the present time of this clock."""
        return self._timeline.now_s * self.rate + self._offset_s

    def local_s(self, at_s: float) -> float:
        """Return the time of this clock when that of the world is `at_s`."""
        return at_s * self.rate + self._offset_s

    def world_s(self, local_s: float) -> float:
        """Return the time of the world's clock when that of this one is `local_s`."""
        return (local_s - self._offset_s) / self.rate
