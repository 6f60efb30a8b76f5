"""A step done for nothing: what it changes is overwritten when the rank attaches.

A hot spare does one before it parks, so that its first real step is not its first. A process that
replaces a rank in place does the last committed step, so that the script comes to the phases behind
it: the survivors wait in one of them, or before.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.errors import Reenter
from outlast.model.messages import Regroup
from outlast.runtime.worker.attach import Attachment
from outlast.runtime.worker.batches import Batches
from outlast.runtime.worker.step import Step


class Rehearsal:
    """`runs` while steps and phases are done for nothing: they are not voted on, not logged, and
    not repeated.
    """

    def __init__(self, attachment: Attachment, batches: Batches) -> None:
        self.runs = False
        self._member = attachment.member
        self._attachment = attachment
        self._batches = batches
        self._replaying = False
        self._phases_to_skip = 0  # of those behind the replayed step: done by the others
        self._before = (0, "")  # collectives counted, and the first need of a group

    def of_spare(self) -> Iterator[Step]:
        """The first step, on a group of one; then wait for a rank, if the script did not come to do
        so inside it.
        """
        yield from self._step(1)
        if self._member.is_spare:
            self._member.park()

    def replay(self, plan: Regroup) -> Iterator[Step]:
        """The last committed step, and the phases behind it that are done."""
        self._replaying, self._phases_to_skip = True, plan.phases
        yield from self._step(plan.step)
        self._replaying = False

    def ends_before_phase(self) -> bool:
        """A phase is entered while this runs.

        True: it is the first that the others have not done, and nothing is for nothing any more.
        """
        if not self._replaying or self._member.is_spare:
            return False
        self._phases_to_skip -= 1
        if self._phases_to_skip >= 0:
            return False
        self._end()
        return True

    def swallows(self, error: BaseException | None) -> bool:
        """What a rehearsed block or phase raises counts as little as what it computes."""
        return self.runs and not isinstance(error, (KeyboardInterrupt, SystemExit, Reenter))

    def _step(self, number: int) -> Iterator[Step]:
        self._member.solo_group()
        step = self._fetch(number)
        if step is not None:
            guards = self._member.guards
            self.runs, self._before = True, (guards.counted, guards.first_need)
            self._member.rehearse(True)
            yield step
        self._end()

    def _fetch(self, number: int) -> Step | None:
        try:
            return self._batches.fetch_for_nothing(number)
        except Exception:  # boundary: the real ranks will say what is wrong with the data
            if self._replaying:
                raise
            return None

    def _end(self) -> None:
        """Behind the block, or in front of a phase that follows it."""
        if self.runs:
            self.runs = self._member.in_body = False
            self._member.rehearse(False)
            guards = self._member.guards
            # the block's own collectives are no reason against going on in place
            guards.counted, guards.first_need = self._before
            self._batches.let_go()
            self._attachment.after_rehearsal()
