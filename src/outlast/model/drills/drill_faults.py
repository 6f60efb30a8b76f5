"""The library of faults that `outlast drill` injects into real processes.

Each fault says how it is injected, which class of Llama 3's table of interruptions it stands for by
default, and what its evidence allows a diagnosis to say. This is settled before a drill begins.

A fault from outside is a signal to a process of the run. A fault from inside is done by the process
itself at its next optimizer call, because it cannot be had otherwise. Each fires once, and not
again when its step is repeated: it stands for a fault of the world, not for a bug that returns.

Sources   "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.4 and table 5: 466
          interruptions in 54 days, 47 of them planned; the 419 others by component.

This module is pure data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from outlast.model.terms import FailureClass, Mechanism

C = FailureClass
EXIT_CODE = 3  # of a process that ends by itself


class Leaves(str, Enum):
    """The evidence that a fault leaves behind."""

    NOTHING = "nothing"  # a bare SIGKILL: the most that can be said is "killed from outside"
    SIGNAL = "signal"  # the number of the signal that the process raised itself
    CODE = "exit code"
    TRACEBACK = "traceback"
    STACK = "stack"  # where a process stands that hangs
    KERNEL = "kernel line"  # it stands beside the evidence before a diagnosis reads that
    COUNTER = "counter"  # of the processes that the kernel has killed for memory
    DIFFERENCE = "difference"  # of state that is the same on all ranks


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault.

    how         what is done, for people
    struck      "rank", "spare", "store" or "zygote": the process that is struck; "disk": the disk
                of the run's folder; of several hosts also a "host", its "agent" (the launcher
                there), or the agent that leads ("leader")
    signal      the signal that is sent from outside; "": the process does it itself
    stands_for  the class of Llama 3's table, where a plan does not say another one
    leaves      what evidence it leaves
    classes     what a diagnosis may name by that evidence; `unknown` is never wrong
    passes      it ends after `for_s`
    interrupts  the run must book an interruption; otherwise it may go on without one
    """

    name: str
    how: str
    stands_for: FailureClass
    leaves: Leaves = Leaves.NOTHING
    struck: str = "rank"
    signal: str = ""
    classes: frozenset[FailureClass] = field(default_factory=frozenset)
    passes: bool = False
    interrupts: bool = True

    @property
    def inside(self) -> bool:
        """Return whether the process that is struck does it itself."""
        return not self.signal and self.struck == "rank"

    @property
    def is_silent(self) -> bool:
        """Return whether it changes state and stops nothing. A run that finds it ends."""
        return self.leaves is Leaves.DIFFERENCE

    @property
    def damages(self) -> bool:
        """Return whether an image of the rank that is struck cannot be used any more."""
        return self.name in IMAGE_KINDS

    @property
    def of_host(self) -> bool:
        """Return whether a whole host is struck, or the agent of one."""
        return self.struck in ("host", "agent", "leader")

    @property
    def shows(self) -> tuple[str, ...]:
        """Return the mechanisms by which the ledger can show it."""
        if self.of_host:
            return (Mechanism.LOST_NODE.value, Mechanism.LOST_CONTACT.value, Mechanism.HANG.value)
        if self.passes or self.leaves is Leaves.STACK:
            return (Mechanism.HANG.value, Mechanism.SLOW.value)
        if self.leaves is Leaves.TRACEBACK:
            return (Mechanism.EXCEPTION.value,)
        return (Mechanism.EXIT.value if self.leaves is Leaves.CODE else Mechanism.SIGNAL.value,)


