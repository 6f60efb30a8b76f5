"""A reliable link between an agent and the coordinator, over connections that may break.

Messages are numbered in both directions. A message that was not acknowledged is sent again over the
next connection, in order, and a message that arrives twice is handled once.

Times inside a message are converted to the receiver's clock. The error is the time that the fastest
of the newest messages was under way. This module is pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

from outlast.engine.protocol.outputs import Output, SendOverLink
from outlast.model import limits
from outlast.model.messages import (
    Broke,
    Committed,
    ForAgent,
    FromAgent,
    FromNode,
    FromWorker,
    FromWorkers,
    Grant,
    Lived,
    Progress,
    Regroup,
    ToNode,
    ToWorkers,
    WorkerExited,
    WorkerHung,
    WorkerStarted,
)

MessageT = TypeVar("MessageT", bound=FromWorker | FromWorkers | FromAgent | ForAgent)
_TIMES: dict[type, tuple[str, ...]] = {
    Broke: ("at_s",),
    Committed: ("at_s",),
    Lived: ("assigned_s", "opened_s", "ended_s"),
    Progress: ("at_s",),
    WorkerStarted: ("at_s",),
    WorkerExited: ("at_s", "fault_s"),
    WorkerHung: ("at_s", "last_s"),
    Regroup: ("fault_s", "detected_s"),
}

# For each kind of message: how to get all its fields, and which of them are times. It is computed
# once, because a coordinator converts the times of thousands of messages in one regroup.
_PLACES: dict[type, tuple[attrgetter[tuple[Any, ...]], tuple[int, ...]]] = {
    kind: (
        attrgetter(*(field.name for field in fields(kind))),
        tuple(place for place, field in enumerate(fields(kind)) if field.name in names),
    )
    for kind, names in _TIMES.items()
}


class Outbox(Generic[MessageT]):
    """Number messages, and keep them until the other side has acknowledged them.

    number   the number of the newest message; the first has number 1
    """

    def __init__(self) -> None:
        self.number = 0
        self._kept: deque[tuple[int, MessageT]] = deque()

    def put(self, message: MessageT) -> int:
        """Keep a message, and return its number."""
        self.number += 1
        self._kept.append((self.number, message))
        return self.number

    def acknowledged(self, upto: int) -> None:
        """Drop the messages up to this number: the other side has them."""
        while self._kept and self._kept[0][0] <= upto:
            self._kept.popleft()

    def kept(self) -> Iterator[tuple[int, MessageT]]:
        """Yield the number and message of all that is kept, the oldest first."""
        yield from self._kept


class Inbox:
    """Accept each message of a link once, over all of its connections.

    heard   the number of the newest message that was accepted, and all before it
    """

    def __init__(self) -> None:
        self.heard = 0

    def accept(self, message: FromNode | ToNode) -> bool:
        """Accept this message. Return False if it was accepted before.

        A connection keeps the order, so a message that is not the next one is an old one.
        """
        if message.number != self.heard + 1:
            return False
        self.heard = message.number
        return True


class Offset:
    """The offset from the sender's clock to the receiver's, estimated from messages.

    Each message gives an estimate that is too large by the time that the message was under way. So
    the smallest is used, of the newest messages only, because clocks drift apart.
    """

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=limits.OFFSET_SAMPLES_COUNT)

    def hear(self, *, sent_s: float, now_s: float) -> float:
        """Note one more message. Return the seconds to add to the times in it."""
        self.note(sent_s=sent_s, now_s=now_s)
        return self.by_s

    def note(self, *, sent_s: float, now_s: float) -> None:
        """Note one more message, sent at `sent_s` of the sender's clock."""
        self._newest.append(now_s - sent_s)

    @property
    def by_s(self) -> float:
        """Return the seconds to add to the times in the newest message."""
        return min(self._newest)

    def hear_many(self, *, sent_s: float, now_s: float) -> None:
        """Note that the driver has left out messages that took as long as this one."""
        self._newest.extend([now_s - sent_s] * limits.OFFSET_SAMPLES_COUNT)


