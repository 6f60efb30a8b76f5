"""Carry out planned faults in a simulated world, and count them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.stages import Stage
from outlast.model import limits
from outlast.model.fault_plan import DISK_KINDS, NODE_KINDS, PlannedFault
from outlast.model.records import Interruption
from outlast.sim.rules.observations import StoppedProcessWentOn
from outlast.sim.world.chance import Chance
from outlast.sim.world.collectives import Collectives
from outlast.sim.world.disk import Disks
from outlast.sim.world.frame import Frame
from outlast.sim.world.node import Node
from outlast.sim.world.paths import Paths
from outlast.sim.world.population import Population
from outlast.sim.world.processes import SimulatedProcess
from outlast.sim.world.store import Store
from outlast.sim.world.timeline import FIXED

# each rank passes each of these marks once in a step
STEP_MARKS = ("body", "reduced", "sealing", "prepared", "voting", "passed", "applied", "committed")
AGENT = "stop of an agent"
KEEP_WORD = ("cut", "lag", "freeze", "lose_coordinator")  # by these an agent may lose its lease
# if nothing else strikes, a run must not take these for a fault
HARMLESS = ("repeat", "linger", *DISK_KINDS)


class StruckHost(Protocol):
    """The host of the coordinator, as faults use it: they kill it, and read its stage."""

    lives: bool

    @property
    def coordinator(self) -> Coordinator: ...

    @property
    def interruptions(self) -> Mapping[int, Interruption]: ...

    def die(self, *, for_s: float) -> None: ...


class Targets(Protocol):
    """The things that faults can strike."""

    @property
    def frame(self) -> Frame: ...

    @property
    def chance(self) -> Chance: ...

    @property
    def population(self) -> Population: ...

    @property
    def host(self) -> StruckHost: ...

    @property
    def store(self) -> Store: ...

    @property
    def disks(self) -> Disks: ...

    @property
    def paths(self) -> Paths: ...

    @property
    def collectives(self) -> Collectives: ...


class MarkVisits:
    """Count visits of the marks that faults wait for.

    visits    how often a rank, or any rank (None), was at a mark that a fault waits for
    by_mark   the faults that wait for each mark
    due       the ids of faults of a step that are about to strike
    """

    def __init__(self, faults: tuple[PlannedFault, ...]) -> None:
        self.visits = {(fault.rank, fault.mark): 0 for fault in faults if fault.mark}
        self.by_mark: dict[str, list[PlannedFault]] = {}
        self.due: set[str] = set()
        for fault in faults:
            if fault.mark or fault.at_step is not None:
                self.by_mark.setdefault(fault.mark or "body", []).append(fault)


class FaultStrikes:
    """Let each fault of a plan strike when it is due, and count the strikes.

    struck        each strike: its time, the fault and the worker
    fired         the ids of faults in the order in which they first struck
    in_recovery   those that struck during the recovery from another fault
    """

    def __init__(self, world: Targets, faults: tuple[PlannedFault, ...]) -> None:
        self.faults = faults
        self.struck: list[tuple[float, PlannedFault, int]] = []
        self.in_recovery: list[str] = []
        # whether all ranks were at work when a fault first struck, as far as the coordinator knew
        self._at_work = False
        self._world = world
        self._kinds: dict[int, set[str]] = {}  # pid -> the kinds of faults that struck it
        self._marks = MarkVisits(faults)
        self.lapsed = False  # a lease has run out over living processes
        self._refusals = 0  # number of processes that could not read the state that they had to

    @property
    def fired(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(fault.id for _, fault, _ in self.struck))

    def arm(self) -> None:
        """Plan all faults. It is called when the run begins."""
        for fault in self.faults:
            if fault.at_s is not None:
                self._world.frame.timeline.after(
                    fault.at_s + fault.after_s, partial(self._strike_holder, fault), sort=FIXED
                )

    def kinds(self, pids: tuple[int, ...], *, others: bool = False) -> tuple[str, ...]:
        """Return the kinds of the faults that struck these processes.

        With `others`, processes count too that were lost with their node before they were known.
        """
        whole = (
            {
                AGENT if fault.agent else fault.kind
                for _, fault, _ in self.struck
                if fault.agent or fault.kind in NODE_KINDS
            }
            if others
            else set()
        )
        return tuple(sorted(whole | {kind for pid in pids for kind in self._kinds.get(pid, ())}))

    def all_kinds(self) -> tuple[str, ...]:
        """Return the kinds of all faults that have struck."""
        return tuple(sorted({AGENT if fault.agent else fault.kind for _, fault, _ in self.struck}))

    @property
    def harmful(self) -> int:
        """Return the number of strikes that the run may take for a fault.

        A partition counts twice, because it may end the present generation and the next one. So
        does a coordinator that is away, because a lease may run out meanwhile.
        """
        if all(self._is_borne(fault) for _, fault, _ in self.struck):
            return 0
        struck = sum(fault.kind not in HARMLESS for _, fault, _ in self.struck)
        struck += sum(fault.kind in ("part", "lose_coordinator") for _, fault, _ in self.struck)
        return struck + self._refusals

    def _is_borne(self, fault: PlannedFault) -> bool:
        """Return True if the fault interrupts no rank, as long as nothing else strikes.

        During a regroup, it may cause a process to be given up.
        """
        options = self._world.frame.options
        if fault.kind == "starve":
            return options.recovery_mode != "plain" and fault.for_s <= limits.STARVED_MAX_S
        # every lease outlives the fault
        outlived = (
            fault.for_s + 2 * limits.RECONNECT_S < (limits.LEASE_BEATS - 2) * options.beat_s
            and len(self.struck) == 1
        )
        return outlived and (
            fault.kind in ("cut", "lag") or (fault.kind == "lose_coordinator" and self._at_work)
        )

    @property
    def held_up_s(self) -> float:
        """Return the seconds for which messages on some link may have waited."""
        return sum(fault.for_s for _, fault, _ in self.struck if fault.kind == "lag")

    @property
    def muted_s(self) -> float:
        """Return the seconds for which no message of some process may have arrived."""
        return sum(fault.for_s for _, fault, _ in self.struck if fault.kind == "mute")

    def pids(self) -> tuple[int, ...]:
        """Return the processes that may be blamed.

        Neither the store nor the coordinator has a process here, so no process is to blame for
        them.
        """
        return tuple(
            sorted(
                pid
                for pid, kinds in self._kinds.items()
                if kinds - (set(HARMLESS) - {"corrupt_disk"})
            )
        )

    def cannot_read(self, process: SimulatedProcess) -> None:
        """Note that a process cannot read a file that has changed since it was found to be good."""
        self._refusals += 1
        self._strikes_process(process, "corrupt_disk")

    def fenced(self, process: SimulatedProcess) -> None:
        """Note that an agent kills a process because the lease has run out.

        The faults that struck the link count as strikes of the process.
        """
        self.lapsed = True
        for kind in {
            AGENT if fault.agent else fault.kind
            for _, fault, _ in self.struck
            if fault.agent or fault.kind in KEEP_WORD
        }:
            self._strikes_process(process, kind)

    def _strikes_process(self, process: SimulatedProcess, kind: str) -> None:
        self._kinds.setdefault(process.pid, set()).add(kind)

    def waits_for(self, mark: str) -> bool:
        return mark in self._marks.by_mark

    def at_mark(self, process: SimulatedProcess, mark: str) -> None:
        for rank in (process.rank, None):  # visits of this rank, and of any rank
            if (rank, mark) in self._marks.visits:
                self._marks.visits[rank, mark] += 1
        for fault in self._marks.by_mark[mark]:
            if fault.rank not in (process.rank, None):
                continue
            here = (
                fault.mark == mark
                and fault.nth <= self._marks.visits[fault.rank, mark] < fault.nth + fault.times
            )
            at_step = (
                fault.at_step is not None
                and mark == "body"
                and process.machine.committed + 1 == fault.at_step
            )
            if here or (at_step and fault.id not in self.fired and fault.id not in self._marks.due):
                if at_step and fault.rank is None:
                    # it strikes once, for the first rank that reaches that step
                    self._marks.due.add(fault.id)
                if fault.after_s:
                    self._world.frame.timeline.after(
                        fault.after_s, partial(self._strike, process, fault), sort=FIXED
                    )
                else:
                    self._strike(process, fault)

    def steps_from(self, step: int) -> float:
        """Return how many steps after `step` are free of faults that wait for a step or a mark."""
        count = math.inf
        for fault in self.faults:
            if fault.at_step is not None and fault.at_step > step and fault.id not in self.fired:
                count = min(count, fault.at_step - step - 2)
            elif fault.mark in STEP_MARKS:
                until = fault.nth - self._marks.visits[fault.rank, fault.mark]
                if until > 1 - fault.times:
                    count = min(
                        count,
                        until // (self._world.frame.options.ranks if fault.rank is None else 1) - 2,
                    )
        return count

    def leapt(self, count: int) -> None:
        """Note that all ranks have done `count` more steps."""
        for rank, mark in self._marks.visits:
            if mark in STEP_MARKS and rank != -1:
                self._marks.visits[rank, mark] += count * (
                    self._world.frame.options.ranks if rank is None else 1
                )

    def at_stage(self, stage: str) -> None:
        """Note that the coordinator is in `stage` now."""
        if (None, stage) not in self._marks.visits:
            return
        self._marks.visits[None, stage] += 1
        for fault in self._marks.by_mark[stage]:
            if (
                fault.rank is None
                and fault.mark == stage
                and fault.nth <= self._marks.visits[None, stage] < fault.nth + fault.times
            ):
                self._world.frame.timeline.after(
                    fault.after_s, partial(self._strike_thing, fault), sort=FIXED
                )

    def _strike_holder(self, fault: PlannedFault) -> None:
        if fault.rank is None:
            self._strike_thing(fault)
            return
        for process in self._world.population.alive():
            if process.rank == fault.rank:
                self._strike(process, fault)
                return

    def _note(self, fault: PlannedFault, worker: int, struck: str) -> None:
        world = self._world
        world.chance.begun()
        world.frame.say(f"FAULT {fault.id}: {fault.kind} strikes {struck}")
        stage, rebuilt = (
            world.host.coordinator.stage,
            world.host.lives and world.host.coordinator.stage is not Stage.REBUILDING,
        )
        if stage is not Stage.STOPPING and (
            not rebuilt or any(one.resumed_s is None for one in world.host.interruptions.values())
        ):
            self.in_recovery.append(fault.id)
        if not self.struck:
            has_plan = all(
                one.machine.generation == world.host.coordinator.generation
                for one in world.population.alive()
                if one.rank >= 0
            )
            self._at_work = stage is Stage.TRAINING or (
                world.host.coordinator.runs_plain and has_plan
            )
        self.struck.append((world.frame.now_s, fault, worker))

    def _strike_thing(self, fault: PlannedFault) -> None:
        """Strike a target that is not a process."""
        world = self._world
        if world.frame.end is not None:
            return
        if fault.node is not None and fault.peer is not None:
            self._strike_link(
                fault, world.population.nodes[fault.node], world.population.nodes[fault.peer]
            )
            return
        if fault.disk is not None:
            self._note(fault, 0, f"disk {fault.disk}")
            world.disks.strike(fault.kind, fault.disk, for_s=fault.for_s)
            return
        if fault.node is None:
            self._note(fault, 0, "the store" if fault.kind == "lose_store" else "the coordinator")
            if fault.kind == "lose_store":
                world.store.lose()
            else:
                world.host.die(for_s=fault.for_s)
            return
        self._strike_node(fault, world.population.nodes[fault.node])

    def _strike_link(self, fault: PlannedFault, node: Node, other: Node) -> None:
        """Strike a link. No process is struck, so none may be blamed for it."""
        self._note(fault, 0, f"the link between {node.name} and {other.name}")
        if fault.kind == "part":
            self._world.paths.part(node, other, fault.for_s)
        else:
            self._world.collectives.reset(node, other)

    def _strike_node(self, fault: PlannedFault, node: Node) -> None:
        world = self._world
        self._note(fault, 0, f"{'the agent of ' if fault.agent else ''}node {node.name}")
        for process in node.alive():
            self._strikes_process(process, AGENT if fault.agent else fault.kind)
        if fault.agent:
            node.still.stop_agent(fault.for_s)
        elif fault.kind == "freeze":
            node.still.freeze(fault.for_s)
        elif fault.kind == "lose_node":
            node.lose_power(for_s=fault.for_s)
        elif fault.kind == "cut":
            node.link.cut(fault.for_s)
        else:
            node.link.lags_until_s = world.frame.now_s + fault.for_s

    def _strike(self, process: SimulatedProcess, fault: PlannedFault) -> None:
        world = self._world
        if fault.rank is None:
            self._strike_thing(fault)
            return
        if not process.alive or world.frame.end is not None:
            return
        if fault.kind in NODE_KINDS:
            nodes = world.population.nodes
            self._strike_node(fault, next(one for one in nodes if one is process.node))
            return
        process.node.stir()
        self._note(fault, process.worker, f"worker {process.worker} (rank {process.rank})")
        self._strikes_process(process, fault.kind)
        if fault.kind in ("kill", "exit"):
            process.node.end(process, *((None, 9) if fault.kind == "kill" else (3, None)))
        elif fault.kind in ("stop", "deaf", "starve"):
            process.stopped, process.listed_stopped, process.starves = (
                True,
                fault.kind == "stop",
                fault.kind == "starve",
            )
            process.stopped_since_s = (
                (process.stopped_since_s or world.frame.now_s) if process.listed_stopped else None
            )
            world.frame.timeline.after(fault.for_s, lambda: self._go_on(process), sort=FIXED)
        elif fault.kind == "hang":
            process.hung = True
        elif fault.kind == "hold":
            process.held_until_s = world.frame.now_s + fault.for_s
        elif fault.kind == "mute":
            process.mute_until_s = world.frame.now_s + fault.for_s
        elif fault.kind == "linger":
            process.lingers_s = fault.for_s
        elif fault.kind == "repeat":
            process.repeats_until_s = world.frame.now_s + fault.for_s
        else:
            process.error = {"raise": "boom", "refuse": "refused"}[fault.kind]

    def _go_on(self, process: SimulatedProcess) -> None:
        if process.dying:
            return
        since_s, process.stopped_since_s = process.stopped_since_s, None
        # there may have been no coordinator that could learn of it
        cut_off = any(
            fault.agent or fault.kind in (*NODE_KINDS, "lose_coordinator")
            for _, fault, _ in self.struck
        )
        if since_s is not None and process.alive and self._world.frame.end is None and not cut_off:
            now_s, asked_s = self._world.frame.now_s, process.asked_since_s
            self._world.frame.see(
                StoppedProcessWentOn(
                    process.worker,
                    process.rank,
                    now_s - since_s,
                    0.0 if asked_s is None else now_s - asked_s,
                )
            )
        process.node.stir()
        process.stopped = process.listed_stopped = process.starves = False
        process.catch_up()
