"""The evidence to gather next, where what was read does not say why a job failed.

`GATHER` is what to do now, by how the job ended. "channel" and "stopped" are for a hang of which
only the table of processes was collected. Much evidence is gone once the job is started again or a
log is rotated, so it is gathered before any restart. If nothing is known, nothing says that a
restart would end otherwise. `NEXT_TEST` is the cheapest test that tells more.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.model.terms import Mechanism

GATHER: dict[str, str] = {
    "hang": (
        "if it still hangs, run outlast diagnose --collect OUT on each node before it is ended; if"
        " it is gone, see that a repeat leaves dumps: TORCH_NCCL_DUMP_ON_TIMEOUT=1 and"
        " TORCH_FR_BUFFER_SIZE=2000 before the next start, or outlast.record_collectives under gloo"
    ),
    "channel": (
        "install py-spy (pip install py-spy) and collect once more while it hangs: that shows the"
        " line at which this rank is"
    ),
    "stopped": (
        "kill -CONT {pid}, on its node, lets it go on; find out what stopped it: a debugger,"
        " Ctrl-Z, a scheduler that suspends jobs, a container that was paused"
    ),
    "signal": (
        "keep what may tell who sent the signal, before the job is started again: dmesg -T of that"
        " node, and sacct -j JOB or kubectl describe pod"
    ),
    "exception": (
        "keep the whole log of every rank, and dmesg -T and nvidia-smi -q of the node where it was"
        " raised, before the job is started again; nothing that was read says that a restart helps"
    ),
    "": (
        "keep the log and the exit code of every rank, and dmesg -T of every node, before the job"
        " is started again; nothing that was read says that a restart helps"
    ),
}


def gather(mechanism: Mechanism | None) -> str:
    """Return what to keep or collect now, by how the job ended."""
    return GATHER.get("" if mechanism is None else mechanism.value, GATHER[""])


NEXT_TEST: dict[str, str] = {
    "hang": (
        "dump all ranks' flight recorders (TORCH_NCCL_DUMP_ON_TIMEOUT=1, TORCH_FR_BUFFER_SIZE=2000)"
        " and run outlast diagnose on the folder; py-spy dump of the ranks that wrote nothing"
    ),
    "hang_rank": (
        "py-spy dump of {who}, twice, some seconds apart; its state and wait channel in /proc if"
        " py-spy gets no answer"
    ),
    "stopped": (
        "ps -o stat= -p {pid} on the node of {who}: does it still say T? TracerPid in"
        " /proc/{pid}/status names a debugger"
    ),
    "hang_stack": (
        "{who}: what the innermost frame waits for (py-spy dump --locals), and whether it moves (a"
        " second dump, some seconds later)"
    ),
    "loader": (
        "dmesg -T of the node of {who} at that minute: was a loader's worker killed? Then the same"
        " step with num_workers=0"
    ),
    "stuck": (
        "dmesg -T of the node of {who} at that minute: is there an Xid of its GPU? Otherwise py-spy"
        " dump --native of it while it hangs: a call of CUDA that holds the interpreter's lock"
    ),
    "silent": (
        "the whole log of {who}, its exit code, and dmesg -T of its node at that minute: an OOM"
        " kill leaves no other trace"
    ),
    "hang_still": (
        "{who}: what the innermost frame waits for (py-spy dump --locals --native); two stacks of"
        " it are the same already"
    ),
    "hang_suspects": "py-spy dump and the log of {who}, and whether its process is there at all",
    "signal": (
        "dmesg -T of that node at that minute: does it have an OOM kill? Otherwise, who sent the"
        " signal (audit log, scheduler)"
    ),
    "signal_sent": (
        "who sent the signal: the scheduler's log, the audit log, whoever works on that node"
    ),
    "exit": (
        "that rank's own standard error, and its error file (TORCHELASTIC_ERROR_FILE with @record)"
    ),
    "exception": "the whole traceback of the rank that failed first",
    "lost_contact": (
        "whether the node is up, and its kernel and controller logs (dmesg of the previous boot,"
        " ipmitool sel list)"
    ),
    "slow": "compute time before the collective, per rank, over a few minutes",
    "corrupt": "repeat the step on a different GPU",
    "": (
        "the kernel log (dmesg -T) of each node and the log of each rank, for the time of the"
        " failure"
    ),
}
