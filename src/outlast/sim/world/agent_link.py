"""The connection between a node's agent and the coordinator.

While it exists, messages arrive in order. When it breaks, all messages on their way are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from outlast.engine.cluster.agent_session import AgentSession
from outlast.engine.protocol.outputs import Output
from outlast.model import limits
from outlast.model.messages import LinkMessage
from outlast.sim.draws import Draws
from outlast.sim.durations import LEAST_S
from outlast.sim.options import NODES_MAX
from outlast.sim.shortcuts.identical_nodes import IdenticalNodes
from outlast.sim.world.chance import Chance
from outlast.sim.world.frame import Frame
from outlast.sim.world.standstill import StandstillFault
from outlast.sim.world.timeline import FIXED, NORMAL


class CoordinatorEnd(Protocol):
    """The coordinator's end of the links of all nodes."""

    lives: bool

    def on_link(self, node: str, message: LinkMessage) -> None: ...

    def from_twins(self, twins: IdenticalNodes, message: LinkMessage) -> None: ...

    def on_disconnected(self, node: str) -> None: ...


class AgentEnd(Protocol):
    """The agent's end of the link of one node."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> int: ...

    lives: bool

    @property
    def twins(self) -> IdenticalNodes | None: ...

    @property
    def still(self) -> StandstillFault: ...

    @property
    def agent_session(self) -> AgentSession | None: ...

    @property
    def now_s(self) -> float: ...

    def do(self, outputs: list[Output]) -> None: ...

    def on_connected(self) -> None: ...

    def on_disconnected(self) -> None: ...

    def on_link(self, message: LinkMessage) -> None: ...


@dataclass(slots=True)
class _Connection:
    """The present connection of an agent.

    number      counts connections
    since_s     when this connection was made; None if it is broken
    arrives_s   for each direction, when the newest message arrives
    """

    number: int = 0
    since_s: float | None = None
    arrives_s: dict[str, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})


class SimulatedAgentLink:
    """The link between one agent and the coordinator.

    A message that was sent over an older connection never arrives. The agent notices a cut at once,
    and the coordinator later.
    """

    def __init__(
        self,
        frame: Frame,
        node: AgentEnd,
        host: CoordinatorEnd,
        chance: Chance,
        stream: Draws,
    ) -> None:
        self._frame = frame
        self._host = host
        self._chance = chance
        self._node = node
        self._stream = stream
        self._line = _Connection()
        self.lags_until_s = 0.0  # until then, messages in both directions wait
        self._cut_until_s = 0.0

    @property
    def connected(self) -> bool:
        """Return True while there is a connection."""
        return self._line.since_s is not None

    @property
    def connected_s(self) -> float:
        """Return when the present connection was made; 0.0 if there is none."""
        return self._line.since_s or 0.0

    @property
    def _most_s(self) -> float:
        return max(self._frame.options.latency_s, LEAST_S)

    def up(self, message: LinkMessage) -> None:
        """Send a message of the agent to the coordinator."""
        if self.connected:
            self._carry("up", lambda: self._heard(message))

    def down(self, message: LinkMessage) -> None:
        """Send a message of the coordinator to the agent."""
        if self.connected:
            if self._node.twins is not None:
                self._node.twins.first_hears(message)
            self._carry("down", lambda: self._node.on_link(message))

    def carry_at(self, direction: str, message: LinkMessage, at_s: float) -> None:
        """Carry a message of a heartbeat that was sent in a stretch, and arrives after it."""
        up = direction == "up"
        self._carry(
            direction, lambda: self._heard(message) if up else self._node.on_link(message), at_s
        )

    def _heard(self, message: LinkMessage) -> None:
        if self._node.twins is None:
            self._host.on_link(self._node.name, message)
        else:
            self._host.from_twins(self._node.twins, message)

    def _carry(self, direction: str, act: Callable[[], None], taken_s: float | None = None) -> None:
        number = self._line.number
        if taken_s is None:
            taken_s = self._frame.now_s + self._stream.between(LEAST_S, self._most_s)
        self._line.arrives_s[direction] = at_s = max(
            taken_s, self._line.arrives_s[direction], self.lags_until_s
        )

        def arrive() -> None:
            if self._line.number == number and self.connected:
                act()

        priority = (
            self._node.place - NODES_MAX if self._chance.begins and direction == "up" else NORMAL
        )
        self._frame.timeline.at(at_s, arrive, priority=priority)

    def dial(self) -> None:
        """Let the agent connect, and try again until it is connected."""
        if self.connected or not self._node.lives:
            return
        if (
            self._host.lives
            and self._frame.now_s >= self._cut_until_s
            and not self._node.still.agent.shut
        ):
            self._line = _Connection(self._line.number + 1, self._frame.now_s)
            self._node.on_connected()
        else:
            self._frame.timeline.after(limits.RECONNECT_S, self.dial, sort=FIXED)

    def cut(self, for_s: float) -> None:
        self._cut_until_s = max(self._cut_until_s, self._frame.now_s + for_s)
        self.drop()

    def _ask_voters(self) -> None:
        """Let the agent ask the voters, with each heartbeat, until it is connected again.

        If the coordinator is dead, all voters miss it. If it lives, it has a majority, and only
        this node is cut off.
        """
        session, now_s = self._node.agent_session, self._node.now_s
        if self.connected or not self._node.lives or session is None:
            return
        self._frame.timeline.after(self._frame.options.beat_s, self._ask_voters, sort=FIXED)
        if not self._host.lives and self._frame.now_s >= self._cut_until_s:
            self._node.do(session.prolong_lease(asked_s=now_s, now_s=now_s))

    def drop(self) -> None:
        """End this connection. The agent dials again."""
        if not self.connected:
            return
        self._line.since_s = None
        self._line.number += 1
        number = self._line.number
        after = self._frame.timeline.after
        after(self._stream.between(LEAST_S, self._most_s), self._node.on_disconnected)
        after(
            self._stream.between(LEAST_S, self._most_s),
            lambda: (
                self._host.on_disconnected(self._node.name) if self._line.number == number else None
            ),
        )
        after(limits.RECONNECT_S, self.dial, sort=FIXED)
        if self._frame.options.voters:
            after(self._frame.options.beat_s, self._ask_voters, sort=FIXED)
