"""The store that groups are built with, wherever it is hosted."""

from __future__ import annotations

from collections.abc import Callable

from outlast.model.messages import StoreLost, StoreUp
from outlast.sim.draws import Stream
from outlast.sim.world.collectives import Collectives
from outlast.sim.world.processes import Home, PeerFailure, SimulatedProcess
from outlast.sim.world.timeline import Timeline


class Store:
    """The store that groups are built with. One node hosts it at a time.

    `port` is its number. Each host of a store has another one.
    """

    def __init__(
        self,
        timeline: Timeline,
        collectives: Collectives,
        kernel: Stream,
        *,
        alive: Callable[[], list[SimulatedProcess]],
    ) -> None:
        self._timeline = timeline
        self._collectives = collectives
        self._alive = alive
        self._kernel = kernel
        self.port = 0
        self.lives = False
        self.home: Home | None = None

    def host(self, node: Home) -> None:
        """Let an agent start a host. It reports the store once it is up."""
        self.port += 1
        port = self.port
        self._timeline.after(self._kernel.between(0.005, 0.05), lambda: self._up(node, port))

    def _up(self, node: Home, port: int) -> None:
        if port == self.port and node.lives:
            self.lives, self.home = True, node
            node.heard_by_agent(StoreUp("here", port))

    def lose(self, *, with_node: bool = False) -> None:
        """End the store. Ranks that are joining a group raise; existing groups need no store."""
        if not self.lives or self.home is None:
            return
        self.lives = False
        if not with_node:
            self.home.heard_by_agent(StoreLost("it ended"))
        for process in dict.fromkeys(one.unit for one in self._alive()):
            if process.waits is not None and process.waits[0] == "build":
                self._collectives.wake(process, PeerFailure("the store is gone"))
