"""Observations of a simulated run while it goes on. The world says when each was made."""

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

    committed   the newest step that was ever committed
    holders     ranks that have the state of that step, or of a later one, in memory. Their process
                lives, or was killed for this plan though nothing was wrong with it. Under sharded
                state, they have it in their slots
    durable     the step of the newest good checkpoint; 0: there is none
    cut_s       how long ago the coordinator heard that the last generation could not form its
                group across a link. None, unless survivors go on and nothing else struck since
    store_cut   a node that hosts the store could not be reached, and is to host it again, although
                all nodes could always reach another one
    follow      the last plan went on from `committed`; these ranks have not followed it, and still
                can
    image       the step of the transfer image, as far as this coordinator knows; -1: none
    again       survivors are to enter main's function again, and one of them is to write that same
                image once more, although it has not failed
    returning   nodes that have come back, and whose enrolment has not arrived yet
    copied      the newest step for whose copies on other nodes a vote has waited, if every rank's
                image of it is available now; -1: there is none
    beside      ranks that are to send copies of their images to the node that they live on
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
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankGiven:
    """A process is told that it holds `plan.rank`.

    `others`: living processes that hold it too; `beside`: ranks that live on its node besides,
    which has room for `room`.
    """

    worker: int
    plan: Regroup
    others: tuple[int, ...]
    beside: int = 0
    room: int = 1


@dataclass(frozen=True, slots=True)
class Restored:
    """State of `step` was to be read from `source`. `found`: the sealed steps (or step) there."""

    worker: int
    rank: int
    source: str
    step: int
    found: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StartedOver:
    """A rank is to go on from `step` with private state as the script makes it.

    `lies`: steps that are sealed in its slots, where it lives. `read`: it also is in the
    checkpoint of this step, from which all have begun since, as this coordinator said.
    """

    worker: int
    rank: int
    step: int
    lies: tuple[int, ...]
    read: bool = False


@dataclass(frozen=True, slots=True)
class OldStore:
    """A plan names the store of the order `number`, and the coordinator has heard that a newer one
    is up: that of `newest`.
    """

    generation: int
    number: int
    newest: int


@dataclass(frozen=True, slots=True)
class CheckpointOffered:
    """The plans of `generation` are to begin from the checkpoint of `step`; `why_not`: what was
    wrong with that, and could be known; "" for nothing.
    """

    generation: int
    step: int
    why_not: str


@dataclass(frozen=True, slots=True)
class ManifestToWrite:
    """The manifest of `step` is to be written.

    `one_past`: the shards that are there are those that it names.
    """

    step: int
    one_past: bool


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A checkpoint of this step could not be written."""

    step: int
    error: str


@dataclass(frozen=True, slots=True)
class CheckpointsRemoved:
    """The folders of these steps were removed.

    `good` was the newest good checkpoint before, `left` is it now; 0: none. `stay`: those that have
    a manifest.
    """

    steps: tuple[int, ...]
    good: int
    left: int
    stay: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupJoined:
    """A process is in the group of `generation`, by its own word at `step`; `content` is the step
    that its state really is of.
    """

    worker: int
    rank: int
    generation: int
    step: int
    content: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """A process has committed `step`; `content` is the step that its state really is of.

    owners   living processes that hold its rank
    count    the number of ranks, if several are alike (identical_nodes.py)
    odd      how many more pieces of the script's code after the step before have run on that
             state than there are; below 0: fewer
    """

    worker: int
    rank: int
    generation: int
    step: int
    content: int
    owners: tuple[int, ...]
    count: int = 1
    odd: int = 0


@dataclass(frozen=True, slots=True)
class Executed:
    """A rank is the first that has ever run the optimizer of `step`. No rank has committed it."""

    step: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """All ranks commit steps `first` to `last` undisturbed.

    `torn`: ranks whose state before is not of the step before; `shared`: ranks that another process
    holds than the one that commits.
    """

    generation: int
    first: int
    last: int
    torn: tuple[int, ...]
    shared: tuple[int, ...]

    @property
    def step(self) -> int:
        """Return the newest step, as `StepDone` has it."""
        return self.last


@dataclass(frozen=True, slots=True)
class Regrouped:
    """The coordinator says that all ranks are in `generation`; `there`: those that are."""

    generation: int
    ranks: int
    there: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoppedProcessWentOn:
    """A process that the kernel had held stopped for `stopped_s` runs again.

    `asked_s`: for so long it had been sent SIGTERM, if it was.
    """

    worker: int
    rank: int
    stopped_s: float
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The first ranks of a run are given places. `there`: nodes that are in, of `nodes`."""

    nodes: int
    there: int


@dataclass(frozen=True, slots=True)
class ShardHeard:
    """The coordinator hears that a shard is there, of `ranks` that are written."""

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
    """An agent says that a rank has stood longer than `deadline_s`.

    silence_s   the silence of a plain script that counts as a hang; 0: the script has steps
    alone       there are several nodes, and the report does not say that the kernel holds the rank
                stopped
    looks       how often it was asked just before; None: it is not said to be behind its peers
    """

    deadline_s: float
    silence_s: float = 0.0
    alone: bool = False
    looks: int | None = None


@dataclass(frozen=True, slots=True)
class SilenceReported:
    """An agent says which silence it takes for a hang; `is_s` is the true value."""

    silence_s: float
    is_s: float


@dataclass(frozen=True, slots=True)
class AgentsAsked:
    """All agents are asked how their ranks stand."""

    number: int


@dataclass(frozen=True, slots=True)
class SpareCount:
    """A step is committed, and `spares` live, of `wanted`.

    `quiet_s`: how long ago the last fault or plan came, or a process ended. `others`: spares of
    another kind than was asked for. `ended_early`: a spare has ended by itself before it could
    park.
    """

    spares: int
    wanted: int
    quiet_s: float
    others: int = 0
    ended_early: bool = False


@dataclass(frozen=True, slots=True)
class KillOrdered:
    """The coordinator wants a worker of its own node to be killed.

    ended      it has heard that this worker has ended
    all_end    the run ends
    unstruck   it has heard that this worker has started; the worker holds a rank, and this run had
               no fault
    idle       the worker is a spare of the kind that was asked for. Neither it nor a node had a
               fault; no stop was asked for, and no rank has reached its end
    """

    worker: int
    ended: bool
    all_end: bool = False
    unstruck: bool = False
    idle: bool = False


@dataclass(frozen=True, slots=True)
class PowerLost:
    """A node that is in loses its power.

    Its lease is void `void_s` later at most.
    """

    node: str
    void_s: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A stop of the run is asked for.

    plain         the coordinator has not heard that the script has steps
    nothing_yet   it starts all ranks, and none has committed a step; or it has killed all ranks of
                  a plain script
    again         it is not the first time
    single        there is one node
    """

    plain: bool
    nothing_yet: bool
    again: bool
    single: bool


@dataclass(frozen=True, slots=True)
class SharedMessageLate:
    """An agent has waited for more workers to say the same, though all with a rank there have."""

    node: str
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Enrolled:
    """An agent enrols.

    over           workers that it names although they have ended, and their successors in their
                   ranks there have joined
    unnamed        workers that it does not name although they live, or have ended without a
                   successor there
    lost_store     it names a store that does not live any more
    untold_store   it hosts a store, and does not name it
    """

    node: str
    over: tuple[int, ...] = ()
    unnamed: tuple[int, ...] = ()
    lost_store: bool = False
    untold_store: bool = False


@dataclass(frozen=True, slots=True)
class StartOrderedEarly:
    """The coordinator orders a start on a node that it has not heard since the node enrolled."""

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
