"""Simulate ranks of one node that are in the same state as a single process.

The world uses this in runs whose ranks draw alike (`options.alike`). Ranks of one node that begin a
stretch in the same state do the same from there on: they draw from the same place in the pool
(`draws.ProcessDraws`), and get and send the same messages.

One process is then the *stand-in* for all of them. The timeline, the process groups and the script
see only the stand-in. The agent, the faults and the rules still find its `mates`. Everything that
the stand-in sees, sends or books holds for each mate. Before a mate ends, it leaves its stand-in,
and takes its own state along.

A rank that may have to do anything else than end has no stand-in. These are the ranks that a fault
strikes in another way, and the ranks of the lowest two nodes, which hand over state. If the mates
of a stand-in get different messages, the run is simulated again without stand-ins (`Parted`).

With `every_rank`, each rank is simulated by itself. The course is the same.
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
from outlast.sim.draws import Pool, ProcessDraws
from outlast.sim.options import Options
from outlast.sim.shortcuts.parted import Parted
from outlast.sim.world.booked_seconds import publish
from outlast.sim.world.processes import Home, SimulatedProcess, copied

ENDS = ("kill", "exit")


class IdenticalRanks:
    """Find identical ranks at the end of a step, and let one process stand in for them.

    every_rank   simulate every rank by itself, but with the same draws
    """

    def __init__(
        self,
        options: Options,
        faults: Sequence[PlannedFault],
        pool: Pool | None,
        *,
        takes_place: Callable[[SimulatedProcess], None],
        every_rank: bool,
    ) -> None:
        self._pool = pool
        self._takes_place = takes_place
        self._none = every_rank or any(
            fault.rank is None and (fault.mark or fault.at_step is not None) for fault in faults
        )
        self._apart = _apart(faults, options)

    def form(
        self, there: dict[int, SimulatedProcess], nodes: Iterable[Home], *, now_s: float
    ) -> None:
        """From now on, simulate ranks of a node as one if they are in the same state.

        there   the process of each rank. All of them have reached the end of a step
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
            # in the state in which they go on from here
            group.members = dict.fromkeys(sorted(group.members, key=lambda member: member.rank))
        alike: dict[tuple[Any, ...], list[SimulatedProcess]] = {}
        for rank, process in sorted(there.items()):
            alike.setdefault(
                (process.node.place, rank if rank in self._apart else -1, *_state(process)), []
            ).append(process)
        step = max(process.machine.committed for process in there.values())
        for node in nodes:
            if node.luck is not None:
                node.luck.goes_to(node.drawn_at, step)
        groups: Counter[int] = Counter()  # the number of groups on each node
        for same in alike.values():
            node = same[0].node
            groups[node.place] += 1
            for one in (one for process in same for one in (process, *process.mates)):
                one.luck = ProcessDraws(pool, node.drawn_at, groups[node.place], step)
            if len(same) > 1 and not self._none:
                self._one_of(same)
                for process in same[1:]:
                    there.pop(process.rank, None)

    def _one_of(self, same: list[SimulatedProcess]) -> None:
        """Let the first of these processes stand in for all."""
        stand_in = same[0]
        if not stand_in.mates:
            stand_in.mates = [mate := _first_mate(stand_in)]
            self._takes_place(mate)
        for other in same[1:]:
            for mate in list(other.mates) or [other]:
                _joins(stand_in, mate, other)
        by_rank(stand_in)


def _apart(faults: Iterable[PlannedFault], options: Options) -> frozenset[int]:
    """Return the ranks that have no stand-in.

    A fault does not simply end them, or strikes them within a step, or they may have to hand over
    state.
    """
    struck = {
        fault.rank
        for fault in faults
        if fault.rank is not None
        and (fault.mark or fault.at_step is not None or fault.kind not in (*ENDS, *NODE_KINDS))
    }
    return frozenset(struck) | frozenset(range(2 * options.ranks_per_node))


def _state(process: SimulatedProcess) -> tuple[Any, ...]:
    """Return everything that the further course of a process depends on."""
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


def _first_mate(stand_in: SimulatedProcess) -> SimulatedProcess:
    """Return a copy of a process that becomes a stand-in. The copy is its first mate."""
    mate = copy.copy(stand_in)
    mate.main, mate.backlog, mate.mates = None, [], []
    mate.book, mate.beacon = copy.copy(stand_in.book), copied(stand_in.beacon)
    mate.stand_in, mate.owed = stand_in, dict.fromkeys(CAUSES, 0.0)
    return mate


