"""The rule for a node that loses its power.

No message reports the loss. The coordinator counts the node out as soon as its lease is over. It
does so sooner if the machine lives on and refuses connections to the launcher.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.sim.rules.checker import Checker
from outlast.sim.rules.final_observations import EventWritten, RunEnded
from outlast.sim.rules.observations import Observation, PowerLost

NOTICED_S = 1.0  # a timer may ring this late


class DeadNodeCountedOut(Checker):
    """A node without power is counted out in time, while the first coordinator of the run lives.

    A later coordinator does not know the leases that the first one granted.
    """

    of = (PowerLost, EventWritten, RunEnded)

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, PowerLost):
            self._due_s.setdefault(seen.node, self.now_s + seen.void_s + NOTICED_S)
        elif isinstance(seen, EventWritten) and seen.kind == "node_lost":
            due_s = self._due_s.pop(str(seen.data["node"]), self.now_s)
            if seen.epoch == 1 and self.now_s > due_s:
                yield f"node {seen.data['node']} is counted out {self.now_s - due_s:.3f} s too late"
        elif isinstance(seen, RunEnded) and "lose_coordinator" not in seen.kinds:
            for node, due_s in self._due_s.items():
                if self.now_s > due_s:
                    yield (
                        f"the run is over {self.now_s - due_s:.3f} s after node {node} had to be"
                        " counted out, but it was not"
                    )
