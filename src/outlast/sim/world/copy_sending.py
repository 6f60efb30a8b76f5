"""Send copies and parity of images of sharded state to other nodes, and let ranks wait for them.

This replaces `CopySender` and `CopyKeeper` of the runtime. A copy may arrive after its sender has
died, because its bytes were on their way.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Protocol

from outlast.engine.protocol.outputs import SendOut
from outlast.model.messages import CopyKept, FromAgent, Images, Regroup, Share
from outlast.model.terms import Cause, Phase
from outlast.sim.world.parity_on_node import SimulatedRows
from outlast.sim.world.paths import Paths
from outlast.sim.world.processes import Home, PeerFailure, SimulatedProcess, Thread
from outlast.sim.world.timeline import Timeline

COPY_S, COPY_MOST_S = 0.0005, 0.02  # the shortest and longest time for which a copy is on its way
LOOK_S = 0.02  # a rank that waits checks this often whether it has to leave
KEPT_COUNT = 2  # number of copies that are kept for one rank

_Target = tuple[str, Share | None]  # a node, and the part that it gets; None: the whole image


class SimulatedCopies:
    """The copies that one node keeps for ranks of others, until it loses power."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[int, int]] = {}  # rank -> step -> generation of its sender
        # rank -> the newest generation in which it has sent, and its first step
        self._generations: dict[int, tuple[int, int]] = {}
        self.rows = SimulatedRows()  # of parity, which is kept instead of copies

    def put(self, rank: int, generation: int, step: int) -> tuple[CopyKept, ...] | None:
        """Store a copy, and return the agent's reports; None if the sender was given up."""
        known, first = self._generations.get(rank, (0, 0))
        if generation < known:
            return None
        said: tuple[CopyKept, ...] = ()
        if generation > known:
            self._generations[rank] = generation, step
        elif step > first:
            said = self._drop_stale(generation, step)
        mine = {one: made for one, made in self._steps.get(rank, {}).items() if one < step}
        mine[step] = generation
        self._steps[rank] = dict(sorted(mine.items())[-KEPT_COUNT:])
        return (*said, CopyKept(rank, generation, self.steps(rank)))

    def _drop_stale(self, generation: int, step: int) -> tuple[CopyKept, ...]:
        """Give back what no rank has sent here in this generation."""
        stale = {
            rank: self._generations.get(rank, (0, 0))[0]
            for rank, steps in self._steps.items()
            if self._generations.get(rank, (0, 0))[0] < generation and max(steps) < step
        }
        for rank in stale:
            del self._steps[rank]
        return tuple(CopyKept(rank, known, ()) for rank, known in sorted(stale.items()))

    def steps(self, rank: int) -> tuple[int, ...]:
        """Return the steps of which copies for one rank are here, the newest first."""
        return tuple(sorted(self._steps.get(rank, {}), reverse=True))

    def made_in(self, rank: int, step: int) -> int | None:
        """Return the generation in which a copy was sent; None if it is not here."""
        return self._steps.get(rank, {}).get(step)

    def kept_images(self) -> tuple[Images, ...]:
        """Return all copies that are here, for a coordinator that does not know them."""
        return tuple(Images(rank, self.steps(rank)) for rank in sorted(self._steps))

    def clear(self) -> None:
        """Lose everything, because the node has no power."""
        self._steps.clear()
        self.rows.clear()
        self._generations.clear()


class NodesOfWorld(Protocol):
    """The nodes of the world."""

    @property
    def nodes(self) -> Iterable[Home]: ...


class Way(Protocol):
    """The world, as far as a sender of copies uses it."""

    @property
    def population(self) -> NodesOfWorld: ...

    @property
    def paths(self) -> Paths: ...

    @property
    def timeline(self) -> Timeline: ...

    @property
    def now_s(self) -> float: ...

    def lasting(self, process: SimulatedProcess, least_s: float, most_s: float) -> float: ...

    def enter(
        self, process: SimulatedProcess, phase: Phase, *, cause: Cause | None = None
    ) -> None: ...


