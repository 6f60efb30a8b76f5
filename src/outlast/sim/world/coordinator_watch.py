"""Watch the messages, plans and orders of the coordinator.

The watch decides nothing. It turns each event into observations for the rules.
"""

from __future__ import annotations

from typing import Any, Protocol

from outlast.engine.cluster.lease import void_after_s
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.stages import Stage
from outlast.engine.hang import STEP_PHASES
from outlast.engine.protocol.outputs import Output, Record
from outlast.engine.protocol.worker import WorkerState
from outlast.model import limits
from outlast.model.messages import (
    STORE,
    AskProgressReport,
    Beat,
    Broke,
    Checkpointed,
    Donated,
    Enrol,
    Finished,
    FromWorkers,
    Hello,
    KillWorker,
    LinkMessage,
    Parked,
    Progress,
    ProgressReport,
    Registered,
    Regroup,
    StartStore,
    StartWorker,
    StoreUp,
    ToWorkers,
    Warned,
    WorkerExited,
    WorkerHung,
    WorkerStarted,
)
from outlast.model.records import Interruption
from outlast.model.terms import Phase
from outlast.sim.rules.final_observations import RecoveryChosen, WarningHeard
from outlast.sim.rules.observations import (
    AgentsAsked,
    HangReported,
    KillOrdered,
    OldStore,
    SaveFailed,
    ShardHeard,
    SilenceReported,
    StartOrderedEarly,
)
from outlast.sim.rules.run_end import APART
from outlast.sim.world.plan_watch import CutLink, Planning, PlanWatch, see_begun
from outlast.sim.world.processes import TORN, SimulatedProcess
from outlast.sim.world.run_accounts import RunAccounts

_WHO: dict[type, str] = {}  # the field with the sender or receiver of a message


class WatchedParts(Planning, Protocol):
    """The parts of the world that the watch looks at, besides the coordinator."""

    @property
    def accounts(self) -> RunAccounts: ...

    @property
    def has_twins(self) -> bool: ...


class HeardWorkers:
    """The workers that the coordinator knows to have started, ended or parked.

    parked     the spares that are parked, each with the time of its report
    given_up   the workers that it has ordered to be killed
    """

    def __init__(self) -> None:
        self.started: set[int] = set()
        self.ended: set[int] = set()
        self.given_up: set[int] = set()
        self.parked: dict[int, float] = {}


class StoreOrders:
    """The orders to host a store, and the reports about them.

    home      the node that got the last order to host the store
    number    the number of that order
    up        the number of the newest store that was reported to be up
    by_port   the number of the order for each port
    """

    def __init__(self) -> None:
        self.home = ""
        self.number = 0
        self.up = 0
        self.by_port: dict[int, int] = {}

    def hear(self, news: StoreUp) -> None:
        """Note that a store is up, unless another one has taken its place already."""
        if news.number == self.number:
            self.up = max(self.up, news.number)
            self.by_port[news.port] = news.number


class Enrolments:
    """The nodes that have enrolled, and have sent nothing since."""

    def __init__(self, *, void_s: float) -> None:
        self._void_s = void_s
        # nodes that had joined and have started over, and when the lease of each is over
        self._returning: dict[str, float] = {}
        self._sessions: dict[str, int] = {}  # the session in which each node has enrolled
        self._only_enrolled: set[str] = set()

    def hear(
        self, node: str, message: LinkMessage, *, is_in: bool, first_epoch: bool, now_s: float
    ) -> None:
        """Note that a node that had joined enrols as a new one, with only its sealed images.

        It has joined again when it sends anything else.
        """
        before = self._returning.pop(node, None)
        if isinstance(message, Enrol):
            is_new = self._sessions.get(node, message.session) != message.session
            if is_new and before is None and is_in and not message.housed:
                self._returning[node] = now_s + self._void_s
            self._sessions[node] = message.session
        if isinstance(message, Enrol) and first_epoch and not is_in:
            self._only_enrolled.add(node)
        else:
            self._only_enrolled.discard(node)

    def beats(self, node: str) -> None:
        """Note that a node has sent another message."""
        self._only_enrolled.discard(node)

    def is_only_enrolled(self, node: str) -> bool:
        """Return True if the node has sent nothing except its enrolment."""
        return node in self._only_enrolled

    def returning(self, *, now_s: float) -> tuple[str, ...]:
        """Return the nodes that have started over, and whose old lease may still be valid."""
        return tuple(sorted(node for node, until_s in self._returning.items() if now_s < until_s))

    def forget(self) -> None:
        """Forget everything, because the coordinator dies."""
        self._returning.clear()
        self._sessions.clear()


