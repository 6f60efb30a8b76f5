"""What an agent remembers of the workers on its node, so that a new coordinator can take over.

A new coordinator learns from the agents which workers there are, and what they have reported. So
each agent keeps the newest message of every kind from each of its workers. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from outlast.engine.coordinator.member import said_before
from outlast.model.messages import (
    Broke,
    Committed,
    Donated,
    Finished,
    ForAgent,
    FromAgent,
    FromWorker,
    Hello,
    Housed,
    Images,
    Inventory,
    Joined,
    KillWorker,
    Parked,
    Progress,
    Registered,
    Regroup,
    Sealed,
    StartWorker,
    StoreLost,
    StoreUp,
    ToWorkers,
    Underway,
    WorkerExited,
    WorkerFailedToStart,
    WorkerStarted,
)

# the kinds of messages of which a new coordinator has to know the newest
_KEPT = (
    Hello,
    Parked,
    Registered,
    Broke,
    Inventory,
    Donated,
    Underway,
    Joined,
    Committed,
    Sealed,
    Finished,
)
# those of them that are void once the worker has a newer plan
_OF_A_GENERATION = (Broke, Inventory, Underway, Joined, Committed, Sealed, Finished)


@dataclass(slots=True)
class HousedWorker:
    """Hold what an agent remembers of one worker.

    plan     the newest plan that it was sent; None: none was
    said     its newest message of each kind, the oldest first
    killed   it was ordered to be killed
    exited   how it ended; None: it is alive
    """

    worker: int
    rank: int
    kind: str
    pid: int = 0
    plan: Regroup | None = None
    said: dict[type, FromWorker] = field(default_factory=dict)
    killed: bool = False
    exited: WorkerExited | None = None

    @property
    def generation(self) -> int:
        """Return the generation of its newest plan; 0: none was delivered."""
        return 0 if self.plan is None else self.plan.generation

    def hear(self, message: FromWorker) -> None:
        """Keep `message`, if it is one that the next coordinator has to know."""
        if isinstance(message, _OF_A_GENERATION) and message.generation < self.generation:
            return  # it is about an older plan
        if isinstance(message, Registered) and self._is_late(message):
            return  # it is a late copy of an older message
        if isinstance(message, _KEPT):
            self.said.pop(type(message), None)
            self.said[type(message)] = message

    def _is_late(self, message: Registered) -> bool:
        """Return True if `message` is older than one that is kept here."""
        known = self.said.get(Registered)
        if isinstance(known, Registered) and said_before(message, known):
            return True
        # A worker does not register with less than it has joined with, or committed since.
        came_to = (one for one in self.said.values() if isinstance(one, Joined | Committed))
        reported = message.generation, message.step
        return any(reported < (one.generation, one.step) for one in came_to)

    def follow(self, plan: Regroup, rank: int) -> None:
        """Note that the worker was sent `plan`, and forget what it said in older generations."""
        self.plan, self.rank = plan, rank
        self.said = {
            kind: one
            for kind, one in self.said.items()
            if not isinstance(one, _OF_A_GENERATION) or one.generation >= plan.generation
        }

    def report(self) -> Housed:
        """Return the report on this worker for a new coordinator."""
        plan = None if self.plan is None else self.plan.held_by(self.rank)
        if plan is not None:
            # Nobody follows it a second time, and of many ranks they may not fit into one message.
            plan = replace(plan, keepers=(), shares=(), sources=())
        # A message that several workers sent at once is kept as that of the first one.
        said = tuple(replace(one, worker=self.worker) for one in self.said.values())
        return Housed(
            self.worker,
            self.rank,
            self.kind,
            self.pid,
            plan,
            said,  # type: ignore[arg-type]  # only those of _KEPT
            self.killed,
            self.exited,
        )


class HousedWorkers:
    """Remember the workers of one node, and what they and the agent have reported of the run.

    step     the newest step that is known here
    script   "sharded" or "replicated", once a script has said so; "" before that
    store    the store that this node hosts; None: it hosts none
    """

    def __init__(self) -> None:
        self.step = 0
        self.script = ""
        self.store: StoreUp | None = None
        self._workers: dict[int, HousedWorker] = {}
        # By rank, of its holders that have ended here: the newest step that any of them had
        # committed, and the generation and the committed step of the last one.
        self._committed: dict[int, int] = {}
        self._ended: dict[int, tuple[int, int]] = {}

    # --- the workers of this node -----------------------------------------------------------------

    def living(self) -> list[HousedWorker]:
        """Return the workers that have not ended."""
        return [one for one in self._workers.values() if one.exited is None]

    def any_killed(self) -> bool:
        """Return True if the death of some living worker was ordered."""
        return any(one.killed for one in self.living())

    def may_speak(self) -> list[int]:
        """Return the living workers that hold a rank and are not being killed."""
        return [one.worker for one in self.living() if one.rank >= 0 and not one.killed]

    def begin_again(self) -> None:
        """Forget the workers, because all are dead and the agent begins a new session."""
        self.step, self.store = 0, None
        self._workers.clear()

    # --- what is kept -----------------------------------------------------------------------------

    def note_order(self, order: ForAgent) -> None:
        """Remember an order that the agent carries out."""
        match order:
            case StartWorker():
                self._workers[order.worker] = HousedWorker(order.worker, order.rank, order.kind)
            case KillWorker() if order.worker in self._workers:
                self._workers[order.worker].killed = True
            case ToWorkers(message=Regroup() as plan):
                self.step = min(self.step, plan.step)  # later steps are undone by that plan
                for worker, rank in zip(order.workers, order.ranks, strict=True):
                    if worker in self._workers:
                        self._workers[worker].follow(plan, rank)
            case _:
                pass  # says nothing of a worker that lasts

    def hear(self, worker: int, message: FromWorker) -> None:
        """Remember what a worker says."""
        housed = self._workers.get(worker)
        if housed is None:
            return  # it was forgotten: another process holds its rank
        housed.hear(message)
        if isinstance(message, Registered):
            sharded = message.sharded or self.script == "sharded"
            self.script = "sharded" if sharded else "replicated"
        if isinstance(message, Joined | Committed):
            self.step = max(self.step, message.step)
            if housed.exited is None:
                self._forget_predecessors(housed)

    def _forget_predecessors(self, housed: HousedWorker) -> None:
        """Forget earlier holders of the rank: they ended before this worker joined."""
        gone = [
            one.worker
            for one in self._workers.values()
            if one.exited is not None and one.rank == housed.rank
        ]
        for worker in gone:
            del self._workers[worker]

    def on_event(self, message: FromAgent) -> None:
        """Remember what the process host says of a worker."""
        match message:
            case WorkerStarted() if message.worker in self._workers:
                self._workers[message.worker].pid = message.pid
            case WorkerExited() if message.worker in self._workers:
                self._on_exit(self._workers[message.worker], message)
            case WorkerFailedToStart():
                self._workers.pop(message.worker, None)
            case _:
                pass  # says nothing of a worker that lasts

    def _on_exit(self, housed: HousedWorker, message: WorkerExited) -> None:
        housed.exited = message
        before = self._committed.get(housed.rank, 0)
        self._committed[housed.rank] = max(before, message.committed)
        ended = housed.generation, message.committed
        self._ended[housed.rank] = max(ended, self._ended.get(housed.rank, ended))
        if housed.rank < 0:  # a spare leaves nothing behind
            del self._workers[housed.worker]

    def note_said(self, message: FromWorker | FromAgent) -> None:
        """Remember what the agent says itself: of its store, and of progress."""
        match message:
            case StoreUp():
                self.store = message
            case StoreLost():
                self.store = None
            case Progress():
                self.step = max(self.step, message.newest)
            case _:
                pass  # says nothing of the node that lasts

    # --- what a coordinator is told ---------------------------------------------------------------

    def report(self) -> tuple[Housed, ...]:
        """Return the report on the workers for a new coordinator."""
        return tuple(one.report() for one in self._workers.values())

    def report_images(self, found: Iterable[Images]) -> tuple[Images, ...]:
        """Return the sealed images of each rank, with the steps that its holders committed."""
        sealed = {one.rank: one.steps for one in found}
        return tuple(
            Images(
                rank, sealed.get(rank, ()), self._committed.get(rank, 0), self._ended.get(rank, ())
            )
            for rank in sorted({*sealed, *self._committed})
        )
