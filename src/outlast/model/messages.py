"""What workers, agent and coordinator say to each other (model/wire.py: in which form).

Every message that belongs to a membership carries its generation; a receiver drops those of
another. A `worker` number names one process for the whole run and is never given twice; a rank is
given again. Times are CLOCK_MONOTONIC seconds of the node.

This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter

from outlast.model.shorten import Some, Text

# among ranks that were not reached: the store that groups are built with, the transfer image
STORE, IMAGE = -1, -2

# --- worker to coordinator (through the agent) ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The process is up and listens. Sent once, before the script starts."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class Parked:
    """A spare can take a rank now. `kind` is hot or warm."""

    worker: int
    kind: str


@dataclass(frozen=True, slots=True)
class Registered:
    """run.steps was reached: how this script can be healed, and how much vault it needs.

    way      "in_place" | "reenter" | "respawn": the cheapest way survivors can go on (trap 14)
    sharded  state has one owner per shard; restores go to the newest common snapshot
    exact    identical bits are promised; else `note` says what breaks them
    at_steps said at run.steps, where that is known; not at outlast.join, where each script is taken
    for one that comes anew
    """

    worker: int
    generation: int
    step: int
    way: str
    sharded: bool
    exact: bool
    note: Text
    at_steps: bool = True


@dataclass(frozen=True, slots=True)
class Broke:
    """This worker cannot go on in this generation.

    `mechanism`: "exception" (its own), "corrupt" (so was its image), or "collective" (a victim's
    view).

    `unreached`: ranks that it could not connect to on its way into the generation, though they were
    there; or STORE, or IMAGE.
    """

    worker: int
    generation: int
    step: int
    mechanism: str
    error: Text
    traceback: Text
    at_s: float
    unreached: Some = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a survivor holds, said once it stands still.

    committed  newest step it has committed
    prepared   newest step whose gradients and private state are complete and sealed (>= committed)
    passed     newest step whose vote it saw pass (>= committed)
    in_hook    it stands inside the optimizer hook of step `prepared` and can still apply it
    sealed     steps whose images (sharded state) lie sealed in its slots
    phases     phases (run.phase) done since `committed`
    begun      it has asked for the step after `committed`: no phase follows that one any more
    over       there is no step after `committed`: it was in the last vote, which closes the steps
    finishing  it is in the block of `committed` yet: what the script does behind that has not run
               on its state
    """

    worker: int
    generation: int
    committed: int
    prepared: int
    passed: int
    in_hook: bool
    sealed: tuple[int, ...]
    phases: int = 0
    begun: bool = False
    over: bool = False
    finishing: bool = False


@dataclass(frozen=True, slots=True)
class Donated:
    """The replicated state of `step` lies sealed in the vault's transfer image."""

    worker: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Underway:
    """On its way into `generation`, this worker has come to a place where it may have to wait for
    others.

    `place`: 1 in run.steps, without a group; 2 at the group; 3 in run.steps, in the group. Who is
    not there, or at a smaller one, holds the others up.
    """

    worker: int
    generation: int
    place: int


@dataclass(frozen=True, slots=True)
class Joined:
    """In the group of `generation`, state at `step`; training goes on."""

    worker: int
    generation: int
    step: int
    group_s: float
    restore_s: float


@dataclass(frozen=True, slots=True)
class Committed:
    """The first commit of a generation on this worker."""

    worker: int
    generation: int
    step: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """This rank's shard of the checkpoint of `step` lies in `file` (relative to the checkpoint's
    folder); or `error` says why not. `generation`: the one in which the step was committed here.
    """

    worker: int
    generation: int
    rank: int
    step: int
    file: str
    length: int
    checksum: str
    error: Text


