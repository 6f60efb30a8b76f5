"""Tell which folders of `outlast diagnose --collect` are of an earlier attempt of a job.

A person collects, starts the job again, and collects once more when it hangs again. Both folders
have the same ranks, with other processes. If they were read as one incident, two ranks would be
blamed for what one did. So only the newest attempt is read, and a note names the others.

Nothing is left out in two other cases. Folders of several nodes have different ranks. If an attempt
was collected twice, each rank has the same process in both folders.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RECORD = "node/collected.json"


@dataclass(frozen=True, slots=True)
class CollectedFolder:
    """A folder that `--collect` wrote.

    folder   its name in the evidence, with a slash at the end; "": the evidence is this folder
    at_s     when it was collected, in seconds since 1970
    pids     the process of each rank
    """

    folder: str
    at_s: float
    pids: dict[int, int]

    def is_before(self, other: CollectedFolder) -> bool:
        """Return True if `other` was collected later, of other processes with the same ranks."""
        shared = self.pids.keys() & other.pids.keys()
        others = all(self.pids[rank] != other.pids[rank] for rank in shared)
        return self.at_s < other.at_s and bool(shared) and others


def collected_folder(name: str, record: bytes) -> CollectedFolder | None:
    """Return what the record of a collection says.

    Return None if the record is cut or was changed, or if the file `name` is not such a record.
    """
    try:
        told = json.loads(record)
        pids = {int(rank): int(pid) for pid, rank in told["ranks"].items()}
        at_s = float(told["collected_at_s"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    if not f"/{name}".endswith(f"/{RECORD}"):
        return None
    return CollectedFolder(name.removesuffix(RECORD), at_s, pids)


def home_of(name: str, every: Iterable[CollectedFolder]) -> str | None:
    """Return the folder that a file was collected into, the innermost one; None: into no folder."""
    around = [one.folder for one in every if name.startswith(one.folder)]
    return max(around, key=len, default=None)


def of_earlier_attempts(every: Sequence[CollectedFolder]) -> list[str]:
    """Return the folders for which there is a later one of the same ranks in other processes."""
    return sorted(one.folder for one in every if any(one.is_before(other) for other in every))
