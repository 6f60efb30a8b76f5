"""Folders of `outlast diagnose --collect` of two attempts of a job, side by side.

A person collects, starts the job again, and collects once more when it hangs again. Both folders
have the same ranks, with other processes. If they were read as one incident, two ranks would be
blamed for what one did. So only the newest attempt is read, and a note names the others.

Folders of several nodes have different ranks. Of a job that was collected twice, each rank has the
same process in both folders. In both cases nothing is left out.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

RECORD = "node/collected.json"


@dataclass(frozen=True, slots=True)
class CollectedFolder:
    """A folder that `--collect` wrote: when, and the process of each rank."""

    folder: str
    at_s: float
    pids: dict[int, int]

    def is_before(self, other: CollectedFolder) -> bool:
        """Return True if `other` was collected later, of other processes with the same ranks."""
        shared = self.pids.keys() & other.pids.keys()
        others = all(self.pids[rank] != other.pids[rank] for rank in shared)
        return self.at_s < other.at_s and bool(shared) and others


def collected_folder(name: str, record: bytes) -> CollectedFolder | None:
    """Return what the record of a collection says; None if it is cut, changed or another file."""
    try:
        told = json.loads(record)
        pids = {int(rank): int(pid) for pid, rank in told["ranks"].items()}
        at_s = float(told["collected_at_s"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return CollectedFolder(name.removesuffix(RECORD), at_s, pids) if name.endswith(RECORD) else None


def of_earlier_attempts(every: Sequence[CollectedFolder]) -> list[str]:
    """Return the folders of which a later one has the same ranks, with other processes."""
    return sorted(one.folder for one in every if any(one.is_before(other) for other in every))
