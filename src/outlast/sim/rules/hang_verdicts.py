"""Rules for how agents and the coordinator look for ranks that hang."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.model import limits
from outlast.sim.rules.checker import Checker
from outlast.sim.rules.observations import (
    AgentsAsked,
    HangReported,
    Observation,
    Planned,
    SilenceReported,
    StepDone,
    Stretch,
)

ASKED_WITHIN_S, ASKED_MOST = 2.0, 8


class HangNamesDeadline(Checker):
    """A report of a hang names the deadline that is over: the rank's own, or that of a plain
    script.
    """

    of = (HangReported, SilenceReported)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, SilenceReported) and (
            type(seen.silence_s) is not float or seen.silence_s != seen.is_s
        ):
            yield f"a plain script is said to hang after a silence of {seen.silence_s!r} s"
        if isinstance(seen, HangReported):
            own = (
                seen.deadline_s >= limits.STEP_FLOOR_S if type(seen.deadline_s) is float else False
            )
            if not own or (seen.silence_s and seen.deadline_s != seen.silence_s):
                yield f"a rank is said to have stood longer than {seen.deadline_s!r} s"


class AllRanksAsked(Checker):
    """With several nodes, no agent reports a hang by itself: its rank may wait for one elsewhere.

    The exception is a rank that the kernel holds stopped.
    """

    of = (HangReported,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, HangReported) and seen.alone:
            yield "an agent says that a rank hangs, and others were not asked"


class LaggardAskedTwice(Checker):
    """A rank that seems to be behind its peers is looked at once more.

    It may just have been late.
    """

    of = (HangReported,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, HangReported) and seen.looks is not None and seen.looks < 2:
            yield "a rank is said to have come less far than its peers, and nobody has looked again"


class FewInquiries(Checker):
    """While nothing moves, agents are not asked again and again."""

    of = (AgentsAsked, StepDone, Stretch, Planned)

    def __init__(self) -> None:
        self._asked_s: list[float] = []

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, AgentsAsked):
            self._asked_s.clear()
            return
        self._asked_s = [at_s for at_s in self._asked_s if at_s > self.now_s - ASKED_WITHIN_S] + [
            self.now_s
        ]
        if len(self._asked_s) > ASKED_MOST:
            yield (
                f"agents are asked {len(self._asked_s)} times within {ASKED_WITHIN_S:g} s, and"
                " nothing has moved"
            )


HANG_VERDICTS: tuple[type[Checker], ...] = (
    HangNamesDeadline,
    AllRanksAsked,
    LaggardAskedTwice,
    FewInquiries,
)
