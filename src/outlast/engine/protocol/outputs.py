"""Outputs: what the state machines ask their driver to do. The drivers are in runtime/ and sim/.

A driver carries out the outputs of one call in their order, before it makes the next call.
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
    """Send a message to the other end of a connection. It is dropped if there is no connection.

    node   on the coordinator's side: the agent of which node
    """

    message: LinkMessage
    node: str = ""


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close this connection. On the coordinator's side, `node` says which one."""

    node: str = ""


@dataclass(frozen=True, slots=True)
class LookForLauncher:
    """Find out whether the launcher of a node has ended, while its machine lives on.

    `CoordinatorSessions.on_launcher_ended` follows if it has. Nothing follows if that cannot be
    found out.
    """

    node: str


@dataclass(frozen=True, slots=True)
class TurnAway:
    """Refuse an Enrol: send `message` over the connection on which it came, and close that.

    Another session of `node` is in, and keeps its own connection. This output is the first of its
    call.
    """

    node: str
    message: LinkMessage


@dataclass(frozen=True, slots=True)
class Wipe:
    """Forget all images in the vault, except those of the ranks in `keep`."""

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
    """Put another TCPStore to use for process groups. StoreUp or StoreLost follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreIsAt:
    """Name this store in the environment of the workers that are started from now on."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """Take this node out of the run, because it is drained. Its launcher ends with exit code 0."""

    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Set a timer that fires once, at `at_s`. It replaces one of the same name. None: cancel it."""

    name: str
    at_s: float | None


@dataclass(frozen=True, slots=True)
class Record:
    """Write a record of model/records.py to the ledger.

    at_once   it must be written before any output after this one is carried out
    """

    record: Any
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Write the manifest of a checkpoint, because all of its shards are in their folder.

    The driver answers by a call of `on_manifest`.
    """

    step: int
    sharded: bool
    shards: tuple[tuple[str, int, str], ...]  # file, length in bytes, checksum


@dataclass(frozen=True, slots=True)
class SaveLast:
    """Write the state of `step` from the vault to the disk, because the run gives up.

    The images of all ranks are in their slots. Under replicated state, the transfer image has the
    replicated part. The driver finishes this before it carries out the next output.

    kept   write the ranks' copies of this step (`--keep`), not their images
    """

    step: int
    sharded: bool
    kept: bool = False


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Read the copies in the vault and the checkpoints on the disk, and find the newest good one.

    A damaged one does not count (engine/durable.py). The driver answers by a call of
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
class AnswerRequest:
    """Answer a person's request. `state` and `text` are those of `RequestAnswer`."""

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
    """Interrupt the collective in which the main thread is blocked: it raises there."""


@dataclass(frozen=True, slots=True)
class WakeForPlan:
    """Wake the main thread if it waits for a plan: a new one can be taken."""


@dataclass(frozen=True, slots=True)
class AnswerPing:
    """Send a Pong with this nonce, which says where the main thread is."""

    nonce: int


@dataclass(frozen=True, slots=True)
class SendOut:
    """Send this rank's image of `step` to the node at `at`, while the main thread stands still."""

    generation: int
    step: int
    at: str


Output = (
    ToAgent
    | SendOverLink
    | HangUp
    | LookForLauncher
    | TurnAway
    | Wipe
    | ToCoordinator
    | Deliver
    | Spawn
    | Kill
    | Terminate
    | HostStore
    | StoreIsAt
    | SetTimer
    | Record
    | WriteManifest
    | SaveLast
    | FindCheckpoint
    | Tell
    | End
    | LeaveRun
    | AnswerRequest
    | Say
    | Wake
    | WakeForPlan
    | AnswerPing
    | SendOut
)
