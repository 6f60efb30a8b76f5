"""Rules for the recovery from an interruption.

The cheapest rung is taken, and the record names the rung that is really carried out.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.model.terms import Rung
from outlast.sim.rules.checker import Checker
from outlast.sim.rules.final_observations import RecoveryChosen
from outlast.sim.rules.observations import Observation, Planned, StepDone, Stretch

IN_PROCESS = ("in_place", "reenter", "sharded")  # modes in which survivors keep their processes


class RungAsRecorded(Checker):
    """The rung in the record is the one that is carried out."""

    of = (RecoveryChosen,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, RecoveryChosen):
            return
        if (expected := _done(seen)) and seen.rung not in expected:
            yield (
                f"an interruption is answered by {seen.rung}, but carried out is"
                f" {' or '.join(expected)}: {seen.reason}"
            )


def _done(seen: RecoveryChosen) -> tuple[str, ...]:
    """Return the rungs that describe this recovery; empty if every process is started again."""
    if not seen.moves:
        return ()
    if seen.forked:
        return (Rung.RESPAWN.value,)
    if seen.taken:
        return (Rung.SPARE.value,)
    return (
        (Rung.REENTER.value,)
        if seen.reentered or (seen.begun and not seen.kept)
        else (Rung.REPEAT.value,)
    )


class CheapestRung(Checker):
    """The first fault after a committed step is answered by the cheapest rung that is possible."""

    of = (Planned, StepDone, Stretch, RecoveryChosen)

    def __init__(self) -> None:
        self._newest, self._plans = 0, 0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, (StepDone, Stretch)):
            if seen.step > self._newest:
                self._newest, self._plans = seen.step, 0
        elif isinstance(seen, Planned):
            self._plans += 1
        elif (
            isinstance(seen, RecoveryChosen)
            and self._newest
            and not self._plans
            and not seen.over
            and not seen.stop_asked
            and seen.rung != Rung.STOP.value
        ):
            yield from self._judge(seen)

    def _judge(self, seen: RecoveryChosen) -> Iterator[str]:
        if not seen.moves:
            if seen.recovery_mode in IN_PROCESS and seen.there and seen.held:
                yield (f"ranks {list(seen.there)} could go on, but all restart: {seen.reason}")
            return
        if len(seen.there) == seen.ranks and not seen.apart and (seen.taken or seen.forked):
            yield (
                f"every process lives, but ranks {[*seen.taken, *seen.forked]} are replaced:"
                f" {seen.reason}"
            )
        if seen.forked and seen.ready:
            yield (
                f"ranks {list(seen.forked)} are forked, but {seen.ready} spares are parked:"
                f" {seen.reason}"
            )


RECOVERY_ANSWERS: tuple[type[Checker], ...] = (RungAsRecorded, CheapestRung)
