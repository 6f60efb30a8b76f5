"""`WorkerMachine`: one worker's part in the protocol between workers, agents and the coordinator.

    NEW ──Regroup──> MOVING ──joined──> TRAINING ──Leave or own failure──> BROKEN ──stand_still──┐
                     ^  └──────────────────── Leave of this generation ─────^                    │
                     └────────────────────────────Regroup───────────────── STILL <───────────────┘

A worker is DETACHED while its main thread has taken no plan: it starts up, is parked, or runs the
user's set-up code outside of any group. There is no step to interrupt, so the listener thread
answers a Leave by itself. The main thread takes the newest plan at outlast.join or run.steps. A
worker is FINISHED after its last step. The listener answers a Leave there too, and the main thread
is woken from whatever the script does.
"""

from __future__ import annotations

from enum import Enum

from outlast.engine.protocol.outputs import (
    AnswerPing,
    Output,
    Say,
    SendOut,
    Wake,
    WakeForPlan,
)
from outlast.model.messages import (
    Broke,
    Committed,
    Donated,
    Finished,
    ForWorker,
    Inventory,
    Joined,
    Leave,
    Ping,
    Registered,
    Regroup,
    SaveNow,
    SealEach,
    Sealed,
    SendImage,
    Stop,
    Underway,
)
from outlast.model.terms import Waypoint


class WorkerState(Enum):
    """The states of a worker.

    NEW        no plan has come yet
    DETACHED   a plan has come that the main thread has not taken, so there is nothing to leave
    MOVING     the worker is on its way into the generation of its newest plan
    TRAINING   the worker is in its generation, and trains
    BROKEN     the generation is over, and the main thread has not stopped yet
    STILL      the main thread stands still. The inventory is sent, and it waits for a plan
    FINISHED   the last step is done
    """

    NEW = "new"
    DETACHED = "detached"
    MOVING = "moving"
    TRAINING = "training"
    BROKEN = "broken"
    STILL = "still"
    FINISHED = "finished"


