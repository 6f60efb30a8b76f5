"""Find the ranks that hold the state of a step, from all simulated processes.

The run could go on from that state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.protocol.worker import WorkerState
from outlast.sim.options import Options
from outlast.sim.world.population import Population
from outlast.sim.world.processes import SimulatedProcess


class StateHolders:
    """Find the ranks that hold the state of a step.

    coordinator   returns the coordinator that lives
    took_over     returns True if another coordinator has led the run before
    struck        returns the processes that a fault has struck
    """

    def __init__(
        self,
        options: Options,
        population: Population,
        *,
        coordinator: Callable[[], Coordinator],
        struck: Callable[[], tuple[int, ...]],
        took_over: Callable[[], bool],
    ) -> None:
        self.planned_s = 0.0  # when the newest plan was made
        self._options = options
        self._population = population
        self._coordinator = coordinator
        self._struck = struck
        self._took_over = took_over
        self._laggard = 0  # a rank that has sealed fewer steps than others
        self._copied: tuple[int, int] = (0, -1)  # generation, and a step that survives any node
        self._backs: list[tuple[int, int]] = []  # generations, and the steps that they began from

    def holders(self, step: int) -> tuple[int, ...]:
        """Return the ranks that hold `step`, if that is enough to go on from it.

        Under replicated state one rank is enough, under sharded state all are needed. A process
        that the run itself has killed for this plan, though nothing had struck it, counts too.
        """
        options = self._options
        if options.recovery_mode == "sharded":
            ranks = range(options.ranks)
            sealed = {rank for rank in ranks if step in self._slots_of(rank).values()}
            held = tuple(
                rank for rank in ranks if rank in sealed or sealed.intersection(self._twins(rank))
            )
            return held if len(held) == options.ranks else ()
        had = [
            p
            for node in self._population.nodes
            for p in node.processes.values()
            if p.rank >= 0
            and p.best >= step
            and not _awaits_vote(p, step)
            and (p.alive or p.ended_s > self.planned_s)
        ]
        if options.nodes > 1:  # an agent without a lease may have killed it
            return tuple(
                p.rank
                for p in had
                if p.alive and p.worker not in p.node.doomed and not p.node.still.outlives_lease
            )
        return tuple(
            p.rank
            for p in had
            if (p.alive if p.worker not in p.node.doomed else p.pid not in self._struck())
        )

    def _twins(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that hold the same shards as `rank`, as far as the coordinator knows.

        A coordinator that has taken over knows only those in the ledger, and those that agents
        remember.
        """
        if self._took_over():
            return self._coordinator().roster.remains.twins(rank)
        return tuple(self._options.alike_with(rank))

    def note_copied(self, generation: int, step: int) -> None:
        """Note that a vote has passed that waited for all copies of `step`."""
        self._copied = max(self._copied, (generation, step))

    def go_back(self, generation: int, step: int) -> None:
        """Note that a generation goes on from `step`, so that copies of later steps are void."""
        self._backs.append((generation, step))
        if self._copied[1] > step:
            self._copied = generation, step

    def copied(self) -> int:
        """Return the newest step for whose copies a vote waited, if it is available; else -1.

        It is available if each rank's image of it is on its own node, or copied to another node, or
        can be rebuilt from parity.
        """
        step, ranks = self._copied[1], range(self._options.ranks)
        if step < 0:
            return -1
        lost = {rank for rank in ranks if step not in self._slots_of(rank).values()}
        there = all(
            self._is_copied(rank, step) or self._is_rebuilt(rank, step, lost) for rank in lost
        )
        return step if there else -1

    def _is_rebuilt(self, rank: int, step: int, lost: set[int]) -> bool:
        """Return True if nodes keep parity that restores each part of the image of `rank`.

        `lost` are all ranks without an image.
        """
        code, coordinator = self._options.code, self._coordinator()
        if code is None:
            return False
        known = coordinator.roster.remains.parity.steps_of(lost) if self._took_over() else {}
        if self._took_over() and step not in known.get(rank, ()):
            return False
        rows = {
            (kept.stripe, row.ranks, row.row)
            for node in self._population.nodes
            if node.lives and node.name in coordinator.nodes
            for kept in node.copies.rows.all_rows()
            for row in kept.rows
            if row.step == step
            and not any(row.generation < later and back < step for later, back in self._backs)
        }
        parts = {
            ranks.index(rank)
            for stripe, ranks, _ in rows
            if rank in ranks
            and len(lost.intersection(ranks))
            <= sum(1 for one in rows if one[:2] == (stripe, ranks))
        }
        return parts == set(range(code.data))

    def _is_copied(self, rank: int, step: int) -> bool:
        """Return True if a node keeps a copy that the present coordinator knows of.

        A coordinator that has taken over knows only copies on the nodes where they belong.
        """
        coordinator = self._coordinator()
        known = coordinator.roster.remains.copies
        return any(
            node.lives
            and node.name in coordinator.nodes
            and (made := node.copies.made_in(rank, step)) is not None
            and not any(made < later and back < step for later, back in self._backs)
            and (not self._took_over() or known.node_of(rank, step) != "")
            for node in self._population.nodes
        )

    def followers(self, step: int) -> tuple[int, ...]:
        """Return the ranks that wait in the optimizer hook of `step`, and can still apply it."""
        there = [
            p
            for p in self._population.alive()
            if p.in_hook
            and p.machine.state is WorkerState.STILL
            and p.machine.prepared == step == p.machine.committed + 1
        ]
        return tuple(
            p.rank
            for p in there
            if p.worker not in p.node.doomed and not p.node.still.outlives_lease
        )

    def all_have_sealed(self, step: int) -> bool:
        """Return True if every rank has sealed `step`, or a later one.

        Images on a node that the rank has left do not count.
        """
        ranks, nodes = self._options.ranks, self._population.nodes
        for offset in range(ranks):
            rank = (self._laggard + offset) % ranks
            # A process that was given up may live on, so only that of the newest generation counts.
            holder = max(self._population.in_rank(rank), key=_newest, default=None)
            lives_on = nodes if holder is None else [holder.node]
            slots = (node.slots.get(rank, {}) for node in lives_on)
            if not any(sealed >= step for one in slots for sealed in one.values()):
                self._laggard = rank
                return False
        return True

    def _slots_of(self, rank: int) -> Mapping[int, int]:
        """Return the slots of `rank` on the node that the coordinator names as its home."""
        coordinator = self._coordinator()
        home = coordinator.roster.homes.get(rank, "")
        if home not in coordinator.nodes and home not in coordinator.nodes.returning:
            return {}
        by_name = {node.name: node for node in self._population.nodes}
        return by_name[home].slots.get(rank, {})


def _awaits_vote(process: SimulatedProcess, step: int) -> bool:
    """Return True if a process has executed `step`, votes late, and has not seen the vote pass."""
    machine = process.machine
    return machine.prepared == step == machine.committed + 1 and machine.passed < step


def _newest(process: SimulatedProcess) -> tuple[int, int]:
    return process.machine.generation, process.worker
