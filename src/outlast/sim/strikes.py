"""Planned faults at work in a simulated world: each strikes when it is due, and is counted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from outlast.engine.protocol.state import Stage
from outlast.model.fault_plan import PlannedFault
from outlast.sim.observations import WentOn
from outlast.sim.processes import Process

if TYPE_CHECKING:
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
        return tuple(sorted({fault.kind for _, fault, worker in self.struck if fault.rank is not None and self._world.node.processes[worker].pid in pids}))

    @property
    def harmful(self) -> int:
        """How often something was struck that the run may take for a fault."""
        return sum(fault.kind not in HARMLESS for _, fault, _ in self.struck)

    def pids(self) -> tuple[int, ...]:
        """Processes that may be blamed. The store has none here: nobody is to blame for it."""
        pids = {self._world.node.processes[worker].pid for _, fault, worker in self.struck if fault.rank is not None and fault.kind not in HARMLESS}
        return tuple(sorted(pids))

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

    def _strike_holder(self, fault: PlannedFault) -> None:
        for process in self._world.node.alive():
            if fault.rank is None or process.rank == fault.rank:
                self._strike(process, fault)
                return

    def _strike(self, process: Process, fault: PlannedFault) -> None:
        world = self._world
        if not process.alive or world.end is not None:
            return
        world.say(f"FAULT {fault.id}: {fault.kind} strikes {f'worker {process.worker} (rank {process.rank})' if fault.rank is not None else 'the store'}")
        if world.interruptions and any(one.resumed_s is None for one in world.interruptions.values()) and world.coordinator.stage is not Stage.STOPPING:
            self.in_recovery.append(fault.id)
        self.struck.append((world.now_s, fault, process.worker))
        if fault.kind in ("kill", "exit"):
            world.node.end(process, *((None, 9) if fault.kind == "kill" else (3, None)))
        elif fault.kind in ("stop", "deaf"):
            process.stopped, process.listed_stopped = True, fault.kind == "stop"
            process.stopped_since_s = (process.stopped_since_s or world.now_s) if process.listed_stopped else None
            world.timeline.after(fault.for_s, lambda: self._go_on(process))
        elif fault.kind == "hang":
            process.hung = True
        elif fault.kind == "lose_store":
            world.node.lose_store()
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
        if since_s is not None and process.alive and self._world.end is None:
            self._world.see(WentOn(process.worker, process.rank, self._world.now_s - since_s))
        process.stopped = process.listed_stopped = False
        backlog, process.backlog = process.backlog, []
        for act in backlog:
            act()
