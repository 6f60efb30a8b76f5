"""When a session waited for a node, and which of its interruptions were drains.

Both are read from the events of the ledger. A wait begins with a NODE_AWAITED, when a lost rank has
no place on any node. It is over with the next NODE_FOUND, or with the next generation, or with the
session. A coordinator that has taken over writes the first one again, which changes nothing.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from outlast.model.records import DRAINING, NODE_AWAITED, NODE_FOUND, Event, Generation


class Spans:
    """Spans of time that do not overlap.

    `inside` takes logarithmic time, because an account asks it for each piece of each rank.
    """

    def __init__(self, spans: Iterable[tuple[float, float]] = ()) -> None:
        self._from_s: list[float] = []
        self._until_s: list[float] = []
        for from_s, until_s in sorted(spans):
            start_s = max(from_s, self._until_s[-1]) if self._until_s else from_s
            if until_s > start_s:
                self._from_s.append(start_s)
                self._until_s.append(until_s)
        lengths = (
            until_s - from_s for from_s, until_s in zip(self._from_s, self._until_s, strict=True)
        )
        self._upto_s = [0.0, *accumulate(lengths)]

    def inside(self, from_s: float, until_s: float) -> float:
        """Return how many seconds between these two times are in the spans."""
        if until_s <= from_s or not self._from_s:
            return 0.0
        return max(0.0, self._before(until_s) - self._before(from_s))

    def _before(self, at_s: float) -> float:
        index = bisect_right(self._from_s, at_s)
        if not index:
            return 0.0
        last = index - 1
        return self._upto_s[last] + min(at_s, self._until_s[last]) - self._from_s[last]


def node_waits(
    events: Iterable[Event], generations: Iterable[Generation], *, end_s: float
) -> Spans:
    """Return when a session waited for a node. `end_s`: its end, or the present time."""
    marks = [(one.at_s, one.kind == NODE_AWAITED) for one in events if one.kind in _OF_WAITS]
    if not marks:
        return Spans()
    marks += [(one.began_s, False) for one in generations]
    spans, began_s = [], None
    for at_s, begins in sorted(marks):
        if begins and began_s is None:
            began_s = at_s
        elif not begins and began_s is not None:
            spans.append((began_s, at_s))
            began_s = None
    if began_s is not None:
        spans.append((began_s, end_s))
    return Spans(spans)


_OF_WAITS = (NODE_AWAITED, NODE_FOUND)


def drains(events: Iterable[Event]) -> frozenset[int]:
    """Return the ids of the interruptions in which ranks moved off a node that was given up."""
    named = (one.data.get("interruption") for one in events if one.kind == DRAINING)
    return frozenset(number for number in named if isinstance(number, int))
