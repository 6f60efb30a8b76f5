"""Messages over the link between an agent and the coordinator, in a run with several nodes.

1. The agent sends a Knock.
2. If the run has a token, the coordinator answers with a Challenge, and the agent with a Proof. So
   each shows that it knows the token.
3. The coordinator sends Admitted, and the agent sends Enrol.
4. The coordinator answers with Welcome or TurnedAway.
5. From then on, the agent's Beats renew its lease.

All other messages are numbered, in a FromNode or a ToNode, so that lost ones are sent again.
RunOver is the last message.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.messages.for_agent import ForAgent
from outlast.model.messages.for_worker import Regroup
from outlast.model.messages.from_agent import FromAgent, ParityKept, StoreUp, WorkerExited
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
    Sealed,
    Underway,
)
from outlast.model.shorten import Text


@dataclass(frozen=True, slots=True)
class Knock:
    """An agent's first message on a connection. Its form never changes.

    wire     the version of the wire form of all other messages
    release  the version of outlast that sends it, for messages to people
    run      the run that the agent wants to join, as in --rdzv-id
    script   a digest of the script that the agent will run; "" if it has no file
    nonce    a hexadecimal number that the agent never used before
    """

    wire: int
    release: str
    run: str
    node: str
    script: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Challenge:
    """The coordinator's answer to a Knock, if the run has a token.

    nonce   a hexadecimal number that the coordinator never used before
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

    run          the unique name of the run
    folder       the run's folder on the coordinator's node
    checkpoints  the folder of its checkpoints, which every node has to reach
    lease_s      seconds for which an agent may go on without a message from the coordinator
    nodes        --nnodes of the node that began the run
    workers      --nproc-per-node of that node
    script       the script on that node; "" if it has no file
    digest       a digest of the content of `script`
    software     the software that is installed on that node (runtime/software.py)
    begun        True: the nodes that will hold ranks have already joined
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
    """The run is over. The agent ends all processes of its node, and exits with this code.

    log_node, log  the node on which rank 0 was last, and the folder of its log there; "": unknown
    """

    exit_code: int
    state: str
    reason: Text
    log_node: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True)
class LogsAt:
    """An agent tells where the logs of its node's workers are.

    It has no number. It is sent again over each new connection, and when a log has moved.

    workers, folders  go together: the output of a worker is in stdout.log and stderr.log there
    """

    workers: tuple[int, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Housed:
    """One process of a node, as its agent knows it.

    plan    the newest plan that was delivered to it
    said    the messages from it that are still valid, oldest first
    killed  True: the coordinator has ordered the agent to kill it
    exited  the report of its end, if no other process has taken its rank here since
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
        | Sealed
        | Finished,
        ...,
    ]
    killed: bool
    exited: WorkerExited | None


@dataclass(frozen=True, slots=True)
class Images:
    """The images of `rank` that are sealed in a node's vault, newest step first.

    It does not matter which process sealed them.

    committed  the newest step that any holder of the rank that ended there had committed. Executing
               it again is repeated work
    ended      generation of the holder that ended there last, and the step that it had committed;
               empty if none has ended. That step may have been rolled back since
    """

    rank: int
    steps: tuple[int, ...]
    committed: int = 0
    ended: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Enrol:
    """An agent presents itself on a new connection, with everything that its node holds.

    session   a random number that identifies this agent since it started
    ended     the earlier session of the same agent, if any. All processes of that one are dead
    capacity  the number of ranks that the node has room for
    epoch     the newest coordinator that the agent has obeyed; 0 for none
    heard     the newest message number that it received from that coordinator
    step      the newest step that its processes have committed
    store     the group store that it hosts, if one is up
    script    the kind of state that its processes have reported: "sharded", "replicated", or ""
    transfer  generation and step of the transfer image in its vault; empty if none is sealed
    place     the place of the node among the others (--node-rank); -1 if its name decides
    serves    the address at which it serves images to other nodes, as HOST:PORT, or ""
    votes     the address at which it answers as a voter, as HOST:PORT; "" if it is not a voter
    software  the software that is installed there (runtime/software.py); "" if that is not known
    copies    the copies of other ranks' images that it keeps for other nodes
    parity    the rows of parity of other ranks' images that it keeps
    domain    the nodes that name the same one can be lost together; "": not told
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
    parity: tuple[ParityKept, ...] = ()
    domain: str = ""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The coordinator refuses an Enrol because another session holds that node's name.

    The agent may try again. It is admitted once the lease of the other session has run out.
    """

    reason: Text


@dataclass(frozen=True, slots=True)
class Welcome:
    """The coordinator admits the agent. Its lease runs from the moment at which it sent its Enrol.

    afresh  True: the agent was counted out. It may enrol again once it has no processes
    keep    ranks whose images in the agent's vault are still valid. All others are removed. None:
            all images stay
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

    message  has worker 0, so that equal messages of several nodes are equal. A measured value is
             the largest of these workers (engine/cluster/batching.py)
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


LinkMessage = Enrol | TurnedAway | Welcome | Beat | Grant | FromNode | ToNode | RunOver | LogsAt
BeforeLink = Knock | Challenge | Proof | Admitted