class CoordinatorWatch:
    """Let the rules see the messages and the decisions of the coordinator.

    plans      the watch of its plans
    staged_s   when its stage last changed
    """

    def __init__(self, world: WatchedParts) -> None:
        options = world.frame.options
        self.plans = PlanWatch(world)
        self.workers = HeardWorkers()
        self.stores = StoreOrders()
        self.enrolments = Enrolments(void_s=void_after_s(options.beat_s * limits.LEASE_BEATS))
        self.staged_s = 0.0
        self._world = world
        self._frame = world.frame
        self._newest_inquiry = 0  # the number of the newest inquiry
        # generation -> when a cut link was first reported, and whether it was that to the store
        self._unreached: dict[int, tuple[float, bool]] = {}

    def forget(self) -> None:
        """Forget what the coordinator knew, because it dies."""
        self._unreached.clear()
        self.enrolments.forget()
        self.plans.forget_image()

    def starts_over(self) -> None:
        """Forget the numbers of inquiries, because another coordinator has its own."""
        self._newest_inquiry = 0

    # --- messages ---------------------------------------------------------------------------------

    def hear(
        self, news: Any, coordinator: Coordinator, *, epoch: int, alone: bool, traced: bool = True
    ) -> None:
        """Look at a message just before the coordinator gets it.

        alone    True: there is one node
        traced   True: the trace shows the message
        """
        said = news.message if isinstance(news, FromWorkers) else news
        self._hear_of_state(news, said, coordinator, alone=alone)
        self._hear_of_workers(news, coordinator)
        self._hear_of_script(news, said, coordinator, epoch=epoch)
        if isinstance(news, WorkerHung):
            self._see_hung(news, alone=alone)
        elif isinstance(news, ProgressReport):
            self._frame.see(SilenceReported(news.silence_s, self._frame.options.hangs_after_s))
        elif isinstance(news, Broke) and news.unreached:
            since_s, to_store = self._unreached.get(news.generation, (self._frame.now_s, False))
            self._unreached[news.generation] = since_s, to_store or STORE in news.unreached
        if traced and type(news) not in (Progress, Beat):
            self._frame.say(brief(news))

    def _hear_of_state(
        self, news: Any, said: Any, coordinator: Coordinator, *, alone: bool
    ) -> None:
        """Note that a shard was written, or that a transfer image or a store is there."""
        if isinstance(news, Checkpointed) and news.in_vault:
            pass  # a copy has no manifest; the rules look at the plans that are made from it
        elif isinstance(news, Checkpointed) and news.error:
            self._frame.see(SaveFailed(news.step, news.error))
        elif isinstance(news, Checkpointed) and alone:
            ranks = self._frame.options.ranks
            self._frame.see(ShardHeard(news.step, news.rank, news.generation, ranks))
        if isinstance(said, Donated):
            self.plans.hear_donated(said, coordinator)
        if isinstance(news, StoreUp):
            self.stores.hear(news)

    def _hear_of_workers(self, news: Any, coordinator: Coordinator) -> None:
        if isinstance(news, Hello):
            self._world.accounts.recovery_times.hello_seen(
                coordinator.generation,
                news.worker,
                holders=lambda: {member.worker for member in coordinator.roster.members()},
                now_s=self._frame.now_s,
            )
        elif isinstance(news, WorkerStarted):
            self.workers.started.add(news.worker)
        elif isinstance(news, Parked):
            self.workers.parked.setdefault(news.worker, self._frame.now_s)
        elif isinstance(news, WorkerExited):
            self.workers.ended.add(news.worker)

    def _hear_of_script(
        self, news: Any, said: Any, coordinator: Coordinator, *, epoch: int
    ) -> None:
        """Note that the script has steps, warns of something, or is past its last step."""
        times = self._world.accounts.recovery_times
        if isinstance(news, Enrol):
            words = (one for housed in news.housed for one in housed.said)
            if news.script or any(isinstance(one, Registered) for one in words):
                times.registered()
        elif isinstance(said, Registered):
            times.registered()
            self._to_warn(said.note, coordinator, epoch)
        elif isinstance(news, Warned):
            self._to_warn(news.text, coordinator, epoch)
        elif isinstance(said, Finished) and coordinator.stage is Stage.TRAINING:
            # otherwise it does not know yet that all ranks have joined
            times.finished(said.generation, now_s=self._frame.now_s)

    def _see_hung(self, news: WorkerHung, *, alone: bool) -> None:
        silence_s = self._frame.options.hangs_after_s
        if not silence_s and Phase(news.phase) not in STEP_PHASES:
            return
        node = self._world.population.nodes[0]
        looks = node.looks_at(news.worker) if alone and "less far" in news.reason else None
        learned = not alone and "SIGSTOP" not in news.reason
        self._frame.see(HangReported(news.deadline_s, silence_s, learned, looks))

    def _to_warn(self, text: str, coordinator: Coordinator, epoch: int) -> None:
        if text and coordinator.stage not in (Stage.REBUILDING, Stage.STOPPING, Stage.ENDED):
            self._frame.see(WarningHeard(text, epoch))

    # --- decisions --------------------------------------------------------------------------------

    def acted(
        self,
        outputs: list[Output],
        coordinator: Coordinator,
        before: tuple[int, Stage],
        committed: int,
        *,
        epoch: int,
        alone: bool,
    ) -> None:
        """Look at the decisions of the coordinator before any worker learns of them.

        before      its generation and stage before
        committed   the newest committed step before
        """
        generation, stage = before
        if stage is not coordinator.stage:
            self.staged_s = self._frame.now_s
        if stage is not coordinator.stage and not self._world.has_twins:
            noted = [
                output.record
                for output in outputs
                if isinstance(output, Record) and isinstance(output.record, Interruption)
            ]
            if chosen := [record for record in noted if record.left_s == self._frame.now_s]:
                # the reason of which is shown
                self._see_answered(max(chosen, key=lambda record: record.id), coordinator)
        if coordinator.generation != generation:
            if not generation and not alone:
                see_begun(self._frame, coordinator)
            said_s, to_store = self._unreached.get(generation, (None, False))
            self.plans.planned(
                outputs,
                coordinator,
                committed,
                epoch=epoch,
                returning=self.enrolments.returning(now_s=self._frame.now_s),
                cut=CutLink(said_s, to_store, self.stores.home),
            )

    def _see_answered(self, record: Interruption, coordinator: Coordinator) -> None:
        """Let the rules see which ranks go on, and how, before any worker learns of it."""
        world, options = self._world, self._frame.options
        moves = coordinator.stage is Stage.MOVING
        ranks = _how_they_go_on(coordinator, now_s=self._frame.now_s) if moves else _nobody()
        housed = [process for process in world.population.alive() if process.rank >= 0]
        # the coordinator does not know yet of a process that has just ended
        known = {m.worker for m in coordinator.roster.live()}
        done = world.population.done
        over = bool(done) or any(
            p.machine.over or p.machine.committed >= options.steps for p in housed
        )
        self._frame.see(
            RecoveryChosen(
                rung=record.rung.value if record.rung is not None else "",
                reason=record.reason,
                moves=moves,
                there=tuple(p.rank for p in housed if _stands_ready(p, known)),
                ready=self._spares_beside(ranks["forked"], coordinator, known),
                held=bool(world.state_holders.holders(world.steps.committed)),
                over=over,
                recovery_mode=options.recovery_mode,
                ranks=options.ranks,
                stop_asked=bool(world.requested_stops.asked),
                apart=bool(set(APART).intersection(world.strikes.all_kinds())),
                **{name: tuple(some) for name, some in ranks.items()},
            )
        )

    def _spares_beside(self, forked: list[int], coordinator: Coordinator, known: set[int]) -> int:
        """Return the number of spares that are parked on nodes where ranks are forked anyway."""
        homes = coordinator.roster.homes
        fork_nodes = {homes[rank] for rank in forked}
        # the first choice of a place is kept
        opened = coordinator.interruptions.open
        since_s = min((one.detected_s for one in opened), default=self._frame.now_s)
        heard = {worker for worker, at_s in self.workers.parked.items() if at_s < since_s}
        parked = heard - known - self.workers.given_up
        return sum(
            p.rank < 0
            and p.worker in parked
            and p.worker not in p.node.doomed
            and p.node.name in fork_nodes
            for p in self._world.population.alive()
        )

    # --- orders -----------------------------------------------------------------------------------

    def ordered(self, node: str, order: object) -> None:
        """Look at an order to the agent of one of several nodes."""
        if isinstance(order, StartStore):
            self.stores.home, self.stores.number = node, order.number
        if isinstance(order, (StartStore, StartWorker)) and self.enrolments.is_only_enrolled(node):
            self._frame.see(StartOrderedEarly(node))
        if isinstance(order, AskProgressReport) and order.nonce > self._newest_inquiry:
            self._newest_inquiry = order.nonce
            self._frame.see(AgentsAsked(order.nonce))
        elif isinstance(order, KillWorker):
            self.workers.given_up.add(order.worker)
        elif isinstance(order, ToWorkers) and isinstance(order.message, Regroup):
            self._see_store(order.message)

    def _see_store(self, plan: Regroup) -> None:
        """Let the rules see a plan that names an old store."""
        number = self.stores.by_port.get(plan.store_port, self.stores.up)
        if number < self.stores.up:
            self._frame.see(OldStore(plan.generation, number, self.stores.up))

    def ordered_here(self, order: object, coordinator: Coordinator) -> None:
        """Look at an order to the agent of the only node."""
        if isinstance(order, StartStore):
            self.stores.number = order.number
        if not isinstance(order, KillWorker):
            return
        world, unstruck, idle = self._world, False, False
        member = coordinator.roster.of(order.worker)
        if member is not None and order.worker in self.workers.started:
            unstruck = member.rank >= 0 and not world.strikes.struck
            sound = member.process.pid not in world.strikes.pids() and not set(APART) & set(
                world.strikes.all_kinds()
            )
            idle = (
                member.rank < 0
                and sound
                and member.kind == self._frame.options.spare_kind
                and not (world.requested_stops.asked or world.population.done)
            )
        ended, stops = order.worker in self.workers.ended, coordinator.stage is Stage.STOPPING
        self._frame.see(KillOrdered(order.worker, ended, stops, unstruck, idle))


