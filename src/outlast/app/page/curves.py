"""What the script has logged, over the time of a run: a curve for each name.

Units      seconds since the run began; the values as the script logged them.
Method     Each bucket of the ledger holds the newest value of its second, or the mean of older
           ones. Neighbours are merged into their mean until at most POINTS_MOST are left.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.app.page.pace import POINTS_MOST, groups_of_neighbours
from outlast.diagnose.redact import clean
from outlast.model.limits import CURVES_MAX_COUNT
from outlast.model.records import Records


@dataclass(frozen=True, slots=True)
class Value:
    """Hold what was logged in (from_s, to_s], up to step `to_step`."""

    from_s: float
    to_s: float
    to_step: int
    value: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Hold the values of one name, in the order of time."""

    name: str
    values: tuple[Value, ...]

    @property
    def least(self) -> float:
        """Return the smallest value."""
        return min(one.value for one in self.values)

    @property
    def most(self) -> float:
        """Return the greatest value."""
        return max(one.value for one in self.values)


def curves(records: Records) -> tuple[Curve, ...]:
    """Return the curves of all sessions, in the order in which their names came up."""
    by_name: dict[str, list[Value]] = {}
    for part in records.sessions:
        for bucket in part.steps:
            begin_s, end_s = bucket.from_s - part.began_s, bucket.to_s - part.began_s
            for name, value in bucket.logged.items():
                if name in by_name or len(by_name) < CURVES_MAX_COUNT:
                    by_name.setdefault(name, []).append(
                        Value(begin_s, end_s, bucket.to_step, value)
                    )
    return tuple(
        Curve(clean(name), averaged(values, POINTS_MOST)) for name, values in by_name.items()
    )


def averaged(values: Sequence[Value], most_count: int) -> tuple[Value, ...]:
    """Return at most `most_count` values, each the mean of as many neighbours."""
    return tuple(
        Value(
            group[0].from_s,
            group[-1].to_s,
            group[-1].to_step,
            sum(one.value / len(group) for one in group),
        )
        for group in groups_of_neighbours(values, most_count)
    )
