"""A small virtual world around the protocol: one coordinator, one agent, processes whose listener is a `WorkerMachine`.

Time is a heap of events. Main threads are generators (`_script.py`). Each link between two parties keeps the order of
what one worker says or is told; otherwise messages overtake each other by up to JITTER_S. The same seed and faults give
the same run; seed 0 has no jitter at all.

Collectives fail as gloo's do: nowhere ok before all have entered; after that, when a member dies or leaves, ok on any
subset, and an error on the rest.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
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
    Terminate,
    ToAgent,
    ToCoordinator,
    Wake,
)  # fmt: skip
from outlast.engine.protocol.worker import WorkerMachine
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.messages import Committed, Hello, Joined, Parked, Pong, Refused, Regroup, StoreLost, StoreUp, WorkerExited, WorkerStarted
from outlast.model.records import Interruption
from outlast.model.terms import Phase

JITTER_S = 0.01
TYPICAL_S = {Phase.BODY: 0.03, Phase.VOTE: 0.005, Phase.APPLY: 0.005, Phase.SNAPSHOT: 0.005, Phase.DATA: 0.001}
MARKS = (
    "boot", "join", "setup", "grouping", "restoring", "joined", "body", "reduced", "sealing", "prepared", "voting", "passed", "applied", "committed",
    "still", "settled", "donating", "closing", "finishing", "epilogue",
)  # fmt: skip
KINDS = ("kill", "stop", "raise", "exit", "hang", "deaf", "store")
Act = tuple[str, Any]


class PeerFailure(Exception):
    """What a collective raises when a peer is lost, and what the woken main thread sees."""


class UserError(Exception):
    """The script's own."""


class Reenter(Exception):
    """Main's function is to be entered again."""


@dataclass(frozen=True)
class Fault:
    """Strikes the holder of `rank` (-1: a spare) `after_s` after it passes `mark` for the `visit`th time. `times`: how often.

    kill, exit   the process ends
    stop         SIGSTOP; SIGCONT comes 2 s later
    deaf         the same, but the kernel does not call it stopped: a thread holds the interpreter lock
    hang         the main thread stays where it is; the listener answers
    raise        user code raises
    refuse       an error of input is raised: the run is to stop
    store        the store's host ends, whoever the rank is
    """

    kind: str
    rank: int
    mark: str
    visit: int = 1
    after_s: float = 0.0
    times: int = 1


@dataclass
class Group:
    """The process group of one generation. `entered[i]`: ranks that entered collective i."""

    members: dict[int, Process] = field(default_factory=dict)
    entered: dict[int, set[int]] = field(default_factory=dict)
    lost: bool = False  # a member died or left


@dataclass(eq=False)
class Process:
    """One process; `main` is its main thread, suspended in `waits` (what it yielded)."""

    worker: int
    rank: int
    kind: str
    generation: int
    machine: WorkerMachine
    beacon: Beacon
    main: Generator[Act, Any, int] | None = None
    waits: Act | None = None
    token: int = 0  # one per wait: an event for an older one is void
    alive: bool = True
    stopped: bool = False
    listed_stopped: bool = False
    hung: bool = False
    backlog: list[Callable[[], None]] = field(default_factory=list)
    group: Group | None = None
    collectives: int = 0
    content: int = -1  # the step that the state in memory really is of; -1: none
    in_body: bool = False
    user_code: bool = True
    error: str = ""  # to be raised at the next user code
    finished: bool = False
    held_state: bool = False


