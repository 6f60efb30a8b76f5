"""The connection between a node's agent and the coordinator: in order while it stands, gone with
all that is on its way when it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.model import limits
from outlast.model.messages import OnLine
from outlast.sim.draws import Draws
from outlast.sim.durations import LEAST_S
from outlast.sim.options import NODES_MAX
from outlast.sim.world.timeline import FIXED, NORMAL

if TYPE_CHECKING:
    from outlast.sim.world.node import Node
    from outlast.sim.world.world import World


class AgentLink:
    """`number` counts connections: what was sent over an older one never arrives.

    A cut is seen at once by the agent, later by the coordinator.
    """

    def __init__(self, world: World, node: Node, stream: Draws, *, latency_s: float) -> None:
        self._world = world
        self._node = node
        self._stream = stream
        self._most_s = max(latency_s, LEAST_S)
        self.number = 0
        self.connected = False
        self.connected_s = 0.0  # since then, if it is
        self.lags_until_s = 0.0  # messages wait for so long, both ways
        self._cut_until_s = 0.0
        self._arrives_s = {"up": 0.0, "down": 0.0}

    def up(self, message: OnLine) -> None:
        """From the agent."""
        if self.connected:
            self._carry("up", lambda: self._heard(message))

    def down(self, message: OnLine) -> None:
        """From the coordinator."""
        if self.connected:
            if self._node.fleet is not None:
                self._node.fleet.told(message)
            self._carry("down", lambda: self._node.on_line(message))

    def carry_at(self, way: str, message: OnLine, at_s: float) -> None:
        """A message of a heartbeat was sent in a stretch, and arrives after it."""
        up = way == "up"
        self._carry(way, lambda: self._heard(message) if up else self._node.on_line(message), at_s)

    def _heard(self, message: OnLine) -> None:
        if self._node.fleet is None:
            self._world.host.on_line(self._node.name, message)
        else:
            self._world.host.from_fleet(self._node.fleet, message)

    def _carry(self, way: str, act: Callable[[], None], taken_s: float | None = None) -> None:
        number = self.number
        if taken_s is None:
            taken_s = self._world.now_s + self._stream.between(LEAST_S, self._most_s)
        self._arrives_s[way] = at_s = max(taken_s, self._arrives_s[way], self.lags_until_s)

        def arrive() -> None:
            if self.number == number and self.connected:
                act()

        priority = self._node.place - NODES_MAX if self._world.begins and way == "up" else NORMAL
        self._world.timeline.at(at_s, arrive, priority=priority)

    def dial(self) -> None:
        """The agent connects, and tries again until it is."""
        if self.connected or not self._node.lives:
            return
        if (
            self._world.host.lives
            and self._world.now_s >= self._cut_until_s
            and not self._node.still.agent.shut
        ):
            self.number += 1
            self.connected, self.connected_s = True, self._world.now_s
            self._arrives_s = {"up": 0.0, "down": 0.0}
            self._node.on_connected()
        else:
            self._world.timeline.after(limits.RECONNECT_S, self.dial, sort=FIXED)

    def cut(self, for_s: float) -> None:
        self._cut_until_s = max(self._cut_until_s, self._world.now_s + for_s)
        self.drop()

    def drop(self) -> None:
        """This connection is over; the agent dials again."""
        if not self.connected:
            return
        self.connected = False
        self.number += 1
        number = self.number
        after = self._world.timeline.after
        after(self._stream.between(LEAST_S, self._most_s), self._node.on_disconnected)
        after(
            self._stream.between(LEAST_S, self._most_s),
            lambda: (
                self._world.host.on_disconnected(self._node.name) if self.number == number else None
            ),
        )
        after(limits.RECONNECT_S, self.dial, sort=FIXED)
