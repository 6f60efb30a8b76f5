"""The terms of the ledger and the wire: mechanisms, classes, rungs, causes of lost seconds.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum


class Mechanism(str, Enum):
    """This says how an interruption was noticed. It is known at once, but does not say why."""

    EXIT = "exit"
    SIGNAL = "signal"
    EXCEPTION = "exception"
    HANG = "hang"
    SLOW = "slow"
    CORRUPT = "corrupt"
    LOST_CONTACT = "lost_contact"
    LOST_NODE = "lost_node"


class FailureClass(str, Enum):
    """This says why an interruption happened. It is `unknown` until evidence says more.

    The rows of Llama 3's table of interruptions map onto these.
    """

    GPU = "gpu"
    HBM = "hbm"
    SRAM = "sram"
    GPU_SYSTEM_PROCESSOR = "gpu_system_processor"
    NVLINK = "nvlink"
    NETWORK = "network"  # switch or cable
    NIC = "nic"
    SSD = "ssd"
    STORAGE = "storage"
    HOST_MEMORY = "host_memory"  # the memory of the host is exhausted
    GPU_OOM = "gpu_oom"
    CPU = "cpu"
    SYSTEM_MEMORY = "system_memory"  # a broken DIMM
    POWER_SUPPLY = "power_supply"
    CHASSIS = "chassis"
    IO_BOARD = "io_board"
    THERMAL = "thermal"
    SILENT_DATA_CORRUPTION = "silent_data_corruption"
    STRAGGLER = "straggler"
    HOST_MAINTENANCE = "host_maintenance"
    DEPENDENCY = "dependency"
    SOFTWARE_BUG = "software_bug"
    USER_CODE = "user_code"
    USER_DATA = "user_data"
    UNKNOWN = "unknown"


class Rung(str, Enum):
    """The ways to recover from an interruption, cheapest first."""

    REPEAT = "repeat"  # every process lives; the step is repeated in place
    REENTER = "reenter"  # survivors enter the function given to outlast.main again
    RESPAWN = "respawn"  # a new fork of the zygote takes the place of the lost process
    SPARE = "spare"  # a parked spare takes the rank
    # all ranks start again, from the newest checkpoint or image, or from step 0
    RESTART = "restart"
    STOP = "stop"  # the run ends with a verdict


class Phase(str, Enum):
    """A phase is what the main thread of a worker is doing. Each has its own learned deadline."""

    BOOT = "boot"  # from the start of the process to outlast.join()
    SETUP = "setup"  # from join() to the first step: user code
    PARKED = "parked"  # a spare that waits for a rank
    DATA = "data"  # fetching a batch
    BODY = "body"  # inside `with step:`, before the vote: user code, perhaps in a collective
    VOTE = "vote"  # in the vote
    APPLY = "apply"  # after a passed vote: the optimizer and the rest of the block, without peers
    SNAPSHOT = "snapshot"  # copying an image into the vault
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"  # inside run.phase(...)
    BETWEEN = "between"  # user code between steps
    WAIT = "wait"  # waiting for a message of the coordinator
    REGROUP = "regroup"  # building the group, moving state
    EPILOGUE = "epilogue"  # after the last step
    EXIT = "exit"  # the script has ended with success; the interpreter cleans up


class Waypoint(IntEnum):
    """The points that a worker passes on its way into a generation. Later ones are larger.

    A worker waits for other ranks at AWAITS_STATE, CONNECTS and RESTORES. At the other two its
    script is running, and no deadline is short.
    """

    BEGINS = 0  # it has sent nothing since it was sent its plan
    AWAITS_STATE = 1  # it is in run.steps, without a group
    CONNECTS = 2  # it connects to the group
    IN_SCRIPT = 3  # it has a group, and its script is on the way to run.steps
    RESTORES = 4  # it is in run.steps or in a step, with a group


class Tier(str, Enum):
    """The places from which a run can restore state, cheapest first."""

    MEMORY = "memory"  # shared memory of the rank's own node
    PEER = "peer"  # the memory of another rank or node
    PARITY = "parity"  # memory of several nodes, one of which may be lost
    LOCAL = "local"  # files: --checkpoint-dir
    OBJECT = "object"  # an object store


class Cause(str, Enum):
    """A cause says what seconds of a rank were used for. All causes sum to wall-clock time.

    `MEANING` defines each of them, and docs/reference/account.md explains them. Beacon, ledger,
    planner and reports use these names. Causes may be added, but none is renamed.
    """

    STARTUP = "startup"
    PRODUCTIVE = "productive"
    DATA_WAIT = "data_wait"
    STALL = "stall"
    REPEATED = "repeated"
    DETECTION = "detection"
    REGROUP = "regroup"
    RESTORE = "restore"
    EVALUATION = "evaluation"
    OTHER = "other"
    DEGRADED = "degraded"
    SHUTDOWN = "shutdown"
    LOST = "lost"
    STRAGGLER_WAIT = "straggler_wait"
    DRAIN = "drain"
    IDLE = "idle"


# "hot": the script has begun and the model is built; "warm": only the imports are done
SPARE_KINDS = ("hot", "warm")
NOT_SHOWN = "what the ranks did is not in the source of the import"
MEANING: Mapping[Cause, str] = {
    Cause.STARTUP: "from the start of the launcher until a rank trains",
    Cause.PRODUCTIVE: "steps that were kept, when they first ran",
    Cause.DATA_WAIT: "waiting for a batch",
    Cause.STALL: "training paused for a snapshot or a checkpoint",
    Cause.REPEATED: "steps that were rolled back or ran again",
    Cause.DETECTION: "from a fault to its detection",
    Cause.REGROUP: "from detection until all ranks are in the new group",
    Cause.RESTORE: "moving state, and waiting for ranks that do",
    Cause.EVALUATION: "run.phase(...)",
    Cause.OTHER: "user code between steps",
    Cause.DEGRADED: "ranks that the run went on without",
    Cause.SHUTDOWN: "after the last step",
    Cause.LOST: "steps that were thrown away and not done again",
    Cause.STRAGGLER_WAIT: "waiting for ranks that are slower than the others",
    Cause.DRAIN: "moving off a node that is given up on purpose",
    Cause.IDLE: "waiting for a node with room for a lost rank",
}

# Nothing measures this cause yet. A report shows it as null, and never as 0, because its seconds
# are in `productive`: a rank waits for slower ones inside a collective, which no beacon shows.
UNMEASURED: frozenset[Cause] = frozenset({Cause.STRAGGLER_WAIT})

# Only outlast itself measures these causes. A ledger that was imported does not have them.
UNMEASURED_ELSEWHERE: frozenset[Cause] = frozenset({Cause.DRAIN, Cause.IDLE})

# Every second of these causes is attributed to the interruption that took it.
TAKEN_BY_INTERRUPTIONS: tuple[Cause, ...] = (
    Cause.DETECTION,
    Cause.REGROUP,
    Cause.RESTORE,
    Cause.REPEATED,
    Cause.DEGRADED,
    Cause.DRAIN,
    Cause.IDLE,
)

CAUSES: tuple[Cause, ...] = tuple(Cause)
PHASES: tuple[Phase, ...] = tuple(Phase)
TIERS: tuple[Tier, ...] = tuple(Tier)
