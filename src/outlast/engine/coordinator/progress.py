"""How far a run has come, by what workers, agents and the dead have said.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from outlast.model.messages import Progress as AgentProgress


class Reached(NamedTuple):
    """The newest step that was committed, and the newest that was executed."""

    committed: int
    executed: int


class Progress:
    """The steps of one run, as far as the coordinator knows them.

    `step` and `executed` only grow: they are the newest step ever committed and ever executed, and
    a step that is executed again books as repeated work. `since_plan` begins again with each plan.
    The steps in it that the next plan undoes are what that recovery costs.

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
        self._oldest: dict[str, int] = {}  # node -> the step that all its ranks have come to

    def note(self, committed: int, executed: int) -> None:
        """Take in a report of the whole run: these steps were committed and executed."""
        self.step, self.executed = max(self.step, committed), max(self.executed, executed)
        if self.generation_live:
            known = self.since_plan
            self.since_plan = Reached(max(known[0], committed), max(known[1], executed))

    def note_of_rank(self, committed: int, executed: int, *, sharded: bool) -> None:
        """Take in a report of one rank.

        Replicated state is committed once one rank has committed it. Sharded state is committed
        once all owners have sealed it, so one rank's word says nothing of commits there.
        """
        self.note(0 if sharded else committed, executed)

    def note_commit(self, step: int, *, sharded: bool) -> None:
        """Take in that members of this generation committed `step`."""
        self.generation_live = True
        self.note_of_rank(step, step, sharded=sharded)

    def note_report(
        self,
        report: AgentProgress,
        node: str,
        *,
        sharded: bool,
        training_on: Collection[str] | None,
    ) -> None:
        """Take in what the beacons on `node` show.

        Under sharded state a step is committed once all owners have committed it, so the slowest
        rank of all nodes counts. It counts only in training: without the beacon of a dead owner,
        those of the others do not tell.

        training_on   the nodes of all ranks, or None while the run is not training
        """
        committed = report.newest
        if sharded:
            self._oldest[node] = report.oldest
            homes = () if training_on is None else training_on
            committed = min((self._oldest.get(home, 0) for home in homes), default=0)
        self.note(committed, report.newest)
        self.moved_s = report.at_s

    def has_trained(self) -> bool:
        """Note that this run has committed a step, by its own members.

        Return whether it is the first one that is noted.
        """
        first, self.trained = not self.trained, True
        return first

    def begin(self, step: int) -> None:
        """Begin a generation that goes on from `step`."""
        self.planned, self.since_plan, self.generation_live = step, Reached(step, step), False

    def goes_on_from(self, step: int) -> None:
        """Note that the newest plan of the coordinator before this one goes on from `step`."""
        self.planned = step

    def begin_again(self, step: int) -> None:
        """Begin again from `step` with all ranks: later steps are not committed any more."""
        self.step = step

    def is_live(self, live: bool) -> None:
        """Set whether all members have been in the present generation."""
        self.generation_live = live
