"""Planned faults at work in a simulated world: each strikes when it is due, and is counted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from outlast.engine.protocol.state import Stage
from outlast.model.fault_plan import NODE_KINDS, PlannedFault
from outlast.sim.observations import WentOn
from outlast.sim.processes import Process

if TYPE_CHECKING:
    from outlast.sim.node import Node
    from outlast.sim.world import World


HARMLESS = ("repeat", "linger")  # nobody has lost anything by these alone: a run that takes them for a fault is wrong


class Strikes:
    """`struck`: each time, with the second and the worker; `fired`: ids in the order in which they first struck; `in_recovery`: those that struck
    while a fault was being dealt with.
    """

    def __init__(self, world: World, faults: tuple[PlannedFault, ...]) -> None:
        self.faults = faults
        self.struck: list[tuple[float, PlannedFault, int]] = []
        self.in_recovery: list[str] = []
        self._world = world
        self._kinds: dict[int, set[str]] = {}  # pid -> what struck it
        self._visits: dict[tuple[int | None, str], int] = {}

    @property
    def fired(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(fault.id for _, fault, _ in self.struck))

    def arm(self) -> None:
        """The run begins."""
        for fault in self.faults:
            if fault.at_s is not None:
                self._world.timeline.after(fault.at_s + fault.after_s, partial(self._strike_holder, fault))

    def kinds(self, pids: tuple[int, ...]) -> tuple[str, ...]:
        """Of the faults that struck these processes."""
        return tuple(sorted({kind for pid in pids for kind in self._kinds.get(pid, ())}))

    @property
    def harmful(self) -> int:
        """How often something was struck that the run may take for a fault."""
        return sum(fault.kind not in HARMLESS for _, fault, _ in self.struck)

    @property
    def held_up_s(self) -> float:
        """Messages on some line may have waited for so long."""
        return sum(fault.for_s for _, fault, _ in self.struck if fault.kind == "lag")

    def pids(self) -> tuple[int, ...]:
        """Processes that may be blamed. Neither the store nor the coordinator has one here: nobody is to blame for them."""
        return tuple(sorted(pid for pid, kinds in self._kinds.items() if kinds - set(HARMLESS)))

    def fenced(self, process: Process) -> None:
        """Its agent kills it, for the lease is out: whatever struck the line or the coordinator has struck it."""
        for kind in {fault.kind for _, fault, _ in self.struck if fault.kind in ("cut", "lag", "lose_coordinator")}:
            self._strikes_process(process, kind)

    def _strikes_process(self, process: Process, kind: str) -> None:
        self._kinds.setdefault(process.pid, set()).add(kind)

    def at_mark(self, process: Process, mark: str) -> None:
        for rank in (process.rank, None):  # visits of this rank, and of anybody
            self._visits[rank, mark] = self._visits.get((rank, mark), 0) + 1
        for fault in self.faults:
            if fault.rank not in (process.rank, None):
                continue
            here = fault.mark == mark and fault.nth <= self._visits[fault.rank, mark] < fault.nth + fault.times
            if here or (fault.at_step is not None and mark == "body" and process.machine.committed + 1 == fault.at_step and fault.id not in self.fired):
                if fault.after_s:
                    self._world.timeline.after(fault.after_s, partial(self._strike, process, fault))
                else:
                    self._strike(process, fault)

    def at_stage(self, stage: str) -> None:
        """The coordinator is in `stage` now."""
        self._visits[None, stage] = self._visits.get((None, stage), 0) + 1
        for fault in self.faults:
            if fault.rank is None and fault.mark == stage and fault.nth <= self._visits[None, stage] < fault.nth + fault.times:
                self._world.timeline.after(fault.after_s, partial(self._strike_thing, fault))

    def _strike_holder(self, fault: PlannedFault) -> None:
        if fault.rank is None:
            self._strike_thing(fault)
            return
        for process in self._world.alive():
            if process.rank == fault.rank:
                self._strike(process, fault)
                return

    def _note(self, fault: PlannedFault, worker: int, whom: str) -> None:
        world = self._world
        world.say(f"FAULT {fault.id}: {fault.kind} strikes {whom}")
        stage, rebuilt = world.coordinator.stage, world.hq.lives and world.coordinator.stage is not Stage.REBUILDING
        if stage is not Stage.STOPPING and (not rebuilt or any(one.resumed_s is None for one in world.interruptions.values())):
            self.in_recovery.append(fault.id)
        self.struck.append((world.now_s, fault, worker))

    def _strike_thing(self, fault: PlannedFault) -> None:
        """What is no process."""
        world = self._world
        if world.end is not None:
            return
        if fault.node is None:
            self._note(fault, 0, "the store" if fault.kind == "lose_store" else "the coordinator")
            if fault.kind == "lose_store":
                world.store.lose()
            else:
                world.hq.die(for_s=fault.for_s)
            return
        self._strike_node(fault, world.nodes[fault.node])

    def _strike_node(self, fault: PlannedFault, node: Node) -> None:
        world = self._world
        self._note(fault, 0, f"node {node.name}")
        for process in node.alive():
            self._strikes_process(process, fault.kind)
        if fault.kind == "lose_node":
            node.lose_power(for_s=fault.for_s)
        elif fault.kind == "cut":
            node.cable.cut(fault.for_s)
        else:
            node.cable.lags_until_s = world.now_s + fault.for_s

    def _strike(self, process: Process, fault: PlannedFault) -> None:
        world = self._world
        if fault.rank is None:
            self._strike_thing(fault)
            return
        if not process.alive or world.end is not None:
            return
        if fault.kind in NODE_KINDS:
            self._strike_node(fault, process.node)
            return
        process.node.stir()
        self._note(fault, process.worker, f"worker {process.worker} (rank {process.rank})")
        self._strikes_process(process, fault.kind)
        if fault.kind in ("kill", "exit"):
            process.node.end(process, *((None, 9) if fault.kind == "kill" else (3, None)))
        elif fault.kind in ("stop", "deaf"):
            process.stopped, process.listed_stopped = True, fault.kind == "stop"
            process.stopped_since_s = (process.stopped_since_s or world.now_s) if process.listed_stopped else None
            world.timeline.after(fault.for_s, lambda: self._go_on(process))
        elif fault.kind == "hang":
            process.hung = True
        elif fault.kind == "hold":
            process.held_until_s = world.now_s + fault.for_s
        elif fault.kind == "mute":
            process.mute_until_s = world.now_s + fault.for_s
        elif fault.kind == "linger":
            process.lingers_s = fault.for_s
        elif fault.kind == "repeat":
            process.repeats_until_s = world.now_s + fault.for_s
        else:
            process.error = {"raise": "boom", "refuse": "refused"}[fault.kind]

    def _go_on(self, process: Process) -> None:
        if process.dying:
            return
        since_s, process.stopped_since_s = process.stopped_since_s, None
        cut_off = any(fault.kind in (*NODE_KINDS, "lose_coordinator") for _, fault, _ in self.struck)  # nobody may have been there to be told
        if since_s is not None and process.alive and self._world.end is None and not cut_off:
            self._world.see(WentOn(process.worker, process.rank, self._world.now_s - since_s))
        process.node.stir()
        process.stopped = process.listed_stopped = False
        backlog, process.backlog = process.backlog, []
        for act in backlog:
            act()
