"""The block of a step, `with step:`, from its first line to the verdict: may it be committed?

The hook in front of the first optimizer call prepares and votes. A block that calls no optimizer
votes at its end. A step that keeps an undo copy votes later still, when the next step or a phase is
asked for (`vote`, see undo.py). What the block swallowed though it was not for it counts against
the step all the same.
"""

from __future__ import annotations

import contextlib

from outlast.engine.commit.image_place import PREPARED, Place
from outlast.errors import OutlastError, StepInterrupted, TransactionError
from outlast.model.terms import Phase
from outlast.runtime.worker.attach import Attachment
from outlast.runtime.worker.exits import BackwardExits
from outlast.runtime.worker.hooks import OptimizerHooks
from outlast.runtime.worker.step import Step
from outlast.runtime.worker.survivor import Survivor
from outlast.runtime.worker.vote_payload import VotePayload


class Block:
    """One for all steps. `current` is the step whose block runs."""

    def __init__(self, attachment: Attachment, payload: VotePayload, survivor: Survivor) -> None:
        self.current: Step | None = None
        self._member = attachment.member
        self._attachment = attachment
        self._payload = payload
        self._survivor = survivor
        self._hooks = OptimizerHooks(
            attachment.state.optimizers.values(), attachment.state.scalers.values(),
            before_first=self._before_optimizer, after_undo=self._backward_after_optimizer,
        )  # fmt: skip
        parameters = () if attachment.state.sharded else attachment.state.parameters.values()
        self._exits = BackwardExits(
            parameters, over=lambda: self._member.in_body and self._member.broken
        )
        self._watch = contextlib.ExitStack()
        self._counts = False  # there is a launcher, and the step is not done for nothing
        self._passed = False
        self._unseen = 0  # collectives of the tail that could not be refused

    def begin(self, step: Step, *, for_nothing: bool) -> None:
        self.current, step.entered = step, True
        self._passed = False
        self._hooks.begin()
        session = self._member.session
        self._counts = session is not None and not for_nothing
        if self._counts and self._attachment.first_step:
            self._attachment.watch(self._watch)
        if session is not None:
            self._exits.install()
            session.enter(Phase.BODY)
            self._member.in_body = True

    def end(self, step: Step) -> None:
        self._member.in_body = False
        self._unseen = self._member.guards.local_only(False)
        self._hooks.end()
        self._watch.close()
        self.current, step.left = None, True

    def objection(self, step: Step) -> BaseException | None:
        """Say why a block that ended without an error cannot be committed all the same.

        Votes if that is due by now.
        """
        if (swallowed := self._swallowed()) is not None:
            return swallowed
        if not self._passed and not self._attachment.undo.on:
            try:
                self.vote(step, Place(PREPARED, 0))
            except StepInterrupted as interrupted:
                return interrupted
        if self._unseen:
            what = f"{self._unseen} collectives ran after {self._hooks.first_line}"
            return TransactionError(
                what, hint="nothing that communicates may follow the optimizer in a step"
            )
        return None

    def remove_hooks(self) -> None:
        """Let go of the optimizers until the next `begin`."""
        self._hooks.remove()
        self._exits.remove()

    def _swallowed(self) -> BaseException | None:
        """What the block caught though it was not for it: a step that was refused or interrupted is
        not committed behind that.
        """
        refused = self._hooks.refused or self._member.guards.refused
        if refused is not None or self._passed:
            return refused
        if self._hooks.lost is not None:  # in backward: the gradients are torn
            return self._hooks.lost
        return StepInterrupted() if self._member.broken or self._survivor.plan is not None else None

    # --- called by the hooks ----------------------------------------------------------------------

    def _before_optimizer(self) -> None:
        """In front of the first optimizer call of a block. Raises where it must not run."""
        if not self._counts:
            return
        session, undo = self._member.session, self._attachment.undo
        assert session is not None
        assert self.current is not None
        self._member.in_body = False
        if (swallowed := self._swallowed()) is not None:
            raise swallowed
        self._attachment.look_for_edits("in front of the optimizer")
        if undo.on:
            self._attachment.images.note_private()
        else:
            self.vote(self.current, Place(PREPARED, 0))
        session.enter(Phase.APPLY, learn=undo.on)
        if not undo.goes_on:
            self._member.guards.local_only(True, since=self._hooks.first_line)

    def _backward_after_optimizer(self) -> None:
        self._member.guards.local_only(False)
        if self._counts:
            self._attachment.undo.want_for_backward(self._hooks.first_line)

    # --- the vote ---------------------------------------------------------------------------------

    def vote(self, step: Step, place: Place) -> None:
        """Prepare and vote; the script is at `place`.

        Returns when the step may be committed; raises StepInterrupted when it is to be repeated.
        """
        session = self._member.session
        assert session is not None
        try:
            self._attachment.images.prepare(step.number, place)
            session.mark("prepared", step.number)
            # else it comes from the script's own code between two steps
            session.enter(Phase.VOTE, learn=place.kind == PREPARED)
            session.mark("voting", step.number)
            outcome = self._payload.cast(step)
            if not outcome.same_watched:
                self._attachment.agreement.find_divergence(step.number)
        except OutlastError as error:
            self._member.refuse(error)
        except Exception as error:  # boundary: a peer was lost during the vote; every other error of it is a bug and shows as a crash loop
            self._survivor.plan = self._member.cut_short(error, in_hook=True)
            if self._survivor.plan.settle != "forward":
                raise StepInterrupted from None
        else:
            session.do(lambda machine: machine.now_passed(step=step.number))
            session.enter(Phase.VOTE, learn=True)
            self._payload.count(outcome, step)
            session.mark("passed", step.number)
        self._passed = True
