"""The messages that workers, agents and the coordinator send to each other.

A worker talks to the agent of its node, and the agent talks to the coordinator. Each module here
holds one direction:

from_worker  worker to coordinator: what a worker holds, has reached, or cannot do
for_worker   coordinator to worker: leave the generation, follow a plan, answer a ping, stop
for_agent    coordinator to agent: start, kill and address worker processes
from_agent   agent to coordinator: processes that started, ended or hang, and the group store
node_link    the link between agent and coordinator where there are several nodes
asking       what people ask of a run, and the answers
evidence_link  how the coordinator gets evidence of an interruption from other nodes
voter_link   how copies of the ledger are kept, and how another coordinator takes over

A message is a frozen dataclass; `model/wire.py` describes its form as bytes. A message that belongs
to one membership carries its generation, and a receiver drops messages of another generation. A
`worker` number names one process for the whole run and is never used twice. A rank can be given to
another worker. Times are CLOCK_MONOTONIC seconds of the node that sends the message.

This package is pure.
"""

from __future__ import annotations

from outlast.model.messages.asking import Asking, RemoteRequest, Request, RequestAnswer
from outlast.model.messages.evidence_link import (
    AskEvidence,
    EvidenceFiles,
    EvidenceMessage,
    EvidencePiece,
)
from outlast.model.messages.for_agent import (
    AskProgressReport,
    Dismiss,
    ForAgent,
    Judged,
    KillWorker,
    StartStore,
    StartWorker,
    TermWorker,
    ToWorkers,
    UseStore,
)
from outlast.model.messages.for_worker import (
    ForWorker,
    Leave,
    Ping,
    Regroup,
    SaveNow,
    SealEach,
    SendImage,
    Stop,
)
from outlast.model.messages.from_agent import (
    CopyKept,
    FromAgent,
    KeptRow,
    Lived,
    Logged,
    ParityKept,
    Preempted,
    Progress,
    ProgressReport,
    ReportedMember,
    StoreLost,
    StoreUp,
    WorkerExited,
    WorkerFailedToStart,
    WorkerHung,
    WorkerLingers,
    WorkerStarted,
    ZygoteLost,
)
from outlast.model.messages.from_worker import (
    IMAGE,
    STORE,
    Broke,
    Checkpointed,
    Committed,
    CopyRefused,
    Donated,
    Finished,
    FromWorker,
    Hello,
    Inventory,
    Joined,
    Parked,
    Pong,
    Refused,
    Registered,
    Sealed,
    Underway,
    Warned,
)
from outlast.model.messages.image_link import AskImage, ImageHead, PartSource, PutImage, Share
from outlast.model.messages.node_link import (
    Admitted,
    Beat,
    BeforeLink,
    Challenge,
    Enrol,
    FromNode,
    FromWorkers,
    Grant,
    Housed,
    Images,
    Knock,
    LinkMessage,
    LogsAt,
    Proof,
    RunOver,
    ToNode,
    TurnedAway,
    Welcome,
)
from outlast.model.messages.voter_link import (
    Answer,
    Ask,
    Claim,
    Claimed,
    Keep,
    Kept,
    Voters,
    Voting,
)

__all__ = [
    "IMAGE",
    "STORE",
    "Admitted",
    "Answer",
    "Ask",
    "AskEvidence",
    "AskImage",
    "AskProgressReport",
    "Asking",
    "Beat",
    "BeforeLink",
    "Broke",
    "Challenge",
    "Checkpointed",
    "Claim",
    "Claimed",
    "Committed",
    "CopyKept",
    "CopyRefused",
    "Dismiss",
    "Donated",
    "Enrol",
    "EvidenceFiles",
    "EvidencePiece",
    "Finished",
    "ForAgent",
    "ForWorker",
    "FromAgent",
    "FromNode",
    "FromWorker",
    "FromWorkers",
    "Grant",
    "Hello",
    "Housed",
    "ImageHead",
    "Images",
    "Inventory",
    "Joined",
    "Judged",
    "Keep",
    "Kept",
    "KeptRow",
    "KillWorker",
    "Knock",
    "Leave",
    "LinkMessage",
    "Lived",
    "Logged",
    "LogsAt",
    "Message",
    "ParityKept",
    "Parked",
    "PartSource",
    "Ping",
    "Pong",
    "Preempted",
    "Progress",
    "ProgressReport",
    "Proof",
    "PutImage",
    "Refused",
    "Registered",
    "Regroup",
    "RemoteRequest",
    "ReportedMember",
    "Request",
    "RequestAnswer",
    "RunOver",
    "SaveNow",
    "SealEach",
    "Sealed",
    "SendImage",
    "Share",
    "StartStore",
    "StartWorker",
    "Stop",
    "StoreLost",
    "StoreUp",
    "TermWorker",
    "ToNode",
    "ToWorkers",
    "TurnedAway",
    "Underway",
    "UseStore",
    "Voters",
    "Warned",
    "Welcome",
    "WorkerExited",
    "WorkerFailedToStart",
    "WorkerHung",
    "WorkerLingers",
    "WorkerStarted",
    "ZygoteLost",
]

Message = (
    FromWorker
    | ForWorker
    | ForAgent
    | FromAgent
    | LinkMessage
    | FromWorkers
    | Housed
    | Images
    | ReportedMember
    | BeforeLink
    | Voting
    | AskImage
    | ImageHead
    | PutImage
    | Share
    | PartSource
    | KeptRow
    | Asking
    | EvidenceMessage
)
