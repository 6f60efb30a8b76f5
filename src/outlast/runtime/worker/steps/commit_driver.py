"""The commands of the commit machine, carried out with torch.

The order of things and every decision are in `engine/commit/commit_machine.py`. This module says
what each command means on a real rank. Images are sealed in the vault, votes are cast, process
groups are left and entered, and the beacon shows where the rank is.
"""

from __future__ import annotations

from typing import TypeVar

from outlast.engine.commit.commands import (
    AfterFault,
    BookCommit,
    Break,
    CallBack,
    Command,
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
    WaitToBeKilled,
    drive,
)
from outlast.engine.exhaustive import assert_never
from outlast.model.messages import Regroup
from outlast.model.terms import Cause, Phase
from outlast.model.texts import some
from outlast.runtime import clock
from outlast.runtime.worker.communication import ddp
from outlast.runtime.worker.communication.shared_rows import Cut
from outlast.runtime.worker.member.session import WorkerSession
from outlast.runtime.worker.process import devices
from outlast.runtime.worker.saving.keeping import DISK, VAULT
from outlast.runtime.worker.steps.attach import Attachment
from outlast.runtime.worker.steps.batches import Batches
from outlast.runtime.worker.steps.step import Step
from outlast.runtime.worker.steps.vote import VoteOutcome
from outlast.runtime.worker.steps.vote_payload import VotePayload

T = TypeVar("T")


