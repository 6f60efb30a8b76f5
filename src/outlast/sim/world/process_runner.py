"""The kernel of one node. It runs the main threads of its processes, and ends them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from outlast.model.messages import Regroup, WorkerExited
from outlast.model.terms import Phase
from outlast.sim.shortcuts import identical_ranks
from outlast.sim.world.node_ports import Surroundings
from outlast.sim.world.processes import Home, PeerFailure, SimulatedProcess
from outlast.sim.world.standstill import Gate
from outlast.sim.world.timeline import BUSY, FIXED


class ProcessRunner:
    """Run each main thread up to its next wait, and end processes.

    A main thread is a generator that yields what it waits for (see processes.Act).

    kernel     a gate that is shut while the node stands still
    to_agent   passes an event to the agent
    reap       lets the agent handle the end of a process
    """

    def __init__(
        self,
        world: Surroundings,
        node: Home,
        kernel: Gate,
        *,
        to_agent: Callable[[SimulatedProcess, Callable[[], None]], None],
        reap: Callable[[SimulatedProcess, WorkerExited], None],
    ) -> None:
        self._world = world
        self._frame = world.frame
        self._node = node
        self._kernel = kernel
        self._to_agent = to_agent
        self._reap = reap

    def sleeps_no_more(self, process: SimulatedProcess) -> None:
        if process.alarm:
            self._frame.timeline.cancel(process.alarm, sort=BUSY)
            process.alarm = 0

    def wakes(self, process: SimulatedProcess) -> bool:
        waits = process.waits
        return waits is not None and (
            waits[0] in ("collective", "build")
            or (waits[0] == "sleep" and process.in_body and not process.hung)
        )

    def resume_if(
        self, process: SimulatedProcess, token: int, error: Exception | None, value: Any = None
    ) -> None:
        if not process.alive or process.token != token:
            return
        if process.stopped or self._kernel.shut:
            process.backlog.append(lambda: self.resume_if(process, token, error, value))
        elif not process.hung:
            self.resume(process, value, error)

    def _wakes_up(self, process: SimulatedProcess, token: int) -> None:
        process.alarm = 0
        self.resume_if(process, token, None)

    def resume(self, process: SimulatedProcess, value: Any, error: Exception | None) -> None:
        """Run the main thread up to its next wait."""
        assert process.main is not None
        self._node.stir()
        process.waits = None
        process.token += 1
        try:
            waits = process.main.throw(error) if error is not None else process.main.send(value)
        except StopIteration as ended:
            self.end(process, ended.value, None)
            return
        if not process.alive:
            process.main.close()
            return
        process.waits = waits
        token = process.token
        if waits[0] == "sleep":
            process.alarm = self._frame.timeline.after(
                waits[1], partial(self._wakes_up, process, token)
            )
        elif waits[0] == "plan":
            self.offer_plan(process)
        elif waits[0] == "collective":
            self._world.collectives.enter(process)
        elif waits[0] == "barrier":
            self._world.skip_ahead.arrive(process)
        else:
            self._build(process, waits[1])

    def offer_plan(self, process: SimulatedProcess) -> None:
        plan = (
            process.machine.newer_plan(than=process.waits[1]) if process.waits is not None else None
        )
        if plan is not None:
            token = process.token
            self._frame.timeline.after(0.0, lambda: self.resume_if(process, token, None, plan))

    def _build(self, process: SimulatedProcess, plan: Regroup) -> None:
        store = self._world.store
        if (
            (process.machine.broken and process.machine.generation == plan.generation)
            or plan.store_port != store.port
            or store.home is None
            or not store.lives
        ):
            self._world.collectives.wake(process, PeerFailure("cancelled"))
        else:
            self._world.collectives.build(process, plan, store.home)

    # --- ends --------------------------------------------------------------------------------

    def kill(self, process: SimulatedProcess | None) -> None:
        """End a process as SIGKILL does.

        A process that is in the kernel runs no more code of its own, and ends later.
        """
        if process is None or not process.alive or process.dying:
            return
        if process.lingers_s:
            process.dying = process.stopped = True
            self._frame.timeline.after(
                process.lingers_s, lambda: self.end(process, None, 9), sort=FIXED
            )
        else:
            self.end(process, None, 9)

    def terminate(self, process: SimulatedProcess | None) -> None:
        """End a process as SIGTERM does, because the script does not handle the signal.

        A stopped process receives the signal when it goes on.
        """
        if process is None or not process.alive or process.dying:
            return
        if process.listed_stopped:
            process.asked_since_s = process.asked_since_s or self._frame.timeline.now_s
            process.backlog.append(lambda: self.terminate(process))
        else:
            self.end(process, None, 15)

    def end(
        self, process: SimulatedProcess | None, exit_code: int | None, signal: int | None
    ) -> None:
        """End a process and each of its mates, and report it to the agent."""
        if process is None or not process.alive:
            return  # something else has already ended it
        if process.mates:
            for mate in tuple(process.mates):
                self.end(mate, exit_code, signal)
            return
        if process.stand_in is not None:
            identical_ranks.leave(process)
        process.alive, process.ended_s = False, self._node.now_s
        self._world.population.living -= 1
        self.sleeps_no_more(process)
        if self._node.traced:
            self._frame.say(
                f"worker {process.worker} (rank {process.rank}) ends:"
                f" {f'signal {signal}' if signal else f'exit code {exit_code}'}"
            )
        self._world.population.lives.ended(process, now_s=self._frame.now_s)
        self._world.collectives.leave(process, well=exit_code == 0)
        if process.rank >= 0:
            self._world.skip_ahead.give_up()
        if exit_code == 0:
            self._world.population.done.add(process.rank)
        if (
            process.rank < 0
            and process.worker not in self._node.doomed
            and process.beacon.phase is not Phase.PARKED
        ):
            self._world.spare_ended_early()
        if (
            process.main is not None
            and inspect.getgeneratorstate(process.main) != inspect.GEN_RUNNING
        ):
            process.main.close()
        exited = self._exit_of(process, exit_code, signal)
        self._to_agent(process, lambda: self._reap(process, exited))

    def _exit_of(
        self, process: SimulatedProcess, exit_code: int | None, signal: int | None
    ) -> WorkerExited:
        """Return the report of an ended process, from the kernel, its beacon and its slots."""
        rank, now_s = process.beacon.rank, self._node.now_s
        slots = self._node.slots.get(rank, {}) if rank >= 0 else {}
        steps = tuple(sorted(slots.values(), reverse=True))
        return WorkerExited(
            process.worker,
            process.pid,
            exit_code,
            signal,
            False,
            process.beacon.step,
            steps,
            steps,
            process.beacon.phase.value,
            now_s,
            now_s,
            "",
        )


def waits_for_plan(process: SimulatedProcess) -> bool:
    return process.waits is not None and process.waits[0] == "plan"
