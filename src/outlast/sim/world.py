"""A world around the protocol: the coordinator, a node, links between them, what is sealed, what strikes, and who watches.

The coordinator is the machine of the product; so are the agent and each worker's listener (node.py). Everything that is drawn comes from one seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from outlast.engine.protocol.coordinator import Coordinator, CoordinatorOptions, Restart
from outlast.engine.protocol.outputs import End, Output, Record, SetTimer, Tell, ToAgent
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import Message, Progress
from outlast.model.records import Interruption
from outlast.model.terms import Cause, Phase
from outlast.sim.checkers import Jury
from outlast.sim.draws import Stream
from outlast.sim.links import Links
from outlast.sim.node import Node, Script
from outlast.sim.observations import Arrived, Booked, Named, NothingMoves, Observation, Planned, Regrouped, RunOver, StepDone
from outlast.sim.options import Options
from outlast.sim.processes import Process
from outlast.sim.seconds import Lives, publish
from outlast.sim.strikes import Strikes
from outlast.sim.timeline import Timeline
from outlast.sim.trace import Trace

BEGAN_S = 100.0  # not 0: a time that somebody forgot is seen


class World:
    """`run` returns what the run ended with, or None where it did not end. `jury` has seen all of it.

    rests   ticks of the agent that can lead to nothing are left out: the same course, in less time
    steady  all work and all messages take the least time
    """

    def __init__(self, *, options: Options, script: Script, faults: tuple[PlannedFault, ...] = (), seed: int = 0,
                 rests: bool = True, steady: bool = False) -> None:  # fmt: skip
        def stream(purpose: str) -> Stream:
            return Stream(seed, purpose, steady=steady)

        self.options = options
        self.timeline = Timeline(began_s=BEGAN_S)
        self.trace = Trace(began_s=BEGAN_S)
        self.jury = Jury()
        self.strikes = Strikes(self, faults)
        self.coordinator = Coordinator(
            options=CoordinatorOptions(
                options.ranks, Restart(), spares=options.spares, spare_kind=options.spare_kind, max_restarts=options.max_restarts, checkpoint=("", 0)
            )
        )
        self._work = stream("work")
        self._links = Links(self.timeline, stream("links"), latency_s=options.latency_s)
        self.node = Node(self, script=script, links=self._links, kernel=stream("kernel"), collectives=stream("collectives"), rests=rests)
        self.slots: dict[int, dict[int, int]] = {}  # rank -> slot -> step
        self.transfer: tuple[int, int] | None = None  # generation, step of the transfer image
        self.interruptions: dict[int, Interruption] = {}
        self.commits: list[tuple[float, int, int, int]] = []  # time, generation, rank, step
        self.committed = 0  # the newest step committed by anybody (sharded: sealed by all)
        self._joined: dict[int, set[int]] = {}  # generation -> ranks that came to be in it
        self._planned_s = 0.0  # when the newest plan was made
        self.rolled_back: list[tuple[int, int]] = []  # step known, step gone back to
        self.marks: dict[str, int] = {}
        self.lives = Lives()
        self._worked_s: dict[
            int, dict[int, float]
        ] = {}  # rank -> step -> how long it was at it when it committed it first; 0: it was given what others had done
        self.end: End | None = None
        self._stop_asked = False
        self._timers: dict[str, int] = {}

    @property
    def now_s(self) -> float:
        return self.timeline.now_s

    @property
    def age_s(self) -> float:
        """Since the beginning."""
        return self.timeline.now_s - BEGAN_S

    # --- time ----------------------------------------------------------------------------------------------

    def run(self, *, bound_s: float) -> End | None:
        self.led(lambda: self.coordinator.start(now_s=self.now_s))
        self.node.watch.begin()
        self.strikes.arm()
        while self.end is None or self.node.alive():
            due_s = self.timeline.next_s
            if due_s is None or due_s > BEGAN_S + bound_s or self.jury.violations:
                break
            self.node.watch.event_begins()
            self.timeline.step()
            self.node.watch.event_ends()
        if self.end is None and not self.jury.violations:
            self.see(NothingMoves(bound_s, self.describe()))
        return self.end

    def ask_stop(self, *, reason: str, exit_code: int) -> None:
        """Somebody wants the run to end."""
        self._stop_asked = True
        self.led(lambda: self.coordinator.ask_stop(now_s=self.now_s, reason=reason, exit_code=exit_code))

    def see(self, seen: Observation) -> None:
        if isinstance(seen, Arrived):
            for step in range(1, seen.step + 1):
                self._worked_s.setdefault(seen.rank, {}).setdefault(step, 0.0)
        self.jury.see(self.age_s, seen)

    def say(self, what: str) -> None:
        self.trace.line(self.now_s, what)

    def describe(self) -> str:
        who = "; ".join(
            f"worker {p.worker} rank {p.rank} {p.machine.state.value} g{p.machine.generation} {p.beacon.phase.value} waits {p.waits and p.waits[0]}"
            for p in self.node.alive()
        )
        return f"{self.coordinator.stage.value} g{self.coordinator.generation} step {self.coordinator.step}: {who}"

    # --- the coordinator -----------------------------------------------------------------------------------

    def hear(self, news: Any) -> None:
        """A message reaches the coordinator."""
        if not isinstance(news, Progress):
            self.say(_brief(news))
        self.led(lambda: self.coordinator.on_message(news, now_s=self.now_s))

    def led(self, act: Callable[[], list[Output]]) -> None:
        """Drive the coordinator, and look at the plans that it made."""
        generation, committed = self.coordinator.generation, self.committed
        outputs = act()
        if self.coordinator.generation != generation:
            generation = self.coordinator.generation
            steps = tuple(m.plan.step for m in self.coordinator.roster.members() if m.plan is not None and m.plan.generation == generation)
            self.see(Planned(generation, steps, committed, self._holders(committed)))
            self._planned_s = self.now_s
            self.say(f"generation {generation} from step {min(steps, default=0)}")
            if steps and min(steps) < committed:
                self.rolled_back.append((committed, min(steps)))
                self.committed = min(steps)
        for output in outputs:
            self._carry_out(output)

    def _holders(self, step: int) -> tuple[int, ...]:
        """Ranks that hold `step`, if that is enough to go on from it: one under replicated state, all under sharded. Whom the run itself
        has killed for this plan, though nothing had struck it, held it too.
        """
        if self.options.way == "sharded":
            held = tuple(rank for rank in range(self.options.ranks) if step in self.slots.get(rank, {}).values())
            return held if len(held) == self.options.ranks else ()
        had = [p for p in self.node.processes.values() if p.rank >= 0 and p.best >= step and (p.alive or p.ended_s > self._planned_s)]
        return tuple(p.rank for p in had if (p.alive if p.worker not in self.node.doomed else p.pid not in self.strikes.pids()))

    def _carry_out(self, output: Output) -> None:
        if isinstance(output, ToAgent):
            command = output.message
            self.say(f"coordinator: {_brief(command)}")
            self._links.send("command", 0, lambda: self.node.do(self.node.agent.on_command(command, now_s=self.now_s)))
        elif isinstance(output, SetTimer):
            number = self._timers[output.name] = self._timers.get(output.name, 0) + 1
            if output.at_s is not None:
                self.timeline.after(output.at_s - self.now_s, lambda: self._timer(output.name, number))
        elif isinstance(output, Record):
            if isinstance(output.record, Interruption):
                self._noted(output.record)
        elif isinstance(output, Tell):
            self.say(f"coordinator tells: {output.text}")
        else:
            assert isinstance(output, End), output
            self._ended(output)

    def _noted(self, record: Interruption) -> None:
        if record.restored_s == self.now_s:
            generation = self.coordinator.generation
            self.see(Regrouped(generation, self.options.ranks, tuple(sorted(self._joined.get(generation, ())))))
        self.interruptions[record.id] = record

    def _timer(self, name: str, number: int) -> None:
        if self._timers[name] == number and self.end is None:
            self.led(lambda: self.coordinator.on_timer(now_s=self.now_s, name=name))

    def _ended(self, end: End) -> None:
        self.end, self.node.watch.over = end, True
        self.say(f"the run is {end.state}, exit code {end.exit_code}: {end.reason}")
        self.see(
            RunOver(
                state=end.state, exit_code=end.exit_code, reason=end.reason, committed=self.committed, until=self.options.steps, trained=bool(self.commits),
                plain=self.options.way == "plain", stop_asked=self._stop_asked,
                refused=any(fault.kind == "refuse" for _, fault, _ in self.strikes.struck),
                alive=tuple(process.worker for process in self.node.alive() if process.rank >= 0 and not process.dying),
                open_interruptions=tuple(one.id for one in self.interruptions.values() if one.resumed_s is None),
                interruptions=len(self.interruptions), strikes=self.strikes.harmful, done=tuple(sorted(self.node.done)),
                blamed=tuple(sorted({pid for one in self.interruptions.values() for pid in one.pids})), struck=self.strikes.pids(),
                ranks=self.options.ranks,
            )
        )  # fmt: skip
        if self.options.way != "plain":
            for one in self.interruptions.values():
                self.see(Named(one.id, one.mechanism.value, self.strikes.kinds(one.pids)))
        for process in self.node.alive():
            self.node.end(process, None, 9)
        interruptions = list(self.interruptions.values())
        booked = self.lives.account(world_size=self.options.ranks, began_s=BEGAN_S, over_s=self.now_s, interruptions=interruptions)
        worked_s = tuple(math.fsum(self._worked_s.get(rank, {}).values()) for rank in range(self.options.ranks))
        self.see(Booked(booked.wall_s, booked.by_rank, worked_s, bool(interruptions) or end.state != "ended"))

    # --- what the script tells -----------------------------------------------------------------------------

    def lasting(self, least_s: float, most_s: float) -> float:
        """How long some work of the script takes."""
        return self._work.between(least_s, most_s)

    def passes(self, process: Process, mark: str) -> None:
        """The main thread is at `mark`."""
        if mark == "joined":
            self._joined.setdefault(process.machine.generation, set()).add(process.rank)
        self.marks[mark] = self.marks.get(mark, 0) + 1
        self.strikes.at_mark(process, mark)

    def enter(self, process: Process, phase: Phase, *, cause: Cause | None = None) -> None:
        """As Session.enter."""
        if cause is not None:
            process.book.switch(now_s=self.now_s, cause=cause)
        publish(process, phase, now_s=self.now_s)

    def has_committed(self, process: Process, step: int) -> None:
        generation = process.machine.generation
        owners = tuple(p.worker for p in self.node.alive() if p.rank == process.rank)
        self.see(StepDone(process.worker, process.rank, generation, step, process.content, owners))
        self._worked_s.setdefault(process.rank, {}).setdefault(step, self.now_s - process.step_began_s)
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