class CommitDriver:
    """Run the flows of a CommitMachine, one at a time, on the main thread of a worker.

    A command that raises does so inside its flow. What the flow does not catch comes out of `run`.
    """

    def __init__(self, attachment: Attachment, payload: VotePayload, batches: Batches) -> None:
        self._attachment = attachment
        self._payload = payload
        self._batches = batches
        self._applied: Step | None = None  # the newest step that this rank has applied

    def run(self, flow: Flow[T]) -> T:
        """Run `flow` to its end and return its result."""
        return drive(flow, self._carry_out)

    @property
    def _session(self) -> WorkerSession:
        session = self._attachment.member.session
        assert session is not None, "without a launcher nothing is committed by a vote"
        return session

    def _carry_out(self, command: Command) -> object:
        """Carry out a command and return its answer. The commands of every step come first."""
        match command:
            case TellWorkerMachine():
                self._session.do(command.act)
            case Prepare():
                return self._prepare(command)
            case Vote():
                return self._vote(command.step) if command.step else self._vote_between(command)
            case PutOff():
                self._put_off(command.step)
            case DeliverVote():
                self._deliver_vote(command)
            case DropUndo():
                return self._drop_undo(command.step)
            case BookCommit():
                self._book_commit(command.step)
            case CallBack():
                self._call_back(now=command.now)
            case SealMoved():
                self._attachment.settle(command.step, command.place, due=command.due)
            case Save():
                self._save(command)
            case ProveEqual():
                self._prove_equal(command.step)
            case PreparePhase():
                self._attachment.images.prepare_phase(command.step, command.phases)
            case RollBackPhase():
                self._attachment.state.roll_back()
            case ForgetPhase():
                self._attachment.images.forget_phase()
            case HandOver():
                return self._hand_over(command.step)
            case _:
                return self._carry_out_after_fault(command)
        return None

    def _carry_out_after_fault(self, command: AfterFault) -> object:
        attachment = self._attachment
        match command:
            case TakeBackTail():
                self._take_back_tail()
            case Refuse():
                attachment.member.refuse(command.error)
            case Break():
                self._break(command)
            case StandStill():
                return attachment.member.stand_still(in_hook=command.in_hook)
            case RollBack():
                self._roll_back(command.plan, in_flight=command.in_flight)
            case Donate():
                self._donate(command.plan)
            case WaitToBeKilled():
                attachment.member.wait_to_be_killed()
            case Join():
                attachment.join(command.plan)
            case _:
                assert_never(command)
        return None

    # --- the two phases of a commit ---------------------------------------------------------------

    def _prepare(self, command: Prepare) -> bool:
        self._wait_for_gpu()
        self._leave_script()
        if self._attachment.agreement.is_unsure:
            self._attachment.images.note_private()
            return False
        self._attachment.images.prepare(command.step, command.place)
        return True

    def _wait_for_gpu(self) -> None:
        """Wait until the GPU has done the work of the step, so that the vote covers it.

        The gradients may still be in transfer between the GPUs. If a peer were lost after the vote,
        the optimizer would apply incomplete gradients. An aborted collective ends without an error,
        so check whether this generation is over. Raises Cut if it is.
        """
        if devices.wait_for_work() and self._attachment.member.broken:
            raise Cut("the generation is over")

    def _leave_script(self) -> None:
        """Begin a late vote. From here on the deadlines of a vote count, not those of a script."""
        if self._session.beacon.phase is Phase.BETWEEN:
            self._session.enter(Phase.VOTE)

    def _vote(self, number: int) -> VoteOutcome:
        session, step = self._session, self._batches.held
        session.mark("prepared", number)
        # Only an early vote ends a body, so that its length counts.
        session.enter(Phase.VOTE, learn=session.beacon.phase is Phase.BODY)
        session.mark("voting", number)
        session.exit_if_lease_is_over()
        outcome = self._payload.cast(step)
        if not outcome.same_watched:
            self._attachment.agreement.find_divergence(number)
        return outcome

    def _put_off(self, step: int) -> None:
        self._attachment.undo.put_off()
        self._attachment.images.put_off(step)

    def _vote_between(self, command: Vote) -> VoteOutcome:
        self._wait_for_gpu()
        self._session.enter(Phase.VOTE)
        if command.closing:
            self._attachment.agreement.check_place("ends run.steps")
        outcome = self._payload.cast(None)
        if command.closing:
            self._attachment.member.ballots.flush()
        return outcome

    def _deliver_vote(self, command: DeliverVote) -> None:
        assert isinstance(command.result, VoteOutcome)
        if not command.step:
            self._payload.count(command.result, None)
            self._payload.hand_over()
            return
        self._session.enter(Phase.VOTE, learn=True)
        self._payload.count(command.result, self._batches.held)
        self._session.mark("passed", command.step)

    def _prove_equal(self, step: int) -> None:
        self._leave_script()
        if self._attachment.agreement.check_after_first_step(step):
            self._attachment.register()

    def _drop_undo(self, number: int) -> bool:
        attachment = self._attachment
        self._session.mark("applied", number)
        attachment.undo.committed()
        self._applied = self._batches.held
        self.step_is_over()
        return attachment.state.sharded

    def step_is_over(self) -> None:
        """Drop the batches of the step, and check what its first run has shown."""
        self._batches.let_go()
        if self._attachment.call.first_step:
            self._attachment.after_first_step()
        with self._attachment.member.refusing():
            self._attachment.state.check_signature()

    def _book_commit(self, number: int) -> None:
        session, now_s = self._session, clock.now_s()
        session.exit_if_lease_is_over()
        session.book.commit_step(
            now_s=now_s, first=number > self._attachment.call.high_water, then=Cause.OTHER
        )
        session.do(lambda machine: machine.note_committed(step=number, now_s=now_s))
        session.enter(Phase.BETWEEN)
        session.mark("committed", number)

    def _call_back(self, *, now: bool) -> None:
        assert self._applied is not None
        if now:
            self._applied.committed()
        else:
            self._payload.await_seals(self._applied)
        self._payload.hand_over()

    def _save(self, command: Save) -> None:
        session, checkpoints = self._session, self._attachment.checkpoints
        step, last = command.step, command.stopping and checkpoints.on_stop
        keeping, sharded = self._attachment.copies.keeping, self._attachment.state.sharded
        timed = keeping.is_due(DISK, step)
        if checkpoints.due(step) or last or command.asked or timed:
            session.enter(Phase.CHECKPOINT, cause=Cause.STALL)
            session.mark("saving", step)
            checkpoints.save(step)
            keeping.copied(DISK, cost_s=0.0)
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)
        if keeping.is_due(VAULT, step) and not sharded:
            session.enter(Phase.SNAPSHOT, cause=Cause.STALL)
            self._attachment.copies.make(step)
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def _hand_over(self, step: int) -> bool:
        """Compare the replicated state of all ranks once more, before it counts as the result.

        No rank leaves run.steps before the final state is in the vault.
        """
        attachment = self._attachment
        if attachment.state.sharded:
            return False
        self._session.enter(Phase.CHECKPOINT)
        if attachment.member.world_size > 1:
            with attachment.member.refusing():
                attachment.agreement.find_divergence(step)
        attachment.hand_over_at_end(step)
        return True

    # --- after a fault ----------------------------------------------------------------------------

    def _break(self, command: Break) -> None:
        member = self._attachment.member
        if command.peers_only and not member.is_collateral(command.error):
            raise command.error
        if member.is_collateral(command.error):
            self._attachment.agreement.check_lost_peer()
        member.broke(command.error)

    def _donate(self, plan: Regroup) -> None:
        # A process that ends once it has handed over is replaced, which is part of the regroup.
        cause = Cause.REGROUP if plan.then == "exit" else Cause.RESTORE
        self._session.enter(Phase.REGROUP, cause=cause)
        self._session.exit_if_lease_is_over()
        self._attachment.donate(plan)

    def _roll_back(self, plan: Regroup, *, in_flight: bool) -> None:
        self._payload.settle(plan)
        now_s, book = clock.now_s(), self._session.book
        if in_flight:
            if (step := self._batches.held or self._applied) is not None:
                self._payload.forget(step)
            for wrapped in self._attachment.replicas:
                ddp.leave_buckets(wrapped)
            self._take_back_edits()
            self._attachment.state.roll_back()
            book.roll_back(
                now_s=now_s, fault_s=plan.fault_s, detected_s=plan.detected_s, then=Cause.REGROUP
            )
        else:
            book.roll_back(now_s=now_s, fault_s=None, detected_s=None, then=Cause.REGROUP)
        self._attachment.mark("settled")

    def _take_back_edits(self) -> None:
        """Undo what the optimizers did, and look for what the script did before."""
        self._attachment.look_for_edits("in front of the optimizer")
        self._put_copy_back()

    def _take_back_tail(self) -> None:
        """Undo what the loop's code after an interrupted block did, before it is given away."""
        self._put_copy_back()
        self._attachment.state.roll_back()

    def _put_copy_back(self) -> None:
        """Restore the copy of a late vote.

        Without a copy, warn if the script edited a parameter for the first time in the repeated
        step: no copy of it was kept, because it was not known that it would be edited.
        """
        if self._attachment.undo.take_back():
            return
        if uncopied := self._attachment.state.edits.uncopied:
            self._session.warn(
                f"{some(uncopied)} had been changed in the step that is repeated, and no copy was"
                " kept: not bit-exact from here on"
            )
