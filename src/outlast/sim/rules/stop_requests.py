"""Rules for requests to stop: the first one ends a run gently, and the second one at once."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.model import limits
from outlast.sim.rules.checker import Checker
from outlast.sim.rules.final_observations import RunEnded, TextShown
from outlast.sim.rules.observations import KillOrdered, Observation, StopAsked

AT_ONCE_S = 0.4  # in this time all processes are killed, and their ends are reported
HELD_UP = ("linger", "mute", "hold")  # with these faults it takes longer


class StopsSoftly(Checker):
    """At the first request, a run that is at work commits the step in flight, or sends SIGTERM.

    It kills no process during the grace period.
    """

    of = (StopAsked, TextShown, KillOrdered)

    def __init__(self) -> None:
        self._asked: StopAsked | None = None
        self._asked_s = 0.0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, StopAsked):
            self._asked, self._asked_s = (
                (None if seen.again or seen.nothing_yet else seen),
                self.now_s,
            )
        elif self._asked is None:
            return
        elif (
            isinstance(seen, TextShown)
            and seen.text.startswith("stopping: ")
            and ("SIGTERM" in seen.text) != self._asked.plain
        ):
            yield (
                f"people are told {seen.text!r}, but"
                f" {'it is not known that ' if self._asked.plain else ''}the script has steps"
            )
        elif (
            isinstance(seen, KillOrdered)
            and seen.unstruck
            and self.now_s - self._asked_s < limits.TERM_GRACE_S
        ):
            yield (
                f"worker {seen.worker} has to be killed {self.now_s - self._asked_s:.3f} s after"
                " the run was asked to end, but nothing has struck it"
            )


class StopsAtOnce(Checker):
    """At a second request, or before a step can be committed, a run ends at once.

    It kills all processes.
    """

    of = (StopAsked, RunEnded)

    def __init__(self) -> None:
        self._asked_s: float | None = None

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, StopAsked):
            if seen.single and (seen.again or seen.nothing_yet) and self._asked_s is None:
                self._asked_s = self.now_s
        elif (
            isinstance(seen, RunEnded)
            and self._asked_s is not None
            and not set(HELD_UP) & set(seen.kinds)
            and self.now_s - self._asked_s > AT_ONCE_S
        ):
            yield (
                f"the run is over {self.now_s - self._asked_s:.3f} s after it was asked to end at"
                f" once, but {AT_ONCE_S:g} s are enough"
            )


STOP_REQUESTS: tuple[type[Checker], ...] = (StopsSoftly, StopsAtOnce)
