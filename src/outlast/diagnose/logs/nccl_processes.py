"""Which process of a host is which rank, by NCCL's lines about its communicators.

    n1:4712:4790 [2] NCCL INFO comm 0x55 rank 10 nranks 16 cudaDev 2 busId 5d000 - Init COMPLETE

Later lines of that process name its host and its pid, and no rank. A communicator of a part of the
ranks has ranks of its own, so the largest one decides. `[2]` is the GPU that the process uses, as
CUDA numbers those that it sees. That is often its local rank, which says nothing about the rank.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from outlast.diagnose.findings import Finding
from outlast.diagnose.rules import RULES
from outlast.model.verdict import Evidence

RULE = "nccl.process"
TOLD_MAX = 4_096  # of one log
NEEDLES = (b" nranks ",)
PROCESSES_MAX = 20_000
_HEAD = re.compile(
    r"^(?:\S{1,40} ){0,4}?([A-Za-z0-9][\w.-]{0,80}):(\d{1,8}):\d{1,8} \[(\d{1,3})\]"
    r" (?:\S{1,80} )?NCCL "
)
_PLACED = re.compile(r"\bcomm 0x\w{1,20} rank (\d{1,6}) nranks (\d{1,7}) ", re.IGNORECASE)


class NcclProcesses:
    """The ranks of processes, as their lines tell them one after the other."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, str], tuple[int, int]] = {}  # size of the communicator, rank
        self._line = 0  # of the newest one

    def feed(self, line: int, text: str) -> None:
        head, placed = _HEAD.match(text), _PLACED.search(text)
        if head is None or placed is None:
            return
        process, found = (head[1], head[2]), (int(placed[2]), int(placed[1]))
        if found[0] > self._ranks.get(process, (1, 0))[0] and len(self._ranks) < PROCESSES_MAX:
            self._ranks[process], self._line = found, line

    def end(self, name: str) -> Iterator[Finding]:
        """Yield what was told of each process, for lines of others that name it."""
        row = RULES[RULE]
        for (host, pid), (_, rank) in list(self._ranks.items())[:TOLD_MAX]:
            said = Evidence(name, self._line, f"process {pid} is rank {rank}", row.role)
            yield Finding(said, row.name, order=self._line, rank=rank, node=host)

    def rank_of(self, text: str) -> int | None:
        head = _HEAD.match(text)
        return None if head is None else self._ranks.get((head[1], head[2]), (0, None))[1]


def gpu_of(text: str) -> str | None:
    """Return the GPU of the process that wrote a line, in CUDA's numbering ("cuda:2")."""
    head = _HEAD.match(text)
    return None if head is None else f"cuda:{int(head[3])}"
