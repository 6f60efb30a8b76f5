"""The words for each class: what it means, what to do, what would refute it, what to test next.

The next test is the cheapest one that tells more. This module is pure: no clock, no files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outlast.diagnose.fuse.next_evidence import GATHER, gather
from outlast.model.own_bugs import REPORT
from outlast.model.terms import FailureClass, Mechanism

C = FailureClass


@dataclass(frozen=True, slots=True)
class Words:
    """The words for one class of failures, each a part of a sentence for people."""

    means: str
    action: str
    refuted_by: str
    next_test: str


WORDS: dict[FailureClass, Words] = {
    C.GPU: Words(
        "a GPU failed",
        "drain the node and reset the GPU; reboot if it does not come back; open a case if it"
        " repeats",
        "the same error on several GPUs at once, or on another node with the same program",
        "nvidia-smi -q -i GPU, then dcgmi diag -r 2 on the node",
    ),
    C.HBM: Words(
        "memory of a GPU failed",
        "drain the node and reset the GPU; replace it if a row remap failed or is pending again",
        "no uncorrectable error and no remapped row in nvidia-smi -q -d ECC,ROW_REMAPPER",
        "nvidia-smi -q -d ECC,ROW_REMAPPER",
    ),
    C.SRAM: Words(
        "a GPU's on-chip memory failed",
        "drain the node and reset the GPU; replace it if the SRAM threshold flag is set",
        "no SRAM error in nvidia-smi -q -d ECC",
        "nvidia-smi -q -d ECC",
    ),
    C.GPU_SYSTEM_PROCESSOR: Words(
        "a GPU's system processor (GSP) stopped answering",
        "reset the GPU, reboot the node if that fails; update driver and firmware if it repeats",
        "Xid 79 or an ECC error on the same GPU just before",
        "nvidia-smi -q on the node; dmesg for earlier Xids",
    ),
    C.NVLINK: Words(
        "an NVLink or NVSwitch failed",
        "drain the node, reset its GPUs and switches; check the link's other end",
        "no link error counted in nvidia-smi nvlink -e, or Xid 79 on the peer before",
        "nvidia-smi nvlink -s and -e on all GPUs of the node",
    ),
    C.NETWORK: Words(
        "the network between nodes failed (switch, cable or port)",
        "check the port and its cable; exclude the node or switch until it is clean",
        "the peer's process died before the first error",
        "ibstat and the port's error counters on both ends; nccl-tests between the two nodes",
    ),
    C.NIC: Words(
        "a network adapter failed",
        "drain the node; check the adapter's firmware, slot and health",
        "errors of several adapters behind one switch",
        "mlxlink and dmesg of that adapter; swap the cable",
    ),
    C.SSD: Words(
        "a local drive failed",
        "drain the node and replace the drive",
        "a clean SMART log",
        "smartctl -a or nvme smart-log of the drive",
    ),
    C.STORAGE: Words(
        "storage did not take or give data (full, stale, slow or away)",
        "free or remount it, then restart from the last checkpoint",
        "free space, and a write and read on the same path that work at once",
        "df -h and a timed read of the path from that node",
    ),
    C.HOST_MEMORY: Words(
        "the host's memory ran out",
        "give the job more memory or shared memory, or fewer loader workers",
        "no OOM kill in the kernel log and memory below the limit at the time",
        "dmesg for oom-kill lines; df -h /dev/shm; the cgroup's memory.events",
    ),
    C.GPU_OOM: Words(
        "a GPU's memory ran out",
        "use a smaller batch, recompute activations, or shard more",
        "an ECC error or a foreign process on that GPU",
        "nvidia-smi for other processes; torch.cuda.memory_summary before the step",
    ),
    C.CPU: Words(
        "a processor stalled or failed",
        "drain the node; look for machine checks",
        "a stall on all nodes at once",
        "dmesg for mce and lockup lines; load and steal time",
    ),
    C.SYSTEM_MEMORY: Words(
        "a memory module of the host is broken",
        "drain the node and replace the DIMM",
        "no error counted by EDAC on another boot",
        "edac-util -v, or the controller's event log",
    ),
    C.POWER_SUPPLY: Words(
        "power to the node or its GPUs fell short",
        "drain the node; check power supplies and cabling",
        "no power event in the controller's log",
        "ipmitool sel list and sensor",
    ),
    C.CHASSIS: Words(
        "several parts of one node failed together",
        "drain the node and have it looked at",
        "only one device ever affected",
        "ipmitool sel list; dmesg of the previous boot",
    ),
    C.IO_BOARD: Words(
        "a PCIe slot or board failed",
        "drain the node; reseat or replace the board",
        "the error follows the card into another slot",
        "lspci -vv of the slot: link width, speed, error bits",
    ),
    C.THERMAL: Words(
        "parts ran too hot and slowed down or stopped",
        "check cooling and the thermal interface; drain the node until it is cool",
        "temperatures like those of peers at equal power",
        "nvidia-smi -q -d TEMPERATURE,PERFORMANCE, next to a healthy node",
    ),
    C.SILENT_DATA_CORRUPTION: Words(
        "a device computed wrong results without an error",
        "take the device out; go back to a checkpoint from before",
        "the same wrong result from another device",
        "repeat the step on a different GPU; dcgmi diag -r 3",
    ),
    C.STRAGGLER: Words(
        "one part of the job is persistently slower than the rest",
        "find it by its own compute time and swap the node out",
        "the slowness moves from rank to rank (data), or all are slow alike",
        "compare compute time before the collective per rank; a GEMM benchmark on each node",
    ),
    C.HOST_MAINTENANCE: Words(
        "the machine was taken away (maintenance, preemption, drain)",
        "resume from the last checkpoint elsewhere",
        "an error in the job before the first signal",
        "the scheduler's or cloud's event log for the node",
    ),
    C.DEPENDENCY: Words(
        "a library, driver or service that the job needs does not fit or did not answer",
        "fix versions or wait for the service, then restart",
        "the same image and versions that run elsewhere",
        "compare pip freeze and driver version with a node that works",
    ),
    C.SOFTWARE_BUG: Words(
        "a fault in software, most likely not in the hardware",
        "find the change that brought it; run once with CUDA_LAUNCH_BLOCKING=1 or"
        " TORCH_DISTRIBUTED_DEBUG=DETAIL",
        "it happens on one GPU or node only, whatever the program",
        "run the same step on another node",
    ),
    C.USER_CODE: Words(
        "the training script failed",
        "fix the script at the line that raised; a restart would fail again",
        "the same step runs on another node unchanged",
        "rerun from the last checkpoint with one process",
    ),
    C.USER_DATA: Words(
        "the data was not as the script expects",
        "skip or repair the sample; check lengths per rank",
        "the same batch passes when read again",
        "load the same batch alone",
    ),
    C.UNKNOWN: Words(
        "the evidence does not say why",
        GATHER[""],
        "",
        "",
    ),
}

HUNG: dict[FailureClass, Words] = {  # where nothing was raised
    C.USER_CODE: Words(
        "the training script makes no progress",
        "look at the line where it hangs, and at what it waits for; a restart may hang there again",
        "the same step runs on another node unchanged",
        "take the stack of that process twice (py-spy dump --pid PID): is it stuck or in a loop?",
    ),
}


OWN_BUG = Words(
    "outlast itself failed",
    REPORT,
    "the same exception without outlast",
    "run the script alone (`python train.py`): does it raise there too?",
)

# Where nothing that was read reports a failure: the job is healthy, hangs, or failed elsewhere.
QUIET = Words(
    "nothing tells of a failure",
    "nothing, if the job trains; if it hangs, take stacks while it does: pip install py-spy, then"
    " outlast diagnose --collect OUT",
    "",
    "if it has failed: the log of every rank and the kernel log (dmesg -T) of every node, for the"
    " time of the failure",
)

# The same, where the ends of the logs tell more.
QUIET_BEHIND = Words(
    QUIET.means,
    "nothing, if the job trains; if it stands still, look at {who} first, while it hangs: pip"
    " install py-spy, then outlast diagnose --collect OUT on its node",
    QUIET.refuted_by,
    "whether any rank wrote a line since; if the processes are gone: their exit codes (sacct -j"
    " JOB, kubectl describe pod), and dmesg -T of the node of {who}",
)
QUIET_LEVEL = Words(
    QUIET.means,
    QUIET.action,
    QUIET.refuted_by,
    "whether its processes are there still (ps, squeue, kubectl get pods): if so, outlast diagnose"
    " --collect OUT on each node; if not, their exit codes (sacct -j JOB, kubectl describe pod) and"
    " dmesg -T of each node",
)

QUIET_ENDED = Words(QUIET.means, "nothing: the run is over", QUIET.refuted_by, "")

# The same, where the processes were looked at twice and none had moved.
QUIET_STILL = Words(
    QUIET.means,
    "nothing, if the job only waits for something slow; if it hangs, install py-spy (pip install"
    " py-spy) and collect once more while it does: that shows the line of each rank",
    QUIET.refuted_by,
    "the stack of each rank: pip install py-spy, then outlast diagnose --collect OUT once more",
)

# What to do about a failure that the run has got over by itself: nothing is to be restarted.
HEALED: dict[FailureClass, str] = {
    C.STORAGE: "free or remount it before the next save needs it; the run went on by itself",
    C.HOST_MAINTENANCE: "have another node ready; the run went on by itself",
    C.DEPENDENCY: "fix the versions or look after the service; the run went on by itself",
    C.SOFTWARE_BUG: "find the change that brought it if it comes again; the run went on by itself",
    C.USER_CODE: "look at the line that raised if it comes again; the run went on by itself",
    C.UNKNOWN: "no restart is needed: the run went on by itself",
}
HEALED_HUNG: dict[FailureClass, str] = {
    C.USER_CODE: (
        "look at the line where it hung, and at what it waited for; the run went on by itself"
    ),
}


UNSEEN_AFTERWARDS = "see in the logs whether the script trains again; if it does not, "
FINISHED_AFTERWARDS = "nothing now, the job has finished; keep what the next test gives"


def healed_action(named: FailureClass, mechanism: Mechanism | None) -> str:
    """Return what to do about a failure after which the run went on by itself."""
    if mechanism is Mechanism.HANG and named in HEALED_HUNG:
        return HEALED_HUNG[named]
    return HEALED.get(named, words_for(named, mechanism).action)


_UNEQUAL_CALLS = Words(
    "ranks called different collectives, or one with different sizes or types",
    "make all ranks call the same collectives in the same order, with tensors of one size and"
    " type; a restart fails again",
    "the same calls, sizes and types on all ranks",
    "run again with TORCH_DISTRIBUTED_DEBUG=DETAIL: torch then names the first call that differs",
)

_OTHER_PATH = Words(
    "ranks took different paths through the program, and wait in different places",
    "look at what leads to these places: a condition on the rank, a loop of another length; all"
    " ranks have to call the same collectives in the same order, and a restart fails again",
    "stacks of one moment in which all ranks are at the same line",
    "run again with TORCH_DISTRIBUTED_DEBUG=DETAIL: torch then names the first call that differs",
)

DRAINED = Words(
    "work was moved off a node on purpose",
    "nothing, because somebody asked for it",
    "no request to drain the node at that time in outlast report --json",
    "outlast report: its requests say who asked, when and why",
)

DAMAGE = ("outlast.damage", "outlast.damage_said")

# Where the line that won says more than its class about what to do, by its rule.
BY_RULE: dict[str, Words] = {
    "kernel.files": Words(
        "a limit on processes, threads or open files was reached",
        "raise the limit (ulimit -n for files; ulimit -u, or pids.max of the control group, for"
        " processes and threads), or start fewer loader workers; a restart would fail again",
        "the limits of that node are far from what the job uses",
        "on that node: ulimit -a as the job's user, and ls /proc/PID/fd /proc/PID/task | wc -l",
    ),
    "loss.scale": Words(
        "the gradients overflowed at every step, until the loss scale had reached its minimum",
        "train in bfloat16 or lower the learning rate, and go back to a checkpoint from before the"
        " scale began to fall; a restart from a later one fails again",
        "a batch that holds no number, or one rank alone whose gradients overflow",
        "from which step on the loss scale falls, and the gradient norms just before it",
    ),
    "store.port_taken": Words(
        "another process holds the port that the job wants",
        "end the process that holds the port, or give the job another one (--rdzv-endpoint, or"
        " --standalone, which takes a free one)",
        "nobody listens on that port on that node",
        "ss -ltnp on that node: which process listens on the port",
    ),
    "slurm.time": Words(
        "the scheduler ended the job at its time limit",
        "ask for more time, or save more often and resume; a restart with the same limit ends the"
        " same way",
        "the job's own logs stop long before the limit",
        "sacct -j JOB --format=Elapsed,Timelimit,State; the time of the last step in the logs",
    ),
    "batch.time": Words(
        "the scheduler ended the job at its time limit",
        "ask for more time, or save more often and resume; a restart with the same limit ends the"
        " same way",
        "the job's own logs stop long before the limit",
        "bhist -l JOB or qstat -xf JOB: the limit and the time that was used; the time of the last"
        " step in the logs",
    ),
    "config.invalid": Words(
        "the script does not take an option or a setting that it was given",
        "correct the option or setting in the message; a restart fails again",
        "the same command starts on another node",
        "the script's --help, or the definition of that setting, beside the command that was given",
    ),
    **dict.fromkeys(
        DAMAGE,
        Words(
            "state that was stored is damaged: its bytes do not match their checksum",
            "test the memory and the disk of that node if this happens again; the run goes on from"
            " an older image, a copy or a checkpoint",
            "the same image or file matches its checksum when it is read again",
            "outlast ckpt verify for checkpoints; on that node dmesg for memory and disk errors",
        ),
    ),
    "script.missing": Words(
        "the interpreter did not find the script",
        "correct the path of the script in the command that starts the job; a restart fails again",
        "the same path can be read from that node",
        "ls -l of the path in the message, on that node and from the job's working folder",
    ),
    "data.unparsed": Words(
        "a file that the script reads is not valid JSON, YAML or TOML",
        "repair the file that the line in the traceback reads, or write it again; a restart fails"
        " again",
        "the same file can be parsed on that node",
        "python -m json.tool FILE >/dev/null for a file of JSON: it names the line and the column",
    ),
    **dict.fromkeys(
        ("cuda.index_assert", "cuda.device_assert"),
        Words(
            "an assertion in a kernel on the GPU failed, most often for an index or a label outside"
            " its range",
            "check the labels against the number of classes, and the token ids against the size of"
            " the vocabulary; the same batch fails again",
            "the same batch passes on the CPU",
            "run that batch on the CPU, or with CUDA_LAUNCH_BLOCKING=1: then the traceback ends at"
            " the call at fault",
        ),
    ),
    "ib.protection": Words(
        "an adapter refused access to memory: a buffer was not registered, or GPUDirect is not set"
        " up between GPU and adapter",
        "check that nvidia-peermem is loaded and ACS is off, or start with NCCL_NET_GDR_LEVEL=LOC;"
        " no cable causes this",
        "the same job runs on these two nodes with NCCL_NET_GDR_LEVEL=LOC",
        "lsmod | grep peermem and the NCCL version with its network plugin, on both nodes",
    ),
    "files.unopened": Words(
        "a file could not be opened for writing",
        "make the folder, and check that the job's user may write there; a restart fails again",
        "the same path can be written from that node",
        "ls -ld of the folder on that node",
    ),
    "files.permission": Words(
        "the job's user may not read or write a path",
        "correct the owner or the mode of that path, or give the job another one; a restart fails"
        " again",
        "the same path can be read and written by that user from that node",
        "ls -ld of the path and id of the job's user, on that node",
    ),
    "nccl.interface": Words(
        "NCCL found no network interface of the name that it was given",
        "correct NCCL_SOCKET_IFNAME on every node, or unset it; a restart fails again",
        "the interface is there and up on every node",
        "ip -br address on each node, beside the value of NCCL_SOCKET_IFNAME",
    ),
    "gloo.interface": Words(
        "gloo found no address to listen at: the network interface that it was given is not there,"
        " or the host's own name has no address",
        "correct GLOO_SOCKET_IFNAME on every node, or unset it; a restart fails again",
        "the interface is there and up on every node, and the host's name has an address",
        "ip -br address and getent hosts $(hostname) on each node, beside the value of"
        " GLOO_SOCKET_IFNAME",
    ),
    "torch.weights_only": Words(
        "the checkpoint is not damaged, but holds more than weights, which torch.load refuses",
        "load it with weights_only=False if its origin is trusted, or allow the class in the"
        " message by torch.serialization.add_safe_globals; a restart fails again",
        "the same call loads the file with this version of torch",
        "the class that the message names, and the version of torch that saved the file",
    ),
    "nccl.duplicate_gpu": Words(
        "two ranks use one GPU",
        "call torch.cuda.set_device(LOCAL_RANK) before the first collective, and start no more"
        " ranks than GPUs; a restart fails again",
        "each rank of the node prints another GPU",
        "print LOCAL_RANK and torch.cuda.current_device() in each rank",
    ),
    "torch.stream_reader": Words(
        "a file of weights or data is cut, empty or damaged",
        "resume from an older checkpoint, and set this one aside; a restart that loads the same"
        " file fails again",
        "the same file can be loaded elsewhere",
        "ls -l of the file beside older ones; python -m zipfile -t FILE for one of torch.save",
    ),
    "torch.state_dict": Words(
        "the checkpoint does not fit the model that was built",
        "build the model as it was when the checkpoint was saved (vocabulary, layers, wrappers"
        " around it), or load another checkpoint; a restart fails again",
        "the same checkpoint loads elsewhere with the same configuration",
        "compare the shapes and names in the message with the configuration beside the checkpoint",
    ),
    "dependency.service": Words(
        "a service that the job needs did not answer, or refused",
        "see that the service answers from that node (name, token, proxy), or have its files there"
        " before the start; then restart",
        "the same request from that node works",
        "the request in the message by hand, from that node and with the job's environment:"
        " curl -I URL",
    ),
    "dependency.unresolved": Words(
        "the name of a service that the job needs has no address on that node",
        "have the name service of that node mended, or have the files there before the start; then"
        " restart",
        "the name has an address on that node",
        "getent hosts NAME on that node, for the name in the message",
    ),
    "object.store": Words(
        "an object store did not answer, or refused",
        "see that its endpoint answers from that node with the job's credentials, and how many"
        " requests it allows; then restart from the last checkpoint",
        "the same request from that node works at once",
        "the same read from that node by hand (aws s3 cp, gcloud storage cp), with the job's"
        " environment; its error rate at that minute",
    ),
    "dependency.not_built": Words(
        "torch was built without what the script asks for, or no GPU is there",
        "install a torch that was built for that device, or ask for another backend or device in"
        " the script; a restart fails again",
        "torch shows the device and the backend in the job's environment",
        "python -m torch.utils.collect_env in the job's environment",
    ),
    "dependency.image": Words(
        "the image of a container could not be pulled",
        "correct the image's name and tag, or the secret for its registry; a restart fails again",
        "the image can be pulled on that node",
        "kubectl describe pod, its last events; crictl pull IMAGE on that node",
    ),
    "cuda.ordinal": Words(
        "a rank wants a GPU of a number that the node does not have",
        "start no more ranks on a node than it has GPUs (--nproc-per-node, CUDA_VISIBLE_DEVICES); a"
        " restart fails again",
        "nvidia-smi -L shows as many GPUs as the node has ranks",
        "nvidia-smi -L and echo $CUDA_VISIBLE_DEVICES on that node, in the job's environment",
    ),
    "cuda.system_not_ready": Words(
        "the GPUs of the node are not ready: the service that joins them by NVSwitch does not run",
        "start nvidia-fabricmanager on that node, of the driver's own version, or leave the node"
        " out; a restart there fails again",
        "the service runs, and nvidia-smi -q shows the state of the fabric as completed",
        "systemctl status nvidia-fabricmanager, and nvidia-smi -q | grep -A 2 Fabric, on that node",
    ),
    "desync.left": Words(
        "one rank left the loop that the others are in, or waits elsewhere in the script",
        "look at how many batches each rank gets, and at what only some ranks do (evaluation,"
        " saving, an early end); a restart may hang there again",
        "the same number of batches on all ranks, and a stack of that rank inside a training step",
        "py-spy dump of that rank while it hangs; the last step in each rank's log",
    ),
    "desync.mismatch": _UNEQUAL_CALLS,
    "gloo.size": _UNEQUAL_CALLS,
    "c10d.mismatch": _UNEQUAL_CALLS,
    "graph.mismatch": _UNEQUAL_CALLS,
    "store.unresolved": Words(
        "a host name has no address on that node",
        "correct MASTER_ADDR, --rdzv-endpoint or the URL in the message, or have the name service"
        " mended; then restart",
        "the name has an address on that node",
        "getent hosts NAME on that node, for the name in the message",
    ),
    **dict.fromkeys(("stack.divergent", "stack.lone_p2p", "desync.places"), _OTHER_PATH),
    "stack.outlier_loader": Words(
        "one rank waits for its data loader",
        "look at what its loader's workers do: a read that does not return, a lock, a full queue;"
        " a restart may hang there again",
        "the workers' stacks wait for the next batch to be asked for",
        "py-spy dump of the loader's workers (the child processes of that rank)",
    ),
}


def words_for(named: FailureClass, mechanism: Mechanism | None) -> Words:
    """Return what a verdict says of a failure class. If the job hung, some have other words."""
    if named is C.UNKNOWN:
        return replace(WORDS[named], action=gather(mechanism))
    return HUNG.get(named, WORDS[named]) if mechanism is Mechanism.HANG else WORDS[named]


# what would show that another rank is guilty, by what showed this one
REFUTED: dict[str, str] = {
    "witnessed": "a record of the run that names another rank earlier",
    "graph": "a stack of that rank, of the same moment, that waits for a peer",
    "mismatch": "the same call by the other ranks, at the same place of the program",
    "called": "the same call by the other ranks, at the same place of the program",
    "killed": "an earlier failure of another rank",
    "barrier": "a stack of that rank, of the same moment, in the same barrier",
    "late": "a stack of that rank, of the same moment, in the same collective",
    "reported": "a stack of that rank, of the same moment, in the same collective",
    "stuck": "a watchdog of another rank that was stuck as well",
    "raised": "an earlier failure of another rank",
    "exited": "an earlier failure of another rank",
    "left": "the same end, without a failure, of another rank before it",
    "silent": "a line of that rank's log about a peer that it lost, or for which it waited",
    "forced": "a stack of that rank, of the same moment, that waits for a peer",
    "beacons": (
        "a stack of that rank that waits for a peer, or beacons of a later moment that are"
        " elsewhere"
    ),
    "channel": "a stack of that rank that waits for a peer",
    "stopped": "its state is not T (ps), and it still does not go on",
    "shown": "the same line from the other ranks",
    "alone": "an earlier failure of another rank",
}
