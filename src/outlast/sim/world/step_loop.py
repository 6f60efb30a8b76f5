"""The training loop of the simulated script: steps, their blocks, and the code between two steps.

This is the script. The option `phase_after` says which step a phase follows::

    for step in run.steps(state, until=n):
        with step:
            loss.backward()
            optimizer.step()
        own code                                     # the first piece after the step
        if step.number == phase_after:
            for attempt in run.phase("evaluate"):
                with attempt: ...
            own code                                 # the second piece

The commit machine decides outlast's part in it, as on a real rank.
"""

from __future__ import annotations

from outlast.engine.commit.commit_machine import CommitMachine
from outlast.engine.commit.late_votes import LateVotes
from outlast.errors import StepInterrupted
from outlast.model.messages import Regroup
from outlast.model.terms import Cause, Phase
from outlast.sim.durations import APPLY_MOST_S, APPLY_S, BODY_SPREAD_S
from outlast.sim.world.commit_commands import CommitCommands
from outlast.sim.world.main_thread import MainThread
from outlast.sim.world.processes import TORN, PeerFailure, Thread, UserError


class StepLoop:
    """The loop of one life of main's function, in one process.

    machine   decides what happens to each step
    late      whether the current step votes late
    past      the number of pieces of its own code that the script has run after the newest block
    """

    def __init__(self, thread: MainThread) -> None:
        self.late = LateVotes()
        self.machine = CommitMachine(thread.machine, self.late)
        self.machine.until = thread.world.options.steps
        self.commands = CommitCommands(thread, self.late)
        self.past = 0
        self._thread = thread
        self._block = 0  # the number of the newest block

    # --- the position of the script ---------------------------------------------------------------

    def comes_to(self, plan: Regroup, *, in_place: bool) -> None:
        """Move to the place in the script at which the plan lets this rank join.

        A replayed step ends before the next step, or before the first phase that the others have
        not done. The effects of the script's own code before that are lost, because this rank then
        restores its state.
        """
        process, world = self._thread.p, self._thread.world
        pieces, image = world.options.pieces(plan.step), world.transfer
        self.past = pieces if plan.step or plan.phases else 1
        if plan.replay:
            self.past = min(1 + plan.phases, pieces)
        donated = in_place and plan.step and plan.replicated == "donor" and image is not None
        process.ran = image[3] if donated and image is not None else self.past
        process.own = self.past
        self._block = plan.step

    def _runs_own(self, pieces: int) -> None:
        """Run the script's own code after the newest block, up to `pieces` pieces.

        It may change state.
        """
        self._thread.p.ran += max(0, pieces - self.past)
        self._thread.p.own += max(0, pieces - self.past)
        self.past = max(self.past, pieces)

    # --- the loop ---------------------------------------------------------------------------------

    def run(self) -> Thread:
        """Train from the step at which this rank has joined up to the last one."""
        thread = self._thread
        self.machine.attached(max(thread.machine.committed, 0))
        while True:
            yield from self._behind_block()
            if not (yield from self.commands.run(self.machine.next_step())):
                break
            if thread.world.skip_ahead.is_barrier(self.machine.committed):
                yield from self._barrier()
            yield from self._step(self.machine.committed + 1)
        thread.enter(Phase.EPILOGUE, cause=Cause.SHUTDOWN)
        yield from thread.mark("finishing")
        yield from self.commands.run(self.machine.finish())
        while thread.world.now_s < thread.p.saves_until_s:
            yield "sleep", thread.p.saves_until_s - thread.world.now_s

    def _behind_block(self) -> Thread:
        """Run the code after the newest block: own code, a phase, and own code again."""
        pieces = self._thread.world.options.pieces(self._block)
        self._runs_own(1)
        if self.past < pieces:
            yield from self._phase()
        self._runs_own(pieces)

    def _barrier(self) -> Thread:
        """Wait for all other ranks; many steps may have passed when this returns."""
        thread, before = self._thread, self.machine.committed
        yield "barrier", None
        if thread.machine.committed > before:
            self._block = thread.machine.committed
            self.machine.attached(self._block)
            self.past = thread.p.ran = thread.world.options.pieces(self._block)
            thread.p.own = self.past

    def _phase(self) -> Thread:
        """Do the phase once, and again if it is cut short.

        A rank that has joined where its peers wait reaches the phase in the same way.
        """
        thread = self._thread
        while (yield from self.commands.run(self.machine.before_phase())):
            number, began_s = thread.machine.phases, thread.world.now_s
            self.commands.begin_phase()
            thread.enter(Phase.EVALUATION, cause=Cause.EVALUATION)
            yield from thread.mark("phase")
            done = yield from self.commands.run(self.machine.end_phase(number))
            thread.enter(Phase.BETWEEN, cause=Cause.OTHER)
            # a step of sharded state is not counted yet; the phase is not work on that step
            thread.p.step_began_s += thread.world.now_s - began_s
            if done:
                return

    # --- a step -----------------------------------------------------------------------------------

    def _step(self, number: int) -> Thread:
        process, world = self._thread.p, self._thread.world
        process.book.begin_step(now_s=world.now_s)
        process.step_began_s = world.now_s
        self.commands.begin()
        self.machine.give_out()
        error: BaseException | None = None
        try:
            yield from self._body()
            yield from self.commands.run(self.machine.vote_early())
            yield from self._apply()
        except (UserError, PeerFailure, StepInterrupted) as raised:
            error = raised
        process.in_body = False
        self._block, self.past = number, 0
        yield from self.commands.run(self.machine.end_block(error))
        if self.machine.waits_for_vote:
            self._thread.enter(Phase.BETWEEN)

    def _body(self) -> Thread:
        """Compute the gradients, and reduce them over all ranks."""
        thread, options = self._thread, self._thread.world.options
        self.machine.enter_block()
        thread.enter(Phase.BODY)
        thread.p.in_body = True
        yield from thread.mark("body")
        compute_s = thread.world.lasting(thread.p, options.step_s, options.step_s + BODY_SPREAD_S)
        yield "sleep", compute_s + self._warming_up_s()
        yield "collective", None
        yield from thread.mark("reduced")
        thread.p.in_body = False

    def _apply(self) -> Thread:
        """Run the optimizer. In between, parameters are of this step and schedulers of the last."""
        thread = self._thread
        thread.enter(Phase.APPLY)
        before, thread.p.content = thread.p.content, TORN
        yield "sleep", thread.world.lasting(thread.p, APPLY_S, APPLY_MOST_S)
        yield from thread.mark("applied")
        thread.p.holds(before + 1)
        thread.p.ran = thread.p.own = 0
        thread.world.has_executed(before + 1)

    def _warming_up_s(self) -> float:
        """Return the extra seconds of the first step of a process, which compiles and allocates."""
        process, world = self._thread.p, self._thread.world
        cold, process.warm = not process.warm, True
        if not cold or not world.options.first_step_s:
            return 0.0
        return world.lasting(process, 0.0, world.options.first_step_s)
