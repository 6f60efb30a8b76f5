"""The world of one simulated run, put together from its parts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import End
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import ForAgent
from outlast.model.records import Interruption
from outlast.model.terms import Cause, Phase
from outlast.sim.draws import Stream
from outlast.sim.options import Options
from outlast.sim.rules.checker import Violation
from outlast.sim.rules.checkers import Checkers
from outlast.sim.rules.final_observations import NothingMoves
from outlast.sim.rules.observations import (
    Executed,
    Observation,
    Regrouped,
    SpareCount,
    StepDone,
    StopAsked,
)
from outlast.sim.shortcuts import identical_nodes
from outlast.sim.shortcuts.identical_nodes import IdenticalNodes
from outlast.sim.shortcuts.identical_ranks import IdenticalRanks
from outlast.sim.shortcuts.skip_ahead import SkipAhead
from outlast.sim.world.booked_seconds import publish
from outlast.sim.world.chance import Chance
from outlast.sim.world.collectives import Collectives
from outlast.sim.world.coordinator_host import CoordinatorHost
from outlast.sim.world.disk import Disks
from outlast.sim.world.final_report import FinalReport
from outlast.sim.world.frame import Frame
from outlast.sim.world.links import Links
from outlast.sim.world.node import Node
from outlast.sim.world.node_maker import make_nodes
from outlast.sim.world.node_parts import Script
from outlast.sim.world.paths import Paths
from outlast.sim.world.population import Population
from outlast.sim.world.processes import Home, SimulatedProcess, TransferImage
from outlast.sim.world.requested_stops import RequestedStops
from outlast.sim.world.run_accounts import RunAccounts
from outlast.sim.world.state_holders import StateHolders
from outlast.sim.world.steps_done import StepsDone
from outlast.sim.world.store import Store
from outlast.sim.world.strikes import STEP_MARKS, FaultStrikes
from outlast.sim.world.timeline import FIXED, Timeline
from outlast.sim.world.trace import Trace
from outlast.sim.world.verdicts import Verdicts

ASKS_AGAIN_S = 0.05
BEGAN_S = 100.0  # not 0, so that a time that was forgotten is noticed


@dataclass(slots=True)
class Shared:
    """The parts that all nodes share. `links` are used if there is only one node.

    image             the transfer image; None if there is none
    image_died        True: it was lost with its node
    image_elsewhere   an older transfer image of the same step on another node
    """

    links: Links
    paths: Paths
    collectives: Collectives
    store: Store
    disks: Disks
    image: TransferImage | None = None
    image_died: bool = False
    image_elsewhere: TransferImage | None = None

    def write_image(self, image: TransferImage | None) -> None:
        """Replace the transfer image by `image`. One of the same step on another node stays."""
        before = self.image
        if image is before:
            return
        self.image, self.image_elsewhere = image, None
        if image is None or before is None:
            return
        if before[1] == image[1] and before[2] is not image[2]:
            self.image_elsewhere = before

    def image_on(self, home: Home) -> tuple[int, ...]:
        """Return generation and step of the transfer image in the memory of a node, or ()."""
        there = (self.image, self.image_elsewhere)
        return next((one[:2] for one in there if one is not None and one[2] is home), ())

    def lose_images_of(self, home: Home) -> None:
        """Lose the transfer images in the memory of a node."""
        if self.image_elsewhere is not None and self.image_elsewhere[2] is home:
            self.image_elsewhere = None
        if self.image is not None and self.image[2] is home:
            self.image, self.image_elsewhere = self.image_elsewhere, None
            self.image_died = self.image is None


@dataclass(slots=True)
class Watching:
    """The parts that look at the run from outside: counts of faults, verdicts, holders of state."""

    strikes: FaultStrikes
    verdicts: Verdicts
    state_holders: StateHolders


@dataclass(slots=True)
class Shortcuts:
    """The shortcuts, which do not change the course. `twins` are nodes simulated as one."""

    twins: IdenticalNodes | None
    identical_ranks: IdenticalRanks
    skip_ahead: SkipAhead


class World:
    """One simulated run: the coordinator, nodes, links, disks, faults, and observers.

    The coordinator, the agents and each worker's listener are outlast's own machines. The world
    gives them virtual time, processes and networks. It draws everything from one seed, so the same
    seed and options take the same course.

    Example
        world = World(options=Options(ranks=4), script=script_of("in_place"), faults=(), seed=7)
        end = world.run(bound_s=3_600.0)
        assert world.checkers.violations == []

    Its life    At first the world is only put together from its parts. `run` starts the
                coordinator and the nodes, and takes events from the timeline until the run has
                ended and no process lives, a rule is broken, or the bound is reached. A world is
                used once.
    Its parts   `frame` (options, clock, trace, rules), `chance` (all draws), `steps`, `accounts`
                and `requested_stops` (records of what has happened), `population` (nodes,
                processes, ranks), `shared` (store, disks, network), `host` (the coordinator),
                `watching` and `shortcuts`. Each part defines a small protocol with what it needs of
                the other parts.
    Limits      The world shows nothing about real time, tensors, or the code of a script. A rule
                that holds here holds for the state machines, not for the sockets and files around
                them: tests/conformance compares each fake with the real thing.

    Options     With `rests`, ticks of an agent that change nothing are left out. With `steady`, all
                work and all messages take the least time. With `every_step`, `every_rank` or
                `every_node`, no shortcut of that kind is taken; `every_rank` includes `every_node`.
                All of them except `steady` change only the time of the simulation, and not the
                course.
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
        likeness = identical_nodes.alike(options, faults)
        alone = every_rank or every_node or likeness is None
        twins = None if alone or likeness is None else IdenticalNodes(likeness, options.node_names)
        self.frame = Frame(options, began_s=BEGAN_S)
        self.chance = Chance(seed, options, steady=steady, begins=likeness is not None)
        self.steps = StepsDone()
        self.accounts = RunAccounts(options)
        self.requested_stops = RequestedStops()
        self.population = Population(self.frame, twins, self.chance.pool, self.accounts.lives)
        self.host = CoordinatorHost(self)
        kernel = self.chance.stream("kernel")
        self.shared = self._share(kernel)
        self.watching = self._watch(faults)
        ranks = IdenticalRanks(
            options,
            faults,
            self.chance.pool,
            takes_place=self.population.takes_place,
            every_rank=every_rank,
        )
        self.shortcuts = Shortcuts(twins, ranks, SkipAhead(self, every_step=every_step))
        self.frame.also_see.append(self.accounts.look)
        if twins is not None:
            self.accounts.worked.only(twins.without_likes(options.ranks))
        if likeness is not None:
            names = options.node_names
            self.frame.untold = frozenset(names[place] for place in likeness.members[1:])
        for name, node in make_nodes(
            self, script, self.shared.links, kernel, likeness=likeness, twins=twins, rests=rests
        ):
            self.population.add(name, node)

    def _share(self, kernel: Stream) -> Shared:
        options, timeline, stream = self.frame.options, self.frame.timeline, self.chance.stream
        paths = Paths(timeline, stream("paths"))
        collectives = Collectives(
            timeline,
            stream("collectives"),
            ranks=options.ranks,
            resume=_resume_if,
            paths=paths,
            turns=stream("turns"),
        )
        host = self.host
        return Shared(
            Links(timeline, stream("links"), latency_s=options.latency_s),
            paths,
            collectives,
            Store(timeline, collectives, kernel, alive=self.population.alive),
            Disks(self.frame, stream("disks"), epoch=lambda: host.epoch if host.lives else 0),
        )

    def _watch(self, faults: tuple[PlannedFault, ...]) -> Watching:
        strikes = FaultStrikes(self, faults)
        return Watching(
            strikes,
            Verdicts(self.frame, self.host, self.requested_stops, self.chance.stream("verdicts")),
            StateHolders(
                self.frame.options,
                self.population,
                coordinator=lambda: self.host.coordinator,
                struck=strikes.pids,
                took_over=lambda: self.host.epoch > 1,
            ),
        )

    # --- time -------------------------------------------------------------------------------------

    def run(self, *, bound_s: float) -> End | None:
        """Simulate the run to its end, or for `bound_s`. Return how it ended, if it did."""
        frame, population, twins = self.frame, self.population, self.shortcuts.twins
        frame.bound_s = BEGAN_S + bound_s
        self._plan_stop()
        if self.chance.begins:
            self.chance.calm(True)
        self.host.begin()
        for node in population.nodes:
            node.begin()
        self.strikes.arm()
        timeline, stirred, violations = frame.timeline, population.stirred, self.violations
        while (
            (frame.end is None or population.living)
            and not violations
            and timeline.step(until_s=frame.bound_s)
        ):
            if stirred:
                for stirred_node in stirred:
                    stirred_node.ticks.event_ends()
                stirred.clear()
            if twins is not None:
                twins.check(now_s=timeline.now_s)
        if frame.end is None and not violations:
            frame.see(NothingMoves(bound_s, self.describe()))
        return frame.end

    def _plan_stop(self) -> None:
        """Plan a request to stop the run, if the options say so."""
        options, after = self.frame.options, self.frame.timeline.after
        if not options.for_s:
            return
        after(
            options.for_s, lambda: self.ask_stop(reason="its time is up", exit_code=0), sort=FIXED
        )
        if options.again_s:
            after(
                options.for_s + options.again_s,
                lambda: self.ask_stop(reason="it is to end at once", exit_code=130),
                sort=FIXED,
            )

    def ask_stop(self, *, reason: str, exit_code: int) -> None:
        """Ask the run to stop, as a person or a timer does."""
        frame, stops = self.frame, self.requested_stops
        if frame.end is not None:
            return
        if not self.host.lives:  # there is no coordinator to receive it
            frame.timeline.after(
                ASKS_AGAIN_S, lambda: self.ask_stop(reason=reason, exit_code=exit_code), sort=FIXED
            )
            return
        stage, plain = self.coordinator.stage, not self.accounts.recovery_times.has_steps
        nothing_yet = (
            stage is Stage.CLEARING if plain else stage is Stage.STARTING and not self.commits
        )
        # otherwise the coordinator may not know yet that all ranks are at work
        if stage is not Stage.STARTING or plain or nothing_yet:
            again, single = bool(stops.asked), frame.options.nodes == 1
            frame.see(StopAsked(plain, nothing_yet, again, single))
        stops.first_stop_s = min(stops.first_stop_s, frame.now_s)
        stops.add((exit_code, reason), now_s=frame.now_s)
        self.host.ask_stop(reason=reason, exit_code=exit_code)

    def describe(self) -> str:
        """Return the places of all processes, for a run that does not end."""
        who = "; ".join(
            f"worker {p.worker} rank {p.rank} {p.machine.state.value} g{p.machine.generation}"
            f" {p.beacon.phase.value} waits {p.waits and p.waits[0]}"
            for p in self.population.alive()
        )
        return (
            f"{self.coordinator.stage.value} g{self.coordinator.generation} step"
            f" {self.coordinator.step}: {who}"
        )

    # --- what the coordinator and the nodes ask for -----------------------------------------------

    def command(self, command: ForAgent) -> None:
        """Pass the coordinator's order to the only node."""
        node = self.population.nodes[0]
        self.shared.links.send("command", 0, lambda: node.obey(command))

    def noted(self, record: Interruption) -> None:
        """Receive the coordinator's record of an interruption."""
        if record.restored_s != self.frame.now_s:
            return
        generation = self.coordinator.generation
        joined = self.steps.joined.get(generation, ())
        ranks = tuple(sorted(self.population.with_those_alike(joined)))
        self.frame.see(Regrouped(generation, self.frame.options.ranks, ranks))

    def isolate(self, node: Home, for_s: float) -> None:
        """Cut a node off from all others."""
        for other in self.population.nodes:
            if other is not node:
                self.paths.part(node, other, for_s)

    def spare_ended_early(self) -> None:
        """Note that a spare has ended by itself before it could park."""
        accounts = self.accounts
        accounts.spare_ended_early_s = accounts.spare_ended_early_s or self.frame.now_s

    def ended(self, end: End) -> None:
        """End the run, and let the rules see everything that is known then."""
        self.frame.end = end
        for node in self.population.nodes:
            node.run_over()
        self.frame.say(f"the run is {end.state}, exit code {end.exit_code}: {end.reason}")
        report = FinalReport(
            self.frame,
            self.host,
            self.population,
            self.strikes,
            self.verdicts,
            self.accounts,
            self.steps,
            self.requested_stops,
        )
        report.see_interruptions(end, began_s=BEGAN_S)
        for process in self.population.alive():
            process.node.end(process, None, 9)
        if self.shortcuts.twins is not None:
            self.shortcuts.twins.spread(self.accounts.worked.same)
        report.see_books(end, began_s=BEGAN_S)

    # --- reports of the script --------------------------------------------------------------------

    def lasting(self, process: SimulatedProcess, least_s: float, most_s: float) -> float:
        """Return how long some work of the script takes."""
        return self.chance.lasting(process.luck, least_s, most_s)

    def passes(self, process: SimulatedProcess, mark: str) -> None:
        """Note that the main thread of a process is at `mark`, and let faults strike there."""
        each = process.each()
        if mark == "joined":
            joined = self.steps.joined.setdefault(process.machine.generation, set())
            joined.update([one.rank for one in each])
        self.steps.visit(mark, process.count)
        strikes = self.watching.strikes
        if strikes.waits_for(mark):
            for one in tuple(each):
                strikes.at_mark(one, mark)

    def enter(self, process: SimulatedProcess, phase: Phase, *, cause: Cause | None = None) -> None:
        """Note that the main thread begins something else, as Session.enter does."""
        now_s = self.frame.timeline.now_s
        if cause is not None:
            process.book.switch(now_s=now_s, cause=cause)
        publish(process, phase, now_s=now_s)
        self.population.stirred[process.node] = None

    def asks_for_step(self, step: int) -> None:
        """Note that a rank asks for `step`."""
        self.steps.begins(step)

    def has_executed(self, step: int) -> None:
        """Note that a rank has run the optimizer of `step`."""
        if self.steps.executes(step):
            self.frame.see(Executed(step))

    def has_committed(self, process: SimulatedProcess, step: int) -> None:
        """Note that a rank, or each rank of a stand-in, has committed `step`."""
        options, now_s, node = self.frame.options, self.frame.now_s, process.node
        generation, self.steps.last = process.machine.generation, step
        plan = process.machine.plan
        late, count, content = node.still.outlives_lease, node.count, process.content
        silent, traced = self.skip_ahead.silent, node.traced
        excess = process.began_ran - options.pieces(step - 1) if step > 1 else 0
        if options.moves and step > 1 and not excess:
            excess = process.began_own - options.pieces(step - 1)
        for one in process.each():
            owners = self._owners(one, alone=not late)
            self.frame.see(
                StepDone(one.worker, one.rank, generation, step, content, owners, count, excess)
            )
            self.accounts.recovery_times.committed(
                generation, one.rank, step, new=plan is None or step > plan.step, now_s=now_s
            )
            self.accounts.worked.did(one.rank, step, now_s - process.step_began_s)
            if not silent:
                self.steps.commits.append((now_s, generation, one.rank, step))
                if traced:
                    self.say(f"rank {one.rank} commits step {step} in generation {generation}")
        training = self.coordinator.stage is Stage.TRAINING
        if options.spares and options.nodes == 1 and process.rank == 0 and training:
            self._see_stock()
        if options.recovery_mode != "sharded" or self.state_holders.all_have_sealed(step):
            self.steps.committed = max(self.steps.committed, step)
        self.skip_ahead.committed(generation, step)

    def _owners(self, process: SimulatedProcess, *, alone: bool) -> tuple[int, ...]:
        """Return the workers that may commit for the rank of `process`, mostly only this one."""
        holders = self.population.holders_by_worker(process.rank)
        if alone and len(holders) == 1 and process.worker in holders and not process.dying:
            return (process.worker,)
        return tuple(p.worker for p in self.population.owners(process.rank) if not p.dying)

    def _see_stock(self) -> None:
        options, processes = self.frame.options, self.population.nodes[0].processes.values()
        spares = [
            p
            for p in processes
            if p.alive and p.rank < 0 and not p.dying and p.worker not in p.node.doomed
        ]
        since_s = max(
            BEGAN_S,
            self.state_holders.planned_s,
            self.host.watch.staged_s,
            *(p.ended_s for p in processes),
            *(at_s for at_s, _, _ in self.strikes.struck),
        )
        others = sum(p.kind != options.spare_kind for p in spares)
        early = self.accounts.spare_ended_early_s is not None
        quiet_s = self.frame.now_s - since_s
        self.frame.see(SpareCount(len(spares), options.spares, quiet_s, others, early))

    def leapt(self, count: int, last: int, step_s: float) -> None:
        """Note that all ranks have done `count` steps of `step_s` each, by arithmetic."""
        self.steps.leap(last)
        self.accounts.worked.all_did(count, last, step_s)
        self.strikes.leapt(count)
        for mark in STEP_MARKS:
            self.steps.visit(mark, count * self.frame.options.ranks)

    # --- its parts by their short names -----------------------------------------------------------

    @property
    def options(self) -> Options:
        return self.frame.options

    @property
    def timeline(self) -> Timeline:
        return self.frame.timeline

    @property
    def trace(self) -> Trace:
        return self.frame.trace

    @property
    def checkers(self) -> Checkers:
        return self.frame.checkers

    @property
    def violations(self) -> list[Violation]:
        return self.frame.checkers.violations

    @property
    def end(self) -> End | None:
        return self.frame.end

    @property
    def now_s(self) -> float:
        return self.frame.timeline.now_s

    @property
    def age_s(self) -> float:
        return self.frame.age_s

    @property
    def coordinator(self) -> Coordinator:
        return self.host.coordinator

    @property
    def interruptions(self) -> dict[int, Interruption]:
        return self.host.interruptions

    @property
    def nodes(self) -> list[Node]:
        return self.population.nodes

    @property
    def committed(self) -> int:
        return self.steps.committed

    @property
    def commits(self) -> deque[tuple[float, int, int, int]]:
        return self.steps.commits

    @property
    def rolled_back(self) -> list[tuple[int, int]]:
        return self.steps.rolled_back

    @property
    def marks(self) -> dict[str, int]:
        return self.steps.marks

    @property
    def store(self) -> Store:
        return self.shared.store

    @property
    def paths(self) -> Paths:
        return self.shared.paths

    @property
    def collectives(self) -> Collectives:
        return self.shared.collectives

    @property
    def disks(self) -> Disks:
        return self.shared.disks

    @property
    def strikes(self) -> FaultStrikes:
        return self.watching.strikes

    @property
    def verdicts(self) -> Verdicts:
        return self.watching.verdicts

    @property
    def state_holders(self) -> StateHolders:
        return self.watching.state_holders

    @property
    def skip_ahead(self) -> SkipAhead:
        return self.shortcuts.skip_ahead

    @property
    def identical_ranks(self) -> IdenticalRanks:
        return self.shortcuts.identical_ranks

    @property
    def has_twins(self) -> bool:
        return self.shortcuts.twins is not None

    @property
    def transfer(self) -> TransferImage | None:
        return self.shared.image

    @transfer.setter
    def transfer(self, image: TransferImage | None) -> None:
        self.shared.write_image(image)

    @property
    def transfer_died(self) -> bool:
        return self.shared.image_died

    @transfer_died.setter
    def transfer_died(self, died: bool) -> None:
        self.shared.image_died = died

    def image_on(self, home: Home) -> tuple[int, ...]:
        """Return generation and step of the transfer image in the memory of a node, or ()."""
        return self.shared.image_on(home)

    def lose_images_of(self, home: Home) -> None:
        """Lose the transfer images in the memory of a node."""
        self.shared.lose_images_of(home)

    def see(self, seen: Observation) -> None:
        """Let the rules look at what has happened just now."""
        self.frame.see(seen)

    def say(self, what: str) -> None:
        """Write a line into the trace."""
        self.frame.say(what)


def _resume_if(process: SimulatedProcess, token: int, error: Exception | None) -> None:
    process.node.resume_if(process, token, error)
