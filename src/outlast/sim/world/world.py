"""A world around the protocol: the coordinator, nodes, links between them, what is sealed, what
strikes, and who watches.

The coordinator is the machine of the product; so are the agent and each worker's listener
(node.py). Everything that is drawn comes from one seed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import End
from outlast.engine.protocol.worker import State
from outlast.model import limits
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import ForAgent
from outlast.model.records import Interruption
from outlast.model.terms import Cause, Mechanism, Phase
from outlast.sim.draws import Luck, Pool, Stream
from outlast.sim.durations import BODY_SPREAD_S
from outlast.sim.faults.strikes import STEP_MARKS, Strikes
from outlast.sim.options import Options
from outlast.sim.rules.checkers import Checkers
from outlast.sim.rules.final_observations import (
    Booked,
    FirstFault,
    Named,
    Noted,
    NothingMoves,
    RunOver,
)
from outlast.sim.rules.observations import (
    Arrived,
    Observation,
    RankGiven,
    Regrouped,
    StepDone,
    Stock,
    StopAsked,
)
from outlast.sim.shortcuts import identical_nodes
from outlast.sim.shortcuts.identical_nodes import Echo, Fleet
from outlast.sim.shortcuts.identical_ranks import IdenticalRanks, Parted
from outlast.sim.shortcuts.skip_ahead import LONG_LIFE_STEPS, SkipAhead
from outlast.sim.world.agent_link import AgentLink
from outlast.sim.world.booked_seconds import Lives, Worked, publish
from outlast.sim.world.collectives import Collectives
from outlast.sim.world.coordinator_host import CoordinatorHost
from outlast.sim.world.disk import Disks
from outlast.sim.world.links import Links
from outlast.sim.world.node import Node, Script
from outlast.sim.world.paths import Paths
from outlast.sim.world.processes import Process, pid_of
from outlast.sim.world.recovery_times import RecoveryTimes
from outlast.sim.world.store import Store
from outlast.sim.world.timeline import FIXED, Timeline
from outlast.sim.world.trace import Trace
from outlast.sim.world.verdicts import Verdicts

COMMITS_KEPT = 100_000
ASKS_AGAIN_S = 0.05
NOBODY_TOLD = (
    "nothing tells them apart",  # where all stand at one place one has to go
    "a script that has made no outlast call",  # of one that is not at its first call yet
)
SILENT = ("freeze", "stop of an agent", "lag", "cut")
UNTOLD = ("lose_coordinator", *SILENT)
BY_NODE = ("lose_node", *SILENT)  # what a node knows may be lost, or come late
# a snapshot has a deadline of its own, and so has what lies between two steps
WITHIN_MARKS = ("body", "reduced", "prepared", "voting", "passed", "applied")
BEGAN_S = 100.0  # not 0: a time that somebody forgot is seen


class World:
    """`run` returns what the run ended with, or None where it did not end.

    `jury` has seen all of it.

    rests   ticks of the agent that can lead to nothing are left out: the same course, in less time
    steady  all work and all messages take the least time
    every_step  those of undisturbed stretches too are simulated: the same course, in more time
    every_rank  each is simulated by itself, though others of its node do the same: the same course,
                in more time
    every_node  likewise; `every_rank` means this too
    """

    def __init__(
        self,
        *,
        options: Options,
        script: Script,
        faults: tuple[PlannedFault, ...] = (),
        seed: int = 0,
        rests: bool = True,
        steady: bool = False,
        every_step: bool = False,
        every_rank: bool = False,
        every_node: bool = False,
    ) -> None:
        self._streams: list[Stream] = []

        def stream(purpose: str) -> Stream:
            self._streams.append(Stream(seed, purpose, steady=steady))
            return self._streams[-1]

        self.options = options
        self.timeline = Timeline(began_s=BEGAN_S)
        self.trace = Trace(began_s=BEGAN_S)
        self.checkers = Checkers()
        self.strikes = Strikes(self, faults)
        self.end: End | None = None
        self.host = CoordinatorHost(self)
        self._work = stream("work")
        self._links = Links(self.timeline, stream("links"), latency_s=options.latency_s)
        kernel, lines, clocks, standstills = (
            stream("kernel"),
            stream("lines"),
            stream("clocks"),
            stream("standstills"),
        )
        self.store = Store(self, kernel)
        self.sessions = Stream(seed, "sessions")
        self.paths = Paths(self.timeline, stream("paths"))
        self.collectives = Collectives(
            self.timeline,
            stream("collectives"),
            ranks=options.ranks,
            resume=_resume_if,
            paths=self.paths,
            turns=stream("turns"),
        )
        self.disks = Disks(self, stream("disks"))
        self.verdicts = Verdicts(self, stream("verdicts"))
        self.pool = Pool(Stream(seed, "luck"), steady=steady) if options.alike else None
        self._likeness = identical_nodes.alike(options, faults)
        self.fleet = (
            Fleet(self._likeness, options.node_names)
            if self._likeness is not None and not (every_rank or every_node)
            else None
        )
        self.nodes: list[Node] = []
        self._by_name: dict[str, Node] = {}
        self._lines: dict[str, AgentLink | Echo] = {}
        self.untold: frozenset[str] = frozenset()  # nodes of which the trace says nothing
        self._make_nodes(script, kernel, lines, standstills, clocks, rests=rests)
        # generation and step of the transfer image, where it lies, `Process.ran` of who wrote it
        self.transfer: tuple[int, int, Node, int, dict[str, str]] | None = None
        self.transfer_died = False  # with its node
        self._by_rank: dict[int, dict[int, Process]] = {}
        # nodes on which the event at hand changed anything that their agents look at
        self.stirred: dict[Node, None] = {}
        self.done: set[int] = set()  # ranks whose last process came to its end well
        # time, generation, rank, step
        self.commits: deque[tuple[float, int, int, int]] = deque(maxlen=COMMITS_KEPT)
        self.committed = 0  # the newest step committed by anybody (sharded: sealed by all)
        self.last_step = 0  # the step that was committed last
        self.newest_begun = 0  # step that anybody has asked for since the newest plan
        self._joined: dict[int, set[int]] = {}  # generation -> ranks that came to be in it
        self.recovery_times = RecoveryTimes(options)
        self._planned_s = 0.0  # when the newest plan was made
        self.rolled_back: list[tuple[int, int]] = []  # step known, step gone back to
        self.marks: dict[str, int] = {}
        self.lives = Lives()
        self.worked = Worked(options.ranks)
        if self.fleet is not None:
            self.worked.only(self.fleet.without_likes(options.ranks))
        self.stop_asked_s = math.inf
        self.asked: list[tuple[int, str]] = []  # exit code and reason of each time
        self.asked_s = 0.0  # when it was first
        # when one first ended by itself before it could park
        self.spare_ended_early_s: float | None = None
        self.living = 0  # processes that live
        self.bound_s = math.inf
        self.skip_ahead = SkipAhead(self, every_step=every_step)
        self.identical_ranks = IdenticalRanks(self, faults, every_rank=every_rank)
        self._laggard = 0  # a rank that has sealed less than others
        # nothing is drawn yet, and what nodes say at one moment arrives in their order
        self.begins = self._likeness is not None

    def _make_nodes(
        self,
        script: Script,
        kernel: Stream,
        lines: Stream,
        standstills: Stream,
        clocks: Stream,
        *,
        rests: bool,
    ) -> None:
        likeness, names, shared = self._likeness, self.options.node_names, (0.0, 1.0)
        alike = likeness.places if likeness is not None else frozenset()
        for place, name in enumerate(names):
            clock = _clock(clocks, self.options)
            if place in alike and self.pool is not None:
                shared = clock if likeness is not None and place == likeness.herald else shared
                clock, luck = shared, Luck(self.pool, identical_nodes.PLACE)
            else:
                luck = None
            which = self.fleet.place_of(place) if self.fleet is not None else -1
            if which > 0 and self.fleet is not None:
                self._lines[name] = Echo(self.fleet, which)
                continue
            node = Node(
                self,
                name=name,
                place=place,
                script=script,
                links=self._links,
                kernel=kernel,
                lines=lines,
                standstills=standstills,
                rests=rests,
                clock=clock,
                fleet=self.fleet if which == 0 else None,
                drawn_at=place if luck is None else identical_nodes.PLACE,
                luck=luck,
            )
            self.nodes.append(node)
            self._by_name[name], self._lines[name] = node, node.link
        if likeness is not None:
            self.untold = frozenset(names[place] for place in likeness.members[1:])

    def begun(self) -> None:
        """Something has struck, or the first stretch is near: from now on things take as long as is
        drawn.
        """
        if self.begins:
            self.begins = False
            self.calm(False)

    @property
    def interruptions(self) -> dict[int, Interruption]:
        """As the ledger has them."""
        return self.host.interruptions

    @property
    def now_s(self) -> float:
        return self.timeline.now_s

    @property
    def age_s(self) -> float:
        """Since the beginning."""
        return self.timeline.now_s - BEGAN_S

    # --- time -------------------------------------------------------------------------------------

    def run(self, *, bound_s: float) -> End | None:
        self.bound_s = BEGAN_S + bound_s
        if self.options.for_s:
            self.timeline.after(
                self.options.for_s,
                lambda: self.ask_stop(reason="its time is up", exit_code=0),
                sort=FIXED,
            )
            if self.options.again_s:
                at_s = self.options.for_s + self.options.again_s
                self.timeline.after(
                    at_s,
                    lambda: self.ask_stop(reason="it is to end at once", exit_code=130),
                    sort=FIXED,
                )
        if self.begins:
            self.calm(True)
        self.host.begin()
        for node in self.nodes:
            node.begin()
        self.strikes.arm()
        step, stirred, violations, fleet = (
            self.timeline.step,
            self.stirred,
            self.checkers.violations,
            self.fleet,
        )
        while (self.end is None or self.living) and not violations and step(until_s=self.bound_s):
            if stirred:
                for node in stirred:
                    node.ticks.event_ends()
                stirred.clear()
            if fleet is not None:
                fleet.check(now_s=self.now_s)
        if self.end is None and not self.checkers.violations:
            self.see(NothingMoves(bound_s, self.describe()))
        return self.end

    def ask_stop(self, *, reason: str, exit_code: int) -> None:
        """Somebody wants the run to end."""
        if self.end is not None:
            return
        if not self.host.lives:  # nobody hears it
            self.timeline.after(
                ASKS_AGAIN_S, lambda: self.ask_stop(reason=reason, exit_code=exit_code), sort=FIXED
            )
            return
        stage, plain = self.coordinator.stage, not self.recovery_times.has_steps
        nothing_yet = (
            stage is Stage.CLEARING if plain else stage is Stage.STARTING and not self.commits
        )
        # else the coordinator may not have heard that all are at work
        if stage is not Stage.STARTING or plain or nothing_yet:
            self.see(StopAsked(plain, nothing_yet, self.stop_asked, self.options.nodes == 1))
        self.stop_asked_s = min(self.stop_asked_s, self.now_s)
        self.asks((exit_code, reason))
        self.host.ask_stop(reason=reason, exit_code=exit_code)

    @property
    def stop_asked(self) -> bool:
        """Somebody wants the run to end, or the policy does."""
        return bool(self.asked)

    def asks(self, wish: tuple[int, str]) -> None:
        """For exit code and reason."""
        self.asked_s = self.asked_s if self.asked else self.now_s
        self.asked.append(wish)

    def see(self, seen: Observation) -> None:
        if isinstance(seen, RankGiven) and self.options.nodes > 1:
            self.worked.told(seen.plan.rank, seen.plan.high_water, seen.plan.step)
        elif isinstance(seen, Arrived):
            self.worked.given(seen.rank, seen.step)
        self.checkers.see(self.age_s, seen)

    def say(self, what: str) -> None:
        self.trace.line(self.now_s, what)

    def describe(self) -> str:
        who = "; ".join(
            f"worker {p.worker} rank {p.rank} {p.machine.state.value} g{p.machine.generation}"
            f" {p.beacon.phase.value} waits {p.waits and p.waits[0]}"
            for p in self.alive()
        )
        return (
            f"{self.coordinator.stage.value} g{self.coordinator.generation} step"
            f" {self.coordinator.step}: {who}"
        )

    # --- between nodes ----------------------------------------------------------------------------

    @property
    def coordinator(self) -> Coordinator:
        """The one that lives, or lived last."""
        return self.host.coordinator

    def alive(self) -> list[Process]:
        return [
            process for node in self.nodes for process in node.processes.values() if process.alive
        ]

    def in_rank(self, rank: int) -> list[Process]:
        """Living processes that hold `rank`, or hold it still."""
        return [process for process in self._by_rank.get(rank, {}).values() if process.alive]

    def owners(self, rank: int) -> list[Process]:
        """The same, but for those that may not act any more."""
        return [process for process in self.in_rank(rank) if not process.node.still.outlives_lease]

    def takes_rank(self, process: Process, rank: int) -> None:
        """From its birth, or by a plan."""
        if self.fleet is not None and self.fleet.houses(rank) and process.node.fleet is None:
            raise Parted(f"rank {rank} of a fleet is given to {process.node.name}")
        self._by_rank.get(process.rank, {}).pop(process.worker, None)
        if rank >= 0 and not process.node.still.outlives_lease:
            for other in self.in_rank(rank):
                if other.node.still.outlives_lease:
                    self.lives.outlived(other, now_s=self.now_s)
        process.rank = rank
        self._by_rank.setdefault(rank, {})[process.worker] = process

    def takes_place(self, mate: Process) -> None:
        """Of the process that is a crew from now on."""
        mate.node.processes[mate.worker] = self._by_rank[mate.rank][mate.worker] = mate

    def luck(self, process: Process) -> Luck | None:
        """Of a process that begins."""
        if self.pool is None:
            return None
        if process.node.drawn_at == identical_nodes.PLACE:
            return Luck(
                self.pool, identical_nodes.PLACE, process.rank % self.options.ranks_per_node
            )
        return Luck(self.pool, process.worker)

    def line_to(self, name: str) -> AgentLink | Echo:
        """The coordinator's end of the line of a node."""
        return self._lines[name]

    def command(self, command: ForAgent) -> None:
        """The coordinator's, to the one node there is."""
        node = self.nodes[0]
        self._links.send("command", 0, lambda: node.obey(command))

    def holders(self, step: int) -> tuple[int, ...]:
        """Ranks that hold `step`, if that is enough to go on from it: one under replicated state,
        all under sharded. Whom the run itself has killed for this plan, though nothing had struck
        it, held it too.
        """
        if self.options.way == "sharded":
            held = tuple(
                rank for rank in range(self.options.ranks) if step in self._slots_of(rank).values()
            )
            return held if len(held) == self.options.ranks else ()
        had = [
            p
            for node in self.nodes
            for p in node.processes.values()
            if p.rank >= 0 and p.best >= step and (p.alive or p.ended_s > self._planned_s)
        ]
        if self.options.nodes > 1:  # an agent may have killed it, for its lease
            return tuple(
                p.rank
                for p in had
                if p.alive and p.worker not in p.node.doomed and not p.node.still.outlives_lease
            )
        return tuple(
            p.rank
            for p in had
            if (p.alive if p.worker not in p.node.doomed else p.pid not in self.strikes.pids())
        )

    def followers(self, step: int) -> tuple[int, ...]:
        """Ranks that stand in the hook of `step` and can apply it, if they are told to."""
        there = [
            p
            for p in self.alive()
            if p.in_hook
            and p.machine.state is State.STILL
            and p.machine.prepared == step == p.machine.committed + 1
        ]
        return tuple(
            p.rank
            for p in there
            if p.worker not in p.node.doomed and not p.node.still.outlives_lease
        )

    def has_greeted(self, worker: int) -> None:
        """The coordinator hears that it runs."""
        holders = tuple(member.worker for member in self.coordinator.roster.members())
        self.recovery_times.greeted(
            self.coordinator.generation, worker, holders=holders, now_s=self.now_s
        )

    def planned(self) -> None:
        """The coordinator has made a plan just now."""
        self._planned_s = self.now_s

    def noted(self, record: Interruption) -> None:
        """The coordinator writes down what it knows of an interruption."""
        if record.restored_s == self.now_s:
            generation = self.coordinator.generation
            self.see(
                Regrouped(
                    generation,
                    self.options.ranks,
                    tuple(sorted(self._with_those_alike(self._joined.get(generation, ())))),
                )
            )

    def _with_those_alike(self, ranks: Iterable[int]) -> set[int]:
        """What is so of these ranks is so of others that are simulated as one of them."""
        fleet = self.fleet
        return (
            set(ranks)
            if fleet is None
            else {other for rank in ranks for other in (rank, *fleet.like(rank))}
        )

    def _slots_of(self, rank: int) -> dict[int, int]:
        """Where the coordinator takes them to lie."""
        home = self.coordinator.roster.homes.get(rank, "")
        nodes = self.coordinator.nodes
        return (
            self._by_name[home].slots.get(rank, {})
            if home in nodes or home in nodes.returning
            else {}
        )

    def ended(self, end: End) -> None:
        self.end = end
        for node in self.nodes:
            node.run_over()
        self.say(f"the run is {end.state}, exit code {end.exit_code}: {end.reason}")
        interruptions = self.interruptions
        self.see(
            RunOver(
                state=end.state,
                exit_code=end.exit_code,
                reason=end.reason,
                committed=self.committed,
                until=self.options.steps,
                trained=bool(self.commits),
                plain=self.options.way == "plain",
                stop_asked=self.stop_asked,
                refused=any(fault.kind == "refuse" for _, fault, _ in self.strikes.struck),
                alive=tuple(
                    p.worker
                    for p in self.alive()
                    if p.rank >= 0 and not p.dying and not p.node.still.outlives_lease
                ),
                open_interruptions=tuple(
                    one.id for one in interruptions.values() if one.resumed_s is None
                ),
                interruptions=len(interruptions),
                strikes=self.strikes.harmful + self.verdicts.acts,
                done=tuple(sorted(self._with_those_alike(self.done))),
                blamed=_blamed(interruptions, end),
                struck=self.strikes.pids(),
                ranks=self.options.ranks,
                kinds=self.strikes.all_kinds(),
                max_restarts=(
                    limits.RESTARTS_COUNT
                    if self.options.max_restarts is None
                    else self.options.max_restarts
                ),
                asked=tuple(self.asked),
                noted=self.options.nodes > 1 or self.host.has_noted("script"),
                early_s=(
                    0.0
                    if self.options.nodes > 1 or self.spare_ended_early_s is None
                    else self.now_s - self.spare_ended_early_s - self.strikes.muted_s
                ),
                ending_s=(
                    self.now_s - self.asked_s if self.options.nodes == 1 and self.asked else 0.0
                ),
                spent=self.host.spent,
                policy=self.options.policy,
                rungs=tuple(
                    ("" if one.rung is None else one.rung.value, one.parent is not None)
                    for one in interruptions.values()
                ),
            )
        )
        self._see_first_fault(interruptions)
        latency_s = self.options.latency_s + self.strikes.muted_s
        knows = (
            self.options.way != "sharded"
            and not self.strikes.lapsed
            and not set(BY_NODE) & set(self.strikes.all_kinds())
        )
        for one in interruptions.values():
            moved = self.host.moved.get(one.id) if self.options.way != "sharded" else None
            known = self._known_then(one, latency_s)
            begun, stood_s = (
                self.host.begun.get(one.id),
                self.recovery_times.stood(one.generation) if knows else None,
            )
            self.see(
                Noted(
                    one,
                    self.options.nodes,
                    moved,
                    begun,
                    self._back_s(one),
                    latency_s,
                    known,
                    stood_s,
                    self._unsure_s(),
                )
            )
        if self.options.way != "plain":
            for one in interruptions.values():
                times_s = tuple(
                    at_s - BEGAN_S
                    for at_s in (
                        one.fault_s,
                        one.detected_s,
                        one.left_s,
                        one.restored_s,
                        one.resumed_s,
                    )
                    if at_s is not None
                )
                self.see(
                    Named(
                        one.id,
                        one.mechanism.value,
                        (
                            ()
                            if one.id in self.verdicts.own or not _was_looked_at(one, end)
                            else self._kinds_of(one)
                        ),
                        times_s,
                        self.age_s,
                        self._unsure_s(),
                    )
                )
        for process in self.alive():
            process.node.end(process, None, 9)
        records = list(interruptions.values())
        if self.fleet is not None:
            self.fleet.spread(self.worked)
        booked = self.lives.account(
            world_size=self.options.ranks, began_s=BEGAN_S, over_s=self.now_s, interruptions=records
        )
        self.see(
            Booked(
                booked.wall_s,
                booked.by_rank,
                self.worked.seconds(),
                self.worked.unsure_s(),
                bool(records) or end.state != "ended",
            )
        )

    def _unsure_s(self) -> float:
        """So far off may a time be that is told across nodes."""
        return 1.0 + self.strikes.held_up_s + self.age_s * self.options.drift

    def _back_s(self, one: Interruption) -> float | None:
        """When a later generation was at work; where there was none, and all ranks came to their
        end all the same, what is said is as good as any.
        """
        back_s = self.recovery_times.after(one.generation)
        return one.resumed_s if back_s is None and len(self.done) == self.options.ranks else back_s

    def _kinds_of(self, one: Interruption) -> tuple[str, ...]:
        """What struck whom it names.

        What its agent had to say of it may have come too late, or be lost with the coordinator that
        heard it.
        """
        kinds = self.strikes.kinds(one.pids, others=_by_node(one))
        return (
            tuple(
                dict.fromkeys(
                    (*kinds, *(kind for kind in self.strikes.all_kinds() if kind in UNTOLD))
                )
            )
            if kinds
            else ()
        )

    def _known_then(self, one: Interruption, latency_s: float) -> tuple[int, int] | None:
        """The newest committed step when an interruption was detected: as the agent's last look can
        have told, and in truth.
        """
        if (
            self.rolled_back
            or self.options.way in ("plain", "sharded")
            or self.options.nodes > 1
            or self.options.steps >= LONG_LIFE_STEPS
        ):
            return None
        return self.recovery_times.newest(
            one.detected_s - 2 * limits.TICK_S - 2 * latency_s
        ), self.recovery_times.newest(one.detected_s)

    def _see_first_fault(self, interruptions: dict[int, Interruption]) -> None:
        struck = self.strikes.struck
        if not interruptions or not struck:
            return
        first = interruptions[min(interruptions)]
        (at_s, fault, worker), next_s = struck[0], struck[1][0] if len(struck) > 1 else math.inf
        if worker and pid_of(worker) in first.pids and first.detected_s < next_s:
            alone = first.resumed_s is not None and first.resumed_s < min(next_s, self.stop_asked_s)
            back_s = (
                first.resumed_s - first.detected_s
                if alone and first.resumed_s is not None
                else None
            )
            within = (
                fault.mark in WITHIN_MARKS and not fault.after_s and self.options.way != "plain"
            )
            first_step_s = self.options.first_step_s + self.options.step_s
            by_itself = first.left_s is not None and first.left_s < next_s
            called = (
                first.mechanism.value
                if by_itself and self.options.nodes == 1 and self.options.way != "plain"
                else ""
            )
            body_s = self.options.step_s + BODY_SPREAD_S
            self.see(
                FirstFault(
                    fault.kind,
                    first.detected_s - at_s,
                    back_s,
                    self.options.latency_s,
                    first_step_s,
                    first.step,
                    within,
                    called,
                    self.options.hangs_after_s,
                    body_s,
                    self.options.nodes,
                )
            )

    # --- what the script tells --------------------------------------------------------------------

    def lasting(self, process: Process, least_s: float, most_s: float) -> float:
        """How long some work of the script takes."""
        return (process.luck or self._work).between(least_s, most_s)

    def passes(self, process: Process, mark: str) -> None:
        """The main thread is at `mark`."""
        each = process.each()
        if mark == "joined":
            self._joined.setdefault(process.machine.generation, set()).update(
                [one.rank for one in each]
            )
        self.marks[mark] = self.marks.get(mark, 0) + process.count
        if self.strikes.waits_for(mark):
            for one in tuple(each):
                self.strikes.at_mark(one, mark)

    def enter(self, process: Process, phase: Phase, *, cause: Cause | None = None) -> None:
        """As Session.enter."""
        if cause is not None:
            process.book.switch(now_s=self.now_s, cause=cause)
        publish(process, phase, now_s=self.now_s)
        self.stirred[process.node] = None

    def asks_for_step(self, step: int) -> None:
        self.newest_begun = max(self.newest_begun, step)

    def has_committed(self, process: Process, step: int) -> None:
        generation, self.last_step = process.machine.generation, step
        late = process.node.still.outlives_lease
        odd = process.began_ran - self.options.pieces(step - 1) if step > 1 else 0
        for one in process.each():
            holders = self._by_rank[one.rank]
            alone = len(holders) == 1 and one.worker in holders and not late and not one.dying
            owners = (
                (one.worker,)
                if alone
                else tuple(p.worker for p in self.owners(one.rank) if not p.dying)
            )
            self.see(
                StepDone(
                    one.worker,
                    one.rank,
                    generation,
                    step,
                    process.content,
                    owners,
                    process.node.count,
                    odd,
                )
            )
            self.recovery_times.committed(generation, one.rank, step, now_s=self.now_s)
            self.worked.did(one.rank, step, self.now_s - process.step_began_s)
            if not self.skip_ahead.silent:
                self.commits.append((self.now_s, generation, one.rank, step))
                if process.node.told:
                    self.say(f"rank {one.rank} commits step {step} in generation {generation}")
        if (
            self.options.spares
            and self.options.nodes == 1
            and process.rank == 0
            and self.coordinator.stage is Stage.TRAINING
        ):
            self._see_stock()
        if self.options.way != "sharded" or self._all_have_sealed(step):
            self.committed = max(self.committed, step)
        self.skip_ahead.committed(generation, step)

    def _see_stock(self) -> None:
        processes = self.nodes[0].processes.values()
        spares = [
            p
            for p in processes
            if p.alive and p.rank < 0 and not p.dying and p.worker not in p.node.doomed
        ]
        since_s = max(
            BEGAN_S,
            self._planned_s,
            self.host.staged_s,
            *(p.ended_s for p in processes),
            *(at_s for at_s, _, _ in self.strikes.struck),
        )
        others = sum(p.kind != self.options.spare_kind for p in spares)
        self.see(
            Stock(
                len(spares),
                self.options.spares,
                self.now_s - since_s,
                others,
                self.spare_ended_early_s is not None,
            )
        )

    def _all_have_sealed(self, step: int) -> bool:
        """`step`, or a later one."""
        ranks = self.options.ranks
        for offset in range(ranks):
            rank = (self._laggard + offset) % ranks
            if not any(
                sealed >= step
                for node in self.nodes
                for sealed in node.slots.get(rank, {}).values()
            ):
                self._laggard = rank
                return False
        return True

    # --- stretches --------------------------------------------------------------------------------

    def calm(self, now: bool) -> None:
        """Nothing is drawn for the time being; or it is again."""
        for stream in self._streams:
            stream.calm(now)
        if self.pool is not None:
            self.pool.calm(now)

    def leapt(self, count: int, last: int, step_s: float) -> None:
        """All ranks have done `count` steps of `step_s` each."""
        self.committed, self.last_step, self.newest_begun = (
            max(self.committed, last),
            last,
            max(self.newest_begun, last + 1),
        )
        self.worked.all_did(count, last, step_s)
        self.strikes.leapt(count)
        for mark in STEP_MARKS:
            self.marks[mark] = self.marks.get(mark, 0) + count * self.options.ranks


