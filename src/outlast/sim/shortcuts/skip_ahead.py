"""Skip undisturbed stretches of training: compute many steps at once by arithmetic.

A stretch lies between two barriers. At a barrier each rank waits at the end of a step until all
ranks have reached it. Then all pause, so that messages on their way can arrive. From the first
barrier to the end of the second pause nothing is drawn. All work and all messages take the least
time. So each step is like the others, and need not be simulated. Steps, books and beacons are
advanced by the skipped steps, and only the last heartbeat on each link is sent. Simulation goes on
before the next fault or deadline is due.

With `every_step`, all steps are simulated, at the same times. The course is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from outlast.engine.agent.worker_watch import Reading
from outlast.engine.commit.image_place import AT_VOTE
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import SendOverLink, SetTimer
from outlast.engine.protocol.worker import WorkerState
from outlast.model import limits
from outlast.model.messages import Beat, Grant
from outlast.model.terms import Cause, Phase
from outlast.sim.durations import LEAST_S, SEAL_S, pause_s, steady_step_s
from outlast.sim.options import LONG_LIFE_STEPS
from outlast.sim.rules.observations import Stretch
from outlast.sim.shortcuts.identical_ranks import IdenticalRanks, by_rank
from outlast.sim.world.booked_seconds import publish
from outlast.sim.world.chance import Chance
from outlast.sim.world.collectives import Collectives
from outlast.sim.world.coordinator_host import CoordinatorHost
from outlast.sim.world.frame import Frame
from outlast.sim.world.node import Node
from outlast.sim.world.paths import Paths
from outlast.sim.world.population import Population
from outlast.sim.world.processes import SealedStep, SimulatedProcess
from outlast.sim.world.requested_stops import RequestedStops
from outlast.sim.world.strikes import FaultStrikes
from outlast.sim.world.timeline import BUSY

LEAST_STEPS = 5  # a shorter stretch is not worth its barriers
AGAIN_STEPS = 2  # after a barrier without a stretch, steps until the next attempt
LOOKS = 50  # number of checks for the moment at which no message is on its way
NEAR_S = 1e-6  # the sum of thousands of equal steps differs from their product by less


class Skipped(Protocol):
    """The parts of the world that are advanced by arithmetic."""

    @property
    def frame(self) -> Frame: ...

    @property
    def chance(self) -> Chance: ...

    @property
    def population(self) -> Population: ...

    @property
    def host(self) -> CoordinatorHost: ...

    @property
    def requested_stops(self) -> RequestedStops: ...

    @property
    def strikes(self) -> FaultStrikes: ...

    @property
    def collectives(self) -> Collectives: ...

    @property
    def paths(self) -> Paths: ...

    @property
    def identical_ranks(self) -> IdenticalRanks: ...

    def leapt(self, count: int, last: int, step_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """The length of an undisturbed step, and of the pauses around a stretch."""

    step_s: float
    pause_s: float


class SkipAhead:
    """Skip undisturbed steps: ranks meet at a barrier, and the world is advanced by arithmetic.

    `silent` is True while steps are simulated for which the trace has a single line.
    """

    def __init__(self, world: Skipped, *, every_step: bool) -> None:
        self._world = world
        self._every_step = every_step
        options = world.frame.options
        self._pace = Pace(steady_step_s(options), pause_s(options))
        self._barrier_at = -1  # the step after which all ranks have to meet
        # generation, and the newest step in it at which a barrier was considered
        self._considered = (0, 0)
        self._not_before = (0, 0)
        self._there: dict[int, SimulatedProcess] = {}
        self._count = 0  # number of ranks at the barrier
        self._planned: int | None = None  # number of the event that ends the pause
        # the last step of the stretch, and when it ends
        self._goal: tuple[int, float] | None = None

    @property
    def silent(self) -> bool:
        """Return True while steps are simulated for which the trace has a single line."""
        return self._goal is not None

    # --- barriers ---------------------------------------------------------------------------------

    def committed(self, generation: int, step: int) -> None:
        """Note a commit.

        When the first rank commits a step, it is decided whether all ranks meet after it.
        """
        if (generation, step) <= self._considered:
            return
        self._considered = generation, step
        if (
            self._barrier_at < 0
            and (generation, step) >= self._not_before
            and self._is_training()
            and self._steps_from(step, self._pace.pause_s) >= LEAST_STEPS
        ):
            self._barrier_at = step

    def is_barrier(self, step: int) -> bool:
        """Return True if a rank that has committed `step` has to wait for the others."""
        return step == self._barrier_at

    def arrive(self, process: SimulatedProcess) -> None:
        by_rank(process)
        self._there[process.rank] = process
        self._count += process.count
        if self._count < self._world.frame.options.ranks:
            return
        self._world.chance.begun()
        self._world.chance.calm(True)
        if self._goal is not None:
            last, ends_s = self._goal
            assert (
                process.machine.committed == last and abs(self._world.frame.now_s - ends_s) < NEAR_S
            ), "a stretch is not what it was taken for"
            self._over(last, ends_s)
        else:
            self._plan(self._world.frame.now_s + self._pace.pause_s)

    def give_up(self) -> None:
        """End the pause because something happens. Each rank goes on by itself."""
        if self._barrier_at < 0:
            return
        if self._planned is not None:
            self._world.frame.timeline.cancel(self._planned, sort=BUSY)
        there = self._clear()
        for process in there:
            if process.alive and process.waits is not None and process.waits[0] == "barrier":
                self._world.collectives.wake(process, None)

    def _plan(self, at_s: float, looks: int = LOOKS) -> None:
        self._planned = self._world.frame.timeline.at(at_s, lambda: self._decide(looks))

    def _decide(self, looks: int) -> None:
        """Decide whether to skip steps. The pause is over, and all ranks have met."""
        world, self._planned = self._world, None
        if world.frame.timeline.busy and looks:
            self._plan(world.frame.now_s + 3 * LEAST_S, looks - 1)
            return
        first = self._barrier_at + 1
        count = self._steps_from(self._barrier_at, 0.0)
        if world.frame.timeline.busy or count < LEAST_STEPS - 2 or not self._is_quiet():
            self._not_before = world.host.coordinator.generation, self._barrier_at + AGAIN_STEPS
            self._go_on()
            return
        last, ends_s = self._barrier_at + count, world.frame.now_s + count * self._pace.step_s
        self._begins(first, last)
        if self._every_step:
            self._goal, self._barrier_at = (last, ends_s), last
            self._resume(self._take())
        else:
            self._leap(count, last, ends_s)
            self._over(last, ends_s)

    def _over(self, last: int, ends_s: float) -> None:
        """End the stretch with another pause, in which all messages arrive."""
        self._goal = None
        self._world.frame.trace.line(ends_s, f"all ranks have committed step {last}")
        self._planned = self._world.frame.timeline.at(ends_s + self._pace.pause_s, self._go_on)

    def _go_on(self) -> None:
        self._resume(self._clear())

    def _clear(self) -> list[SimulatedProcess]:
        self._world.chance.calm(False)
        self._barrier_at, self._planned, self._goal = -1, None, None
        return self._take()

    def _take(self) -> list[SimulatedProcess]:
        there = [self._there[rank] for rank in sorted(self._there)]
        self._there.clear()
        self._count = 0
        return there

    def _resume(self, there: list[SimulatedProcess]) -> None:
        for process in there:
            self._world.frame.timeline.after(
                0.0, partial(process.node.resume_if, process, process.token, None)
            )

    # --- the length of a stretch ------------------------------------------------------------------

    def _is_training(self) -> bool:
        world = self._world
        return (
            world.frame.options.steps >= LONG_LIFE_STEPS
            and not world.frame.options.peer_copies
            and not world.frame.options.moves
            and world.frame.options.recovery_mode != "plain"
            and world.host.lives
            and world.host.coordinator.stage is Stage.TRAINING
            and world.frame.end is None
            and not world.requested_stops.asked
        )

    def _steps_from(self, step: int, wait_s: float) -> int:
        """Return how many steps after `step` are undisturbed, if they begin `wait_s` from now.

        The last steps of the run do not count, because they are simulated.
        """
        world = self._world
        due_s = world.frame.timeline.next_fixed_s
        until_s = min(world.frame.bound_s, math.inf if due_s is None else due_s)
        count = math.floor(
            min(
                (until_s - world.frame.now_s - wait_s - self._pace.pause_s) / self._pace.step_s,
                world.frame.options.steps - step - 2,
            )
        )
        if step < world.frame.options.phase_after:
            count = min(count, world.frame.options.phase_after - step - 2)
        if (every := world.frame.options.checkpoint_every) > 0:
            count = min(count, every - step % every - 1)
        return int(min(count, world.strikes.steps_from(step)))

    def _is_quiet(self) -> bool:
        """Return True if no process is disturbed now or will be soon."""
        world, generation = self._world, self._world.host.coordinator.generation
        return (
            self._is_training()
            and not world.host.coordinator.interruptions.open
            and not world.host.coordinator.departs_soon
            and world.paths.whole
            and all(
                node.is_quiet() if node.lives else node.name not in world.host.coordinator.nodes
                for node in world.population.nodes
            )
            and all(
                p.alive
                and not (p.stopped or p.hung or p.error)
                and p.machine.generation == generation
                and p.machine.state is WorkerState.TRAINING
                and p.machine.stop is None
                and p.high_water <= p.machine.committed
                for p in self._there.values()
            )
        )

    # --- the leap ---------------------------------------------------------------------------------

    def _begins(self, first: int, last: int) -> None:
        self._considered = self._world.host.coordinator.generation, last
        if self._world.frame.options.alike:
            self._world.identical_ranks.form(
                self._there, self._world.population.nodes, now_s=self._world.frame.now_s
            )
        there = [one for process in self._there.values() for one in process.each()]
        pieces = self._world.frame.options.pieces(first - 1)
        torn = tuple(
            one.rank
            for one in there
            if one.content != first - 1 or (first > 1 and one.unit.ran != pieces)
        )
        shared = tuple(
            one.rank
            for one in there
            if [
                other.worker
                for other in self._world.population.in_rank(one.rank)
                if not other.dying
            ]
            != [one.worker]
        )
        self._world.frame.see(
            Stretch(self._world.host.coordinator.generation, first, last, torn, shared)
        )

    def _leap(self, count: int, last: int, ends_s: float) -> None:
        """Advance everything as if the steps had been simulated."""
        world, began_s = self._world, self._world.frame.now_s
        living = [node for node in world.population.nodes if node.lives]
        for node in living:
            self._first_steps(node, last - count, began_s)
        # the newest heartbeat that is answered by then, and one that is not
        for until_s in (ends_s - 2 * LEAST_S, ends_s) if world.frame.options.nodes > 1 else ():
            beats = [(node.last_beat_s(until_s), place, node) for place, node in enumerate(living)]
            for asked_s, _, node in sorted(one for one in beats if one[0] > 0.0):
                self._beat(node, asked_s, ends_s)
        world.frame.timeline.leap(ends_s)
        for process in self._there.values():
            self._move(process, count, last, began_s)
        world.leapt(count, last, self._pace.step_s)
        for node in living:
            node.ticks.leapt()

    def _first_steps(self, node: Node, step: int, began_s: float) -> None:
        """Let the agent learn how long steps take, from the first steps of each process."""
        agent = node.agent
        if not agent.learns:
            return
        for number in range(limits.FIRST_STEPS_COUNT + 1):
            now_s = node.local_s(began_s + number * self._pace.step_s)
            at_ns = int(now_s * 1e9)
            agent.rest(until_s=now_s - limits.TICK_S)
            readings = {
                p.worker: Reading(
                    replace(
                        beacon,
                        phase=Phase.BODY,
                        step=step + number,
                        beats=beacon.beats + 1 + number,
                        at_ns=at_ns,
                    ),
                    False,
                )
                for p in node.processes.values()
                for beacon in (p.unit.beacon,)
                if p.alive and p.rank >= 0
            }
            # the first tick after the stretch sends its messages
            agent.on_tick(readings, now_s=now_s)

    def _beat(self, node: Node, asked_s: float, ends_s: float) -> None:
        """Carry out the last heartbeat of the stretch.

        It overwrites everything that the ones before it would have changed.
        """
        agent_session, sessions = node.agent_session, self._world.host.sessions
        assert agent_session is not None and sessions is not None
        agent_session.leave_out_beats(asked_s=node.local_s(asked_s - node.beats_every_s))
        for asked in agent_session.on_timer(now_s=node.local_s(asked_s), name="beat"):
            if isinstance(asked, SetTimer):
                node.do([asked])
                continue
            assert isinstance(asked, SendOverLink) and isinstance(asked.message, Beat), asked
            heard_s, beat = asked_s + LEAST_S, asked.message
            if heard_s > ends_s:
                node.link.carry_at("up", beat, heard_s)
                continue
            for granted in self._world.host.beaten(node, beat, now_s=heard_s):
                assert isinstance(granted, SendOverLink) and isinstance(granted.message, Grant), (
                    granted
                )
                if heard_s + LEAST_S > ends_s:
                    node.link.carry_at("down", granted.message, heard_s + LEAST_S)
                else:
                    node.do(
                        agent_session.on_grants(
                            granted.message, now_s=node.local_s(heard_s + LEAST_S)
                        )
                    )

    def _move(self, process: SimulatedProcess, count: int, last: int, began_s: float) -> None:
        """Advance one process, as if its main thread had done `count` steps."""
        machine, book, now_s = process.machine, process.book, self._world.frame.now_s
        book.begin_step(now_s=began_s)
        slots = process.node.slots.setdefault(process.rank, {})
        for step in (last - 1, last):
            slot = step % limits.SLOTS_COUNT
            slots[slot] = SealedStep(step, AT_VOTE, 0)
            process.newest = slot, step, AT_VOTE
        if self._world.frame.options.recovery_mode == "sharded":
            book.switch(now_s=now_s - count * SEAL_S, cause=Cause.STALL)
            machine.note_sealed(steps=(last, last - 1))
        book.commit_step(now_s=now_s, first=True, then=Cause.OTHER)
        machine.note_prepared(step=last)
        machine.note_passed(step=last)
        outputs = machine.note_committed(step=last, now_s=process.node.now_s)
        assert not outputs, "the first step of a generation is in no stretch"
        machine.note_begun(over=False)
        process.holds(last)
        process.collectives += 2 * count
        publish(process, Phase.BETWEEN, now_s=now_s)
