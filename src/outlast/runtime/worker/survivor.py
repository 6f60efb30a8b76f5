"""From being cut short into the next generation: say what this rank holds, take back what does not
count, follow the plan.

*Forward*: the rank stands inside the optimizer hook, returns from it and applies; the plan is
followed after the commit. *Repeat*: the step is unwound, what it changed goes back, and the loop
yields the same step again.
"""

from __future__ import annotations

from outlast.errors import OutlastError, Reenter
from outlast.model.messages import Regroup
from outlast.model.terms import Cause
from outlast.model.texts import some
from outlast.runtime import clock
from outlast.runtime.worker import ddp
from outlast.runtime.worker.attach import Attachment
from outlast.runtime.worker.step import Step
from outlast.runtime.worker.vote_payload import VotePayload


class Survivor:
    """`plan` was given inside the hook, and is followed once the step is settled.

    `reentering`: Reenter was raised, whoever swallows it.
    """

    def __init__(self, attachment: Attachment, payload: VotePayload) -> None:
        self.in_flight: Step | None = None  # to be taken back if it is cut short
        self.plan: Regroup | None = None
        self.reentering = False
        self._member = attachment.member
        self._attachment = attachment
        self._payload = payload

    def take_back_what_followed(self, held: Step | None) -> None:
        """The loop's code behind an interrupted block runs, though the step is not committed: what
        it changed goes back before anything is given away.
        """
        if held is not None and held.left:
            self._tell_what_was_not_copied()
            self._attachment.state.roll_back()

    def take_plan(self) -> Regroup | None:
        """The plan that waited for the step, if there is one."""
        plan, self.plan = self.plan, None
        return plan

    def plan_after(self, error: BaseException) -> Regroup:
        """Stand still for `error`, unless it only says that the step is to be repeated: the plan is
        there already. One of usage ends the run.

        A step that failed while it was applied on the word of a plan is torn: that plan cannot be
        followed any more.
        """
        if isinstance(error, OutlastError):
            self._member.refuse(error)
        plan = self.take_plan()
        return (
            plan if plan is not None and plan.settle != "forward" else self._member.cut_short(error)
        )

    def follow(self, plan: Regroup) -> int:
        """Into the next generation; again and again if that fails too.

        The step to go on from. Raises Reenter where the plan says so.
        """
        session = self._member.session
        assert session is not None
        while True:
            try:
                self._settle(plan)
                self._attachment.mark("settled")
                self._attachment.follow(plan)
                return max(session.machine.committed, 0)
            except Reenter:
                self.reentering = True
                raise
            except Exception as error:  # boundary: another peer was lost meanwhile
                plan = self._member.lost_peer(error)

    def stand_and_donate(self, plan: Regroup) -> None:
        """The error left main's function: hand over what this rank holds before it is gone."""
        self._settle(plan)
        if plan.donate:
            self._attachment.donate(plan)

    def _settle(self, plan: Regroup) -> None:
        """Roll the step in flight back, if there is one. A forward step has been applied by now."""
        session = self._member.session
        assert session is not None
        self._payload.settle(plan)
        now_s = clock.now_s()
        step, self.in_flight = self.in_flight, None
        if step is None:
            session.book.roll_back(now_s=now_s, fault_s=None, detected_s=None, then=Cause.REGROUP)
            return
        self._payload.forget(step)
        for wrapped in self._attachment.replicas:
            ddp.leave_buckets(wrapped)
        self._take_back_edits()
        self._attachment.state.roll_back()
        session.book.roll_back(
            now_s=now_s, fault_s=plan.fault_s, detected_s=plan.detected_s, then=Cause.REGROUP
        )

    def _take_back_edits(self) -> None:
        """Undo what the optimizers did, and look for what the script did before."""
        self._attachment.look_for_edits("in front of the optimizer")
        if not self._attachment.undo.take_back():
            self._tell_what_was_not_copied()

    def _tell_what_was_not_copied(self) -> None:
        """Say so where the script has edited a parameter for the first time in the very step that
        is repeated.
        """
        uncopied, session = self._attachment.state.edits.uncopied, self._member.session
        if uncopied and session is not None:
            session.warn(
                f"{some(uncopied)} had been changed in the step that is repeated, and no copy was"
                " kept: not bit-exact from here on"
            )