def _joins(stand_in: SimulatedProcess, mate: SimulatedProcess, was: SimulatedProcess) -> None:
    """Add a mate to a stand-in. `was` is the process by which it was simulated until now."""
    owed = mate.owed or dict.fromkeys(CAUSES, 0.0)
    mate.owed = {
        cause: owed[cause] + was.book.seconds[cause] - stand_in.book.seconds[cause]
        for cause in CAUSES
    }
    mate.stand_in, mate.machine = stand_in, stand_in.machine
    mate.node.slots[mate.rank] = mate.node.slots.get(stand_in.rank, {})
    stand_in.mates.append(mate)
    if was.group is not None:
        was.group.members.pop(was, None)
    if was.main is not None:
        was.main.close()
        was.main = None


def _named(stand_in: SimulatedProcess) -> None:
    """Name a stand-in after its first mate."""
    first = stand_in.mates[0]
    stand_in.worker = stand_in.machine.worker = first.worker
    stand_in.rank = stand_in.beacon.rank = first.rank


def by_rank(process: SimulatedProcess) -> None:
    if process.mates:
        process.mates.sort(key=lambda mate: mate.rank)
        _named(process)


def in_order(stand_in: SimulatedProcess, workers: Sequence[int]) -> None:
    """Sort the mates in the order of `workers`. In this order they do whatever follows."""
    stand_in.mates.sort(key=lambda mate: workers.index(mate.worker))
    _named(stand_in)


def leave(mate: SimulatedProcess) -> None:
    """Simulate a mate by itself from now on. It has no main thread, because it is about to end."""
    stand_in, owed = mate.stand_in, mate.owed
    assert stand_in is not None and owed is not None
    mate.stand_in = mate.owed = None
    opened_s, opened_ns = mate.book.opened_s, mate.beacon.opened_ns
    mate.machine, mate.book, mate.beacon, mate.read = (
        copy.copy(stand_in.machine),
        copy.copy(stand_in.book),
        copied(stand_in.beacon),
        None,
    )
    mate.machine.worker = mate.beacon.worker = mate.worker
    mate.beacon.rank = mate.rank
    mate.book.opened_s, mate.beacon.opened_ns = opened_s, opened_ns
    mate.book.seconds = {
        cause: max(0.0, seconds + owed[cause]) for cause, seconds in stand_in.book.seconds.items()
    }
    mate.beacon.seconds = {
        cause: max(0.0, seconds + owed[cause]) for cause, seconds in stand_in.beacon.seconds.items()
    }
    mate.group, mate.collectives, mate.waits, mate.high_water = (
        stand_in.group,
        stand_in.collectives,
        stand_in.waits,
        stand_in.high_water,
    )
    mate.newest_to_s, mate.newest_from_s, mate.luck = (
        stand_in.newest_to_s,
        stand_in.newest_from_s,
        stand_in.luck and stand_in.luck.copy(),
    )
    mate.node.slots[mate.rank] = dict(mate.node.slots.get(mate.rank, {}))
    if mate.group is not None:
        mate.group.members[mate] = None
    stand_in.mates.remove(mate)
    if stand_in.mates:
        _named(stand_in)
    else:
        _over(stand_in)


def _over(stand_in: SimulatedProcess) -> None:
    stand_in.alive = False
    stand_in.node.sleeps_no_more(stand_in)
    if stand_in.group is not None:
        stand_in.group.members.pop(stand_in, None)
    if (
        stand_in.main is not None
        and inspect.getgeneratorstate(stand_in.main) != inspect.GEN_RUNNING
    ):
        stand_in.main.close()


def check_same_orders(stand_in: SimulatedProcess, orders: Sequence[Deliver]) -> None:
    """Check that all mates get the same message. Raise Parted otherwise."""
    first = orders[0].message
    if len(orders) != len(stand_in.mates) or not all(
        _same(first, order.message) for order in orders
    ):
        raise Parted(f"ranks {[mate.rank for mate in stand_in.mates]}")


def _same(one: ForWorker, other: ForWorker) -> bool:
    if isinstance(one, Regroup) and isinstance(other, Regroup):
        return one.held_by(other.rank) == other
    return one == other
