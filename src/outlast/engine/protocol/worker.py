"""One rank's part in the protocol: what it has committed, whether its generation still holds, what
it does next.

    NEW ──Regroup──> MOVING ──joined──> TRAINING ──Leave or own failure──> BROKEN ──stand_still──> STILL ──Regroup──> MOVING
                        └──────────────────── Leave of this generation ────────┘

A worker whose main thread has taken no plan yet (it boots, is parked, or runs the user's set-up
code in no group) is DETACHED: it has nothing to lose, answers Leave by itself, and takes the newest
plan when it gets to where plans are taken. One that is FINISHED is past its last step: it answers
Leave by itself too, and is woken from whatever the script does there.

Two threads of one process drive this: the listener with messages, the main thread with what the
step did. Their lock lies outside. Sans-IO: methods take `now_s` where they need it and return
outputs.
"""

from __future__ import annotations

from enum import Enum

from outlast.engine.protocol.outputs import Answer, Output, Plan, Say, Wake
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
    Stop,
    Underway,
)


class State(Enum):
    NEW = "new"
    DETACHED = "detached"
    MOVING = "moving"
    TRAINING = "training"
    BROKEN = "broken"
    STILL = "still"
    FINISHED = "finished"


class WorkerMachine:
    """`committed` is -1 until state is attached. Steps count from 1; step 0 is the initial state."""

    def __init__(self, *, worker: int) -> None:
        self.worker = worker
        self.state = State.NEW
        self.generation = 0
        self.plan: Regroup | None = None
        self.stop: Stop | None = None
        self.attached = False
        self._detached = True
        self.committed = -1
        self.prepared = -1
        self.passed = -1
        self.sealed: tuple[int, ...] = ()
        self.phases = 0  # done since `committed`
        self.begun = False  # the step after `committed` was asked for: all phases lie behind
        self.over = False  # there is none
        # in the block of `committed` yet, which was applied on the word of a plan
        self.finishing = False
        self._first_commit_said = True

    @property
    def broken(self) -> bool:
        """This generation's collectives must not be entered again."""
        return self.state in (State.BROKEN, State.STILL)

    # --- the listener's side ---

    def on_message(self, message: ForWorker) -> list[Output]:
        if isinstance(message, Regroup):
            return self._on_regroup(message)
        if isinstance(message, Leave):
            return self._on_leave(message)
        if isinstance(message, Stop):
            self.stop = message
            return []
        assert isinstance(message, Ping)
        return [Answer(message.nonce)]

    def _on_regroup(self, message: Regroup) -> list[Output]:
        if message.generation <= self.generation:
            # A plan that is stale, or comes twice.
            return []
        self.generation = message.generation
        self.plan = message
        self.state = State.DETACHED if self._detached else State.MOVING
        self._first_commit_said = False
        if message.settle == "forward":
            self.passed = max(self.passed, message.step)
        return [Plan()]

    def _on_leave(self, message: Leave) -> list[Output]:
        if message.generation != self.generation:
            # Told to leave a generation that it is not in.
            return []
        if self.state is State.DETACHED:
            # Told to leave before it has taken the plan.
            self.plan = None
            return self._inventory(in_hook=False)
        if self.state is State.FINISHED:
            # Told to leave past its last step.
            return [*self._inventory(in_hook=False), Wake()]
        if self.state in (State.MOVING, State.TRAINING):
            self.state = State.BROKEN
            return [Wake()]
        return []

    # --- the main thread's side ---

    def detach(self) -> None:
        """The plan is known but no group is built until run.steps: the survivors build theirs there
        too.
        """
        self._detached = True
        if self.state is State.MOVING:
            self.state = State.DETACHED

    def newer_plan(self, *, than: int) -> Regroup | None:
        """The newest plan, if its generation is above `than`."""
        return self.plan if self.plan is not None and self.plan.generation > than else None

    def may_act(self, *, lent_until_s: float, now_s: float) -> bool:
        """Whether it may vote, seal, restore or commit: by its node's lease
        (AgentSession.lent_until_s). False: it ends by itself, for its agent may not be there to do
        it, and its rank is about to be given away.
        """
        return now_s < lent_until_s

    def in_time(self, generation: int) -> bool:
        """Whether what was begun in `generation` may still go on: neither broken nor past."""
        return not self.broken and self.generation == generation

    def begins_anew(self, plan: Regroup, *, reenters: bool) -> bool:
        """Whether a rank that broke while it attached leaves main's function for `plan`.

        `reenters`: it had its group before the function began.
        """
        return plan.then == "reenter" or (reenters and plan.replicated != "donor")

    def born_in(self, generation: int) -> None:
        """It ends without ever having joined: the launcher has sent a plan of `generation`, or
        will.
        """
        if self.generation == 0 and self.plan is None:
            self.generation = generation

    def follow(self) -> None:
        """The main thread takes the newest plan: from here on a Leave concerns it."""
        self._detached = False
        if self.state is State.DETACHED:
            self.state = State.MOVING

    def register(
        self, *, way: str, sharded: bool, exact: bool, note: str, at_steps: bool = True
    ) -> list[Output]:
        """How this script can be healed: said at join and again at run.steps."""
        return [
            Say(
                Registered(
                    self.worker,
                    self.generation,
                    self.committed,
                    way,
                    sharded,
                    exact,
                    note,
                    at_steps,
                )
            )
        ]

    def underway(self, *, place: int) -> list[Output]:
        """At a place where others may be waited for: see Underway."""
        return [Say(Underway(self.worker, self.generation, place))]

    def donated(self, *, step: int) -> list[Output]:
        return [Say(Donated(self.worker, self.generation, step))]

    def joined(self, plan: Regroup, *, group_s: float, restore_s: float) -> list[Output]:
        """The group of `plan` stands and the state is of its step.

        Nothing is said if this generation broke meanwhile.
        """
        step = plan.step
        if not self.attached:
            self.finishing = plan.finish
        self.attached = True
        if step != self.committed:
            self.begun = self.over = False
        self.phases = plan.phases
        self.committed, self.prepared, self.passed = step, max(step, 0), step
        if self.state is not State.MOVING:
            return []
        self.state = State.TRAINING
        return [Say(Joined(self.worker, self.generation, step, group_s, restore_s))]

    def now_prepared(self, *, step: int) -> None:
        self.prepared = step

    def now_passed(self, *, step: int) -> None:
        self.passed = step

    def now_sealed(self, *, steps: tuple[int, ...]) -> None:
        self.sealed = steps

    def now_committed(self, *, step: int, now_s: float) -> list[Output]:
        self.committed = step
        self.phases, self.begun, self.over = 0, False, False
        self.finishing = self.plan is not None and (self.plan.settle, self.plan.step) == (
            "forward",
            step,
        )
        self.passed = self.prepared = max(step, self.prepared)
        if self._first_commit_said:
            return []
        self._first_commit_said = True
        return [Say(Committed(self.worker, self.generation, step, now_s))]

    def now_stepped(self, *, step: int, now_s: float) -> list[Output]:
        """A script without outlast calls has called its optimizer: the first time is said.

        step   the optimizer's own number of it; 0: it keeps none
        """
        if self._first_commit_said or self.generation == 0:
            return []
        self._first_commit_said = True
        return [Say(Committed(self.worker, self.generation, step, now_s))]

    def now_past_block(self) -> None:
        self.finishing = False

    def now_past_phase(self) -> None:
        self.phases += 1

    def now_begun(self, *, over: bool) -> None:
        """The next step is asked for. `over`: there is none, and what follows is the last vote."""
        self.begun, self.over = True, over

    def broke(
        self,
        *,
        mechanism: str,
        error: str,
        traceback: str,
        now_s: float,
        unreached: tuple[int, ...] = (),
    ) -> list[Output]:
        """The main thread cannot go on in this generation.

        A victim of a Leave need not say so. `unreached`: as in Broke.
        """
        if self.broken:
            return []
        self.state = State.BROKEN
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
        """The main thread has left its collectives.

        `in_hook`: it can still apply the prepared step.
        """
        if self.state is State.STILL:
            return []
        return self._inventory(in_hook=in_hook)

    def finished(self, *, stopped: bool) -> list[Output]:
        if self.state is State.TRAINING:
            self.state = State.FINISHED
        return [Say(Finished(self.worker, self.generation, self.committed, stopped))]

    def goes_on(self) -> None:
        """Run.steps is called again after it had ended."""
        if self.state is State.FINISHED:
            self.state = State.TRAINING

    def forget_state(self) -> None:
        """Main's function is entered again: what the old one held is gone, the images stay."""
        self.attached = False
        self.committed = self.prepared = self.passed = -1
        self.phases, self.begun, self.over, self.finishing = 0, False, False, False

    def _inventory(self, *, in_hook: bool) -> list[Output]:
        self.state = State.STILL
        held = (
            self.committed,
            self.prepared,
            self.passed,
            in_hook,
            self.sealed,
            self.phases,
            self.begun,
            self.over,
            self.finishing,
        )
        return [Say(Inventory(self.worker, self.generation, *held))]