@dataclass(frozen=True, slots=True)
class Finished:
    """run.steps is over on this worker: `step` is committed.

    `stopped`: because a stop was asked for.
    """

    worker: int
    generation: int
    step: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The script or its input cannot work; the run stops with `error` and `exit_code`."""

    worker: int
    error: Text
    exit_code: int


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know; shown once and kept in the ledger."""

    worker: int
    text: Text


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to Ping, from the listener thread.

    `collectives`: how many the default group was given; `where`: the main thread's innermost user
    frame; `cut_off`: ranks that do not acknowledge what was sent to them over the group's
    connections, though it was sent more than once.
    """

    worker: int
    nonce: int
    collectives: int
    where: Text
    cut_off: Some = ()


# --- coordinator to worker (through the agent) ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leave:
    """Generation `generation` is over: leave its collectives, stand still, send an Inventory."""

    generation: int
    reason: Text


@dataclass(frozen=True, slots=True)
class Regroup:
    """The next generation, and how this worker gets there.

    rank        which it holds; -1 on the way to its agent, which puts it in (`ToWorkers.ranks`):
                ranks that go the same way share a plan
    settle      "forward": apply the prepared step first; "repeat": roll the step in flight back;
                "none"
    then        "in_place": join the group and go on; "reenter": enter main's function again;
                "start": a process that was not in the last generation; "exit": this process is
                given up
    step        the step that everybody's state is of, after settling and restoring
    donor       rank whose replicated state is the source, or -1
    donate      this worker writes the transfer image (before it joins)
    replicated  where a healed rank takes replicated state from: "none", "donor", "transfer",
                "checkpoint"
    private     where this rank takes private and sharded state from: "keep", "slot", "checkpoint",
                "none"
    checkpoint  folder of the checkpoint, or ""
    high_water  newest step that this rank has ever committed: executing it again books as repeated
    phases      phases after `step` that are done: nobody does them again
    replay      survivors may still be in, or before, a phase after `step`: get there by doing that
                step once, for nothing
    finish      survivors finish `step` only now: this worker takes their state where that step,
                done for nothing, ends
    """

    generation: int
    rank: int
    world_size: int
    store_host: str
    store_port: int
    settle: str
    then: str
    step: int
    donor: int
    donate: bool
    replicated: str
    private: str
    checkpoint: str
    high_water: int
    fault_s: float | None
    detected_s: float | None
    phases: int = 0
    replay: bool = False
    finish: bool = False

    def held_by(self, rank: int) -> Regroup:
        """The same way for another rank."""
        return Regroup(self.generation, rank, *_BUT_FOR_RANK(self))


_BUT_FOR_RANK = attrgetter(
    *(field.name for field in fields(Regroup) if field.name not in ("generation", "rank"))
)


@dataclass(frozen=True, slots=True)
class Ping:
    nonce: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Commit the step in flight, checkpoint if asked, leave run.steps everywhere at the same step,
    end.
    """

    reason: Text
    checkpoint: bool


# --- coordinator to agent -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Fork (or spawn) a worker. rank -1: a spare of `kind` ("hot" or "warm"); else kind is "rank"."""

    worker: int
    rank: int
    kind: str
    generation: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """SIGKILL to the worker's whole session. Its death is reported as any other."""

    worker: int
    reason: Text


@dataclass(frozen=True, slots=True)
class TermWorker:
    """SIGTERM to a worker whose script makes no outlast call: it cannot be asked otherwise."""

    worker: int
    reason: Text


@dataclass(frozen=True, slots=True)
class ToWorkers:
    """The same to several workers of one node.

    `ranks`: of a plan, which each of them holds; else empty.
    """

    workers: tuple[int, ...]
    ranks: tuple[int, ...]
    message: Leave | Regroup | Ping | Stop


@dataclass(frozen=True, slots=True)
class StartStore:
    """Start a store host; the agent answers StoreUp.

    `number` counts these orders: what is said of an older one is void.
    """

    reason: Text
    number: int


@dataclass(frozen=True, slots=True)
class AskStandings:
    """Of an agent, because another one has an overdue rank. Answered with Standings."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Judged:
    """Nobody is to blame for what was overdue.

    `outcome`: "awaited", a rank that all wait for is in time; "nobody", all stand alike.
    """

    outcome: str


# --- agent to coordinator -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    worker: int
    pid: int
    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The kernel's word. exit_code None when a signal ended it.

    prepared, sealed: steps found sealed in the dead rank's slots (checked against their checksums'
    records). committed: newest step by its beacon. fault_s: kernel's time as near as known, or
    null.
    """

    worker: int
    pid: int
    exit_code: int | None
    signal: int | None
    oom: bool
    committed: int
    prepared: tuple[int, ...]
    sealed: tuple[int, ...]
    phase: str
    at_s: float
    fault_s: float | None
    error: Text


@dataclass(frozen=True, slots=True)
class WorkerHung:
    """No progress within the deadline.

    `last_s` is the last beacon that moved; the agent has not killed it yet.
    """

    worker: int
    phase: str
    last_s: float
    deadline_s: float
    at_s: float
    reason: Text


@dataclass(frozen=True, slots=True)
class Stood:
    """One rank at the moment of a question.

    `age_s`: since its beacon moved; `deadline_s`: how long it may stand there, null for ever;
    `collectives`: null if its listener has not answered; `cut_off`: as in Pong.
    """

    worker: int
    rank: int
    phase: str
    step: int
    age_s: float
    deadline_s: float | None
    stopped: bool
    collectives: int | None
    where: Text
    cut_off: Some = ()


@dataclass(frozen=True, slots=True)
class Standings:
    """How the ranks of one of several nodes stand.

    `nonce`: of the question, 0: one of them is overdue, and the agent asks.

    quiet_s    for how long no process of a plain script has printed anything; null: nobody listens,
               or the script is not plain
    silence_s  that much is a hang
    exhausted  deadlines have been doubled as often as they are
    """

    nonce: int
    members: tuple[Stood, ...]
    quiet_s: float | None
    silence_s: float
    exhausted: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """The beacons moved: newest step committed on any member and on all, and how long a step
    typically takes.
    """

    newest: int
    oldest: int
    step_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class WorkerFailedToStart:
    worker: int
    error: Text


