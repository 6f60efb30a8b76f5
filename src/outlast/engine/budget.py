"""Budgets of failures that refill with progress.

A run that makes progress may fail often. A run without progress may not, so that it ends.

Units: steps and counts. This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from outlast.model import limits


@dataclass(slots=True)
class Budget:
    """A budget of failures that refills with progress.

    It holds `capacity` tokens, and every `refill_steps` newly committed steps give one back. With 0
    refill steps, each newly committed step gives all of them back.
    """

    capacity: int
    refill_steps: int
    spent: list[int] = field(default_factory=list)  # the step at which each missing token was taken
    error: tuple[int, str] = (-1, "")  # for `repeats_reason`: a step, and the error after it

    def left(self, *, step: int) -> int:
        """Return the tokens in stock when `step` is the newest committed step.

        Steps committed twice count once.
        """
        self._refill(step)
        return self.capacity - len(self.spent)

    def take(self, *, step: int) -> bool:
        """Take one token. Return False, and take nothing, if there is none."""
        if self.left(step=step) <= 0:
            return False
        self.spent.append(step)
        return True

    def repeats_reason(self, *, step: int, error: str) -> bool:
        """Remember the error for which a token is wanted. Return True if it was the same before."""
        before, self.error = self.error, (step, error)
        return before == self.error

    def copy(self) -> Budget:
        """Return a budget that can be spent without this one."""
        return replace(self, spent=list(self.spent))

    def _refill(self, step: int) -> None:
        if self.refill_steps == 0:
            self.spent = [taken for taken in self.spent if taken >= step]
            return
        while self.spent and step - self.spent[0] >= self.refill_steps:
            oldest = self.spent.pop(0)
            if self.spent:
                self.spent[0] = max(self.spent[0], oldest + self.refill_steps)


@dataclass(slots=True)
class Budgets:
    """One budget for each costly rung, and counts of interruptions to detect a crash loop.

    A script that fails by its own fault fails at the same step. So interruptions are counted by the
    step that was executed last (`at_step`), and also since the last progress (`since_step`).
    Progress is a step that was never committed before.

    A kill from outside comes at any step, and says nothing about the script. Such *strikes* are
    counted separately. They end a run only if it makes no progress for long.

    at_step         interruptions after the same executed step as the newest one, without strikes
    since_step      interruptions since the last progress, without strikes
    strikes         kills from outside since the last progress
    stands_since_s  when the first interruption since the last progress was decided, of either kind
    restarts_paid   restarts after strikes are charged too, because the user has named a number
    """

    respawns: Budget
    restarts: Budget
    step: int = -1  # newest that was committed when an interruption came
    at_step: int = 0
    since_step: int = 0
    repeats: int = 0
    strikes: int = 0
    stands_since_s: float = 0.0
    restarts_paid: bool = False
    # the newest executed step -> how many interruptions came after it
    _places: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Budgets:
        """Return budgets that can be spent without these."""
        places = dict(self._places)
        return replace(
            self, respawns=self.respawns.copy(), restarts=self.restarts.copy(), _places=places
        )

    def note_fault(
        self, *, step: int, reached: int, outside: bool = False, now_s: float = 0.0
    ) -> int:
        """Count one more interruption. Return how many came after `reached`, without strikes.

        step      the newest committed step
        reached   the newest step executed since the last interruption; if none, the step from
                  which the run went on
        outside   it is a kill from outside
        """
        if step > self.step:
            self.step, self.since_step, self.repeats, self.strikes = step, 0, 0, 0
            self._places.clear()
        if not self.since_step + self.strikes:
            self.stands_since_s = now_s
        if outside:
            self.strikes += 1
            self.at_step = self._places.get(reached, 0)
            return self.at_step
        self._places = {place: count for place, count in self._places.items() if place >= reached}
        self.since_step += 1
        self.at_step = self._places[reached] = self._places.get(reached, 0) + 1
        return self.at_step

    def take_repeat(self) -> bool:
        """Take one more repeat in place. Return False if that has been tried often enough."""
        if self.repeats >= limits.REPEATS_PER_STEP_COUNT:
            return False
        self.repeats += 1
        return True


def default_budgets(max_restarts: int | None) -> Budgets:
    """Return the budgets of a run.

    `max_restarts` is torchrun's flag: when given, it is the number of whole restarts without
    progress.
    """
    restarts = limits.RESTARTS_COUNT if max_restarts is None else max_restarts
    return Budgets(
        respawns=Budget(limits.RESPAWNS_COUNT, limits.RESPAWN_REFILL_STEPS),
        restarts=Budget(restarts, limits.REFILL_STEPS),
        restarts_paid=max_restarts is not None,
    )
