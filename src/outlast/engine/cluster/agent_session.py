"""An agent's end of its line: it enrols, asks for its lease, and kills what it houses when the
lease is out.

    OUT ──connected──> ENROLLING ──Welcome──> IN ──lease out, or Welcome(afresh)──> FENCED ──all it housed is dead──> OUT
     └─────TurnedAway──────┘└──────connection lost: the lease goes on──────┘

A lost connection is a delay: what was not acknowledged is said again. A coordinator of a higher
epoch is told what the agent houses (`Housed`), and obeyed from then on; one of a lower epoch is
hung up on. Times are of the agent's own clock, seconds.

Sans-IO, as the `Agent` within it, which knows nothing of lines and leases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from outlast.engine.agent.agent import Agent
from outlast.engine.cluster.batching import MessageBatch
from outlast.engine.cluster.lease import Alarm, Lease
from outlast.engine.cluster.reliable_link import Inbox, Offset, Outbox, rebased
from outlast.engine.coordinator.member import said_before
from outlast.engine.protocol.outputs import (
    HangUp,
    Kill,
    Line,
    Output,
    SetTimer,
    Tell,
    ToCoordinator,
    Wipe,
)
from outlast.model import limits
from outlast.model.messages import (
    Beat,
    Broke,
    Committed,
    Donated,
    Enrol,
    Finished,
    ForAgent,
    FromAgent,
    FromNode,
    FromWorker,
    FromWorkers,
    Grant,
    Hello,
    Housed,
    Images,
    Inventory,
    Joined,
    KillWorker,
    OnLine,
    Parked,
    Progress,
    Registered,
    Regroup,
    StartWorker,
    StoreLost,
    StoreUp,
    ToNode,
    ToWorkers,
    TurnedAway,
    Underway,
    Welcome,
    WorkerExited,
    WorkerFailedToStart,
    WorkerStarted,
)

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
    Finished,
)
_OF_A_GENERATION = (Broke, Inventory, Underway, Joined, Committed, Finished)


@dataclass(slots=True)
class _House:
    """What is remembered of one process, for a coordinator that has to build its picture anew."""

    worker: int
    rank: int
    kind: str
    pid: int = 0
    plan: Regroup | None = None
    # the newest of each kind, oldest first
    said: dict[type, FromWorker] = field(default_factory=dict)
    killed: bool = False
    exited: WorkerExited | None = None

    @property
    def generation(self) -> int:
        """Of its newest plan; 0: none was delivered."""
        return 0 if self.plan is None else self.plan.generation

    def hear(self, message: FromWorker) -> None:
        if isinstance(message, _OF_A_GENERATION) and message.generation < self.generation:
            return  # What is said of an older plan is not kept.
        if (
            isinstance(message, Registered)
            and isinstance(known := self.said.get(Registered), Registered)
            and said_before(message, known)
        ):
            return  # How it can be healed comes again, and is not kept.
        if isinstance(message, _KEPT):
            self.said.pop(type(message), None)
            self.said[type(message)] = message

    def told(self, plan: Regroup, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.said = {
            kind: one
            for kind, one in self.said.items()
            if not isinstance(one, _OF_A_GENERATION) or one.generation >= plan.generation
        }

    def standing(self) -> Housed:
        plan = None if self.plan is None else self.plan.held_by(self.rank)
        # what several say at once is kept as it was said
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


class AgentSession:
    """One for each of several nodes.

    `agent` is driven through this. Timers: "beat", "lease", "chorus".
    """

    def __init__(self, agent: Agent, *, node: str, capacity: int, beat_s: float) -> None:
        self.agent = agent
        self.node = node
        self.lease = Lease()
        self.epoch = 0
        self._capacity = capacity
        self._beat_s = beat_s
        self._session = 0  # it has not begun yet
        self._ended = 0  # the session before
        self._turned_away = ""  # why, as far as people know
        self._connected = False
        self._in = False  # welcomed over this connection
        self.fenced = False
        self._enrolled_s = 0.0
        self._enrolled_with = 0  # the newest number that was said when it did
        self._alarm = Alarm("lease")
        self._beats = 0
        self._step = 0
        self._script = ""
        self._store: StoreUp | None = None
        self._committed: dict[int, int] = {}  # rank -> by holders that have ended here
        self._houses: dict[int, _House] = {}
        self._chorus = MessageBatch()
        self._outbox: Outbox[FromWorker | FromWorkers | FromAgent] = Outbox()
        self._inbox = Inbox()
        self._offset = Offset()

    # --- the line ---------------------------------------------------------------------------------

    def on_connected(
        self, *, images: tuple[Images, ...], transfer: tuple[int, ...], session: int, now_s: float
    ) -> list[Output]:
        """Enrol over a new connection.

        `images` and `transfer` say what lies sealed in the vault. `session` is a random number that
        was never given before: the agent is known by it if it begins with this connection.
        """
        self._connected, self._in = True, False
        return [*self._look_at_lease(now_s), *self._enrol(images, transfer, session, now_s)]

    def on_disconnected(self) -> list[Output]:
        self._connected = self._in = False
        return []

    def _enrol(
        self, images: tuple[Images, ...], transfer: tuple[int, ...], session: int, now_s: float
    ) -> list[Output]:
        if not self._connected or self._in or (self.fenced and self._living()):
            return []
        if self.fenced or not self._session:
            self._begin(session)
        out = self._sing(now_s)
        self._enrolled_s, self._enrolled_with = now_s, self._outbox.number
        housed = tuple(house.standing() for house in self._houses.values())
        heard = self._inbox.heard
        sealed = {one.rank: one.steps for one in images}
        told = tuple(
            Images(rank, sealed.get(rank, ()), self._committed.get(rank, 0))
            for rank in sorted({*sealed, *self._committed})
        )
        enrol = Enrol(
            self.node, self._session, self._capacity, self.epoch, heard, self._step, self._store,
            housed, told, transfer, self._script, now_s, self._ended,
        )  # fmt: skip
        return [*out, Line(enrol)]

    def on_line(self, message: OnLine, *, now_s: float) -> list[Output]:
        return self._look_at_lease(now_s) or self._take(message, now_s)

    def _take(self, message: OnLine, now_s: float) -> list[Output]:
        if isinstance(message, Welcome):
            return self._on_welcome(message, now_s)
        if isinstance(message, TurnedAway):
            return self._on_turned_away(message)
        if not self._in or not isinstance(message, (Grant, ToNode)):
            # An order before the agent is let in.
            return []
        by_s = self._offset.hear(sent_s=message.sent_s, now_s=now_s)
        self._outbox.acknowledged(message.heard)
        if isinstance(message, Grant):
            self.lease.granted(message.number)
            return self._alarm.at(self.lease.until_s)
        if not self._inbox.takes(message):
            # An order that the agent has followed already.
            return []
        return self._obey(rebased(message.message, by_s), now_s)

    @property
    def is_in(self) -> bool:
        """It was welcomed over the connection that it has."""
        return self._in

    def leave_out_beats(self, *, asked_s: float) -> None:
        """The driver leaves out heartbeats, all of which were granted: the last was asked for then."""
        self.lease.begins(asked_s=asked_s, lease_s=self.lease.lease_s)

    def on_grants(self, last: Grant, *, now_s: float) -> list[Output]:
        """The driver has left out what was granted before this."""
        self._offset.hear_many(sent_s=last.sent_s, now_s=now_s)
        return self.on_line(last, now_s=now_s)

    def _on_welcome(self, message: Welcome, now_s: float) -> list[Output]:
        if message.epoch < self.epoch:
            # A coordinator that another one has taken the place of.
            return [HangUp()]
        if message.afresh:
            # Counted out while the agent was away.
            return self._fence("this node was counted out: its ranks are given away")
        if self.fenced:
            # Welcomed when the lease has run out since.
            return self._check_empty()
        if now_s >= self._enrolled_s + message.lease_s:
            # Welcomed when the lease is over.
            return self._fence("the lease of this node was over when it came")
        if message.epoch > self.epoch:
            # what was said before, the enrolment told
            since = [said for number, said in self._outbox.kept() if number > self._enrolled_with]
            self._outbox, self._inbox, self._offset = Outbox(), Inbox(), Offset()
            for said in since:
                # Something was said between enrolling and the welcome.
                self._outbox.put(said)
            self.agent.reports_again()
        self.epoch, self._in, self._turned_away = message.epoch, True, ""
        self._outbox.acknowledged(message.heard)
        self.lease.begins(asked_s=self._enrolled_s, lease_s=message.lease_s)
        again: list[Output] = [
            Line(FromNode(number, self._inbox.heard, now_s, said))
            for number, said in self._outbox.kept()
        ]
        if message.keep is not None:
            again = [Wipe(message.keep), *again]
        return [
            *again,
            *self._alarm.at(self.lease.until_s),
            *self.on_timer(now_s=now_s, name="beat"),
        ]

    def _on_turned_away(self, message: TurnedAway) -> list[Output]:
        """The driver connects again after a while. People are told once, not at each try."""
        told, self._turned_away = self._turned_away, message.reason
        return [*([] if told == message.reason else [Tell(message.reason)]), HangUp()]

    def on_timer(self, *, now_s: float, name: str) -> list[Output]:
        if name == "lease":
            self._alarm.rang(now_s=now_s)
            return self._look_at_lease(now_s) or self._alarm.at(self.lease.until_s)
        out = self._look_at_lease(now_s)
        if name == "chorus":
            return out or self._sing(now_s)
        assert name == "beat", name
        if not self._in:
            return out
        self._beats += 1
        self.lease.asked(self._beats, now_s=now_s)
        return [
            Line(Beat(self._beats, self._inbox.heard, now_s)),
            SetTimer("beat", now_s + self._beat_s),
        ]

    # --- the lease --------------------------------------------------------------------------------

    @property
    def lent_until_s(self) -> float:
        """Until then the node's processes may vote, seal and restore.

        The driver keeps it where they read it: they go on if the agent stands still.
        """
        return -math.inf if self.fenced or self.lease.until_s is None else self.lease.until_s

    def _look_at_lease(self, now_s: float) -> list[Output]:
        """Before anything else is handled: an agent that has stood still finds orders and news that
        are as old as its lease.
        """
        if not self.lease.is_out(now_s=now_s):
            return []
        # A lease runs out.
        return self._fence("the lease of this node has run out")

    # --- the fence --------------------------------------------------------------------------------

    def _fence(self, why: str) -> list[Output]:
        """Nothing that is here may go on. Who is to come next enrols once all of it is dead."""
        self.fenced, self._in = True, False
        self.lease.ends()
        return [
            *self._alarm.at(self.lease.until_s),
            SetTimer("beat", None),
            *(Kill(house.worker, why) for house in self._living()),
            *self._check_empty(),
        ]

    def _living(self) -> list[_House]:
        return [house for house in self._houses.values() if house.exited is None]

    def _check_empty(self) -> list[Output]:
        # the driver connects again, and the agent enrols as new
        return [HangUp()] if self.fenced and not self._living() else []

    def _begin(self, session: int) -> None:
        """All that it housed before is dead, if it ever housed anything."""
        self.fenced = False
        self._ended, self._session = self._session, session
        self._step, self._store = 0, None
        self._houses.clear()
        self._chorus = MessageBatch()
        self._outbox, self._inbox = Outbox(), Inbox()

    # --- what passes through ----------------------------------------------------------------------

    def _obey(self, order: ForAgent, now_s: float) -> list[Output]:
        if isinstance(order, StartWorker):
            self._houses[order.worker] = _House(order.worker, order.rank, order.kind)
        elif isinstance(order, KillWorker) and order.worker in self._houses:
            self._houses[order.worker].killed = True
        elif isinstance(order, ToWorkers) and isinstance(order.message, Regroup):
            for worker, rank in zip(order.workers, order.ranks, strict=True):
                if worker in self._houses:
                    self._houses[worker].told(order.message, rank)
        return self.pass_on(self.agent.on_command(order, now_s=now_s), now_s=now_s)

    def on_worker(self, message: FromWorker, *, now_s: float) -> list[Output]:
        late = self._look_at_lease(now_s)
        self._hear(message.worker, message)
        return [*late, *self.pass_on(self.agent.on_worker(message, now_s=now_s), now_s=now_s)]

    def on_workers(
        self, workers: tuple[int, ...], message: FromWorker, *, now_s: float
    ) -> list[Output]:
        """All of them say this at the same moment, the first of them as it stands: what comes of it
        is what comes of each by itself, in this order.
        """
        together = (
            not self.fenced
            and self._chorus.takes_all(workers, message)
            and not any(house.killed for house in self._living())
        )
        if not together or self.lease.is_out(now_s=now_s):
            return [
                output
                for worker in workers
                for output in self.on_worker(replace(message, worker=worker), now_s=now_s)
            ]
        for worker in workers:
            self._hear(worker, message)
        waiting = bool(self._chorus)
        self._chorus.add_all(workers, message)
        if self._chorus.is_full(self._voices()):
            return self._sing(now_s)
        return [] if waiting else [SetTimer("chorus", now_s + limits.CHORUS_WAIT_S)]

    def _hear(self, worker: int, message: FromWorker) -> None:
        house = self._houses.get(worker)
        if house is None:
            return
        house.hear(message)
        if isinstance(message, Registered):
            self._script = (
                "sharded" if message.sharded or self._script == "sharded" else "replicated"
            )
        if isinstance(message, (Joined, Committed)):
            self._step = max(self._step, message.step)
            if house.exited is None:
                self._forget_predecessors(house)

    def _forget_predecessors(self, house: _House) -> None:
        """It lives, and is in the generation: whoever has ended in its rank did so before."""
        gone = [
            one.worker
            for one in self._houses.values()
            if one.exited is not None and one.rank == house.rank
        ]
        for worker in gone:
            del self._houses[worker]

    def on_event(self, message: FromAgent, *, now_s: float) -> list[Output]:
        late = self._look_at_lease(now_s)
        if isinstance(message, WorkerStarted) and message.worker in self._houses:
            self._houses[message.worker].pid = message.pid
        if isinstance(message, WorkerExited) and message.worker in self._houses:
            house = self._houses[message.worker]
            house.exited = message
            self._committed[house.rank] = max(self._committed.get(house.rank, 0), message.committed)
            if house.rank < 0:
                del self._houses[message.worker]
        if isinstance(message, WorkerFailedToStart):
            self._houses.pop(message.worker, None)
        out = self.pass_on(self.agent.on_event(message, now_s=now_s), now_s=now_s)
        return [*late, *out, *self._check_empty()]

    def pass_on(self, outputs: list[Output], *, now_s: float) -> list[Output]:
        """What the agent asks for: its news go on the line.

        Called from outside for what it asks for at a tick.
        """
        out = self._look_at_lease(now_s)
        for output in outputs:
            if isinstance(output, ToCoordinator):
                out += self._say(output.message, now_s)
            else:
                out.append(output)
        return out

    def _say(self, message: FromWorker | FromAgent, now_s: float) -> list[Output]:
        if isinstance(message, StoreUp):
            self._store = message
        elif isinstance(message, StoreLost):
            self._store = None
        elif isinstance(message, Progress):
            self._step = max(self._step, message.newest)
        if self.fenced:
            return []
        out = [] if self._chorus.takes(message) else self._sing(now_s)
        if not self._chorus.takes(message):
            return [*out, *self._put(message, now_s)]
        waiting = bool(self._chorus)
        self._chorus.add(message)
        if self._chorus.is_full(self._voices()):
            return [*out, *self._sing(now_s)]
        return out if waiting else [*out, SetTimer("chorus", now_s + limits.CHORUS_WAIT_S)]

    def _voices(self) -> list[int]:
        """Whoever may say the same as others."""
        return [house.worker for house in self._living() if house.rank >= 0 and not house.killed]

    def _sing(self, now_s: float) -> list[Output]:
        """What has waited for its like goes on the line."""
        if not self._chorus:
            return []
        return [
            SetTimer("chorus", None),
            *(line for message in self._chorus.said() for line in self._put(message, now_s)),
        ]

    def _put(self, message: FromWorker | FromWorkers | FromAgent, now_s: float) -> list[Output]:
        number = self._outbox.put(message)
        return [Line(FromNode(number, self._inbox.heard, now_s, message))] if self._in else []
