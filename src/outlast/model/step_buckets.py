"""Merge old buckets of steps, because a row for each second is too much in a run of months.

Levels     A level is (age, width). Buckets that ended more than `age` ago are merged into ones that
           are `width` long.
Merging    Numbers of steps, least, greatest and times stay exact. The median of a merged bucket is
           the median of the medians, weighted with steps. A logged value becomes the mean of the
           values of its name.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from outlast.model.limits import STEP_BUCKET_LEVELS
from outlast.model.records import StepsBucket


def median_step_s(buckets: Iterable[StepsBucket]) -> float | None:
    """Return the median of the buckets' medians, each weighted with its steps."""
    ordered = sorted((one.median_s, one.to_step - one.from_step) for one in buckets)
    half = sum(steps for _, steps in ordered) / 2
    for median_s, steps in ordered:
        half -= steps
        if half <= 0:
            return median_s
    return None


def merged(buckets: Sequence[StepsBucket]) -> StepsBucket:
    """Return one bucket for several consecutive buckets."""
    first, last = buckets[0], buckets[-1]
    median_s = median_step_s(buckets)
    return StepsBucket(
        first.from_s,
        last.to_s,
        first.from_step,
        last.to_step,
        min(one.min_s for one in buckets),
        last.median_s if median_s is None else median_s,
        max(one.max_s for one in buckets),
        mean_values([one.logged for one in buckets]),
    )


def mean_values(some: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of the values of each name, over the mappings that have it."""
    by_name: dict[str, list[float]] = {}
    for values in some:
        for name, value in values.items():
            by_name.setdefault(name, []).append(value)
    return {name: sum(one / len(found) for one in found) for name, found in by_name.items()}


def to_merge(buckets: Sequence[StepsBucket], *, now_s: float) -> Iterator[tuple[int, int]]:
    """Yield ranges of indices of buckets, in their order, that are old enough to be merged.

    A range is yielded once no further bucket can fall into it.
    """
    taken: set[int] = set()
    for age_s, width_s in STEP_BUCKET_LEVELS:
        small = [
            index
            for index, one in enumerate(buckets)
            if index not in taken
            and one.to_s - one.from_s < width_s
            and (one.from_s // width_s + 1) * width_s < now_s - age_s
        ]
        taken.update(small)
        for _, group in groupby(small, key=lambda index: buckets[index].from_s // width_s):
            indices = list(group)
            follow = all(
                after == before + 1 and buckets[after].from_step == buckets[before].to_step
                for before, after in pairwise(indices)
            )
            if len(indices) > 1 and follow:
                yield indices[0], indices[-1] + 1
