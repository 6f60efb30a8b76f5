"""The parts of a node: its fixed properties, its memory, and its agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from outlast.engine.agent.agent import Agent
from outlast.engine.agent.worker_watch import Reading
from outlast.engine.cluster.agent_session import AgentSession, NodeOffer
from outlast.engine.durable import Rollbacks, newest_common
from outlast.model.messages import Images
from outlast.sim.draws import Draws, ProcessDraws
from outlast.sim.options import Options
from outlast.sim.shortcuts.identical_nodes import IdenticalNodes
from outlast.sim.world.agent_ticks import AgentTicks
from outlast.sim.world.copy_sending import SimulatedCopies
from outlast.sim.world.links import Links
from outlast.sim.world.message_watch import MessageWatch
from outlast.sim.world.processes import SimulatedProcess, Thread

PINGS_KEPT = 4
Script = Callable[
    [Any, SimulatedProcess], Thread
]  # it takes the parts of the world that the script uses


@dataclass(frozen=True, slots=True)
class NodeGiven:
    """The properties of a node that never change.

    twins      the nodes that this one is simulated for; None if only for itself
    drawn_at   the place in the pool at which the draws of its ranks begin
    luck       the draws of nodes that draw alike
    kernel     a stream for the effects of its kernel
    rests      True: ticks of the agent that change nothing are left out
    """

    name: str
    place: int
    script: Script
    links: Links
    kernel: Draws
    twins: IdenticalNodes | None
    drawn_at: int
    luck: ProcessDraws | None
    rests: bool


@dataclass(slots=True)
class NodeMemory:
    """The contents of a node until it loses power: processes, slots and notes of its agent.

    slots     for each rank that was here, the step in each of its slots
    kept      the same for the copies that all ranks go on from if all are lost
    copies    copies or parity of images that ranks of other nodes have sealed
    rollbacks which steps were rolled back, as the node's writer has heard
    heard_s   when each worker last printed something
    doomed    workers that the agent has killed, even if they were not forked yet
    pinged    when each worker was asked whether it lives
    """

    processes: dict[int, SimulatedProcess] = field(default_factory=dict)
    slots: dict[int, dict[int, int]] = field(default_factory=dict)
    kept: dict[int, dict[int, int]] = field(default_factory=dict)
    copies: SimulatedCopies = field(default_factory=SimulatedCopies)
    rollbacks: Rollbacks = field(default_factory=Rollbacks)
    heard_s: dict[int, float] = field(default_factory=dict)
    doomed: set[int] = field(default_factory=set)
    pinged: dict[int, deque[float]] = field(default_factory=dict)

    def lose_power(self) -> None:
        """Lose the images and copies in memory, and the process that writes checkpoints."""
        self.rollbacks = Rollbacks()
        self.slots.clear()
        self.kept.clear()
        self.copies.clear()

    def images(self) -> tuple[Images, ...]:
        """Return the images that are sealed here, by rank, the newest step first."""
        return tuple(
            Images(rank, tuple(sorted(slots.values(), reverse=True)))
            for rank, slots in sorted(self.slots.items())
            if slots
        )

    def pings(self, worker: int, *, now_s: float) -> None:
        """Note that the agent asks a worker whether it lives."""
        self.pinged.setdefault(worker, deque(maxlen=PINGS_KEPT)).append(now_s)

    def pinged_since(self, worker: int, since_s: float) -> int:
        """Return how often a worker was asked since then."""
        return sum(at_s > since_s for at_s in self.pinged.get(worker, ()))


@dataclass(frozen=True, slots=True)
class AgentSeat:
    """The agent of one boot of the node, and what belongs to it.

    `agent_session` is its session with the coordinator, if there are several nodes.
    """

    number: int
    agent: Agent
    ticks: AgentTicks
    words: MessageWatch
    agent_session: AgentSession | None

    @property
    def ear(self) -> Agent | AgentSession:
        """Return the receiver of the node's events."""
        return self.agent if self.agent_session is None else self.agent_session


def offer_of(name: str, place: int, options: Options) -> NodeOffer:
    """Return what a node offers to the run. Its images are served at its name."""
    serves = name if options.serves_images else ""
    domain = options.domain_of(place)
    return NodeOffer(name, options.ranks_per_node, serves=serves, domain=domain)


def readings_of(
    processes: Mapping[int, SimulatedProcess], agent: Agent, *, now_s: float
) -> tuple[dict[int, Reading], bool]:
    """Return the agent's readings of each process, and whether any waits for a processor."""
    readings: dict[int, Reading] = {}
    unit: SimulatedProcess | None = None
    found: Reading | None = None
    starving = [one for one in processes.values() if not one.reaped and one.starves]
    for process in processes.values():
        if not process.reaped:
            # the reading of a mate is that of its stand-in
            if found is None or process.stand_in is None or process.stand_in is not unit:
                unit, found = process.stand_in, process.reading()
            readings[process.worker] = found
    for process in starving:
        closely = agent.looks_closely(process.worker, now_s=now_s)
        starved_s = process.starved_s(closely=closely, now_s=now_s)
        readings[process.worker] = replace(readings[process.worker], starved_s=starved_s)
    return readings, bool(starving)


def kept_by_all(kept: Mapping[int, Mapping[int, int]], *, ranks: int) -> int:
    """Return the newest step of which all ranks have sealed a copy; 0 if there is none."""
    if not kept:
        return 0
    steps = [tuple(kept.get(rank, {}).values()) for rank in range(ranks)]
    return newest_common(steps, is_whole=lambda step: True) or 0