@dataclass(frozen=True, slots=True)
class StoreUp:
    """`number` is the order's, put in by the agent."""

    host: str
    port: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class StoreLost:
    reason: Text
    number: int = 0


@dataclass(frozen=True, slots=True)
class ZygoteLost:
    reason: Text


# --- a line between an agent and the coordinator, where there are several nodes -------------------


@dataclass(frozen=True, slots=True)
class Housed:
    """One process, as its agent knows it.

    `plan`: the newest that was delivered to it; `said`: what it has said since that still holds,
    oldest first; `killed`: the coordinator has ordered so; `exited`: it has ended, and nobody has
    come into its rank here since.
    """

    worker: int
    rank: int
    kind: str
    pid: int
    plan: Regroup | None
    said: tuple[
        Hello
        | Parked
        | Registered
        | Broke
        | Inventory
        | Donated
        | Underway
        | Joined
        | Committed
        | Finished,
        ...,
    ]
    killed: bool
    exited: WorkerExited | None


@dataclass(frozen=True, slots=True)
class Images:
    """What lies sealed in a node's vault for `rank`, newest step first, whoever sealed it.

    `committed`: by a holder that has ended there.
    """

    rank: int
    steps: tuple[int, ...]
    committed: int = 0


@dataclass(frozen=True, slots=True)
class Enrol:
    """An agent at a new connection.

    session   a random number that stands for this agent since it began; no other has the same
    ended     the session that the same agent had before, if any: all that it housed then is dead
    capacity  ranks that the node has room for
    epoch     of the newest coordinator that it has obeyed, 0: none
    heard     newest number heard from that one
    step      newest step that its processes have committed
    store     the store that it hosts, if that is up
    script    what its processes have said of their state: "sharded", "replicated", or "" for
              nothing so far
    transfer  generation and step of the transfer image in its vault; empty: none is sealed there
    """

    node: str
    session: int
    capacity: int
    epoch: int
    heard: int
    step: int
    store: StoreUp | None
    housed: tuple[Housed, ...]
    images: tuple[Images, ...]
    transfer: tuple[int, ...]
    script: str
    sent_s: float
    ended: int = 0


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The coordinator's answer to an Enrol under a name that another session holds.

    The agent may try again: it is let in once the lease of that session is over.
    """

    reason: Text


@dataclass(frozen=True, slots=True)
class Welcome:
    """The agent is in, with a lease from its Enrol on.

    `afresh`: it was counted out, and may come again once it houses nothing.

    keep   ranks whose images in its vault still count, the others have to go; null: all stay
    """

    epoch: int
    heard: int
    lease_s: float
    afresh: bool
    keep: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Beat:
    """An agent asks for its lease to be renewed, and acknowledges all up to `heard`."""

    number: int
    heard: int
    sent_s: float


@dataclass(frozen=True, slots=True)
class Grant:
    """The lease runs from the moment at which beat `number` was sent."""

    number: int
    heard: int
    sent_s: float


@dataclass(frozen=True, slots=True)
class FromWorkers:
    """Several workers of one node say the same.

    `message` is of worker 0, so that what nodes say alike is alike; of what each has measured, the
    most (engine/cluster/batching.py).
    """

    workers: tuple[int, ...]
    message: Registered | Inventory | Underway | Joined | Committed | Finished


@dataclass(frozen=True, slots=True)
class FromNode:
    """Number `number` of what an agent says on its line; `sent_s`: its clock when this was sent."""

    number: int
    heard: int
    sent_s: float
    message: FromWorker | FromAgent | FromWorkers


@dataclass(frozen=True, slots=True)
class ToNode:
    """The same, the other way."""

    number: int
    heard: int
    sent_s: float
    message: ForAgent


@dataclass(frozen=True, slots=True)
class Challenge:
    """The coordinator's first word on a connection, where the run has a token.

    `nonce`: never said before, hexadecimal.
    """

    nonce: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The agent's answer, before its Enrol: whoever knows the run's token can make this `digest`
    (hexadecimal) of that nonce and this node.
    """

    node: str
    digest: str


FromWorker = (
    Hello
    | Parked
    | Registered
    | Broke
    | Inventory
    | Donated
    | Underway
    | Joined
    | Committed
    | Checkpointed
    | Finished
    | Refused
    | Warned
    | Pong
)
ForWorker = Leave | Regroup | Ping | Stop
ForAgent = StartWorker | KillWorker | TermWorker | ToWorkers | StartStore | AskStandings | Judged
FromAgent = (
    WorkerStarted
    | WorkerExited
    | WorkerHung
    | Standings
    | Progress
    | WorkerFailedToStart
    | StoreUp
    | StoreLost
    | ZygoteLost
)
OnLine = Enrol | TurnedAway | Welcome | Beat | Grant | FromNode | ToNode
BeforeLine = Challenge | Proof
Message = (
    FromWorker
    | ForWorker
    | ForAgent
    | FromAgent
    | OnLine
    | FromWorkers
    | Housed
    | Images
    | Stood
    | BeforeLine
)