class World:
    """`run` returns the `End`, or fails when there is none within `bound_s`. What it saw is in the attributes."""

    def __init__(self, *, script: Callable[[World, Process], Generator[Act, Any, int]], ranks: int = 3, spares: int = 0, spare_kind: str = "hot",
                 until: int = 6, faults: tuple[Fault, ...] = (), seed: int = 0, sharded: bool = False, max_restarts: int | None = None,
                 phase_after: int = -1, hang_after_s: float | None = None) -> None:  # fmt: skip
        self.now_s = 100.0
        self.phase_after = phase_after  # the step that one run.phase follows
        self.ranks, self.until, self.sharded, self.faults = ranks, until, sharded, faults
        self.script = script
        self.random = random.Random(seed)
        self.jitter = seed != 0
        self.coordinator = Coordinator(
            options=CoordinatorOptions(ranks, Restart(), spares=spares, spare_kind=spare_kind, max_restarts=max_restarts, checkpoint=("", 0))
        )
        self.agent = Agent(now_s=self.now_s, hang_after_s=hang_after_s)
        self.heard_s: dict[int, float] = {}  # worker -> when it last printed something
        self.processes: dict[int, Process] = {}
        self.slots: dict[int, dict[int, int]] = {}  # rank -> slot -> step
        self.transfer: tuple[int, int] | None = None
        self.groups: dict[tuple[int, int], Group] = {}
        self.end: End | None = None
        self.interruptions: dict[int, Interruption] = {}
        self.committed = 0  # the newest step committed by anybody (sharded: sealed by all)
        self.trained_generation = 0
        self.struck: list[tuple[float, Fault, int]] = []
        self.joined: dict[int, dict[int, int]] = {}  # generation -> rank -> step
        self.commits: list[tuple[float, int, int, int]] = []  # time, generation, rank, step
        self.rolled_back: list[tuple[int, int]] = []  # step known, step gone back to
        self._visits: dict[tuple[int, str], int] = {}
        self._store = 0
        self.store_lives = False
        self._doomed: set[int] = set()  # killed, forked or not
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._links: dict[tuple[str, int], float] = {}
        self._timers: dict[str, int] = {}

    # --- time ----------------------------------------------------------------------------------------------

    def run(self, *, bound_s: float = 200.0) -> End:
        self._do(self.coordinator.start(now_s=self.now_s))
        self.after(limits.TICK_S, self._tick)
        limit_s = self.now_s + bound_s
        while self._heap and not self._over():
            at_s, _, act = heapq.heappop(self._heap)
            assert at_s <= limit_s, f"nothing ended within {bound_s} virtual seconds: {self.describe()}"
            self.now_s = max(self.now_s, at_s)
            act()
        assert self.end is not None
        return self.end

    def _over(self) -> bool:
        return self.end is not None and not any(process.alive for process in self.processes.values())

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._order, act))

    def span(self, least_s: float, most_s: float) -> float:
        """Some duration; the least one where there is no jitter."""
        return self.random.uniform(least_s, most_s) if self.jitter else least_s

    def _link(self, name: str, worker: int, act: Callable[[], None]) -> None:
        """In order for one worker; others may be overtaken."""
        at_s = max(self.now_s + self.span(0.0001, JITTER_S), self._links.get((name, worker), 0.0))
        self._links[name, worker] = at_s
        self.after(at_s - self.now_s, act)

    def describe(self) -> str:
        who = "; ".join(
            f"worker {p.worker} rank {p.rank} {p.machine.state.value} g{p.machine.generation} {p.beacon.phase.value} waits {p.waits}"
            for p in self.processes.values() if p.alive
        )  # fmt: skip
        return f"{self.coordinator.stage.value} g{self.coordinator.generation} step {self.coordinator.step}, struck {self.struck}: {who}"

    # --- the node ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.end is None:
            self.after(limits.TICK_S, self._tick)
        readings = {p.worker: Reading(replace(p.beacon), p.listed_stopped) for p in self.processes.values() if p.alive}
        self._do(self.agent.on_tick(readings, now_s=self.now_s, heard_s=self.heard_s))

    def _do(self, outputs: list[Output]) -> None:
        for output in outputs:
            self._carry_out(output)

    def _carry_out(self, output: Output) -> None:
        if isinstance(output, ToAgent):
            command = output.message
            self._link("command", 0, lambda: self._do(self.agent.on_command(command, now_s=self.now_s)))
        elif isinstance(output, ToCoordinator):
            news = output.message
            self._link("news", getattr(news, "worker", 0), lambda: self._coordinator(news))
        elif isinstance(output, Deliver):
            self._link("to worker", output.worker, lambda: self._deliver(output))
        elif isinstance(output, Kill):
            self._doomed.add(output.worker)
            self.after(self.span(0.0005, 0.005), lambda: self.end_process(self.processes.get(output.worker), None, 9))
        elif isinstance(output, Spawn):
            assert output.worker not in self.processes, "a worker's number is given twice"
            self.after(self.span(0.01, 0.03), lambda: self._spawn(output))
        elif isinstance(output, Terminate):
            self.end_process(self.processes.get(output.worker), None, 15)
        elif isinstance(output, HostStore):
            self._store += 1
            port = self._store
            self.after(self.span(0.005, 0.05), lambda: self._store_up(port))
        else:
            self._for_the_run(output)

    def _for_the_run(self, output: Output) -> None:
        if isinstance(output, SetTimer):
            number = self._timers[output.name] = self._timers.get(output.name, 0) + 1
            if output.at_s is not None:
                self.after(max(output.at_s - self.now_s, 0.0), lambda: self._timer(output.name, number))
        elif isinstance(output, Record) and isinstance(output.record, Interruption):
            self.interruptions[output.record.id] = output.record
        elif isinstance(output, End):
            assert self.end is None, "the run ended twice"
            self.end = output
            for process in list(self.processes.values()):
                assert not (process.alive and process.rank >= 0), f"the run is over, and worker {process.worker} lives"
                self.end_process(process, None, 9)

    def _timer(self, name: str, number: int) -> None:
        if self._timers[name] == number:
            self.led(lambda: self.coordinator.on_timer(now_s=self.now_s, name=name))

    def _coordinator(self, news: Any) -> None:
        if isinstance(news, Joined):
            self.joined.setdefault(news.generation, {})[news.worker] = news.step
            assert len(set(self.joined[news.generation].values())) == 1, f"generation {news.generation} joined at different steps: {self.joined}"
        self.led(lambda: self.coordinator.on_message(news, now_s=self.now_s))

    def led(self, act: Callable[[], list[Output]]) -> None:
        """Drive the coordinator, and look at the plans that it made."""
        generation, step = self.coordinator.generation, self.committed
        outputs = act()
        if self.coordinator.generation != generation:
            self._check_plan(step)
        self._do(outputs)

    def _check_plan(self, step: int) -> None:
        plans = {m.plan.step for m in self.coordinator.roster.members() if m.plan is not None and m.plan.generation == self.coordinator.generation}
        assert len(plans) <= 1, f"one generation, several steps: {plans}"
        if plans and min(plans) < step:
            self.rolled_back.append((step, min(plans)))
            self.committed = min(plans)

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
                self._wake(process, PeerFailure("the store is gone"))

    # --- processes -----------------------------------------------------------------------------------------

    def _spawn(self, order: Spawn) -> None:
        machine, beacon = WorkerMachine(worker=order.worker), Beacon(worker=order.worker, rank=order.rank)
        process = Process(order.worker, order.rank, order.kind, order.generation, machine, beacon)
        process.beacon.typical_s.update(TYPICAL_S)
        self.processes[order.worker] = process
        process.main = self.script(self, process)
        self.event(process, WorkerStarted(order.worker, 1000 + order.worker, "node", self.now_s))
        if order.worker in self._doomed:
            self.end_process(process, None, 9)
        else:
            self._resume(process, None, None)

    def event(self, process: Process, message: Any) -> None:
        self._link("from worker", process.worker, lambda: self._do(self.agent.on_event(message, now_s=self.now_s)))

    def say(self, process: Process, message: Any) -> None:
        if isinstance(message, Committed):
            assert message.generation >= self.trained_generation
        self._link("from worker", process.worker, lambda: self._do(self.agent.on_worker(message, now_s=self.now_s)))

    def end_process(self, process: Process | None, exit_code: int | None, signal: int | None) -> None:
        if process is None or not process.alive:
            return
        process.alive = False
        self.leave_group(process)
        if process.main is not None and not process.main.gi_running:
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
            self._check_owner(process, order.message)
        for output in process.machine.on_message(order.message):
            self.carry_out_in(process, output)

    def _check_owner(self, process: Process, plan: Regroup) -> None:
        others = [p for p in self.processes.values() if p is not process and p.alive and plan.rank in (p.rank, p.beacon.rank)]
        assert not others, f"rank {plan.rank} is given to worker {process.worker} while worker {others[0].worker} lives"
        process.rank = plan.rank

    def carry_out_in(self, process: Process, output: Output) -> None:
        if isinstance(output, Say):
            self.say(process, output.message)
        elif isinstance(output, Wake):
            self.leave_group(process)
            waits = process.waits
            if waits is not None and (waits[0] in ("collective", "build") or (waits[0] == "sleep" and process.in_body and not process.hung)):
                self._wake(process, PeerFailure("woken"))
        elif isinstance(output, Plan):
            if process.waits is not None and process.waits[0] == "plan":
                self._offer_plan(process)
        elif isinstance(output, Answer):
            self.say(process, Pong(process.worker, output.nonce, process.collectives, "script.py:1"))

    # --- main threads --------------------------------------------------------------------------------------

    def _wake(self, process: Process, error: Exception | None) -> None:
        process.token += 1
        token = process.token
        self.after(self.span(0.0002, 0.002), lambda: self._resume_if(process, token, None, error))

    def _resume_if(self, process: Process, token: int, value: Any, error: Exception | None) -> None:
        if not process.alive or process.token != token:
            return
        if process.stopped:
            process.backlog.append(lambda: self._resume_if(process, token, value, error))
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
            self.after(waits[1], lambda: self._resume_if(process, token, None, None))
        elif waits[0] == "plan":
            self._offer_plan(process)
        elif waits[0] == "collective":
            self._enter_collective(process)
        elif waits[0] == "build":
            self._enter_group(process, waits[1])

    def _offer_plan(self, process: Process) -> None:
        plan = process.machine.plan
        if plan is not None and process.waits is not None and plan.generation > process.waits[1]:
            token = process.token
            self.after(0.0, lambda: self._resume_if(process, token, plan, None))

    # --- groups --------------------------------------------------------------------------------------------

    def _enter_group(self, process: Process, plan: Regroup) -> None:
        group = self.groups.setdefault((plan.generation, plan.store_port), Group())
        if (process.machine.broken and process.machine.generation == plan.generation) or plan.store_port != self._store or not self.store_lives:
            self._wake(process, PeerFailure("cancelled"))
            return
        process.group, process.collectives = group, 0
        group.members[plan.rank] = process
        if len(group.members) < self.ranks:
            return
        for member in list(group.members.values()):
            if not member.alive or member.group is not group:
                group.lost = True
        for member in list(group.members.values()):
            self._settle(member, group)

    def _enter_collective(self, process: Process) -> None:
        group = process.group
        if group is None or group.lost:
            self._wake(process, PeerFailure("a peer is gone"))
            return
        number = process.collectives
        process.collectives += 1
        entered = group.entered.setdefault(number, set())
        entered.add(process.rank)
        if len(entered) == self.ranks:
            for member in group.members.values():
                if member.waits is not None and member.waits[0] == "collective" and member.collectives == number + 1:
                    self._settle(member, group)

    def _settle(self, member: Process, group: Group) -> None:
        """All have entered: it ends well here, unless a peer is lost before that."""
        token = member.token
        error = PeerFailure("a peer is gone") if group.lost else None
        if member.alive and member.waits is not None:
            self.after(self.span(0.0005, 0.006), lambda: self._resume_if(member, token, None, error))

    def leave_group(self, process: Process) -> None:
        """It dies, or shuts its sockets: those that still wait raise, a little later, if they have not come through by then."""
        group, process.group = process.group, None
        if group is None or group.lost:
            return
        complete = len(group.members) == self.ranks
        if not complete:
            return  # the group is not built yet: its members wait until they are told
        group.lost = True
        for member in group.members.values():
            if member is not process and member.alive and member.waits is not None and member.waits[0] in ("collective", "build"):
                token = member.token
                self.after(self.span(0.001, 0.03), lambda m=member, t=token: self._resume_if(m, t, None, PeerFailure("a peer is gone")))

    # --- faults --------------------------------------------------------------------------------------------

    def passes(self, process: Process, mark: str) -> None:
        """The main thread is at `mark`."""
        rank = process.rank
        visit = self._visits[rank, mark] = self._visits.get((rank, mark), 0) + 1
        for fault in self.faults:
            if fault.mark == mark and fault.rank == rank and fault.visit <= visit < fault.visit + fault.times:
                if fault.after_s:
                    self.after(fault.after_s, lambda f=fault: self._strike(process, f))
                else:
                    self._strike(process, fault)

    def _strike(self, process: Process, fault: Fault) -> None:
        if not process.alive or self.end is not None:
            return
        self.struck.append((self.now_s, fault, process.worker))
        if fault.kind in ("kill", "exit"):
            self.end_process(process, *((None, 9) if fault.kind == "kill" else (3, None)))
        elif fault.kind in ("stop", "deaf"):
            process.stopped, process.listed_stopped = True, fault.kind == "stop"
            self.after(4.0, lambda: self._continue(process))
        elif fault.kind == "hang":
            process.hung = True
        elif fault.kind == "store":
            self.lose_store()
        else:
            process.error = "refused" if fault.kind == "refuse" else "boom"

    def _continue(self, process: Process) -> None:
        process.stopped = process.listed_stopped = False
        backlog, process.backlog = process.backlog, []
        for act in backlog:
            act()

    # --- what the script tells -----------------------------------------------------------------------------

    def enter(self, process: Process, phase: Phase) -> None:
        beacon, machine = process.beacon, process.machine
        beacon.phase, beacon.beats, beacon.at_ns = phase, beacon.beats + 1, int(self.now_s * 1e9)
        beacon.generation, beacon.step, beacon.prepared = machine.generation, max(machine.committed, 0), max(machine.prepared, 0)

    def has_committed(self, process: Process, step: int) -> None:
        """Fencing: nobody contributes to a generation once a newer one has trained."""
        generation = process.machine.generation
        assert generation >= self.trained_generation, f"rank {process.rank} committed step {step} in generation {generation}, after {self.trained_generation}"
        self.trained_generation = generation
        self.commits.append((self.now_s, generation, process.rank, step))
        holders = [p for p in self.processes.values() if p.alive and p.rank == process.rank]
        assert holders == [process], f"rank {process.rank} has {len(holders)} processes"
        if self.sharded:
            self.committed = max(self.committed, min((max(self.slots.get(rank, {}).values(), default=0) for rank in range(self.ranks)), default=0))
        else:
            self.committed = max(self.committed, step)


__all__ = ["KINDS", "MARKS", "Fault", "Hello", "Parked", "PeerFailure", "Process", "Reenter", "Refused", "UserError", "World"]
