"""Find the rank of a line that names a process and no rank.

A GPU driver writes the pid of the program that met the fault, a kernel that of the program that it
killed, and Ray labels lines with the pid and the address of their writer. Other lines say which
process was which rank: torchrun's table of failures, and Ray's where it starts its workers.

    torchrun    exitcode  : -6 (pid: 8812)            in the entry of rank 9
    Ray         (node_id=ab, ip=10.0.0.5, pid=3113) world_rank=2, local_rank=0, node_rank=1
    DeepSpeed   process 8812 spawned with command: [..., '--local_rank=1', ...]
    NCCL        n1:8812:8900 [2] ... comm 0x55 rank 9 nranks 16 (`logs/nccl_processes.py`)
    the driver  NVRM: Xid (PCI:0000:2a:00): 94, pid=8812, name=python, ...
    the kernel  Out of memory: Killed process 8812 (python) total-vm:...

A pid counts only if one rank alone had it; on two nodes two processes may have the same one, and
then the node decides. A container counts pids of its own: the driver's are the node's, and do not
meet them but by chance.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.nccl_processes import RULE

_TABLE = re.compile(r"^exitcode {1,6}: -?\d{1,3} {1,2}\(pid: (\d{1,9})\)")
_BY_NCCL = re.compile(r"process (\d{1,9}) is rank (\d{1,7})")
_RAY = re.compile(r"ip=([\d.]{7,15}), pid=(\d{1,9})\) world_rank=(\d{1,6})")
_PID = re.compile(r"\bpid=(\d{1,9})\b")
_KILLED = re.compile(r"\bKilled process (\d{1,9})\b")
_BY_KERNEL = ("xid.", "oom.")
_BY_RAY = re.compile(r"\(\w[\w.:() ]{0,80}?pid=\d{1,9}, ip=|\(pid=\d{1,9}, ip=")

# DeepSpeed's launcher of each node: which ranks are its own, its processes, and how one ended
DEEPSPEED = "deepspeed.process"
SPAWNED = re.compile(r"process (\d{1,9}) spawned with command: ")
ENDED = re.compile(r"exits with return code = (-?\d{1,3})\b")
_DEEPSPEED_NODE = re.compile(r"num_local_procs=(\d{1,4}), node_rank=(\d{1,6})")
_LOCAL_RANK = re.compile(r"--local_rank=(\d{1,4})\b")

Owner = tuple[int, str]  # the rank, and the node or address of its process ("" if not told)


def with_ranks_of_processes(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; those that tell a process whose rank is known have the rank."""
    owners: dict[str, set[Owner]] = defaultdict(set)
    findings = _with_ranks_of_deepspeed(findings)
    for one in findings:
        if one.rule.startswith("elastic.") and one.rank is not None:
            if found := _TABLE.match(one.evidence.text):
                owners[found[1]].add((one.rank, one.node or ""))
        elif one.rule == RULE and (found := _BY_NCCL.search(one.evidence.text)):
            owners[found[1]].add((int(found[2]), one.node or ""))
        elif one.rule == DEEPSPEED and one.rank is not None:
            if found := SPAWNED.search(one.evidence.text):
                owners[found[1]].add((one.rank, one.node or ""))
        elif one.rule == "ray.worker" and (found := _RAY.search(one.evidence.text)):
            owners[found[2]].add((int(found[3]), found[1]))
    if not owners:
        return list(findings)
    return [_owned(one, owners) for one in findings]


def _with_ranks_of_deepspeed(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; DeepSpeed's lines about a process have its rank.

    When a process fails, the launcher prints the command of the process that it started last,
    whichever failed. So that line tells a rank only where the launcher started one process.
    """
    begins = {
        (one.evidence.file, one.node): (int(found[1]) * int(found[2]), int(found[1]))
        for one in findings
        if one.rule == "deepspeed.node" and (found := _DEEPSPEED_NODE.search(one.evidence.text))
    }

    def named(one: Finding) -> Finding:
        begin, count = begins.get((one.evidence.file, one.node), (0, 0))
        local = _LOCAL_RANK.search(one.evidence.text) if count else None
        if local is None:
            return one
        ended = ENDED.search(one.evidence.text) is not None
        is_own = count == 1 if ended else one.rule == DEEPSPEED
        return replace(one, rank=begin + int(local[1])) if is_own else one

    return [named(one) for one in findings] if begins else list(findings)


def _owned(one: Finding, owners: dict[str, set[Owner]]) -> Finding:
    text = one.evidence.text
    if one.rank is not None or not (one.rule.startswith(_BY_KERNEL) or _BY_RAY.search(text)):
        return one
    pid = _PID.search(text) or _KILLED.search(text)
    here = {
        rank
        for rank, node in owners.get(pid[1] if pid else "", ())
        if not node or not one.node or node == one.node
    }
    return replace(one, rank=here.pop()) if len(here) == 1 else one