def _nobody() -> dict[str, list[int]]:
    return {"kept": [], "reentered": [], "begun": [], "taken": [], "forked": []}


def _how_they_go_on(coordinator: Coordinator, *, now_s: float) -> dict[str, list[int]]:
    """Return the ranks by the way in which they go on, with the names of `RecoveryChosen`."""
    ranks = _nobody()
    for member in coordinator.roster.members():
        if member.started_s == now_s:
            how = "forked" if member.kind == "rank" else "taken"
        else:
            then = member.path.plan.then if member.path.plan is not None else ""
            how = {"in_place": "kept", "reenter": "reentered"}.get(then, "begun")
        ranks[how].append(member.rank)
    return ranks


def _stands_ready(process: SimulatedProcess, known: set[int]) -> bool:
    """Return True if a process stands still, its state is whole, and it may act."""
    # A process without a lease only waits for its agent to kill it.
    may_act = process.worker in known or not process.node.still.outlives_lease
    still = process.machine.state is WorkerState.STILL and process.machine.committed >= 0
    return (
        may_act and still and process.worker not in process.node.doomed and process.content != TORN
    )


def brief(message: object) -> str:
    """Return the text for a message in a line of the trace."""
    sort = type(message)
    if sort not in _WHO:
        fields = ("worker", "workers", "node")
        _WHO[sort] = next((field for field in fields if hasattr(message, field)), "")
    who, inner = _WHO[sort], getattr(message, "message", None)
    of = f" {getattr(message, who)}" if who else ""
    return f"{sort.__name__}{of}{': ' + type(inner).__name__ if inner is not None else ''}"
