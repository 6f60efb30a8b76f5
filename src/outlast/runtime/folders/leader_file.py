"""`leader.json` in a run's folder: which of several nodes leads the run, and where agents connect.

A node that is started later needs the address of the node that leads now as its --rdzv-endpoint.
The file is written when a node begins to lead, into the folder in which its ledger is: the run's
folder, or `nodes/<node>` below it, if another launcher still holds the run's folder.

Limits   It says which node began to lead, and not whether that node still leads. The nodes' wall
         clocks decide which file is the newest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from outlast.runtime import clock

NAME = "leader.json"


@dataclass(frozen=True, slots=True)
class Leader:
    """A node that leads. `endpoint`: HOST:PORT for agents; `epoch`: number of its leadership."""

    node: str
    epoch: int
    endpoint: str
    since_wall_s: float


def write_leader(folder: Path, *, node: str, epoch: int, endpoint: str) -> None:
    """Record that this node leads from now on. Raises OSError."""
    told = asdict(Leader(node, epoch, endpoint, clock.wall_s()))
    part = folder / f".{NAME}.{os.getpid()}"
    part.write_text(json.dumps(told) + "\n")
    part.replace(folder / NAME)


def folders(run: Path) -> Iterator[Path]:
    """Yield the folders in which the ledger of a run may be: its own, and those of nodes below it.

    A node that joined under another leader than the first has its folder below that one's.
    """
    yield run
    for folder in run.glob("nodes/*/"):
        yield from folders(folder)


def read_leader(run: Path) -> Leader | None:
    """Return the node that began to lead last, or None if no file names one.

    run   the folder in which the run has begun; those of nodes are below it
    """
    found = find_leader(run)
    return None if found is None else found[1]


def find_leader(run: Path) -> tuple[Path, Leader] | None:
    """Return the node that began to lead last, and the folder in which its ledger is."""
    found = []
    for folder in folders(run):
        try:
            found.append((folder, Leader(**json.loads((folder / NAME).read_text()))))
        except (OSError, ValueError, TypeError):
            continue  # it does not exist, or is of another version
    return max(found, key=lambda one: one[1].since_wall_s, default=None)
