"""`CutLinks`: pairs of nodes that cannot reach each other, although the coordinator reaches both.

A worker reports that it cannot connect to a process on another node. In this case no node is lost,
and no rank is to blame. The next generation is tried again and again, with growing pauses, until
the link works, a node is given up for it (cut_for_good.py), or NODE_WAIT_S is over.

Times are of the coordinator's clock, in seconds. This module is pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from outlast.model import limits
from outlast.model.pauses import growing_pause_s

Pair = tuple[str, str]  # two nodes, in the order of their names
_NAMED_COUNT = 3  # pairs that a sentence names


class CutLinks:
    """The links that are known to be cut. The object is false while there are none.

    given_up   the node whose ranks move away, because a link to it stays cut; "": none
    """

    def __init__(self) -> None:
        self._cut: dict[Pair, float] = {}  # pair -> since when it is cut
        self._missed_by: dict[str, set[str]] = {}  # node -> the nodes that could not reach it
        self._generation = 0  # the newest generation that failed because of a cut link
        self._first = 0  # the first such generation since all ranks were last in a group
        self._attempts = 0
        self._since_s = 0.0
        self.retry_s = 0.0  # when the next generation may be tried
        self.given_up = ""

    def __bool__(self) -> bool:
        return bool(self._cut)

    @property
    def ends(self) -> frozenset[str]:
        """Return the nodes at the ends of cut links."""
        return frozenset(node for pair in self._cut for node in pair)

    @property
    def reason(self) -> str:
        """Return the sentence that says which nodes cannot reach each other."""
        return reason_of(self._cut)

    def cut(
        self,
        node: str,
        others: Iterable[str],
        *,
        generation: int,
        now_s: float,
        since_s: float | None = None,
    ) -> None:
        """Note that `node` could not reach `others`, on its way into `generation`.

        since_s   the links have carried nothing since then; None: since now
        """
        if not self._cut:
            self._since_s, self._attempts = now_s, 0
            self._first = generation
        began_s = now_s if since_s is None else since_s
        for other in others:
            pair = pair_of(node, other)
            self._cut[pair] = min(began_s, self._cut.get(pair, began_s))
            self._missed_by.setdefault(node, set()).add(other)
            self._missed_by.setdefault(other, set()).add(node)
        if generation != self._generation or not self._attempts:
            self._generation, self._attempts = generation, self._attempts + 1
            self.retry_s = now_s + growing_pause_s(
                self._attempts, first_s=limits.LINK_RETRY_S, most_s=limits.LINK_RETRY_MAX_S
            )

    def is_out(self, *, now_s: float) -> bool:
        """Return True if the links have been cut for so long that the run gives up."""
        return bool(self._cut) and now_s >= self._since_s + limits.NODE_WAIT_S

    def lasting(self, *, now_s: float, for_s: float, generation: int) -> tuple[Pair, ...]:
        """Return the links that have been cut for `for_s`.

        The result is empty until a later generation was tried than the one in which the first cut
        link was noted. The new connections of that generation may work where the old ones did not.
        """
        if generation <= self._first:
            return ()
        return tuple(sorted(pair for pair, at_s in self._cut.items() if now_s >= at_s + for_s))

    def missed(self, node: str) -> int:
        """Return how many nodes could not reach `node` since all ranks were in a group.

        Nodes that were given up since then count as well.
        """
        return len(self._missed_by.get(node, ()))

    def give_up(self, node: str) -> None:
        """Note that the ranks of `node` move away."""
        self.given_up = node

    def keep(self) -> None:
        """Note that the node that was to be given up keeps its ranks."""
        self.given_up = ""

    def lose(self, node: str) -> None:
        """Forget the links of a node that was counted out, or that no rank lives on any more."""
        self._cut = {pair: at_s for pair, at_s in self._cut.items() if node not in pair}
        if node == self.given_up:
            self.given_up = ""

    def forget(self) -> None:
        """Forget all links: all ranks are in a group."""
        self._cut.clear()
        self._missed_by.clear()
        self.given_up = ""


def pair_of(node: str, other: str) -> Pair:
    """Return the two nodes as a pair, in the order of their names."""
    return min(node, other), max(node, other)


def reason_of(pairs: Iterable[Pair]) -> str:
    """Return the sentence that says which pairs of nodes cannot reach each other.

    It names the first few, because there may be thousands.
    """
    known = list(pairs)
    named = heapq.nsmallest(_NAMED_COUNT, known)
    words = [f"nodes {first} and {second}" for first, second in named]
    if left := len(known) - len(named):
        words.append(f"{left} more pairs")
    return " and ".join(words) + " cannot reach each other"
