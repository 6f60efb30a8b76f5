"""What a ledger says of a run that was struck: ETTR, seconds by cause, MTTR.

Units      seconds of the run: rank-seconds over its ranks. Startup and shutdown are left out, as in
           `ettr_training`.
Families   An interruption that begins while another is open is its child; both are over together.
           MTTR is of families: from the first fault to the first new commit.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass

from outlast.model.goodput import account
from outlast.model.records import Interruption, Records
from outlast.model.terms import CAUSES, Cause

# nobody trains
STANDING = (Cause.DETECTION, Cause.REGROUP, Cause.RESTORE, Cause.DRAIN, Cause.IDLE)
OUTSIDE = (Cause.STARTUP, Cause.SHUTDOWN)


@dataclass(frozen=True, slots=True)
class Measured:
    """standing_s: of all families that are over, from the first fault to state in place, by the
    clock. interruptions: children too.
    """

    world_size: int
    ettr: float
    training_s: float
    seconds: dict[str, float]
    steps: int
    steps_lost: int
    interruptions: int
    families: int
    mttr_s: tuple[float, ...]
    standing_s: float
    rungs: dict[str, int]

    @property
    def mttr_median_s(self) -> float | None:
        return statistics.median(self.mttr_s) if self.mttr_s else None

    @property
    def lost(self) -> float:
        return 1 - self.ettr


def measured(records: Records) -> Measured:
    """Measure a run that is over."""
    books = account(records, now_s=None)
    size = records.meta.world_size
    seconds = {cause: books.rank_seconds[cause] / size for cause in CAUSES}
    everything = [one for one, _ in records.unique_interruptions()]
    families = families_of(everything)
    over = [(family, times) for family in families if (times := _times(family)) is not None]
    return Measured(
        world_size=size,
        ettr=books.ettr_training,
        training_s=math.fsum(value for cause, value in seconds.items() if cause not in OUTSIDE),
        seconds={cause.value: value for cause, value in seconds.items()},
        steps=records.newest_step,
        steps_lost=sum(one.steps_lost for one in everything),
        interruptions=len(everything),
        families=len(families),
        mttr_s=tuple(mttr_s for _, (mttr_s, _) in over),
        standing_s=math.fsum(standing_s for _, (_, standing_s) in over),
        rungs=dict(Counter("none" if one.rung is None else one.rung.value for one in everything)),
    )


def families_of(interruptions: list[Interruption]) -> list[list[Interruption]]:
    """Return each root with its children and theirs, in the order of their detection."""
    known = {one.id: one for one in interruptions}
    of: dict[int, list[Interruption]] = {one.id: [] for one in interruptions if one.parent is None}
    for one in interruptions:
        root = one
        while root.parent is not None:
            root = known[root.parent]
        of[root.id].append(one)
    return [sorted(family, key=lambda one: one.detected_s) for family in of.values()]


def _times(family: list[Interruption]) -> tuple[float, float] | None:
    """Fault to first new commit, and to state in place.

    None: it is not over, or nobody knows when it began.
    """
    began_s = family[0].fault_s
    resumed_s = [one.resumed_s for one in family if one.resumed_s is not None]
    restored_s = [one.restored_s for one in family if one.restored_s is not None]
    if began_s is None or not resumed_s or not restored_s:
        return None
    return max(resumed_s) - began_s, max(restored_s) - began_s
