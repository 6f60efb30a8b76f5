"""One node of a simulated run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from outlast.engine.agent.agent import Agent
from outlast.engine.cluster.agent_session import AgentSession
from outlast.engine.cluster.lease import void_after_s
from outlast.engine.durable import Rollbacks
from outlast.engine.protocol.outputs import (
    AnswerPing,
    Deliver,
    HangUp,
    HostStore,
    Kill,
    LeaveRun,
    Output,
    Say,
    SendOut,
    SendOverLink,
    SetTimer,
    Spawn,
    StoreIsAt,
    Tell,
    Terminate,
    ToCoordinator,
    Wake,
    WakeForPlan,
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
    LinkMessage,
    Ping,
    Pong,
    Regroup,
    WorkerExited,
    WorkerStarted,
)
from outlast.model.terms import Cause, Phase
from outlast.sim.draws import ProcessDraws, Stream
from outlast.sim.durations import BODY_SPREAD_S
from outlast.sim.rules.observations import PowerLost, RankGiven
from outlast.sim.shortcuts import identical_ranks
from outlast.sim.shortcuts.identical_nodes import IdenticalNodes
from outlast.sim.world.agent_link import SimulatedAgentLink
from outlast.sim.world.agent_ticks import AgentTicks
from outlast.sim.world.copy_sending import SimulatedCopies, send_out
from outlast.sim.world.frame import Frame
from outlast.sim.world.message_watch import MessageWatch
from outlast.sim.world.node_clock import NodeClock
from outlast.sim.world.node_parts import AgentSeat, NodeGiven, NodeMemory, offer_of, readings_of
from outlast.sim.world.node_ports import Surroundings
from outlast.sim.world.node_timers import BATCH, ROUNDING_S, NodeTimers
from outlast.sim.world.process_runner import ProcessRunner, waits_for_plan
from outlast.sim.world.processes import PeerFailure, SimulatedProcess
from outlast.sim.world.standstill import StandstillFault
from outlast.sim.world.timeline import FIXED

TYPICAL_S = {Phase.VOTE: 0.005, Phase.APPLY: 0.005, Phase.SNAPSHOT: 0.005, Phase.DATA: 0.001}
LOOKED_S = 2.0
SESSIONS = 1 << 53  # the number of different session ids


class Node:
    """One node: its agent, and the processes on it.

    The agent and the listener of each process are outlast's own machines. Their effects on the
    world are simulated here.

    Example     `Node(world, given, clock=(0.0, 1.0), ...)`, then `begin`: the agent connects, gets
                orders to start workers, looks at them on its ticks, and reports what it sees.
    Its life    It `lives` while it has power. `lose_power` ends everything on it. When power comes
                back, a new agent begins, which knows only what is on the disk.
    Parts       `clock`, `link` (to the coordinator), `still` (while it stands still), the agent
                with its ticks, messages and session, its memory, and the runner of its processes.
    Not here    Memory pressure, devices, and clocks that jump.
    """

    def __init__(
        self,
        world: Surroundings, given: NodeGiven, *, clock: tuple[float, float], lines: Stream,
        standstills: Stream,
    ) -> None:  # fmt: skip  # one argument a line would hide what happens
        frame = world.frame
        self.lives = True
        self.clock = NodeClock(frame.timeline, *clock)
        self._given = given
        self._memory = NodeMemory()
        self._world = world
        self._timers = NodeTimers(frame.timeline, self.clock, self._rings)
        self.link = SimulatedAgentLink(frame, self, world.host, world.chance, given.luck or lines)
        self.still = StandstillFault(
            frame, self, standstills, isolate=lambda for_s: world.isolate(self, for_s)
        )
        self._runner = ProcessRunner(
            world, self, self.still.kernel, to_agent=self._from, reap=self._reap
        )
        self._seat = self._boot(1)

    def _boot(self, number: int) -> AgentSeat:
        """Return a new agent with nothing in memory."""
        options, world = self._frame.options, self._world
        silence_s, only_node = options.hangs_after_s or None, options.nodes == 1
        agent = Agent(now_s=self.now_s, hang_after_s=silence_s, only_node=only_node)
        ticks = AgentTicks(
            self._frame.timeline,
            agent,
            look=self._look,
            rests=self._given.rests,
            clock=self.clock,
            place=self.place,
        )
        words = MessageWatch(
            self._frame, self, world.store, roster=lambda: world.host.coordinator.roster
        )
        agent_session = None
        if options.nodes > 1:
            offer = offer_of(self.name, self.place, options)
            agent_session = AgentSession(agent, offer=offer, beat_s=options.beat_s)
        return AgentSeat(number, agent, ticks, words, agent_session)

    # --- its parts by their short names -----------------------------------------------------------

    @property
    def _frame(self) -> Frame:
        return self._world.frame

    @property
    def name(self) -> str:
        return self._given.name

    @property
    def place(self) -> int:
        return self._given.place

    @property
    def twins(self) -> IdenticalNodes | None:
        return self._given.twins

    @property
    def drawn_at(self) -> int:
        return self._given.drawn_at

    @property
    def luck(self) -> ProcessDraws | None:
        return self._given.luck

    @property
    def processes(self) -> dict[int, SimulatedProcess]:
        return self._memory.processes

    @property
    def slots(self) -> dict[int, dict[int, int]]:
        return self._memory.slots

    @property
    def kept(self) -> dict[int, dict[int, int]]:
        return self._memory.kept

    @property
    def copies(self) -> SimulatedCopies:
        return self._memory.copies

    @property
    def heard_s(self) -> dict[int, float]:
        return self._memory.heard_s

    @property
    def doomed(self) -> set[int]:
        return self._memory.doomed

    @property
    def agent(self) -> Agent:
        return self._seat.agent

    @property
    def ticks(self) -> AgentTicks:
        return self._seat.ticks

    @property
    def agent_session(self) -> AgentSession | None:
        return self._seat.agent_session

    @property
    def _is_fenced(self) -> bool:
        """Return True if the lease is over, so that the agent gives up its processes."""
        return self.agent_session is not None and self.agent_session.fenced

    @property
    def count(self) -> int:
        """Return the number of nodes that it is simulated for, itself included."""
        return 1 if self._given.twins is None else len(self._given.twins)

    def begin(self) -> None:
        self.ticks.begin()
        if self.agent_session is not None:
            self.link.dial()

    @property
    def now_s(self) -> float:
        """Return the time by the node's own clock."""
        return self.clock.now_s

    def local_s(self, at_s: float) -> float:
        """Return the time of its clock when that of the world is `at_s`."""
        return self.clock.local_s(at_s)

    def world_s(self, local_s: float) -> float:
        """Return the time of the world's clock when that of its own is `local_s`."""
        return self.clock.world_s(local_s)

    def resume_if(
        self, process: SimulatedProcess, token: int, error: Exception | None, value: Any = None
    ) -> None:
        """Let a main thread go on, if it is still in the wait with the number `token`."""
        self._runner.resume_if(process, token, error, value)

    def sleeps_no_more(self, process: SimulatedProcess) -> None:
        """Cancel the end of a main thread's sleep."""
        self._runner.sleeps_no_more(process)

    @property
    def rollbacks(self) -> Rollbacks:
        return self._memory.rollbacks

    def alive(self) -> list[SimulatedProcess]:
        return [process for process in self.processes.values() if process.alive]

    # --- the agent --------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Let the agent look at its processes. Return True if one waits for a processor."""
        memory, agent, session, now_s = self._memory, self.agent, self.agent_session, self.now_s
        readings, starving = readings_of(memory.processes, agent, now_s=now_s)
        outputs = agent.on_tick(readings, now_s=now_s, heard_s=memory.heard_s)
        self.do(outputs if session is None else session.pass_on(outputs, now_s=now_s))
        return starving

    def obey(self, command: ForAgent) -> None:
        """Give the agent an order of the coordinator. This is for runs with one node."""
        self.stir()
        self.do(self.agent.on_command(command, now_s=self.now_s))

    def looks_at(self, worker: int) -> int:
        """Return how often its agent has recently asked a worker whether it lives."""
        return self._memory.pinged_since(worker, self._frame.timeline.now_s - LOOKED_S)

    def stir(self) -> None:
        """Note that something has changed that the agent looks at."""
        self._world.population.stirred[self] = None

    def heard_by_agent(self, message: FromAgent) -> None:
        self.still.agent.through(lambda: self._hear(message))

    def _hear(self, message: FromAgent) -> None:
        self.stir()
        self.do(self._seat.ear.on_event(message, now_s=self.now_s))

    def lends(self, process: SimulatedProcess) -> bool:
        """Return True if `process` may act, by the lease that the agent wrote in shared memory."""
        session = self.agent_session
        return session is None or process.machine.may_act(
            lent_until_s=session.lent_until_s, now_s=self.now_s
        )

    # --- the link ---------------------------------------------------------------------------------

    def on_connected(self) -> None:
        self.still.agent.through(self._on_connected)

    def _on_connected(self) -> None:
        if self.agent_session is not None and self.lives:
            memory, transfer = self._memory, self._world.image_on(self)
            session = 1 + self._world.chance.sessions.below(SESSIONS)
            self.do(
                self.agent_session.on_connected(
                    images=memory.images(), transfer=transfer, session=session, now_s=self.now_s,
                    copies=memory.copies.kept_images(), parity=memory.copies.rows.all_rows(),
                )
            )  # fmt: skip  # one argument a line would hide what happens

    def on_disconnected(self) -> None:
        self.still.agent.through(self._on_disconnected)

    def _on_disconnected(self) -> None:
        if self.agent_session is not None and self.lives and not self.link.connected:
            self.do(self.agent_session.on_disconnected())

    def on_link(self, message: LinkMessage) -> None:
        self.still.agent.through(lambda: self._on_link(message))

    def _on_link(self, message: LinkMessage) -> None:
        session = self.agent_session
        if session is not None and self.lives:
            if not isinstance(message, Grant):
                self.stir()
            self.do(session.on_link(message, now_s=self.now_s))

    def _set_timer(self, order: SetTimer) -> None:
        self._timers.set(order)
        if order.at_s is not None and order.name == BATCH:
            self._seat.words.waits()

    def _rings(self, name: str, number: int) -> None:
        self.still.agent.through(partial(self._timer, name, number))

    def last_beat_s(self, until_s: float) -> float:
        """Return the time of the last heartbeat up to then; 0 if there is none."""
        return self._timers.last_beat_s(until_s, self.beats_every_s)

    @property
    def beats_every_s(self) -> float:
        """Return the time between two of its heartbeats, by the world's clock."""
        return self._frame.options.beat_s / self.clock.rate + ROUNDING_S

    @property
    def traced(self) -> bool:
        """Return True if the trace shows this node."""
        return self.name not in self._frame.untold

    def run_over(self) -> None:
        self.ticks.ends()
        self._seat.words.over()

    def is_quiet(self) -> bool:
        """Return True if it is connected, its agent asks nothing, and nothing stands still."""
        session = self.agent_session
        lags = self.link.lags_until_s > self._frame.now_s
        if session is not None and (lags or not session.is_in or not self.link.connected):
            return False
        return not (self.agent.asks or self.still.agent.shut or self.still.kernel.shut)

    def _timer(self, name: str, number: int) -> None:
        if not self._timers.take_due(name, number):
            return  # the agent stood still, and the timer was set again meanwhile
        if self.agent_session is not None and self._frame.end is None:
            if name == BATCH:
                self._seat.words.rings()
            self.do(self.agent_session.on_timer(now_s=self.now_s, name=name))

    # --- power ------------------------------------------------------------------------------------

    def lose_power(self, *, for_s: float) -> None:
        """Lose power. Everything in memory is lost, and no message reports it."""
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
        self._world.lose_images_of(self)
        self._memory.lose_power()
        self.still.lose_power()
        self.link.drop()
        self.ticks.ends()
        self._timers.cancel_all()
        self._frame.timeline.after(for_s, self._power_again, sort=FIXED)

    def _power_again(self) -> None:
        if self._frame.end is not None:
            return
        self._frame.say(f"node {self.name} has power again")
        self.lives = True
        self.processes.clear()
        self.doomed.clear()
        self._seat = self._boot(self._seat.number + 1)
        self.begin()

    def do(self, outputs: list[Output]) -> None:
        """Carry out the outputs of the agent."""
        orders_to: dict[SimulatedProcess, list[Deliver]] = {}
        for output in outputs:
            if isinstance(output, Deliver):
                process = self.processes.get(output.worker)
                if isinstance(plan := output.message, Regroup):
                    self.rollbacks.note(generation=plan.generation, step=plan.step)
                if isinstance(output.message, Ping):
                    self._memory.pings(output.worker, now_s=self._frame.timeline.now_s)
                if process is not None:
                    orders_to.setdefault(process.unit, []).append(output)
            else:
                self._carry_out(output)
        for unit, orders in orders_to.items():
            if unit.mates:
                identical_ranks.check_same_orders(unit, orders)
                self._given.links.send_to(unit, partial(self._deliver, unit, *orders))
                continue
            for order in orders:
                self._given.links.send_to(unit, partial(self._deliver, unit, order))

    def _carry_out(self, output: Output) -> None:
        if isinstance(output, ToCoordinator):
            news = output.message
            self._given.links.send(
                "news", getattr(news, "worker", 0), lambda: self._world.host.hear(news)
            )
        elif isinstance(output, SendOverLink):
            if isinstance(output.message, Enrol):
                self._seat.words.enrols(output.message)
            self.link.up(output.message)
        elif isinstance(output, SetTimer):
            self._set_timer(output)
        elif isinstance(output, HangUp):
            if self._is_fenced:
                for housed in self.processes.values():
                    # the agent may not know yet that a process has ended
                    self._world.strikes.fenced(housed)
            self.link.drop()
        elif isinstance(output, Wipe):
            self._memory.slots = {
                rank: slots for rank, slots in self.slots.items() if rank in output.keep
            }
        elif isinstance(output, Kill):
            self._kill(output.worker)
        elif isinstance(output, Spawn):
            self._seat.words.spawns(output.worker)
            spawn = partial(self._spawn, output, self._seat.number)
            takes_s = self._given.kernel.between(0.01, 0.03)
            self._frame.timeline.after(takes_s, lambda: self.still.kernel.through(spawn))
        elif isinstance(output, Tell):
            self._frame.say(f"agent of {self.name}: {output.text}")
        elif isinstance(output, Terminate):
            self._runner.terminate(self.processes.get(output.worker))
        elif isinstance(output, StoreIsAt | LeaveRun):
            pass  # a simulated worker learns it from its plan, and a simulated launcher stays
        else:
            assert isinstance(output, HostStore), output
            self._world.store.host(self)

    def _kill(self, worker: int) -> None:
        """Let the agent kill a worker, which takes a moment."""
        self.doomed.add(worker)
        doomed, draws = self.processes.get(worker), self._given.kernel
        if doomed is not None and self._is_fenced:
            self._world.strikes.fenced(doomed)
        luck = None if doomed is None else doomed.luck
        takes_s = draws.between(0.0005, 0.005) if luck is None else luck.once(0.0005, 0.005)
        kill = partial(
            self.still.kernel.through, lambda: self._runner.kill(self.processes.get(worker))
        )
        self._frame.timeline.after(takes_s, kill)

    # --- processes --------------------------------------------------------------------------------

    def _spawn(self, order: Spawn, boots: int) -> None:
        assert order.worker not in self.processes, "a worker's number is given twice"
        if not self.lives or boots != self._seat.number:
            return
        self._seat.words.spawned(order.worker)
        machine, beacon = (
            WorkerMachine(worker=order.worker),
            Beacon(worker=order.worker, rank=order.rank),
        )
        book = Book(now_s=self._frame.now_s, cause=Cause.STARTUP)
        process = SimulatedProcess(
            order.worker, order.rank, order.kind, order.generation, machine, beacon, book,
            self._frame.now_s, self,
        )  # fmt: skip  # one argument a line would hide what happens
        process.beacon.typical_s.update(TYPICAL_S)
        process.beacon.typical_s[Phase.BODY] = self._frame.options.step_s + BODY_SPREAD_S
        process.luck = self._world.population.luck(process)
        self.processes[order.worker] = process
        self._world.population.living += 1
        self._world.population.takes_rank(process, order.rank)
        if self.still.agent.shut:
            self._world.strikes.fenced(process)  # its agent has no lease, and cannot report it
        process.main = self._given.script(self._world, process)
        self.event(
            process, WorkerStarted(order.worker, process.pid, self.name or "node", self.now_s)
        )
        if order.worker in self.doomed:
            self.end(process, None, 9)
        else:
            self._runner.resume(process, None, None)

    def event(self, process: SimulatedProcess, message: Any) -> None:
        """Pass an event of the kernel to the agent."""
        self._from(process, lambda: self.do(self._seat.ear.on_event(message, now_s=self.now_s)))

    def tell(self, process: SimulatedProcess, message: Any) -> None:
        """Pass a message of a process to the agent."""
        workers, agent_session = tuple([mate.worker for mate in process.mates]), self.agent_session
        if agent_session is None:
            self._from(
                process, lambda: self.do(self._seat.ear.on_worker(message, now_s=self.now_s))
            )
            return

        def arrives() -> None:
            self._seat.words.hears(workers or (message.worker,), message)
            if workers:
                self.do(agent_session.on_workers(workers, message, now_s=self.now_s))
            else:
                self.do(agent_session.on_worker(message, now_s=self.now_s))

        self._from(process, arrives)

    def _from(self, process: SimulatedProcess, act: Callable[[], None]) -> None:
        """Pass an event to the agent, if it is still the agent that started the process."""
        boots = self._seat.number

        def arrive() -> None:
            if self.lives and self._seat.number == boots:
                self.stir()
                act()

        self._given.links.send_from(process, lambda: self.still.agent.through(arrive))

    def end(
        self, process: SimulatedProcess | None, exit_code: int | None, signal: int | None
    ) -> None:
        """End a process, and report its end to the agent."""
        self._runner.end(process, exit_code, signal)

    def _reap(self, process: SimulatedProcess, exited: WorkerExited) -> None:
        """Report the end of a process to the agent. Until then its beacon can be read."""
        process.reaped = True
        self.heard_by_agent(exited)
        self._seat.words.ends()

    def _deliver(self, process: SimulatedProcess, *orders: Deliver) -> None:
        """Give a process its order. A stand-in gets one for each of its mates, in their order."""
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

    def _moves(self, process: SimulatedProcess, output: Output) -> bool:
        """Return True if the output is more than an answer of the listener."""
        return (
            isinstance(output, Say)
            or (isinstance(output, Wake) and self._runner.wakes(process))
            or (isinstance(output, WakeForPlan) and waits_for_plan(process))
        )

    def _is_given(self, process: SimulatedProcess, plan: Regroup, living: int) -> None:
        """Let the rules see that a process gets a rank. `living` is the number of ranks here."""
        others = tuple(
            p.worker
            for p in self._world.population.owners(plan.rank)
            if p is not process and (p.node is self or not p.dying)
        )
        neighbours = living - (not process.dying and process.rank >= 0)
        room = (
            self._frame.options.ranks_per_node if self.agent_session is not None else neighbours + 1
        )
        self._frame.see(RankGiven(process.worker, plan, others, neighbours, room))
        self._world.population.takes_rank(process, plan.rank)
        self._world.population.done.discard(plan.rank)

    def carry_out_in(self, process: SimulatedProcess, output: Output) -> None:
        """Carry out an output of the worker's own machine."""
        if isinstance(output, Say):
            self.tell(process, output.message)
        elif isinstance(output, Wake):
            self._world.collectives.leave(process)
            if self._runner.wakes(process):
                self._world.collectives.wake(process, PeerFailure("woken"))
            self._world.skip_ahead.give_up()
        elif isinstance(output, WakeForPlan):
            if waits_for_plan(process):
                self._runner.offer_plan(process)
        elif isinstance(output, SendOut):
            send_out(self._world, process, output)
        elif isinstance(output, AnswerPing):
            cut_off, done = self._world.collectives.cut_off(process), process.collectives
            self.tell(process, Pong(process.worker, output.nonce, done, "script.py:1", cut_off))
