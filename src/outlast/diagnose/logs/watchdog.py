"""Read the watchdog lines of all versions of torch.

They say which collective a rank waited in, and how far its group had come.

2.0: `[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=469508,
OpType=ALLREDUCE, Timeout(ms)=1800000) ran for ...` 2.1 to 2.4 add NumelIn and NumelOut, and `last
enqueued NCCL work: 19, last completed NCCL work: 18`; 2.5 and later `[PG ID 0 PG GUID 0(default_pg)
Rank 1]`; 2.7 `work sequence id: 1 PG status: last enqueued work: 547, last completed work: -1`.
`[Rank r]` within a group is a place in that group.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outlast.diagnose.findings import Finding

_WORK = re.compile(
    r"seqnum=(\d{1,12}), optype=(\w{1,40})(?:, numelin=(\d{1,15}), numelout=(\d{1,15}))?"
)
_SEQUENCE = re.compile(r"\bat (?:nccl )?work(?: sequence id)?: (\d{1,12})")
_ENQUEUED = re.compile(r"last enqueued (?:nccl )?work: (-?\d{1,12})")
_COMPLETED = re.compile(r"last completed (?:nccl )?work: (-?\d{1,12})")
_GROUP = re.compile(r"\[pg id (\d{1,6}) pg guid ([^ \]]{1,60})|\[pg (\d{1,6})")


@dataclass(frozen=True, slots=True)
class AwaitedCollective(Finding):
    """A collective that a rank says it waited in.

    Numbers are those of the rank's group; -1 completed: nothing ever was.
    """

    group: str = ""
    sequence: int | None = None
    operation: str = ""
    numel: tuple[int, int] | None = None
    enqueued: int | None = None
    completed: int | None = None


def read_watchdog(low: str) -> dict[str, object]:
    """Return the fields of an `AwaitedCollective` in a lower-case line; empty if there are none."""
    fields: dict[str, object] = {}
    work, enqueued, completed, group = (
        _WORK.search(low),
        _ENQUEUED.search(low),
        _COMPLETED.search(low),
        _GROUP.search(low),
    )
    if work:
        fields |= {"sequence": int(work[1]), "operation": work[2]}
        if work[3] is not None:
            fields["numel"] = (int(work[3]), int(work[4]))
    elif found := _SEQUENCE.search(low):
        fields["sequence"] = int(found[1])
    if enqueued:
        fields["enqueued"] = int(enqueued[1])
    if completed:
        fields["completed"] = int(completed[1])
    if fields and group:
        fields["group"] = group[2] or group[1] or group[3]
    return fields
