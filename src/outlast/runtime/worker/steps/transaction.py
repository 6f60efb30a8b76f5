"""The transaction: it turns what a script does in its loop into events of the commit machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from outlast.engine.commit.commit_machine import CommitMachine
from outlast.engine.protocol.worker import WorkerMachine
from outlast.errors import OutlastError, Reenter, TransactionError
from outlast.model.limits import PHASE_ERRORS_COUNT
from outlast.model.messages import Regroup
from outlast.model.terms import Cause, Phase
from outlast.runtime import clock
from outlast.runtime.worker.communication.guards import check_optimizer
from outlast.runtime.worker.member.membership import Membership
from outlast.runtime.worker.member.session import WorkerSession
from outlast.runtime.worker.process.phase import Attempt
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.script.hooks import user_line
from outlast.runtime.worker.steps.attach import Attachment
from outlast.runtime.worker.steps.batches import Batches
from outlast.runtime.worker.steps.block import Block
from outlast.runtime.worker.steps.commit_driver import CommitDriver
from outlast.runtime.worker.steps.logbook import To
from outlast.runtime.worker.steps.rehearsal import Rehearsal
from outlast.runtime.worker.steps.step import Step
from outlast.runtime.worker.steps.vote_payload import VotePayload
from outlast.runtime.worker.tensors.random_state import RandomState

# the interpreter or `outlast.main` handles these, so a step never drops them
_PASS_ON = (KeyboardInterrupt, SystemExit, GeneratorExit, Reenter)


class Transaction:
    """Yield the steps of a run. Each is committed on all ranks, or repeated on all.

    The transaction connects the script with the commit machine. The script asks for a step, enters
    its block, calls an optimizer, leaves the block, enters a phase. For each of these the
    transaction runs a flow of the machine, which decides what comes next::

        for step in run.steps(state, until=n):    steps, _next
            with step:                            enter, and the hooks of Block
                ...                               leave
            for attempt in run.phase("evaluate"): wants_phase
                with attempt: ...                 enter_phase, leave_phase

    Its life: the first call of run.steps makes it. A process that replaces a rank may rehearse a
    step first, whose result is dropped (rehearsal.py). Then it attaches: it joins the group and
    restores the run's state. From then on it yields steps until the last one. A second call of
    run.steps goes on with the same transaction (`call_again`). Entering main's function again drops
    it.

    The parts:

        machine      decides (engine/commit/commit_machine.py)
        driver       carries out the machine's commands with torch
        batches      holds the current step and its batches
        block        has the hooks that are on while a block runs
        payload      is sent with each vote
        attachment   restores state when this rank joins, and seals it
        rehearsal    runs steps that do not count

    Without a launcher there is no vote: steps are only yielded and counted. A repeat does not undo
    what a script does outside of its State, such as writing files. `step.on_commit` is for those.
    """

    def __init__(
        self,
        membership: Membership,
        state: State,
        *,
        accumulate: int,
        log_every: int,
        first: int = 1,
    ) -> None:
        self.member = membership
        self.state = state
        self.attachment = Attachment(membership, state, accumulate=accumulate, first=first)
        session = membership.session
        self._machine = CommitMachine(
            # without a launcher this machine is not used
            session.machine if session is not None else WorkerMachine(worker=-1),
            self.attachment.undo.late,
        )
        self._payload = VotePayload(self.attachment, log_every=log_every)
        self._batches = Batches(self, state.source, accumulate=accumulate)
        self._driver = CommitDriver(self.attachment, self._payload, self._batches)
        self._block = Block(self.attachment, self._machine, self._driver)
        self._rehearsal = Rehearsal(self.attachment, self._batches)
        self._attached = False

    @property
    def committed(self) -> int:
        """Return the newest step that this rank has applied after its vote, counted from 0."""
        return self._machine.committed

    @property
    def is_rehearsal(self) -> bool:
        """Return whether the current step is a rehearsal, whose result is dropped."""
        return self._rehearsal.runs

    # --- the loop ---------------------------------------------------------------------------------

    def steps(self, until: int) -> Iterator[Step]:
        """Yield the steps up to `until`. This is the body of `Run.steps`."""
        self._machine.until = until
        self.member.script.left_loop_at = ""
        if self.member.session is not None:
            self.member.session.show_target(until)
        try:
            if self._attached:
                self._begin_steps_call()
            else:
                if self.member.is_spare:
                    yield from self._rehearsal.of_spare()
                if self.member.goes_on_from() > until:
                    # The run is in a later call of run.steps, where this rank will restore its
                    # state. So skip the steps of this call.
                    return
                if (plan := self.member.replayed()) is not None:
                    yield from self._rehearsal.replay(plan)
                self._arrive()
            if self.committed > until:
                return  # the run has moved on to a later call while this rank was joining
            while (step := self._next()) is not None:
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
        """Join the run's group and restore the run's state, unless that is done.

        This happens at the first step, at the end of a replayed step, or in the phase after it.
        """
        if self._attached:
            return  # this rank has joined in the phase after a replayed step
        with self.member.refusing():
            for optimizer in self.state.optimizers.values():
                check_optimizer(optimizer)
            self._machine.attached(self.attachment.attach())
        self._attached = True
        self.member.guards.calls.on_between = self._communicates

    def _next(self) -> Step | None:
        """Return the next step with its batches, or None after the last one."""
        session = self.member.session
        while self._has_next(session):
            number = self._machine.committed + 1
            if session is not None:
                session.book.begin_step(now_s=clock.now_s())
            if self._batches.hold_again(number):
                return self._give_out(None)
            if self._fetch(number):
                return self._give_out(self._batches.random)
        return None

    def _has_next(self, session: WorkerSession | None) -> bool:
        if session is None:
            return not self._machine.is_over
        self.attachment.look_for_edits("after the block of a step")
        goes_on = self._driver.run(self._machine.next_step())
        if goes_on and self.member.pages is not None:
            self.member.pages.goes_on_to("goes on to the next step")
        return goes_on

    def _fetch(self, number: int) -> bool:
        """Fetch the batches of a step.

        Return False if the data set raised and the run has recovered from that: try again.
        """
        session = self.member.session if self._batches.loads else None
        if session is not None:
            session.enter(Phase.DATA, cause=Cause.DATA_WAIT)
        try:
            self._batches.fetch(number)
        except OutlastError as error:
            self.member.refuse(error)
        except Exception as error:  # boundary: the user's dataset
            if session is None:
                raise
            # The coordinator decides how to recover. Nothing but the loader has changed, and the
            # next fetch goes on after the batches that it has delivered.
            self._driver.run(self._machine.recover(error))
            return False
        if session is not None:
            session.enter(Phase.BETWEEN, cause=Cause.PRODUCTIVE, learn=True)
        return True

    def _give_out(self, random_now: RandomState | None) -> Step | None:
        """Record the state at the beginning of the held step, and return that step.

        A repeat starts from here, not from the first line of the block. So the script's code
        between the `for` and `with step:` runs again as well.
        """
        if self.member.session is not None:
            self.state.begin(random_now)
            self.attachment.begin_edits()
            self._machine.give_out()
        return self._batches.held

    # --- the block --------------------------------------------------------------------------------

    def enter(self, step: Step) -> None:
        """Begin the block of `step`. Refuse it unless it is the step that was yielded last."""
        inside = self._block.current is not None
        if inside or step.entered or step is not self._batches.held:
            what = (
                "is entered inside another step"
                if inside
                else "is entered twice"
                if step.entered
                else "is not the step that run.steps yielded last"
            )
            self._refuse_at(
                f"step {step.number} {what}",
                hint="enter each step once, in the loop that yields it: `with step:`",
            )
        self._block.begin(step, is_rehearsal=self._rehearsal.runs)

    def leave(self, step: Step, error: BaseException | None) -> bool:
        """End the block. Return True if `error` is dropped, because the step will be repeated."""
        self._block.end(step)
        if self._rehearsal.runs:
            return self._rehearsal.swallows(error)
        if error is None:
            self.attachment.look_for_edits("in a step that calls no optimizer")
            self.attachment.watch_edits()
        if self.member.session is None:
            return self._leave_without_launcher(step, error)
        if isinstance(error, _PASS_ON):
            self._machine.drop_block()
            return False
        objection = self._block.objection() if error is None else error
        if self._driver.run(self._machine.end_block(objection)):
            if self._machine.waits_for_vote:
                self.member.session.enter(Phase.BETWEEN)  # otherwise the commit has done so
            return False
        self.attachment.watch_edits()
        return True

    def _leave_without_launcher(self, step: Step, error: BaseException | None) -> bool:
        """End a block without a launcher: count the step unless it failed."""
        if error is None:
            self._machine.committed = step.number
            self._driver.step_is_over()
            self._payload.deliver_without_launcher(step)
            step.committed()
            self._payload.hand_over()
        return False

    def log(self, step: Step, values: dict[str, Any], reduce: str | None, to: To | None) -> None:
        """Keep what `step.log` was given, unless the step does not count.

        It does not in a rehearsal, nor in the code after a block that was interrupted.
        """
        if not self._rehearsal.runs and not self._machine.repeats:
            self._payload.log(step, values, reduce, to)

    def _communicates(self, what: str) -> None:
        """Warn once of a collective that no attempt can repeat, because it is in no block."""
        session = self.member.session
        inside = self.member.script.in_body or self._block.current is not None
        if session is None or inside or self._rehearsal.runs:
            return
        self.member.guards.calls.on_between = None
        session.warn(
            f"{user_line()}: {what} is called between two steps: if a rank is lost there, the"
            " others fail there as well, and all ranks start again. Put it into `for attempt in"
            " run.phase(...)`, where it is repeated"
        )

    # --- phases between steps ---------------------------------------------------------------------

    def wants_phase(self, name: str) -> bool:
        """Finish the step before a phase. Return True if the phase is to run.

        All ranks have then reached the phase. A phase inside a step is refused, and so is one
        between the `for` and the step's block.
        """
        session = self.member.session
        self._refuse_phase_of_step(name)
        if session is None:
            return True
        if self._rehearsal.runs:
            if not self._rehearsal.ends_before_phase():
                return True  # the others have done this phase: run it, and drop its result
            self._arrive()
        if not self._attached:
            return False  # the run is in a later call of run.steps, so this phase is done
        self.attachment.look_for_edits("after the block of a step")
        while self._driver.run(self._machine.before_phase()):
            session.enter(Phase.VOTE)
            try:
                self.attachment.agreement.check_place(f"enters the phase {name!r}")
                return True
            except OutlastError:
                raise
            except Exception as error:  # boundary: a peer was lost
                self._driver.run(self._machine.recover(error))
        return False

    def _refuse_phase_of_step(self, name: str) -> None:
        """Refuse a phase in the block of a step, or between the `for` and that block."""
        held = self._batches.held
        if self._block.current is not None:
            self._refuse_at(
                f"the phase {name!r} is entered inside a step", hint="put it between two steps"
            )
        if held is not None and not held.entered and not self._rehearsal.runs:
            self._refuse_at(
                f"the phase {name!r} is entered before the block of step {held.number}",
                hint="put it after the block: `with step:` first",
            )

    def enter_phase(self, attempt: Attempt) -> None:
        """Begin one attempt of a phase."""
        session = self.member.session
        self._refuse_phase_of_step(attempt.name)
        if session is None or self._rehearsal.runs:
            return
        attempt.number = session.machine.phases
        self.state.begin()
        self.state.edits.begin_phase(attempt.name)
        session.enter(Phase.EVALUATION, cause=Cause.EVALUATION)
        self.member.script.in_body = True

    def leave_phase(self, attempt: Attempt, error: BaseException | None) -> bool:
        """End an attempt at a phase: all ranks have done it, or all repeat it.

        Return True if `error` is dropped, because the phase will be repeated.
        """
        session = self.member.session
        self.member.script.in_body = False
        if session is None or self._rehearsal.runs:
            attempt.done = True
            return self._rehearsal.swallows(error)
        if isinstance(error, _PASS_ON):
            return False
        if error is not None:
            attempt.errors += not self.member.is_collateral(error)
            if attempt.errors >= PHASE_ERRORS_COUNT:
                # It would come again. If all ranks started again, the phase would be left out.
                self.state.roll_back()  # a last checkpoint must not hold half of the phase
                self.attachment.images.note_private()
                return False
            self.state.roll_back()
            self.attachment.images.note_private()
            self._driver.run(self._machine.recover(error))
            return True
        self.attachment.look_for_edits(f"in the phase {attempt.name!r}")
        attempt.done = self._driver.run(self._machine.end_phase(attempt.number))
        if attempt.done:
            self.state.edits.end_phase(attempt.name)
        session.enter(Phase.BETWEEN, cause=Cause.OTHER)
        return False

    # --- the end ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Report that this rank is past the last step. End the script if the run stops."""
        self._batches.close_at_exit()
        session = self.member.session
        if session is None:
            self._machine.last_call_ended = self.committed
            return
        session.enter(Phase.EPILOGUE)
        # If this rank registered again now, the coordinator would take it for one that trains.
        self.member.guards.calls.on_held = self.member.guards.calls.on_between = None
        session.mark("finishing", self.committed)
        self._driver.run(self._machine.finish())
        session.enter(Phase.EPILOGUE, cause=Cause.SHUTDOWN)
        # This wait holds no peer up, because the end of the steps is reported already.
        self.attachment.checkpoints.wait()
        if self._machine.stopping:
            raise SystemExit(0)

    def call_again(self, *, accumulate: int, log_every: int) -> None:
        """Prepare for another call of run.steps with the same state. Its steps go on from here."""
        self._batches.accumulate = self.attachment.call.accumulate = accumulate
        self._payload.log_every(log_every)

    def _begin_steps_call(self) -> None:
        """Begin the steps of another call of run.steps."""
        self._machine.begin_steps_call()
        session = self.member.session
        if session is not None:
            self.attachment.begin_steps_call(self.committed)
            session.do(WorkerMachine.note_steps_resumed)
            self.attachment.register()
            self.member.guards.calls.on_between = self._communicates
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def _left_early(self) -> None:
        """Finish the last step, after the script has left its loop by `break` or by an error.

        It is not known here which of the two it was. The end of the script shows that.
        """
        session = self.member.session
        if (
            session is None
            or self._rehearsal.runs
            or self._machine.is_leaving
            or self.member.broken
            or not self._attached
        ):
            return  # there is no step to finish, or no peer to vote with
        self.member.script.left_loop_at = user_line()
        self.member.guards.calls.on_between = None
        in_phase = session.beacon.phase is Phase.EVALUATION  # an error has left that phase
        self.attachment.look_for_edits("after the block of a step")
        if not self._driver.run(self._machine.leave_early()):
            what = (
                f"step {self.committed + 1} was interrupted and the loop was left by"
                " `break`, so the step cannot be repeated"
            )
            self.member.refuse(
                TransactionError(what, hint="end the loop by run.steps(..., until=n)")
            )
        self._batches.close_at_exit()
        self.attachment.checkpoints.wait()
        # The coordinator has to know that a script ends in a phase
        # (`Situation.ended_in_run_phase`).
        last = Phase.EVALUATION if in_phase else Phase.EPILOGUE
        session.enter(last, cause=Cause.SHUTDOWN)

    def hand_over_and_leave(self, plan: Regroup) -> None:
        """Write this rank's state for the others, because an error has left main's function."""
        self._driver.run(self._machine.hand_over_and_leave(plan))

    def drop(self) -> None:
        """Remove the hooks and close the loader: main's function was left, and is entered again."""
        self._block.remove_hooks()
        self._batches.close()

    def _refuse_at(self, what: str, *, hint: str) -> NoReturn:
        self.member.refuse(TransactionError(f"{user_line()}: {what}", hint=hint))
