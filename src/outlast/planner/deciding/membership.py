"""The node of each rank in a simulated run, and what each rank holds after a failure.

The engine decides from these facts.

Ranks are numbered from 0 to gpus - 1, and neighbours are on the same node. A seat is a place for
one node and its ranks. A rack is a group of `nodes_per_rack` neighbouring seats. Nodes have the
names that agents have. At first the first nodes are in the seats, and the others are spares. Ranks
that hold the same state share one `Holding`, as in `Roster.holdings`.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from outlast.engine.placement import offers
from outlast.engine.restore import Holding
from outlast.planner.scenario import Extent, Job


@dataclass(frozen=True, slots=True)
class StruckRanks:
    """The ranks that one failure takes, in rising order, and the seats whose node is lost."""

    ranks: tuple[int, ...]
    seats: tuple[int, ...]

    def and_also(self, other: StruckRanks) -> StruckRanks:
        """Return the ranks and seats of both. If one has no ranks, it is the other one."""
        if not (self.ranks and other.ranks):
            return self if self.ranks else other
        return StruckRanks(
            tuple(sorted({*self.ranks, *other.ranks})), tuple(sorted({*self.seats, *other.seats}))
        )


@dataclass(slots=True)
class SimulatedMembership:
    """The nodes of a simulated run, and the ranks on them.

    nodes      for each seat, the name of the node in it
    homes      for each rank, the name of its node
    ready      spare nodes at hand
    barred     nodes that are given no more work
    everybody  all ranks
    """

    job: Job
    spare_nodes: int
    nodes: list[str] = field(init=False)
    homes: dict[int, str] = field(init=False)
    ready: list[str] = field(init=False)
    barred: set[str] = field(default_factory=set)
    # a heap of the nodes in repair: when each is back, and its name
    _repaired: list[tuple[float, str]] = field(default_factory=list)
    everybody: tuple[int, ...] = field(init=False)
    _next_worker: int = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = [f"node-{seat}" for seat in range(self.job.nodes)]
        self.ready = [f"node-{self.job.nodes + number}" for number in range(self.spare_nodes)]
        self.everybody = tuple(range(self.job.gpus))
        self.homes = {rank: self.nodes[rank // self.job.gpus_per_node] for rank in self.everybody}
        self._next_worker = self.job.gpus + 1

    # --- what is lost -----------------------------------------------------------------------------

    def struck(self, extent: Extent, at: float) -> StruckRanks:
        """Return the ranks and seats that a failure of this extent takes.

        `at`, in [0, 1), is the place of the failure along all ranks. If the nodes do not fill the
        last rack, the last rack consists of the last `nodes_per_rack` nodes. Then it shares some of
        them with the rack before.
        """
        job = self.job
        rank = min(math.floor(at * job.gpus), job.gpus - 1)
        if extent is Extent.PROCESS:
            return StruckRanks((rank,), ())
        if extent is Extent.RUN:
            return StruckRanks(self.everybody, ())
        seat, count = rank // job.gpus_per_node, 1
        if extent is Extent.RACK:
            count = min(job.nodes_per_rack, job.nodes)
            seat = min(seat // count * count, job.nodes - count)
        return self.seats(range(seat, seat + count))

    def seats(self, seats: Iterable[int]) -> StruckRanks:
        """Return a strike that takes the nodes of these seats, and all their ranks."""
        lost = sorted(seats)
        return StruckRanks(
            tuple(rank for seat in lost for rank in self.ranks_of(seat)), tuple(lost)
        )

    def free_seats(self, first: int, count: int, *, gone: Collection[int]) -> list[int]:
        """Return `count` seats that are not in `gone`, from `first` on and then from the beginning.

        The result is shorter if there are fewer such seats.
        """
        nodes = self.job.nodes
        return list(
            islice(
                (seat for seat in (*range(first, nodes), *range(first)) if seat not in gone), count
            )
        )

    def ranks_of(self, seat: int) -> range:
        """Return the ranks of a seat."""
        return range(
            seat * self.job.gpus_per_node, min((seat + 1) * self.job.gpus_per_node, self.job.gpus)
        )

    def holdings(
        self,
        lost: Sequence[int],
        *,
        committed: int,
        usable: bool,
        sealed: tuple[int, ...],
        left: tuple[int, ...],
        begun: bool,
    ) -> list[Holding]:
        """Return what each rank holds after a failure.

        lost       the lost ranks, in rising order
        committed  the newest step that all have committed; survivors have the state of this step
        usable     whether the state in the survivors' memory can be used
        sealed     the steps of which survivors have sealed images
        left       the steps of which other nodes still have images of the lost ranks
        begun      whether the step after `committed` had begun
        """
        gone = Holding(tuple(lost), False, -1, left, -1, False, left)
        if len(lost) == len(self.everybody):
            return [gone]
        there: tuple[int, ...] = ()
        after = 0
        for rank in lost:
            if rank > after:
                there += self.everybody[after:rank]
            after = rank + 1
        here = Holding(
            there + self.everybody[after:],
            True,
            committed,
            (committed, *sealed),
            committed,
            False,
            sealed,
            usable,
            begun=begun,
        )
        return [gone, here] if lost else [here]

    # --- nodes that leave and come back -----------------------------------------------------------

    def repair(self, node: str, *, back_s: float) -> None:
        """Let a lost node be repaired by `back_s`, in seconds. `come_back` then returns it."""
        heapq.heappush(self._repaired, (back_s, node))

    def come_back(self, now_s: float) -> int:
        """Make spares of the nodes that are repaired by `now_s`, unless they are barred.

        Return how many of them are barred.
        """
        not_back = 0
        while self._repaired and self._repaired[0][0] <= now_s:
            node = heapq.heappop(self._repaired)[1]
            if node in self.barred:
                not_back += 1
            else:
                self.ready.append(node)
        return not_back

    def bar(self, node: str) -> None:
        """Give the node no more work, now and after a repair."""
        self.barred.add(node)
        self.ready = [spare for spare in self.ready if spare != node]

    def enough_s(self, seats: int, *, from_s: float) -> float:
        """Return the time from which `seats` nodes are at hand, if no node is lost before.

        It is infinite if there will never be enough nodes.
        """
        short = seats - len(self.ready)
        if short <= 0:
            return from_s
        coming = [back_s for back_s, node in sorted(self._repaired) if node not in self.barred]
        return max(from_s, coming[short - 1]) if len(coming) >= short else math.inf

    def take(self, strike: StruckRanks, *, parked: bool) -> list[int]:
        """Let `engine.placement` find a place for each lost rank, and move the rank there.

        Return, in the order of the ranks, the worker numbers of the spares that take them, or -1
        for a fresh process. The result is empty if no spare was parked. The caller makes sure that
        there is room: see `enough_s`.
        """
        places, seats = self.job.gpus_per_node, frozenset(strike.seats)
        room = dict.fromkeys(self.ready, places)
        for rank in strike.ranks:
            if rank // places not in seats:
                room[self.homes[rank]] = room.get(self.homes[rank], 0) + 1
        spares = (
            [
                (self._next_worker + number, node)
                for number, node in enumerate(node for node in self.ready for _ in range(places))
            ]
            if parked
            else []
        )
        found = offers(strike.ranks, homes=self.homes, spares=spares, room=room)
        assert len(found) == len(strike.ranks), "a lost rank finds no place"
        self._next_worker += len(spares)
        for rank, (_, node) in found.items():
            self.homes[rank] = node
        for seat in strike.seats:
            self.nodes[seat] = self.homes[self.ranks_of(seat)[0]]
        taken = {self.nodes[seat] for seat in strike.seats}
        self.ready = [node for node in self.ready if node not in taken]
        workers = [found[rank][0] for rank in strike.ranks]
        return workers if max(workers, default=-1) >= 0 else []
