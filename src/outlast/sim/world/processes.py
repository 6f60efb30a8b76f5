"""A simulated process. Its listener is the real `WorkerMachine`, its main thread a generator."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from outlast.engine.agent.worker_watch import Reading
from outlast.engine.commit.image_place import ScriptPosition
from outlast.engine.durable import Rollbacks
from outlast.engine.protocol.outputs import Output
from outlast.engine.protocol.worker import WorkerMachine
from outlast.model.beacon import Beacon
from outlast.model.booking import Book
from outlast.model.messages import CopyKept, FromAgent, KeptRow, ParityKept, Share
from outlast.model.terms import Cause
from outlast.sim.draws import ProcessDraws
from outlast.sim.shortcuts.identical_nodes import IdenticalNodes
from outlast.sim.world.agent_ticks import AgentTicks

# what a main thread waits for: ("sleep", s), ("plan", g), ("collective", None), ("build", plan)
Act = tuple[str, Any]
Thread = Generator[Act, Any, Any]
TORN = -2


class RowsOnNode(Protocol):
    """The rows of parity that a node keeps of images of ranks of other nodes."""

    def put(
        self, share: Share, rank: int, generation: int, step: int
    ) -> tuple[ParityKept, ...] | None: ...

    def served(self, stripe: int, row: int, step: int) -> tuple[KeptRow, ...]: ...

    def all_rows(self) -> tuple[ParityKept, ...]: ...


class CopiesOnNode(Protocol):
    """The copies that a node keeps of images of ranks of other nodes."""

    def put(self, rank: int, generation: int, step: int) -> tuple[CopyKept, ...] | None: ...

    def steps(self, rank: int) -> tuple[int, ...]: ...

    def made_in(self, rank: int, step: int) -> int | None: ...

    @property
    def rows(self) -> RowsOnNode: ...


class Door(Protocol):
    """A gate that holds events back while a process or an agent stands still."""

    def through(self, act: Callable[[], None]) -> None: ...


class Asleep(Protocol):
    """The facts that a process may know about a node that stands still."""

    @property
    def outlives_lease(self) -> bool: ...

    @property
    def agent(self) -> Door: ...


class Home(Protocol):
    """A node, as the processes on it and the parts that nodes share see it."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> int: ...

    @property
    def drawn_at(self) -> int: ...

    lives: bool

    @property
    def twins(self) -> IdenticalNodes | None: ...

    @property
    def luck(self) -> ProcessDraws | None: ...

    @property
    def ticks(self) -> AgentTicks: ...

    @property
    def processes(self) -> dict[int, SimulatedProcess]: ...

    @property
    def slots(self) -> dict[int, dict[int, int]]: ...

    @property
    def kept(self) -> dict[int, dict[int, int]]: ...

    @property
    def copies(self) -> CopiesOnNode: ...

    @property
    def rollbacks(self) -> Rollbacks: ...

    @property
    def heard_s(self) -> dict[int, float]: ...

    @property
    def doomed(self) -> set[int]: ...

    @property
    def now_s(self) -> float: ...

    @property
    def count(self) -> int: ...

    @property
    def still(self) -> Asleep: ...

    @property
    def traced(self) -> bool: ...

    def world_s(self, local_s: float) -> float: ...

    def alive(self) -> list[SimulatedProcess]: ...

    def stir(self) -> None: ...

    def lends(self, process: SimulatedProcess) -> bool: ...

    def tell(self, process: SimulatedProcess, message: Any) -> None: ...

    def heard_by_agent(self, message: FromAgent) -> None: ...

    def carry_out_in(self, process: SimulatedProcess, output: Output) -> None: ...

    def end(
        self, process: SimulatedProcess | None, exit_code: int | None, signal: int | None
    ) -> None: ...

    def sleeps_no_more(self, process: SimulatedProcess) -> None: ...

    def resume_if(
        self, process: SimulatedProcess, token: int, error: Exception | None, value: Any = None
    ) -> None: ...