_CODE = frozenset({C.USER_CODE, C.SOFTWARE_BUG})
KINDS: Mapping[str, FaultKind] = {
    one.name: one
    for one in (
        FaultKind("kill", "SIGKILL from outside", C.GPU, signal="SIGKILL"),
        FaultKind(
            "stop",
            "SIGSTOP from outside, and SIGCONT after for_s",
            C.NETWORK,
            signal="SIGSTOP",
            passes=True,
            interrupts=False,
        ),
        FaultKind(
            "slow",
            "from outside: the processor is left to it for 5 to 50 % of the time, for for_s",
            C.STRAGGLER,
            signal="SIGSTOP",
            passes=True,
            interrupts=False,
        ),
        FaultKind(
            "abort",
            "SIGABRT from outside: as a library ends a process whose device is broken",
            C.HBM,
            Leaves.SIGNAL,
            signal="SIGABRT",
            classes=_CODE,
        ),
        FaultKind(
            "segv",
            "SIGSEGV from outside: as a wrong address in native code ends a process",
            C.SOFTWARE_BUG,
            Leaves.SIGNAL,
            signal="SIGSEGV",
            classes=_CODE,
        ),
        *(
            FaultKind(
                f"xid_{stands_for.value}",
                f"SIGABRT from outside, and after the run a line of the kernel's about Xid {number}"
                " beside the evidence: as when a GPU fails",
                stands_for,
                Leaves.KERNEL,
                signal="SIGABRT",
                classes=classes,
            )
            for stands_for, number, classes in (
                (C.GPU, 79, frozenset({C.GPU})),
                (C.HBM, 94, frozenset({C.HBM})),
            )
        ),
        FaultKind(
            "kill_spare",
            "SIGKILL to a process that stands ready",
            C.HOST_MAINTENANCE,
            struck="spare",
            signal="SIGKILL",
            interrupts=False,
        ),
        FaultKind(
            "lose_store",
            "SIGKILL to the host of the store",
            C.HOST_MAINTENANCE,
            struck="store",
            signal="SIGKILL",
            interrupts=False,
        ),
        FaultKind(
            "lose_zygote",
            "SIGKILL to the process that workers are forked from",
            C.HOST_MAINTENANCE,
            struck="zygote",
            signal="SIGKILL",
            interrupts=False,
        ),
        FaultKind(
            "exit",
            f"the process ends with exit code {EXIT_CODE}, as after a failed check of itself",
            C.SILENT_DATA_CORRUPTION,
            Leaves.CODE,
        ),
        FaultKind("raise", "an exception, once", C.SOFTWARE_BUG, Leaves.TRACEBACK, classes=_CODE),
        FaultKind(
            "shape",
            "a product of matrices that do not fit, once",
            C.SOFTWARE_BUG,
            Leaves.TRACEBACK,
            classes=_CODE,
        ),
        FaultKind(
            "nan",
            "the exception of a script that has seen a loss of NaN, once",
            C.SOFTWARE_BUG,
            Leaves.TRACEBACK,
            classes=_CODE | {C.USER_DATA},
        ),
        FaultKind(
            "uneven",
            "the exception of a script whose rank has less data than the others, once",
            C.SOFTWARE_BUG,
            Leaves.TRACEBACK,
            classes=_CODE | {C.USER_DATA},
        ),
        FaultKind(
            "io",
            "an input/output error of a file, once",
            C.SSD,
            Leaves.TRACEBACK,
            classes=frozenset({C.STORAGE, C.SSD}),
        ),
        FaultKind(
            "loader",
            "SIGKILL to a worker of the rank's DataLoader",
            C.SYSTEM_MEMORY,
            Leaves.TRACEBACK,
            classes=frozenset({C.HOST_MEMORY, C.SYSTEM_MEMORY}),
        ),
        FaultKind(
            "hang",
            "the main thread sleeps and does not return",
            C.UNKNOWN,
            Leaves.STACK,
            classes=_CODE,
        ),
        FaultKind("spin", "an endless loop", C.SOFTWARE_BUG, Leaves.STACK, classes=_CODE),
        FaultKind(
            "deaf",
            "native code holds the interpreter lock and does not return",
            C.GPU_SYSTEM_PROCESSOR,
            Leaves.STACK,
            classes=_CODE,
        ),
        FaultKind(
            "order",
            "a collective that no other rank calls",
            C.SOFTWARE_BUG,
            Leaves.STACK,
            classes=_CODE,
        ),
    )
}

# The lines as the driver writes them. `{pid}` stands for the process that was struck.
_XID = "NVRM: Xid (PCI:0000:3b:00): "
KERNEL_LINES: Mapping[str, str] = {
    "xid_gpu": _XID + "79, pid={pid}, name=python, GPU has fallen off the bus.",
    "xid_hbm": _XID + "94, pid={pid}, name=python, Contained: SM (0x1). RST: No, D-RST: No",
}

# Faults that need the right to make control groups. `smoke`, which everybody can run, has none.
MEMORY_KINDS: Mapping[str, FaultKind] = {
    "oom": FaultKind(
        "oom",
        "a control group limits the process's memory, it wants more, and the kernel ends it",
        C.SYSTEM_MEMORY,
        Leaves.COUNTER,
        classes=frozenset({C.HOST_MEMORY}),
    )
}

# An image in shared memory is damaged, and then needed: its rank is killed. Replicated state goes
# on with older random state then, and is not bit-exact any more. So only a plan that names them has
# these.
IMAGE_KINDS: Mapping[str, FaultKind] = {
    name: FaultKind(
        name,
        f"SIGKILL from outside, to a rank whose newest image in shared memory {damage}",
        C.SYSTEM_MEMORY,
        signal="SIGKILL",
        classes=frozenset({C.HOST_MEMORY, C.SYSTEM_MEMORY, C.STORAGE}),
    )
    for name, damage in (
        ("corrupt_image", "has flipped bits"),
        ("torn_image", "was written by half, though its seal says that it is whole"),
    )
}

