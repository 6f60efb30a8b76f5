"""What an agent and the coordinator send over the link between them, where there are several nodes.

The agent knocks. Where the run has a token, the coordinator answers with a Challenge, and the agent
with a Proof: each shows that it knows the token. The agent is admitted, enrols, and is welcomed or
turned away. From then on its beats renew its lease. All other messages are numbered, in a FromNode
or a ToNode, so that lost ones are sent again. RunOver is the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.messages.for_agent import ForAgent
from outlast.model.messages.for_worker import Regroup
from outlast.model.messages.from_agent import FromAgent, StoreUp, WorkerExited
from outlast.model.messages.from_worker import (
    Broke,
    Committed,
    Donated,
    Finished,
    FromWorker,
    Hello,
    Inventory,
    Joined,
    Parked,
    Registered,
    Underway,
)
from outlast.model.shorten import Text


@dataclass(frozen=True, slots=True)
class Knock:
    """An agent's first message on a connection. Its form never changes.

    wire     the version of the wire form of all other messages
    release  the outlast that sends it, for people
    run      the run that it means, as --rdzv-id names it
    script   a digest of the script that it is to run; "" where there is no file
    nonce    a hexadecimal number that it never used before
    """

    wire: int
    release: str
    run: str
    node: str
    script: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Challenge:
    """The coordinator's answer to a Knock, where the run has a token.

    nonce   a hexadecimal number that it never used before
    digest  hexadecimal, of both nonces; it can only be made with the run's token
    """

    nonce: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """The agent's answer to a Challenge, before its Enrol.

    digest  hexadecimal, of the nonce and the node; it can only be made with the run's token
    """

    node: str
    digest: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """The coordinator knows the agent now, and tells it which run this is.

    run          the run's own name, which no other run has
    folder       the run's folder on the coordinator's node
    checkpoints  the folder of its checkpoints, which every node has to reach
    lease_s      how long an agent may go on without word from the coordinator
    nodes        --nnodes of the node that began the run; `workers`: its --nproc-per-node
    script       the script there, and `digest` its content; "" where there is no file
    software     what is installed there (runtime/software.py)
    begun        the nodes that are to hold ranks are in already
    """

    run: str
    folder: str
    checkpoints: str
    lease_s: float
    nodes: int = 0
    workers: int = 0
    script: str = ""
    digest: str = ""
    software: str = ""
    begun: bool = False


@dataclass(frozen=True, slots=True)
class RunOver:
    """The run is over: the agent ends what is left on its node, and leaves with this exit code."""

    exit_code: int
    state: str
    reason: Text


@dataclass(frozen=True, slots=True)
class Housed:
    """One process of a node, as its agent knows it.

    plan    the newest plan that was delivered to it
    said    the messages from it that still hold, oldest first
    killed  the coordinator has ordered to kill it
    exited  it has ended, and no other process has taken its rank here since
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
    """The images of `rank` that are sealed in a node's vault, newest step first.

    It does not matter which process sealed them.

    committed  the newest step that any holder of the rank who has ended there had committed; to
               execute it again is to repeat it
    ended      generation of the holder who ended there last, and the step that it had committed;
               empty where none has ended. That step may have been undone since
    """

    rank: int
    steps: tuple[int, ...]
    committed: int = 0
    ended: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Enrol:
    """An agent presents itself at a new connection, with all that its node holds.

    session   a random number that stands for this agent since it started; no other agent has it
    ended     the session that the same agent had before, if any; all processes of that one are dead
    capacity  how many ranks the node has room for
    epoch     the newest coordinator that the agent has obeyed; 0 for none
    heard     the newest message number that it received from that coordinator
    step      the newest step that its processes have committed
    store     the group store that it hosts, if that is up
    script    what its processes have said of their state: "sharded", "replicated", or "" so far
    transfer  generation and step of the transfer image in its vault; empty where none is sealed
    place     where the node stands among the others (--node-rank); -1: by its name
    serves    where it serves the transfer image to other nodes, as HOST:PORT; "": nowhere
    votes     where it answers as a voter, as HOST:PORT; "": it is none
    software  what is installed there (runtime/software.py); "": not told
    copies    the copies that it keeps of images of other nodes' ranks
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
    place: int = -1
    serves: str = ""
    votes: str = ""
    software: str = ""
    copies: tuple[Images, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The coordinator refuses an Enrol because another session holds that node's name.

    The agent may try again. It is admitted once the lease of the other session has run out.
    """

    reason: Text


@dataclass(frozen=True, slots=True)
class Welcome:
    """The coordinator admits the agent. Its lease runs from the moment at which it sent its Enrol.

    afresh  the agent was counted out; it may enrol again once it holds no processes
    keep    ranks whose images in the agent's vault still count, and all others are removed; None
            where all stay
    """

    epoch: int
    heard: int
    lease_s: float
    afresh: bool
    keep: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Beat:
    """An agent asks to renew its lease, and acknowledges all messages up to `heard`."""

    number: int
    heard: int
    sent_s: float


@dataclass(frozen=True, slots=True)
class Grant:
    """The coordinator renews the lease from the moment at which beat `number` was sent."""

    number: int
    heard: int
    sent_s: float


@dataclass(frozen=True, slots=True)
class FromWorkers:
    """Several workers of one node send the same message, so the agent sends it once for all.

    message  carries worker 0, so that equal messages of several nodes are equal; a measured value
             is the largest of the workers' (engine/cluster/batching.py)
    """

    workers: tuple[int, ...]
    message: Registered | Inventory | Underway | Joined | Committed | Finished


@dataclass(frozen=True, slots=True)
class FromNode:
    """Message `number` of an agent on its link.

    heard   acknowledges all messages of the other side up to this number
    sent_s  the agent's clock when it sent this
    """

    number: int
    heard: int
    sent_s: float
    message: FromWorker | FromAgent | FromWorkers


@dataclass(frozen=True, slots=True)
class ToNode:
    """Message `number` of the coordinator to an agent. The fields are as in FromNode."""

    number: int
    heard: int
    sent_s: float
    message: ForAgent


LinkMessage = Enrol | TurnedAway | Welcome | Beat | Grant | FromNode | ToNode | RunOver
BeforeLink = Knock | Challenge | Proof | Admitted
