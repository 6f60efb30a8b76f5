"""Ranks of one node that have had the same fate, simulated as one.

In a life whose ranks draw alike (options.alike), those of a node that come to a stretch in the same
state go the same way from there on: they draw from the same place (draws.Luck), are told the same,
and say the same. Such a *crew* is one process to the timeline, the groups and the script: its
`mates` stay where the agent, the faults and the rules look for them, and what is seen, said or
booked of the crew is so of each of them. A mate that ends leaves its crew first, with what it has
of its own. Whoever may have to be something else than dead is in no crew: ranks that a plan names
for such a fault, and those of the lowest two nodes, which hand over state. Should a crew be told
what it cannot do as one, the life is lived again without it (`Parted`).

`every_rank` simulates each by itself: the course is the same.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from outlast.engine.protocol.outputs import Deliver
from outlast.model.fault_plan import NODE_KINDS, PlannedFault
from outlast.model.messages import ForWorker, Regroup
from outlast.model.terms import CAUSES, Cause, Phase
from outlast.sim.draws import Luck, Pool
from outlast.sim.options import Options
from outlast.sim.shortcuts.parted import Parted
from outlast.sim.world.booked_seconds import publish
from outlast.sim.world.processes import Home, Process, copied

ENDS = ("kill", "exit")


class IdenticalRanks:
    """`every_rank`: there are none, though all draw as if."""

    def __init__(
        self,
        options: Options,
        faults: Sequence[PlannedFault],
        pool: Pool | None,
        *,
        takes_place: Callable[[Process], None],
        every_rank: bool,
    ) -> None:
        self._pool = pool
        self._takes_place = takes_place
        self._none = every_rank or any(
            fault.rank is None and (fault.mark or fault.at_step is not None) for fault in faults
        )
        self._apart = _apart(faults, options)

    def form(self, there: dict[int, Process], nodes: Iterable[Home], *, now_s: float) -> None:
        """All of these stand at the end of a step.

        Those of a node that are alike are one from now on.
        """
        pool = self._pool
        assert pool is not None
        beats = max(process.beacon.beats for process in there.values()) + 1
        for process in there.values():
            process.book.switch(now_s=now_s, cause=Cause.OTHER)
            publish(process, Phase.BETWEEN, now_s=now_s)
            process.beacon.beats = beats
        for group in {
            process.group: None for process in there.values() if process.group is not None
        }:
            # as they go on from here
            group.members = dict.fromkeys(sorted(group.members, key=lambda member: member.rank))
        alike: dict[tuple[Any, ...], list[Process]] = {}
        for rank, process in sorted(there.items()):
            alike.setdefault(
                (process.node.place, rank if rank in self._apart else -1, *_state(process)), []
            ).append(process)
        step = max(process.machine.committed for process in there.values())
        for node in nodes:
            if node.luck is not None:
                node.luck.goes_to(node.drawn_at, step)
        groups: Counter[int] = Counter()  # of each node
        for same in alike.values():
            node = same[0].node
            groups[node.place] += 1
            for one in (one for process in same for one in (process, *process.mates)):
                one.luck = Luck(pool, node.drawn_at, groups[node.place], step)
            if len(same) > 1 and not self._none:
                self._one_of(same)
                for process in same[1:]:
                    there.pop(process.rank, None)

    def _one_of(self, same: list[Process]) -> None:
        """The first, or the crew that it is, is the crew of all."""
        crew = same[0]
        if not crew.mates:
            crew.mates = [mate := _first_mate(crew)]
            self._takes_place(mate)
        for other in same[1:]:
            for mate in list(other.mates) or [other]:
                _joins(crew, mate, other)
        by_rank(crew)


def _apart(faults: Iterable[PlannedFault], options: Options) -> frozenset[int]:
    """Ranks that are in no crew: what strikes them is more than an end, or strikes them in the
    midst of what they do; or they may have to hand over.
    """
    struck = {
        fault.rank
        for fault in faults
        if fault.rank is not None
        and (fault.mark or fault.at_step is not None or fault.kind not in (*ENDS, *NODE_KINDS))
    }
    return frozenset(struck) | frozenset(range(2 * options.ranks_per_node))


def _state(process: Process) -> tuple[Any, ...]:
    """Whatever its course depends on from here on."""
    machine, slots = process.machine, process.node.slots.get(process.rank, {})
    struck = process.repeats_until_s, process.lingers_s, process.held_until_s, process.mute_until_s
    return (
        process.group,
        process.collectives,
        process.content,
        process.ran,
        struck,
        machine.generation,
        machine.state,
        machine.attached,
        machine.committed,
        machine.prepared,
        machine.passed,
        machine.sealed,
        machine.phases,
        machine.begun,
        machine.over,
        *sorted(slots.items()),
    )


def _first_mate(crew: Process) -> Process:
    """The process whose main thread becomes that of a crew; so what it was by itself is another
    one.
    """
    mate = copy.copy(crew)
    mate.main, mate.backlog, mate.mates = None, [], []
    mate.book, mate.beacon = copy.copy(crew.book), copied(crew.beacon)
    mate.crew, mate.owed = crew, dict.fromkeys(CAUSES, 0.0)
    return mate


def _joins(crew: Process, mate: Process, was: Process) -> None:
    """`was`: what it was simulated as until now."""
    owed = mate.owed or dict.fromkeys(CAUSES, 0.0)
    mate.owed = {
        cause: owed[cause] + was.book.seconds[cause] - crew.book.seconds[cause] for cause in CAUSES
    }
    mate.crew, mate.machine = crew, crew.machine
    mate.node.slots[mate.rank] = mate.node.slots.get(crew.rank, {})
    crew.mates.append(mate)
    if was.group is not None:
        was.group.members.pop(was, None)
    if was.main is not None:
        was.main.close()
        was.main = None


def _named(crew: Process) -> None:
    """Name a crew after its first mate."""
    first = crew.mates[0]
    crew.worker = crew.machine.worker = first.worker
    crew.rank = crew.beacon.rank = first.rank


def by_rank(process: Process) -> None:
    if process.mates:
        process.mates.sort(key=lambda mate: mate.rank)
        _named(process)


def in_order(crew: Process, workers: Sequence[int]) -> None:
    """So they come to whatever follows."""
    crew.mates.sort(key=lambda mate: workers.index(mate.worker))
    _named(crew)


def leave(mate: Process) -> None:
    """Simulate a mate by itself from here on. It has no main thread, because it is about to end."""
    crew, owed = mate.crew, mate.owed
    assert crew is not None and owed is not None
    mate.crew = mate.owed = None
    opened_s, opened_ns = mate.book.opened_s, mate.beacon.opened_ns
    mate.machine, mate.book, mate.beacon, mate.read = (
        copy.copy(crew.machine),
        copy.copy(crew.book),
        copied(crew.beacon),
        None,
    )
    mate.machine.worker = mate.beacon.worker = mate.worker
    mate.beacon.rank = mate.rank
    mate.book.opened_s, mate.beacon.opened_ns = opened_s, opened_ns
    mate.book.seconds = {
        cause: max(0.0, seconds + owed[cause]) for cause, seconds in crew.book.seconds.items()
    }
    mate.beacon.seconds = {
        cause: max(0.0, seconds + owed[cause]) for cause, seconds in crew.beacon.seconds.items()
    }
    mate.group, mate.collectives, mate.waits, mate.high_water = (
        crew.group,
        crew.collectives,
        crew.waits,
        crew.high_water,
    )
    mate.told_s, mate.said_s, mate.luck = crew.told_s, crew.said_s, crew.luck and crew.luck.copy()
    mate.node.slots[mate.rank] = dict(mate.node.slots.get(mate.rank, {}))
    if mate.group is not None:
        mate.group.members[mate] = None
    crew.mates.remove(mate)
    if crew.mates:
        _named(crew)
    else:
        _over(crew)


def _over(crew: Process) -> None:
    crew.alive = False
    crew.node.sleeps_no_more(crew)
    if crew.group is not None:
        crew.group.members.pop(crew, None)
    if crew.main is not None and inspect.getgeneratorstate(crew.main) != inspect.GEN_RUNNING:
        crew.main.close()


def told_as_one(crew: Process, orders: Sequence[Deliver]) -> None:
    """Raises Parted unless all mates are told, and told the same."""
    first = orders[0].message
    if len(orders) != len(crew.mates) or not all(_same(first, order.message) for order in orders):
        raise Parted(f"ranks {[mate.rank for mate in crew.mates]}")


def _same(one: ForWorker, other: ForWorker) -> bool:
    if isinstance(one, Regroup) and isinstance(other, Regroup):
        return one.held_by(other.rank) == other
    return one == other
