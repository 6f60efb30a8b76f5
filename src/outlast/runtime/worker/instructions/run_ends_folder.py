"""The folder into which each rank of a drill writes prints of its final state. No torch here."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "OUTLAST_DRILL_ENDS"
SAME_DRAWS = "OUTLAST_DRILL_SAME_DRAWS"


def asked() -> str:
    """Return the folder that this process has to write to, or "" if it has to write nothing."""
    return os.environ.get(VARIABLE, "")


def same_draws() -> bool:
    """Return whether all ranks draw the same numbers if the script sets no seed."""
    return os.environ.get(SAME_DRAWS) == "1"


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of one rank: its last committed step, and the prints of its state by part."""

    step: int
    parts: dict[str, str]


def read_ends(folder: Path) -> dict[int, RankEnd]:
    """Return the end of each rank that has written one."""
    out = {}
    for path in sorted(folder.glob("rank-*.json")):
        told = json.loads(path.read_text())
        out[int(path.stem.partition("-")[2])] = RankEnd(told["step"], told["parts"])
    return out
