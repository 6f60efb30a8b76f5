"""The block of a step, `with step:`, and the hooks that are on while it runs.

A hook asks the commit machine for the vote just before the first optimizer call. A block that calls
no optimizer votes at its end. A step that votes late does so when the script asks for the next step
or a phase (late_votes.py). A block may catch an exception by which outlast refuses or interrupts
the step. Such a step is not committed.
"""

from __future__ import annotations

import contextlib

from outlast.engine.commit.commit_machine import CommitMachine
from outlast.errors import StepInterrupted, TransactionError
from outlast.model.terms import Phase
from outlast.runtime.worker.process.exits import BackwardExits
from outlast.runtime.worker.script.hooks import OptimizerHooks
from outlast.runtime.worker.script.unnamed import UnnamedOptimizers
from outlast.runtime.worker.steps.attach import Attachment
from outlast.runtime.worker.steps.commit_driver import CommitDriver
from outlast.runtime.worker.steps.step import Step


class Block:
    """The hooks and guards that are on while the block of a step runs. One Block serves all steps.

    current   the step whose block runs, or None
    """

    def __init__(
        self, attachment: Attachment, machine: CommitMachine, driver: CommitDriver
    ) -> None:
        self.current: Step | None = None
        self._attachment = attachment
        self._member = attachment.member
        self._machine = machine
        self._driver = driver
        self._hooks = OptimizerHooks(
            attachment.state.optimizers.values(),
            attachment.state.scalers.values(),
            before_first=self._before_optimizer,
            after_undo=self._backward_after_optimizer,
            unnamed=UnnamedOptimizers(attachment.state.optimizers, attachment.state.parameters),
        )
        parameters = () if attachment.state.sharded else attachment.state.parameters.values()
        self._exits = BackwardExits(
            parameters, over=lambda: self._member.script.in_body and self._member.broken
        )
        self._watch = contextlib.ExitStack()
        # whether the step will be voted on: there is a launcher, and this is not a rehearsal
        self._counts = False
        self._unseen = 0  # collectives after the optimizer that could not be refused in time

    def begin(self, step: Step, *, is_rehearsal: bool) -> None:
        """Watch the block of `step` from here on. A rehearsal is not voted on."""
        self.current, step.entered = step, True
        self._hooks.begin()
        session = self._member.session
        self._counts = session is not None and not is_rehearsal
        if self._counts:
            self._machine.enter_block()
            if self._attachment.call.first_step:
                self._attachment.watch(self._watch)
        if session is not None:
            self._exits.install()
            session.enter(Phase.BODY)
            self._member.script.in_body = True

    def end(self, step: Step) -> None:
        """Stop watching, because the block has ended, with or without an error."""
        self._member.script.in_body = False
        self._unseen = self._member.guards.local_only(False)
        self._hooks.end()
        self._watch.close()
        self.current, step.left = None, True

    def objection(self) -> BaseException | None:
        """Return why the step must not be committed although its block raised nothing, or None."""
        if (swallowed := self._swallowed()) is not None:
            return swallowed
        if self._unseen:
            what = f"{self._unseen} collectives ran after {self._hooks.first_line}"
            return TransactionError(
                what, hint="nothing that communicates may follow the optimizer in a step"
            )
        return None

    def remove_hooks(self) -> None:
        """Remove the hooks from the optimizers. The next `begin` sets them again."""
        self._hooks.remove()
        self._exits.remove()

    def _swallowed(self) -> BaseException | None:
        """Return the exception of outlast that the script has caught in this block, or None.

        A step that was refused or interrupted must not be committed, even if the script goes on.
        """
        refused = self._hooks.refused or self._member.guards.refused
        if refused is not None or self._machine.has_passed:
            return refused
        if self._hooks.lost is not None:  # in the backward pass, so the gradients are incomplete
            return self._hooks.lost
        return StepInterrupted() if self._machine.is_cut else None

    # --- called by the hooks ----------------------------------------------------------------------

    def _before_optimizer(self) -> None:
        """Vote, just before the first optimizer call of a block.

        It raises if the optimizer must not run.
        """
        if not self._counts:
            return
        session, late = self._member.session, self._attachment.undo.late
        assert session is not None
        self._member.script.in_body = False
        if (swallowed := self._swallowed()) is not None:
            raise swallowed
        session.mark("stepping", self._machine.committed)
        self._attachment.look_for_edits("in front of the optimizer")
        if late.on:
            self._attachment.images.note_private()
        self._driver.run(self._machine.vote_early())
        session.enter(Phase.APPLY, learn=late.on)
        if not late.goes_on:
            self._member.guards.local_only(True, since=self._hooks.first_line)

    def _backward_after_optimizer(self) -> None:
        self._member.guards.local_only(False)
        if self._counts:
            self._attachment.undo.want_for_backward(self._hooks.first_line)
