"""One node: its agent, the processes it hosts, and the host of the store.

The agent and each process's listener are the machines of the product; what they would do to the world is simulated here. A process's
main thread is a generator (script.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlast.engine.protocol.agent import Agent, Reading
from outlast.engine.protocol.outputs import Answer, Deliver, HostStore, Kill, Output, Plan, Say, Spawn, Terminate, ToCoordinator, Wake
from outlast.engine.protocol.worker import WorkerMachine
from outlast.model.beacon import Beacon
from outlast.model.booking import Book
from outlast.model.messages import Pong, Regroup, StoreLost, StoreUp, WorkerExited, WorkerStarted
from outlast.model.terms import Cause, Phase
from outlast.sim.collectives import Collectives
from outlast.sim.draws import Stream
from outlast.sim.links import Links
from outlast.sim.observations import RankGiven
from outlast.sim.processes import PeerFailure, Process, Thread
from outlast.sim.watch import Watch

if TYPE_CHECKING:
    from outlast.sim.world import World

TYPICAL_S = {Phase.BODY: 0.03, Phase.VOTE: 0.005, Phase.APPLY: 0.005, Phase.SNAPSHOT: 0.005, Phase.DATA: 0.001}
Script = Callable[["World", Process], Thread]


class Node:
    """`heard_s`: when a worker last printed something. `doomed`: workers that the agent has killed, forked by then or not."""

    def __init__(self, world: World, *, script: Script, links: Links, kernel: Stream, collectives: Stream, rests: bool) -> None:
        options = world.options
        self._world = world
        self._script = script
        self._links = links
        self._kernel = kernel
        self.agent = Agent(now_s=world.now_s, hang_after_s=options.silence_s if options.way == "plain" else None)
        self.watch = Watch(world.timeline, self.agent, look=self._look, rests=rests)
        self.collectives = Collectives(world.timeline, collectives, ranks=options.ranks, resume=self._resume_if)
        self.processes: dict[int, Process] = {}
        self.heard_s: dict[int, float] = {}
        self.doomed: set[int] = set()
        self.done: set[int] = set()  # ranks whose last process came to its end well
        self._store = 0
        self._store_lives = False

    @property
    def now_s(self) -> float:
        return self._world.now_s

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    # --- the agent -----------------------------------------------------------------------------------------

    def _look(self) -> None:
        readings = {p.worker: Reading(replace(p.beacon), p.listed_stopped) for p in self.processes.values() if not p.reaped}
        self.do(self.agent.on_tick(readings, now_s=self.now_s, heard_s=self.heard_s))

    def do(self, outputs: list[Output]) -> None:
        """What the agent asks for."""
        for output in outputs:
            self._carry_out(output)

    def _carry_out(self, output: Output) -> None:
        after = self._world.timeline.after
        if isinstance(output, ToCoordinator):
            news = output.message
            self._links.send("news", getattr(news, "worker", 0), lambda: self._world.hear(news))
        elif isinstance(output, Deliver):
            process = self.processes.get(output.worker)
            if process is not None:
                self._links.send_to(process, lambda: self._deliver(process, output))
        elif isinstance(output, Kill):
            self.doomed.add(output.worker)
            after(self._kernel.between(0.0005, 0.005), lambda: self._kill(self.processes.get(output.worker)))
        elif isinstance(output, Spawn):
            after(self._kernel.between(0.01, 0.03), lambda: self._spawn(output))
        elif isinstance(output, Terminate):
            self.end(self.processes.get(output.worker), None, 15)
        else:
            assert isinstance(output, HostStore), output
            self._store += 1
            port = self._store
            after(self._kernel.between(0.005, 0.05), lambda: self._store_up(port))

    # --- the store -----------------------------------------------------------------------------------------

    def _store_up(self, port: int) -> None:
        if port == self._store:
            self._store_lives = True
            self.do(self.agent.on_event(StoreUp("here", port), now_s=self.now_s))

    def lose_store(self) -> None:
        """Who is on its way into a group raises; groups that stand need no store."""
        if not self._store_lives:
            return
        self._store_lives = False
        self.do(self.agent.on_event(StoreLost("it ended"), now_s=self.now_s))
        for process in self.alive():
            if process.waits is not None and process.waits[0] == "build":
                self.collectives.wake(process, PeerFailure("the store is gone"))

    # --- processes -----------------------------------------------------------------------------------------

    def _spawn(self, order: Spawn) -> None:
        assert order.worker not in self.processes, "a worker's number is given twice"
        machine, beacon = WorkerMachine(worker=order.worker), Beacon(worker=order.worker, rank=order.rank)
        book = Book(now_s=self.now_s, cause=Cause.STARTUP)
        process = Process(order.worker, order.rank, order.kind, order.generation, machine, beacon, book, self.now_s)
        process.beacon.typical_s.update(TYPICAL_S)
        self.processes[order.worker] = process
        process.main = self._script(self._world, process)
        self.event(process, WorkerStarted(order.worker, 1000 + order.worker, "node", self.now_s))
        if order.worker in self.doomed:
            self.end(process, None, 9)
        else:
            self._resume(process, None, None)

    def event(self, process: Process, message: Any) -> None:
        """Of the kernel, to the agent."""
        self._links.send_from(process, lambda: self.do(self.agent.on_event(message, now_s=self.now_s)))

    def tell(self, process: Process, message: Any) -> None:
        """Of the process, to the agent."""
        self._links.send_from(process, lambda: self.do(self.agent.on_worker(message, now_s=self.now_s)))

    def _kill(self, process: Process | None) -> None:
        """SIGKILL. A process that is in the kernel runs no code of its own any more, and ends later."""
        if process is None or not process.alive or process.dying:
            return
        if process.lingers_s:
            process.dying = process.stopped = True
            self._world.timeline.after(process.lingers_s, lambda: self.end(process, None, 9))
        else:
            self.end(process, None, 9)

    def end(self, process: Process | None, exit_code: int | None, signal: int | None) -> None:
        if process is None or not process.alive:
            return
        process.alive, process.ended_s = False, self.now_s
        self._world.say(f"worker {process.worker} (rank {process.rank}) ends: {f'signal {signal}' if signal else f'exit code {exit_code}'}")
        self._world.lives.ended(process, now_s=self.now_s)
        self.collectives.leave(process, well=exit_code == 0)
        if exit_code == 0:
            self.done.add(process.rank)
        if process.main is not None and inspect.getgeneratorstate(process.main) != inspect.GEN_RUNNING:
            process.main.close()
        rank = process.beacon.rank
        steps = tuple(sorted(self._world.slots.get(rank, {}).values(), reverse=True)) if rank >= 0 else ()
        committed, phase = process.beacon.step, process.beacon.phase.value
        exited = WorkerExited(process.worker, 1000 + process.worker, exit_code, signal, False, committed, steps, steps, phase, self.now_s, self.now_s, "")
        self._links.send_from(process, lambda: self._reap(process, exited))

    def _reap(self, process: Process, exited: WorkerExited) -> None:
        """The agent hears of its end; until then its beacon lies there to be read."""
        process.reaped = True
        self.do(self.agent.on_event(exited, now_s=self.now_s))

    def _deliver(self, process: Process, order: Deliver) -> None:
        if not process.alive:
            return
        if process.stopped:
            process.backlog.append(lambda: self._deliver(process, order))
            return
        if isinstance(order.message, Regroup):
            rank = order.message.rank
            others = tuple(p.worker for p in self.processes.values() if p is not process and p.alive and rank in (p.rank, p.beacon.rank))
            self._world.see(RankGiven(process.worker, order.message, others))
            process.rank = rank
            self.done.discard(rank)
        for output in process.machine.on_message(order.message):
            self.carry_out_in(process, output)

    def carry_out_in(self, process: Process, output: Output) -> None:
        """What the worker's own machine asks for."""
        if isinstance(output, Say):
            self.tell(process, output.message)
        elif isinstance(output, Wake):
            self.collectives.leave(process)
            waits = process.waits
            if waits is not None and (waits[0] in ("collective", "build") or (waits[0] == "sleep" and process.in_body and not process.hung)):
                self.collectives.wake(process, PeerFailure("woken"))
        elif isinstance(output, Plan):
            if process.waits is not None and process.waits[0] == "plan":
                self._offer_plan(process)
        elif isinstance(output, Answer):
            self.tell(process, Pong(process.worker, output.nonce, process.collectives, "script.py:1"))

    # --- main threads --------------------------------------------------------------------------------------

    def _resume_if(self, process: Process, token: int, error: Exception | None, value: Any = None) -> None:
        if not process.alive or process.token != token:
            return
        if process.stopped:
            process.backlog.append(lambda: self._resume_if(process, token, error, value))
        elif not process.hung:
            self._resume(process, value, error)

    def _resume(self, process: Process, value: Any, error: Exception | None) -> None:
        """Run the main thread up to its next wait."""
        assert process.main is not None
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
            self._world.timeline.after(waits[1], lambda: self._resume_if(process, token, None))
        elif waits[0] == "plan":
            self._offer_plan(process)
        elif waits[0] == "collective":
            self.collectives.enter(process)
        else:
            self._build(process, waits[1])

    def _offer_plan(self, process: Process) -> None:
        plan = process.machine.newer_plan(than=process.waits[1]) if process.waits is not None else None
        if plan is not None:
            token = process.token
            self._world.timeline.after(0.0, lambda: self._resume_if(process, token, None, plan))

    def _build(self, process: Process, plan: Regroup) -> None:
        if (process.machine.broken and process.machine.generation == plan.generation) or plan.store_port != self._store or not self._store_lives:
            self.collectives.wake(process, PeerFailure("cancelled"))
        else:
            self.collectives.build(process, plan)
