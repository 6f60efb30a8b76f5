"""A step as a transaction: prepare, vote, apply, commit; and what a rank does when one of them is
cut short.

`Transaction` is the loop around it: it fetches and yields the steps, commits what the block let
pass, and ends the run's legs. Its parts:

    batches    the step in turn and its batches                rehearsal  a step done for nothing,
               on the way in
    block      `with step:`, its hooks and its vote            poll       what rides on a vote
    survivor   standing still, rolling back, following a plan  attachment  state from and to the
               vault

What the script does behind the block of a step belongs to that step: a rank that is lost there
comes back with what it had when the next step began. So what is sealed of a step is made complete
where the next step, or a phase, is asked for (`_settle`).

Under sharded state the whole image is sealed there, and the step counts as committed once the next
vote says that all owners have sealed it; on-commit work waits for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from outlast.engine.commit.image_place import BEGUN, ENTERED, Place
from outlast.errors import OutlastError, Reenter, StepInterrupted, TransactionError
from outlast.model.messages import Regroup
from outlast.model.terms import Cause, Phase
from outlast.runtime import clock
from outlast.runtime.worker.attach import Attachment
from outlast.runtime.worker.batches import Batches
from outlast.runtime.worker.block import Block
from outlast.runtime.worker.guards import check_optimizer
from outlast.runtime.worker.hooks import user_line
from outlast.runtime.worker.membership import Membership
from outlast.runtime.worker.phase import Attempt
from outlast.runtime.worker.random_state import RandomState
from outlast.runtime.worker.rehearsal import Rehearsal
from outlast.runtime.worker.session import Session
from outlast.runtime.worker.state import State
from outlast.runtime.worker.step import Step
from outlast.runtime.worker.survivor import Survivor
from outlast.runtime.worker.vote_payload import VotePayload

_PASS_ON = (KeyboardInterrupt, SystemExit, GeneratorExit, Reenter)


class Transaction:
    """One per State: a second run.steps goes on with it.

    `committed` counts from 0, the state before the first step.
    """

    def __init__(
        self, membership: Membership, state: State, *, accumulate: int, log_every: int
    ) -> None:
        self.member = membership
        self.state = state
        self.committed = 0
        self.attachment = Attachment(membership, state, accumulate=accumulate)
        self._payload = VotePayload(self.attachment, log_every=log_every)
        self._survivor = Survivor(self.attachment, self._payload)
        self._block = Block(self.attachment, self._payload, self._survivor)
        self._batches = Batches(self, state.source, accumulate=accumulate)
        self._rehearsal = Rehearsal(self.attachment, self._batches)
        self._attached = False
        self._leg_began = -1  # the step at which an earlier run.steps of this process ended
        self._until = 0  # the last step of this leg
        self._voteless: Step | None = None  # its block is over, and it votes late
        # sharded: it has passed its vote, and counts once its image is sealed
        self._unsealed: Step | None = None
        self._saved = 0  # the step up to which checkpoints have been looked to

    # --- the loop ---------------------------------------------------------------------------------

    def steps(self, until: int) -> Iterator[Step]:
        self._until = until
        try:
            if self._attached:
                self._go_on()
            else:
                if self.member.is_spare:
                    yield from self._rehearsal.of_spare()
                if self.member.goes_on_from() > until:
                    # the run is in a later leg: state is restored there, so that what lies in
                    # between is not done to it again
                    return
                if (plan := self.member.replayed()) is not None:
                    yield from self._rehearsal.replay(plan)
                self._arrive()
            if self.committed > until:
                return  # the run went on to a later leg while this process came
            while (step := self._next(until)) is not None:
                yield step
                if not step.entered:
                    self._refuse_at(
                        f"step {step.number} was skipped: its block was not entered",
                        hint="enter each step once: `with step:`",
                    )
            self._finish()
        except GeneratorExit:
            self._left_early()
            raise
        finally:
            self._block.remove_hooks()

    def _arrive(self) -> None:
        """Be in the run's group, with the run's state.

        At the first step, at the end of a replayed one, or in the phase after it.
        """
        if not self._attached:
            with self.member.refusing():
                for optimizer in self.state.optimizers.values():
                    check_optimizer(optimizer)
                self.committed = self._saved = self.attachment.attach()
            self._attached = True
            self._past_block()

    def _next(self, until: int) -> Step | None:
        if self._survivor.reentering:
            raise Reenter
        while True:
            if self.member.session is not None:
                self._settle(BEGUN)
                self._say_begun(self.member.session, over=self._is_over(until))
                self._survivor.take_back_what_followed(self._batches.held)
            if self.member.broken:
                self._follow(self.member.stand_still(in_hook=False))
            elif (plan := self._survivor.take_plan()) is not None:
                self._follow(plan)
            if self._is_over(until):
                if self._close() and self._hand_over():
                    return None
                continue
            number = self.committed + 1
            if self.member.session is not None:
                self.member.session.book.begin_step(now_s=clock.now_s())
            if self._batches.hold_again(number):
                return self._given_out(None)
            if self._fetch(number):
                return self._given_out(self._batches.random)

    def _is_over(self, until: int) -> bool:
        return self.committed >= until or self._payload.stopping

    def _say_begun(self, session: Session, *, over: bool) -> None:
        session.do(lambda machine: machine.now_begun(over=over))

    def _fetch(self, number: int) -> bool:
        """Get the step's batches. False: that failed and was dealt with."""
        session = self.member.session if self._batches.loads else None
        if session is not None:
            session.enter(Phase.DATA, cause=Cause.DATA_WAIT)
        try:
            self._batches.fetch(number)
        except OutlastError as error:
            self.member.refuse(error)
        except Exception as error:  # boundary: the user's dataset; the ladder decides. Fetching changes nothing but the loader, which goes on there
            if session is None:
                raise
            self._recover(error)
            return False
        if session is not None:
            session.enter(Phase.BETWEEN, cause=Cause.PRODUCTIVE, learn=True)
        return True

    def _given_out(self, random_now: RandomState | None) -> Step | None:
        """From here on, not from the block's first line, a step is taken back as a whole: a repeat
        does again what stands before `with step:`.
        """
        step = self._batches.held
        if self.member.session is not None:
            self.state.begin(random_now)
            self.attachment.begin_edits()
            self._survivor.in_flight = step
        return step

    # --- the block --------------------------------------------------------------------------------

    def enter(self, step: Step) -> None:
        inside = self._block.current is not None
        if inside or step.entered or step is not self._batches.held:
            what = (
                "is entered inside another step"
                if inside
                else "is entered twice"
                if step.entered
                else "is not the step in turn"
            )
            self._refuse_at(
                f"step {step.number} {what}",
                hint="enter each step once, in the loop that yields it: `with step:`",
            )
        self._block.begin(step, for_nothing=self._rehearsal.runs)

    def leave(self, step: Step, error: BaseException | None) -> bool:
        """The block ended. True: the error is dealt with, and the step will be yielded again."""
        self._block.end(step)
        if self._rehearsal.runs:
            return self._rehearsal.swallows(error)
        if error is None:
            self.attachment.look_for_edits("in a step that calls no optimizer")
            self.attachment.watch_edits()
        if self.member.session is None:
            return self._leave_alone(step, error)
        if error is None:
            error = self._block.objection(step)
        if error is None and self.attachment.undo.on:
            self._voteless = step
            self.member.session.enter(Phase.BETWEEN)
            return False
        if error is None:
            self._commit(step)
            return False
        if isinstance(error, _PASS_ON):
            return False
        self._recover(error)
        self.attachment.watch_edits()
        return True

    def _leave_alone(self, step: Step, error: BaseException | None) -> bool:
        if error is None:
            self._stepped(step)
            self._payload.alone(step)
            step.committed()
        return False

    def _settle(self, kind: str) -> None:
        """The script has done all that it does behind the block, up to a place of this kind: vote
        if that is still due, and seal what has moved.
        """
        session = self.member.session
        assert session is not None
        self.attachment.look_for_edits("behind the block of a step")
        if self._voteless is not None:
            self._vote_late(self._voteless, Place(kind, 0))
        place = Place(kind, session.machine.phases, legs=int(self.committed == self._leg_began))
        held = self._batches.held
        if held is not None and held.left:
            return  # the step is not committed: it will be repeated
        self.attachment.images.settle(self.committed, place, last=self._is_over(self._until))
        if self._unsealed is not None and place.kind == BEGUN and not self.member.broken:
            step, self._unsealed = self._unsealed, None
            self._count(step)
        if place.kind == BEGUN and self.committed > self._saved and self._unsealed is None:
            self._saved = self.committed
            self._save_if_due(self.committed)

    def _vote_late(self, step: Step, place: Place) -> None:
        """Vote for a step whose block is over. It is committed by that, or to be repeated."""
        self._voteless = None
        if self.member.broken:
            return
        try:
            if self.attachment.agreement.after_first(step.number):
                self.attachment.register()
            self._block.vote(step, place)
        except (Exception, StepInterrupted) as error:  # boundary: a peer was lost
            # The ladder decides
            self._recover(error)
        else:
            self._commit(step)

    def _commit(self, step: Step) -> None:
        """The step is applied here, and its vote has passed: count it."""
        session = self.member.session
        assert session is not None
        session.mark("applied", step.number)
        self.attachment.undo.committed()
        self._stepped(step)
        if self.state.sharded:
            self._payload.await_seals(step)
            self._unsealed = step
        else:
            self._count(step)
            step.committed()
        self._past_block()

    def _count(self, step: Step) -> None:
        """The step is committed, as far as this rank is concerned."""
        session = self.member.session
        assert session is not None
        self._survivor.in_flight = None
        now_s = clock.now_s()
        session.book.commit_step(
            now_s=now_s, first=step.number > self.attachment.high_water, then=Cause.OTHER
        )
        session.do(lambda machine: machine.now_committed(step=step.number, now_s=now_s))
        session.enter(Phase.BETWEEN)
        session.mark("committed", step.number)

    def _past_block(self) -> None:
        """Say that nobody has to wait for this rank's block: a plan that was given inside it is
        followed before the next step or phase.
        """
        if self.member.session is not None:
            self.member.session.do(lambda machine: machine.now_past_block())

    def _stepped(self, step: Step) -> None:
        self.committed = step.number
        self._batches.let_go()
        if self.attachment.first_step:
            self.attachment.after_first_step()
        with self.member.refusing():
            self.state.check_signature()

    def _save_if_due(self, step: int) -> None:
        session, checkpoints = self.member.session, self.attachment.checkpoints
        assert session is not None
        if checkpoints.due(step) or (self._payload.stopping and checkpoints.on_stop):
            session.enter(Phase.CHECKPOINT, cause=Cause.STALL)
            session.mark("saving", step)
            checkpoints.save(step, sharded=self.state.sharded)
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def log(self, step: Step, values: dict[str, Any], reduce: str | None) -> None:
        if not self._rehearsal.runs:
            self._payload.log(step, values, reduce)

    # --- phases between steps ---------------------------------------------------------------------

    def skips_phases(self) -> bool:
        """The block before was interrupted, so the step is not committed: its peers are not in a
        phase. Votes first if that is due.
        """
        session = self.member.session
        if session is None or self._rehearsal.runs:
            return False
        if not self._attached:
            return True  # the run is in a later leg, and this phase is done
        self._settle(ENTERED)
        if not self.member.broken and (plan := self._survivor.take_plan()) is not None:
            self._follow(plan)
        held = self._batches.held
        return held is not None and held.left

    def enter_phase(self, attempt: Attempt) -> None:
        session = self.member.session
        if self._block.current is not None:
            self._refuse_at(
                f"the phase {attempt.name!r} is entered inside a step",
                hint="put it between two steps",
            )
        held = self._batches.held
        if held is not None and not held.entered and not self._rehearsal.runs:
            self._refuse_at(
                f"the phase {attempt.name!r} is entered before the block of step {held.number}",
                hint="put it behind the block: `with step:` first",
            )
        if session is None:
            return
        if self._rehearsal.runs:
            if not self._rehearsal.ends_before_phase():
                return
            self._arrive()
        attempt.number = session.machine.phases
        self.state.begin()
        self.state.edits.begin_phase(attempt.name)
        session.enter(Phase.EVALUATION, cause=Cause.EVALUATION)
        self.member.in_body = True

    def leave_phase(self, attempt: Attempt, error: BaseException | None) -> bool:
        session = self.member.session
        self.member.in_body = False
        if session is None or self._rehearsal.runs:
            attempt.done = True
            return self._rehearsal.swallows(error)
        if error is None:
            self.attachment.look_for_edits(f"in the phase {attempt.name!r}")
            self.attachment.images.prepare_phase(self.committed, attempt.number + 1)
            voted = self._close(roll_back=True)
            # a peer saw the vote pass
            attempt.done = voted or session.machine.phases > attempt.number
            if voted:
                self.state.edits.end_phase(attempt.name)
                session.do(lambda machine: machine.now_past_phase())
            elif not attempt.done:
                self.attachment.images.forget_phase()
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)
            return False
        if isinstance(error, _PASS_ON):
            return False
        self.state.roll_back()
        self.attachment.images.note_private()
        return self._recover(error)

    # --- when it is cut short ---------------------------------------------------------------------

    def _recover(self, error: BaseException) -> bool:
        """Stand still, follow the plan.

        Always True: the loop goes on, with the same step or a later one.
        """
        self._follow(self._survivor.plan_after(error))
        return True

    def _follow(self, plan: Regroup) -> None:
        """From standing still into the next generation. Raises Reenter where the plan says so."""
        while True:
            self.committed = self._survivor.follow(plan)
            if self.committed != self._leg_began:
                return
            try:  # a rank that came anew begins with the leg before this one, and votes at its end
                _ = self._close() and self._hand_over()
                return
            except Exception as error:  # boundary: a peer was lost meanwhile
                plan = self.member.lost_peer(error)

    def stand_and_donate(self, plan: Regroup) -> None:
        """The error left main's function: hand over what this rank holds before it is gone."""
        self._survivor.stand_and_donate(plan)

    # --- the end ----------------------------------------------------------------------------------

    def _close(self, *, roll_back: bool = False) -> bool:
        """A last vote: all ranks are past the last step, and all have sealed it.

        False: interrupted, go on. `roll_back`: what was done since `begin`, then.
        """
        session = self.member.session
        if session is None:
            return True
        session.enter(Phase.VOTE)
        try:
            self._payload.count(self._payload.cast(None), None)
        except Exception as error:  # boundary: a peer was lost
            plan = self.member.lost_peer(error)
            if roll_back and plan.phases <= session.machine.phases:
                self.state.roll_back()
            self._follow(plan)
            return False
        return True

    def _still_same(self) -> bool:
        """Compare the replicated state of all ranks once more, as a whole, before it is said to be
        the result. False: interrupted, go on.
        """
        try:
            with self.member.refusing():
                self.attachment.agreement.find_divergence(self.committed)
        except OutlastError:
            raise
        except Exception as error:  # boundary: a peer was lost
            self._follow(self.member.lost_peer(error))
            return False
        return True

    def _hand_over(self) -> bool:
        """Nobody leaves run.steps before the final state lies in the vault: a rank lost after that
        starts from it. False: interrupted, go on.
        """
        session = self.member.session
        if session is None or self._payload.stopping or self.state.sharded:
            return True
        session.enter(Phase.CHECKPOINT)
        if self.member.world_size > 1 and not self._still_same():
            return False
        self.attachment.hand_over_at_end(self.committed)
        return self._close()

    def _finish(self) -> None:
        session = self.member.session
        self._leg_began = self.committed
        if session is None:
            return
        session.enter(Phase.EPILOGUE)
        # who registers now would be taken for one that trains again
        self.member.guards.on_held = None
        session.mark("finishing", self.committed)
        session.do(lambda machine: machine.finished(stopped=self._payload.stopping))
        session.enter(Phase.EPILOGUE, cause=Cause.SHUTDOWN)
        # said before: one that is past its last step holds up nobody
        self.attachment.checkpoints.wait()
        if self._payload.stopping:
            raise SystemExit(0)

    def leg(self, *, accumulate: int, log_every: int) -> None:
        """Run.steps is called again with the same state: the steps go on from where they are."""
        self._batches.accumulate = self.attachment.accumulate = accumulate
        self._payload.log_every(log_every)

    def _go_on(self) -> None:
        self._survivor.in_flight = None  # of a leg that was left by `break`
        session = self.member.session
        if session is not None:
            self.attachment.begin_leg(self.committed)
            session.do(lambda machine: machine.goes_on())
            self.attachment.register()
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def _left_early(self) -> None:
        """`break`, or an error on its way out of the loop: the script's end will tell which."""
        session = self.member.session
        if (
            session is None
            or self._rehearsal.runs
            or self._survivor.reentering
            or self.member.broken
            or not self._attached
        ):
            return
        late = self._voteless is not None
        self._settle(BEGUN)
        if late and self._batches.held is not None:
            what = (
                f"step {self._batches.held.number} was interrupted and the loop was left by"
                " `break`, so the step cannot be repeated"
            )
            self.member.refuse(
                TransactionError(what, hint="end the loop by run.steps(..., until=n)")
            )
        if (plan := self._survivor.take_plan()) is not None:
            self._follow(plan)
        self.attachment.checkpoints.wait()
        session.enter(Phase.EPILOGUE, cause=Cause.SHUTDOWN)

    def drop(self) -> None:
        """The function that made it is left: let go of the model."""
        self._block.remove_hooks()
        self._batches.close()

    def _refuse_at(self, what: str, *, hint: str) -> NoReturn:
        self.member.refuse(TransactionError(f"{user_line()}: {what}", hint=hint))
