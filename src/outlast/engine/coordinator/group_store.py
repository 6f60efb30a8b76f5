"""`GroupStore`: the TCPStore that process groups are built with. Where it is, and who hosts it.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.node_membership import NodeMembership
from outlast.engine.protocol.outputs import Output, Record, ToAgent
from outlast.model.messages import StartStore, StoreUp
from outlast.model.records import Event


class GroupStore:
    """The TCPStore of a run, which an agent hosts.

    address   host and port. None from the order until the host has reported where the store
              listens, and again once the store is lost
    home      the node that hosts it
    orders    how many stores were ordered. Messages about a store carry the number of its order, so
              that those about an older store can be ignored
    """

    def __init__(self) -> None:
        self.address: tuple[str, int] | None = None
        self.home = ""
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

    def note_found(self, store: StoreUp, node: str) -> None:
        """Note that a node that enrols with a new coordinator hosts this store."""
        self.address, self.orders, self.home = (store.host, store.port), store.number, node
