"""The two-phase commit of a step, and what a rank does when a failure interrupts it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from outlast.engine.commit.commands import (
    BookCommit,
    Break,
    CallBack,
    DeliverVote,
    Donate,
    DropUndo,
    Flow,
    ForgetPhase,
    HandOver,
    Join,
    Prepare,
    PreparePhase,
    ProveEqual,
    PutOff,
    Refuse,
    RollBack,
    RollBackPhase,
    Save,
    SealMoved,
    StandStill,
    TakeBackTail,
    TellWorkerMachine,
    Vote,
    VoteResult,
    WaitToBeKilled,
)
from outlast.engine.commit.image_place import AT_VOTE, BEGUN, ENTERED, ScriptPosition
from outlast.engine.commit.late_votes import LateVotes
from outlast.engine.protocol.worker import WorkerMachine
from outlast.errors import OutlastError, Reenter, StepInterrupted
from outlast.model.messages import Regroup


class StepStage(Enum):
    """The stage of the current step: the one after `CommitMachine.committed`."""

    IDLE = "idle"  # the step has not begun
    GIVEN = "given"  # run.steps has yielded the step, and the script has not entered its block
    BLOCK = "block"  # the block runs, and the vote has not passed
    PASSED = "passed"  # the vote has passed, so the optimizers may apply the step
    LATE = "late"  # the block is over, and the vote comes later
    CUT = "cut"  # the step was interrupted, and is not rolled back yet
    REPEAT = "repeat"  # the step is rolled back, and run.steps will yield it again
    LEFT = "left"  # main's function is being left, to be entered again


@dataclass(frozen=True, slots=True)
class AgreedRequests:
    """Requests that one rank has received, and that all ranks have learned of by a vote.

    stop  the run is to end after this step
    save  a checkpoint of this step is to be written
    seal  an image is to be sealed after this step and each one that follows
    """

    stop: bool = False
    save: bool = False
    seal: bool = False


# the step was interrupted: what the script does until run.steps yields it again does not count
_INTERRUPTED = (StepStage.CUT, StepStage.REPEAT)
_ROLLED_BACK = (StepStage.IDLE, StepStage.REPEAT)


class CommitMachine:
    """One rank's two-phase commit: the states, the order and the decisions of a step.

    A step is committed on all ranks, or it is repeated on all of them. For that, each rank first
    *prepares* the step: it seals what a successor would need. Then all ranks *vote*. Once the vote
    has passed, every rank has prepared, so each may *apply* the step (run its optimizers) and
    *commit* it. If a rank is lost after its vote has passed, its successor continues from the
    sealed image. If a rank is interrupted before that, it rolls the step back.

    An example, one step as a script goes through it, with the flows that its driver runs::

        for step in run.steps(...):     next_step    settle the step before; True: give one out
            with step:                  enter_block
                loss.backward()
                optimizer.step()        vote_early   prepare and vote, then apply
                                        end_block    commit, or be repeated
            code after the block       (belongs to the step; sealed by the next settle)

    A step that votes late (see late_votes.py) is applied first, and its vote comes when the script
    asks for the next step or phase. If an early vote shows that this is needed, the vote is *put
    off*. A *phase* between steps is voted on like a step, and repeated like one.

    When a peer is lost, a command of a flow raises. The rank then *stands still*: it sends its
    inventory and waits for a plan. It *follows* the plan in `follow`, the only place where plans
    are followed:

        forward   The rank stands at its vote, and some rank saw that vote pass. It applies the step
                  and commits it. It follows the plan before its next step or phase.
        repeat    The step is rolled back, the rank joins the next generation, and the same step is
                  given out again.
        stand     The rank has finished its step, and stands still once more. It is about to be
                  replaced.
        go back   The plan names an older step. This process ends, or enters main's function again,
                  and restores what the plan says.
        reenter   Main's function is left by `Reenter`, and entered again in the same process.

    The machine is sans-IO. It reads no clock, starts nothing, and knows no tensors: its flows yield
    commands (commands.py), and the worker with torch and the simulated world carry them out. Its
    driver runs one flow at a time.

    It does not promise that a committed step survives the loss of all ranks that hold it. That is
    what checkpoints are for. It does not look for hangs either. The agent does, and kills a rank
    that hangs in a command.
    """

    def __init__(self, worker: WorkerMachine, late: LateVotes) -> None:
        self.worker = worker
        self.late = late
        # The newest step that is applied after its vote; 0 is the state before the first step.
        # Under sharded state it is one ahead of `worker.committed` until the image is sealed.
        self.committed = 0
        self.stage = StepStage.IDLE
        self.agreed = AgreedRequests()
        self.until = 0  # the last step of this call of run.steps
        self.last_call_ended = -1  # the last step of the call before; -1: there was none
        self._plan: Regroup | None = None  # a plan that came at a vote, to be followed later
        self._unsealed = 0  # a step that has passed its vote and is not sealed yet; 0: none
        self._saved = 0  # the newest step for which `Save` was asked

    @property
    def stopping(self) -> bool:
        """Return True once all ranks know that one was asked to stop."""
        return self.agreed.stop

    @property
    def is_over(self) -> bool:
        """Return True if this call of run.steps has no further step."""
        return self.committed >= self.until or self.stopping

    @property
    def repeats(self) -> bool:
        """Return True if the step was interrupted, so run.steps will yield it again."""
        return self.stage in _INTERRUPTED

    @property
    def is_leaving(self) -> bool:
        """Return True if `Reenter` was raised, even if the script has swallowed it."""
        return self.stage is StepStage.LEFT

    @property
    def has_passed(self) -> bool:
        """Return True if the vote of the step has passed, so its optimizers may run."""
        return self.stage is StepStage.PASSED

    @property
    def waits_for_vote(self) -> bool:
        """Return True if the block of the step is over, and its vote comes later."""
        return self.stage is StepStage.LATE

    # --- events that need no command --------------------------------------------------------------

    def attached(self, step: int) -> None:
        """Begin at `step`: this rank is in the group, with the state of that step."""
        self.committed = self._saved = step

    def give_out(self) -> None:
        """Note that run.steps yields the next step. What the script does from here on is repeated
        as a whole if the step is interrupted.
        """
        self.stage, self.worker.cut = StepStage.GIVEN, False

    def enter_block(self) -> None:
        """Note that the block of the step begins."""
        self.stage = StepStage.BLOCK

    def drop_block(self) -> None:
        """Note that the script leaves the block by an exit or another error that outlast does not
        handle.
        """
        self.stage, self.worker.cut = StepStage.CUT, True

    def begin_steps_call(self) -> None:
        """Note that run.steps is called again. The last step of the call before may have been
        interrupted; then it is repeated in this call.
        """
        self.stage = StepStage.REPEAT if self.repeats else StepStage.IDLE

    @property
    def is_cut(self) -> bool:
        """Return True if the step was interrupted and must not vote.

        The script may have caught the exception that was raised to interrupt it.
        """
        cut = self.worker.broken or self._plan is not None
        return cut and self.stage is not StepStage.PASSED

    # --- the loop ---------------------------------------------------------------------------------

    def next_step(self) -> Flow[bool]:
        """Settle the step before, and get to the next one. Return False if there is none."""
        if self.stage is StepStage.LEFT:
            raise Reenter  # the script has caught the one that was raised before
        while True:
            yield from self._settle(BEGUN)
            yield TellWorkerMachine(partial(WorkerMachine.note_begun, over=self.is_over))
            if self.repeats:
                yield TakeBackTail()
            if self.worker.broken:
                # A plan that still waits is of a generation that is over, too.
                plan: Regroup = yield StandStill(in_hook=False)
                yield from self.follow(plan)
            elif (held := self._take_plan()) is not None:
                yield from self.follow(held)
            if not self.is_over:
                return True
            if (yield from self._close()) and (yield from self._hand_over()):
                return False

    def vote_early(self) -> Flow[None]:
        """Prepare and vote just before the first optimizer call of a block.

        A step that votes late does neither here. It raises StepInterrupted if the optimizer must
        not run.
        """
        if self.is_cut:
            raise StepInterrupted
        if not self.late.on:
            yield from self._vote(AT_VOTE)

    def end_block(self, objection: BaseException | None) -> Flow[bool]:
        """Leave the block: commit the step, or let it vote late. Return False if it is repeated.

        objection   what the block raised, or why the step cannot be committed although its block
                    raised nothing
        """
        if objection is None and self.is_cut:
            objection = StepInterrupted()
        if objection is None and self.stage is not StepStage.PASSED and not self.late.on:
            try:  # a block that called no optimizer votes here
                yield from self._vote(AT_VOTE)
            except StepInterrupted:
                objection = StepInterrupted()
        if objection is None and self.stage is not StepStage.PASSED:
            self.stage = StepStage.LATE
            return True
        if objection is None:
            yield from self._commit()
            return True
        yield from self.recover(objection)
        return False

    def leave_early(self) -> Flow[bool]:
        """Finish the last step of a script that has left its loop before `until`.

        Return False if that step was interrupted. It would have to be repeated, and the loop that
        could do so is gone.
        """
        was_late = self.stage is StepStage.LATE
        yield from self._settle(BEGUN)
        if was_late and self.stage is not StepStage.IDLE:
            return False
        if (plan := self._take_plan()) is not None:
            yield from self.follow(plan)
        return True

    def finish(self) -> Flow[None]:
        """Report that this rank has finished the last step of this call."""
        self.last_call_ended = self.committed
        yield TellWorkerMachine(partial(WorkerMachine.finished, stopped=self.stopping))

    # --- prepare, vote, commit --------------------------------------------------------------------

    def _vote(self, place: ScriptPosition) -> Flow[None]:
        """Prepare the step and vote for it. The script is at `place`.

        Returns when the step may be committed, or when its early vote was put off. It raises
        StepInterrupted if the step is to be repeated.
        """
        step = self.committed + 1
        try:
            if (yield Prepare(step, place)):
                yield TellWorkerMachine(partial(WorkerMachine.note_prepared, step=step))
            result: VoteResult = yield Vote(step)
        except OutlastError as error:
            yield Refuse(error)
        except Exception as error:  # boundary: the vote
            # A peer was lost. Every other error of a vote is a bug, and shows as a crash loop.
            yield Break(error, peers_only=False)
            self._plan = yield StandStill(in_hook=True)
            if self._plan.settle != "forward":
                self.stage = StepStage.CUT
                raise StepInterrupted from None
        else:
            if result.unsure and not self.late.on:
                yield from self._put_off(step)
                return
            yield TellWorkerMachine(partial(WorkerMachine.note_passed, step=step))
            self._learn(result)
            yield DeliverVote(result, step)
        self.stage = StepStage.PASSED

    def _put_off(self, step: int) -> Flow[None]:
        """Let `step` vote late after all. All ranks have seen the same vote, and do the same.

        A rank that has sealed an image for the early vote forgets it first. If all ranks had one
        when a rank is lost, the run would take the step for prepared, and go forward with it.
        """
        yield PutOff(step)
        yield TellWorkerMachine(partial(WorkerMachine.note_prepared, step=self.committed))
        self.late.put_off()

    def _commit(self) -> Flow[None]:
        """Commit the step: it is applied here, and its vote has passed."""
        step = self.committed + 1
        self.late.committed()
        sharded: bool = yield DropUndo(step)
        self.committed, self.stage = step, StepStage.IDLE
        if sharded:
            # The others know that it is sealed from the next vote, which comes after the seal.
            self._unsealed = step
        else:
            yield BookCommit(step)
        yield CallBack(now=not sharded)

    def _vote_late(self, place: ScriptPosition) -> Flow[None]:
        """Vote for a step whose block is over. It is then committed, or repeated."""
        if self.worker.broken:
            self.stage = StepStage.CUT
            return  # there is no peer to vote with: the caller stands still
        try:
            yield ProveEqual(self.committed + 1)
            yield from self._vote(place)
        except (Exception, StepInterrupted) as error:  # boundary: the vote
            cause = error
        else:
            yield from self._commit()
            return
        yield from self.recover(cause)
        del cause  # its traceback holds this frame, and would be kept alive by it

    def _settle(self, kind: str) -> Flow[None]:
        """Finish the newest step, now that the script asks for the next step or a phase.

        What the script has done after the block of a step belongs to that step. So this is where a
        late vote comes, and where the state is sealed from which a successor begins. `kind` says
        what the script asks for: the next step (BEGUN) or a phase (ENTERED).
        """
        if self.stage is StepStage.LATE:
            yield from self._vote_late(ScriptPosition(kind, 0))
        if self.repeats:
            return  # the step is not committed, so nothing of it may be sealed
        place = ScriptPosition(
            kind, self.worker.phases, calls=int(self.committed == self.last_call_ended)
        )
        yield SealMoved(self.committed, place, due=self.is_over or self.agreed.seal)
        if kind != BEGUN:
            return
        if self._unsealed and not self.worker.broken:
            step, self._unsealed = self._unsealed, 0
            yield BookCommit(step)
            if self.agreed.seal:
                yield TellWorkerMachine(partial(WorkerMachine.note_seals_each, step=step))
        if self.committed > self._saved and not self._unsealed:
            self._saved = self.committed
            if asked := self.agreed.save:
                self.agreed = replace(self.agreed, save=False)
                yield TellWorkerMachine(WorkerMachine.note_saved)
            yield Save(self.committed, self.stopping, asked)

    # --- phases between steps ---------------------------------------------------------------------

    def before_phase(self) -> Flow[bool]:
        """Finish the step before a phase. Return False if the phase must not run now.

        If that step was interrupted, it is repeated first, and the peers are not in this phase.
        """
        yield from self._settle(ENTERED)
        if not self.worker.broken and (plan := self._take_plan()) is not None:
            yield from self.follow(plan)
        return not self.repeats

    def end_phase(self, number: int) -> Flow[bool]:
        """Vote on a phase that was done here. Return False if it is to be done again.

        number   how many phases were done after the step before this one
        """
        yield PreparePhase(self.committed, number + 1)
        try:
            yield from self._vote_between(closing=False)
        except Exception as error:  # boundary: the vote
            yield Break(error, peers_only=True)
            plan: Regroup = yield StandStill(in_hook=False)
        else:
            yield TellWorkerMachine(WorkerMachine.note_past_phase)
            return True
        if plan.phases <= number:
            yield RollBackPhase()
        yield from self.follow(plan)
        if self.worker.phases > number:
            return True  # a peer saw the vote pass
        yield ForgetPhase()
        return False

    # --- after an interruption --------------------------------------------------------------------

    def recover(self, error: BaseException) -> Flow[None]:
        """Stand still because of `error`, and follow the plan. The loop repeats the same step."""
        if isinstance(error, OutlastError):
            yield Refuse(error)  # the error would come again at every attempt
        if self.stage not in _ROLLED_BACK:
            self.stage = StepStage.CUT
        plan = self._take_plan()
        if plan is None or plan.settle == "forward":
            # A step that fails while it is applied for a "forward" plan is torn. That plan cannot
            # be followed any more, so report the failure and wait for another plan.
            plan = yield from self._cut_short(error, peers_only=False)
        yield from self.follow(plan)

    def follow(self, plan: Regroup) -> Flow[None]:
        """Follow `plan` into the next generation. If a peer is lost on the way, follow the next
        plan, and so on.

        It raises Reenter if main's function is to be entered again.
        """
        while True:
            try:
                yield from self.settle_for(plan)
                if plan.donate:
                    yield Donate(plan)
                if plan.then == "stand":
                    # Its node is drained. The step is finished, so wait for the next plan.
                    plan = yield StandStill(in_hook=False)
                    continue
                if plan.then == "exit":
                    yield WaitToBeKilled()
                if plan.then == "reenter":
                    self.stage = StepStage.LEFT
                    raise Reenter
                yield Join(plan)
                self.committed = max(self.worker.committed, 0)
                if self.committed == self.last_call_ended:
                    # No step of this call of run.steps is committed yet. A rank that was started
                    # anew is still in the call before, and votes at its end: vote with that rank.
                    yield from self._vote_between(closing=True)
                    yield from self._hand_over_votes()
                return
            except Exception as error:  # boundary: another peer was lost
                lost = error
            plan = yield from self._cut_short(lost, peers_only=True)
            del lost  # its traceback holds this frame, and would be kept alive by it

    def settle_for(self, plan: Regroup) -> Flow[None]:
        """Roll back a step that is not committed. A plan's forward step has been applied by now."""
        in_flight = self.stage not in _ROLLED_BACK or self._unsealed > 0
        # Some ranks may have seen the vote that told of these requests pass, and others not.
        self.agreed = AgreedRequests()
        self.late.rolled_back()
        if in_flight and self.stage is not StepStage.IDLE:
            self.stage = StepStage.REPEAT
        self._unsealed, self._plan = 0, None
        yield RollBack(plan, in_flight)

    def hand_over_and_leave(self, plan: Regroup) -> Flow[None]:
        """Write this rank's state for the others, because an error has left main's function."""
        yield from self.settle_for(plan)
        if plan.donate:
            yield Donate(plan)

    def _cut_short(self, error: BaseException, *, peers_only: bool) -> Flow[Regroup]:
        """Report that this generation is over for this rank, and wait for the plan of the next."""
        yield Break(error, peers_only)
        plan: Regroup = yield StandStill(in_hook=False)
        return plan

    def _take_plan(self) -> Regroup | None:
        """Return the plan that came at a vote and was not followed yet, and forget it; or None."""
        plan, self._plan = self._plan, None
        return plan

    # --- the end of run.steps ---------------------------------------------------------------------

    def _close(self) -> Flow[bool]:
        """Vote that all ranks are past the last step, and have sealed it.

        Return False if a peer was lost. A plan was followed then, and the loop goes on.
        """
        return (yield from self._unless_cut(self._vote_between(closing=True)))

    def _hand_over(self) -> Flow[bool]:
        """Hand over the final state before any rank leaves. Return False as `_close` does."""
        return (yield from self._unless_cut(self._hand_over_votes()))

    def _unless_cut(self, flow: Flow[None]) -> Flow[bool]:
        """Return True if `flow` reached its end. If a peer was lost, follow the plan instead."""
        try:
            yield from flow
            return True
        except OutlastError:
            raise
        except Exception as error:  # boundary: a peer was lost
            lost = error
        plan = yield from self._cut_short(lost, peers_only=True)
        del lost  # its traceback holds this frame, and would be kept alive by it
        yield from self.follow(plan)
        return False

    def _vote_between(self, *, closing: bool) -> Flow[None]:
        result: VoteResult = yield Vote(0, closing)
        self._learn(result)
        yield DeliverVote(result, 0)

    def _learn(self, result: VoteResult) -> None:
        """Remember which requests a vote told of, so that all ranks follow them."""
        known = self.agreed
        if result.stop or result.save or result.seal:
            self.agreed = AgreedRequests(
                known.stop or result.stop, known.save or result.save, known.seal or result.seal
            )

    def _hand_over_votes(self) -> Flow[None]:
        if self.stopping:
            return  # the run does not go on, so no rank needs the state
        waits: bool = yield HandOver(self.committed)
        if waits:
            yield from self._vote_between(closing=True)
