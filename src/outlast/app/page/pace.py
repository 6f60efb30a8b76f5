"""The pace of a run over time: steps per second, from the buckets of the ledger.

Units      seconds since the run began; steps per second.
Method     Buckets are merged until at most POINTS_MOST are left, each with the same number of
           buckets. The rate of a point is its steps over its seconds, so a pause lowers it.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from outlast.model.records import Records

POINTS_MOST = 240
ROWS_MOST = 12
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class PacePoint:
    """The steps (from_step, to_step], committed in (from_s, to_s]."""

    from_s: float
    to_s: float
    from_step: int
    to_step: int

    @property
    def per_s(self) -> float:
        """Return the steps per second, 0 where no time passed."""
        seconds = self.to_s - self.from_s
        return max(0, self.to_step - self.from_step) / seconds if seconds > 0 else 0.0


def pace(records: Records) -> tuple[PacePoint, ...]:
    """Return the pace of all sessions, in order."""
    return merged(
        [
            PacePoint(
                bucket.from_s - part.began_s,
                bucket.to_s - part.began_s,
                bucket.from_step,
                bucket.to_step,
            )
            for part in records.sessions
            for bucket in part.steps
        ],
        POINTS_MOST,
    )


def merged(points: Sequence[PacePoint], most_count: int) -> tuple[PacePoint, ...]:
    """Return at most `most_count` points, each made of as many neighbours."""
    return tuple(
        PacePoint(group[0].from_s, group[-1].to_s, group[0].from_step, group[-1].to_step)
        for group in groups_of_neighbours(points, most_count)
    )


def groups_of_neighbours(items: Sequence[_Item], most_count: int) -> list[Sequence[_Item]]:
    """Cut a sequence into at most `most_count` groups of equal size; the last may be smaller."""
    size = math.ceil(len(items) / most_count) or 1
    return [items[at : at + size] for at in range(0, len(items), size)]