class CopySending:
    """The copies of one rank's images on their way to the nodes that its plan names."""

    def __init__(self, world: Way, process: SimulatedProcess) -> None:
        self._world = world
        self._p = process
        self._plan: Regroup | None = None
        self._sent = -1
        # the nodes to which the image of `_sent` has to go and has not come, and the part that each
        # gets; None: the whole image
        self._missing: set[_Target] = set()
        self._tries_s = 0.0  # when what is on its way has arrived, or is known to be lost

    @property
    def is_on(self) -> bool:
        """Return whether copies or parity are made in this generation."""
        return self._plan is not None and bool(self._plan.keepers or self._plan.shares)

    def follow(self, plan: Regroup) -> None:
        """Begin to send where `plan` says."""
        self._plan, self._sent, self._missing = plan, -1, set()

    def send(self, step: int) -> None:
        """Send the image of `step`, unless that was done."""
        if self._plan is not None and self.is_on and step > self._sent:
            self._sent, self._missing = step, {(share.at, share) for share in self._plan.shares}
            self._missing |= {(keeper, None) for keeper in self._plan.keepers}
            self._try()

    def wait(self) -> Thread:
        """Wait until the newest image has arrived wherever it has to go."""
        if not self.is_on or not self._missing:
            return
        phase, cause = self._p.beacon.phase, self._p.book.cause
        self._world.enter(self._p, Phase.CHECKPOINT, cause=Cause.STALL)
        while self._missing:
            yield "sleep", LOOK_S
            if self._p.machine.broken or self._p.group is None:
                raise PeerFailure("the generation is over")
            if self._world.now_s >= self._tries_s:
                self._try()
        self._world.enter(self._p, phase, cause=cause)

    def _try(self) -> None:
        plan, step, world = self._plan, self._sent, self._world
        assert plan is not None, "without a plan nothing is sent"
        self._tries_s = world.now_s
        nodes = {node.name: node for node in world.population.nodes}
        for target in sorted(self._missing, key=_order):
            takes_s = world.lasting(self._p, COPY_S, COPY_MOST_S)
            self._tries_s = max(self._tries_s, world.now_s + takes_s + LOOK_S)
            arrives = functools.partial(self._arrives, nodes[target[0]], plan, step, target)
            world.timeline.after(takes_s, arrives)

    def _arrives(self, keeper: Home, plan: Regroup, step: int, target: _Target) -> None:
        parted = self._world.paths.heals_s(self._p.node, keeper) > self._world.now_s
        if keeper.lives and not parted:
            keeper.still.agent.through(lambda: self._is_put(keeper, plan, step, target))

    def _is_put(self, keeper: Home, plan: Regroup, step: int, target: _Target) -> None:
        if not keeper.lives:
            return
        share = target[1]
        said: Iterable[FromAgent] | None
        if share is None:
            said = keeper.copies.put(plan.rank, plan.generation, step)
        else:
            said = keeper.copies.rows.put(share, plan.rank, plan.generation, step)
        if said is None:
            return  # the sender was given up
        for one in said:
            keeper.heard_by_agent(one)
        if plan is self._plan and step == self._sent:
            self._missing.discard(target)


def _order(target: _Target) -> tuple[int, int, str]:
    node, share = target
    return (-1, -1, node) if share is None else (share.stripe, share.row, node)


def send_out(world: Way, process: SimulatedProcess, asked: SendOut) -> None:
    """Send the image of a rank that stands still to the node that takes it over.

    It is tried until it has arrived, or until the next generation begins.
    """
    machine, node, rank = process.machine, process.node, process.rank
    taker = next(one for one in world.population.nodes if one.name == asked.at)
    arrived = False

    def put() -> None:
        nonlocal arrived
        said = taker.copies.put(rank, asked.generation, asked.step) if taker.lives else None
        if said is not None:
            arrived = True
            for one in said:
                taker.heard_by_agent(one)

    def arrives() -> None:
        if taker.lives and world.paths.heals_s(node, taker) <= world.now_s:
            taker.still.agent.through(put)

    def send() -> None:
        stands = process.alive and machine.broken and machine.generation == asked.generation
        if arrived or not stands:
            return
        takes_s = world.lasting(process, COPY_S, COPY_MOST_S)
        lies = asked.step in node.slots.get(rank, {}).values()
        if lies and not (process.stopped or process.hung):
            world.timeline.after(takes_s, arrives)
        world.timeline.after(takes_s + LOOK_S, send)

    send()
