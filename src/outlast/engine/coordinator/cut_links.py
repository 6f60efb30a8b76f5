"""Nodes that cannot reach each other, as far as workers reported it.

A worker reports that it could not get into a group. This module counts how often that was tried,
and says when it is tried again. The coordinator reaches all of these nodes, so no node is lost and
no rank is to blame. The generation is tried again with growing pauses, until the link is there or
time is up.

Times are of the coordinator's clock, in seconds. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.model import limits


class CutLinks:
    """The links that are known to be cut. It is False while there are none."""

    def __init__(self) -> None:
        self._cut: set[tuple[str, str]] = set()
        self._generation = 0  # the newest that failed for it
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
            pause_s = min(limits.LINK_RETRY_S * 2.0**self._attempts, limits.LINK_RETRY_MAX_S)
            self._generation, self._attempts, self.retry_s = (
                generation,
                min(self._attempts + 1, 32),
                now_s + pause_s,
            )

    def is_out(self, *, now_s: float) -> bool:
        """Return whether the links were waited for long enough."""
        return bool(self._cut) and now_s >= self._since_s + limits.NODE_WAIT_S

    def lose(self, node: str) -> None:
        """Forget the links of a node that is counted out."""
        self._cut = {pair for pair in self._cut if node not in pair}

    def forget(self) -> None:
        """Forget all links: all ranks are in a group."""
        self._cut.clear()
