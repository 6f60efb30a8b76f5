"""What the state machines ask of whoever drives them: the live runtime, or a simulated world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlast.model.messages import ForAgent, ForWorker, FromAgent, FromWorker, OnLine


@dataclass(frozen=True, slots=True)
class ToAgent:
    """`node`: whose agent; "" where the run has one node only."""

    message: ForAgent
    node: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """To the other end of the line; dropped where there is no connection.

    `node`: whose agent, of the coordinator's side.
    """

    message: OnLine
    node: str = ""


@dataclass(frozen=True, slots=True)
class HangUp:
    """This connection is over: the other end is not whom it takes itself for."""

    node: str = ""


@dataclass(frozen=True, slots=True)
class TurnAway:
    """Send `message` over the connection that an Enrol came over, and close that connection.

    The line of `node` stays that of the session that is in. This is the first of the outputs.
    """

    node: str
    message: OnLine


@dataclass(frozen=True, slots=True)
class Wipe:
    """What lies in the vault counts no more, but for the images of `keep`."""

    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    message: FromAgent | FromWorker


@dataclass(frozen=True, slots=True)
class Deliver:
    """Agent to one of its workers."""

    worker: int
    message: ForWorker


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a process. The driver answers with the machine's `on_started` or `on_start_failed`."""

    worker: int
    rank: int
    kind: str
    generation: int


@dataclass(frozen=True, slots=True)
class Kill:
    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    worker: int


@dataclass(frozen=True, slots=True)
class HostStore:
    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """One-shot; a timer of the same name replaces the one before. `at_s` None cancels it."""

    name: str
    at_s: float | None


@dataclass(frozen=True, slots=True)
class Record:
    """One of model/records.py, for the ledger.

    `at_once`: nothing that follows is carried out before it is written.
    """

    record: Any
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """All shards of a checkpoint lie in their folder: write its manifest.

    Answered with `on_manifest`.
    """

    step: int
    sharded: bool
    shards: tuple[tuple[str, int, str], ...]  # file, length in bytes, checksum


@dataclass(frozen=True, slots=True)
class SaveLast:
    """The run gives up, and the state of `step` lies sealed in the vault: write it to the disk.

    Images of all ranks lie in their slots; of replicated state, what all hold alike is the transfer
    image. The driver carries this out before any output behind it.
    """

    step: int
    sharded: bool


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Read what lies on the disk, and say which checkpoint is the newest good one
    (engine/durable.py). Answered with `on_checkpoint_found`.
    """


@dataclass(frozen=True, slots=True)
class Tell:
    """A line for the people who watch the run."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The run is over. `traceback`: the user's, to be printed first."""

    exit_code: int
    state: str  # "ended", "failed", "stopped"
    reason: str
    traceback: str


# worker side --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """Worker to coordinator."""

    message: FromWorker


@dataclass(frozen=True, slots=True)
class Wake:
    """Make the main thread leave whatever collective it is in, now."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A new plan can be taken: wake the main thread if it waits for one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Say where the main thread is."""

    nonce: int


Output = (
    ToAgent | Line | HangUp | TurnAway | Wipe | ToCoordinator | Deliver | Spawn | Kill | Terminate
    | HostStore | SetTimer | Record | Manifest | SaveLast | FindCheckpoint | Tell | End | Say | Wake
    | Plan | Answer
)  # fmt: skip
