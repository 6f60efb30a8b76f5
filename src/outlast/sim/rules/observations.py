"""What a simulated world lets its checkers see. `at_s` is not among the facts: the world says when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlast.model.messages import Regroup
from outlast.model.records import Interruption
from outlast.model.terms import Cause


@dataclass(frozen=True, slots=True)
class Planned:
    """The coordinator has made the plans of a new generation.

    `committed`: the newest step that was ever committed; `holders`: ranks that have the state of
    that step, or of a later one, in the memory of a process that lives, or was killed for this plan
    with nothing wrong about it (under sharded state: in their slots). `durable`: step of the newest
    good checkpoint, 0: there is none. `cut_s`: so long ago the coordinator heard that the last
    generation could not form its group across a link, and survivors go on, and nothing else was
    struck since; None: it is not so. `store_cut`: the node that could not be reached for the
    store's sake then is to host it again, and there is one that all could always reach. `follow`:
    the last plan went on from `committed`, and these ranks, which have not followed it, stand where
    they still can. `image`: the step of the transfer image that lies there, as this coordinator has
    heard; -1: none. `again`: survivors are to enter main's function again, and one of them is to
    write just that image once more, though nothing has failed for it yet. `returning`: nodes that
    have come back, and have not been heard to be in again.
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
    """State of `step` was to be read from `source`; `found`: the steps (or the step) that lay there
    sealed.
    """

    worker: int
    rank: int
    source: str
    step: int
    found: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MadeAnew:
    """A rank is to go on from `step` with private state as the script makes it.

    `lies`: steps that lie sealed in its slots, where it lives. `read`: it lies in the checkpoint of
    this step, too, which all have begun from since, by this coordinator's word.
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
class Offered:
    """The plans of `generation` are to begin from the checkpoint of `step`; `why_not`: what was
    wrong with that, and could be known; "" for nothing.
    """

    generation: int
    step: int
    why_not: str


@dataclass(frozen=True, slots=True)
class Saved:
    """The manifest of `step` is to be written.

    `one_past`: the shards that lie there are those that it names.
    """

    step: int
    one_past: bool


@dataclass(frozen=True, slots=True)
class SaveFailed:
    step: int
    error: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """The folders of these steps were removed.

    `good` was the newest good checkpoint before, `left` is it now; 0: none. `stay`: those that have
    a manifest.
    """

    steps: tuple[int, ...]
    good: int
    left: int
    stay: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrived:
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

    `owners`: living processes that hold its rank. `count`: so many ranks, all alike
    (sim/shortcuts/identical_nodes.py). `odd`: so many more pieces of the script's code behind the step before have run
    on that state than there are; below 0: fewer.
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
class Stretch:
    """All ranks commit steps `first` to `last` undisturbed.

    `torn`: ranks whose state before is not of the step before; `shared`: those that not exactly the
    process that commits them holds.
    """

    generation: int
    first: int
    last: int
    torn: tuple[int, ...]
    shared: tuple[int, ...]

    @property
    def step(self) -> int:
        """The newest, as of `StepDone`."""
        return self.last


@dataclass(frozen=True, slots=True)
class Regrouped:
    """The coordinator says that all ranks are in `generation`; `there`: those that are."""

    generation: int
    ranks: int
    there: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """The run is over, and an interruption has this mechanism; `kinds`: the faults that struck the
    processes that it names; `times_s`: what is known of its course, since the beginning; `over_s`:
    now; `unsure_s`: so far off may a time be, for the messages that tell of it were held up.
    """

    id: int
    mechanism: str
    kinds: tuple[str, ...]
    times_s: tuple[float, ...] = ()
    over_s: float = 0.0
    unsure_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WentOn:
    """A process that the kernel had held stopped for `stopped_s` runs again.

    `asked_s`: for so long it had been sent SIGTERM, if it was.
    """

    worker: int
    rank: int
    stopped_s: float
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunOver:
    """`alive`: processes with a rank that still live; `until`: the last step that was asked for;
    `stop_asked`: somebody wanted it to end; `refused`: input was; `strikes`: how often something
    was struck that may be taken for a fault; `done`: ranks that came to their end well; `blamed`:
    processes (pids) named by interruptions, but for one that the run was stopped in before all had
    left; `struck`: processes that were struck so; `kinds`: of all that struck; `max_restarts`:
    whole restarts that are allowed without progress. `asked`: exit code and reason of each time
    that somebody wanted it to end. `noted`: the ledger says that the script has steps, or who was
    to write that down may have been away. `ending_s`: so long ago somebody first wanted it to end;
    0: nobody did, or there are several nodes. `early_s`: likewise since a spare first ended by
    itself before it could park, and could say so. `spent`: tokens that are missing from the budgets
    of replacements and whole restarts; None: a coordinator that knew of others died. `rungs`: of
    the interruptions, in their order, and whether each is a child of another. `policy`: which one
    acted.
    """

    state: str
    exit_code: int
    reason: str
    committed: int
    until: int
    trained: bool
    plain: bool
    stop_asked: bool
    refused: bool
    alive: tuple[int, ...]
    open_interruptions: tuple[int, ...]
    interruptions: int
    strikes: int
    ranks: int
    done: tuple[int, ...]
    blamed: tuple[int, ...]
    struck: tuple[int, ...]
    kinds: tuple[str, ...]
    max_restarts: int
    asked: tuple[tuple[int, str], ...] = ()
    noted: bool = True
    ending_s: float = 0.0
    early_s: float = 0.0
    spent: int | None = None
    rungs: tuple[tuple[str, bool], ...] = ()
    policy: str = "none"


@dataclass(frozen=True, slots=True)
class NothingMoves:
    """The bound on time is over, or nothing will ever happen again, and the run has not ended.

    `where`: who stands where.
    """

    bound_s: float
    where: str


@dataclass(frozen=True, slots=True)
class Booked:
    """The run is over, and its seconds are booked: of each rank, by cause.

    `worked_s`: how long each rank was at steps that it then committed for the first time, by the
    world's own watch. `unsure_s`: of that, where nobody could know how far a rank had come that was
    lost with its node. `interrupted`: it was, or was cut short.
    """

    wall_s: float
    by_rank: tuple[Mapping[Cause, float], ...]
    worked_s: tuple[float, ...]
    unsure_s: tuple[float, ...]
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """The coordinator has chosen how it answers an interruption; `rung` and `reason`: as it writes
    down.

    `moves`: survivors go on in their processes, else all come anew, or the run ends. Ranks: `kept`
    in their step, `reentered` with main's function entered again, `begun` though they had no state
    yet, `taken` by a spare, `forked` afresh. `there`: ranks whose process lives, stands still and
    has whole state, and has not outlived the lease of its node. `ready`: spares that are known to
    stand ready where ranks are forked, and take none. `held`: somebody holds the newest committed
    step; `over`: some rank is past the last step. `at`: the steps that those stand at who stand
    still, and are not known to be dead; `passed`: those of which they saw the vote pass; `sealed`:
    steps that lie sealed as prepared in the slots of all ranks. `error`: a process has said an
    error of its own. `bare`: ranks in whose slots nothing lies sealed. `apart`: something has
    struck a node, its line or the coordinator, so that who lives and who is known to live may
    differ.
    """

    rung: str
    reason: str
    moves: bool
    kept: tuple[int, ...]
    reentered: tuple[int, ...]
    begun: tuple[int, ...]
    taken: tuple[int, ...]
    forked: tuple[int, ...]
    there: tuple[int, ...]
    ready: int
    held: bool
    over: bool
    at: frozenset[int]
    passed: frozenset[int]
    sealed: frozenset[int]
    way: str
    nodes: int
    ranks: int
    stop_asked: bool
    error: bool
    apart: bool
    bare: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Begun:
    """The first ranks of a run are given places. `there`: nodes that are in, of `nodes`."""

    nodes: int
    there: int


@dataclass(frozen=True, slots=True)
class ShardHeard:
    """The coordinator hears that a shard lies there, of `ranks` that are written."""

    step: int
    rank: int
    generation: int
    ranks: int


@dataclass(frozen=True, slots=True)
class ManifestOrdered:
    step: int


@dataclass(frozen=True, slots=True)
class HungSaid:
    """An agent says that a rank has stood longer than `deadline_s`.

    `silence_s`: what is a hang of a plain script; 0: the script has steps. `alone`: there are
    several nodes, and it does not say that the kernel holds it stopped. `looks`: so often it was
    asked just before; None: it is not said to have come less far than its peers.
    """

    deadline_s: float
    silence_s: float = 0.0
    alone: bool = False
    looks: int | None = None


@dataclass(frozen=True, slots=True)
class QuietSaid:
    """An agent tells what it takes for the silence of a hang, and `is_s` is."""

    silence_s: float
    is_s: float


@dataclass(frozen=True, slots=True)
class Asked:
    """All agents are asked how their ranks stand."""

    number: int


@dataclass(frozen=True, slots=True)
class ToWarn:
    """The coordinator of `epoch` hears what people are to be warned of."""

    text: str
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What is written down of an interruption is written down anew."""

    before: Interruption
    record: Interruption


