"""The commands of the commit machine. A driver carries them out: the worker, or the simulator.

A flow is a generator that yields commands. The driver carries out each command and sends its answer
back into the flow. If a command raises, the flow sees that exception at its `yield`. So a flow can
be read from top to bottom, although one command may take seconds, real or simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from outlast.engine.commit.image_place import ScriptPosition
from outlast.engine.protocol.outputs import Output
from outlast.engine.protocol.worker import WorkerMachine
from outlast.errors import OutlastError
from outlast.model.messages import Regroup

T = TypeVar("T")


class VoteResult(Protocol):
    """The result of a vote that has passed. It is the same on every rank.

    stop    some rank was asked to stop
    save    some rank was asked for a checkpoint of the step
    seal    some rank was asked to seal after each step
    unsure  no rank votes late, and on some rank private state has begun to move that no vote has
            compared between the ranks yet (late_votes.py)
    """

    @property
    def stop(self) -> bool: ...

    @property
    def save(self) -> bool: ...

    @property
    def seal(self) -> bool: ...

    @property
    def unsure(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class TellWorkerMachine:
    """Call `act` with this rank's WorkerMachine, and send the messages that it returns."""

    act: Callable[[WorkerMachine], list[Output] | None]


# --- the two phases of a commit -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Seal the private state of `step`; the script is at `place`.

    The answer is True once it is sealed. It is False if this rank has seen state move that no vote
    has compared yet. Then nothing is sealed, and the step will vote late.
    """

    step: int
    place: ScriptPosition


@dataclass(frozen=True, slots=True)
class Vote:
    """Vote with all ranks for `step`, or between steps (0). The answer is a VoteResult.

    It raises if a peer was lost. Then this rank does not know whether the vote passed on the
    others. `closing`: the vote is one of those that end a call of run.steps.
    """

    step: int
    closing: bool = False


@dataclass(frozen=True, slots=True)
class PutOff:
    """Let `step` vote late after all: make an undo copy, and forget its image if it was sealed."""

    step: int


@dataclass(frozen=True, slots=True)
class DeliverVote:
    """Hand on what came with a vote that has passed, such as logged values. `step` 0: between
    steps.
    """

    result: VoteResult
    step: int


@dataclass(frozen=True, slots=True)
class ProveEqual:
    """Compare the state of all ranks, unless that was done before.

    The step is applied here, and not committed yet.
    """

    step: int


@dataclass(frozen=True, slots=True)
class DropUndo:
    """Drop what a repeat would need, because the step is applied and its vote has passed.

    The answer is True under sharded state: the step is committed only once its image is sealed.
    """

    step: int


@dataclass(frozen=True, slots=True)
class BookCommit:
    """Book the step as committed on this rank, and report it to the coordinator."""

    step: int


@dataclass(frozen=True, slots=True)
class CallBack:
    """Run the script's on-commit callbacks now, or once all ranks are known to have sealed."""

    now: bool


# --- between steps --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SealMoved:
    """Seal what has changed since the newest image of `step`.

    due   sharded state is sealed after this step, although the run may seal less often
    """

    step: int
    place: ScriptPosition
    due: bool


@dataclass(frozen=True, slots=True)
class TakeBackTail:
    """Undo what the script's code after an interrupted block has changed."""


@dataclass(frozen=True, slots=True)
class Save:
    """Save a checkpoint of `step` if one is due.

    stopping  the run stops after this step, so a last checkpoint may be wanted
    asked     a person asked for a checkpoint
    """

    step: int
    stopping: bool
    asked: bool = False


@dataclass(frozen=True, slots=True)
class PreparePhase:
    """Seal what a phase has changed. The phase is done on this rank, and its vote comes next.

    step     the newest committed step
    phases   how many phases are done after that step, this one included
    """

    step: int
    phases: int


@dataclass(frozen=True, slots=True)
class RollBackPhase:
    """Undo what a phase has changed, because its vote did not pass."""


@dataclass(frozen=True, slots=True)
class ForgetPhase:
    """Discard what `PreparePhase` sealed, because the vote of the phase did not pass."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Write the state after the last step into the vault, where a successor finds it.

    The answer is True if the ranks have to wait for that by another vote. It is False under sharded
    state, which is sealed already.
    """

    step: int


# --- after a fault --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the run, because the script or its input cannot work. This command raises `error`."""

    error: OutlastError


@dataclass(frozen=True, slots=True)
class Break:
    """Report that this rank cannot go on in this generation, because of `error`.

    peers_only   raise `error` again, unless a lost peer is its cause
    """

    error: BaseException
    peers_only: bool


@dataclass(frozen=True, slots=True)
class StandStill:
    """Send the inventory and wait. The answer is the plan (Regroup) of the next generation.

    `in_hook`: the rank can still apply the prepared step.
    """

    in_hook: bool


@dataclass(frozen=True, slots=True)
class RollBack:
    """Undo everything that is not committed, before `plan` is followed.

    in_flight   a step was begun and is not committed, so its changes have to be undone
    """

    plan: Regroup
    in_flight: bool


@dataclass(frozen=True, slots=True)
class Donate:
    """Write the replicated state where the ranks that need it find it."""

    plan: Regroup


@dataclass(frozen=True, slots=True)
class WaitToBeKilled:
    """Wait to be killed, so that a successor can take this rank. This command never ends."""


@dataclass(frozen=True, slots=True)
class Join:
    """Leave the old process group, enter that of `plan`, and report that this rank has joined."""

    plan: Regroup


AfterFault = TakeBackTail | Refuse | Break | StandStill | RollBack | Donate | WaitToBeKilled | Join
Command = (
    TellWorkerMachine
    | Prepare
    | Vote
    | PutOff
    | DeliverVote
    | ProveEqual
    | DropUndo
    | BookCommit
    | CallBack
    | SealMoved
    | Save
    | PreparePhase
    | RollBackPhase
    | ForgetPhase
    | HandOver
    | AfterFault
)
Flow = Generator[Command, Any, T]


def drive(flow: Flow[T], carry_out: Callable[[Command], object]) -> T:
    """Run `flow` to its end and return its result. `carry_out` returns a command's answer."""
    try:
        command = next(flow)
        while True:
            try:
                answer = carry_out(command)
            except BaseException as error:  # boundary: the flow decides about it
                command = flow.throw(error)
            else:
                command = flow.send(answer)
    except StopIteration as over:
        result: T = over.value
        return result
