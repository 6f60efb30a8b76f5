"""`AgentSession`: an agent's end of its connection to the coordinator, with its lease.

The agent enrols, renews its lease by heartbeats, and kills its workers if the lease runs out.

    OUT ──connected──> ENROLLING ──Welcome──> IN ──lease out, or Welcome(afresh)──> FENCED ──┐
     ^                     │                                                                 │
     ├─────TurnedAway──────┘                             all workers of the node are dead    │
     └───────────────────────────────────────────────────────────────────────────────────────┘

A lost connection is only a delay: the lease goes on, and messages that were not acknowledged are
sent again. A coordinator of a higher epoch is told about the node's workers (`Housed`), and is
obeyed from then on. The agent disconnects from one of a lower epoch. Times are in seconds, by the
agent's own clock.

Sans-IO, like the `Agent` within it, which knows nothing of connections and leases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from outlast.engine.agent.agent import Agent
from outlast.engine.cluster.batching import MessageBatch
from outlast.engine.cluster.housed_workers import HousedWorkers
from outlast.engine.cluster.lease import HeldLease
from outlast.engine.exhaustive import assert_never
from outlast.engine.protocol.outputs import (
    HangUp,
    Kill,
    Output,
    SendOverLink,
    SetTimer,
    Tell,
    ToCoordinator,
    Wipe,
)
from outlast.engine.protocol.reliable_link import AgentLink, rebased
from outlast.model import limits
from outlast.model.messages import (
    Enrol,
    ForAgent,
    FromAgent,
    FromWorker,
    FromWorkers,
    Grant,
    Images,
    LinkMessage,
    ParityKept,
    ToNode,
    TurnedAway,
    Welcome,
)


class SessionTimer(Enum):
    """A deadline of an agent's session. The value is the name that drivers know it by."""

    BEAT = "beat"  # the next heartbeat is due
    LEASE = "lease"  # the lease is out, unless it was granted for longer since
    BATCH = "batch"  # messages that waited for others like them are sent


