"""The coordinator's end of all connections: which nodes are in, and what each is sent.

The `Coordinator` within knows nodes by name, and nothing of connections. `epoch` tells one
coordinator of a run from the next: agents obey the highest. A node is counted out when its lease is
void by the coordinator's clock, or when its agent says that it has begun again.

A name belongs to one session of an agent. Another session that enrols under it is turned away until
the lease of the first is over. Until then, processes of the first may still run.

Sans-IO: methods take `now_s` of the coordinator's clock, seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.engine.cluster.lease import Alarm, LeaseBook, void_after_s
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.protocol.outputs import (
    LookForLauncher,
    Output,
    Record,
    SendOverLink,
    Tell,
    ToAgent,
    TurnAway,
)
from outlast.engine.protocol.reliable_link import Inbox, NewestRebased, Offset, Outbox, tells_time
from outlast.model import limits
from outlast.model.messages import (
    Beat,
    Enrol,
    ForAgent,
    FromNode,
    Grant,
    LinkMessage,
    ToNode,
    TurnedAway,
    Welcome,
)
from outlast.model.records import Event


@dataclass(slots=True)
class _EnrolledNode:
    """A node that has enrolled and is not counted out, with its link.

    session     the session of its agent
    enrol       what it said when it enrolled, until it is heard again and thus knows that it is in;
                None from then on
    connected   there is a connection to it
    """

    session: int
    enrol: Enrol | None = None
    connected: bool = True
    outbox: Outbox[ForAgent] = field(default_factory=Outbox)
    inbox: Inbox = field(default_factory=Inbox)
    offset: Offset = field(default_factory=Offset)


@dataclass(frozen=True, slots=True)
class _FormerSessions:
    """The agents that were in with the coordinator before this one, and may still hold a lease.

    sessions   name -> the session that held it; those that have enrolled again are taken out
    until_s    the leases of the others are over then
    """

    sessions: dict[str, int]
    until_s: float


class CoordinatorSessions:
    """Stand between the driver and the coordinator, where there are several nodes.

    The driver calls it with each event on the connections, and carries out the outputs in their
    order:

        sessions = CoordinatorSessions(coordinator, epoch=1, lease_s=8.0)
        carry_out(sessions.start(now_s=...))
        carry_out(sessions.on_link("b", Enrol(...), now_s=...))        # from an agent
        carry_out(sessions.on_disconnected("b"))
        carry_out(sessions.on_launcher_ended("b", now_s=...))
        carry_out(sessions.pass_on(coordinator.ask_stop(...), now_s=...))  # any other call

    A coordinator after one that died begins with `rebuild` in place of `start`. The sessions' own
    timer is "leases". They live as long as their coordinator.

    They do not promise that a message arrives: it is sent again to a node that connects again.
    """

    def __init__(self, coordinator: Coordinator, *, epoch: int, lease_s: float) -> None:
        self.coordinator = coordinator
        self.epoch = epoch
        self._lease_s = lease_s
        self._leases = LeaseBook(lease_s=lease_s)
        self._enrolled: dict[str, _EnrolledNode] = {}
        self._rebased = NewestRebased()
        self._alarm = Alarm("leases")  # one timer for all leases
        self._late = False  # the timer came so late that no node was counted out
        self._former = _FormerSessions({}, 0.0)
        self._turned_away: dict[str, int] = {}  # name -> the newest session that people know of

    def start(self, *, now_s: float) -> list[Output]:
        """Begin as the first coordinator of a run."""
        return self.pass_on(self.coordinator.start(now_s=now_s), now_s=now_s)

    def rebuild(
        self, *, now_s: float, nodes: Mapping[str, int], patience_s: float = 0.0
    ) -> list[Output]:
        """Begin as the next coordinator after one that died.

        `nodes` had enrolled with that one, and may still go on: their names, and their sessions.
        `patience_s` is how long they are waited for; by default, until leases that were prolonged
        up to now are void.
        """
        patience_s = max(patience_s, void_after_s(self._lease_s))
        self._former = _FormerSessions(dict(nodes), now_s + patience_s)
        out = self.coordinator.rebuild(now_s=now_s, nodes=tuple(nodes), patience_s=patience_s)
        return [*self.pass_on(out, now_s=now_s), *(LookForLauncher(node) for node in nodes)]

    def on_disconnected(self, node: str) -> list[Output]:
        """Note that the connection to a node is lost.

        It stays in until its lease is void, or until its launcher is known to have ended.
        """
        if node not in self._enrolled:
            return []
        self._enrolled[node].connected = False
        self.coordinator.nodes.note_connection_lost(node)
        return [LookForLauncher(node)]

    def on_launcher_ended(self, node: str, *, now_s: float) -> list[Output]:
        """Count a node out whose launcher has ended: the kernel has killed its processes too.

        It is called after `LookForLauncher`. It does nothing for a node that has connected again.
        """
        reason = f"the launcher of node {node} has ended, and its processes with it"
        enrolled = self._enrolled.get(node)
        if enrolled is not None:
            return [] if enrolled.connected else self._lose(node, now_s, reason)
        self._former.sessions.pop(node, None)  # nothing of that session lives
        out = self.coordinator.node_does_not_come(now_s=now_s, node=node, reason=reason)
        return self.pass_on(out, now_s=now_s)

    def on_timer(self, *, now_s: float, name: str) -> list[Output]:
        """Handle a timer that is due: that of the leases, or one of the coordinator."""
        if name != "leases":
            return self.pass_on(self.coordinator.on_timer(now_s=now_s, name=name), now_s=now_s)
        late, before = self._alarm.rang(now_s=now_s) > limits.LATE_TICK_S, self._late
        self._late = late and not before
        if self._late:
            # The coordinator was held up itself, and heartbeats may wait in its sockets. So no node
            # is blamed for its silence before they are read.
            return self._alarm.at(now_s + limits.SILENT_LOOK_S)
        out: list[Output] = []
        for node in self._leases.void(now_s=now_s):
            out += self._lose(node, now_s, f"node {node} was not heard of until its lease was void")
        return [*out, *self._alarm.at(self._leases.next_s())]

    def on_link(self, node: str, message: LinkMessage, *, now_s: float) -> list[Output]:
        """Handle a message from an agent. `node`: the node that enrolled over this connection."""
        if isinstance(message, Enrol):
            return [*self._on_enrol(message, now_s), *self._alarm.at(self._leases.next_s())]
        enrolled = self._enrolled.get(node)
        if enrolled is None:
            # An agent that is not in has to enrol first.
            return []
        assert isinstance(message, (Beat, FromNode)), message
        enrolled.offset.note(sent_s=message.sent_s, now_s=now_s)
        enrolled.outbox.acknowledged(message.heard)
        if isinstance(message, Beat):
            self._leases.heard(node, now_s=now_s)
            granted = SendOverLink(Grant(message.number, enrolled.inbox.heard, now_s), node)
            return (
                [granted]
                if enrolled.enrol is None
                else [*self._take_in(enrolled, enrolled.offset.by_s, now_s), granted]
            )
        if not enrolled.inbox.accept(message):
            return []  # it came a second time
        said = (
            self._rebased.rebased(message.message, enrolled.offset.by_s)
            if tells_time(message.message)
            else message.message
        )
        return self.pass_on(self.coordinator.on_message(said, now_s=now_s, node=node), now_s=now_s)

    def on_beats(self, node: str, last: Beat, *, now_s: float) -> list[Output]:
        """Note that the driver has left out heartbeats before this one."""
        self._enrolled[node].offset.hear_many(sent_s=last.sent_s, now_s=now_s)
        return self.on_link(node, last, now_s=now_s)

    def _on_enrol(self, message: Enrol, now_s: float) -> list[Output]:
        enrolled, node = self._enrolled.get(message.node), message.node
        if (
            enrolled is not None
            and message.epoch == self.epoch
            and message.session == enrolled.session
        ):
            enrolled.connected = True
            self.coordinator.nodes.note_connected(node)
            enrolled.outbox.acknowledged(message.heard)
            self._leases.heard(node, now_s=now_s)
            again = [
                SendOverLink(ToNode(number, enrolled.inbox.heard, now_s, order), node)
                for number, order in enrolled.outbox.kept()
            ]
            return [
                SendOverLink(
                    Welcome(self.epoch, enrolled.inbox.heard, self._lease_s, False, None), node
                ),
                *again,
            ]
        if self.turns_away(message, now_s=now_s):
            return self._turn_away(message)
        self._former.sessions.pop(node, None)
        out: list[Output] = []
        if enrolled is not None:
            # The agent has begun again before its lease was void.
            out += self._lose(
                node, now_s, f"node {node} has started over", returns=not message.housed
            )
        if message.housed and not self.coordinator.adopts(node):
            # The agent was counted out, so it comes too late.
            return [*out, SendOverLink(Welcome(self.epoch, 0, self._lease_s, True, None), node)]
        enrolled = self._enrolled[node] = _EnrolledNode(message.session, message)
        self._leases.heard(node, now_s=now_s)
        joined = {"node": node, "session": message.session}
        # Write it down before the node may house anything: another coordinator has to know which
        # nodes to wait for.
        out.append(Record(Event(now_s, 0.0, "node_joined", joined), at_once=True))
        out.append(
            SendOverLink(
                Welcome(self.epoch, 0, self._lease_s, False, self.coordinator.images_of(node)), node
            )
        )
        return out + (
            self._take_in(enrolled, now_s - message.sent_s, now_s)
            if self.coordinator.adopts(node)
            else []
        )

    def turns_away(self, enrol: Enrol, *, now_s: float) -> bool:
        """Return whether another session holds the name, and may still have living processes."""
        enrolled = self._enrolled.get(enrol.node)
        if enrolled is not None:
            holder: int | None = enrolled.session
        elif now_s < self._former.until_s:
            holder = self._former.sessions.get(enrol.node)
        else:
            holder = None
        return holder is not None and holder not in (enrol.session, enrol.ended)

    def _turn_away(self, enrol: Enrol) -> list[Output]:
        """Turn an agent away, because another session holds its name."""
        reason = (
            f"node {enrol.node}: another agent has enrolled under this name, and its lease is not"
            " over. If that agent is gone, wait: this one is let in within"
            f" {void_after_s(self._lease_s):.0f} s. If both are alive, give each agent a name of"
            " its own"
        )
        answer: LinkMessage = TurnedAway(reason)
        if enrol.housed:  # its ranks were given away: it has to kill them before anything else
            answer = Welcome(self.epoch, 0, self._lease_s, True, None)
        reported = self._turned_away.get(enrol.node) == enrol.session
        self._turned_away[enrol.node] = enrol.session
        return [TurnAway(enrol.node, answer), *([] if reported else [Tell(reason)])]

    def _take_in(self, enrolled: _EnrolledNode, by_s: float, now_s: float) -> list[Output]:
        """Let a node in.

        A node that houses nothing is given nothing before it is heard again, because its Enrol may
        be so old that its lease is over.
        """
        enrol, enrolled.enrol = enrolled.enrol, None
        return (
            []
            if enrol is None
            else self.pass_on(
                self.coordinator.node_joined(now_s=now_s, enrol=enrol, by_s=by_s), now_s=now_s
            )
        )

    def _lose(self, node: str, now_s: float, reason: str, *, returns: bool = False) -> list[Output]:
        """Count a node out. `returns`: it has enrolled again already, and houses nothing."""
        self._enrolled.pop(node, None)
        self._leases.forget(node)
        return self.pass_on(
            self.coordinator.node_lost(now_s=now_s, node=node, reason=reason, returns=returns),
            now_s=now_s,
        )

    def pass_on(self, outputs: list[Output], *, now_s: float) -> list[Output]:
        """Return the coordinator's outputs, with its messages put on connections."""
        if not outputs:
            return outputs
        out: list[Output] = []
        for output in outputs:
            if type(output) is not ToAgent:
                out.append(output)
                continue
            enrolled = self._enrolled.get(output.node)
            if enrolled is None:
                continue  # counted out: its processes are dead, or about to be
            number = enrolled.outbox.put(output.message)
            if enrolled.connected:
                out.append(
                    SendOverLink(
                        ToNode(number, enrolled.inbox.heard, now_s, output.message), output.node
                    )
                )
        return out
