"""Rules for the way in which agents and the coordinator find ranks that hang."""

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
    """A report of a hang names the deadline that has passed.

    That is the deadline of the rank, or the silence of a plain script.
    """

    of = (HangReported, SilenceReported)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, SilenceReported) and (
            type(seen.silence_s) is not float or seen.silence_s != seen.is_s
        ):
            yield f"a plain script is reported to hang after a silence of {seen.silence_s!r} s"
        if isinstance(seen, HangReported):
            own = (
                seen.deadline_s >= limits.STEP_FLOOR_S if type(seen.deadline_s) is float else False
            )
            if not own or (seen.silence_s and seen.deadline_s != seen.silence_s):
                yield f"a rank is reported to hang after {seen.deadline_s!r} s"


class AllRanksAsked(Checker):
    """With several nodes, no agent reports a hang before the other agents were asked.

    Its rank may wait for a rank elsewhere. The exception is a rank that the kernel holds stopped.
    """

    of = (HangReported,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, HangReported) and seen.alone:
            yield "an agent reports that a rank hangs, but the others were not asked"


class LaggardAskedTwice(Checker):
    """A rank that seems to be behind its peers is asked again, because it may only be late."""

    of = (HangReported,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, HangReported) and seen.looks is not None and seen.looks < 2:
            yield "a rank is reported to be behind its peers, but it was not asked again"


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
                f"agents are asked {len(self._asked_s)} times within {ASKED_WITHIN_S:g} s, although"
                " nothing has moved"
            )


HANG_VERDICTS: tuple[type[Checker], ...] = (
    HangNamesDeadline,
    AllRanksAsked,
    LaggardAskedTwice,
    FewInquiries,
)
