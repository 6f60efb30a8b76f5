"""Ways for messages: in order for what one process says or is told, while others may overtake it by up to the latency."""

from __future__ import annotations

from collections.abc import Callable

from outlast.sim.draws import Stream
from outlast.sim.processes import Process
from outlast.sim.timeline import Timeline

LEAST_S = 0.0001
AGAIN_S = 0.5  # a message that comes twice comes again after up to so long: generations may lie between


class Links:
    """`latency_s`: a message takes up to so long. A process that was held or muted is heard in its order all the same."""

    def __init__(self, timeline: Timeline, stream: Stream, *, latency_s: float) -> None:
        self._timeline = timeline
        self._stream = stream
        self._most_s = max(latency_s, LEAST_S)
        self._arrives_s: dict[tuple[str, int], float] = {}  # the newest message of each way

    def send(self, way: str, worker: int, act: Callable[[], None]) -> None:
        """Between coordinator and agent. `way` and `worker` name whose order is kept."""
        self._timeline.after(self._arrival_s(way, worker) - self._timeline.now_s, act)

    def send_to(self, process: Process, act: Callable[[], None]) -> None:
        """From the agent to a process, which may be held, or hear everything twice."""
        self._both(process, self._arrival_s("to worker", process.worker, process.held_until_s), act)

    def send_from(self, process: Process, act: Callable[[], None]) -> None:
        """From a process, or from the kernel about it, to the agent."""
        self._both(process, self._arrival_s("from worker", process.worker, process.mute_until_s), act)

    def _arrival_s(self, way: str, worker: int, not_before_s: float = 0.0) -> float:
        taken_s = self._timeline.now_s + self._stream.between(LEAST_S, self._most_s)
        at_s = self._arrives_s[way, worker] = max(taken_s, self._arrives_s.get((way, worker), 0.0), not_before_s)
        return at_s

    def _both(self, process: Process, at_s: float, act: Callable[[], None]) -> None:
        self._timeline.after(at_s - self._timeline.now_s, act)
        if process.repeats_until_s > self._timeline.now_s:
            self._timeline.after(at_s - self._timeline.now_s + self._stream.pick((0.0, 0.05, AGAIN_S)), act)