class WorkerMachine:
    """Keep what one worker has committed and which generation it is in, and report both.

    Two threads of the process call it, under a lock of the caller. The listener thread passes on
    messages of the agent (`on_message`). The main thread reports what its step did, through the
    commit machine (engine/commit). In this example a peer's death interrupts a step::

        note_prepared(step=7)          the image of step 7 is sealed
        on_message(Leave(...))         a peer is dead: [Wake()], which ends the vote
        broke(...)                     []: the coordinator has sent the Leave, so it knows
        stand_still(in_hook=True)      [Say(Inventory(...))]: what this rank holds
        on_message(Regroup(...))       [WakeForPlan()]: the main thread follows it
        joined(plan, ...)              [Say(Joined(...))]

    It is sans-IO: methods take `now_s` where they need it, and return outputs. It does not decide
    what happens to a step. The commit machine does, by the plans that arrive here.

    committed   -1 until state is attached. Steps count from 1; step 0 is the initial state
    prepared    the newest step whose image is sealed for a vote
    passed      the newest step whose vote this rank saw pass, or that a plan said had passed
    sealed      the steps of sharded state whose images are sealed, the newest first
    phases      how many phases after `committed` are done
    begun       the step after `committed` was asked for, so all phases are done
    over        no step follows `committed`
    cut         the script is leaving out of the middle of a step (sys.exit)
    """

    def __init__(self, *, worker: int) -> None:
        self.worker = worker
        self.state = WorkerState.NEW
        self.generation = 0
        self.plan: Regroup | None = None
        self.stop: Stop | None = None
        self.saves_now = False
        self.seals_each = False
        self.attached = False
        self._detached = True
        self.committed = -1
        self.prepared = -1
        self.passed = -1
        self.sealed: tuple[int, ...] = ()
        self.phases = 0
        self.begun = False
        self.over = False
        self.cut = False
        self._first_commit_said = True
        self._broke_said = False
        self._sealed_said = False

    @property
    def broken(self) -> bool:
        """Return True if this generation's collectives must not be entered again."""
        return self.state in (WorkerState.BROKEN, WorkerState.STILL)

    # --- the listener's side ---

    def on_message(self, message: ForWorker) -> list[Output]:
        """Handle a message of the agent."""
        if isinstance(message, Regroup):
            return self._on_regroup(message)
        if isinstance(message, Leave):
            return self._on_leave(message)
        if isinstance(message, Stop):
            self.stop = message
            return []
        if isinstance(message, SaveNow):
            self.saves_now = True
            return []
        if isinstance(message, SealEach):
            self.seals_each = True
            return []
        if isinstance(message, SendImage):
            still = self.state is WorkerState.STILL and message.generation == self.generation
            return [SendOut(message.generation, message.step, message.at)] if still else []
        assert isinstance(message, Ping)
        return [AnswerPing(message.nonce)]

    def _on_regroup(self, message: Regroup) -> list[Output]:
        if message.generation <= self.generation:
            return []  # the plan is older than the newest one, or the same
        self.generation = message.generation
        self.plan = message
        self.state = WorkerState.DETACHED if self._detached else WorkerState.MOVING
        self._first_commit_said = self._broke_said = False
        self.seals_each = self._sealed_said = False
        if message.settle == "forward":
            self.passed = max(self.passed, message.step)
        return [WakeForPlan()]

    def _on_leave(self, message: Leave) -> list[Output]:
        if message.generation != self.generation:
            return []  # it is about a generation that this worker is not in
        if self.state is WorkerState.DETACHED:
            # The main thread has not taken the plan, so there is nothing to leave.
            self.plan = None
            return self._inventory(in_hook=False)
        if self.state is WorkerState.FINISHED:
            # The worker is past its last step, so the listener answers for it.
            return [*self._inventory(in_hook=False), Wake()]
        if self.state in (WorkerState.MOVING, WorkerState.TRAINING):
            self.state = WorkerState.BROKEN
            return [Wake()]
        return []

    # --- the main thread's side ---

    def detach(self) -> None:
        """Note that the main thread takes the plan in run.steps, where the survivors are."""
        self._detached = True
        if self.state is WorkerState.MOVING:
            self.state = WorkerState.DETACHED

    def newer_plan(self, *, than: int) -> Regroup | None:
        """Return the newest plan if its generation is above `than`."""
        return self.plan if self.plan is not None and self.plan.generation > than else None

    def may_act(self, *, lent_until_s: float, now_s: float) -> bool:
        """Return True if the lease of its node lets this worker vote, seal, restore and commit.

        Otherwise the worker has to end itself (see AgentSession.lent_until_s). Its rank is about to
        be given away, and its agent may be unable to kill it.
        """
        return now_s < lent_until_s

    def stands_still_in(self, generation: int) -> bool:
        """Return True if this worker has left `generation`, and has followed no plan since."""
        return self.broken and self.generation == generation

    def in_time(self, generation: int) -> bool:
        """Return True if `generation` is still this worker's, and is not broken."""
        return not self.broken and self.generation == generation

    def starts_over(self, plan: Regroup, *, reenters: bool) -> bool:
        """Return True if a rank that was interrupted while it attached re-enters main's function.

        plan       the next plan
        reenters   the script has called outlast.main
        """
        return plan.then == "reenter" or (reenters and plan.replicated != "donor")

    def born_in(self, generation: int) -> None:
        """Set the generation of a worker that fails before any plan has come, for its report."""
        if self.generation == 0 and self.plan is None:
            self.generation = generation

    def follow(self) -> None:
        """Note that the main thread takes the newest plan. From here on a Leave interrupts it."""
        self._detached = False
        if self.state is WorkerState.DETACHED:
            self.state = WorkerState.MOVING

    def register(
        self,
        *,
        recovery_mode: str,
        sharded: bool,
        exact: bool,
        note: str,
        at_steps: bool = True,
        alike: tuple[int, ...] = (),
    ) -> list[Output]:
        """Report how this script can be recovered: when it joins, and again at run.steps."""
        return [
            Say(
                Registered(
                    self.worker,
                    self.generation,
                    self.committed,
                    recovery_mode,
                    sharded,
                    exact,
                    note,
                    at_steps,
                    alike,
                )
            )
        ]

    def underway(self, waypoint: Waypoint) -> list[Output]:
        """Report how far this rank has come on its way into the generation."""
        return [Say(Underway(self.worker, self.generation, waypoint.value))]

    def donated(self, *, step: int) -> list[Output]:
        """Report that the transfer image of `step` is written."""
        return [Say(Donated(self.worker, self.generation, step))]

    def joined(self, plan: Regroup, *, group_s: float, restore_s: float) -> list[Output]:
        """Report that the group of `plan` is built, and that the state is of its step.

        Nothing is reported if the generation broke meanwhile.
        """
        step = plan.step
        self.attached = True
        if step != self.committed:
            self.begun = self.over = False
        self.phases = plan.phases
        self.committed, self.prepared, self.passed = step, max(step, 0), step
        if self.state is not WorkerState.MOVING:
            return []
        self.state = WorkerState.TRAINING
        return [Say(Joined(self.worker, self.generation, step, group_s, restore_s))]

    def note_prepared(self, *, step: int) -> None:
        """Note that the image of `step` is sealed for its vote."""
        self.prepared = step

    def note_passed(self, *, step: int) -> None:
        """Note that this rank saw the vote of `step` pass."""
        self.passed = step

    def note_sealed(self, *, steps: tuple[int, ...]) -> None:
        """Note the steps of sharded state whose images are sealed."""
        self.sealed = steps

    def note_committed(self, *, step: int, now_s: float) -> list[Output]:
        """Note that `step` is committed, and report the first new one of this generation.

        Survivors may first finish the step from which the plan goes on. That commit is reported as
        well, but it is not new: no rank goes on to the next step before all have joined.
        """
        self.committed = step
        self.phases, self.begun, self.over = 0, False, False
        self.passed = self.prepared = max(step, self.prepared)
        is_new = self.plan is None or step > self.plan.step
        if self._first_commit_said:
            return []  # only the first new commit of a generation ends an interruption
        self._first_commit_said = is_new
        return [Say(Committed(self.worker, self.generation, step, now_s, is_new))]

    def note_stepped(self, *, step: int, now_s: float) -> list[Output]:
        """Report the first optimizer call of a script without outlast calls in this generation.

        step   the optimizer's own count of its steps; 0: it keeps none
        """
        if self._first_commit_said or self.generation == 0:
            return []
        self._first_commit_said = True
        return [Say(Committed(self.worker, self.generation, step, now_s))]

    def note_saved(self) -> None:
        """Note that all ranks have begun the checkpoint that a person asked for."""
        self.saves_now = False

    def note_seals_each(self, *, step: int) -> list[Output]:
        """Report, once in a generation, that this rank seals `step` and each one after it."""
        if self._sealed_said or self.broken:
            return []
        self._sealed_said = True
        return [Say(Sealed(self.worker, self.generation, step))]

    def note_past_phase(self) -> None:
        """Note that the vote of a phase has passed."""
        self.phases += 1

    def note_begun(self, *, over: bool) -> None:
        """Note that the next step is asked for. `over`: there is none, so the last vote follows."""
        self.begun, self.over = True, over

    def broke(
        self,
        *,
        mechanism: str,
        error: str,
        traceback: str,
        now_s: float,
        unreached: tuple[int, ...] = (),
        ends: bool = False,
    ) -> list[Output]:
        """Report that the main thread cannot go on in this generation. Arguments: as in Broke.

        ends   the process ends with this error, which no peer has caused
        """
        left_by_order = self.state is WorkerState.BROKEN and not self._broke_said
        if self.broken and not (ends and left_by_order):
            return []  # the coordinator knows: it has sent a Leave, or this was reported
        self.state, self._broke_said = WorkerState.BROKEN, True
        return [
            Say(
                Broke(
                    self.worker,
                    self.generation,
                    self.committed,
                    mechanism,
                    error,
                    traceback,
                    now_s,
                    unreached,
                )
            )
        ]

    def stand_still(self, *, in_hook: bool) -> list[Output]:
        """Send the inventory: the main thread has left its collectives.

        in_hook   the rank can still apply the prepared step
        """
        if self.state is WorkerState.STILL:
            return []
        return self._inventory(in_hook=in_hook)

    def finished(self, *, stopped: bool) -> list[Output]:
        """Report that this rank is past its last step."""
        if self.state is WorkerState.TRAINING:
            self.state = WorkerState.FINISHED
        return [Say(Finished(self.worker, self.generation, self.committed, stopped, self.cut))]

    def note_steps_resumed(self) -> None:
        """Note that run.steps is called again after it had ended."""
        if self.state is WorkerState.FINISHED:
            self.state = WorkerState.TRAINING

    def forget_state(self) -> None:
        """Forget the state in memory, because main's function is entered again. Images stay."""
        self.attached = False
        self.committed = self.prepared = self.passed = -1
        self.phases, self.begun, self.over = 0, False, False

    def _inventory(self, *, in_hook: bool) -> list[Output]:
        self.state = WorkerState.STILL
        held = (
            self.committed,
            self.prepared,
            self.passed,
            in_hook,
            self.sealed,
            self.phases,
            self.begun,
            self.over,
        )
        return [Say(Inventory(self.worker, self.generation, *held))]
