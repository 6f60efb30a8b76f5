"""All nodes and processes of a simulated run, and the holder of each rank."""

from __future__ import annotations

from collections.abc import Iterable

from outlast.sim.draws import Pool, ProcessDraws
from outlast.sim.shortcuts import identical_nodes
from outlast.sim.shortcuts.identical_nodes import Echo, IdenticalNodes
from outlast.sim.shortcuts.parted import Parted
from outlast.sim.world.agent_link import SimulatedAgentLink
from outlast.sim.world.booked_seconds import Lives
from outlast.sim.world.frame import Frame
from outlast.sim.world.node import Node
from outlast.sim.world.node_parts import kept_by_all
from outlast.sim.world.processes import Home, SimulatedProcess


class Population:
    """The register of all nodes, processes and ranks.

    stirred   the nodes on which the present event has changed something that their agents look at
    done      the ranks whose last process ended with success
    living    the number of living processes
    """

    def __init__(
        self, frame: Frame, twins: IdenticalNodes | None, pool: Pool | None, lives: Lives
    ) -> None:
        self.nodes: list[Node] = []
        self.stirred: dict[Home, None] = {}
        self.done: set[int] = set()
        self.living = 0
        self.lives = lives
        self._frame = frame
        self._twins = twins
        self._pool = pool
        self._lines: dict[str, SimulatedAgentLink | Echo] = {}
        self._by_rank: dict[int, dict[int, SimulatedProcess]] = {}

    def add(self, name: str, place: Node | Echo) -> None:
        """Add a node. It may be one that is not simulated by itself."""
        if isinstance(place, Echo):
            self._lines[name] = place
            return
        self.nodes.append(place)
        self._lines[name] = place.link

    def kept_step(self, ranks: int) -> int:
        """Return the newest step of which the vault has copies of all ranks; 0 if there is none.

        Copies are made only in runs with one node.
        """
        return kept_by_all(self.nodes[0].kept, ranks=ranks)

    def line_to(self, name: str) -> SimulatedAgentLink | Echo:
        """Return the coordinator's end of the link of a node."""
        return self._lines[name]

    def lost_power(self, name: str) -> bool:
        """Return True if the node of this name has no power."""
        return any(node.name == name and not node.lives for node in self.nodes)

    def alive(self) -> list[SimulatedProcess]:
        """Return all processes that live."""
        return [
            process for node in self.nodes for process in node.processes.values() if process.alive
        ]

    # --- ranks ------------------------------------------------------------------------------------

    def in_rank(self, rank: int) -> list[SimulatedProcess]:
        """Return the living processes that hold `rank`, also those that were given up."""
        return [process for process in self._by_rank.get(rank, {}).values() if process.alive]

    def owners(self, rank: int) -> list[SimulatedProcess]:
        """Return the living processes that hold `rank` and may still act."""
        return [process for process in self.in_rank(rank) if not process.node.still.outlives_lease]

    def holders_by_worker(self, rank: int) -> dict[int, SimulatedProcess]:
        """Return all processes that hold or held `rank`, by worker."""
        return self._by_rank[rank]

    def takes_rank(self, process: SimulatedProcess, rank: int) -> None:
        """Give `rank` to a process, when it starts or by a plan."""
        if self._twins is not None and self._twins.houses(rank) and process.node.twins is None:
            raise Parted(f"rank {rank} of identical nodes is given to {process.node.name}")
        self._by_rank.get(process.rank, {}).pop(process.worker, None)
        if rank >= 0 and not process.node.still.outlives_lease:
            for other in self.in_rank(rank):
                if other.node.still.outlives_lease:
                    self.lives.outlived(other, now_s=self._frame.now_s)
        process.rank = rank
        self._by_rank.setdefault(rank, {})[process.worker] = process

    def takes_place(self, mate: SimulatedProcess) -> None:
        """Let `mate` take the place of a process that becomes a stand-in."""
        mate.node.processes[mate.worker] = self._by_rank[mate.rank][mate.worker] = mate

    def luck(self, process: SimulatedProcess) -> ProcessDraws | None:
        """Return the source from which a new process draws; None for the common streams."""
        if self._pool is None:
            return None
        if process.node.drawn_at == identical_nodes.PLACE:
            place = process.rank % self._frame.options.ranks_per_node
            return ProcessDraws(self._pool, identical_nodes.PLACE, place)
        return ProcessDraws(self._pool, process.worker)

    def with_those_alike(self, ranks: Iterable[int]) -> set[int]:
        """Return these ranks, and the ranks that they stand for."""
        twins = self._twins
        if twins is None:
            return set(ranks)
        return {other for rank in ranks for other in (rank, *twins.like(rank))}