# A transfer image: generation and step, its node, the number of pieces of the script's own code
# after the step that its writer had run, its late votes, and the number of those pieces that its
# private state had seen.
TransferImage = tuple[int, int, Home, int, dict[str, str], int]


def copied(beacon: Beacon) -> Beacon:
    """Return a copy of a beacon. It shares the tables, because they never change in a beacon."""
    one = beacon
    return Beacon(
        one.worker,
        one.pid,
        one.rank,
        one.generation,
        one.step,
        one.prepared,
        one.sealed,
        one.attempt,
        one.beats,
        one.at_ns,
        one.phase,
        one.cause,
        one.opened_ns,
        one.since_ns,
        one.seconds,
        one.typical_s,
        one.stalls,
        one.torn,
    )


class SealedStep(int):
    """An image in a slot: the number of its step, and what may differ in images of that step.

    place   the position of the script when the image was sealed
    own     the number of pieces of the script's code after the step that its private state has seen
    """

    place: ScriptPosition
    own: int

    def __new__(cls, step: int, place: ScriptPosition, own: int) -> SealedStep:
        made = super().__new__(cls, step)
        made.place, made.own = place, own
        return made

    @property
    def metadata(self) -> dict[str, str]:
        return self.place.metadata()


class PeerFailure(Exception):
    """The error that a collective raises in the main thread when a peer is lost.

    `unreached` is as in Broke.
    """

    def __init__(self, what: str, unreached: tuple[int, ...] = ()) -> None:
        super().__init__(what)
        self.unreached = unreached


class UserError(Exception):
    """An error of the script itself."""


class Died(BaseException):
    """The process has ended within its main thread. The simulated script cannot catch this."""


def pid_of(worker: int) -> int:
    """Return the pid of a worker."""
    return 1000 + worker


@dataclass(eq=False)
class SimulatedGroup:
    """The process group of one generation.

    size         the number of ranks in it
    entered[i]   the number of ranks that have entered collective i
    lost         True: a member died or left
    well         True: all members that left have ended with success
    unheard      the members that wait, and do not know yet that a member left
    made_s       when its connections were made
    stops        the votes in which a member says that it was asked to stop
    asked        the votes in which a member says that it was asked for a checkpoint ("save"), or to
                 seal after each step ("seal")
    lates        the votes that a member makes after its optimizer

    After a vote, all members know its stops, what is asked, and its lates.
    """

    # in the order in which they joined; a stand-in counts as one
    members: dict[SimulatedProcess, None] = field(default_factory=dict)
    size: int = 0
    entered: dict[int, int] = field(default_factory=dict)
    lost: bool = False
    well: bool = False
    made_s: float = 0.0
    unheard: dict[SimulatedProcess, None] = field(default_factory=dict)
    stops: set[int] = field(default_factory=set)
    asked: set[tuple[str, int]] = field(default_factory=set)
    lates: set[int] = field(default_factory=set)


