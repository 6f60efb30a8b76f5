"""`StepProgress`: the newest steps of a run, as workers and agents have reported them.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from outlast.model.messages import Progress


class Reached(NamedTuple):
    """The newest step that was committed, and the newest that was executed."""

    committed: int
    executed: int


class StepProgress:
    """The steps of one run, as far as the coordinator knows them.

    step         the newest step that was ever committed
    executed     the newest step that was ever executed; executing a step again is repeated work
    since_plan   the newest steps since the newest plan. If the next plan goes back behind them,
                 they are the cost of that recovery

    While `generation_live` is False, workers may still report steps that the newest plan has
    undone. Such reports count for `step` and `executed`, but not for `since_plan`.
    """

    def __init__(self, *, step: int) -> None:
        self.step = step
        self.executed = step
        self.since_plan = Reached(step, step)
        self.planned = step  # the step that the newest plan goes on from
        self.generation_live = False  # all members have been in the present generation
        self.trained = False  # this run has committed a step
        self.moved_s: float | None = None  # when an agent last saw a step committed
        self._oldest: dict[str, int] = {}  # node -> the step that all its ranks have reached

    def note(self, committed: int, executed: int) -> None:
        """Note the newest steps that the run has committed and executed."""
        self.step, self.executed = max(self.step, committed), max(self.executed, executed)
        if self.generation_live:
            known = self.since_plan
            self.since_plan = Reached(max(known[0], committed), max(known[1], executed))

    def note_of_rank(self, committed: int, executed: int, *, sharded: bool) -> None:
        """Note the newest steps that one rank has committed and executed.

        Under replicated state one rank's commit counts for all. Under sharded state a step is
        committed once all owners have sealed it, so the commit of one rank does not count.
        """
        self.note(0 if sharded else committed, executed)

    def note_commit(self, step: int, *, sharded: bool) -> None:
        """Note that members of this generation have committed `step`."""
        self.generation_live = True
        self.note_of_rank(step, step, sharded=sharded)

    def note_report(
        self,
        report: Progress,
        node: str,
        *,
        sharded: bool,
        training_on: Collection[str] | None,
    ) -> None:
        """Note what the beacons on `node` show.

        Under sharded state a step is committed once all owners have committed it, so the slowest
        rank of all nodes counts. This is used only in training, because a dead owner has no beacon,
        and the others do not show how far it had come.

        training_on   the nodes of all ranks, or None while the run is not training
        """
        committed = report.newest
        if sharded:
            self._oldest[node] = report.oldest
            homes = () if training_on is None else training_on
            committed = min((self._oldest.get(home, 0) for home in homes), default=0)
        self.note(committed, report.newest)
        self.moved_s = report.at_s

    @property
    def decided(self) -> int:
        """Return the newest step that must not be undone: the newest plan's, or one committed
        since.
        """
        return max(self.planned, self.since_plan.committed)

    def note_trained(self) -> bool:
        """Note that this run has committed a step. Return True at the first call."""
        first, self.trained = not self.trained, True
        return first

    def begin(self, step: int) -> None:
        """Begin a generation that goes on from `step`."""
        self.planned, self.since_plan, self.generation_live = step, Reached(step, step), False

    def note_plan_start(self, step: int) -> None:
        """Note that the newest plan of the coordinator before this one goes on from `step`."""
        self.planned = step

    def begin_again(self, step: int) -> None:
        """Note that all ranks restart from `step`: later steps are not committed any more."""
        self.step = step

    def set_generation_live(self, live: bool) -> None:
        """Set whether all members have been in the present generation."""
        self.generation_live = live
