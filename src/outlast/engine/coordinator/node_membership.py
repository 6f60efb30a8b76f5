"""The nodes that a coordinator can start processes on, and how much room each has.

This module is pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from operator import attrgetter

from outlast.engine.coordinator.member import Member

UNBOUNDED = 1 << 30
_NUMBERS = re.compile(r"(\d+)")
_HOME = attrgetter("home")


class NodeMembership:
    """The nodes of a run, in the order in which they have joined.

    `put_in_order` sorts them once, when the run begins. `local`: there is one node, named "", whose
    agent is in the coordinator's own process, and which has room for all ranks.

    silent      nodes without a connection: they may come back, or be counted out
    returning   nodes whose agent has restarted, and is about to enrol again with what is sealed
                there
    barred      nodes that get no more work, even if they come back
    dismissed   nodes that were drained and told to end
    awaited     the run waits for a node, because no node has room for a lost rank
    domains     the failure domain of each node that has ever been in the run
    """

    def __init__(self, *, local: bool) -> None:
        self.local = local
        self.silent: set[str] = set()
        self.returning: set[str] = set()
        self.barred: set[str] = set()
        self.dismissed: set[str] = set()
        self.awaited = False
        self._capacity: dict[str, int] = {"": UNBOUNDED} if local else {}
        self._places: dict[str, int] = {}
        self._serves: dict[str, str] = {}
        # of each node that has ever been in; "": it names none
        self.domains: dict[str, str] = {}

    def __contains__(self, node: str) -> bool:
        return node in self._capacity

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._capacity))

    def __len__(self) -> int:
        return len(self._capacity)

    def join(
        self, node: str, capacity: int, *, place: int = -1, serves: str = "", domain: str = ""
    ) -> None:
        """Take `node` in.

        place    where it is to stand among the nodes; -1: by its name
        serves   where it serves its transfer image, as HOST:PORT; "": nowhere
        domain   the nodes with the same name here can be lost together with it; "": not told
        """
        self._capacity[node] = capacity
        self._places[node] = place
        self._serves[node] = serves
        self.domains[node] = domain
        self.returning.discard(node)
        self.silent.discard(node)

    def recover(self, domains: Mapping[str, str]) -> None:
        """Recover from the ledger the domains of nodes that are lost, or have not come yet."""
        self.domains = {**domains, **self.domains}

    def lose(self, node: str, *, returns: bool = False) -> None:
        """Take `node` out. `returns`: its agent has restarted, and is about to enrol again."""
        if returns:
            self.returning.add(node)
        self._capacity.pop(node, None)
        self.silent.discard(node)

    def cancel_return(self, node: str) -> None:
        """Note that a node that was about to enrol again is lost once more."""
        self.returning.discard(node)

    def note_connection_lost(self, node: str) -> None:
        """Note that the connection to `node` is lost. It may come back, or be counted out."""
        self.silent.add(node)

    def note_connected(self, node: str) -> None:
        """Note that `node` has a connection again."""
        self.silent.discard(node)

    def put_in_order(self) -> None:
        """Sort the nodes by their places, and those without a place by their names.

        Ranks are placed in this order. Numbers in names are compared as numbers: node2 comes before
        node10.
        """
        self._capacity = {
            node: self._capacity[node]
            for node in sorted(self._capacity, key=lambda one: order_of(one, self._places[one]))
        }

    def at_place(self, place: int) -> list[str]:
        """Return the nodes that were given this place, sorted by name."""
        return sorted(node for node in self._capacity if self._places[node] == place)

    def serves(self, node: str) -> str:
        """Return where `node` serves its transfer image, as HOST:PORT; "": nowhere."""
        return self._serves.get(node, "")

    def serving_at(self, address: str) -> str:
        """Return the node that serves its images at `address`; "": none is known."""
        named = (node for node, serves in self._serves.items() if serves == address != "")
        return next(named, "")

    def bar(self, node: str) -> None:
        """Give `node` no more work from now on."""
        self.barred.add(node)

    def unbar(self, node: str) -> None:
        """Give `node` work again."""
        self.barred.discard(node)
        self.dismissed.discard(node)

    def dismiss(self, node: str) -> None:
        """Note that `node` is drained, and was told to end. It may come back as a new one."""
        self.dismissed.add(node)

    def first(self, avoided: Container[str] = ()) -> str:
        """Return the first node that is neither `avoided` nor barred.

        If there is none, a barred node is taken before an avoided one. "" if there are no nodes.
        """
        return min(
            self._capacity, key=lambda node: (node in avoided, node in self.barred), default=""
        )

    def room(self, members: Iterable[Member]) -> dict[str, int]:
        """Return how many ranks fit on the nodes beside `members`."""
        taken = Counter(map(_HOME, members))
        return {
            node: (0 if node in self.barred else capacity) - taken[node]
            for node, capacity in self._capacity.items()
        }

    def least_spares(self, spares: Iterable[Member]) -> str | None:
        """Return the node that gets the next spare, or None if none can take it.

        It is the node with the fewest spares. Of several, it is the newest, which is the likeliest
        to house no ranks.
        """
        count = Counter(spare.home for spare in spares)
        return min(
            (node for node in reversed(self._capacity) if node not in self.barred),
            key=count.__getitem__,
            default=None,
        )


def order_of(node: str, place: int) -> tuple[bool, int, list[tuple[int, str]]]:
    """Return the sort key of a node: its place, or else its name, in which numbers are numbers."""
    pieces = [part for part in _NUMBERS.split(node) if part]
    words = [(int(part), "") if part.isdecimal() else (-1, part) for part in pieces]
    return place < 0, place, words
