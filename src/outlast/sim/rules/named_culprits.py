"""Rules for blame: the ledger names ranks that were struck, and the kind of fault that did it."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.model import limits
from outlast.sim.rules.checker import Checker
from outlast.sim.rules.final_observations import CulpritsAtEnd, RunEnded
from outlast.sim.rules.observations import (
    Observation,
    StoppedProcessWentOn,
)

# The kinds of faults behind each mechanism. A process that reported a lost peer may end because of
# that loss.
MECHANISMS = {
    "kill": ("signal",),
    "exit": ("exit", "lost_contact"),
    "raise": ("exception",),
    "refuse": ("exception",),
    "stop": ("hang",),
    "deaf": ("hang",),
    "hang": ("hang",),
    "hold": ("hang",),
    "mute": ("hang",),
    "starve": ("hang",),
    "corrupt_disk": ("exception",),
    **dict.fromkeys(
        ("lose_node", "cut", "lag", "freeze", "stop of an agent", "lose_coordinator"),
        ("lost_node", "hang", "lost_contact", "signal"),
    ),
}


NOTICED_S = 0.5  # a process is ended at most this long after a verdict on it is due


class NoFalseAlarm(Checker):
    """No interruption is booked without a strike. A run that is struck once is not a crash loop."""

    of = (RunEnded,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RunEnded) and seen.interruptions > seen.strikes:
            yield (f"there are {seen.interruptions} interruptions, but only {seen.strikes} strikes")


class OnlyStruckBlamed(Checker):
    """An interruption names only processes that were struck.

    The processes of a plain script fail together, so it is not known which failed first.
    """

    of = (RunEnded,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, RunEnded)
            and not seen.plain
            and (innocent := set(seen.blamed) - set(seen.struck))
        ):
            yield f"processes {sorted(innocent)} are blamed, but {list(seen.struck)} were struck"


class MechanismFitsFault(Checker):
    """The mechanism of an interruption fits the fault that struck."""

    of = (CulpritsAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, CulpritsAtEnd)
            and seen.kinds
            and seen.mechanism
            not in {name for kind in seen.kinds for name in MECHANISMS.get(kind, ())}
        ):
            yield (
                f"interruption {seen.id} has the mechanism {seen.mechanism}, but its processes were"
                f" struck by {', '.join(seen.kinds)}"
            )


class TimesWithinRun(Checker):
    """The times of an interruption are within the run, by any of the clocks."""

    of = (CulpritsAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, CulpritsAtEnd) and any(
            not -seen.unsure_s <= at_s <= seen.over_s + seen.unsure_s for at_s in seen.times_s
        ):
            yield (
                f"interruption {seen.id} has times {[round(at_s, 3) for at_s in seen.times_s]}, but"
                f" the run took {seen.over_s:.3f} s"
            )


class StoppedProcessEnded(Checker):
    """A process that the kernel holds stopped is ended when its grace is over.

    So its peers do not have to wait for ordinary deadlines. In a run that has to end, no peer
    waits. A process that is sent SIGTERM then has a longer grace from that time on, even if it is
    stopped, because it may go on and save its state. The time for which it was stopped before
    counts for the shorter grace.
    """

    of = (StoppedProcessWentOn,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, StoppedProcessWentOn):
            return
        if (
            seen.stopped_s - seen.asked_s > limits.STOPPED_FLOOR_S + NOTICED_S
            or seen.asked_s > limits.TERM_GRACE_S + NOTICED_S
        ):
            yield (
                f"worker {seen.worker} (rank {seen.rank}) was stopped for {seen.stopped_s:.3f} s,"
                " but it was not ended"
            )
