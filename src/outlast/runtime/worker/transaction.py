"""A step as a transaction: prepare, vote, apply, commit; and what a rank does when one of them is cut short.

Whatever goes wrong ends in one place: the rank stands still, says what it holds, and follows the plan that
comes back. *Forward*: it stands inside the optimizer hook, returns from it and applies. *Repeat*: the step is
unwound, what it changed goes back, and the loop yields the same step again.

Under sharded state the image of a step is sealed after apply, and the step counts as committed once the next
vote says that all owners have sealed it; on-commit work waits for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

from outlast.errors import OutlastError, Reenter, StepInterrupted, TransactionError
from outlast.model.messages import Regroup
from outlast.model.terms import Cause, Phase
from outlast.runtime import clock
from outlast.runtime.worker.attach import Attachment
from outlast.runtime.worker.guards import check_optimizer
from outlast.runtime.worker.hooks import OptimizerHooks, user_line
from outlast.runtime.worker.loaders import BatchSource
from outlast.runtime.worker.logbook import Logbook
from outlast.runtime.worker.membership import Membership
from outlast.runtime.worker.phase import Attempt
from outlast.runtime.worker.state import State
from outlast.runtime.worker.step import Step
from outlast.runtime.worker.vote import Ballot, vote

_PASS_ON = (KeyboardInterrupt, SystemExit, GeneratorExit, Reenter)


class Transaction:
    """One per State: a second run.steps goes on with it. `committed` counts from 0, the state before the first step."""

    def __init__(self, membership: Membership, state: State, *, accumulate: int, log_every: int) -> None:
        self.member = membership
        self.state = state
        self.committed = 0
        self.attachment = Attachment(membership, state, accumulate=accumulate)
        self.logbook = Logbook(log_every)
        self._accumulate = accumulate
        self._source: BatchSource | None = state.source
        self._hooks = OptimizerHooks(state.optimizers.values(), before_first=self._before_optimizer, after_undo=self._needs_undo)
        self._current: Step | None = None
        self._held: Step | None = None  # with its batches, until it is committed
        self._unsealed: Step | None = None  # sharded: applied here, not yet known to be sealed everywhere
        self._passed = False
        self._in_flight = False
        self._rehearsing = False  # a step is done for nothing
        self._replaying = False  # ... it is the last committed one, on the way to where the survivors wait
        self._phases_to_skip = 0
        self._counted_before = 0
        self._drawn: list[Any] = []  # batches of the next step so far: an error in fetching costs none of them
        self._undo = False  # from the next commit on, or since: the block's end votes
        self._undo_asked = False
        self._undo_kept = False
        self._watch = contextlib.ExitStack()
        self._stopping = False
        self._attached = False
        self._leg_began = -1  # the step at which an earlier run.steps of this process ended
        self._reentering = False  # Reenter was raised, whoever swallows it
        self._plan: Regroup | None = None  # given inside the hook, followed once the step is settled
        self._checkpoint = self.attachment.checkpoints

    # --- the loop ------------------------------------------------------------------------------------------

    def steps(self, until: int) -> Iterator[Step]:
        try:
            if self._attached:
                self._go_on()
            else:
                if self.member.is_spare:
                    yield from self._rehearse()
                if (plan := self.member.replayed()) is not None:
                    if plan.step > until:
                        return  # the run is in a later leg
                    yield from self._replay(plan)
                self._arrive()
            if self.committed > until:
                return  # this process came when the run was in a later leg
            while (step := self._next(until)) is not None:
                yield step
                if not step.entered:
                    self._refuse_at(f"step {step.number} was skipped: its block was not entered", hint="enter each step once: `with step:`")
            self._finish()
        except GeneratorExit:
            self._left_early()
            raise
        finally:
            self._hooks.remove()

    def _arrive(self) -> None:
        """Be in the run's group, with the run's state. At the first step, or in the phase after a replayed one."""
        if not self._attached:
            self.committed, self._attached = self._attach(), True

    def _attach(self) -> int:
        with self.member.refusing():
            for optimizer in self.state.optimizers.values():
                check_optimizer(optimizer)
            step = self.attachment.attach()
        self._undo = self.attachment.undo
        return step

    def _next(self, until: int) -> Step | None:
        if self._reentering:
            raise Reenter
        while True:
            if self.member.session is not None:
                self.member.session.do(lambda machine: machine.now_begun())
            if self.member.broken:
                self._follow(self.member.stand_still(in_hook=False))
                self.committed = self._step_now()
            if self.committed >= until or self._stopping:
                if self._close() and self._hand_over():
                    return None
                continue
            number = self.committed + 1
            if self._held is not None and self._held.number == number:
                self._held.reset()
                self._begin_booking()
                return self._held
            if self._fetch(number):
                return self._held

    def _fetch(self, number: int) -> bool:
        """Get the step's batches; they are kept until it is committed. False: that failed and was dealt with."""
        self._begin_booking()
        if self._source is None:
            self._held = Step(self, number, [])
            return True
        session = self.member.session
        if session is not None:
            session.enter(Phase.DATA, cause=Cause.DATA_WAIT)
        try:
            while len(self._drawn) < self._accumulate:
                self._drawn.append(self._source.next_batch())
        except OutlastError as error:
            self._refuse(error)
        except Exception as error:  # boundary: the user's dataset; the ladder decides. Fetching changes nothing but the loader, which goes on there
            if session is None:
                raise
            self._recover(error)
            return False
        if session is not None:
            session.enter(Phase.BETWEEN, cause=Cause.PRODUCTIVE, learn=True)
        self._held, self._drawn = Step(self, number, self._drawn), []
        return True

    def _begin_booking(self) -> None:
        if self.member.session is not None:
            self.member.session.book.begin_step(now_s=clock.now_s())

    # --- the block -----------------------------------------------------------------------------------------

    def enter(self, step: Step) -> None:
        if self._current is not None or step.entered or step is not self._held:
            what = "is entered inside another step" if self._current is not None else "is entered twice" if step.entered else "is not the step in turn"
            self._refuse_at(f"step {step.number} {what}", hint="enter each step once, in the loop that yields it: `with step:`")
        self._current, step.entered = step, True
        self._passed = False
        self._hooks.begin()
        if self.member.session is None:
            return
        if not self._rehearsing:
            self.state.begin()
            if self.attachment.first_step:
                self.attachment.watch(self._watch)
        self._in_flight = True
        self.member.session.enter(Phase.BODY)
        self.member.in_body = True

    def leave(self, step: Step, error: BaseException | None) -> bool:
        """The block ended. True: the error is dealt with, and the step will be yielded again."""
        member = self.member
        member.in_body = False
        unseen = member.guards.local_only(False)
        self._hooks.end()
        self._watch.close()
        self._current, step.left = None, True
        if self._rehearsing:
            return not isinstance(error, (KeyboardInterrupt, SystemExit))
        if member.session is None:
            return self._leave_alone(step, error)
        if error is None:
            error = self._swallowed()
        if error is None and not self._passed:  # no optimizer was called, or the step keeps an undo copy
            try:
                self._settle_vote(step)
            except StepInterrupted as interrupted:
                error = interrupted
        if error is None and unseen:
            what = f"{unseen} collectives ran after {self._hooks.first_line}"
            error = TransactionError(what, hint="nothing that communicates may follow the optimizer in a step")
        if error is None:
            self._commit(step)
            return False
        if isinstance(error, _PASS_ON):
            return False
        return self._recover(error)

    def _swallowed(self) -> BaseException | None:
        """What the block caught though it was not for it: a step that was refused or interrupted is not committed behind that."""
        refused = self._hooks.refused or self.member.guards.refused
        if refused is not None or self._passed:
            return refused
        if self._hooks.lost is not None:  # in backward: the gradients are torn
            return self._hooks.lost
        return StepInterrupted() if self.member.broken or self._plan is not None else None

    def _leave_alone(self, step: Step, error: BaseException | None) -> bool:
        if error is None:
            self._stepped(step)
            ballot = Ballot(True, False, *self.logbook.pending(step))
            if self.member.world_size > 1:
                ballot = vote(self.member, ballot)
            self.logbook.deliver(ballot.current, ballot.earlier, step, rank=self.member.rank(), world=self.member.world_size)
            step.committed()
        return False

    def _before_optimizer(self) -> None:
        """The hook in front of the first optimizer call of a block."""
        member = self.member
        if member.session is None or self._rehearsing:
            return
        member.in_body = False
        assert self._current is not None
        if (swallowed := self._swallowed()) is not None:
            raise swallowed
        if self._undo:
            self.state.keep_undo()
            self._undo_kept = True
            return
        self._settle_vote(self._current)
        member.session.enter(Phase.APPLY)
        if not self._undo_asked:
            member.guards.local_only(True, since=self._hooks.first_line)

    def _needs_undo(self) -> None:
        """A backward runs after an applied optimizer: from the next step on, an undo copy is kept and the block's end votes."""
        self.member.guards.local_only(False)
        if self._undo or self._undo_asked or self.member.session is None or self._rehearsing:
            return
        self._undo_asked = True
        mib = self.state.undo_bytes / 2**20
        line = self._hooks.first_line
        self.member.session.warn(f"a backward runs after the optimizer at {line}: each step keeps an undo copy of {mib:.0f} MiB, and votes at its end")

    def _settle_vote(self, step: Step) -> None:
        """Prepare and vote. Returns when the step may be applied; raises StepInterrupted when it is to be repeated."""
        assert self.member.session is not None
        session = self.member.session
        try:
            self.attachment.prepare(step.number)
            session.mark("prepared", step.number)
            session.enter(Phase.VOTE, learn=True)
            session.mark("voting", step.number)
            ballot = vote(self.member, self._ballot(step))
        except OutlastError as error:
            self._refuse(error)
        except Exception as error:  # boundary: a peer was lost during the vote; every other error of it is a bug and shows as a crash loop
            self._plan = self.member.cut_short(error, in_hook=True)
            if self._plan.settle != "forward":
                raise StepInterrupted from None
        else:
            session.do(lambda machine: machine.now_passed(step=step.number))
            session.enter(Phase.VOTE, learn=True)
            self._counted(ballot, step)
            session.mark("passed", step.number)
        self._passed = True

    def _ballot(self, step: Step | None) -> Ballot:
        assert self.member.session is not None
        asked = self.member.session.machine.stop is not None
        return Ballot(self.attachment.sealed >= self.committed, asked, *self.logbook.pending(step))

    def _counted(self, ballot: Ballot, step: Step | None) -> None:
        """What the vote said besides passing."""
        if ballot.stop:
            self._stopping = True
        self.logbook.deliver(ballot.current, ballot.earlier, step, rank=self.member.rank(), world=self.member.world_size)
        if self._unsealed is not None and ballot.sealed:
            done, self._unsealed = self._unsealed, None
            done.committed()

    def _commit(self, step: Step) -> None:
        """The step is applied here: count it, seal what has to be, follow a plan that waited."""
        session = self.member.session
        assert session is not None
        session.mark("applied", step.number)
        self._in_flight = self._undo_kept = False
        self._undo = self._undo or self._undo_asked
        self._stepped(step)
        if self.state.sharded:
            session.enter(Phase.SNAPSHOT, cause=Cause.STALL)
            self.attachment.seal(step.number)
        else:
            self.attachment.seal_tail(step.number)
        now_s = clock.now_s()
        session.book.commit_step(now_s=now_s, first=step.number > self.attachment.high_water, then=Cause.OTHER)
        session.do(lambda machine: machine.now_committed(step=step.number, now_s=now_s))
        session.enter(Phase.BETWEEN)
        session.mark("committed", step.number)
        if self.state.sharded:
            self._unsealed = step
        else:
            step.committed()
        if self._checkpoint.due(step.number) or (self._stopping and self._checkpoint.on_stop):
            session.enter(Phase.CHECKPOINT, cause=Cause.STALL)
            session.mark("saving", step.number)
            self._checkpoint.save(step.number, sharded=self.state.sharded)
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)
        plan, self._plan = self._plan, None
        if plan is not None:
            self._follow(plan)

    def _stepped(self, step: Step) -> None:
        self.committed = step.number
        self._held = None
        if self.attachment.first_step:
            self.attachment.after_first_step()
        with self.member.refusing():
            self.state.check_signature()

    # --- phases between steps --------------------------------------------------------------------------------

    def skips_phases(self) -> bool:
        """The block before was interrupted, so the step is not committed: its peers are not in a phase."""
        return self.member.session is not None and not self._rehearsing and self._held is not None and self._held.left

    def enter_phase(self, attempt: Attempt) -> None:
        session = self.member.session
        if self._current is not None:
            self._refuse_at(f"the phase {attempt.name!r} is entered inside a step", hint="put it between two steps")
        if session is None or (self._rehearsing and not self._arrives_here()):
            return
        attempt.number = session.machine.phases
        self.state.begin()
        session.enter(Phase.EVALUATION, cause=Cause.EVALUATION)
        self.member.in_body = True

    def _arrives_here(self) -> bool:
        """After a replayed step: this phase is the first that the others have not done. Else it is done for nothing, as the step before it."""
        if not self._replaying or self.member.is_spare:
            return False
        self._phases_to_skip -= 1
        if self._phases_to_skip >= 0:
            return False
        self._end_rehearsal()
        self._arrive()
        return True

    def leave_phase(self, attempt: Attempt, error: BaseException | None) -> bool:
        session = self.member.session
        self.member.in_body = False
        if session is None:
            attempt.done = True
            return False
        if self._rehearsing:
            attempt.done = True
            return not isinstance(error, (KeyboardInterrupt, SystemExit))
        if error is None:
            voted = self._close(roll_back=True)
            attempt.done = voted or session.machine.phases > attempt.number  # a peer saw the vote pass
            if voted:
                session.do(lambda machine: machine.now_past_phase())
                if not self.state.sharded:
                    self.attachment.seal_tail(self.committed)
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)
            return False
        if isinstance(error, _PASS_ON):
            return False
        self.state.roll_back()
        return self._recover(error)

    # --- when it is cut short ------------------------------------------------------------------------------

    def _recover(self, error: BaseException) -> bool:
        """Stand still, follow the plan. Always True: the loop goes on, with the same step or a later one."""
        if isinstance(error, OutlastError):
            self._refuse(error)
        plan, self._plan = self._plan, None
        self._follow(plan or self.member.cut_short(error))
        return True

    def _follow(self, plan: Regroup) -> None:
        """From standing still into the next generation; again and again if that fails too. Raises Reenter where the plan says so."""
        while True:
            try:
                self._settle(plan)
                self.attachment.mark("settled")
                self.attachment.follow(plan, undo=self._undo)
                self.committed = self._step_now()
                if self.committed == self._leg_began:
                    _ = self._close() and self._hand_over()  # a rank that came anew begins with the leg before this one, and votes at its end
                return
            except Reenter:
                self._reentering = True
                raise
            except Exception as error:  # boundary: another peer was lost meanwhile
                plan = self.member.lost_peer(error)

    def _settle(self, plan: Regroup) -> None:
        """Roll the step in flight back, if there is one. A forward step has been applied by now."""
        session = self.member.session
        assert session is not None
        done, self._unsealed = self._unsealed, None
        if done is not None and plan.step >= done.number:
            done.committed()  # all owners have sealed it: that is how the plan's step was chosen
        now_s = clock.now_s()
        if self._in_flight:
            self._in_flight = False
            if self._held is not None:
                self.logbook.forget(self._held)
            if self._undo_kept:
                self._undo_kept = False
                self.state.undo()
            self.state.roll_back()
            session.book.roll_back(now_s=now_s, fault_s=plan.fault_s, detected_s=plan.detected_s, then=Cause.REGROUP)
        else:
            session.book.roll_back(now_s=now_s, fault_s=None, detected_s=None, then=Cause.REGROUP)

    def _step_now(self) -> int:
        assert self.member.session is not None
        return max(self.member.session.machine.committed, 0)

    def stand_and_donate(self, plan: Regroup) -> None:
        """The error left main's function: hand over what this rank holds before it is gone."""
        self._settle(plan)
        if plan.donate:
            self.attachment.donate(plan, undo=self._undo)

    # --- the end -------------------------------------------------------------------------------------------

    def _close(self, *, roll_back: bool = False) -> bool:
        """A last vote: all ranks are past the last step, and all have sealed it. False: interrupted, go on. `roll_back`: what was done since `begin`, then."""
        session = self.member.session
        if session is None:
            return True
        session.enter(Phase.VOTE)
        try:
            self._counted(vote(self.member, self._ballot(None)), None)
        except Exception as error:  # boundary: a peer was lost
            plan = self.member.lost_peer(error)
            if roll_back and plan.phases <= session.machine.phases:
                self.state.roll_back()
            self._follow(plan)
            return False
        return True

    def _hand_over(self) -> bool:
        """Nobody leaves run.steps before the final state lies in the vault: a rank lost after that starts from it. False: interrupted, go on."""
        session = self.member.session
        if session is None or self._stopping or self.state.sharded:
            return True
        session.enter(Phase.CHECKPOINT)
        self.attachment.hand_over_at_end(self.committed, undo=self._undo)
        return self._close()

    def _finish(self) -> None:
        session = self.member.session
        self._leg_began = self.committed
        if session is None:
            return
        session.enter(Phase.EPILOGUE)
        self._checkpoint.wait()
        session.mark("finishing", self.committed)
        session.do(lambda machine: machine.finished(stopped=self._stopping))
        session.enter(Phase.EPILOGUE, cause=Cause.SHUTDOWN)
        if self._stopping:
            raise SystemExit(0)

    def leg(self, *, accumulate: int, log_every: int) -> None:
        """Run.steps is called again with the same state: the steps go on from where they are."""
        self._accumulate = self.attachment.accumulate = accumulate
        self.logbook.every = log_every

    def _go_on(self) -> None:
        session = self.member.session
        if session is not None:
            session.do(lambda machine: machine.goes_on())
            self.attachment.register()
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def _left_early(self) -> None:
        """`break`, or an error on its way out of the loop: the script's end will tell which."""
        session = self.member.session
        if session is None or self._rehearsing or self._reentering or self.member.broken:
            return
        self._checkpoint.wait()
        session.enter(Phase.EPILOGUE, cause=Cause.SHUTDOWN)

    def drop(self) -> None:
        """The function that made it is left: let go of the model."""
        self._hooks.remove()
        self.attachment.drop()
        if self._source is not None:
            self._source.close()
        self._held = self._current = self._unsealed = None

    # --- the spare's throw-away step -------------------------------------------------------------------------

    def _rehearse(self) -> Iterator[Step]:
        """Run the block once on a group of one, so that the first real step is not the first. All it changes is overwritten later."""
        yield from self._for_nothing(1)
        if self.member.is_spare:
            self.member.park()

    def _replay(self, plan: Regroup) -> Iterator[Step]:
        """Do the last committed step for nothing, so that the script comes to the phases after it: the survivors wait in one of them, or before."""
        self._replaying, self._phases_to_skip = True, plan.phases
        yield from self._for_nothing(plan.step)
        self._replaying = False

    def _for_nothing(self, number: int) -> Iterator[Step]:
        self.member.solo_group()
        if self._fetch_to_rehearse(number):
            assert self._held is not None
            self._rehearsing, self._counted_before = True, self.member.guards.counted
            yield self._held
        self._end_rehearsal()

    def _end_rehearsal(self) -> None:
        """After the block, or in a phase that follows it."""
        if self._rehearsing:
            self._rehearsing = self._in_flight = False
            self.member.in_body = False
            self.member.guards.counted = self._counted_before  # the block's own collectives are no reason against going on in place
            self._held = self._current = None
            self.attachment.after_rehearsal()

    def _fetch_to_rehearse(self, number: int) -> bool:
        try:
            batches = [self._source.next_batch() for _ in range(self._accumulate)] if self._source is not None else []
        except Exception:  # boundary: the real ranks will say what is wrong with the data
            if self._replaying:
                raise
            return False
        self._held = Step(self, number, batches)
        return True

    # --- small things ----------------------------------------------------------------------------------------

    def log(self, step: Step, values: dict[str, Any], reduce: str | None) -> None:
        if not self._rehearsing:
            self.logbook.add(step, values, reduce)

    def _refuse_at(self, what: str, *, hint: str) -> NoReturn:
        self._refuse(TransactionError(f"{user_line()}: {what}", hint=hint))

    def _refuse(self, error: OutlastError) -> NoReturn:
        self.member.refuse(error)