@dataclass(frozen=True, slots=True)
class Noted:
    """The run is over, and an interruption stands in its ledger so.

    `nodes`: how many, and so how many clocks there are. `moved`: by its generation the run had gone
    on from a later step than it went on from then, by so many; None: it is not known (of sharded
    state, all may have committed a step that not all have sealed). `begun`: the same, counted from
    the newest step that anybody had asked for; None: of a script without steps. `back_s`: when a
    later generation was first at work, by the clock of the records: when it had committed a step
    (sharded: all its ranks had), or a rank was past the last one, or all processes of a script
    without steps had said that they run; None: none was. `latency_s`: a message takes up to so
    long. `committed`: the newest step that was committed when it was detected: as one could know by
    then at least, and in truth; None: the run has gone back since, or nobody can say. `storeless`:
    it was heard before, while its generation was built, that the store was lost. `stood_s`: when
    all ranks had committed a step in a later generation, by a clock that may be off by `unsure_s`;
    None: they never had, or whoever knew of it may be lost with its node.
    """

    record: Interruption
    nodes: int
    moved: int | None
    begun: int | None = None
    back_s: float | None = None
    latency_s: float = 0.0
    committed: tuple[int, int] | None = None
    storeless: bool = False
    stood_s: float | None = None
    unsure_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstFault:
    """The run is over.

    What struck first was `kind`, and nothing else struck before it was known (`noticed_s` later),
    or, where `back_s` is not None, before a step was committed again, `back_s` after that. A
    message takes up to `latency_s`, and the first step of a process up to `first_step_s`. It struck
    after `steps` steps; `within`: in the next one, where it has a deadline of its own. `mechanism`:
    what it is called; "" where others may be to blame. `silence_s`: of a plain script's workers,
    taken for a hang; 0: the script has steps. `body_s`: the longest body of a step. `nodes`: how
    many.
    """

    kind: str
    noticed_s: float
    back_s: float | None
    latency_s: float
    first_step_s: float
    steps: int = 0
    within: bool = False
    mechanism: str = ""
    silence_s: float = 0.0
    body_s: float = 0.0
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Stock:
    """A step is committed, and `spares` live, of `wanted`.

    `quiet_s`: so long ago anything was struck or planned, or a process ended. `others`: spares of
    another kind than was asked for. `ended_early`: a spare has ended before it could park, and
    nobody had killed it.
    """

    spares: int
    wanted: int
    quiet_s: float
    others: int = 0
    ended_early: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """An interruption that the run did not make itself gets a verdict.

    `outage`: it, or the one that it is part of; `blamed`: node -> how sure that is.
    """

    outage: int
    blamed: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Acted:
    """The policy has decided what is to be done.

    `budget`: how often that is allowed within so many seconds; None: as often as one likes. `own`:
    for an interruption that it made itself. `moves`: a drain takes ranks off their nodes: their
    state has other owners, elsewhere.
    """

    action: str
    nodes: tuple[str, ...]
    dry_run: bool
    at_s: float
    budget: tuple[int, float] | None
    own: bool = False
    moves: bool = False


