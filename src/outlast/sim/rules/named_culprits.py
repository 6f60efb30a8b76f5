"""Rules for blame: the rank that the ledger names was struck, and by what the ledger says."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.model import limits
from outlast.sim.rules.checker import Checker
from outlast.sim.rules.final_observations import CulpritsAtEnd, RunEnded
from outlast.sim.rules.observations import (
    Observation,
    StoppedProcessWentOn,
)

# what a fault may be called; a process that reported a lost peer, and then ends, may end for that
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


NOTICED_S = 0.5  # a verdict on a process reaches it this long after it is due


class NoFalseAlarm(Checker):
    """No fault is booked without a strike. A run that is struck once is no crash loop."""

    of = (RunEnded,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RunEnded) and seen.interruptions > seen.strikes:
            yield (
                f"{seen.interruptions} interruptions, and {seen.strikes} times something was struck"
            )


class OnlyStruckBlamed(Checker):
    """An interruption names processes that were struck, and no others.

    Of a plain script, which fails with its peers, nobody can say which came first.
    """

    of = (RunEnded,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, RunEnded)
            and not seen.plain
            and (innocent := set(seen.blamed) - set(seen.struck))
        ):
            yield f"processes {sorted(innocent)} are blamed, and {list(seen.struck)} were struck"


class MechanismFitsFault(Checker):
    """An interruption gets the name of the fault that struck."""

    of = (CulpritsAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, CulpritsAtEnd)
            and seen.kinds
            and seen.mechanism
            not in {name for kind in seen.kinds for name in MECHANISMS.get(kind, ())}
        ):
            yield (
                f"interruption {seen.id} is called {seen.mechanism}, and its processes were struck"
                f" by {', '.join(seen.kinds)}"
            )


class TimesWithinRun(Checker):
    """An interruption is within the run, by any of the clocks."""

    of = (CulpritsAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, CulpritsAtEnd) and any(
            not -seen.unsure_s <= at_s <= seen.over_s + seen.unsure_s for at_s in seen.times_s
        ):
            yield (
                f"interruption {seen.id} has times {[round(at_s, 3) for at_s in seen.times_s]}, and"
                f" the run took {seen.over_s:.3f} s"
            )


class StoppedProcessEnded(Checker):
    """A process that the kernel holds stopped is ended once its grace is over.

    Its peers do not wait for ordinary deadlines. In a run that is asked to end, no peer waits. A
    process that is sent SIGTERM then has been promised a grace, stopped or not: it may go on and
    save its state. So the time that it was stopped before counts, and the longer grace from then
    on.
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
                " and nobody has ended it"
            )
