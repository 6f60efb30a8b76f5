"""Rehearsals: steps and phases whose result is dropped, because the rank attaches after them.

A hot spare rehearses one step before it parks, so that its first real step is not slow. A process
that replaces a rank in place replays the last committed step, so that its script gets to the phase
in which the survivors wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.errors import Reenter
from outlast.model.messages import Regroup
from outlast.runtime.worker.steps.attach import Attachment
from outlast.runtime.worker.steps.batches import Batches
from outlast.runtime.worker.steps.step import Step


class Rehearsal:
    """Run steps and phases that do not count: without a vote, a log or a repeat.

    runs   True during a rehearsed step or phase
    """

    def __init__(self, attachment: Attachment, batches: Batches) -> None:
        self.runs = False
        self._member = attachment.member
        self._attachment = attachment
        self._batches = batches
        self._replaying = False
        # the phases after the replayed step that the other ranks have done
        self._phases_to_skip = 0
        # what `guards` had counted before: collectives, and the first line that needed a group
        self._before = (0, "")

    def of_spare(self) -> Iterator[Step]:
        """Yield one step on a process group of one, then wait for a rank.

        If the script reads its rank inside the step, it waits there instead.
        """
        yield from self._step(self._attachment.call.first)
        if self._member.is_spare:
            self._member.park()

    def replay(self, plan: Regroup) -> Iterator[Step]:
        """Yield the last committed step. It runs once more, and so do the phases that are done."""
        self._replaying, self._phases_to_skip = True, plan.phases
        yield from self._step(plan.step)
        self._replaying = False

    def ends_before_phase(self) -> bool:
        """Note that the script enters a phase during the rehearsal.

        If it is the first phase that the others have not done, end the rehearsal and return True.
        """
        if not self._replaying or self._member.is_spare:
            return False
        self._phases_to_skip -= 1
        if self._phases_to_skip >= 0:
            return False
        self._end()
        return True

    def swallows(self, error: BaseException | None) -> bool:
        """Return True if `error` is dropped, because it comes from a step that does not count."""
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
            return self._batches.fetch_for_rehearsal(number)
        except Exception:  # boundary: the real ranks will report what is wrong with the data
            if self._replaying:
                raise
            return None

    def _end(self) -> None:
        """End the rehearsal: after its block, or before a phase that follows it."""
        if self.runs:
            self.runs = self._member.script.in_body = False
            self._member.rehearse(False)
            guards = self._member.guards
            # collectives of the rehearsed block do not prevent this rank from going on in place
            guards.counted, guards.first_need = self._before
            self._batches.let_go()
            self._attachment.after_rehearsal()