@dataclass(frozen=True, slots=True)
class DrainPlanned:
    """The plans of the generation in which a drained node has no ranks any more.

    `undisturbed`: nothing was struck since the drain began. `left`: ranks that are to live there
    all the same.
    """

    generation: int
    steps: tuple[int, ...]
    committed: int
    undisturbed: bool
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """An event of the ledger, by the coordinator of `epoch`."""

    kind: str
    data: Mapping[str, object]
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class KillOrdered:
    """The coordinator wants a worker of its own node to be killed.

    `ended`: it has heard that this one has ended. `all_end`: the run does. `unstruck`: it has heard
    that this one has started, which holds a rank, and nothing was ever struck in this run. `idle`:
    it is a spare of the kind that was asked for, and nothing has struck it, or a node, and nobody
    wants the run to end, and no rank has come to its end.
    """

    worker: int
    ended: bool
    all_end: bool = False
    unstruck: bool = False
    idle: bool = False


@dataclass(frozen=True, slots=True)
class PowerLost:
    """A node that is in has no power any more, all at once.

    Its lease is void `void_s` later at most.
    """

    node: str
    void_s: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the run to end.

    `plain`: the coordinator has not heard that the script has steps; `nothing_yet`: it starts all
    ranks, and none has committed a step, or (of a plain script) has killed them all; `again`: not
    for the first time; `single`: there is one node.
    """

    plain: bool
    nothing_yet: bool
    again: bool
    single: bool


@dataclass(frozen=True, slots=True)
class Told:
    """A line for whoever watches the run.

    `ended_early`: some spare has ended before it could park, and nobody had killed it, or it may
    have been lost with its node.
    """

    text: str
    ended_early: bool = False


@dataclass(frozen=True, slots=True)
class SharedLate:
    """An agent has waited for others to say the same, and these workers are all that have a rank on
    its node.
    """

    node: str
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Enrolled:
    """An agent enrols.

    Workers: `over`: it names them, and they have ended, and their successors in their ranks there
    have joined; `unnamed`: it does not, and they live, or have ended without a successor there.
    `lost_store`: it names a store that does not live any more; `untold_store`: it hosts one, and
    does not name it.
    """

    node: str
    over: tuple[int, ...] = ()
    unnamed: tuple[int, ...] = ()
    lost_store: bool = False
    untold_store: bool = False


@dataclass(frozen=True, slots=True)
class OrderedEarly:
    """The coordinator wants something to be started on a node of which it has heard nothing since
    it enrolled.
    """

    node: str


@dataclass(frozen=True, slots=True)
class StaysOut:
    """The run is over, and for so long the agent of a node was connected, and had given up all its
    processes, which have ended, and had not enrolled.
    """

    node: str
    for_s: float


@dataclass(frozen=True, slots=True)
class StartedThere:
    """A worker is to be started on a node that was barred before."""

    node: str
    worker: int


Observation = (
    Planned
    | RankGiven
    | Restored
    | Offered
    | Saved
    | SaveFailed
    | Pruned
    | Arrived
    | StepDone
    | Stretch
    | Regrouped
    | WentOn
    | RunOver
    | Named
    | Booked
    | NothingMoves
    | Answered
    | Noted
    | Stock
    | FirstFault
    | MadeAnew
    | Diagnosed
    | Acted
    | DrainPlanned
    | StartedThere
    | Written
    | Told
    | KillOrdered
    | StopAsked
    | PowerLost
    | Rewritten
    | ToWarn
    | Begun
    | ShardHeard
    | ManifestOrdered
    | HungSaid
    | Asked
    | QuietSaid
    | SharedLate
    | Enrolled
    | StaysOut
    | OrderedEarly
    | OldStore
)
