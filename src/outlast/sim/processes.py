"""One simulated process: a listener that is the real `WorkerMachine`, and a main thread that is a generator."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlast.engine.protocol.worker import WorkerMachine
from outlast.model.beacon import Beacon
from outlast.model.booking import Book

Act = tuple[str, Any]  # what a main thread waits for: ("sleep", s), ("plan", g), ("collective", None), ("build", plan)
Thread = Generator[Act, Any, Any]
TORN = -2


if TYPE_CHECKING:
    from outlast.sim.node import Node


class PeerFailure(Exception):
    """What a collective raises when a peer is lost, and what the woken main thread sees."""


class UserError(Exception):
    """The script's own."""


class Reenter(Exception):
    """Main's function is to be entered again."""


class Died(Exception):
    """The process ended where its main thread stood."""


@dataclass
class Group:
    """The process group of one generation. `entered[i]`: ranks that entered collective i. `lost`: a member died or left."""

    members: dict[int, Process] = field(default_factory=dict)
    entered: dict[int, set[int]] = field(default_factory=dict)
    lost: bool = False


@dataclass(eq=False)
class Process:
    """`waits` is what the main thread yielded; `token` numbers its waits, so that an event for an older one is void."""

    worker: int
    rank: int
    kind: str
    generation: int
    machine: WorkerMachine
    beacon: Beacon
    book: Book
    spawned_s: float
    node: Node
    step_began_s: float = 0.0
    main: Thread | None = None
    waits: Act | None = None
    token: int = 0
    alive: bool = True
    ended_s: float = 0.0  # when it did
    reaped: bool = False  # the agent knows that it has ended
    stopped: bool = False  # SIGSTOP, or deaf
    listed_stopped: bool = False  # the kernel says so
    stopped_since_s: float | None = None  # it has said so since
    hung: bool = False
    backlog: list[Callable[[], None]] = field(default_factory=list)  # what happens to a stopped process comes when it goes on
    held_until_s: float = 0.0  # messages to it wait
    mute_until_s: float = 0.0  # messages from it wait
    lingers_s: float = 0.0  # it ends so long after it was killed
    dying: bool = False
    repeats_until_s: float = 0.0  # messages to and from it come twice
    group: Group | None = None
    collectives: int = 0
    content: int = -1  # the step that the state in memory really is of; -1: none; TORN: between two
    best: int = -1  # the newest that it ever was of
    in_body: bool = False
    error: str = ""  # to be raised at the next user code

    @property
    def pid(self) -> int:
        return 1000 + self.worker

    def holds(self, step: int) -> None:
        """The state in memory is of `step` now."""
        self.content, self.best = step, max(self.best, step)
