"""The two-phase commit of a step, and what a rank does when it is cut short."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial

from outlast.engine.commit.commands import (
    Break,
    CallBack,
    Count,
    Deliver,
    Donate,
    Flow,
    ForgetPhase,
    HandOver,
    Join,
    Keep,
    Prepare,
    PreparePhase,
    ProveEqual,
    PutOff,
    Record,
    Refuse,
    RollBack,
    RollBackPhase,
    Save,
    SealMoved,
    StandStill,
    TakeBackTail,
    Vote,
    VoteResult,
    WaitToBeKilled,
)
from outlast.engine.commit.image_place import AT_VOTE, BEGUN, ENTERED, Place
from outlast.engine.commit.late_votes import LateVotes
from outlast.engine.protocol.worker import WorkerMachine
from outlast.errors import OutlastError, Reenter, StepInterrupted
from outlast.model.messages import Regroup


class StepStage(Enum):
    """The progress of the step that the script has, or will have next."""

    IDLE = "idle"  # there is no step in turn: the newest one is committed
    GIVEN = "given"  # the script has the step, and has not entered its block
    BLOCK = "block"  # the block runs, and its vote has not passed
    PASSED = "passed"  # the block runs, and its optimizers may apply the step
    LATE = "late"  # the block is over, and the vote comes later
    CUT = "cut"  # the block is over and was interrupted; nothing is rolled back yet
    REPEAT = "repeat"  # the step is rolled back, and will be given out again
    LEFT = "left"  # main's function is being left, to be entered again


@dataclass(frozen=True, slots=True)
class Wishes:
    """Hold what some rank was asked for, as far as all ranks know it by a vote.

    stop  the run is to end after the step
    save  a checkpoint of the step is to be written
    """

    stop: bool = False
    save: bool = False


# the script runs on after a block that does not count
_LEFT_BEHIND = (StepStage.CUT, StepStage.REPEAT)
_ROLLED_BACK = (StepStage.IDLE, StepStage.REPEAT)


class CommitMachine:
    """One rank's two-phase commit: the states, the order and the decisions of a step.

    A step is committed on all ranks, or it is repeated on all of them. For that, each rank first
    *prepares* the step: it seals what a successor would need. Then all ranks *vote*. Once the vote
    has passed, every rank has prepared, so each may *apply* the step (run its optimizers) and
    *commit* it. A rank that is lost after that finds its sealed image; a rank that is cut short
    before the vote rolls back.

    An example, one step as a script goes through it, with the flows that its driver runs::

        for step in run.steps(...):     next_step    settle the step before; True: give one out
            with step:                  enter_block
                loss.backward()
                optimizer.step()        vote_early   prepare and vote, then apply
                                        end_block    commit, or be repeated
            code after the block       (belongs to the step; sealed by the next settle)

    A step that votes late (see late_votes.py) applies first and votes when the next step or phase
    is asked for. An early vote can show that this is needed. Then it is *put off*. A *phase*
    between steps is voted on like a step, and repeated like one.

    When a peer is lost, a command of a flow raises. The rank then *stands still*: it sends its
    inventory and waits for a plan. It *follows* the plan in `follow`, the only place where plans
    are followed:

        forward   The rank stands at its vote, and some rank saw that vote pass. It applies the step
                  and commits it. It follows the plan before its next step or phase.
        repeat    The step is rolled back, the rank joins the next generation, and the same step is
                  given out again.
        stand     It has finished the step in hand, and stands still once more. It is about to be
                  replaced.
        go back   The plan names an older step. This process ends, or enters main's function again,
                  and restores what the plan says.
        reenter   Main's function is left by `Reenter`, and entered again in the same process.

    The machine is sans-IO. It reads no clock, starts nothing, and knows no tensors: its flows yield
    commands (commands.py), and the worker with torch and the simulated world carry them out. Its
    driver runs one flow at a time.

    What it does not promise: that a committed step survives the loss of all ranks that hold it.
    That is what checkpoints are for. It does not look for a hang either: a rank that stands in a
    command until it is killed is the agent's business.
    """

    def __init__(self, worker: WorkerMachine, late: LateVotes) -> None:
        self.worker = worker
        self.late = late
        # counts from 0, the state before the first step. It is ahead of the worker's own count
        # while an image of sharded state is still to be sealed
        self.committed = 0
        self.stage = StepStage.IDLE
        self.agreed = Wishes()
        self.until = 0  # the last step of this call of run.steps
        self.last_call_ended = -1  # where an earlier call of run.steps ended
        self._plan: Regroup | None = None  # it was given at a vote, and is followed later
        self._unsealed = 0  # a step that passed its vote, and counts once it is sealed
        self._saved = 0  # the step up to which checkpoints were looked after

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
        """Return True if the newest block was interrupted, so its step will be given out again."""
        return self.stage in _LEFT_BEHIND

    @property
    def is_leaving(self) -> bool:
        """Return True if `Reenter` was raised, even if the script has swallowed it."""
        return self.stage is StepStage.LEFT

    @property
    def has_passed(self) -> bool:
        """Return True if the vote of the step in hand has passed, so its optimizers may run."""
        return self.stage is StepStage.PASSED

    @property
    def waits_for_vote(self) -> bool:
        """Return True if a block is over whose vote comes later."""
        return self.stage is StepStage.LATE

    # --- events that need no command --------------------------------------------------------------

    def attached(self, step: int) -> None:
        """Begin at `step`: this rank is in the group, with the state of that step."""
        self.committed = self._saved = step

    def give_out(self) -> None:
        """Note that the script has the next step. From here on it is taken back as a whole."""
        self.stage, self.worker.cut = StepStage.GIVEN, False

    def enter_block(self) -> None:
        """Note that the block of the step begins."""
        self.stage = StepStage.BLOCK

    def drop_block(self) -> None:
        """Note that an exception which is not for outlast, such as an exit, leaves the block."""
        self.stage, self.worker.cut = StepStage.CUT, True

    def begin_steps_call(self) -> None:
        """Note that run.steps is called again. A step of the call before may not be committed."""
        self.stage = StepStage.REPEAT if self.repeats else StepStage.IDLE

    @property
    def is_cut(self) -> bool:
        """Return True if the step in hand cannot go on to its vote.

        The script may have swallowed the exception that told it so.
        """
        cut = self.worker.broken or self._plan is not None
        return cut and self.stage is not StepStage.PASSED

    # --- the loop ---------------------------------------------------------------------------------

    def next_step(self) -> Flow[bool]:
        """Get to the beginning of the next step. Return False if there is none."""
        if self.stage is StepStage.LEFT:
            raise Reenter  # the script has swallowed the first one
        while True:
            yield from self._settle(BEGUN)
            yield Record(partial(WorkerMachine.now_begun, over=self.is_over))
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
        """Prepare and vote in front of the first optimizer call of a block.

        Raises StepInterrupted where the optimizer must not run. A step that votes late passes.
        """
        if self.is_cut:
            raise StepInterrupted
        if not self.late.on:
            yield from self._vote(AT_VOTE)

    def end_block(self, objection: BaseException | None) -> Flow[bool]:
        """Leave the block: commit the step, or let it vote late. Return False if it is repeated.

        objection   what the block raised, or why it cannot be committed although it raised nothing
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
        """Finish the step after which the script has left its loop.

        Return False if that step was interrupted, and so should be repeated but cannot be.
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
        yield Record(partial(WorkerMachine.finished, stopped=self.stopping))

    # --- prepare, vote, commit --------------------------------------------------------------------

    def _vote(self, place: Place) -> Flow[None]:
        """Prepare and vote for the step in hand; the script is at `place`.

        Returns when the step may be committed, or when its early vote was put off. Raises
        StepInterrupted when it is to be repeated.
        """
        step = self.committed + 1
        try:
            if (yield Prepare(step, place)):
                yield Record(partial(WorkerMachine.now_prepared, step=step))
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
            yield Record(partial(WorkerMachine.now_passed, step=step))
            self._learn(result)
            yield Deliver(result, step)
        self.stage = StepStage.PASSED

    def _put_off(self, step: int) -> Flow[None]:
        """Let `step` vote late after all. All ranks have seen the same vote, and do the same.

        A rank that has sealed an image forgets it before the step goes on. Where all ranks have
        one, the step would be brought forward, and not repeated.
        """
        yield PutOff(step)
        yield Record(partial(WorkerMachine.now_prepared, step=self.committed))
        self.late.put_off()

    def _commit(self) -> Flow[None]:
        """Commit the step in hand. It is applied here, and its vote has passed."""
        step = self.committed + 1
        self.late.committed()
        sharded: bool = yield Keep(step)
        self.committed, self.stage = step, StepStage.IDLE
        if sharded:
            # The others know that it is sealed from the next vote, which comes after the seal.
            self._unsealed = step
        else:
            yield Count(step)
        yield CallBack(now=not sharded)

    def _vote_late(self, place: Place) -> Flow[None]:
        """Vote for a step whose block is over. It is committed by that, or repeated."""
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
        """Vote if that is due, and seal. The script has done all that it does after a block.

        What the script does after the block of a step belongs to that step. A rank that is lost
        later comes back with what it had here.
        """
        if self.stage is StepStage.LATE:
            yield from self._vote_late(Place(kind, 0))
        if self.repeats:
            return  # the step is not committed, so nothing of it may be sealed
        place = Place(kind, self.worker.phases, calls=int(self.committed == self.last_call_ended))
        yield SealMoved(self.committed, place, last=self.is_over)
        if kind != BEGUN:
            return
        if self._unsealed and not self.worker.broken:
            step, self._unsealed = self._unsealed, 0
            yield Count(step)
        if self.committed > self._saved and not self._unsealed:
            self._saved = self.committed
            if asked := self.agreed.save:
                self.agreed = Wishes(stop=self.stopping)
                yield Record(WorkerMachine.now_saved)
            yield Save(self.committed, self.stopping, asked)

    # --- phases between steps ---------------------------------------------------------------------

    def before_phase(self) -> Flow[bool]:
        """Finish the step before a phase. Return False if the phase must not run now.

        The block before may have been interrupted. Then its step is not committed, and its peers
        are not in this phase.
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
            yield Record(WorkerMachine.now_past_phase)
            return True
        if plan.phases <= number:
            yield RollBackPhase()
        yield from self.follow(plan)
        if self.worker.phases > number:
            return True  # a peer saw the vote pass
        yield ForgetPhase()
        return False

    # --- when it is cut short ---------------------------------------------------------------------

    def recover(self, error: BaseException) -> Flow[None]:
        """Stand still for `error`, and follow the plan. The loop goes on with the same step."""
        if isinstance(error, OutlastError):
            yield Refuse(error)  # it would come again on every attempt
        if self.stage not in _ROLLED_BACK:
            self.stage = StepStage.CUT
        plan = self._take_plan()
        if plan is None or plan.settle == "forward":
            # A step that failed while a plan applied it is torn: that plan cannot be followed any
            # more.
            plan = yield from self._cut_short(error, peers_only=False)
        yield from self.follow(plan)

    def follow(self, plan: Regroup) -> Flow[None]:
        """Follow `plan` into the next generation, and the newest one if a peer is lost meanwhile.

        Raises Reenter where main's function is to be entered again.
        """
        while True:
            try:
                yield from self.settle_for(plan)
                if plan.donate:
                    yield Donate(plan)
                if plan.then == "stand":
                    # Its node is drained. The step is finished, and what follows is decided now.
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
                    # A rank that starts afresh begins with the call before this one, and votes at
                    # the end of that call.
                    yield from self._vote_between(closing=True)
                    yield from self._hand_over_votes()
                return
            except Exception as error:  # boundary: another peer was lost
                lost = error
            plan = yield from self._cut_short(lost, peers_only=True)
            del lost  # its traceback holds this frame, and would be kept alive by it

    def settle_for(self, plan: Regroup) -> Flow[None]:
        """Roll back the step in hand, if there is one. A forward step has been applied by now."""
        in_flight = self.stage not in _ROLLED_BACK or self._unsealed > 0
        # some may have come through a vote that said so, and some not
        self.agreed = Wishes()
        self.late.rolled_back()
        if in_flight and self.stage is not StepStage.IDLE:
            self.stage = StepStage.REPEAT
        self._unsealed, self._plan = 0, None
        yield RollBack(plan, in_flight)

    def hand_over_and_leave(self, plan: Regroup) -> Flow[None]:
        """Give away what this rank holds, because an error has left main's function."""
        yield from self.settle_for(plan)
        if plan.donate:
            yield Donate(plan)

    def _cut_short(self, error: BaseException, *, peers_only: bool) -> Flow[Regroup]:
        """Report that this generation is over for this rank, and wait for the plan of the next."""
        yield Break(error, peers_only)
        plan: Regroup = yield StandStill(in_hook=False)
        return plan

    def _take_plan(self) -> Regroup | None:
        """Return the plan that waited for the step, if there is one, and forget it."""
        plan, self._plan = self._plan, None
        return plan

    # --- the end of run.steps ---------------------------------------------------------------------

    def _close(self) -> Flow[bool]:
        """Vote that all ranks are past the last step, and have sealed it. False: go on."""
        return (yield from self._unless_cut(self._vote_between(closing=True)))

    def _hand_over(self) -> Flow[bool]:
        """Leave the final state where a successor finds it, before a rank leaves. False: go on."""
        return (yield from self._unless_cut(self._hand_over_votes()))

    def _unless_cut(self, flow: Flow[None]) -> Flow[bool]:
        """Return True if `flow` came to its end, and follow the plan if a peer was lost."""
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
        yield Deliver(result, 0)

    def _learn(self, result: VoteResult) -> None:
        """Take in what a vote says of wishes that one rank was told, and all are to follow."""
        stop, save = self.agreed.stop or result.stop, self.agreed.save or result.save
        if stop or save:
            self.agreed = Wishes(stop, save)

    def _hand_over_votes(self) -> Flow[None]:
        if self.stopping:
            return  # the run does not go on, so no rank needs the state
        waits: bool = yield HandOver(self.committed)
        if waits:
            yield from self._vote_between(closing=True)
