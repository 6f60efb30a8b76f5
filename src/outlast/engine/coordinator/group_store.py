"""The store that process groups are built with: its host, and the order that it belongs to.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.node_membership import NodeMembership
from outlast.engine.protocol.outputs import Output, Record, ToAgent
from outlast.model.messages import StartStore, StoreUp
from outlast.model.records import Event


class GroupStore:
    """The rendezvous store of a run.

    Orders are numbered, so that messages about an old store can be told from those about the
    newest. `address` is None from the order until the store's host has said where it listens, and
    again once the store is lost.
    """

    def __init__(self) -> None:
        self.address: tuple[str, int] | None = None
        self.home = ""  # the node that hosts it
        self.orders = 0
        self.lost_in = -1  # the generation in which a store was lost last
        self.lost_reason = ""

    def order(
        self, now_s: float, reason: str, *, nodes: NodeMembership, avoided: frozenset[str]
    ) -> list[Output]:
        """Order a store on the first node that is not `avoided`, or else on the first.

        The order is written down first, because a later coordinator ignores stores of lower
        numbers.
        """
        self.orders += 1
        self.home = nodes.first(avoided)
        noted: list[Output] = []
        if not nodes.local:
            data = {"number": self.orders, "node": self.home}
            noted.append(Record(Event(now_s, 0.0, "store", data), at_once=True))
        return [*noted, ToAgent(StartStore(reason, self.orders), self.home)]

    def is_ordered(self, nodes: NodeMembership) -> bool:
        """Return whether a node of the run hosts the store, or was told to."""
        return self.orders > 0 and self.home in nodes

    def note_up(self, message: StoreUp) -> None:
        """Note that the newest store listens."""
        self.address = (message.host, message.port)

    def forget(self) -> None:
        """Stop using the store. The next one has to be ordered."""
        self.address = None

    def lose(self, generation: int, reason: str) -> None:
        """Note that the store is lost while the run is in `generation`."""
        self.address, self.lost_in = None, generation
        self.lost_reason = f"the store that groups are built with was lost: {reason}"

    def recover(self, orders: int) -> None:
        """Remember how many orders the coordinator before this one had given."""
        self.orders = orders

    def found(self, store: StoreUp, node: str) -> None:
        """Note that a node that enrols with a new coordinator hosts this store."""
        self.address, self.orders, self.home = (store.host, store.port), store.number, node
