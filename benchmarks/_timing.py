"""Medians, spreads and ratios of timings that were taken side by side.

Intervals are percentile bootstraps of the median with a fixed seed: same samples, same interval.
Ratios are of pairs taken in the same round, so that a slow minute of the machine weighs on both
sides alike.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

RESAMPLES = 2_000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Summary:
    """The median of samples, and how sure it is.

    low, high           the interval that holds the true median with 95 % confidence
    smallest, largest   the samples at both ends
    """

    median: float
    low: float
    high: float
    smallest: float
    largest: float
    count: int

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)

    def text(self, *, scale: float = 1.0, unit: str = "", digits: int = 2) -> str:
        median, low, high = (
            f"{value * scale:,.{digits}f}" for value in (self.median, self.low, self.high)
        )
        return f"{median}{unit} [{low}, {high}]"


def summarise(samples: Sequence[float]) -> Summary:
    """Return the median of samples with its interval."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(samples, k=len(samples))) for _ in range(RESAMPLES)
    )
    tail = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Summary(
        statistics.median(samples),
        medians[tail],
        medians[-1 - tail],
        min(samples),
        max(samples),
        len(samples),
    )


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Summary:
    """Summarise the ratios `above[i] / below[i]`."""
    return summarise([one / other for one, other in zip(above, below, strict=True)])


def alternate(rounds: int, variants: Sequence[Callable[[], None]]) -> None:
    """Call every variant once per round, each round beginning with another one."""
    for index in range(rounds):
        start = index % len(variants)
        for variant in (*variants[start:], *variants[:start]):
            variant()