# Faults of the disk, for runs that write checkpoints to it. A disk is full in a file system that
# the drill mounts for the run's checkpoints, and slow by a limit of a control group.
DISK_KINDS: Mapping[str, FaultKind] = {
    name: FaultKind(
        name,
        how,
        C.SSD,
        struck="disk",
        classes=frozenset({C.STORAGE, C.SSD}),
        passes=True,
        interrupts=False,
    )
    for name, how in (
        ("full_disk", "the file system of the run's checkpoints has no room left, for for_s"),
        ("slow_disk", "the run's processes may write 1 MiB a second to its disk, for for_s"),
    )
}

# Faults of whole hosts. `for_s` is how long the host is away, or cut off.
_LOST = frozenset(
    {C.NETWORK, C.NIC, C.POWER_SUPPLY, C.CHASSIS, C.IO_BOARD, C.HOST_MAINTENANCE, C.SYSTEM_MEMORY}
)
HOST_KINDS: Mapping[str, FaultKind] = {
    one.name: one
    for one in (
        FaultKind(
            "lose_node",
            "the host's link goes down, and SIGKILL ends all of its processes; it is back after"
            " for_s, with nothing in memory",
            C.CHASSIS,
            struck="host",
            classes=_LOST,
            passes=True,
        ),
        FaultKind(
            "cut",
            "the host's link is down for for_s, and nothing says so to anybody",
            C.NIC,
            struck="host",
            classes=frozenset({C.NETWORK, C.NIC}),
            passes=True,
            interrupts=False,
        ),
        FaultKind(
            "flap",
            "the host's link goes down and up again in turn, for for_s",
            C.NETWORK,
            struck="host",
            classes=frozenset({C.NETWORK, C.NIC}),
            passes=True,
            interrupts=False,
        ),
        FaultKind(
            "slow_link",
            "the host's link carries 20 Mbit/s for for_s",
            C.NETWORK,
            struck="host",
            classes=frozenset({C.NETWORK, C.NIC, C.STRAGGLER}),
            passes=True,
            interrupts=False,
        ),
        FaultKind(
            "lose_agent",
            "SIGKILL to the host's launcher; it is started again after for_s",
            C.HOST_MAINTENANCE,
            struck="agent",
            classes=_LOST,
            passes=True,
        ),
        FaultKind(
            "stop_agent",
            "SIGSTOP to the host's launcher, and SIGCONT after for_s",
            C.HOST_MAINTENANCE,
            struck="agent",
            classes=_LOST,
            passes=True,
            interrupts=False,
        ),
        FaultKind(
            "lose_coordinator",
            "SIGKILL to the launcher that leads the run; it is started again after for_s",
            C.HOST_MAINTENANCE,
            struck="leader",
            classes=_LOST,
            passes=True,
        ),
        FaultKind(
            "maintenance",
            "SIGTERM to the host's launcher, the notice that the machine is taken away; the"
            " launcher is started again for_s after it has ended",
            C.HOST_MAINTENANCE,
            struck="agent",
            classes=_LOST,
            passes=True,
        ),
    )
}

# A rank goes on with a wrong number. A run that finds it ends, because it is not known which rank
# is right. So no other fault can follow, and only the plan `silent-corruption` has these.
SILENT_KINDS: Mapping[str, FaultKind] = {
    f"flip_{what}": FaultKind(
        f"flip_{what}",
        f"a bit flips in {where} of one rank",
        C.SILENT_DATA_CORRUPTION,
        Leaves.DIFFERENCE,
        classes=frozenset({C.SILENT_DATA_CORRUPTION}),
        interrupts=False,
    )
    for what, where in (
        ("weights", "the weights"),
        ("gradients", "the averaged gradients"),
        ("optimizer", "the optimizer's state"),
    )
}
ON_ONE_HOST: Mapping[str, FaultKind] = {**KINDS, **MEMORY_KINDS, **IMAGE_KINDS, **DISK_KINDS}
ON_HOSTS: Mapping[str, FaultKind] = {**ON_ONE_HOST, **HOST_KINDS}
ALL_KINDS: Mapping[str, FaultKind] = {**ON_HOSTS, **SILENT_KINDS}

