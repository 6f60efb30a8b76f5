"""The outputs of the state machines: what they ask of their driver, the runtime or the
simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlast.model.messages import ForAgent, ForWorker, FromAgent, FromWorker, LinkMessage


@dataclass(frozen=True, slots=True)
class ToAgent:
    """Send a message to an agent. `node`: whose agent; "" if the run has one node only."""

    message: ForAgent
    node: str = ""


@dataclass(frozen=True, slots=True)
class SendOverLink:
    """Send a message to the other end of a connection. It is dropped if there is none.

    `node`: whose agent, on the coordinator's side.
    """

    message: LinkMessage
    node: str = ""


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close this connection: the other end is not the one that it claims to be."""

    node: str = ""


@dataclass(frozen=True, slots=True)
class TurnAway:
    """Send `message` over the connection that an Enrol came over, and close that connection.

    The link of `node` stays that of the session that is in. This is the first of the outputs.
    """

    node: str
    message: LinkMessage


@dataclass(frozen=True, slots=True)
class Wipe:
    """Ignore everything in the vault from now on, except the images of `keep`."""

    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """Send a message to the coordinator."""

    message: FromAgent | FromWorker


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver a message of the agent to one of its workers."""

    worker: int
    message: ForWorker


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a process. WorkerStarted or WorkerFailedToStart follows."""

    worker: int
    rank: int
    kind: str
    generation: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to a worker's process group."""

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to a worker's process group, or SIGINT if `interrupt`."""

    worker: int
    interrupt: bool = False


@dataclass(frozen=True, slots=True)
class HostStore:
    """Put another store of the process groups to use."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreIsAt:
    """Name this store in the environment of the workers that are started from now on."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """Take this node out of the run, and end its launcher well: it is drained."""

    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Set a timer that comes once. It replaces one of the same name; `at_s` None cancels it."""

    name: str
    at_s: float | None


@dataclass(frozen=True, slots=True)
class Record:
    """Write one of model/records.py to the ledger.

    `at_once`: nothing that follows is carried out before it is written.
    """

    record: Any
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """Write the manifest of a checkpoint: all of its shards are in their folder.

    The answer is `on_manifest`.
    """

    step: int
    sharded: bool
    shards: tuple[tuple[str, int, str], ...]  # file, length in bytes, checksum


@dataclass(frozen=True, slots=True)
class SaveLast:
    """Write the state of `step` from the vault to the disk, because the run gives up.

    The images of all ranks are in their slots. Under replicated state, the transfer image has what
    all ranks hold alike. The driver carries this out before any output after it.

    kept   the copies that all ranks have sealed of this step are written, and no images
    """

    step: int
    sharded: bool
    kept: bool = False


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Read the copies in the vault and the checkpoints on the disk, and say which is the newest.

    What is not as it was written does not count. See engine/durable.py. The answer is
    `on_checkpoint_found`.
    """


@dataclass(frozen=True, slots=True)
class Tell:
    """Show a line to the people who watch the run."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """End the run. `traceback`: the user's, to be printed first."""

    exit_code: int
    state: str  # "ended", "failed", "stopped"
    reason: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Answered:
    """Say how a person's request stands. `state` and `text` are those of `RequestAnswer`."""

    number: int
    state: str
    text: str


# worker side --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message of the worker to the coordinator."""

    message: FromWorker


@dataclass(frozen=True, slots=True)
class Wake:
    """Make the main thread leave the collective that it is in, now."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Wake the main thread if it waits for a plan: a new one can be taken."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Say where the main thread is."""

    nonce: int


Output = (
    ToAgent | SendOverLink | HangUp | TurnAway | Wipe | ToCoordinator | Deliver | Spawn | Kill
    | Terminate | HostStore | StoreIsAt | SetTimer | Record | Manifest | SaveLast | FindCheckpoint
    | Tell | End | LeaveRun | Answered | Say | Wake | Plan | Answer
)  # fmt: skip
