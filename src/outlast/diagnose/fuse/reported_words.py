"""The words for a failure whose class is unknown, by the rule of the line that reports it.

Such a line does not say why, but what to keep and what to ask next. This module is pure: no clock,
no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.fuse.words import Words

_MEETING = "not all ranks met"
# If several of these rules have matched, the first one here counts.
REPORTED: dict[str, Words] = {
    **dict.fromkeys(
        ("slurm.node_failure", "kube.node_lost", "kube.tainted"),
        Words(
            "a node went away",
            "restart without that node (sbatch --exclude, kubectl cordon) from the last checkpoint",
            "",
            "whether the node is up, and its kernel and controller logs (dmesg of the previous"
            " boot, ipmitool sel list)",
        ),
    ),
    "log.stood_still": Words(
        "the job had stood still for long when it was ended",
        "find out where it stands before more time is given to it: start it again with a flight"
        " recorder (TORCH_NCCL_DEBUG_INFO_PIPE_FILE), and run outlast diagnose --collect OUT while"
        " it hangs",
        "",
        "the log of every rank at the time of the last step, and dmesg -T of each node for the"
        " minutes around it",
    ),
    "slurm.cancelled_job": Words(
        "somebody cancelled the job",
        "nothing, if that was meant; otherwise ask who cancelled it, and start it again from the"
        " last checkpoint",
        "",
        "sacct -j JOB --format=JobID,User,State%30,End (CANCELLED by UID): was it its user, an"
        " administrator, or a script?",
    ),
    "stopped.by_hand": Words(
        "somebody stopped the program by Ctrl-C",
        "nothing, if that was meant; if it was stopped because it hung, take stacks while it hangs"
        " the next time: outlast diagnose --collect OUT",
        "",
        "whoever works in that terminal; if nobody does, what sends SIGINT (a scheduler, a shell"
        " that was closed)",
    ),
    "exit.outside": Words(
        "the launcher was ended from outside",
        "ask the scheduler why it ended the job (time limit, preemption, scancel), or who did; then"
        " restart from the last checkpoint",
        "",
        "sacct -j JOB or kubectl describe pod, and the audit log of that node at that minute",
    ),
    "watch.hangs": Words(
        "the job stands still",
        "keep it as it is, and take stacks and dumps on each of its nodes: pip install py-spy, then"
        " outlast diagnose --collect OUT; restart it afterwards",
        "",
        "the stacks of all ranks: which one does not wait for the others?",
    ),
    "data.nan": Words(
        "the loss or a gradient is no number",
        "go back to a checkpoint from before the first such step; look at that step's batch and at"
        " the learning rate",
        "",
        "repeat that step on another GPU: the same result points to data or script, another one to"
        " the GPU",
    ),
    "loader.slow": Words(
        "a data loader's workers gave no batch within its time-out",
        "look at what its workers read (a slow or lost file system, a lock, a full queue), then"
        " restart from the last checkpoint",
        "",
        "a timed read of the same files from that rank's node, and dmesg -T of it; then the same"
        " step with num_workers=0",
    ),
    "rdzv.timeout": Words(
        _MEETING,
        "start the nodes that did not come, with the same endpoint, id and --nnodes, then restart",
        "",
        "the launcher's log of every node: one without a log, or with another endpoint, is the one"
        " that is missing",
    ),
    "store.clients": Words(
        _MEETING,
        "start the ranks that did not come, with the same address and world size, then restart",
        "",
        "the log of every node: a rank that failed before it joined, or a node that never started",
    ),
    **dict.fromkeys(
        ("store.connect", "rdzv.connection"),
        Words(
            _MEETING,
            "check the address (MASTER_ADDR or --rdzv-endpoint), that rank 0's node runs, and that"
            " its port can be reached from the other nodes",
            "",
            "nc -vz HOST PORT from that node, with the address in the message; the log of rank 0",
        ),
    ),
    "slurm.daemons": Words(
        "Slurm's daemons on some nodes did not answer",
        "leave these nodes out (sbatch --exclude) until their slurmd answers, then restart",
        "",
        "scontrol show node NODE, systemctl status slurmd on it, and nc -vz NODE 6818 from the"
        " node that complains",
    ),
    "batch.cancelled": Words(
        "somebody ended the job",
        "nothing, if that was meant; otherwise ask who ended it, and start it again from the last"
        " checkpoint",
        "",
        "bhist -l JOB or tracejob JOB: was it its user, an administrator, or a script?",
    ),
    "nccl.unhandled": Words(
        "NCCL failed",
        "keep the log of every rank: a line with NCCL WARN above this one says more; set"
        " NCCL_DEBUG=WARN before the next start",
        "",
        "the first NCCL WARN line in the log of any rank; if there is none, the same start with"
        " NCCL_DEBUG=WARN",
    ),
}

# The launcher was sent SIGHUP: no scheduler does that.
HANGUP = Words(
    "the terminal of the launcher was closed",
    "start the job where no terminal ends it (tmux, sbatch, or setsid nohup), from the last"
    " checkpoint",
    "",
    "whether the session that started it was closed at that minute: last -x, or the log of sshd",
)
