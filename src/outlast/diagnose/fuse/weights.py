"""What a piece of evidence weighs. One table, so that it can be read, refitted and argued with.

A grade is the probability that its class is right when one such line is all there is. They were set
from what makers' catalogues promise, before any excerpt was scored, and are not fitted;
`benchmarks/score_logs.py` refits them with each source left out, to show what that would change.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.diagnose.findings import Doubt
from outlast.diagnose.rules.table import Grade
from outlast.model.terms import FailureClass

C = FailureClass


@dataclass(frozen=True, slots=True)
class Weights:
    """Probabilities, and factors on them in [0, 1].

    explained   a root that another, stronger root explains, and that did not come before it
    later       a root of another class that came after the first
    kin         how much another class competes, if the winner's rule says that it fits too
    shared      what is left of the doubt if several ranks report the same fault of a program, or
                several devices the same fault of software
    doubts      for lines that may not be of the job. A line may be older than all that the job
                itself says; two clocks in two zones can cause that too. Or a kernel ended a process
                while all ranks lived: it was none of them, but may be one that they needed. Or
                the log goes on after an exception, which may be a lead anyway. Or a person wrote
                the line, perhaps of another incident
    certain     no verdict is surer than this: logs omit things
    """

    grades: Mapping[Grade, float] = field(
        default_factory=lambda: {
            Grade.NAMED: 0.93,
            Grade.LIKELY: 0.80,
            Grade.POSSIBLE: 0.60,
            Grade.HINT: 0.30,
            Grade.NONE: 0.0,
        }
    )
    explained: float = 0.2
    later: float = 0.75
    kin: float = 0.3
    shared: float = 0.7
    doubts: Mapping[Doubt, float] = field(
        default_factory=lambda: {
            "older": 0.45,
            "stranger": 0.0,
            "untied": 0.45,
            "contradicted": 0.3,
            "handled": 0.2,
            "remark": 0.45,
        }
    )
    certain: float = 0.97


WEIGHTS = Weights()
NAMED_ABOVE = 0.5  # a class is named when it is more likely right than wrong
LATER_THAN_S = 5.0  # clocks of two files may differ by this much before an order is read from them

# Rules that report one thing from several sources count once, as the strongest of them. Others are
# grouped by what stands before the dot.
ONE_SOURCE: dict[str, str] = {
    **dict.fromkeys(
        ("exit.kill", "exit.killed_bare", "slurm.kill", "loader.gone", "loader.killed"), "killed"
    ),
    **dict.fromkeys(
        (
            "store.connect",
            "gloo.mesh",
            "rdzv.connection",
            "nccl.remote",
            "ib.async",
            "store.unresolved",
            "desync.never_met",
        ),
        "unreachable",
    ),
    **dict.fromkeys(("slurm.node_failure", "kube.node_lost", "kube.tainted"), "node gone"),
    **dict.fromkeys(
        (
            "python.user_frame",
            "python.user_runtime",
            "python.library_frame",
            "python.attribute",
            "python.runtime",
            "python.other",
            "python.os",
            "files.missing",
            "cuda.failed",
            "torch.shape",
            "torch.state_dict",
            "torch.index",
            "torch.types",
        ),
        "exception",
    ),
    **dict.fromkeys(("torch.stream_failed", "torch.stream_writer"), "stream writer"),
    **dict.fromkeys(("cuda.device_assert", "cuda.index_assert"), "assert"),
    **dict.fromkeys(("desync.ahead", "desync.absent", "desync.mismatch"), "order"),
    **dict.fromkeys(("cpu.soft_lockup", "cpu.hard_lockup", "cpu.rcu"), "lockup"),
    **dict.fromkeys(("memory.corrected", "memory.section"), "dimm"),
    **dict.fromkeys(("oom.killed", "oom.invoked", "oom.systemd", "slurm.oom"), "oom"),
    **dict.fromkeys(("cuda.ecc", "xid.48", "xid.dram"), "ecc"),
}

# One fault under two names, in any order: a full /dev/shm is ENOSPC to a process that writes, and a
# bus error to one that maps
SAME_FAULT: dict[str, tuple[str, ...]] = {
    "disk.full": ("loader.bus", "host.shm", "nccl.shm", "exit.bus"),
    # a line says what slows it down, beside the line that it is slowed down
    "clocks.hardware": ("clocks.power_brake", "clocks.thermal"),
    # a protection error at one end is a retry exceeded at the other
    "ib.retry_exceeded": ("ib.protection",),
    # a kernel on a GPU that is going reads what is no longer there
    **dict.fromkeys(
        ("cuda.illegal_access", "cuda.launch_failure", "cuda.unknown"),
        ("nvml.lost", "nvml.reset_required"),
    ),
    # NCCL says that it was used wrongly, and then in which way
    "nccl.invalid_usage": ("nccl.version", "nccl.mismatch", "nccl.interface"),
    "torch.stream_failed": ("disk.full", "host.allocator", "oom.killed", "disk.io", "disk.stale"),
    "torch.stream_writer": ("disk.full", "host.allocator", "oom.killed", "disk.io", "disk.stale"),
}

BROKEN_DEVICE = frozenset({C.HBM, C.SRAM, C.GPU, C.GPU_SYSTEM_PROCESSOR, C.NVLINK})
BROKEN_HOST = frozenset(
    {
        C.HOST_MEMORY,
        C.SYSTEM_MEMORY,
        C.CPU,
        C.SSD,
        C.STORAGE,
        C.POWER_SUPPLY,
        C.CHASSIS,
        C.IO_BOARD,
        C.HOST_MAINTENANCE,
    }
)
# Roots of these rules may follow from a broken device: what it computes or answers is no longer
# sound
AFTER_DEVICE = (
    "cuda.",
    "cublas.",
    "cudnn.",
    "triton.",
    "python.",
    "nccl.",
    "ib.",
    "data.nan",
    "torch.",
    "nvml.none",
    "xid.13",
    "xid.31",
    "xid.32",
    "xid.109",
    "exit.",
    "nvrm.init",
    "pcie.",
    "task.",
    "cpu.soft",
    "clocks.",
    "straggler.",
    "glibc.",
    "host.allocator",
    "slurm.",
    "kube.",
    "segfault.",
    "c10d.",
    "gloo.",
    "stack.",
    "metric.slower",
    "link.",
)
AFTER_HOST = (
    "python.",
    "nccl.",
    "ib.",
    "store.",
    "loader.",
    "torch.stream",
    "exit.",
    "files.",
    "dependency.service",
    "stack.",
    "c10d.",
    "gloo.",
    "task.",
    "glibc.",
    "segfault.",
    "straggler.",
    "metric.slower",
    "kernel.",
    "data.broken",
    "data.unparsed",
    "fs.damaged",
    "disk.",
    "host.",
)
AFTER_PROGRAM = ("nccl.", "ib.", "store.", "gloo.", "c10d.", "exit.", "stack.", "link.")
AFTER_LINK = ("ib.", "nccl.", "store.", "python.timeout", "gloo.", "c10d.", "stack.", "exit.")
GENERIC = (
    "python.runtime",
    "python.other",
    "python.os",
    "python.timeout",
    "python.user_frame",
    "python.library_frame",
    "python.attribute",
    "cuda.failed",
    "files.missing",
    "data.nan",
    "kernel.panic",
    "cublas.",
    "cudnn.",
)


def explains(strong: FailureClass, rule: str) -> bool:
    """Return True if a root of class `strong` leads to a line of `rule` by itself."""
    if strong in BROKEN_DEVICE:
        return rule.startswith(AFTER_DEVICE)
    if strong in BROKEN_HOST:
        return rule.startswith(AFTER_HOST)
    if strong in (C.NETWORK, C.NIC):
        return rule.startswith(AFTER_LINK)
    if strong in (C.USER_CODE, C.USER_DATA, C.SOFTWARE_BUG, C.GPU_OOM, C.DEPENDENCY):
        return rule.startswith(AFTER_PROGRAM)
    return rule.startswith(GENERIC)
