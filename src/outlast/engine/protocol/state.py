"""What the coordinator knows and remembers, and how it writes that down.

Its methods are layered by subject, each class adding one: `Course` (here), `Ending`, `Moving`, `Faults`,
`Leaving`, and on top `Coordinator`, which takes the messages. Calls go down only.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from outlast.engine.budget import Budgets, default_budgets
from outlast.engine.coordinator.cut_links import CutLinks
from outlast.engine.coordinator.interruptions import InterruptionLog
from outlast.engine.coordinator.members import Member, Roster
from outlast.engine.coordinator.node_membership import NodeMembership
from outlast.engine.coordinator.rank_history import RankHistory
from outlast.engine.default_policy import default_policy
from outlast.engine.durable import Saves
from outlast.engine.protocol.outputs import End, Output, Record, SetTimer, ToAgent
from outlast.engine.recovery import RecoveryVerdict
from outlast.model import limits
from outlast.model.messages import ForWorker, KillWorker, Progress, Regroup, ToWorkers
from outlast.model.policy import Policy
from outlast.model.records import Event, Generation


class Stage(Enum):
    ENROLLING = "enrolling"
    REBUILDING = "rebuilding"
    STARTING = "starting"
    TRAINING = "training"
    GATHERING = "gathering"
    LEAVING = "leaving"
    MOVING = "moving"
    HANDOVER = "handover"
    CLEARING = "clearing"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Restart:
    """What all ranks start from when they come anew: step, and the sources of `Regroup`."""

    step: int = 0
    replicated: str = "none"
    private: str = "none"
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The transfer image that lies sealed on node `home`. `phases` after `step` are done in it; -1: nobody knows how many."""

    generation: int
    step: int
    home: str
    phases: int = -1


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """`start`: what the ranks begin from. `checkpoint`: folder and step of the newest good checkpoint, or ("", 0). `durable`: checkpoints are written,
    or lie there from before.
    """

    world_size: int
    start: Restart
    spares: int = 0
    spare_kind: str = "hot"
    max_restarts: int | None = None
    checkpoint: tuple[str, int] = ("", 0)
    checkpoint_on_stop: bool = False
    durable: bool = False
    term_grace_s: float = limits.TERM_GRACE_S  # from a stop asked for to SIGKILL
    generation: int = 0
    first_interruption: int = 1
    first_worker: int = 1
    nodes: int = 0  # agents that are waited for at the start; 0: one, in the same process
    greets: bool = True  # workers say Hello; a program (--no-python) never does: it is at work once it is started
    policy: Policy = field(default_factory=default_policy)


@dataclass(slots=True)
class _Order:
    """The same to some workers of one node, while they are found."""

    message: ForWorker
    home: str
    workers: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def ready(self) -> ToAgent:
        ranks = tuple(self.ranks) if isinstance(self.message, Regroup) else ()
        return ToAgent(ToWorkers(tuple(self.workers), ranks, self.message), self.home)


