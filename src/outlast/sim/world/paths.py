"""Network paths between the processes of two nodes. Links to the coordinator are independent.

A partition loses all data that is sent. TCP sends the data again, after pauses that double each
time. So data on its way arrives some time after the end of the partition. A new connection can be
made at once then.
"""

from __future__ import annotations

from outlast.sim.draws import Stream
from outlast.sim.world.processes import Home
from outlast.sim.world.timeline import Timeline

RTO_MAX_S = 120.0  # Linux's longest pause between two attempts to send the same bytes
GIVES_UP_S = 924.0  # Linux (tcp_retries2 = 15) ends a connection that loses all data for this long


class Paths:
    """Paths between nodes. Times are the world's. Within a node, all messages arrive."""

    def __init__(self, timeline: Timeline, stream: Stream) -> None:
        self._timeline = timeline
        self._stream = stream
        self._heals_s: dict[tuple[str, str], float] = {}
        self._flows_s: dict[tuple[str, str], float] = {}
        self._last_s = 0.0

    def part(self, node: Home, other: Home, for_s: float) -> None:
        """Cut the path between two nodes for `for_s`, or for longer if it was cut already."""
        pair, now_s = _pair(node, other), self._timeline.now_s
        self._heals_s[pair] = heals_s = max(now_s + for_s, self._heals_s.get(pair, 0.0))
        flows_s = max(
            heals_s + self._stream.between(0.0, min(for_s, RTO_MAX_S)), self._flows_s.get(pair, 0.0)
        )
        self._flows_s[pair] = flows_s
        self._last_s = max(self._last_s, flows_s)

    def were_parted(self, node: Home) -> bool:
        """Return True if there was ever a node that this one could not reach."""
        return any(node.name in pair for pair in self._heals_s)

    @property
    def whole(self) -> bool:
        """Return True if there is no partition."""
        return self._timeline.now_s >= self._last_s

    def heals_s(self, node: Home, other: Home) -> float:
        """Return the time from which a new connection between two nodes is possible."""
        return self._heals_s.get(_pair(node, other), 0.0)

    def flows_s(self, node: Home, other: Home, *, made_s: float) -> float:
        """Return the time from which messages arrive over a connection made at `made_s`."""
        pair = _pair(node, other)
        return self._flows_s.get(pair, 0.0) if made_s < self._heals_s.get(pair, 0.0) else 0.0


def _pair(node: Home, other: Home) -> tuple[str, str]:
    return (min(node.name, other.name), max(node.name, other.name))
