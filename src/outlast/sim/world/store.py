"""The store that groups are built with, wherever it is hosted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.model.messages import StoreLost, StoreUp
from outlast.sim.draws import Stream
from outlast.sim.world.processes import PeerFailure

if TYPE_CHECKING:
    from outlast.sim.world.node import Node
    from outlast.sim.world.world import World


class Store:
    """`port` is its number: each host has another."""

    def __init__(self, world: World, kernel: Stream) -> None:
        self._world = world
        self._kernel = kernel
        self.port = 0
        self.lives = False
        self.home: Node | None = None

    def host(self, node: Node) -> None:
        """An agent starts a host. It says so once that is up."""
        self.port += 1
        port = self.port
        self._world.timeline.after(self._kernel.between(0.005, 0.05), lambda: self._up(node, port))

    def _up(self, node: Node, port: int) -> None:
        if port == self.port and node.lives:
            self.lives, self.home = True, node
            node.heard_by_agent(StoreUp("here", port))

    def lose(self, *, with_node: bool = False) -> None:
        """Who is on its way into a group raises; groups that stand need no store."""
        if not self.lives or self.home is None:
            return
        self.lives = False
        if not with_node:
            self.home.heard_by_agent(StoreLost("it ended"))
        for process in dict.fromkeys(one.unit for one in self._world.alive()):
            if process.waits is not None and process.waits[0] == "build":
                self._world.collectives.wake(process, PeerFailure("the store is gone"))
