"""Rules without a pattern: what readers and the fusion deduce from several lines, stacks, numbers or records.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Role

C, G, R, M = FailureClass, Grade, Role, Mechanism
STACKS = "py-spy and python faulthandler stacks: who does not wait is waited for"
ORDER = "torch c10d: collectives must be called in the same order by all ranks of a group"

DEDUCED: tuple[Rule, ...] = (
    # tracebacks
    Rule(
        "python.user_frame",
        "",
        R.ROOT,
        "python tracebacks: raised in a file outside site-packages",
        C.USER_CODE,
        G.LIKELY,
        (C.USER_DATA, C.SOFTWARE_BUG),
        M.EXCEPTION,
    ),
    Rule(
        "python.user_runtime",
        "",
        R.ROOT,
        "python tracebacks: raised by an operation in a file outside site-packages",
        C.USER_CODE,
        G.POSSIBLE,
        (C.SOFTWARE_BUG, C.USER_DATA),
        M.EXCEPTION,
    ),
    Rule(
        "python.library_frame",
        "",
        R.ROOT,
        "python tracebacks: raised inside an installed package",
        C.USER_CODE,
        G.POSSIBLE,
        (C.SOFTWARE_BUG, C.DEPENDENCY),
        M.EXCEPTION,
    ),
    # a log as a whole
    Rule("log.last", "", R.ADVICE, "outlast: a rank that left a log was there, and this is the last that it said"),
    # torchrun's table of failures
    Rule("elastic.stumbled", "", R.EFFECT, "torch distributed/elastic: an exception in the launcher itself, which has no data and no user's code"),
    Rule("elastic.first_failure", "", R.MESSENGER, "torch distributed/elastic ChildFailedError, its table"),
    Rule("elastic.other_failure", "", R.MESSENGER, "torch distributed/elastic ChildFailedError, its table"),
    # collectives as logged
    Rule("desync.mismatch", "", R.ROOT, ORDER, C.SOFTWARE_BUG, G.POSSIBLE, (C.USER_CODE, C.USER_DATA), M.HANG),
    Rule("desync.ahead", "", R.MESSENGER, ORDER, C.USER_CODE, G.HINT, (C.SOFTWARE_BUG, C.USER_DATA), M.HANG),
    Rule("desync.absent", "", R.MESSENGER, ORDER, C.USER_DATA, G.HINT, (C.USER_CODE, C.SOFTWARE_BUG), M.HANG),
    Rule(
        "desync.left",
        "",
        R.ROOT,
        ORDER + "; a launcher ends all when one dies, so who is silent through a time-out lives and is elsewhere",
        C.USER_CODE,
        G.POSSIBLE,
        (C.USER_DATA, C.SOFTWARE_BUG),
        M.HANG,
    ),
    Rule(
        "desync.never_met",
        "",
        R.MESSENGER,
        "torch c10d: nothing was ever completed, so the group never communicated",
        C.NETWORK,
        G.HINT,
        (C.DEPENDENCY,),
        M.HANG,
    ),
    # stacks
    Rule("stack.waiting", "", R.EFFECT, STACKS, None, G.NONE, (), M.HANG),
    Rule("stack.loading", "", R.MESSENGER, STACKS, C.STORAGE, G.HINT, (C.USER_CODE, C.USER_DATA), M.HANG),
    Rule("stack.loader", "", R.MESSENGER, STACKS, C.USER_CODE, G.HINT, (C.STORAGE, C.USER_DATA, C.SOFTWARE_BUG), M.HANG),
    Rule("stack.working", "", R.MESSENGER, STACKS, C.USER_CODE, G.HINT, (C.SOFTWARE_BUG,), M.HANG),
    Rule("stack.idle", "", R.ADVICE, STACKS),
    Rule(
        "stack.divergent",
        "",
        R.ROOT,
        STACKS + "; ranks wait in different places of one program",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        (C.USER_CODE, C.USER_DATA),
        M.HANG,
    ),
    Rule("stack.outlier_io", "", R.ROOT, STACKS, C.STORAGE, G.POSSIBLE, (C.USER_CODE,), M.HANG),
    Rule(
        "stack.outlier_loader",
        "",
        R.ROOT,
        STACKS + "; torch utils/data/dataloader.py: the main thread waits for its workers, whose own stacks would show a read",
        C.USER_CODE,
        G.POSSIBLE,
        (C.SOFTWARE_BUG, C.USER_DATA, C.STORAGE),
        M.HANG,
    ),
    Rule("stack.outlier_work", "", R.ROOT, STACKS, C.USER_CODE, G.POSSIBLE, (C.SOFTWARE_BUG, C.STRAGGLER), M.HANG),
    # numbers
    Rule(
        "metric.slower",
        "",
        R.ROOT,
        "nvrx straggler detection: own speed against that of peers, or of the past",
        C.STRAGGLER,
        G.POSSIBLE,
        (C.THERMAL, C.GPU),
        M.SLOW,
    ),
    Rule("metric.heat", "", R.ROOT, "nvidia NVML: slowdown thresholds", C.THERMAL, G.LIKELY, (C.STRAGGLER, C.GPU), M.SLOW),
    Rule("metric.power", "", R.ROOT, "nvidia NVML: HW power brake", C.POWER_SUPPLY, G.POSSIBLE, (C.GPU, C.STRAGGLER), M.SLOW),
    Rule("metric.hbm", "", R.ROOT, "nvidia NVML, dcgm fields 311, 313, 390-396", C.HBM, G.LIKELY, (C.SRAM, C.GPU)),
    Rule("metric.sram", "", R.ROOT, "nvidia NVML, SRAM error counters", C.SRAM, G.LIKELY, (C.GPU,)),
    Rule("metric.gpu", "", R.ROOT, "nvidia NVML: a device that does not answer", C.GPU, G.LIKELY, (C.CHASSIS,)),
    Rule("metric.link", "", R.ROOT, "infiniband port counters, dcgm NVLink counters", C.NETWORK, G.HINT, (C.NIC, C.NVLINK)),
    Rule("metric.victims", "", R.EFFECT, "nvidia NVML: full utilisation at a fraction of the power is waiting in NCCL", None, G.NONE, (), M.HANG),
    # what collectives' dumps show (`diagnose/collectives`): ranks, not reasons, but for two kinds
    Rule("graph.missing", "", R.MESSENGER, "torch flight recorder: wait-for graph", None, G.NONE, (), M.HANG),
    Rule("graph.self_stuck", "", R.MESSENGER, "torch flight recorder: wait-for graph", C.GPU, G.HINT, (C.SOFTWARE_BUG,), M.HANG),
    Rule("graph.p2p", "", R.MESSENGER, "torch flight recorder: wait-for graph", None, G.NONE, (), M.HANG),
    Rule("graph.all_joined", "", R.MESSENGER, "torch flight recorder: all joined, none finished", C.NETWORK, G.HINT, (C.GPU,), M.HANG),
    Rule("graph.order_inversion", "", R.ROOT, ORDER, C.SOFTWARE_BUG, G.POSSIBLE, (C.USER_CODE,), M.HANG),
    Rule("graph.mismatch", "", R.ROOT, ORDER, C.SOFTWARE_BUG, G.POSSIBLE, (C.USER_CODE,), M.HANG),
    Rule("graph.nothing", "", R.ADVICE, "torch flight recorder: wait-for graph"),
    # where the processes of a live run stood
    Rule("standing.oom", "", R.ROOT, "linux cgroup v2: memory.events oom_kill", C.HOST_MEMORY, G.NAMED, (), M.SIGNAL),
    Rule("standing.storage", "", R.ROOT, "linux proc(5): state D, and wchan in a file system", C.STORAGE, G.LIKELY, (C.SSD, C.NETWORK), M.HANG),
    Rule("standing.device", "", R.ROOT, "linux proc(5): state D, and wchan in a GPU's driver", C.GPU, G.POSSIBLE, (C.GPU_SYSTEM_PROCESSOR,), M.HANG),
    Rule("standing.kernel", "", R.MESSENGER, "linux proc(5): state D", C.STORAGE, G.HINT, (C.GPU, C.NETWORK), M.HANG),
    Rule("standing.stopped", "", R.MESSENGER, "linux proc(5): state T", None, G.NONE, (), M.HANG),
    Rule("standing.running", "", R.MESSENGER, "linux proc(5): state R", C.USER_CODE, G.HINT, (C.SOFTWARE_BUG,), M.HANG),
    # where the workers of a run stood by their beacons (`diagnose/laggards.py`)
    Rule("beacon.apart", "", R.MESSENGER, "outlast beacon: a rank where no peer is waited for", None, G.NONE, (), M.HANG),
    Rule("beacon.behind", "", R.MESSENGER, "outlast beacon: fewer steps than its peers", None, G.NONE, (), M.HANG),
    Rule("beacon.body", "", R.MESSENGER, "outlast beacon: in the step whose vote its peers wait in", None, G.NONE, (), M.HANG),
    Rule("beacon.one_of", "", R.MESSENGER, "outlast beacon: one of several in that step", None, G.NONE, (), M.HANG),
    Rule("beacon.level", "", R.ADVICE, "outlast beacon: all at the same place"),
    # ourselves
    Rule("own.output", "", R.ADVICE, "outlast: what it wrote is not evidence for what it says"),
    Rule("own.event", "", R.MESSENGER, "outlast ledger: how it ended"),
    Rule("line.cut", "", R.ADVICE, "outlast limits"),
)
