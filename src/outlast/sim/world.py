"""A world around the protocol: one coordinator, one agent, processes, links between them, a store, and what strikes them.

Coordinator, agent and each worker's listener are the machines of the product; only what they would do to the world is simulated. Main
threads are generators (`script.py`). Links keep the order of what one process says or is told; else messages overtake each
other by up to the latency. Everything that is drawn comes from one seed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from outlast.engine.protocol.agent import Agent, Reading
from outlast.engine.protocol.coordinator import Coordinator, CoordinatorOptions, Restart
from outlast.engine.protocol.outputs import (
    Answer,
    Deliver,
    End,
    HostStore,
    Kill,
    Output,
    Plan,
    Record,
    Say,
    SetTimer,
    Spawn,
    Tell,
    Terminate,
    ToAgent,
    ToCoordinator,
    Wake,
)
from outlast.engine.protocol.worker import WorkerMachine
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import Message, Pong, Regroup, StoreLost, StoreUp, WorkerExited, WorkerStarted
from outlast.model.records import Interruption
from outlast.model.terms import Phase
from outlast.sim.checkers import Jury
from outlast.sim.collectives import Collectives
from outlast.sim.draws import Stream
from outlast.sim.observations import NothingMoves, Observation, Planned, RankGiven, RunOver, StepDone
from outlast.sim.options import Options
from outlast.sim.processes import PeerFailure, Process, Thread
from outlast.sim.strikes import Strikes
from outlast.sim.timeline import LATE, Timeline
from outlast.sim.trace import Trace

REST_MAX_S = 60.0
TYPICAL_S = {Phase.BODY: 0.03, Phase.VOTE: 0.005, Phase.APPLY: 0.005, Phase.SNAPSHOT: 0.005, Phase.DATA: 0.001}
Script = Callable[["World", Process], Thread]


class World:
    """`run` returns what the run ended with, or None where it did not end. `jury` has seen all of it.

    rests   ticks of the agent that can lead to nothing are left out: the same course, in less time
    steady  all work and all messages take the least time
    """

    def __init__(self, *, options: Options, script: Script, faults: tuple[PlannedFault, ...] = (), seed: int = 0,
                 rests: bool = True, steady: bool = False) -> None:  # fmt: skip
        self.options = options
        self.began_s = 100.0  # not 0: a time that somebody forgot is seen
        self.timeline = Timeline(began_s=self.began_s)
        self.trace = Trace(began_s=self.began_s)
        self.jury = Jury()
        self.work = Stream(seed, "work", steady=steady)
        self._links = Stream(seed, "links", steady=steady)
        self._kernel = Stream(seed, "kernel", steady=steady)
        self.coordinator = Coordinator(
            options=CoordinatorOptions(
                options.ranks, Restart(), spares=options.spares, spare_kind=options.spare_kind, max_restarts=options.max_restarts, checkpoint=("", 0)
            )
        )
        self.agent = Agent(now_s=self.began_s, hang_after_s=options.silence_s if options.way == "plain" else None)
        self.collectives = Collectives(self.timeline, Stream(seed, "collectives", steady=steady), ranks=options.ranks, resume=self._resume_if)
        self.strikes = Strikes(self, faults)
        self.processes: dict[int, Process] = {}
        self.slots: dict[int, dict[int, int]] = {}  # rank -> slot -> step
        self.transfer: tuple[int, int] | None = None  # generation, step of the transfer image
        self.heard_s: dict[int, float] = {}  # worker -> when it last printed something
        self.interruptions: dict[int, Interruption] = {}
        self.commits: list[tuple[float, int, int, int]] = []  # time, generation, rank, step
        self.committed = 0  # the newest step committed by anybody (sharded: sealed by all)
        self.rolled_back: list[tuple[int, int]] = []  # step known, step gone back to
        self.marks: dict[str, int] = {}
        self.store_lives = False
        self.end: End | None = None
        self._stop_asked = False
        self._script = script
        self._store = 0
        self._doomed: set[int] = set()  # killed, forked or not
        self._sent_s: dict[tuple[str, int], float] = {}
        self._timers: dict[str, int] = {}
        self._rests = rests
        self._ticks = 0  # of the agent, those that were left out included
        self._is_tick = False  # the event at hand
        self._planned_tick = 0  # the tick that is due next

    @property
    def now_s(self) -> float:
        return self.timeline.now_s

    # --- time ----------------------------------------------------------------------------------------------

    def run(self, *, bound_s: float) -> End | None:
        self.led(lambda: self.coordinator.start(now_s=self.now_s))
        self._plan_tick(1)
        self.strikes.arm()
        while not self._over():
            due_s = self.timeline.next_s
            if due_s is None or due_s > self.began_s + bound_s or self.jury.violations:
                break
            self._is_tick = False
            self.timeline.step()
            if not self._is_tick:
                self._stir()
        if self.end is None and not self.jury.violations:
            self.see(NothingMoves(bound_s, self.describe()))
        return self.end

    def ask_stop(self, *, reason: str, exit_code: int) -> None:
        """Somebody wants the run to end."""
        self._stop_asked = True
        self.led(lambda: self.coordinator.ask_stop(now_s=self.now_s, reason=reason, exit_code=exit_code))

    def _over(self) -> bool:
        return self.end is not None and not any(process.alive for process in self.processes.values())

    def see(self, seen: Observation) -> None:
        self.jury.see(self.now_s - self.began_s, seen)

    def say(self, what: str) -> None:
        self.trace.line(self.now_s, what)

    def lasting(self, least_s: float, most_s: float) -> float:
        """How long some work of the script takes."""
        return self.work.between(least_s, most_s)

    def describe(self) -> str:
        who = "; ".join(
            f"worker {p.worker} rank {p.rank} {p.machine.state.value} g{p.machine.generation} {p.beacon.phase.value} waits {p.waits and p.waits[0]}"
            for p in self.processes.values() if p.alive
        )  # fmt: skip
        return f"{self.coordinator.stage.value} g{self.coordinator.generation} step {self.coordinator.step}: {who}"

    def _link(self, name: str, worker: int, act: Callable[[], None]) -> None:
        """In order for one worker; others may be overtaken. What comes from the kernel is never held."""
        process = self.processes.get(worker)
        at_s = max(self.now_s + self._links.between(0.0001, max(self.options.latency_s, 0.0001)), self._sent_s.get((name, worker), 0.0))
        if process is not None and name == "to worker":
            at_s = max(at_s, process.held_until_s)
        self._sent_s[name, worker] = at_s
        self.timeline.after(at_s - self.now_s, act)
        if process is not None and name != "news" and process.repeats_until_s > self.now_s:
            self.timeline.after(at_s - self.now_s, act)

    # --- the node ------------------------------------------------------------------------------------------

    def _plan_tick(self, number: int) -> None:
        """The agent's tick `number`, counted from the beginning; after whatever else happens at that moment."""
        self._planned_tick = number
        self.timeline.after(self.began_s + number * limits.TICK_S - self.now_s, partial(self._tick, number), priority=LATE)

    def _stir(self) -> None:
        """Something happened: the agent's rest is over, and the next tick is the one that would have come anyway."""
        number = max(self._ticks, math.floor((self.now_s - self.began_s) / limits.TICK_S)) + 1
        if self.end is None and number < self._planned_tick:
            self.agent.rest(until_s=self.began_s + (number - 1) * limits.TICK_S)
            self._plan_tick(number)

    def _tick(self, number: int) -> None:
        self._is_tick = True
        if number != self._planned_tick or self.end is not None:
            return  # somebody stirred, and another tick took its place
        self._ticks = number
        self._look()
        due_s = self.agent.quiet_until_s() if self._rests else 0.0
        following = max(number + 1, math.floor((min(due_s, self.now_s + REST_MAX_S) - self.began_s) / limits.TICK_S))
        if following > number + 1:
            self.agent.rest(until_s=self.began_s + (following - 1) * limits.TICK_S)
        self._plan_tick(following)

    def _look(self) -> None:
        readings = {p.worker: Reading(replace(p.beacon), p.listed_stopped) for p in self.processes.values() if p.alive}
        self._do(self.agent.on_tick(readings, now_s=self.now_s, heard_s=self.heard_s))

    def _do(self, outputs: list[Output]) -> None:
        for output in outputs:
            self._carry_out(output)

    def _carry_out(self, output: Output) -> None:
        if isinstance(output, ToAgent):
            command = output.message
            self.say(f"coordinator: {_brief(command)}")
            self._link("command", 0, lambda: self._do(self.agent.on_command(command, now_s=self.now_s)))
        elif isinstance(output, ToCoordinator):
            news = output.message
            self._link("news", getattr(news, "worker", 0), lambda: self._hear(news))
        elif isinstance(output, Deliver):
            self._link("to worker", output.worker, lambda: self._deliver(output))
        elif isinstance(output, Kill):
            self._doomed.add(output.worker)
            self.timeline.after(self._kernel.between(0.0005, 0.005), lambda: self.end_process(self.processes.get(output.worker), None, 9))
        elif isinstance(output, Spawn):
            self.timeline.after(self._kernel.between(0.01, 0.03), lambda: self._spawn(output))
        elif isinstance(output, Terminate):
            self.end_process(self.processes.get(output.worker), None, 15)
        elif isinstance(output, HostStore):
            self._store += 1
            port = self._store
            self.timeline.after(self._kernel.between(0.005, 0.05), lambda: self._store_up(port))
        else:
            self._for_the_run(output)

    def _for_the_run(self, output: Output) -> None:
        if isinstance(output, SetTimer):
            number = self._timers[output.name] = self._timers.get(output.name, 0) + 1
            if output.at_s is not None:
                self.timeline.after(output.at_s - self.now_s, lambda: self._timer(output.name, number))
        elif isinstance(output, Record) and isinstance(output.record, Interruption):
            self.interruptions[output.record.id] = output.record
        elif isinstance(output, Tell):
            self.say(f"coordinator tells: {output.text}")
        elif isinstance(output, End):
            self._ended(output)

    def _ended(self, end: End) -> None:
        self.end = end
        self.say(f"the run is {end.state}, exit code {end.exit_code}: {end.reason}")
        alive = tuple(process.worker for process in self.processes.values() if process.alive and process.rank >= 0)
        still_open = tuple(one.id for one in self.interruptions.values() if one.resumed_s is None)
        self.see(
            RunOver(
                state=end.state, exit_code=end.exit_code, reason=end.reason, committed=self.committed, until=self.options.steps, trained=bool(self.commits),
                plain=self.options.way == "plain", stop_asked=self._stop_asked, alive=alive, open_interruptions=still_open,
                interruptions=len(self.interruptions), strikes=len(self.strikes.struck),
            )
        )  # fmt: skip
        for process in list(self.processes.values()):
            self.end_process(process, None, 9)

    def _timer(self, name: str, number: int) -> None:
        if self._timers[name] == number and self.end is None:
            self.led(lambda: self.coordinator.on_timer(now_s=self.now_s, name=name))

    def _hear(self, news: Any) -> None:
        if type(news).__name__ != "Progress":
            self.say(f"{_brief(news)}")
        self.led(lambda: self.coordinator.on_message(news, now_s=self.now_s))

    def led(self, act: Callable[[], list[Output]]) -> None:
        """Drive the coordinator, and look at the plans that it made."""
        generation, committed = self.coordinator.generation, self.committed
        outputs = act()
        if self.coordinator.generation != generation:
            steps = tuple(m.plan.step for m in self.coordinator.roster.members() if m.plan is not None and m.plan.generation == self.coordinator.generation)
            self.see(Planned(self.coordinator.generation, steps, committed, self._holders(committed)))
            self.say(f"generation {self.coordinator.generation} from step {min(steps, default=0)}")
            if steps and min(steps) < committed:
                self.rolled_back.append((committed, min(steps)))
                self.committed = min(steps)
        self._do(outputs)

    def _holders(self, step: int) -> tuple[int, ...]:
        """Ranks that hold `step`, if that is enough to go on from it: one under replicated state, all under sharded."""
        if self.options.way == "sharded":
            held = tuple(rank for rank in range(self.options.ranks) if step in self.slots.get(rank, {}).values())
            return held if len(held) == self.options.ranks else ()
        return tuple(p.rank for p in self.processes.values() if p.alive and p.rank >= 0 and p.worker not in self._doomed and p.content >= step)

    def _store_up(self, port: int) -> None:
        if port == self._store:
            self.store_lives = True
            self._do(self.agent.on_event(StoreUp("here", port), now_s=self.now_s))

    def lose_store(self) -> None:
        """Who is on its way into a group raises; groups that stand need no store."""
        if not self.store_lives:
            return
        self.store_lives = False
        self._do(self.agent.on_event(StoreLost("it ended"), now_s=self.now_s))
        for process in self.processes.values():
            if process.alive and process.waits is not None and process.waits[0] == "build":
                self.collectives.wake(process, PeerFailure("the store is gone"))

    # --- processes -----------------------------------------------------------------------------------------

    def _spawn(self, order: Spawn) -> None:
        assert order.worker not in self.processes, "a worker's number is given twice"
        machine, beacon = WorkerMachine(worker=order.worker), Beacon(worker=order.worker, rank=order.rank)
        process = Process(order.worker, order.rank, order.kind, order.generation, machine, beacon)
        process.beacon.typical_s.update(TYPICAL_S)
        self.processes[order.worker] = process
        process.main = self._script(self, process)
        self.event(process, WorkerStarted(order.worker, 1000 + order.worker, "node", self.now_s))
        if order.worker in self._doomed:
            self.end_process(process, None, 9)
        else:
            self._resume(process, None, None)

    def event(self, process: Process, message: Any) -> None:
        """Of the kernel, to the agent."""
        self._link("from worker", process.worker, lambda: self._do(self.agent.on_event(message, now_s=self.now_s)))

    def tell(self, process: Process, message: Any) -> None:
        """Of the process, to the agent."""
        self._link("from worker", process.worker, lambda: self._do(self.agent.on_worker(message, now_s=self.now_s)))

    def end_process(self, process: Process | None, exit_code: int | None, signal: int | None) -> None:
        if process is None or not process.alive:
            return
        process.alive = False
        self.say(f"worker {process.worker} (rank {process.rank}) ends: {f'signal {signal}' if signal else f'exit code {exit_code}'}")
        self.collectives.leave(process, well=exit_code == 0)
        if process.main is not None and inspect.getgeneratorstate(process.main) != inspect.GEN_RUNNING:
            process.main.close()
        rank = process.beacon.rank
        steps = tuple(sorted(self.slots.get(rank, {}).values(), reverse=True)) if rank >= 0 else ()
        committed, phase = process.beacon.step, process.beacon.phase.value
        self.event(
            process, WorkerExited(process.worker, 1000 + process.worker, exit_code, signal, False, committed, steps, steps, phase, self.now_s, self.now_s, "")
        )

    def _deliver(self, order: Deliver) -> None:
        process = self.processes.get(order.worker)
        if process is None or not process.alive:
            return
        if process.stopped:
            process.backlog.append(lambda: self._deliver(order))
            return
        if isinstance(order.message, Regroup):
            rank = order.message.rank
            others = tuple(p.worker for p in self.processes.values() if p is not process and p.alive and rank in (p.rank, p.beacon.rank))
            self.see(RankGiven(process.worker, order.message, others))
            process.rank = rank
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
            self.end_process(process, ended.value, None)
            return
        if not process.alive:
            process.main.close()
            return
        process.waits = waits
        token = process.token
        if waits[0] == "sleep":
            self.timeline.after(waits[1], lambda: self._resume_if(process, token, None))
        elif waits[0] == "plan":
            self._offer_plan(process)
        elif waits[0] == "collective":
            self.collectives.enter(process)
        else:
            self._build(process, waits[1])

    def _offer_plan(self, process: Process) -> None:
        plan = process.machine.plan
        if plan is not None and process.waits is not None and plan.generation > process.waits[1]:
            token = process.token
            self.timeline.after(0.0, lambda: self._resume_if(process, token, None, plan))

    def _build(self, process: Process, plan: Regroup) -> None:
        if (process.machine.broken and process.machine.generation == plan.generation) or plan.store_port != self._store or not self.store_lives:
            self.collectives.wake(process, PeerFailure("cancelled"))
        else:
            self.collectives.build(process, plan)

    # --- what the script tells -----------------------------------------------------------------------------

    def passes(self, process: Process, mark: str) -> None:
        """The main thread is at `mark`."""
        self.marks[mark] = self.marks.get(mark, 0) + 1
        self.strikes.at_mark(process, mark)

    def enter(self, process: Process, phase: Phase) -> None:
        beacon, machine = process.beacon, process.machine
        beacon.phase, beacon.beats, beacon.at_ns = phase, beacon.beats + 1, int(self.now_s * 1e9)
        beacon.generation, beacon.step, beacon.prepared = machine.generation, max(machine.committed, 0), max(machine.prepared, 0)

    def has_committed(self, process: Process, step: int) -> None:
        generation = process.machine.generation
        owners = tuple(p.worker for p in self.processes.values() if p.alive and p.rank == process.rank)
        self.see(StepDone(process.worker, process.rank, generation, step, owners))
        self.commits.append((self.now_s, generation, process.rank, step))
        self.say(f"rank {process.rank} commits step {step} in generation {generation}")
        if self.options.way == "sharded":
            sealed = [max(self.slots.get(rank, {}).values(), default=0) for rank in range(self.options.ranks)]
            self.committed = max(self.committed, min(sealed))
        else:
            self.committed = max(self.committed, step)


def _brief(message: Message) -> str:
    """A message in a line of the trace."""
    inner = getattr(message, "message", None)
    worker = f" {message.worker}" if hasattr(message, "worker") else ""
    return f"{type(message).__name__}{worker}{': ' + type(inner).__name__ if inner is not None else ''}"
