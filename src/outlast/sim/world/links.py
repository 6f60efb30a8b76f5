"""Links for messages.

Messages of one process, and those to one process, stay in order. Others may overtake them by up to
the latency.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.sim.draws import Draws, Stream
from outlast.sim.durations import LEAST_S
from outlast.sim.world.processes import SimulatedProcess
from outlast.sim.world.timeline import Timeline

APART_S = 1e-6
# a message that comes twice comes again after up to so long: generations may be between
AGAIN_S = 0.5


class Links:
    """Deliver messages between processes, the agent and the coordinator of one node.

    `latency_s`: a message takes up to so long.

    A process that was held or muted is heard in its order anyway.
    """

    def __init__(self, timeline: Timeline, stream: Stream, *, latency_s: float) -> None:
        self._timeline = timeline
        self._stream = stream
        self._most_s = max(latency_s, LEAST_S)
        # the newest message of each direction between coordinator and agent
        self._arrives_s: dict[tuple[str, int], float] = {}

    def send(self, direction: str, worker: int, act: Callable[[], None]) -> None:
        """Send between coordinator and agent; `direction` and `worker` name whose order is kept."""
        at_s = self._arrives_s[direction, worker] = max(
            self._arrival_s(self._stream), self._arrives_s.get((direction, worker), 0.0)
        )
        self._timeline.at(at_s, act)

    def send_to(self, process: SimulatedProcess, act: Callable[[], None]) -> None:
        """Send from the agent to a process, which may be held, or hear everything twice."""
        process.told_s = max(
            self._arrival_s(process.luck or self._stream),
            _after(process, process.told_s),
            process.held_until_s,
        )
        self._both(process, process.told_s, act)

    def send_from(self, process: SimulatedProcess, act: Callable[[], None]) -> None:
        """Send to the agent what a process says, or what the kernel says of it."""
        process.said_s = max(
            self._arrival_s(process.luck or self._stream),
            _after(process, process.said_s),
            process.mute_until_s,
        )
        self._both(process, process.said_s, act)

    def _arrival_s(self, draws: Draws) -> float:
        return self._timeline.now_s + draws.between(LEAST_S, self._most_s)

    def _both(self, process: SimulatedProcess, at_s: float, act: Callable[[], None]) -> None:
        self._timeline.at(at_s, act)
        if process.repeats_until_s > self._timeline.now_s:
            self._timeline.after(
                at_s - self._timeline.now_s + self._stream.pick((0.0, 0.05, AGAIN_S)), act
            )


def _after(process: SimulatedProcess, at_s: float) -> float:
    """Return the earliest time for the next word. It may not come before another's last word."""
    return at_s if process.luck is None else at_s + APART_S