def _by_node(one: Interruption) -> bool:
    """It may name processes that nothing struck but what struck their node."""
    return one.mechanism is Mechanism.LOST_NODE or len(one.pids) < len(one.ranks)


def _blamed(interruptions: dict[int, Interruption], end: End) -> tuple[int, ...]:
    """Where the run was stopped, or failed, before all had left, nobody had looked yet who of those
    that spoke is a victim. Nor is somebody blamed who is ended because all stand at one place, or
    that has made no call yet.
    """
    seen = [
        one
        for one in interruptions.values()
        if _was_looked_at(one, end) and not any(words in one.reason for words in NOBODY_TOLD)
    ]
    return tuple(sorted({pid for one in seen for pid in one.pids}))


def _was_looked_at(one: Interruption, end: End) -> bool:
    return one.left_s is not None or end.state == "ended"


def _resume_if(process: Process, token: int, error: Exception | None) -> None:
    process.node.resume_if(process, token, error)


def _clock(stream: Stream, options: Options) -> tuple[float, float]:
    """Offset and rate. Of one node, in one process with its coordinator, it is the same clock."""
    offset_s, drift = stream.between(0.0, 1e5), stream.between(-1.0, 1.0)
    return (offset_s, 1.0 + drift * options.drift) if options.nodes > 1 else (0.0, 1.0)