class Course:
    """The state of one run."""

    def __init__(self, *, options: CoordinatorOptions) -> None:
        self.options = options
        self.stage = Stage.STARTING
        self.generation = options.generation
        self.roster = Roster(world_size=options.world_size, next_worker=options.first_worker)
        self.nodes = NodeMembership(local=not options.nodes)
        self.links = CutLinks()
        self.interruptions = InterruptionLog(first_id=options.first_interruption)
        self.budgets: Budgets = default_budgets(options.max_restarts)
        self.step = options.start.step  # newest step known to be committed
        self.executed = options.start.step  # newest step ever executed: again books as repeated
        self._here = (self.step, self.step)  # the newest step committed, and executed, since the newest plan: what the next one goes back behind, it costs
        self._stands = False  # all have been in the present generation
        self._store: tuple[str, int] | None = None
        self._store_home = ""
        self._stores = 0  # orders for one
        self.lived = RankHistory()
        self._drained: frozenset[int] = frozenset()  # ranks of a node that is being drained, until the rung is chosen
        self._oldest: dict[str, int] = {}  # node -> the step that all its ranks have come to
        self._store_lost = (-1, "")  # the generation in which it was lost last, and how
        self._restart = options.start
        self._planned = options.start.step  # what the newest plan goes on from
        self._verdict: RecoveryVerdict | None = None  # taken, and to be followed once those that it gives up are dead
        self._node_faults = 0  # of the node that is being lost
        self._ends_at_once = False  # the run, as soon as it is known who lives
        self._several_end = False  # nothing is decided before all of them are known to be dead
        self._cut_short = False  # the fault at hand came while steps were executed
        self._fault_s: float | None = None
        self._detected_s: float | None = None
        self._raised: set[int] = set()
        self._moved_s: float | None = None  # when a step was last seen committed
        self._restore_s = 0.0
        self._trained = False
        self._user_error = ("", "")
        self._end: End | None = None
        self._by_signal = False  # the run was asked to end when no process could hear a Stop yet: they were sent SIGTERM
        self._newest_checkpoint = (options.checkpoint[1], options.checkpoint[0])
        self._begun_from = options.start.checkpoint or options.checkpoint[0]  # the checkpoint that was found to be good last
        self.saves = Saves(options.world_size)
        self._looking = False  # for the newest good checkpoint
        self._donating = False  # a donor of the newest plans has not handed over yet
        self._donated = Transfer(options.generation, options.start.step, "") if options.start.replicated == "transfer" else None
        self._spare_failures = 0
        self._warned: set[str] = set()

    @property
    def runs_plain(self) -> bool:
        """All processes of a script without an outlast call are at work; of such a run nothing more is known."""
        members = self.roster.members()
        return self.stage is Stage.STARTING and not self.roster.outlast and bool(members) and all(m.running for m in members)

    # --- progress ------------------------------------------------------------------------------------------------

    def _committed_by(self, message: Progress, node: str) -> int:
        """Sharded state is committed where all owners are: without the beacon of a dead one, those of the others do not tell."""
        if not self.roster.sharded:
            return message.newest
        self._oldest[node] = message.oldest
        homes = {member.home for member in self.roster.members()}
        return min(self._oldest.get(home, 0) for home in homes) if self.stage is Stage.TRAINING else 0

    def _next_generation(self, step: int) -> None:
        """It goes on from `step`."""
        self.generation += 1
        self._planned, self._here, self._stands = step, (step, step), False
        self._donating, self._restore_s = False, 0.0
        self._raised.clear()  # whoever raises again says so
        for member in self.roster.members():
            member.raised = None  # how it ends from now on is another matter, also if it is not told of this generation any more
        self.saves.went_back(generation=self.generation, step=step)

    def _note_step(self, committed: int, executed: int) -> None:
        self.step, self.executed = max(self.step, committed), max(self.executed, executed)
        if self._stands or self.stage is Stage.REBUILDING:  # else who has not followed the newest plan yet may speak of what it went back behind
            self._here = max(self._here[0], committed), max(self._here[1], executed)

    def _note_word(self, committed: int, executed: int) -> None:
        """Of one rank. Under sharded state a step is committed once all owners have sealed it."""
        self._note_step(0 if self.roster.sharded else committed, executed)

    def _resumed(self, now_s: float, at_s: float) -> list[Output]:
        """Of this generation, a step is committed."""
        if not self.interruptions.resumed(at_s=at_s, generation=self.generation):
            return []
        if not self.interruptions.open:
            self._fault_s = self._detected_s = None
        return [*self._records(), SetTimer("spares", now_s + limits.SPARE_REFILL_DELAY_S)]

    # --- room ---

    def _room(self, members: Iterable[Member]) -> dict[str, int]:
        """How many ranks fit on each node beside `members`. On one that is barred, those that live there, if their state lies there and nowhere else."""
        room = self.nodes.room(members)
        if self.roster.sharded and self.nodes.barred:
            for home in self.roster.homes.values():
                if home in self.nodes.barred and home in room:
                    room[home] += 1
        return room

    def _fits_elsewhere(self, ranks: frozenset[int]) -> bool:
        """There is room for `ranks` beside all others, on nodes that can be heard."""
        room = self._room(member for member in self.roster.live() if member.rank not in ranks)
        return sum(max(0, free) for node, free in room.items() if node not in self.nodes.silent) >= len(ranks)

    # --- telling and killing ---

    def _tell(self, told: Iterable[tuple[Member, ForWorker]]) -> list[Output]:
        """One order for each node: workers there that are told the same object share it."""
        orders: dict[tuple[object, int], _Order] = {}
        order: _Order | None = None
        for member, message in told:
            if order is None or order.message is not message or order.home != member.home or self.nodes.local:  # else it is the one before's
                place = member.worker if self.nodes.local else member.home  # within one process there is nothing to be saved
                order = orders.get((place, id(message)))
                if order is None:
                    order = orders[place, id(message)] = _Order(message, member.home)
            order.workers.append(member.worker)
            order.ranks.append(member.rank)
        return [order.ready() for order in orders.values()]

    def _kill(self, now_s: float, members: Iterable[Member], why: str) -> list[Output]:
        """They are killed, and their deaths awaited: a rank is given away only after that, and the run ends if one cannot be killed."""
        out: list[Output] = []
        for member in members:
            member.condemned = True
            out.append(ToAgent(KillWorker(member.worker, why), member.home))
        return [*out, SetTimer("kill", now_s + limits.KILL_DEADLINE_S)] if out else []

    # --- records -------------------------------------------------------------------------------------------------

    def _records(self) -> list[Output]:
        return [Record(record, at_once=not self.nodes.local) for record in self.interruptions.changed()]

    def _record_places(self, now_s: float) -> list[Output]:
        """Where each rank lives, as far as it was not known: another coordinator has to know whose images count."""
        moved, self.roster.moved = self.roster.moved, {}
        if self.nodes.local or not moved:
            return []
        self.lived.note(self.generation, moved)
        by_node: dict[str, list[int]] = {}
        for rank, home in sorted(moved.items()):
            by_node.setdefault(home, []).append(rank)
        return [Record(self.event(now_s, "placed", {"node": home, "ranks": ranks}), at_once=True) for home, ranks in by_node.items()]

    def _record_generation(self, now_s: float) -> Record:
        """Before anybody is told. A coordinator that comes after this one must not give the number again: of several nodes, one may keep it to itself."""
        members = tuple(m.worker for m in sorted(self.roster.members(), key=lambda m: m.rank))
        return Record(Generation(self.generation, self.options.world_size, now_s, members), at_once=not self.nodes.local)

    def _event(self, now_s: float, kind: str, data: dict[str, object]) -> Record:
        return Record(self.event(now_s, kind, data))

    def event(self, now_s: float, kind: str, data: dict[str, object]) -> Event:
        return Event(now_s, 0.0, kind, data)
