"""Compare the messages of a node's processes with those that its agent passes on.

This is for a node that has a link to the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outlast.engine.cluster.agent_session import AgentSession
from outlast.engine.coordinator.members import Roster
from outlast.model.messages import (
    Committed,
    Enrol,
    Finished,
    Inventory,
    Joined,
    Registered,
    Underway,
)
from outlast.sim.rules.final_observations import NodeStaysOut
from outlast.sim.rules.observations import Enrolled, SharedMessageLate
from outlast.sim.world.agent_link import SimulatedAgentLink
from outlast.sim.world.frame import Frame
from outlast.sim.world.processes import SimulatedProcess
from outlast.sim.world.standstill import StandstillFault
from outlast.sim.world.store import Store

# messages that the ranks of a node send at about the same time
SHARED = (Registered, Inventory, Underway, Joined, Committed, Finished)
# when a rank has sent one of these, the process before it in this rank does not count any more
HERE = (Joined, Committed)


class Speaker(Protocol):
    """The node whose messages are compared."""

    @property
    def name(self) -> str: ...

    lives: bool

    @property
    def processes(self) -> dict[int, SimulatedProcess]: ...

    @property
    def doomed(self) -> set[int]: ...

    @property
    def agent_session(self) -> AgentSession | None: ...

    @property
    def link(self) -> SimulatedAgentLink: ...

    @property
    def still(self) -> StandstillFault: ...

    def alive(self) -> list[SimulatedProcess]: ...


@dataclass(frozen=True, slots=True)
class _Enrolled:
    """The session in which the agent has enrolled.

    The agent knows neither the workers that had ended before that, nor the port of an earlier
    store.
    """

    session: int = 0
    ended: frozenset[int] = frozenset()
    port: int = 0


class MessageWatch:
    """Compare the messages of a node's processes with those that its agent passes on.

    `spawns` and `spawned` follow a process that the agent has ordered. `hears` follows its
    messages, and `waits` follows the timer by which the agent waits for the same from others.
    """

    def __init__(
        self, frame: Frame, node: Speaker, store: Store, *, roster: Callable[[], Roster]
    ) -> None:
        self._frame = frame
        self._store = store
        self._roster = roster
        self._node = node
        self._ordered: set[int] = set()  # workers that are being started
        self._speaks: tuple[int, ...] = ()  # the workers that sent the last message
        self._spoken: set[int] = set()  # the workers that sent it since the agent waits for more
        self._all_have = False  # whether all workers here have sent it
        self._enrolled = _Enrolled()
        self._empty_s: float | None = None  # since when all given-up processes have ended

    def spawns(self, worker: int) -> None:
        self._ordered.add(worker)

    def spawned(self, worker: int) -> None:
        self._ordered.discard(worker)

    def hears(self, workers: tuple[int, ...], message: object) -> None:
        """Note a message of workers, just before the agent gets it."""
        if isinstance(message, SHARED):
            self._speaks = workers
            self._speak({*self._spoken, *workers})

    def waits(self) -> None:
        """Note that the agent keeps a message for a short time, until others send the same."""
        self._speak(set(self._speaks))

    def _speak(self, workers: set[int]) -> None:
        roster, self._spoken, doomed = self._roster(), workers, self._node.doomed
        here = [
            p
            for p in self._node.processes.values()
            if (p.alive or not p.reaped) and p.worker not in doomed
        ]
        # the agent does not know its end yet
        taken = any(
            p.rank < 0 and (member := roster.of(p.worker)) is not None and member.rank >= 0
            for p in here
        )
        self._all_have = (
            not taken
            and not self._ordered
            and workers.issuperset(p.worker for p in here if p.rank >= 0)
        )

    def rings(self) -> None:
        """Note that this time is over."""
        agent_session = self._node.agent_session
        if agent_session is not None and not agent_session.fenced and self._all_have:
            self._frame.see(SharedMessageLate(self._node.name, tuple(sorted(self._spoken))))

    def ends(self) -> None:
        """Note that the agent knows the end of a process."""
        agent_session = self._node.agent_session
        if (
            agent_session is not None
            and agent_session.fenced
            and not self._node.alive()
            and self._empty_s is None
        ):
            self._empty_s = self._frame.now_s

    def enrols(self, enrol: Enrol) -> None:
        self._empty_s = None
        processes = self._node.processes
        store = self._store
        if enrol.session != self._enrolled.session:  # it is a new session without memory
            ended = frozenset(p.worker for p in processes.values() if not p.alive)
            self._enrolled = _Enrolled(enrol.session, ended, store.port)
        housed = {one.worker for one in enrol.housed}
        generations = {
            one.worker: 0 if one.plan is None else one.plan.generation for one in enrol.housed
        }
        here = [one for one in enrol.housed if any(isinstance(said, HERE) for said in one.said)]
        newest = {
            rank: max(generations[one.worker] for one in here if one.rank == rank)
            for rank in {one.rank for one in here}
        }
        over = tuple(
            one.worker
            for one in enrol.housed
            if one.exited is not None
            and one.rank >= 0
            and 0 < generations[one.worker] < newest.get(one.rank, 0)
        )
        unnamed = tuple(
            p.worker
            for p in processes.values()
            if p.worker not in housed | self._enrolled.ended and (p.alive or self._is_last(p))
        )
        lost = enrol.store is not None and enrol.store.port == store.port and not store.lives
        untold = (
            enrol.store is None
            and store.lives
            and store.home is not None
            and store.home.name == self._node.name
            and store.port > self._enrolled.port
        )
        self._frame.see(Enrolled(self._node.name, over, unnamed, lost, untold))

    def _is_last(self, process: SimulatedProcess) -> bool:
        """Return True if the agent knows that the process was the last one in its rank here.

        That is, the process has ended, and no other one has taken its rank.
        """
        return (
            process.reaped
            and process.rank >= 0
            and all(
                p.rank != process.rank or p.machine.generation <= process.machine.generation
                for p in self._node.processes.values()
            )
        )

    def over(self) -> None:
        """Note that the run is over."""
        link, node = self._node.link, self._node
        if (
            self._empty_s is not None
            and node.lives
            and link.connected
            and not node.still.agent.shut
        ):
            self._frame.see(
                NodeStaysOut(node.name, self._frame.now_s - max(self._empty_s, link.connected_s))
            )