class SessionIdentity:
    """The numbers by which coordinators know this agent's session.

    session       a random number for the present session; 0: it has not begun yet
    ended         the number of the session before, all of whose workers are dead; 0: none
    epoch         the epoch of the newest coordinator that the agent has obeyed; 0: none
    turned_away   why the agent was turned away last, as it was shown; "" once it was let in
    """

    def __init__(self) -> None:
        self.session = 0
        self.ended = 0
        self.epoch = 0
        self.turned_away = ""

    def begin(self, session: int) -> None:
        """Begin a new session."""
        self.ended, self.session = self.session, session

    def let_in(self, epoch: int) -> None:
        """Note that the coordinator of `epoch` has welcomed the agent."""
        self.epoch, self.turned_away = epoch, ""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The offer of a node to the run. The fields are those of `Enrol`.

    capacity  how many ranks it has room for
    place     its place in the order of the nodes (--node-rank); -1: the order of names decides
    serves    where it serves its transfer image to other nodes, as HOST:PORT; "": nowhere
    votes     where it answers as a voter, as HOST:PORT; "": it is none
    software  what is installed there; "": not told
    domain    the nodes that name the same one can be lost together (--node-domain); "": not told
    """

    node: str
    capacity: int
    place: int = -1
    serves: str = ""
    votes: str = ""
    software: str = ""
    domain: str = ""


class AgentSession:
    """Stand between the driver and the agent of a node, where there are several nodes.

    The driver calls it with each event on the connection and on the node, and carries out the
    outputs in their order:

        session = AgentSession(agent, offer=NodeOffer("b", capacity=8), beat_s=0.5)
        carry_out(session.on_connected(images=(), transfer=(), session=random, now_s=...))
        carry_out(session.on_link(Welcome(...), now_s=...))       # from the coordinator
        carry_out(session.on_worker(Hello(...), now_s=...))       # from a worker's socket
        carry_out(session.on_event(WorkerStarted(...), now_s=...))
        carry_out(session.pass_on(agent.on_tick(...), now_s=...))
        carry_out(session.on_timer(now_s=..., name="beat"))       # of a SetTimer, when due

    Its states are in the picture above. Its parts are:

        housed    remembers the workers, for a new coordinator
        lease     asks for the lease, and watches its end
        _link     numbers messages, and sends them again until they are acknowledged
        _batch    joins equal messages of several workers

    If no grant arrives before the lease is over, the agent kills its workers, even if they train
    well, because their ranks may be given away. The session trusts its driver to connect again.
    """

    def __init__(self, agent: Agent, *, offer: NodeOffer, beat_s: float) -> None:
        self.agent = agent
        self._offer = offer
        self.housed = HousedWorkers()
        self.lease = HeldLease(beat_s=beat_s)
        self.fenced = False
        self._identity = SessionIdentity()
        self._link = AgentLink()
        self._batch = MessageBatch()

    # --- the connection ---------------------------------------------------------------------------

    def on_connected(
        self,
        *,
        images: tuple[Images, ...],
        transfer: tuple[int, ...],
        session: int,
        now_s: float,
        copies: tuple[Images, ...] = (),
        parity: tuple[ParityKept, ...] = (),
    ) -> list[Output]:
        """Enrol over a new connection.

        `images`, `copies`, `parity` and `transfer` say what is sealed in the vault. `session` is a
        fresh random number, which is used only if a new session begins with this connection.
        """
        self._link.opens()
        late = self._fence_if_lease_is_out(now_s)
        elsewhere = copies, parity
        return [*late, *self._enrol(images, elsewhere, transfer, session, now_s)]

    def on_disconnected(self) -> list[Output]:
        """Note that the connection is lost. The lease goes on."""
        self._link.closes()
        return []

    def _enrol(
        self,
        images: tuple[Images, ...],
        elsewhere: tuple[tuple[Images, ...], tuple[ParityKept, ...]],
        transfer: tuple[int, ...],
        session: int,
        now_s: float,
    ) -> list[Output]:
        """Enrol, unless the agent is in already, or workers of a fenced session are still alive."""
        identity, housed = self._identity, self.housed
        # A fenced agent enrols with a new session, and only once all its workers are dead.
        if not self._link.may_enrol or (self.fenced and housed.living()):
            return []
        if self.fenced or not identity.session:
            self._begin(session)
        out = self._send_batch(now_s)
        self.lease.enrols(now_s=now_s)
        heard = self._link.enrols()
        enrol = Enrol(
            self._offer.node,
            identity.session,
            self._offer.capacity,
            identity.epoch,
            heard,
            housed.step,
            housed.store,
            housed.report(),
            housed.report_images(images),
            transfer,
            housed.script,
            now_s,
            identity.ended,
            self._offer.place,
            self._offer.serves,
            self._offer.votes,
            self._offer.software,
            *elsewhere,
            self._offer.domain,
        )
        return [*out, SendOverLink(enrol)]

    def _begin(self, session: int) -> None:
        """Begin a session. All workers of the session before are dead."""
        self.fenced = False
        self._identity.begin(session)
        self.housed.begin_again()
        self._batch = MessageBatch()
        self._link.begin_again()

    def on_link(self, message: LinkMessage, *, now_s: float) -> list[Output]:
        """Handle a message from the coordinator, unless the lease is out."""
        return self._fence_if_lease_is_out(now_s) or self._take(message, now_s)

    def _take(self, message: LinkMessage, now_s: float) -> list[Output]:
        match message:
            case Welcome():
                return self._on_welcome(message, now_s)
            case TurnedAway():
                return self._on_turned_away(message)
            case Grant() if self._link.is_in:
                self._link.hear(message, now_s=now_s)
                return self.lease.granted(message.number)
            case ToNode() if self._link.is_in:
                by_s = self._link.hear(message, now_s=now_s)
                # A message that arrives twice was obeyed the first time.
                is_new = self._link.inbox.accept(message)
                return self._obey(rebased(message.message, by_s), now_s) if is_new else []
            case _:
                return []  # an order that comes before the agent is in

    @property
    def is_in(self) -> bool:
        """Return True if the agent was welcomed over the connection that it has."""
        return self._link.is_in

    @property
    def epoch(self) -> int:
        """Return the epoch of the newest coordinator that the agent has obeyed; 0: none."""
        return self._identity.epoch

    def prolong_lease(self, *, asked_s: float, now_s: float) -> list[Output]:
        """Let the workers go on without the coordinator, for one lease from `asked_s`.

        The driver asked the voters at that time, and a majority of them does not hear from the
        coordinator either.
        """
        return self._fence_if_lease_is_out(now_s) or self.lease.prolong(asked_s=asked_s)

    def leave_out_beats(self, *, asked_s: float) -> None:
        """Prolong the lease by heartbeats that the driver has left out.

        Each would have been granted. The last would have been sent at `asked_s`.
        """
        self.lease.leave_out_beats(asked_s=asked_s)

    def on_grants(self, last: Grant, *, now_s: float) -> list[Output]:
        """Handle the last of several grants. The driver has left out those before it."""
        self._link.offset.hear_many(sent_s=last.sent_s, now_s=now_s)
        return self.on_link(last, now_s=now_s)

    def _on_welcome(self, message: Welcome, now_s: float) -> list[Output]:
        identity, link = self._identity, self._link
        if message.epoch < identity.epoch:  # this coordinator was replaced by another
            return [HangUp()]
        if message.afresh:
            return self._fence("this node was counted out: its ranks are given away")
        if self.fenced:  # the lease has run out since the agent enrolled
            return self._check_empty()
        if self.lease.is_over_before_it_begins(message.lease_s, now_s=now_s):
            return self._fence("the lease of this node was over when it came")
        if message.epoch > identity.epoch:
            link.follow_another()
            self.agent.reports_again()
        identity.let_in(message.epoch)
        again = link.let_in(message.heard, now_s=now_s)
        self.lease.begins(message.lease_s)
        wipe = [] if message.keep is None else [Wipe(message.keep)]
        return [*wipe, *again, *self.lease.watch(), *self._beat(now_s)]

    def _on_turned_away(self, message: TurnedAway) -> list[Output]:
        """Disconnect, so that the driver tries again later. The reason is shown once, not at each
        try.
        """
        reported, self._identity.turned_away = self._identity.turned_away, message.reason
        return [*([] if reported == message.reason else [Tell(message.reason)]), HangUp()]

    # --- timers -----------------------------------------------------------------------------------

    def on_timer(self, *, now_s: float, name: str) -> list[Output]:
        """Handle the timer `name`, which was set before and is due."""
        timer = SessionTimer(name)
        match timer:
            case SessionTimer.LEASE:
                self.lease.rang(now_s=now_s)
                return self._fence_if_lease_is_out(now_s) or self.lease.watch()
            case SessionTimer.BATCH:
                return self._fence_if_lease_is_out(now_s) or self._send_batch(now_s)
            case SessionTimer.BEAT:
                return self._beat(now_s)
            case _:
                return assert_never(timer)

    def _beat(self, now_s: float) -> list[Output]:
        """Ask for the lease to be prolonged."""
        out = self._fence_if_lease_is_out(now_s)
        if not self._link.is_in:
            return out
        return [
            SendOverLink(self.lease.ask(self._link.inbox.heard, now_s=now_s)),
            self.lease.next_beat(now_s),
        ]

    # --- the lease and the fence ------------------------------------------------------------------

    @property
    def lent_until_s(self) -> float:
        """Return until when the node's processes may vote, seal, restore and commit.

        The driver writes this where they can read it, because they go on if the agent is stopped.
        """
        until_s = self.lease.until_s
        return -math.inf if self.fenced or until_s is None else until_s

    def _fence_if_lease_is_out(self, now_s: float) -> list[Output]:
        """Fence the node if its lease is out, and return the outputs; else return [].

        Each call of the session does this first. An agent that was stopped may find orders and
        events that are older than the end of its lease.
        """
        if not self.lease.is_out(now_s=now_s):
            return []
        return self._fence("the lease of this node has run out")

    def _fence(self, why: str) -> list[Output]:
        """Kill all workers, because their ranks may be given away.

        Once all are dead, the agent enrols with a new session.
        """
        self.fenced = True
        self._link.is_in = False
        killed = [Kill(one.worker, why) for one in self.housed.living()]
        return [*self.lease.ends(), *killed, *self._check_empty()]

    def _check_empty(self) -> list[Output]:
        """Disconnect once a fenced node is empty: the driver reconnects, and the agent enrols."""
        return [HangUp()] if self.fenced and not self.housed.living() else []

    # --- what passes through ----------------------------------------------------------------------

    def _obey(self, order: ForAgent, now_s: float) -> list[Output]:
        """Hand an order to the agent, and remember what it changes on this node."""
        self.housed.note_order(order)
        return self.pass_on(self.agent.on_command(order, now_s=now_s), now_s=now_s)

    def on_worker(self, message: FromWorker, *, now_s: float) -> list[Output]:
        """Handle a message of a worker."""
        late = self._fence_if_lease_is_out(now_s)
        self.housed.hear(message.worker, message)
        return [*late, *self.pass_on(self.agent.on_worker(message, now_s=now_s), now_s=now_s)]

    def on_workers(
        self, workers: tuple[int, ...], message: FromWorker, *, now_s: float
    ) -> list[Output]:
        """Handle equal messages of several workers at the same time. `message` names the first.

        The outcome is the same as if each worker sent its message by itself, in this order.
        """
        # A fenced node sends nothing, and a batch does not wait for a worker that is being killed.
        # In these cases each message is handled by itself.
        together = (
            not self.fenced
            and self._batch.takes_all(workers, message)
            and not self.housed.any_killed()
        )
        if not together or self.lease.is_out(now_s=now_s):
            return [
                output
                for worker in workers
                for output in self.on_worker(replace(message, worker=worker), now_s=now_s)
            ]
        for worker in workers:
            self.housed.hear(worker, message)
        waiting = bool(self._batch)
        self._batch.add_all(workers, message)
        return self._batch_grew(now_s, waiting=waiting)

    def on_event(self, message: FromAgent, *, now_s: float) -> list[Output]:
        """Handle an event of the process host."""
        late = self._fence_if_lease_is_out(now_s)
        self.housed.on_event(message)
        out = self.pass_on(self.agent.on_event(message, now_s=now_s), now_s=now_s)
        return [*late, *out, *self._check_empty()]

    def pass_on(self, outputs: list[Output], *, now_s: float) -> list[Output]:
        """Return the agent's outputs, with its messages to the coordinator put on the connection.

        The driver calls this with the outputs of the agent's ticks.
        """
        out = self._fence_if_lease_is_out(now_s)
        for output in outputs:
            if isinstance(output, ToCoordinator):
                out += self._say(output.message, now_s)
            else:
                out.append(output)
        return out

    def _say(self, message: FromWorker | FromAgent, now_s: float) -> list[Output]:
        """Send a message to the coordinator, at once or as a part of a batch."""
        self.housed.note_said(message)
        if self.fenced:
            return []  # messages of its workers do not count: their ranks may be given away
        out = [] if self._batch.takes(message) else self._send_batch(now_s)
        if not self._batch.takes(message):
            return [*out, *self._link.put(message, now_s=now_s)]
        waiting = bool(self._batch)
        self._batch.add(message)
        return [*out, *self._batch_grew(now_s, waiting=waiting)]

    def _batch_grew(self, now_s: float, *, waiting: bool) -> list[Output]:
        """Send the batch if it waits for no other worker, else make sure that its timer is set.

        waiting   the timer is set already
        """
        if self._batch.is_full(self.housed.may_speak()):
            return self._send_batch(now_s)
        if waiting:
            return []  # the timer was set when the first message began to wait
        return [SetTimer(SessionTimer.BATCH.value, now_s + limits.BATCH_WAIT_S)]

    def _send_batch(self, now_s: float) -> list[Output]:
        """Send the messages that have waited for others like them."""
        if not self._batch:
            return []
        messages: list[FromWorker | FromWorkers] = self._batch.take()
        sent = [one for message in messages for one in self._link.put(message, now_s=now_s)]
        return [SetTimer(SessionTimer.BATCH.value, None), *sent]
