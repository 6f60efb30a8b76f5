"""A world around the protocol: the coordinator, nodes, links between them, what is sealed, what strikes, and who watches.

The coordinator is the machine of the product; so are the agent and each worker's listener (node.py). Everything that is drawn comes from one seed.
"""

from __future__ import annotations

import math

from outlast.engine.protocol.coordinator import Coordinator
from outlast.engine.protocol.outputs import End
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import ForAgent
from outlast.model.records import Interruption
from outlast.model.terms import Cause, Phase
from outlast.sim.checkers import Jury
from outlast.sim.collectives import Collectives
from outlast.sim.draws import Stream
from outlast.sim.headquarters import Headquarters
from outlast.sim.links import Links
from outlast.sim.node import Node, Script
from outlast.sim.observations import Arrived, Booked, Named, NothingMoves, Observation, RankGiven, Regrouped, RunOver, StepDone
from outlast.sim.options import Options
from outlast.sim.processes import Process
from outlast.sim.seconds import Lives, publish
from outlast.sim.store import Store
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
        self.end: End | None = None
        self.hq = Headquarters(self)
        self._work = stream("work")
        self._links = Links(self.timeline, stream("links"), latency_s=options.latency_s)
        kernel, lines, clocks = stream("kernel"), stream("lines"), stream("clocks")
        self.store = Store(self, kernel)
        self.collectives = Collectives(self.timeline, stream("collectives"), ranks=options.ranks, resume=_resume_if)
        self.nodes = [
            Node(self, name=name, script=script, links=self._links, kernel=kernel, lines=lines, rests=rests, clock=_clock(clocks, options))
            for name in options.node_names
        ]
        self._by_name = {node.name: node for node in self.nodes}
        self.transfer: tuple[int, int, Node] | None = None  # generation and step of the transfer image, and where it lies
        self.transfer_died = False  # with its node
        self._by_rank: dict[int, dict[int, Process]] = {}
        self.stirred: dict[Node, None] = {}  # nodes on which the event at hand changed anything that their agents look at
        self.done: set[int] = set()  # ranks whose last process came to its end well
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
        self._longest_s = 0.0  # that any rank was at a step
        self._unsure: dict[int, int] = {}  # rank -> how many of its steps may be booked as something else
        self._stop_asked = False

    @property
    def interruptions(self) -> dict[int, Interruption]:
        """As the ledger has them."""
        return self.hq.interruptions

    @property
    def now_s(self) -> float:
        return self.timeline.now_s

    @property
    def age_s(self) -> float:
        """Since the beginning."""
        return self.timeline.now_s - BEGAN_S

    # --- time ----------------------------------------------------------------------------------------------

    def run(self, *, bound_s: float) -> End | None:
        self.hq.begin()
        for node in self.nodes:
            node.begin()
        self.strikes.arm()
        while self.end is None or any(process.alive for node in self.nodes for process in node.processes.values()):
            due_s = self.timeline.next_s
            if due_s is None or due_s > BEGAN_S + bound_s or self.jury.violations:
                break
            self.timeline.step()
            for node in self.stirred:
                node.watch.event_ends()
            self.stirred.clear()
        if self.end is None and not self.jury.violations:
            self.see(NothingMoves(bound_s, self.describe()))
        return self.end

    def ask_stop(self, *, reason: str, exit_code: int) -> None:
        """Somebody wants the run to end."""
        self._stop_asked = True
        self.hq.ask_stop(reason=reason, exit_code=exit_code)

    def see(self, seen: Observation) -> None:
        if isinstance(seen, RankGiven) and self.options.nodes > 1:
            self._note_unsure(seen.plan.rank, seen.plan.high_water)
        if isinstance(seen, Arrived):
            for step in range(1, seen.step + 1):
                self._worked_s.setdefault(seen.rank, {}).setdefault(step, 0.0)
        self.jury.see(self.age_s, seen)

    def _note_unsure(self, rank: int, high_water: int) -> None:
        """A step more or less than the rank really came to is booked otherwise than it was."""
        worked_s = self._worked_s.get(rank, {})
        wrong = abs(max((step for step, step_s in worked_s.items() if step_s), default=0) - high_water)
        self._unsure[rank] = self._unsure.get(rank, 0) + wrong

    def say(self, what: str) -> None:
        self.trace.line(self.now_s, what)

    def describe(self) -> str:
        who = "; ".join(
            f"worker {p.worker} rank {p.rank} {p.machine.state.value} g{p.machine.generation} {p.beacon.phase.value} waits {p.waits and p.waits[0]}"
            for p in self.alive()
        )
        return f"{self.coordinator.stage.value} g{self.coordinator.generation} step {self.coordinator.step}: {who}"

    # --- between nodes -------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> Coordinator:
        """The one that lives, or lived last."""
        return self.hq.coordinator

    def alive(self) -> list[Process]:
        return [process for node in self.nodes for process in node.processes.values() if process.alive]

    def in_rank(self, rank: int) -> list[Process]:
        """Living processes that hold `rank`, or hold it still."""
        return [process for process in self._by_rank.get(rank, {}).values() if process.alive]

    def takes_rank(self, process: Process, rank: int) -> None:
        """From its birth, or by a plan."""
        self._by_rank.get(process.rank, {}).pop(process.worker, None)
        process.rank = rank
        self._by_rank.setdefault(rank, {})[process.worker] = process

    def node_of(self, name: str) -> Node:
        return self._by_name[name]

    def command(self, command: ForAgent) -> None:
        """The coordinator's, to the one node there is."""
        node = self.nodes[0]
        self._links.send("command", 0, lambda: node.obey(command))

    def holders(self, step: int) -> tuple[int, ...]:
        """Ranks that hold `step`, if that is enough to go on from it: one under replicated state, all under sharded. Whom the run itself
        has killed for this plan, though nothing had struck it, held it too.
        """
        if self.options.way == "sharded":
            held = tuple(rank for rank in range(self.options.ranks) if step in self._slots_of(rank).values())
            return held if len(held) == self.options.ranks else ()
        had = [p for node in self.nodes for p in node.processes.values() if p.rank >= 0 and p.best >= step and (p.alive or p.ended_s > self._planned_s)]
        if self.options.nodes > 1:  # an agent may have killed it, for its lease
            return tuple(p.rank for p in had if p.alive and p.worker not in p.node.doomed)
        return tuple(p.rank for p in had if (p.alive if p.worker not in p.node.doomed else p.pid not in self.strikes.pids()))

    def planned(self) -> None:
        """The coordinator has made a plan just now."""
        self._planned_s = self.now_s

    def noted(self, record: Interruption) -> None:
        """The coordinator writes down what it knows of an interruption."""
        if record.restored_s == self.now_s:
            generation = self.coordinator.generation
            self.see(Regrouped(generation, self.options.ranks, tuple(sorted(self._joined.get(generation, ())))))

    def _slots_of(self, rank: int) -> dict[int, int]:
        """Where the coordinator takes them to lie."""
        home = self.coordinator.roster.homes.get(rank, "")
        nodes = self.coordinator.nodes
        return self._by_name[home].slots.get(rank, {}) if home in nodes or home in nodes.returning else {}

    def ended(self, end: End) -> None:
        self.end = end
        for node in self.nodes:
            node.watch.over = True
        self.say(f"the run is {end.state}, exit code {end.exit_code}: {end.reason}")
        interruptions = self.interruptions
        self.see(
            RunOver(
                state=end.state, exit_code=end.exit_code, reason=end.reason, committed=self.committed, until=self.options.steps, trained=bool(self.commits),
                plain=self.options.way == "plain", stop_asked=self._stop_asked,
                refused=any(fault.kind == "refuse" for _, fault, _ in self.strikes.struck),
                alive=tuple(process.worker for process in self.alive() if process.rank >= 0 and not process.dying),
                open_interruptions=tuple(one.id for one in interruptions.values() if one.resumed_s is None),
                interruptions=len(interruptions), strikes=self.strikes.harmful, done=tuple(sorted(self.done)),
                blamed=tuple(sorted({pid for one in interruptions.values() for pid in one.pids})), struck=self.strikes.pids(),
                ranks=self.options.ranks,
            )
        )  # fmt: skip
        if self.options.way != "plain":
            for one in interruptions.values():
                times_s = tuple(at_s - BEGAN_S for at_s in (one.fault_s, one.detected_s, one.left_s, one.restored_s, one.resumed_s) if at_s is not None)
                self.see(
                    Named(
                        one.id,
                        one.mechanism.value,
                        self.strikes.kinds(one.pids),
                        times_s,
                        self.age_s,
                        1.0 + self.strikes.held_up_s + self.age_s * self.options.drift,
                    )
                )
        for process in self.alive():
            process.node.end(process, None, 9)
        records = list(interruptions.values())
        booked = self.lives.account(world_size=self.options.ranks, began_s=BEGAN_S, over_s=self.now_s, interruptions=records)
        worked_s = tuple(math.fsum(self._worked_s.get(rank, {}).values()) for rank in range(self.options.ranks))
        unsure_s = tuple(self._unsure.get(rank, 0) * self._longest_s for rank in range(self.options.ranks))
        self.see(Booked(booked.wall_s, booked.by_rank, worked_s, unsure_s, bool(records) or end.state != "ended"))

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
        self.stirred[process.node] = None

    def has_committed(self, process: Process, step: int) -> None:
        generation = process.machine.generation
        owners = tuple(p.worker for p in self.in_rank(process.rank) if not p.dying)
        self.see(StepDone(process.worker, process.rank, generation, step, process.content, owners))
        self._longest_s = max(self._longest_s, self.now_s - process.step_began_s)
        self._worked_s.setdefault(process.rank, {}).setdefault(step, self.now_s - process.step_began_s)
        self.commits.append((self.now_s, generation, process.rank, step))
        self.say(f"rank {process.rank} commits step {step} in generation {generation}")
        if self.options.way == "sharded":
            sealed = [max((step for node in self.nodes for step in node.slots.get(rank, {}).values()), default=0) for rank in range(self.options.ranks)]
            self.committed = max(self.committed, min(sealed))
        else:
            self.committed = max(self.committed, step)


def _resume_if(process: Process, token: int, error: Exception | None) -> None:
    process.node.resume_if(process, token, error)


def _clock(stream: Stream, options: Options) -> tuple[float, float]:
    """Offset and rate. Of one node, in one process with its coordinator, it is the same clock."""
    offset_s, drift = stream.between(0.0, 1e5), stream.between(-1.0, 1.0)
    return (offset_s, 1.0 + drift * options.drift) if options.nodes > 1 else (0.0, 1.0)
