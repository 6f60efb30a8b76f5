"""Messages from the coordinator to an agent."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.messages.for_worker import (
    Leave,
    Ping,
    Regroup,
    SaveNow,
    SealEach,
    SendImage,
    Stop,
)
from outlast.model.shorten import Text


@dataclass(frozen=True, slots=True)
class StartWorker:
    """The agent forks or spawns a worker.

    rank  -1 for a spare
    kind  "hot" or "warm" for a spare, else "rank"
    """

    worker: int
    rank: int
    kind: str
    generation: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """The agent sends SIGKILL to the worker's session. It reports the death like any other."""

    worker: int
    reason: Text


@dataclass(frozen=True, slots=True)
class TermWorker:
    """The agent sends SIGTERM to a worker whose script makes no outlast call.

    Such a script cannot be asked to stop in another way.

    interrupt  send SIGINT instead, because a person pressed Ctrl-C. Many scripts save when they
               catch KeyboardInterrupt
    """

    worker: int
    reason: Text
    interrupt: bool = False


@dataclass(frozen=True, slots=True)
class ToWorkers:
    """The agent passes the same message to several workers of its node.

    ranks  for a plan, the rank that each of the workers holds; otherwise empty
    """

    workers: tuple[int, ...]
    ranks: tuple[int, ...]
    message: Leave | Regroup | Ping | Stop | SaveNow | SealEach | SendImage


@dataclass(frozen=True, slots=True)
class StartStore:
    """The agent starts a store host and answers with StoreUp.

    number  counts these orders; a report that carries an older number is ignored
    """

    reason: Text
    number: int


@dataclass(frozen=True, slots=True)
class UseStore:
    """The store for process groups listens at this address, which may be on another node.

    The agent gives this address to the workers that it starts from now on, in their environment.
    """

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class AskProgressReport:
    """The agent has to answer with a ProgressReport, because another agent has an overdue rank."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Judged:
    """Ranks were overdue, but no rank is to blame.

    outcome   "awaited": all others wait for a rank that is still within its deadline. "nobody": all
              ranks are in the same place
    again_s   if "awaited": after how many seconds to look again, as another rank is overdue then
    """

    outcome: str
    again_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The node is drained, and the run goes on without it. Its launcher ends with success.

    A launcher that is started there later brings the node back as a spare.
    """

    reason: Text


ForAgent = (
    StartWorker
    | KillWorker
    | TermWorker
    | ToWorkers
    | StartStore
    | UseStore
    | AskProgressReport
    | Judged
    | Dismiss
)
