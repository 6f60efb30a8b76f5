"""`CutLinks`: pairs of nodes that cannot reach each other, although the coordinator reaches both.

Workers report it when they cannot connect to a process on another node. No node is lost then, and
no rank is to blame. The next generation is tried again and again, with growing pauses, until the
link works or NODE_WAIT_S is over.

Times are of the coordinator's clock, in seconds. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.model import limits
from outlast.model.pauses import growing_pause_s


class CutLinks:
    """The links that are known to be cut. The object is false while there are none."""

    def __init__(self) -> None:
        self._cut: set[tuple[str, str]] = set()
        self._generation = 0  # the newest generation that failed because of a cut link
        self._attempts = 0
        self._since_s = 0.0
        self.retry_s = 0.0  # when the next generation may be tried

    def __bool__(self) -> bool:
        return bool(self._cut)

    @property
    def ends(self) -> frozenset[str]:
        """Return the nodes at the ends of cut links."""
        return frozenset(node for pair in self._cut for node in pair)

    @property
    def reason(self) -> str:
        """Return the sentence that says which nodes cannot reach each other."""
        return (
            " and ".join(f"nodes {first} and {second}" for first, second in sorted(self._cut))
            + " cannot reach each other"
        )

    def cut(self, node: str, others: Iterable[str], *, generation: int, now_s: float) -> None:
        """Note that `node` could not reach `others`, on its way into `generation`."""
        if not self._cut:
            self._since_s, self._attempts = now_s, 0
        self._cut |= {(min(node, other), max(node, other)) for other in others}
        if generation != self._generation or not self._attempts:
            self._generation, self._attempts = generation, self._attempts + 1
            self.retry_s = now_s + growing_pause_s(
                self._attempts, first_s=limits.LINK_RETRY_S, most_s=limits.LINK_RETRY_MAX_S
            )

    def is_out(self, *, now_s: float) -> bool:
        """Return True if the links have been cut for so long that the run gives up."""
        return bool(self._cut) and now_s >= self._since_s + limits.NODE_WAIT_S

    def lose(self, node: str) -> None:
        """Forget the links of a node that is counted out."""
        self._cut = {pair for pair in self._cut if node not in pair}

    def forget(self) -> None:
        """Forget all links: all ranks are in a group."""
        self._cut.clear()
