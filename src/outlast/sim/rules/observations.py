"""Observations of a simulated run while it goes on. The world passes the time with each."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.messages import Regroup
from outlast.sim.rules.final_observations import (
    ActionDecided,
    CulpritsAtEnd,
    Diagnosed,
    DrainPlanned,
    EventWritten,
    FirstFault,
    InterruptionAtEnd,
    NodeStaysOut,
    NothingMoves,
    RecordRewritten,
    RecoveryChosen,
    RunEnded,
    SecondsAtEnd,
    StartedOnBarredNode,
    TextShown,
    WarningHeard,
)


@dataclass(frozen=True, slots=True)
class Planned:
    """The coordinator has made the plans of a new generation.

    steps       the steps that the plans go on from
    committed   the newest step that was ever committed
    holders     the ranks that hold the state of that step, or of a later one. Their process lives,
                or was killed for this plan although nothing was wrong with it. Replicated state is
                in memory, sharded state in their slots
    durable     the step of the newest good checkpoint; 0 if there is none
    cut_s       seconds since the coordinator heard that the last generation could not form its
                group across a link. None, unless survivors go on and nothing else has struck since
    store_cut   a node that could not be reached and has to host the store again, although all nodes
                could always reach another one
    follow      the ranks that have not followed the last plan, and still can. That plan went on
                from `committed`
    image       the step of the transfer image that this coordinator knows of; -1 if there is none
    again       True: survivors have to enter main's function again, and one of them has to write
                that image once more, although it has not failed
    returning   nodes that have come back, and whose enrolment has not arrived yet
    copied      the newest step for whose copies on other nodes a vote has waited, if every rank's
                image of it is available now; otherwise -1
    own_node_copies
                the ranks that have to send copies of their images to their own node
    few_copies  the ranks that have to send copies to fewer nodes than the options say, although
                there are enough nodes with ranks
    close_copies
                the ranks whose copies or parity are lost with their own domain, although they could
                lie in others
    """

    generation: int
    steps: tuple[int, ...]
    committed: int
    holders: tuple[int, ...]
    durable: int = 0
    cut_s: float | None = None
    store_cut: str = ""
    follow: tuple[int, ...] = ()
    image: int = -1
    again: bool = False
    returning: tuple[str, ...] = ()
    copied: int = -1
    own_node_copies: tuple[int, ...] = ()
    few_copies: tuple[int, ...] = ()
    close_copies: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankGiven:
    """A process receives a plan by which it holds `plan.rank`.

    others       living processes that hold the rank too
    neighbours   the number of other ranks that live on its node
    room         the number of ranks that the node has room for
    """

    worker: int
    plan: Regroup
    others: tuple[int, ...]
    neighbours: int = 0
    room: int = 1


@dataclass(frozen=True, slots=True)
class Restored:
    """State of `step` had to be read from `source`, where the steps in `found` are sealed."""

    worker: int
    rank: int
    source: str
    step: int
    found: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StartedOver:
    """A rank has to go on from `step` with private state as the script makes it.

    sealed   the steps that are sealed in its slots on its own node
    read     True: that state is also in the checkpoint of this step. This coordinator has told all
           ranks to begin from that checkpoint
    """

    worker: int
    rank: int
    step: int
    sealed: tuple[int, ...]
    read: bool = False


@dataclass(frozen=True, slots=True)
class OldStore:
    """A plan names the store of order `number`, but the coordinator knows of a newer one.

    `newest` is the order of that store, which is up.
    """

    generation: int
    number: int
    newest: int


@dataclass(frozen=True, slots=True)
class CheckpointOffered:
    """The plans of `generation` begin from the checkpoint of `step`.

    `why_not` says what was known to be wrong with that checkpoint; "" if nothing was.
    """

    generation: int
    step: int
    why_not: str


@dataclass(frozen=True, slots=True)
class ManifestToWrite:
    """The manifest of `step` has to be written.

    `matches_shards` is True if the shards on the disks are those that the manifest names.
    """

    step: int
    matches_shards: bool


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A checkpoint of this step could not be written."""

    step: int
    error: str


@dataclass(frozen=True, slots=True)
class CheckpointsRemoved:
    """The checkpoints of these steps were removed.

    good   the step of the newest good checkpoint before; 0 if there was none
    left   the step of the newest good checkpoint now; 0 if there is none
    stay   the steps of the checkpoints that still have a manifest
    """

    steps: tuple[int, ...]
    good: int
    left: int
    stay: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupJoined:
    """A process reports that it is in the group of `generation` with the state of `step`.

    `content` is the step of its real state.
    """

    worker: int
    rank: int
    generation: int
    step: int
    content: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """A process has committed `step`.

    content  the step of its real state
    owners   the living processes that hold its rank
    count    the number of ranks that it stands for (identical_nodes.py)
    excess   how many times too often the script's code after the step before has run on this state;
             negative if too seldom
    """

    worker: int
    rank: int
    generation: int
    step: int
    content: int
    owners: tuple[int, ...]
    count: int = 1
    excess: int = 0


@dataclass(frozen=True, slots=True)
class Executed:
    """A rank is the first one that runs the optimizer of `step`. No rank has committed it yet."""

    step: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """All ranks commit steps `first` to `last` undisturbed.

    torn     the ranks whose state before the stretch is not that of the step before
    shared   the ranks that are held by another process than the one that commits
    """

    generation: int
    first: int
    last: int
    torn: tuple[int, ...]
    shared: tuple[int, ...]

    @property
    def step(self) -> int:
        """Return the newest step, like the field of `StepDone`."""
        return self.last


