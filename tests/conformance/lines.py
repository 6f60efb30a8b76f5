"""Two connections between an agent and the coordinator under one handle: the simulated link, and
sockets with the coordinator's listener for agents at one end.

Both ends write down what happens there: ("connected",), ("broken",), or a message. The agent's
first word on each connection is its Enrol.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Protocol, cast

from outlast.engine.agent.agent import Agent
from outlast.engine.cluster.agent_session import AgentSession, NodeOffer
from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.protocol.outputs import Output, SendOverLink
from outlast.model.messages import Enrol, Message
from outlast.runtime.coordinator.agent_listener import AgentListener
from outlast.runtime.loop import Loop
from outlast.runtime.network.channel import Channel
from outlast.sim.options import Options
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World

NAME = "node-0"
CONNECTED, BROKEN = ("connected",), ("broken",)
Happening = Any


def enrol() -> Enrol:
    agent_session = AgentSession(Agent(now_s=0.0), offer=NodeOffer(NAME, 1), beat_s=1.0)
    outputs = agent_session.on_connected(images=(), transfer=(), session=1, now_s=0.0)
    (line,) = (one for one in outputs if isinstance(one, SendOverLink))
    return cast(Enrol, line.message)


class Wire(Protocol):
    agent: list[Happening]
    coordinator: list[Happening]

    def dial(self) -> None:
        """The agent connects, unless it is."""

    def up(self, message: Message) -> None: ...
    def down(self, message: Message) -> None: ...

    def a_little(self) -> None:
        """Something of what is on its way may arrive."""

    def cut(self, share: float) -> None:
        """The connection breaks. Of what is on its way, up to `share` may still arrive."""

    def settle(self) -> None:
        """All that will ever happen of itself has happened."""

    def close(self) -> None: ...


class SimulatedWire:
    def __init__(self) -> None:
        self.agent: list[Happening] = []
        self.coordinator: list[Happening] = []
        self.lives = True  # as the coordinator's end of the link: there is one to connect to
        self._world = World(
            options=Options(ranks=2, nodes=2, latency_s=0.01), script=script_of("in_place")
        )
        self._node = node = self._world.nodes[0]
        node.link._host = self
        node.on_connected = self._connected  # type: ignore[method-assign]
        node.on_disconnected = lambda: self.agent.append(BROKEN)  # type: ignore[method-assign]
        node.on_link = self.agent.append  # type: ignore[method-assign,assignment]

    def _connected(self) -> None:
        self.agent.append(CONNECTED)
        self._node.link.up(enrol())

    def on_link(self, node: str, message: Message) -> None:
        assert node == NAME
        self.coordinator.append(message)

    def on_disconnected(self, node: str) -> None:
        assert node == NAME
        self.coordinator.append(BROKEN)

    def dial(self) -> None:
        self._node.link._cut_until_s = 0.0
        self._node.link.dial()

    def up(self, message: Message) -> None:
        self._node.link.up(cast(Any, message))

    def down(self, message: Message) -> None:
        self._node.link.down(cast(Any, message))

    def a_little(self) -> None:
        self._run(0.004)

    def cut(self, share: float) -> None:
        """All that is on its way is lost: the least that may arrive.

        Until `dial` there is no way to connect.
        """
        self._node.link.cut(for_s=1e6)

    def settle(self) -> None:
        self._run(0.4)

    def _run(self, for_s: float) -> None:
        timeline = self._world.timeline
        until_s = timeline.now_s + for_s
        while timeline.step(until_s=until_s):
            pass
        timeline.now_s = until_s

    def close(self) -> None:
        pass


class RealWire:
    """Between the agent's channel and the listener stands a relay, which can stop in the middle of
    a frame.
    """

    def __init__(self) -> None:
        self.agent: list[Happening] = []
        self.coordinator: list[Happening] = []
        self._loop = Loop()
        self._agent_listener = AgentListener(
            self._loop, cast(CoordinatorSessions, self), peers=1, owner=lambda output: None
        )
        self._address = self._agent_listener.open()
        self._channel: Channel | None = None
        self._relay: tuple[socket.socket, socket.socket] | None = None

    def on_link(self, node: str, message: Message, *, now_s: float) -> list[Output]:
        assert node == NAME
        self.coordinator.append(message)
        return []

    def on_disconnected(self, node: str) -> list[Output]:
        assert node == NAME
        self.coordinator.append(BROKEN)
        return []

    def dial(self) -> None:
        if self._channel is not None:
            return
        ours, theirs = socket.socketpair()
        beyond = socket.create_connection(self._address)
        for one in (theirs, beyond):
            one.setblocking(False)
        self._relay = (theirs, beyond)
        self._channel = Channel(
            self._loop, ours, on_message=self.agent.append, on_close=self._closed
        )
        self.agent.append(CONNECTED)
        self._channel.send(enrol())

    def _closed(self, reason: str) -> None:
        self._channel = None
        self.agent.append(BROKEN)

    def up(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def down(self, message: Message) -> None:
        self._agent_listener.carry_out([SendOverLink(cast(Any, message), NAME)])

    def a_little(self) -> None:
        self._pass_on(4_096)
        self._loop.turn(0)

    def cut(self, share: float) -> None:
        if self._relay is not None:
            self._pass_on(int(share * 300_000))
            for one in self._relay:
                one.close()
            self._relay = None
            self._loop.turn(0)

    def settle(self) -> None:
        for _ in range(400):
            moved = self._pass_on(1 << 20)
            self._loop.turn(0.002)
            if not moved and (self._relay is None) == (self._channel is None) and self._idle():
                return

    def _idle(self) -> bool:
        before = len(self.agent), len(self.coordinator)
        for _ in range(3):
            self._loop.turn(0.002)
        return before == (len(self.agent), len(self.coordinator)) and not self._pass_on(1 << 20)

    def _pass_on(self, most: int) -> int:
        if self._relay is None:
            return 0
        moved = 0
        for source, target in (self._relay, self._relay[::-1]):
            with contextlib.suppress(BlockingIOError):
                data = source.recv(most)
                moved += len(data)
                target.setblocking(True)  # what was taken is handed on whole; the other end reads
                while data:
                    target.settimeout(0.001)
                    with contextlib.suppress(TimeoutError):
                        data = data[target.send(data) :]
                        continue
                    self._loop.turn(0)
                target.setblocking(False)
        return moved

    def close(self) -> None:
        self.cut(0.0)
        if self._channel is not None:
            self._channel.close()
        self._agent_listener.close()
        self._loop.close()
