"""A step whose result is not kept: what it changes is overwritten when the rank attaches.

A hot spare rehearses one step before it parks, so that its first real step is not slow. A process
that replaces a rank in place runs the last committed step, so that the script gets to the phases
after that step. The survivors wait in one of those phases, or in front of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.errors import Reenter
from outlast.model.messages import Regroup
from outlast.runtime.worker.attach import Attachment
from outlast.runtime.worker.batches import Batches
from outlast.runtime.worker.step import Step


class Rehearsal:
    """Run steps and phases that do not count: they have no vote, no log and no repeat.

    runs   True while such a step or phase is in hand
    """

    def __init__(self, attachment: Attachment, batches: Batches) -> None:
        self.runs = False
        self._member = attachment.member
        self._attachment = attachment
        self._batches = batches
        self._replaying = False
        self._phases_to_skip = 0  # of those after the replayed step: done by the others
        self._before = (0, "")  # collectives counted, and the first need of a group

    def of_spare(self) -> Iterator[Step]:
        """Give out the first step on a group of one, then wait for a rank.

        A script that asks for its rank inside the step waits there instead.
        """
        yield from self._step(self._attachment.call.first)
        if self._member.is_spare:
            self._member.park()

    def replay(self, plan: Regroup) -> Iterator[Step]:
        """Give out the last committed step. The phases after it that are done run for nothing."""
        self._replaying, self._phases_to_skip = True, plan.phases
        yield from self._step(plan.step)
        self._replaying = False

    def ends_before_phase(self) -> bool:
        """Note that a phase is entered while this runs.

        Return True, and end the rehearsal, if it is the first phase that the others have not done.
        """
        if not self._replaying or self._member.is_spare:
            return False
        self._phases_to_skip -= 1
        if self._phases_to_skip >= 0:
            return False
        self._end()
        return True

    def swallows(self, error: BaseException | None) -> bool:
        """Return True if `error` is dropped: it comes from code that does not count."""
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
        """End the rehearsal: after its block, or before a phase that follows it."""
        if self.runs:
            self.runs = self._member.script.in_body = False
            self._member.rehearse(False)
            guards = self._member.guards
            # the block's own collectives are no reason against going on in place
            guards.counted, guards.first_need = self._before
            self._batches.let_go()
            self._attachment.after_rehearsal()
