"""Divide the badput of a session among its interruptions.

Units      rank-seconds.
Method     The gap between two processes of a rank goes to the interruption that began it. The
           seconds that a process has booked are only known as sums by cause over its whole life.
           Each sum is split over the interruptions in that life, in proportion to how long each of
           them took by its own times:
             detection  from the fault to its detection
             regroup    from there to `regrouped_s`
             restore    from there to `restored_s`
             repeated   by the number of steps that were done again
             idle       for which the run waited for a node; regroup is without this time
           Regroup and restore of a drain are `drain`.
           A child counts as a part of its parent, because both are over together.
Accuracy   The result is exact for a rank that lived through one interruption. For one that lived
           through several, the sum is exact, and the split is as good as the times.
Cost       Constant for each life and each interruption, because ranges are added as differences.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

from outlast.model.records import Interruption
from outlast.model.terms import TAKEN_BY_INTERRUPTIONS, Cause
from outlast.model.waits import Spans

Seconds = dict[Cause, float]

MOVING = (Cause.REGROUP, Cause.RESTORE)  # of a drain, these are booked as `drain`
_NO_WAITS = Spans()

# The least weight of an interruption. So one without known times takes what no other one takes.
_LEAST_S = 1e-9


class Attribution:
    """The seconds that each interruption of one session took, filled while ranks are booked.

    `interruptions` are in the order of their detection.

    drains                 the ids of those in which a node was given up on purpose
    seconds                the seconds of each interruption, by its id and by cause
    without_interruption   the seconds by cause that belong to no interruption, such as those after
                           the end of an earlier session
    """

    def __init__(
        self,
        interruptions: Sequence[Interruption],
        *,
        end_s: float,
        waits: Spans = _NO_WAITS,
        drains: Collection[int] = (),
    ) -> None:
        self.drains = drains
        self.seconds: dict[int, Seconds] = {one.id: {} for one in interruptions}
        self.without_interruption: Seconds = {}
        self._roots = [one for one in interruptions if one.parent is None]
        self._from_s = [one.detected_s for one in self._roots]
        ends_s = _ends(self._roots, interruptions, end_s)
        self._until_s = list(accumulate(ends_s, max))
        over = list(zip(self._roots, ends_s, strict=True))
        self._shares = {
            cause: _Shares(
                [_span(one, end_s, cause, waits) for one, end_s in over],
                [one.id in drains and cause in MOVING for one in self._roots],
            )
            for cause in TAKEN_BY_INTERRUPTIONS
        }

    def gap(self, hit: Interruption | None, cause: Cause, seconds: float) -> None:
        """Book seconds in which a rank had no process, or had one whose last step was lost."""
        if seconds > 0 and cause in self._shares:
            mine = self.without_interruption if hit is None else self.seconds[hit.id]
            mine[cause] = mine.get(cause, 0.0) + seconds

    def lived(self, opened_s: float, stop_s: float, seconds: Mapping[Cause, float]) -> Seconds:
        """Attribute the seconds that a process has booked between `opened_s` and `stop_s`.

        Return the part of them, by cause, that drains took: it is to be booked as `drain`.
        """
        taken = [(cause, seconds[cause]) for cause in self._shares if seconds.get(cause)]
        drained: Seconds = {}
        if not taken:
            return drained
        first = bisect_right(self._until_s, opened_s)
        after = bisect_left(self._from_s, stop_s)
        if first >= after and first > 0:
            # The process began when an interruption ended, and still works on that one.
            first, after = first - 1, first
        for cause, value in taken:
            if first < after:
                if part := self._shares[cause].add(first, after, opened_s, value):
                    drained[cause] = min(part, value)
            else:
                self.without_interruption[cause] = self.without_interruption.get(cause, 0.0) + value
        return drained

    def close(self) -> None:
        """Split the seconds that are only known for ranges of interruptions. Call it at the end."""
        for cause, shares in self._shares.items():
            for one, value in zip(self._roots, shares.split(), strict=True):
                if value > 0:
                    mine = self.seconds[one.id]
                    known_as = Cause.DRAIN if one.id in self.drains and cause in MOVING else cause
                    mine[known_as] = mine.get(known_as, 0.0) + value


class _Shares:
    """Seconds of one cause that are split over ranges of interruptions, by their spans.

    `counted` says for each interruption whether `add` returns its part.
    """

    def __init__(self, spans: Sequence[tuple[float, float]], counted: Sequence[bool]) -> None:
        self._spans = spans
        self._weights = [max(end_s - start_s, _LEAST_S) for start_s, end_s in spans]
        self._upto = [0.0, *accumulate(self._weights)]
        self._counted = counted
        self._counted_upto = [0.0]
        if any(counted):
            weights = (
                weight if one else 0.0 for weight, one in zip(self._weights, counted, strict=True)
            )
            self._counted_upto = [0.0, *accumulate(weights)]
        self._steps = [0.0] * (len(spans) + 1)  # differences of seconds per weight
        self._extra = [0.0] * len(spans)

    def add(self, first: int, after: int, opened_s: float, seconds: float) -> float:
        """Split `seconds` over the interruptions from `first` up to `after`.

        Only the part of the first one after `opened_s` counts, because the process began then.
        Return the seconds of those that are `counted`.
        """
        start_s, end_s = self._spans[first]
        whole = end_s - start_s
        left = min(whole, max(end_s - opened_s, 0.0)) if whole > 0 else 0.0
        own = max(left, _LEAST_S)
        per_weight = seconds / (own + self._upto[after] - self._upto[first + 1])
        self._extra[first] += own * per_weight
        self._steps[first + 1] += per_weight
        self._steps[after] -= per_weight
        if len(self._counted_upto) == 1:
            return 0.0
        others = self._counted_upto[after] - self._counted_upto[first + 1]
        return ((own if self._counted[first] else 0.0) + others) * per_weight

    def split(self) -> list[float]:
        """Return the seconds of each interruption."""
        rates = list(accumulate(self._steps))[: len(self._spans)]
        return [
            extra + max(0.0, rate) * weight
            for extra, rate, weight in zip(self._extra, rates, self._weights, strict=True)
        ]


def _ends(
    roots: Sequence[Interruption], everything: Sequence[Interruption], end_s: float
) -> list[float]:
    """Return when each interruption without a parent was over, with all of its children.

    It is `end_s` if the interruption was never over.
    """
    over_s: dict[int, float] = {}
    for one in everything:
        root = one.id if one.parent is None else one.parent
        if one.resumed_s is not None:
            over_s[root] = max(one.resumed_s, over_s.get(root, -math.inf))
    return [max(one.detected_s, over_s.get(one.id, end_s)) for one in roots]


def _span(one: Interruption, end_s: float, cause: Cause, waits: Spans) -> tuple[float, float]:
    """Return the span in which an interruption took seconds of this cause, by its own times."""
    regrouped_s = end_s if one.regrouped_s is None else one.regrouped_s
    idle_s = waits.inside(one.detected_s, end_s)
    match cause:
        case Cause.DETECTION:
            return (one.detected_s if one.fault_s is None else one.fault_s), one.detected_s
        case Cause.REGROUP:
            return min(one.detected_s + idle_s, regrouped_s), regrouped_s
        case Cause.IDLE:
            return end_s - idle_s, end_s
        case Cause.RESTORE:
            return regrouped_s, end_s if one.restored_s is None else one.restored_s
        case Cause.REPEATED:
            # Numbers of steps take the place of seconds. They are done again after its end.
            return end_s, end_s + max(0, one.steps_repeated) + max(0, one.steps_lost)
        case _:
            return end_s, end_s
