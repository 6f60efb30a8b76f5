"""Rules for how an interruption is answered: by the cheapest rung that there is, and what is
written down of it is what is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from outlast.model.terms import Rung
from outlast.sim.rules.checker import Checker
from outlast.sim.rules.observations import Answered, Observation, Planned, StepDone, Stretch

IN_PROCESS = ("in_place", "reenter", "sharded")  # ways in which survivors keep their processes
SAID: Mapping[str, Callable[[Answered], bool]] = {  # words of a reason -> what has to be so
    "every process lives: the step is repeated in place": lambda one: (
        not one.taken and not one.forked and not one.reentered
    ),
    "every process lives: all enter main's function again": lambda one: (
        not one.taken and not one.forked
    ),
    "are taken by spares": lambda one: bool(one.taken) and not one.forked,
    "are forked from the zygote": lambda one: bool(one.forked),
    "or taken by spares": lambda one: bool(one.taken),
    "forked from the zygote;": lambda one: not one.taken,
    "; survivors repeat the step in place": lambda one: not one.reentered,
    "; survivors enter main's function again": lambda one: not one.kept,
    "has made no outlast call": lambda one: one.way == "plain" or not one.there,
    "no live or sealed state is left": lambda one: one.way != "plain" and not one.moves,
    "no process is left": lambda one: not one.there or one.apart,
    "the step fails again and again": lambda one: (
        one.way == "in_place" and len(one.there) == one.ranks
    ),
    "made collectives of its own before run.steps": lambda one: (
        one.way in ("respawn", "reenter", "sharded")
    ),  # main's function may be entered only at the end of one's own
    "no process stands in a step": lambda one: one.over or not one.there or one.way != "in_place",
    "last error:": lambda one: one.error,
    "no rank that holds the replicated state is alive": lambda one: (
        not one.there or one.over or one.apart
    ),
}
# the same, of the step that the words name
OF_STEP: Mapping[str, Callable[[Answered, int], bool]] = {
    r"step (\d+) is committed on a live rank": lambda one, step: step in one.at or one.over,
    r"step (\d+) was seen to pass its vote by a live rank": lambda one, step: (
        step in one.passed and step not in one.at
    ),
    r"step (\d+) is what the last plan said": lambda one, step: step not in one.at | one.passed,
    r"all ranks, the dead included, had sealed step (\d+) as prepared": lambda one, step: (
        step in one.sealed and step not in one.at | one.passed
    ),
    r"no live rank can reach step (\d+)": lambda one, step: step not in one.at or one.over,
    r"step (\d+) is the newest snapshot that all \d+ owners sealed": lambda one, step: (
        step in one.sealed
    ),
}
ANEW = {  # words of a reason -> what it is called that all come anew
    "has made no outlast call": Rung.RESTART,
    "no live or sealed state is left": Rung.RESTART,
    "the step fails again and again": Rung.RESTART,
    "no process stands in a step": Rung.RESPAWN,
    "made collectives of its own before run.steps": Rung.RESPAWN,
}


class RightRung(Checker):
    """The rung that is written down is what is done."""

    of = (Answered,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, Answered):
            return
        if (expected := _done(seen)) and seen.rung not in expected:
            yield (
                f"an interruption is answered by {seen.rung}, and what is done is"
                f" {' or '.join(expected)}: {seen.reason}"
            )
        if seen.rung != Rung.STOP.value and not any(words in seen.reason for words in SAID):
            yield (
                f"an interruption is answered by {seen.rung}, and it is not said why: {seen.reason}"
            )
        for words, is_so in SAID.items():
            if words in seen.reason and not is_so(seen):
                yield f"it is said that {words!r}, and that is not so"
        if not seen.apart and (
            named := re.search(
                r"no snapshot was sealed by all owners(?: \(none at all from ranks \[([\d,"
                r" ]+)\]\))?",
                seen.reason,
            )
        ):
            ranks = [int(rank) for rank in (named[1] or "").split(",") if rank]
            if ranks != list(seen.bare):
                yield (
                    f"it is said that {named[0]!r}, and nothing lies in the slots of ranks"
                    f" {list(seen.bare)}"
                )
        for pattern, of_step in OF_STEP.items() if not seen.apart else ():
            if (said := re.search(pattern, seen.reason)) and not of_step(seen, int(said[1])):
                yield f"it is said that {said[0]!r}, and that is not so"


def _done(seen: Answered) -> tuple[str, ...]:
    """The rungs that this may be called."""
    if not seen.moves:
        return next(((rung.value,) for words, rung in ANEW.items() if words in seen.reason), ())
    if seen.forked:
        return (Rung.RESPAWN.value,)
    if seen.taken:
        return (Rung.SPARE.value,)
    return (
        (Rung.REENTER.value,)
        if seen.reentered or (seen.begun and not seen.kept)
        else (Rung.REPEAT.value,)
    )


class NoDearer(Checker):
    """The first time that anything happens after a step was committed, it is answered by the
    cheapest rung that there is.
    """

    of = (Planned, StepDone, Stretch, Answered)

    def __init__(self) -> None:
        self._newest, self._plans = 0, 0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, (StepDone, Stretch)):
            if seen.step > self._newest:
                self._newest, self._plans = seen.step, 0
        elif isinstance(seen, Planned):
            self._plans += 1
        elif (
            isinstance(seen, Answered)
            and self._newest
            and not self._plans
            and not seen.over
            and not seen.stop_asked
            and seen.rung != Rung.STOP.value
        ):
            yield from self._judge(seen)

    def _judge(self, seen: Answered) -> Iterator[str]:
        if not seen.moves:
            if seen.way in IN_PROCESS and seen.there and seen.held:
                yield (
                    f"ranks {list(seen.there)} stand ready to go on, and all come anew:"
                    f" {seen.reason}"
                )
            return
        if len(seen.there) == seen.ranks and not seen.apart and (seen.taken or seen.forked):
            yield (
                f"every process lives, and ranks {[*seen.taken, *seen.forked]} are replaced:"
                f" {seen.reason}"
            )
        if seen.forked and seen.ready:
            yield (
                f"ranks {list(seen.forked)} are forked, and {seen.ready} spares stand ready:"
                f" {seen.reason}"
            )


RECOVERY_ANSWERS: tuple[type[Checker], ...] = (RightRung, NoDearer)
