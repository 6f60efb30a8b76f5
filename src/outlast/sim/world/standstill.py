"""Let a node's agent, or a whole node, stand still for a while. Afterwards everything is late.

Its clock goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from outlast.engine.cluster.agent_session import AgentSession
from outlast.sim.draws import Stream
from outlast.sim.world.agent_ticks import AgentTicks
from outlast.sim.world.frame import Frame
from outlast.sim.world.processes import SimulatedProcess

# after its agent goes on, processes on a node without a lease are killed within this time
WOKEN_S = 0.1
APART_S = 0.002  # the agent and the processes of a node go on at times that differ by up to this


class Gate:
    """A gate. While it is shut, events wait. They happen in order once it is opened."""

    def __init__(self) -> None:
        self.shut = False
        self.until_s = 0.0
        self._held: list[Callable[[], None]] = []

    def through(self, act: Callable[[], None]) -> None:
        if self.shut:
            self._held.append(act)
        else:
            act()

    def drop(self, until_s: float) -> None:
        self.shut, self.until_s = True, max(self.until_s, until_s)

    def lift(self) -> None:
        self.shut = False
        held, self._held = self._held, []
        for act in held:
            self.through(act)

    def forget(self) -> None:
        self.shut, self._held = False, []


class Sleeper(Protocol):
    """The node that stands still."""

    lives: bool

    @property
    def ticks(self) -> AgentTicks: ...

    @property
    def now_s(self) -> float: ...

    @property
    def agent_session(self) -> AgentSession | None: ...

    def alive(self) -> list[SimulatedProcess]: ...


class StandstillFault:
    """Let the agent of a node, or the whole node, stand still.

    The gate `agent` holds back messages to the agent, and `kernel` all other events of the node.
    """

    def __init__(
        self, frame: Frame, node: Sleeper, stream: Stream, *, isolate: Callable[[float], None]
    ) -> None:
        self.agent, self.kernel = Gate(), Gate()
        self._frame = frame
        self._isolate = isolate  # separate the node from all others for a number of seconds
        self._node = node
        self._stream = stream
        self._went_on_s = 0.0

    def stop_agent(self, for_s: float) -> None:
        """Stop the agent. Its workers go on, but their messages wait."""
        if not self._node.lives:
            return
        self.agent.drop(self._frame.now_s + for_s)
        self._node.ticks.hold()
        self._frame.timeline.after(for_s, self._agent_goes_on)

    def freeze(self, for_s: float) -> None:
        """Stop the node, so that no message reaches it.

        It is drawn whether the agent or the workers go on first.
        """
        if not self._node.lives:
            return
        self._isolate(for_s)
        self.kernel.drop(self._frame.now_s + for_s)
        apart_s = self._stream.between(-APART_S, APART_S)
        self._frame.timeline.after(for_s + max(0.0, apart_s), self._kernel_goes_on)
        self.stop_agent(for_s + max(0.0, -apart_s))

    @property
    def outlives_lease(self) -> bool:
        """Return True if its processes may live although its lease has run out.

        Its agent could not kill them. The processes do not vote, seal or restore any more
        (WorkerMachine.may_act).
        """
        late = self.agent.shut or self._frame.now_s < self._went_on_s + WOKEN_S
        return (
            late
            and self._node.agent_session is not None
            and self._node.now_s >= self._node.agent_session.lent_until_s
        )

    def lose_power(self) -> None:
        self.agent.forget()
        self.kernel.forget()

    def _agent_goes_on(self) -> None:
        if (
            not self.agent.shut
            or self._frame.now_s < self.agent.until_s - 1e-9
            or self._frame.end is not None
        ):
            return
        self._went_on_s = self._frame.now_s
        self.agent.lift()
        self._node.ticks.go_on()

    def _kernel_goes_on(self) -> None:
        if (
            not self.kernel.shut
            or self._frame.now_s < self.kernel.until_s - 1e-9
            or self._frame.end is not None
        ):
            return
        self.kernel.lift()
        for process in dict.fromkeys(one.unit for one in self._node.alive()):
            if not process.stopped:
                process.catch_up()
