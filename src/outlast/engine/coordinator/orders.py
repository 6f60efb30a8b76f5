"""Orders to agents, one for each node, and events for the ledger. This module is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.stages import Timer, set_timer
from outlast.engine.protocol.outputs import Output, Record, Tell, ToAgent
from outlast.model import limits
from outlast.model.messages import ForWorker, KillWorker, Regroup, ToWorkers
from outlast.model.records import Event


@dataclass(slots=True)
class _Order:
    """An order to one node: a message, and the workers that get it."""

    message: ForWorker
    home: str
    workers: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def ready(self) -> ToAgent:
        ranks = tuple(self.ranks) if isinstance(self.message, Regroup) else ()
        return ToAgent(ToWorkers(tuple(self.workers), ranks, self.message), self.home)


def tell_orders(messages: Iterable[tuple[Member, ForWorker]], *, local: bool) -> list[Output]:
    """Return the orders that send each member its message.

    Workers of one node that get the same message object share an order.

    local   the agent is in the coordinator's own process: each worker gets an order of its own,
            because sharing would save nothing
    """
    orders: dict[tuple[object, int], _Order] = {}
    order: _Order | None = None
    for member, message in messages:
        shares = order is not None and order.message is message and order.home == member.home
        if order is None or not shares or local:
            place = member.worker if local else member.home
            order = orders.get((place, id(message)))
            if order is None:
                order = orders[place, id(message)] = _Order(message, member.home)
        order.workers.append(member.worker)
        order.ranks.append(member.rank)
    return [order.ready() for order in orders.values()]


def kill_orders(now_s: float, members: Iterable[Member], why: str) -> list[Output]:
    """Condemn `members`, order them to be killed, and set the deadline for their deaths.

    A rank is given to another process only after its holder's death. If a process cannot be killed
    by the deadline, the run ends.
    """
    out: list[Output] = []
    for member in members:
        out.append(kill_order(member, why))
    return [*out, set_timer(Timer.KILL, now_s + limits.KILL_DEADLINE_S)] if out else []


def kill_order(member: Member, why: str) -> ToAgent:
    """Condemn `member` and order it to be killed, without a deadline."""
    member.life.condemned = True
    return ToAgent(KillWorker(member.worker, why), member.home)


def event(now_s: float, kind: str, data: Mapping[str, object]) -> Record:
    """Return the output that writes an event to the ledger, for people who read it later."""
    return Record(Event(now_s, 0.0, kind, dict(data)))


def lost_node(now_s: float, node: str, reason: str) -> list[Output]:
    """Return the event that a node is lost, and the line that tells people."""
    return [event(now_s, "node_lost", {"node": node, "reason": reason}), Tell(reason)]
