"""The clock of one node, which has an offset and a rate of its own."""

from __future__ import annotations

from outlast.sim.world.timeline import Timeline


class NodeClock:
    """Times of the node are `local`, those of the world are not."""

    def __init__(self, timeline: Timeline, offset_s: float, rate: float) -> None:
        self.rate = rate
        self._timeline = timeline
        self._offset_s = offset_s

    @property
    def now_s(self) -> float:
        """Return what the clock says now."""
        return self._timeline.now_s * self.rate + self._offset_s

    def local_s(self, at_s: float) -> float:
        """Return what the clock says when the world's says `at_s`."""
        return at_s * self.rate + self._offset_s

    def world_s(self, local_s: float) -> float:
        """Return what the world's clock says when this one says `local_s`."""
        return (local_s - self._offset_s) / self.rate
