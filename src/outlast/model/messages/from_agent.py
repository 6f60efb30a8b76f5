"""Messages from an agent to the coordinator, about the processes of its node."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.shorten import Some, Text


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The process of `worker` exists."""

    worker: int
    pid: int
    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The kernel reported that the process has ended.

    exit_code  None if a signal ended it
    oom        True: the kernel killed it because memory was exhausted
    oom_near   True: the kernel counted an OOM kill at that time, but did not say which process
    committed  the newest step that it had committed, according to its beacon
    prepared   steps that are sealed as prepared in the slots of its rank
    sealed     steps whose images are sealed in those slots
    fault_s    when the kernel ended it, as precisely as known; None if it is not known

    The checksums of `prepared` and `sealed` were verified.
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
    oom_near: bool = False


@dataclass(frozen=True, slots=True)
class WorkerHung:
    """A worker made no progress within its deadline. The agent has not killed it yet.

    last_s  when its beacon last moved
    """

    worker: int
    phase: str
    last_s: float
    deadline_s: float
    at_s: float
    reason: Text


@dataclass(frozen=True, slots=True)
class WorkerLingers:
    """The script of a worker is over, but its process has not ended. This is sent repeatedly.

    over_s  when the script was over
    where   the place of the thread that the process waits for; "" if it is not known
    """

    worker: int
    over_s: float
    at_s: float
    where: Text


@dataclass(frozen=True, slots=True)
class ReportedMember:
    """The state of one rank at the moment when a question about it was answered.

    age_s        seconds since its beacon last changed
    deadline_s   seconds for which it may stay in its phase; None if there is no limit
    collectives  number of collectives that its group was given; None if its listener did not answer
    cut_off      as in Pong; also cut_off_bytes
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
    cut_off_bytes: Some = ()


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The state of all ranks of one node, where there are several nodes.

    nonce      the nonce of the question; 0 if the agent asks itself, because a rank of its node is
               overdue
    quiet_s    seconds for which no process of a plain script has printed anything; None if nothing
               reads their output, or if the script is not plain
    silence_s  seconds of silence that count as a hang
    exhausted  True: deadlines cannot be doubled any more
    """

    nonce: int
    members: tuple[ReportedMember, ...]
    quiet_s: float | None
    silence_s: float
    exhausted: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """The beacons of this node's workers have changed.

    newest  the newest step that any member has committed
    oldest  the newest step that all members have committed
    step_s  how long a step typically takes
    """

    newest: int
    oldest: int
    step_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Lived:
    """The account of a process of this node so far. It is sent repeatedly.

    The fields are those of `records.Life`; `causes` and `seconds` go together, and so do `tiers`
    and `stalls`.
    """

    worker: int
    pid: int
    node: str
    rank: int
    kind: str
    assigned_s: float
    opened_s: float | None
    ended_s: float | None
    causes: tuple[str, ...]
    seconds: tuple[float, ...]
    cause: str
    end: Text
    tiers: tuple[str, ...] = ()
    stalls: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Logged:
    """The agent of rank 0 reports what the script there says of its training.

    The fields are those of `gauges.Gauges`; `names` and `values` go together. They are for people,
    and no decision depends on them.
    """

    target: int
    step: int
    names: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WorkerFailedToStart:
    """The process of `worker` could not be started."""

    worker: int
    error: Text


@dataclass(frozen=True, slots=True)
class StoreUp:
    """The store host that order `number` asked for is up. The agent fills the number in."""

    host: str
    port: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The store host of order `number` has ended or could not be started."""

    reason: Text
    number: int = 0


@dataclass(frozen=True, slots=True)
class ZygoteLost:
    """The zygote has ended. From now on workers are started as fresh interpreters."""

    reason: Text


@dataclass(frozen=True, slots=True)
class Preempted:
    """This node will soon be taken from the run: its launcher got a signal that says so."""

    reason: Text


@dataclass(frozen=True, slots=True)
class CopyKept:
    """This node keeps copies of images that `rank` has sealed on another node.

    generation  the generation of the rank when it sent the newest copy
    steps       the steps of which copies are there, the newest first
    """

    rank: int
    generation: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A row of parity that a node keeps, complete.

    row         which of the sums of these parts it is
    ranks       whose parts it is made of, by place; -1: there is none at this place
    generation  in which the ranks sent their parts
    step        of the images
    """

    row: int
    ranks: tuple[int, ...]
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class ParityKept:
    """This node keeps these rows of parity of one stripe, the newest first.

    There are none if it had no room for a part.
    """

    stripe: int
    rows: tuple[KeptRow, ...]


FromAgent = (
    WorkerStarted
    | WorkerExited
    | WorkerHung
    | WorkerLingers
    | ProgressReport
    | Progress
    | Lived
    | Logged
    | WorkerFailedToStart
    | StoreUp
    | StoreLost
    | ZygoteLost
    | Preempted
    | CopyKept
    | ParityKept
)
