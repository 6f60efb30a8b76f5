"""`Agent`: carries messages between the coordinator and the workers of a node, and watches them.

The kernel reports deaths of workers, and the agent passes that on at once. The agent itself finds
hangs: when a member is past its deadline, all members are pinged, and their answers show which of
them is at fault (hang_watch.py). If a tick is late, the agent itself had no processor. It does not
count that time for any worker, so an agent without a processor reports no hangs.

Sans-IO: `on_tick` gets what was read from the beacons, and the driver carries out the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from outlast.engine.agent.exit_watch import ExitWatch
from outlast.engine.agent.hang_watch import HangWatch
from outlast.engine.agent.worker_watch import Reading, WorkerWatch
from outlast.engine.exhaustive import assert_never
from outlast.engine.hang import Deadlines
from outlast.engine.lateness import late_by_s
from outlast.engine.protocol.outputs import (
    Deliver,
    HostStore,
    Kill,
    LeaveRun,
    Output,
    Spawn,
    StoreIsAt,
    Terminate,
    ToCoordinator,
)
from outlast.model import limits
from outlast.model.messages import (
    AskProgressReport,
    Dismiss,
    ForAgent,
    ForWorker,
    FromAgent,
    FromWorker,
    Judged,
    KillWorker,
    Pong,
    Regroup,
    StartStore,
    StartWorker,
    StoreLost,
    StoreUp,
    TermWorker,
    ToWorkers,
    UseStore,
    WorkerExited,
    WorkerFailedToStart,
    WorkerStarted,
)


def split_order(order: ToWorkers) -> list[tuple[int, ForWorker]]:
    """Return each worker's number and message. A shared plan is given each worker's own rank."""
    message = order.message
    if not isinstance(message, Regroup):
        return [(worker, message) for worker in order.workers]
    return [
        (worker, message.held_by(rank))
        for worker, rank in zip(order.workers, order.ranks, strict=True)
    ]


class Agent:
    """Run the workers of one node for the coordinator. There is one agent on each node.

    The driver calls it with each event, and carries out the outputs in their order:

        agent = Agent(now_s=clock.now_s())
        carry_out(agent.on_command(StartWorker(...), now_s=...))   # from the coordinator
        carry_out(agent.on_event(WorkerStarted(...), now_s=...))   # from the process host
        carry_out(agent.on_worker(Hello(...), now_s=...))          # from a worker's socket
        carry_out(agent.on_tick(readings, now_s=...))              # every TICK_S

    It lives as long as the launcher of its node. With several nodes, `AgentSession`
    (engine/cluster/) stands between the driver and the agent, and adds the connection, the lease
    and the batching of messages.

    It decides nothing about recovery: it starts and kills the workers that the coordinator names.
    Before the deadline of a phase is over it cannot distinguish a hang from slowness. And it knows
    only its own workers, so with several nodes the coordinator judges which rank hangs.
    """

    def __init__(
        self, *, now_s: float, hang_after_s: float | None = None, only_node: bool = True
    ) -> None:
        """Begin with no workers.

        hang_after_s   for a plain script: the seconds of silence after which it counts as hung;
                       None: it never does
        only_node      this is the only node; otherwise the coordinator judges which rank hangs
        """
        self._watch = WorkerWatch()
        self._hangs = HangWatch(self._watch, silence_s=hang_after_s, only_node=only_node)
        self._exits = ExitWatch(self._watch)
        self._ticked_s = now_s
        self._store_number = 0  # of the newest order for a store

    # --- messages ---------------------------------------------------------------------------------

    def on_command(self, message: ForAgent, *, now_s: float) -> list[Output]:
        """Carry out an order of the coordinator."""
        match message:
            case StartWorker():
                self._watch.add(message.worker, message.rank, now_s=now_s)
                return [Spawn(message.worker, message.rank, message.kind, message.generation)]
            case KillWorker():
                return [Kill(message.worker, message.reason)]
            case TermWorker():
                return [Terminate(message.worker, message.interrupt)]
            case StartStore():
                self._store_number = message.number
                return [HostStore(message.reason)]
            case UseStore():
                return [StoreIsAt(message.host, message.port)]
            case AskProgressReport():
                return self._hangs.on_inquiry(message.nonce, now_s=now_s)
            case Dismiss():
                return [LeaveRun(message.reason)]
            case Judged():
                self._hangs.on_judged(message, now_s=now_s)
                return []
            case ToWorkers():
                return [self._deliver(worker, each) for worker, each in split_order(message)]
            case _:
                return assert_never(message)

    def _deliver(self, worker: int, message: ForWorker) -> Output:
        if isinstance(message, Regroup) and self._watch.give_rank(worker, message.rank):
            self._hangs.drop_question()
        return Deliver(worker, message)

    def on_worker(self, message: FromWorker, *, now_s: float) -> list[Output]:
        """Pass a worker's message on to the coordinator, except a Pong, which is for the agent."""
        if isinstance(message, Pong):
            self._hangs.on_pong(message)
            return self._exits.on_pong(message, now_s=now_s)
        return [ToCoordinator(message)]

    def on_event(self, message: FromAgent, *, now_s: float) -> list[Output]:
        """Handle an event of the process host, and pass it on: a worker's start or end, a store."""
        match message:
            case WorkerExited() | WorkerFailedToStart():
                gone = self._watch.remove(message.worker)
                if gone is not None and gone.is_member:  # the end of a spare answers no question
                    self._hangs.drop_question()
            case WorkerStarted():
                self._watch.started(message.worker, now_s=now_s)
            case StoreUp() | StoreLost():
                return [ToCoordinator(replace(message, number=self._store_number))]
            case _:
                pass  # nothing that the agent has to remember
        return [ToCoordinator(message)]

    # --- ticks ------------------------------------------------------------------------------------

    def on_tick(
        self,
        readings: Mapping[int, Reading],
        *,
        now_s: float,
        heard_s: Mapping[int, float] | None = None,
    ) -> list[Output]:
        """Look at the workers, every TICK_S.

        readings   by worker: one for each worker whose beacon exists
        heard_s    by worker: when it last printed something
        """
        late_s = late_by_s(looked_s=self._ticked_s, now_s=now_s, period_s=limits.TICK_S)
        self._ticked_s = now_s
        if late_s:
            self._watch.was_late(late_s, readings)
        self._watch.hear(heard_s or {})
        seen = self._watch.read(readings, now_s=now_s)
        if seen.moved:
            self._hangs.patient_until_s = 0.0
        progress = self._watch.take_progress(now_s=now_s) if seen.news else None
        reports = [] if progress is None else [ToCoordinator(progress)]
        hung = self._hangs.look(now_s=now_s)
        silent = self._hangs.look_for_silence(now_s=now_s)
        return [*reports, *hung, *silent, *self._exits.look(now_s=now_s)]

    def quiet_until_s(self) -> float:
        """Return the time before which a tick would return no output; infinity: none would.

        This holds as long as no beacon moves and no worker prints anything.
        """
        if self._hangs.asks:
            return self._ticked_s
        return min(self._hangs.quiet_until_s(), self._exits.quiet_until_s())

    def rest(self, *, until_s: float) -> None:
        """Note that the driver has left out the ticks up to `until_s`, so they were not late."""
        self._ticked_s = until_s

    # --- what drivers look at ---------------------------------------------------------------------

    @property
    def deadlines(self) -> Deadlines:
        """Return how long each phase may last, as far as that was learned."""
        return self._watch.deadlines

    def looks_closely(self, worker: int, *, now_s: float) -> bool:
        """Return True if the driver should find out whether this worker has a processor.

        That means reading a file for each thread, so it is done only when it matters.
        """
        watched = self._watch.workers.get(worker)
        return watched is not None and self._hangs.looks_closely(watched, now_s=now_s)

    @property
    def asks(self) -> bool:
        """Return True while members are asked for their place."""
        return self._hangs.asks

    @property
    def learns(self) -> bool:
        """Return True while some rank on this node is in the first steps of its process."""
        members = self._watch.members()
        return any(one.steps_done < limits.FIRST_STEPS_COUNT for one in members)

    def reports_again(self) -> None:
        """Report hangs again, because a new coordinator does not know of them."""
        self._watch.report_again()