# What one host cannot have, or what no run survives. A plan may name these; they are left out.
NOT_HERE: Mapping[str, str] = {
    "refuse": "it ends a run on purpose",
    **dict.fromkeys(HOST_KINDS, "it needs more than one host (--hosts)"),
    **dict.fromkeys(SILENT_KINDS, "a run that finds it ends: see the plan silent-corruption"),
    **dict.fromkeys(("lag", "freeze", "part", "snap"), "no drill can have it"),
    **dict.fromkeys(
        ("torn_write", "corrupt_disk"),
        "only the simulated world can have it; torn_image and corrupt_image damage what is in"
        " memory",
    ),
    **dict.fromkeys(
        ("starve", "hold", "mute", "repeat", "linger"), "only the simulated world can have it"
    ),
}


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a plan: a number of faults of one class, by these kinds and their weights."""

    stands_for: FailureClass
    count: float
    kinds: Mapping[str, float]


def _row(stands_for: FailureClass, count: int, **kinds: float) -> Portion:
    return Portion(stands_for, count, kinds)


# Llama 3's table, and what one host can show of each of its rows. A broken device ends a process or
# lets it hang; a broken link keeps a rank silent; a host that is lost takes a rank with it.
LLAMA3: tuple[Portion, ...] = (
    _row(C.GPU, 148, kill=5, abort=3, hang=1, exit=1),
    _row(C.HBM, 72, abort=3, exit=1),
    _row(C.SOFTWARE_BUG, 54, **{"raise": 4}, shape=2, nan=1, segv=2, spin=1),
    _row(C.NETWORK, 35, stop=1),
    _row(C.HOST_MAINTENANCE, 32, kill=5, lose_store=1, lose_zygote=1, kill_spare=1),
    _row(C.SRAM, 19, abort=1),
    _row(C.GPU_SYSTEM_PROCESSOR, 17, deaf=1, abort=2),
    _row(C.NIC, 7, stop=1),
    _row(C.UNKNOWN, 7, hang=1),
    _row(C.SILENT_DATA_CORRUPTION, 6, exit=1),
    _row(C.THERMAL, 6, slow=1),
    _row(C.SSD, 3, io=1),
    _row(C.POWER_SUPPLY, 3, kill=1),
    _row(C.CHASSIS, 2, kill=1),
    _row(C.IO_BOARD, 2, kill=1),
    _row(C.DEPENDENCY, 2, **{"raise": 1}),
    _row(C.CPU, 2, slow=1),
    _row(C.SYSTEM_MEMORY, 2, segv=1),
)
PLANNED = Portion(C.HOST_MAINTENANCE, 47, {"kill": 1.0})  # Llama 3's planned interruptions

# The same on several hosts: a broken link is one, and a host that is lost or taken out is one.
_HOST_ROWS: Mapping[FailureClass, Mapping[str, float]] = {
    C.NETWORK: {"cut": 1, "flap": 2, "stop": 2},
    C.NIC: {"cut": 1},
    C.HOST_MAINTENANCE: {"lose_node": 4, "lose_agent": 2, "lose_coordinator": 1, "kill_spare": 1},
    C.POWER_SUPPLY: {"lose_node": 1},
    C.CHASSIS: {"lose_node": 1},
    C.IO_BOARD: {"lose_node": 1},
}
LLAMA3_ON_HOSTS: tuple[Portion, ...] = tuple(
    Portion(one.stands_for, one.count, _HOST_ROWS.get(one.stands_for, one.kinds)) for one in LLAMA3
)
PLANNED_ON_HOSTS = Portion(C.HOST_MAINTENANCE, 47, {"maintenance": 1.0})

# Plans about one thing, on one host and on several.
SILENT = (_row(C.SILENT_DATA_CORRUPTION, 1, **dict.fromkeys(SILENT_KINDS, 1.0)),)
NETWORK_DAY = (_row(C.NETWORK, 3, stop=1), _row(C.NIC, 1, stop=1))
NETWORK_DAY_ON_HOSTS = (_row(C.NETWORK, 3, flap=2, stop=1), _row(C.NIC, 1, cut=1))
LEMON = (_row(C.GPU, 2, kill=1, abort=1), _row(C.UNKNOWN, 1, hang=1), _row(C.NETWORK, 1, stop=1))
LEMON_ON_HOSTS = (*LEMON[:2], _row(C.CHASSIS, 1, lose_node=1), _row(C.NIC, 1, cut=1))
MAINTENANCE = (_row(C.HOST_MAINTENANCE, 1, kill=2, kill_spare=1, lose_zygote=1),)
MAINTENANCE_ON_HOSTS = (_row(C.HOST_MAINTENANCE, 1, maintenance=4, lose_agent=1),)