class AgentLink:
    """An agent's end of its link: it numbers messages, and sends them until acknowledged.

    connected   there is a connection
    is_in       the coordinator has welcomed the agent over it. Before that, messages are only kept
    """

    def __init__(self) -> None:
        self.connected = False
        self.is_in = False
        self.inbox = Inbox()
        self.offset = Offset()
        self._outbox: Outbox[FromWorker | FromWorkers | FromAgent] = Outbox()
        self._enrolled_with = 0  # the number of the newest message when the agent enrolled

    @property
    def may_enrol(self) -> bool:
        """Return True while there is a connection over which the agent was not welcomed yet."""
        return self.connected and not self.is_in

    def opens(self) -> None:
        """Note that there is a new connection."""
        self.connected, self.is_in = True, False

    def closes(self) -> None:
        """Note that the connection is lost."""
        self.connected = self.is_in = False

    def enrols(self) -> int:
        """Note that the agent enrols. Return the number of its newest accepted message."""
        self._enrolled_with = self._outbox.number
        return self.inbox.heard

    def begin_again(self) -> None:
        """Begin a new session: no earlier message is sent again."""
        self._outbox, self.inbox = Outbox(), Inbox()

    def follow_another(self) -> None:
        """Start over with another coordinator. It knows earlier messages from the enrolment."""
        since = [said for number, said in self._outbox.kept() if number > self._enrolled_with]
        self._outbox, self.inbox, self.offset = Outbox(), Inbox(), Offset()
        # Messages between the enrolment and the welcome are kept.
        for said in since:
            self._outbox.put(said)

    def let_in(self, heard: int, *, now_s: float) -> list[Output]:
        """Note the welcome of a coordinator that has all messages up to `heard`. Send the rest."""
        self.is_in = True
        self._outbox.acknowledged(heard)
        return [
            SendOverLink(FromNode(number, self.inbox.heard, now_s, said))
            for number, said in self._outbox.kept()
        ]

    def hear(self, message: Grant | ToNode, *, now_s: float) -> float:
        """Note what a message acknowledges. Return the seconds to add to the times in it."""
        self._outbox.acknowledged(message.heard)
        return self.offset.hear(sent_s=message.sent_s, now_s=now_s)

    def put(self, message: FromWorker | FromWorkers | FromAgent, *, now_s: float) -> list[Output]:
        """Keep `message`, and send it now, or once the coordinator has welcomed the agent."""
        number = self._outbox.put(message)
        return (
            [SendOverLink(FromNode(number, self.inbox.heard, now_s, message))] if self.is_in else []
        )


def tells_time(message: Any) -> bool:
    """Return True if the message contains times, which `rebased` converts."""
    kind = type(message)
    return (type(message.message) if kind is FromWorkers or kind is ToWorkers else kind) in _PLACES


def rebased(message: Any, by_s: float) -> Any:
    """Return the message with `by_s` added to its times, which makes them the receiver's."""
    kind = type(message)
    if kind is FromWorkers:
        return (
            FromWorkers(message.workers, _shifted(message.message, by_s))
            if type(message.message) in _PLACES
            else message
        )
    if kind is ToWorkers:
        return (
            ToWorkers(message.workers, message.ranks, _shifted(message.message, by_s))
            if type(message.message) in _PLACES
            else message
        )
    return _shifted(message, by_s) if kind in _PLACES else message


class NewestRebased:
    """A cache of the newest result of `rebased`.

    The simulator sends equal messages of many nodes as one object. Its times are then converted
    once for all nodes with the same offset.
    """

    def __init__(self) -> None:
        self._newest: tuple[Any, float, Any] = (None, 0.0, None)

    def rebased(self, message: Any, by_s: float) -> Any:
        """Return the result of the function `rebased`."""
        several = type(message) is FromWorkers
        words = message.message if several else message
        *before, moved = self._newest
        if before != [words, by_s]:
            moved = rebased(words, by_s)
            self._newest = words, by_s, moved
        return FromWorkers(message.workers, moved) if several else moved


def _shifted(message: Any, by_s: float) -> Any:
    """Return a message of a kind in _PLACES with `by_s` added to each time that is known."""
    kind = type(message)
    take, places = _PLACES[kind]
    values = list(take(message))
    for place in places:
        if values[place] is not None:
            values[place] += by_s
    return kind(*values)
