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


class Leaves(str, Enum):
    """The evidence that a fault leaves behind."""

    NOTHING = "nothing"  # a bare SIGKILL: the most that can be said is "killed from outside"
    SIGNAL = "signal"  # the number of the signal that the process raised itself
    CODE = "exit code"
    TRACEBACK = "traceback"
    STACK = "stack"  # where a process stands that hangs


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault.

    how         what is done, for people
    struck      "rank", "spare", "store" or "zygote": the process that is struck
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
        return not self.signal

    @property
    def shows(self) -> tuple[str, ...]:
        """Return the mechanisms by which the ledger can show it."""
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
            "stopped for half of the time, from outside, for for_s",
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
            "the process ends with exit code 3, as after a failed check of itself",
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
            "io",
            "an input/output error of a file, once",
            C.SSD,
            Leaves.TRACEBACK,
            classes=frozenset({C.STORAGE, C.SSD}),
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
    )
}

# What one host cannot have, or what no run survives. A plan may name these; they are left out.
NOT_HERE: Mapping[str, str] = {
    "refuse": "it ends a run on purpose",
    **dict.fromkeys(
        ("lose_node", "cut", "lag", "freeze", "part", "snap", "lose_coordinator"),
        "it needs more than one host",
    ),
    **dict.fromkeys(
        ("slow_disk", "full_disk", "torn_write", "corrupt_disk"),
        "it needs a disk that can be made to fail",
    ),
    **dict.fromkeys(
        ("starve", "hold", "mute", "repeat", "linger"), "only the simulated world can have it"
    ),
}


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a plan: so many faults of one class, by these kinds and their weights."""

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
