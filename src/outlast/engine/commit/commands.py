"""What the commit machine asks of its driver: the worker with torch, or a simulated world.

A flow is a generator that yields commands. Its driver carries each one out and sends the answer
back; what a command raises is raised inside the flow, at the place where it was asked for. So a
flow reads from top to bottom, although a step of it may take seconds, real or simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from outlast.engine.commit.image_place import Place
from outlast.engine.protocol.outputs import Output
from outlast.engine.protocol.worker import WorkerMachine
from outlast.errors import OutlastError
from outlast.model.messages import Regroup

T = TypeVar("T")


class VoteResult(Protocol):
    """Tell what all ranks know once a vote has passed.

    stop    a rank was asked to stop
    save    a rank was asked for a checkpoint of the step
    unsure  some rank has seen private state move that was not compared yet, and none votes late
    """

    @property
    def stop(self) -> bool: ...

    @property
    def save(self) -> bool: ...

    @property
    def unsure(self) -> bool: ...


# --- the two phases of a commit -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Seal the private state of `step`; the script is at `place`.

    The answer is False if this rank has seen state move that was not compared yet. Then nothing is
    sealed, and the vote will be put off.
    """

    step: int
    place: Place


@dataclass(frozen=True, slots=True)
class Vote:
    """Vote with all ranks for `step`, or between steps (0). The answer is a VoteResult.

    It raises if a peer was lost, and then nothing is known of the others. `closing`: the vote is
    one of those that end a call of run.steps.
    """

    step: int
    closing: bool = False


@dataclass(frozen=True, slots=True)
class PutOff:
    """Keep an undo copy of `step`, and forget its image if there is one: it votes late."""

    step: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Act on the other contents of a vote that has passed. `step` is 0 between steps."""

    result: VoteResult
    step: int


@dataclass(frozen=True, slots=True)
class ProveEqual:
    """Compare the ranks if that was not done before. The step is applied, and not committed."""

    step: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Let go of what a repeat would need: the step is applied, and its vote has passed.

    The answer is True if the step counts only once its whole image is sealed (sharded state).
    """

    step: int


@dataclass(frozen=True, slots=True)
class Count:
    """Book the step as committed, as far as this rank is concerned, and say so."""

    step: int


@dataclass(frozen=True, slots=True)
class CallBack:
    """Run the script's on-commit work now, or let it wait until all ranks have sealed."""

    now: bool


# --- between steps --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SealMoved:
    """Seal what has changed since the newest image of `step`. `last`: no step follows for now."""

    step: int
    place: Place
    last: bool


@dataclass(frozen=True, slots=True)
class TakeBackTail:
    """Undo what the script's code after an interrupted block has changed."""


@dataclass(frozen=True, slots=True)
class Save:
    """Save a checkpoint of `step` if one is due, or wanted because the run stops.

    asked  a person asked for it
    """

    step: int
    stopping: bool
    asked: bool = False


@dataclass(frozen=True, slots=True)
class PreparePhase:
    """Seal what the phase with this number has changed. It is done here; its vote comes next."""

    step: int
    phases: int


@dataclass(frozen=True, slots=True)
class RollBackPhase:
    """Undo what a phase has changed, because its vote did not pass."""


@dataclass(frozen=True, slots=True)
class ForgetPhase:
    """Make sure that what `PreparePhase` sealed is not restored: the phase did not pass."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Leave the state after the last step in the vault, where a successor finds it.

    The answer is False if nothing has to be handed over, so no rank has to wait for it.
    """

    step: int


# --- after a fault --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Tell the worker's protocol machine, and send what it puts out."""

    act: Callable[[WorkerMachine], list[Output] | None]


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the run: the script or its input cannot work. This command raises `error`."""

    error: OutlastError


@dataclass(frozen=True, slots=True)
class Break:
    """Say that this rank cannot go on in this generation, because of `error`.

    `peers_only`: only a lost peer may be the cause. Any other error is raised again.
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
    """Settle for `plan`: what is not committed goes back. `in_flight`: a step is in hand."""

    plan: Regroup
    in_flight: bool


@dataclass(frozen=True, slots=True)
class Donate:
    """Write the replicated state where the ranks that need it find it."""

    plan: Regroup


@dataclass(frozen=True, slots=True)
class WaitToBeKilled:
    """Wait to be killed, so that a successor can take this rank. This command never returns."""


@dataclass(frozen=True, slots=True)
class Join:
    """Leave the old group, enter that of `plan`, and say that this rank has joined."""

    plan: Regroup


AfterFault = TakeBackTail | Refuse | Break | StandStill | RollBack | Donate | WaitToBeKilled | Join
Command = (
    Record
    | Prepare
    | Vote
    | PutOff
    | Deliver
    | ProveEqual
    | Keep
    | Count
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
    """Run `flow` to its end with a driver whose commands return when they are done."""
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