@dataclass(eq=False)
class SimulatedProcess:
    """One simulated process.

    `waits` is what the main thread has yielded. `token` numbers its waits, so that an event for an
    older wait is ignored.

    A process with `mates` is a stand-in, and is simulated for all of them
    (shortcuts/identical_ranks.py). In a mate (`stand_in` is set), only the fields that differ
    between mates are up to date.
    """

    worker: int
    rank: int
    kind: str
    generation: int
    machine: WorkerMachine
    beacon: Beacon
    book: Book
    spawned_s: float
    node: Home
    step_began_s: float = 0.0
    main: Thread | None = None
    waits: Act | None = None
    token: int = 0
    alarm: int = 0  # number of the event that ends its sleep; 0 if it does not sleep
    alive: bool = True
    ended_s: float = 0.0  # when it ended
    reaped: bool = False  # the agent knows that it has ended
    stopped: bool = False  # by SIGSTOP, or by the fault "deaf"
    listed_stopped: bool = False  # the kernel reports it as stopped
    stopped_since_s: float | None = None  # since when the kernel has reported it
    asked_since_s: float | None = None  # when it was sent SIGTERM while it was stopped
    starves: bool = False  # it stands still because it has no processor
    seen_starving_s: float | None = None  # since when the agent has checked whether it starves
    hung: bool = False
    # events for a stopped process, which happen when it goes on
    backlog: list[Callable[[], None]] = field(default_factory=list)
    held_until_s: float = 0.0  # until then, messages to it wait
    mute_until_s: float = 0.0  # until then, messages from it wait
    lingers_s: float = 0.0  # it ends this long after it was killed
    dying: bool = False
    repeats_until_s: float = 0.0  # until then, messages to and from it come twice
    group: SimulatedGroup | None = None
    collectives: int = 0
    content: int = -1  # the step of the real state in memory; -1: none; TORN: between two steps
    best: int = -1  # the newest step that `content` ever was
    ran: int = 1  # pieces of the script's own code after that step that its state has seen
    own: int = 1  # the same for its private state, if the script changes that there
    began_ran: int = 1  # `ran` when the present step began
    began_own: int = 1  # `own` when the present step began
    # the slot of the newest image, its step, and the position if this process has sealed it
    newest: tuple[int, int, ScriptPosition | None] = (-1, -1, None)
    warm: bool = False  # it has done a step, so it has compiled and allocated
    high_water: int = 0  # the newest step ever executed in its rank; older ones count as repeated
    in_body: bool = False
    in_hook: bool = False  # when it last stood still, it could apply the prepared step
    error: str = ""  # the error that the next user code raises
    saves_until_s: float = 0.0  # until then, its shard of a checkpoint is being written
    read: Reading | None = None  # the agent's last reading of it
    luck: ProcessDraws | None = None  # its draws, if the ranks of a node draw alike
    newest_to_s: float = 0.0  # when the newest message to it arrives
    newest_from_s: float = 0.0  # when the newest message from it arrives
    stand_in: SimulatedProcess | None = None
    mates: list[SimulatedProcess] = field(default_factory=list)  # in the order of ranks
    # for a mate: seconds that it has booked in addition to the book of its stand-in
    owed: dict[Cause, float] | None = None

    def each(self) -> list[SimulatedProcess]:
        """Return the processes that it stands for."""
        return self.mates or [self]

    @property
    def count(self) -> int:
        """Return the number of processes that it stands for, on all nodes of its node."""
        return (len(self.mates) or 1) * self.node.count

    @property
    def unit(self) -> SimulatedProcess:
        """Return the process that is simulated: itself, or its stand-in."""
        return self if self.stand_in is None else self.stand_in

    def starved_s(self, *, closely: bool, now_s: float) -> float:
        """Return how long the agent has seen it wait for a processor, by the agent's clock.

        `closely` says whether the agent checks this now.
        """
        if not closely or not self.starves:
            self.seen_starving_s = None
            return 0.0
        if self.seen_starving_s is None:
            self.seen_starving_s = now_s
        return now_s - self.seen_starving_s

    def reading(self) -> Reading:
        """Return the agent's reading of it now. The beacon is copied if it has changed."""
        if self.stand_in is not None:
            return self.stand_in.reading()
        before, beacon = self.read, self.beacon
        if (
            before is None
            or before.stopped is not self.listed_stopped
            or before.beacon.beats != beacon.beats
            or before.beacon.rank != beacon.rank
        ):
            before = self.read = Reading(copied(beacon), self.listed_stopped)
        return before

    @property
    def pid(self) -> int:
        return pid_of(self.worker)

    def catch_up(self) -> None:
        """Let the process go on, and carry out the events that waited for that."""
        backlog, self.backlog = self.backlog, []
        for act in backlog:
            act()

    def holds(self, step: int) -> None:
        """Note that the state in memory is now that of `step`."""
        self.content, self.best = step, max(self.best, step)
        for mate in self.mates:
            mate.content, mate.best = step, max(mate.best, step)