@dataclass(frozen=True, slots=True)
class Regrouped:
    """The coordinator says that all ranks are in `generation`. Those in `there` really are."""

    generation: int
    ranks: int
    there: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoppedProcessWentOn:
    """A process that the kernel held stopped for `stopped_s` seconds runs again.

    `asked_s` is the number of seconds since it was sent SIGTERM, or 0 if it was not.
    """

    worker: int
    rank: int
    stopped_s: float
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The first ranks of a run get their places. `there` nodes of `nodes` have joined."""

    nodes: int
    there: int


@dataclass(frozen=True, slots=True)
class ShardHeard:
    """The coordinator hears that the shard of one rank was written. There are `ranks` shards."""

    step: int
    rank: int
    generation: int
    ranks: int


@dataclass(frozen=True, slots=True)
class ManifestOrdered:
    """The coordinator has ordered the manifest of this step."""

    step: int


@dataclass(frozen=True, slots=True)
class HangReported:
    """An agent reports that a rank has made no progress for longer than `deadline_s`.

    silence_s   the silence of a plain script that counts as a hang; 0 if the script has steps
    alone       True: there are several nodes, and the report does not say that the kernel holds the
                rank stopped
    looks       how often the rank was asked just before; None if it is not said to be behind its
                peers
    """

    deadline_s: float
    silence_s: float = 0.0
    alone: bool = False
    looks: int | None = None


@dataclass(frozen=True, slots=True)
class SilenceReported:
    """An agent reports the silence that it takes for a hang; `is_s` is the true value."""

    silence_s: float
    is_s: float


@dataclass(frozen=True, slots=True)
class AgentsAsked:
    """All agents are asked for the places of their ranks."""

    number: int


@dataclass(frozen=True, slots=True)
class SpareCount:
    """A step is committed, and this is the number of spares.

    spares        the number of living spares
    wanted        the number that was asked for
    quiet_s       seconds since the last fault, plan or end of a process
    others        the number of spares of another kind than the one that was asked for
    ended_early   True: a spare has ended by itself before it could park
    """

    spares: int
    wanted: int
    quiet_s: float
    others: int = 0
    ended_early: bool = False


@dataclass(frozen=True, slots=True)
class KillOrdered:
    """The coordinator orders that a worker of its own node be killed.

    ended      True: it has heard that this worker has ended
    all_end    True: the run ends
    unstruck   True: it has heard that this worker has started, the worker holds a rank, and this
               run had no fault
    idle       True: the worker is a spare of the kind that was asked for, and there is no reason to
               kill it. Neither it nor a node had a fault, no stop was asked for, and no rank has
               reached its end
    """

    worker: int
    ended: bool
    all_end: bool = False
    unstruck: bool = False
    idle: bool = False


@dataclass(frozen=True, slots=True)
class PowerLost:
    """A node that has joined loses its power. At most `void_s` seconds later its lease is over."""

    node: str
    void_s: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A stop of the run is requested.

    plain         True: the coordinator has not heard that the script has steps
    nothing_yet   True: it is starting all ranks and none has committed a step, or it has killed all
                  ranks of a plain script
    again         True: this is not the first request
    single        True: there is one node
    """

    plain: bool
    nothing_yet: bool
    again: bool
    single: bool


@dataclass(frozen=True, slots=True)
class SharedMessageLate:
    """An agent has waited for more workers to send a message that all ranks there have sent."""

    node: str
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Enrolled:
    """An agent enrols.

    over           workers that it names, although they have ended and their successors in the same
                   ranks there have joined
    unnamed        workers that it does not name, although they live, or have ended without a
                   successor there
    lost_store     True: it names a store that has ended
    untold_store   True: it hosts a store, but does not name it
    """

    node: str
    over: tuple[int, ...] = ()
    unnamed: tuple[int, ...] = ()
    lost_store: bool = False
    untold_store: bool = False


@dataclass(frozen=True, slots=True)
class StartOrderedEarly:
    """The coordinator orders a start on a node of which it has heard nothing but the enrolment."""

    node: str


Observation = (
    Planned
    | RankGiven
    | Restored
    | CheckpointOffered
    | ManifestToWrite
    | SaveFailed
    | CheckpointsRemoved
    | GroupJoined
    | StepDone
    | Executed
    | Stretch
    | Regrouped
    | StoppedProcessWentOn
    | RunEnded
    | CulpritsAtEnd
    | SecondsAtEnd
    | NothingMoves
    | RecoveryChosen
    | InterruptionAtEnd
    | SpareCount
    | FirstFault
    | StartedOver
    | Diagnosed
    | ActionDecided
    | DrainPlanned
    | StartedOnBarredNode
    | EventWritten
    | TextShown
    | KillOrdered
    | StopAsked
    | PowerLost
    | RecordRewritten
    | WarningHeard
    | RunBegun
    | ShardHeard
    | ManifestOrdered
    | HangReported
    | AgentsAsked
    | SilenceReported
    | SharedMessageLate
    | Enrolled
    | NodeStaysOut
    | StartOrderedEarly
    | OldStore
)
