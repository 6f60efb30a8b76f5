"""One node: its agent, and the processes it hosts.

The agent and each process's listener are the machines of the product; what they would do to the
world is simulated here. A process's main thread is a generator (script.py).
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from outlast.engine.agent.agent import Agent
from outlast.engine.cluster.agent_session import AgentSession
from outlast.engine.cluster.lease import void_after_s
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.protocol.outputs import (
    Answer,
    Deliver,
    HangUp,
    HostStore,
    Kill,
    Line,
    Output,
    Plan,
    Say,
    SetTimer,
    Spawn,
    Tell,
    Terminate,
    ToCoordinator,
    Wake,
    Wipe,
)
from outlast.engine.protocol.worker import WorkerMachine
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.booking import Book
from outlast.model.messages import (
    Enrol,
    ForAgent,
    FromAgent,
    Grant,
    Images,
    OnLine,
    Ping,
    Pong,
    Regroup,
    WorkerExited,
    WorkerStarted,
)
from outlast.model.terms import Cause, Phase
from outlast.sim.draws import Luck, Stream
from outlast.sim.durations import BODY_SPREAD_S
from outlast.sim.rules.observations import PowerLost, RankGiven
from outlast.sim.shortcuts import identical_ranks
from outlast.sim.shortcuts.identical_nodes import Fleet
from outlast.sim.world.agent_link import AgentLink, CoordinatorEnd
from outlast.sim.world.agent_ticks import AgentTicks
from outlast.sim.world.booked_seconds import Lives
from outlast.sim.world.chance import Chance
from outlast.sim.world.collectives import Collectives
from outlast.sim.world.frame import Frame
from outlast.sim.world.links import Links
from outlast.sim.world.node_words import NodeWords
from outlast.sim.world.processes import Home, PeerFailure, Process, Thread, TransferImage
from outlast.sim.world.standstill import Standstill
from outlast.sim.world.store import Store
from outlast.sim.world.timeline import BUSY, FIXED, ROUTINE

TYPICAL_S = {Phase.VOTE: 0.005, Phase.APPLY: 0.005, Phase.SNAPSHOT: 0.005, Phase.DATA: 0.001}
BEAT, BATCH = "beat", "batch"  # timers of the agent's session
ROUNDING_S = 1e-9
LOOKED_S, PINGS_KEPT = 2.0, 4
SESSIONS = 1 << 53  # so many differ
Script = Callable[[Any, Process], Thread]  # given the world, whatever the script uses of it


class Ranks(Protocol):
    """What a node asks of the register of all processes."""

    stirred: dict[Home, None]
    living: int
    done: set[int]
    lives: Lives

    def owners(self, rank: int) -> list[Process]: ...

    def takes_rank(self, process: Process, rank: int) -> None: ...

    def luck(self, process: Process) -> Luck | None: ...


class Listener(CoordinatorEnd, Protocol):
    """What a node asks of the place where the coordinator lives."""

    @property
    def coordinator(self) -> Coordinator: ...

    def hear(self, news: Any) -> None: ...


class Fences(Protocol):
    """Whoever books what strikes a process."""

    def fenced(self, process: Process) -> None: ...


class Barrier(Protocol):
    """Where ranks come together before a stretch is skipped."""

    def arrive(self, process: Process) -> None: ...

    def give_up(self) -> None: ...


class Surroundings(Protocol):
    """What a node asks of the world around it."""

    transfer: TransferImage | None
    transfer_died: bool

    @property
    def frame(self) -> Frame: ...

    @property
    def chance(self) -> Chance: ...

    @property
    def population(self) -> Ranks: ...

    @property
    def host(self) -> Listener: ...

    @property
    def strikes(self) -> Fences: ...

    @property
    def skip_ahead(self) -> Barrier: ...

    @property
    def store(self) -> Store: ...

    @property
    def collectives(self) -> Collectives: ...

    def isolate(self, node: Home, for_s: float) -> None: ...

    def spare_ended_early(self) -> None: ...


class Node:
    """`heard_s`: when a worker last printed something.

    `doomed`: workers that the agent has killed, forked by then or not. `slots`: of each rank that
    was here, slot -> step. `lives`: it has power. Its clock has an offset, and a rate of its own.
    `fleet`: the nodes that this one is simulated for, `count` of them; None: itself. `drawn_at`:
    where its ranks' draws begin, `luck`: draws of nodes that draw alike. `told`: the trace tells of
    it.

    Where there are several nodes the agent stands behind an `AgentSession`, whose line is `cable`.
    """

    def __init__(
        self,
        world: Surroundings,
        *,
        name: str,
        place: int,
        script: Script,
        links: Links,
        kernel: Stream,
        lines: Stream,
        standstills: Stream,
        rests: bool,
        clock: tuple[float, float],
        fleet: Fleet | None,
        drawn_at: int,
        luck: Luck | None,
    ) -> None:
        self.name = name
        self.place = place
        self.fleet = fleet
        self.count = 1 if fleet is None else len(fleet)
        self.drawn_at = drawn_at
        self.lives = True
        self.processes: dict[int, Process] = {}
        self.slots: dict[int, dict[int, int]] = {}
        self.heard_s: dict[int, float] = {}
        self.doomed: set[int] = set()
        self._world = world
        self._frame = world.frame
        self._script = script
        self._links = links
        self.luck = luck
        self._kernel = luck or kernel
        self._rests = rests
        self._offset_s, self._rate = clock
        self._true = clock == (0.0, 1.0)  # it goes as the world's
        self._timeline = world.frame.timeline
        # name -> its number, and what the timeline calls it: 0 once it has rung
        self._timers: dict[str, tuple[int, int]] = {}
        self._set = 0  # timers that were
        self._boots = 0
        self._pinged: dict[int, deque[float]] = {}  # worker -> when it was asked whether it lives
        self._beat_due_s = 0.0
        self.link = AgentLink(world.frame, self, world.host, world.chance, luck or lines)
        self.still = Standstill(
            world.frame, self, standstills, isolate=lambda for_s: world.isolate(self, for_s)
        )
        self._boot()

    def _boot(self) -> None:
        """The agent begins, with nothing in memory."""
        options = self._frame.options
        self._boots += 1
        self.agent = Agent(
            now_s=self.now_s, hang_after_s=options.hangs_after_s or None, alone=options.nodes == 1
        )
        self.ticks = AgentTicks(
            self._frame.timeline,
            self.agent,
            look=self._look,
            rests=self._rests,
            clock=self,
            place=self.place,
        )
        several = options.nodes > 1
        self._words = NodeWords(
            self._frame, self, self._world.store, roster=lambda: self._world.host.coordinator.roster
        )
        self.outpost = (
            AgentSession(
                self.agent, node=self.name, capacity=options.ranks_per_node, beat_s=options.beat_s
            )
            if several
            else None
        )
        self._ear: Agent | AgentSession = self.outpost if self.outpost is not None else self.agent

    def begin(self) -> None:
        self.ticks.begin()
        if self.outpost is not None:
            self.link.dial()

    @property
    def now_s(self) -> float:
        """By the node's own clock."""
        at_s = self._timeline.now_s
        return at_s if self._true else at_s * self._rate + self._offset_s

    def local_s(self, at_s: float) -> float:
        """What its clock says when the world's says `at_s`."""
        return at_s if self._true else at_s * self._rate + self._offset_s

    def world_s(self, local_s: float) -> float:
        return local_s if self._true else (local_s - self._offset_s) / self._rate

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    # --- the agent --------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Whether somebody waits for a processor."""
        readings, unit, found = {}, None, None
        starving = [
            process for process in self.processes.values() if not process.reaped and process.starves
        ]
        for process in self.processes.values():
            if not process.reaped:
                # mates are read as their crew
                if found is None or process.crew is None or process.crew is not unit:
                    unit, found = process.crew, process.reading()
                readings[process.worker] = found
        for process in starving:
            closely = self.agent.looks_closely(process.worker, now_s=self.now_s)
            readings[process.worker] = replace(
                readings[process.worker],
                starved_s=process.starved_s(closely=closely, now_s=self.now_s),
            )
        outputs = self.agent.on_tick(readings, now_s=self.now_s, heard_s=self.heard_s)
        self.do(
            outputs if self.outpost is None else self.outpost.pass_on(outputs, now_s=self.now_s)
        )
        return bool(starving)

    def obey(self, command: ForAgent) -> None:
        """An order, on the one node there is."""
        self.stir()
        self.do(self.agent.on_command(command, now_s=self.now_s))

    def looks_at(self, worker: int) -> int:
        """How often its agent has asked it within the last seconds whether it lives."""
        return sum(self._timeline.now_s - at_s < LOOKED_S for at_s in self._pinged.get(worker, ()))

    def stir(self) -> None:
        """Something changes that the agent looks at."""
        self._world.population.stirred[self] = None

    def heard_by_agent(self, message: FromAgent) -> None:
        self.still.agent.through(lambda: self._hear(message))

    def _hear(self, message: FromAgent) -> None:
        self.stir()
        self.do(self._ear.on_event(message, now_s=self.now_s))

    def lends(self, process: Process) -> bool:
        """Whether `process` may vote, seal and restore, by the word that its agent has left in
        shared memory.
        """
        return self.outpost is None or process.machine.may_act(
            lent_until_s=self.outpost.lent_until_s, now_s=self.now_s
        )

    # --- the line ---------------------------------------------------------------------------------

    def on_connected(self) -> None:
        self.still.agent.through(self._on_connected)

    def _on_connected(self) -> None:
        if self.outpost is not None and self.lives:
            images = tuple(
                Images(rank, tuple(sorted(slots.values(), reverse=True)))
                for rank, slots in sorted(self.slots.items())
                if slots
            )
            there = self._world.transfer
            transfer = there[:2] if there is not None and there[2] is self else ()
            session = 1 + self._world.chance.sessions.below(SESSIONS)
            self.do(
                self.outpost.on_connected(
                    images=images, transfer=transfer, session=session, now_s=self.now_s
                )
            )

    def on_disconnected(self) -> None:
        self.still.agent.through(self._on_disconnected)

    def _on_disconnected(self) -> None:
        if self.outpost is not None and self.lives and not self.link.connected:
            self.do(self.outpost.on_disconnected())

    def on_line(self, message: OnLine) -> None:
        self.still.agent.through(lambda: self._on_line(message))

    def _on_line(self, message: OnLine) -> None:
        if self.outpost is not None and self.lives:
            if not isinstance(message, Grant):
                self.stir()
            self.do(self.outpost.on_line(message, now_s=self.now_s))

    def _set_timer(self, order: SetTimer) -> None:
        _, before = self._timers.pop(order.name, (0, 0))
        if before:
            self._timeline.cancel(before, sort=ROUTINE)
        if order.at_s is not None:
            # it must not make it come too early by its own clock
            due_s = self.world_s(order.at_s) + ROUNDING_S
            self._set += 1
            self._timers[order.name] = (
                self._set,
                self._timeline.at(due_s, partial(self._rings, order.name, self._set), sort=ROUTINE),
            )
            if order.name == BEAT:
                self._beat_due_s = due_s
            elif order.name == BATCH:
                self._words.waits()

    def _rings(self, name: str, number: int) -> None:
        self._timers[name] = number, 0
        self.still.agent.through(partial(self._timer, name, number))

    def last_beat_s(self, until_s: float) -> float:
        """When the last heartbeat up to then is asked for; 0: none is."""
        if BEAT not in self._timers or self._beat_due_s > until_s:
            return 0.0
        return (
            self._beat_due_s
            + math.floor((until_s - self._beat_due_s) / self.beats_every_s) * self.beats_every_s
        )

    @property
    def beats_every_s(self) -> float:
        """By the world's clock."""
        return self._frame.options.beat_s / self._rate + ROUNDING_S

    @property
    def told(self) -> bool:
        return self.name not in self._frame.untold

    def run_over(self) -> None:
        self.ticks.ends()
        self._words.over()

    def is_quiet(self) -> bool:
        """Its line stands, its agent asks nobody anything, and nothing stands still."""
        line = self.outpost is None or (
            self.outpost.is_in
            and self.link.connected
            and self.link.lags_until_s <= self._frame.now_s
        )
        return (
            line
            and not self.agent.asks
            and not self.still.agent.shut
            and not self.still.kernel.shut
        )

    def _timer(self, name: str, number: int) -> None:
        if name not in self._timers or self._timers[name][0] != number:
            return  # the agent stood still, and it was set anew since
        del self._timers[name]
        if self.outpost is not None and self._frame.end is None:
            if name == BATCH:
                self._words.rings()
            self.do(self.outpost.on_timer(now_s=self.now_s, name=name))

    # --- power ------------------------------------------------------------------------------------

    def lose_power(self, *, for_s: float) -> None:
        """All that was in memory is gone, and nobody says so."""
        if not self.lives:
            return
        self.lives = False
        self._frame.say(f"node {self.name} has no power")
        if self.name in self._world.host.coordinator.nodes:
            self._frame.see(
                PowerLost(self.name, void_after_s(self._frame.options.beat_s * limits.LEASE_BEATS))
            )
        for process in self.alive():
            self.end(process, None, 9)
        if self._world.store.home is self:
            self._world.store.lose(with_node=True)
        if self._world.transfer is not None and self._world.transfer[2] is self:
            self._world.transfer, self._world.transfer_died = None, True
        self.slots.clear()
        self.still.lose_power()
        self.link.drop()
        self.ticks.ends()
        for name in list(self._timers):
            self._set_timer(SetTimer(name, None))
        self._frame.timeline.after(for_s, self._power_again, sort=FIXED)

    def _power_again(self) -> None:
        if self._frame.end is not None:
            return
        self._frame.say(f"node {self.name} has power again")
        self.lives = True
        self.processes.clear()
        self.doomed.clear()
        self._boot()
        self.begin()

    def do(self, outputs: list[Output]) -> None:
        """What the agent asks for."""
        told: dict[Process, list[Deliver]] = {}
        for output in outputs:
            if isinstance(output, Deliver):
                process = self.processes.get(output.worker)
                if isinstance(output.message, Ping):
                    self._pinged.setdefault(output.worker, deque(maxlen=PINGS_KEPT)).append(
                        self._timeline.now_s
                    )
                if process is not None:
                    told.setdefault(process.unit, []).append(output)
            else:
                self._carry_out(output)
        for unit, orders in told.items():
            if unit.mates:
                identical_ranks.told_as_one(unit, orders)
                self._links.send_to(unit, partial(self._deliver, unit, *orders))
                continue
            for order in orders:
                self._links.send_to(unit, partial(self._deliver, unit, order))

    def _carry_out(self, output: Output) -> None:
        after = self._frame.timeline.after
        if isinstance(output, ToCoordinator):
            news = output.message
            self._links.send(
                "news", getattr(news, "worker", 0), lambda: self._world.host.hear(news)
            )
        elif isinstance(output, Line):
            if isinstance(output.message, Enrol):
                self._words.enrols(output.message)
            self.link.up(output.message)
        elif isinstance(output, SetTimer):
            self._set_timer(output)
        elif isinstance(output, HangUp):
            if self.outpost is not None and self.outpost.fenced:
                for housed in self.processes.values():
                    # one that had ended may not have been heard of
                    self._world.strikes.fenced(housed)
            self.link.drop()
        elif isinstance(output, Wipe):
            self.slots = {rank: slots for rank, slots in self.slots.items() if rank in output.keep}
        elif isinstance(output, Kill):
            self.doomed.add(output.worker)
            if self.outpost is not None and self.outpost.fenced and output.worker in self.processes:
                self._world.strikes.fenced(self.processes[output.worker])
            doomed = self.processes.get(output.worker)
            takes_s = (
                self._kernel.between(0.0005, 0.005)
                if doomed is None or doomed.luck is None
                else doomed.luck.once(0.0005, 0.005)
            )
            after(
                takes_s,
                lambda: self.still.kernel.through(
                    lambda: self._kill(self.processes.get(output.worker))
                ),
            )
        elif isinstance(output, Spawn):
            self._words.spawns(output.worker)
            spawn = partial(self._spawn, output, self._boots)
            after(self._kernel.between(0.01, 0.03), lambda: self.still.kernel.through(spawn))
        elif isinstance(output, Tell):
            self._frame.say(f"agent of {self.name}: {output.text}")
        elif isinstance(output, Terminate):
            self._terminate(self.processes.get(output.worker))
        else:
            assert isinstance(output, HostStore), output
            self._world.store.host(self)

    # --- processes --------------------------------------------------------------------------------

    def _spawn(self, order: Spawn, boots: int) -> None:
        assert order.worker not in self.processes, "a worker's number is given twice"
        if not self.lives or boots != self._boots:
            return
        self._words.spawned(order.worker)
        machine, beacon = (
            WorkerMachine(worker=order.worker),
            Beacon(worker=order.worker, rank=order.rank),
        )
        book = Book(now_s=self._frame.now_s, cause=Cause.STARTUP)
        process = Process(
            order.worker,
            order.rank,
            order.kind,
            order.generation,
            machine,
            beacon,
            book,
            self._frame.now_s,
            self,
        )
        process.beacon.typical_s.update(TYPICAL_S)
        process.beacon.typical_s[Phase.BODY] = self._frame.options.step_s + BODY_SPREAD_S
        process.luck = self._world.population.luck(process)
        self.processes[order.worker] = process
        self._world.population.living += 1
        self._world.population.takes_rank(process, order.rank)
        if self.still.agent.shut:
            self._world.strikes.fenced(process)  # born to an agent that cannot speak for it
        process.main = self._script(self._world, process)
        self.event(
            process, WorkerStarted(order.worker, process.pid, self.name or "node", self.now_s)
        )
        if order.worker in self.doomed:
            self.end(process, None, 9)
        else:
            self._resume(process, None, None)

    def event(self, process: Process, message: Any) -> None:
        """Of the kernel, to the agent."""
        self._from(process, lambda: self.do(self._ear.on_event(message, now_s=self.now_s)))

    def tell(self, process: Process, message: Any) -> None:
        """Of the process, to the agent."""
        workers, outpost = tuple([mate.worker for mate in process.mates]), self.outpost
        if outpost is None:
            self._from(process, lambda: self.do(self._ear.on_worker(message, now_s=self.now_s)))
            return

        def arrives() -> None:
            self._words.hears(workers or (message.worker,), message)
            if workers:
                self.do(outpost.on_workers(workers, message, now_s=self.now_s))
            else:
                self.do(outpost.on_worker(message, now_s=self.now_s))

        self._from(process, arrives)

    def _from(self, process: Process, act: Callable[[], None]) -> None:
        """To the agent, if that is still the one which started it."""
        boots = self._boots

        def arrive() -> None:
            if self.lives and self._boots == boots:
                self.stir()
                act()

        self._links.send_from(process, lambda: self.still.agent.through(arrive))

    def _kill(self, process: Process | None) -> None:
        """SIGKILL.

        A process that is in the kernel runs no code of its own any more, and ends later.
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

    def _terminate(self, process: Process | None) -> None:
        """SIGTERM, which the script leaves to the kernel.

        A stopped process takes it once it goes on.
        """
        if process is None or not process.alive or process.dying:
            return
        if process.listed_stopped:
            process.asked_since_s = process.asked_since_s or self._timeline.now_s
            process.backlog.append(lambda: self._terminate(process))
        else:
            self.end(process, None, 15)

    def end(self, process: Process | None, exit_code: int | None, signal: int | None) -> None:
        if process is None or not process.alive:
            return
        if process.mates:
            for mate in tuple(process.mates):
                self.end(mate, exit_code, signal)
            return
        if process.crew is not None:
            identical_ranks.leave(process)
        process.alive, process.ended_s = False, self.now_s
        self._world.population.living -= 1
        self.sleeps_no_more(process)
        if self.told:
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
            and process.worker not in self.doomed
            and process.beacon.phase is not Phase.PARKED
        ):
            self._world.spare_ended_early()
        if (
            process.main is not None
            and inspect.getgeneratorstate(process.main) != inspect.GEN_RUNNING
        ):
            process.main.close()
        rank = process.beacon.rank
        steps = tuple(sorted(self.slots.get(rank, {}).values(), reverse=True)) if rank >= 0 else ()
        committed, phase = process.beacon.step, process.beacon.phase.value
        exited = WorkerExited(
            process.worker,
            process.pid,
            exit_code,
            signal,
            False,
            committed,
            steps,
            steps,
            phase,
            self.now_s,
            self.now_s,
            "",
        )
        self._from(process, lambda: self._reap(process, exited))

    def sleeps_no_more(self, process: Process) -> None:
        if process.alarm:
            self._frame.timeline.cancel(process.alarm, sort=BUSY)
            process.alarm = 0

    def _reap(self, process: Process, exited: WorkerExited) -> None:
        """The agent hears of its end; until then its beacon lies there to be read."""
        process.reaped = True
        self.heard_by_agent(exited)
        self._words.ends()

    def _deliver(self, process: Process, *orders: Deliver) -> None:
        """One order; or of a crew one for each mate, in the order in which they are told."""
        if not process.alive:
            return
        if process.stopped or self.still.kernel.shut:
            process.backlog.append(lambda: self._deliver(process, *orders))
            return
        message = orders[0].message
        if isinstance(message, Regroup) and not self.still.outlives_lease:
            living = sum(
                one.alive and not one.dying and one.rank >= 0 for one in self.processes.values()
            )
            for order in orders:
                one = self.processes.get(order.worker)
                if one is not None and one.unit is process and isinstance(order.message, Regroup):
                    self._is_given(one, order.message, living)
        outputs = process.machine.on_message(message)
        if process.mates and any(self._moves(process, output) for output in outputs):
            identical_ranks.in_order(process, [order.worker for order in orders])
        for output in outputs:
            self.carry_out_in(process, output)

    def _moves(self, process: Process, output: Output) -> bool:
        """Whether that is more than an answer of its listener."""
        return (
            isinstance(output, Say)
            or (isinstance(output, Wake) and self._wakes(process))
            or (isinstance(output, Plan) and _waits_for_plan(process))
        )

    def _wakes(self, process: Process) -> bool:
        waits = process.waits
        return waits is not None and (
            waits[0] in ("collective", "build")
            or (waits[0] == "sleep" and process.in_body and not process.hung)
        )

    def _is_given(self, process: Process, plan: Regroup, living: int) -> None:
        """`living`: ranks on this node."""
        others = tuple(
            p.worker
            for p in self._world.population.owners(plan.rank)
            if p is not process and (p.node is self or not p.dying)
        )
        beside = living - (not process.dying and process.rank >= 0)
        room = self._frame.options.ranks_per_node if self.outpost is not None else beside + 1
        self._frame.see(RankGiven(process.worker, plan, others, beside, room))
        self._world.population.takes_rank(process, plan.rank)
        self._world.population.done.discard(plan.rank)

    def carry_out_in(self, process: Process, output: Output) -> None:
        """What the worker's own machine asks for."""
        if isinstance(output, Say):
            self.tell(process, output.message)
        elif isinstance(output, Wake):
            self._world.collectives.leave(process)
            if self._wakes(process):
                self._world.collectives.wake(process, PeerFailure("woken"))
            self._world.skip_ahead.give_up()
        elif isinstance(output, Plan):
            if _waits_for_plan(process):
                self._offer_plan(process)
        elif isinstance(output, Answer):
            self.tell(
                process,
                Pong(
                    process.worker,
                    output.nonce,
                    process.collectives,
                    "script.py:1",
                    self._world.collectives.cut_off(process),
                ),
            )

    # --- main threads -----------------------------------------------------------------------------

    def resume_if(
        self, process: Process, token: int, error: Exception | None, value: Any = None
    ) -> None:
        if not process.alive or process.token != token:
            return
        if process.stopped or self.still.kernel.shut:
            process.backlog.append(lambda: self.resume_if(process, token, error, value))
        elif not process.hung:
            self._resume(process, value, error)

    def _wakes_up(self, process: Process, token: int) -> None:
        process.alarm = 0
        self.resume_if(process, token, None)

    def _resume(self, process: Process, value: Any, error: Exception | None) -> None:
        """Run the main thread up to its next wait."""
        assert process.main is not None
        self.stir()
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
            process.alarm = self._timeline.after(waits[1], partial(self._wakes_up, process, token))
        elif waits[0] == "plan":
            self._offer_plan(process)
        elif waits[0] == "collective":
            self._world.collectives.enter(process)
        elif waits[0] == "barrier":
            self._world.skip_ahead.arrive(process)
        else:
            self._build(process, waits[1])

    def _offer_plan(self, process: Process) -> None:
        plan = (
            process.machine.newer_plan(than=process.waits[1]) if process.waits is not None else None
        )
        if plan is not None:
            token = process.token
            self._frame.timeline.after(0.0, lambda: self.resume_if(process, token, None, plan))

    def _build(self, process: Process, plan: Regroup) -> None:
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


def _waits_for_plan(process: Process) -> bool:
    return process.waits is not None and process.waits[0] == "plan"
