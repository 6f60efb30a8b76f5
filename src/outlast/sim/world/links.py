"""Links for messages on one node.

Messages from one process stay in order, and so do messages to one process. Other messages may
overtake them by up to the latency.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.sim.draws import Draws, Stream
from outlast.sim.durations import LEAST_S
from outlast.sim.world.processes import SimulatedProcess
from outlast.sim.world.timeline import Timeline

APART_S = 1e-6
# A message that comes twice comes again within this time. There may be other generations by then.
AGAIN_S = 0.5


class Links:
    """Deliver messages between processes, the agent and the coordinator of one node.

    `latency_s` is the longest time that a message takes. The messages of a process that was held or
    muted keep their order.
    """

    def __init__(self, timeline: Timeline, stream: Stream, *, latency_s: float) -> None:
        self._timeline = timeline
        self._stream = stream
        self._most_s = max(latency_s, LEAST_S)
        # the newest message of each direction between coordinator and agent
        self._arrives_s: dict[tuple[str, int], float] = {}

    def send(self, direction: str, worker: int, act: Callable[[], None]) -> None:
        """Send a message between coordinator and agent.

        Messages with the same `direction` and `worker` stay in order.
        """
        at_s = self._arrives_s[direction, worker] = max(
            self._arrival_s(self._stream), self._arrives_s.get((direction, worker), 0.0)
        )
        self._timeline.at(at_s, act)

    def send_to(self, process: SimulatedProcess, act: Callable[[], None]) -> None:
        """Send a message from the agent to a process. A fault may delay it or deliver it twice."""
        process.newest_to_s = max(
            self._arrival_s(process.luck or self._stream),
            _after(process, process.newest_to_s),
            process.held_until_s,
        )
        self._both(process, process.newest_to_s, act)

    def send_from(self, process: SimulatedProcess, act: Callable[[], None]) -> None:
        """Send to the agent a message of a process, or a report of the kernel about it."""
        process.newest_from_s = max(
            self._arrival_s(process.luck or self._stream),
            _after(process, process.newest_from_s),
            process.mute_until_s,
        )
        self._both(process, process.newest_from_s, act)

    def _arrival_s(self, draws: Draws) -> float:
        return self._timeline.now_s + draws.between(LEAST_S, self._most_s)

    def _both(self, process: SimulatedProcess, at_s: float, act: Callable[[], None]) -> None:
        self._timeline.at(at_s, act)
        if process.repeats_until_s > self._timeline.now_s:
            self._timeline.after(
                at_s - self._timeline.now_s + self._stream.pick((0.0, 0.05, AGAIN_S)), act
            )


def _after(process: SimulatedProcess, at_s: float) -> float:
    """Return the earliest time for the next message of a process, so that the order is kept."""
    return at_s if process.luck is None else at_s + APART_S
