"""Predict how many failures a month will bring, and how sure that is.

The count is negative binomial, around an expected count that is itself unsure.

Units      counts per period; expected counts are whatever the caller's rates and exposures make of
           one period.
Symbols    m  expected count;  r  size: the variance is m + m^2 / r, so r = inf is Poisson;  y
           count
Method     r by maximum likelihood over the periods that were seen, given their expected counts. A
           prediction is the mixture, over draws of the expected count from its posterior, of
           negative binomials: probabilities are averages over the draws, quantiles are read off
           their sum. With m Gamma-distributed with shape a and mean m, r = a gives the posterior
           predictive of a constant rate.
Sources    Lawless, Canadian Journal of Statistics 15, 1987 (negative binomial); Gneiting and
           Raftery, JASA 102, 2007 (log score, coverage).
Limits     One r for all periods, and periods are independent given their expected counts: a drift
           that lasts for months is seen as spread, not as drift.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outlast.errors import UsageError

SIZE_MIN, SIZE_MAX = 1e-2, 1e6  # beyond the second nothing tells it from Poisson
_ROUNDS = 35  # to one part in a million of r
_LEAST = 1e-12  # expected failures in a period; below it 0 is certain
_GRID_MAX = 1 << 20

Floats = NDArray[np.float64]


def fit_size(count: ArrayLike, expected: ArrayLike) -> float:
    """Return the most likely r in [SIZE_MIN, SIZE_MAX], by golden section over its logarithm.

    UsageError without a period.
    """
    y, m = (
        np.asarray(count, dtype=np.float64),
        np.maximum(np.asarray(expected, dtype=np.float64), _LEAST),
    )
    if not len(y):
        raise UsageError(
            "there is no period to learn the spread of counts from", hint="begin the fit earlier"
        )
    low, high = math.log(SIZE_MIN), math.log(SIZE_MAX)
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = (_log_likelihood(y, m, math.exp(one)) for one in (left, right))
    for _ in range(_ROUNDS):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = _log_likelihood(y, m, math.exp(right))
        else:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = _log_likelihood(y, m, math.exp(left))
    return math.exp((low + high) / 2)


def _log_likelihood(y: Floats, m: Floats, size: float) -> float:
    return math.fsum(log_probability(int(one), mean, size) for one, mean in zip(y, m, strict=True))


def log_probability(y: int, mean: float, size: float) -> float:
    """Return the log probability of y under the negative binomial; size inf is Poisson."""
    if math.isinf(size):
        return y * math.log(mean) - mean - math.lgamma(y + 1)
    return (
        math.lgamma(y + size)
        - math.lgamma(size)
        - math.lgamma(y + 1)
        - size * math.log1p(mean / size)
        + y * (math.log(mean) - math.log(mean + size))
    )


@dataclass(frozen=True, slots=True)
class Prediction:
    """The count of one period: `probability[y]` for y from 0 on, until next to nothing is left."""

    mean: float
    probability: Floats

    def quantile(self, share: float) -> int:
        """Return the least count that is reached with at least this probability."""
        return int(np.searchsorted(np.cumsum(self.probability), share * (1 - 1e-12)))

    def log_score(self, y: int) -> float:
        """Return the logarithm of the probability that was given to the count that came.

        If it was 0, this is the least that double precision holds.
        """
        chance = float(self.probability[y]) if y < len(self.probability) else 0.0
        return math.log(max(chance, np.finfo(np.float64).tiny))


def predict(expected: ArrayLike, *, size: float, reach: int = 0) -> Prediction:
    """Predict the count of one period. `expected`: draws of its expected count.

    The probabilities go up to `reach` at least.
    """
    draws = np.maximum(np.asarray(expected, dtype=np.float64).ravel(), _LEAST)
    mean = float(draws.mean())
    widest = float(draws.max())
    top = max(reach, 20, math.ceil(widest + 12 * math.sqrt(widest + widest * widest / size)))
    y = np.arange(min(top, _GRID_MAX) + 1)
    total = np.zeros(len(y))
    for draw in draws:
        total += np.exp(_log_probabilities(y, float(draw), size))
    return Prediction(mean, total / len(draws))


def _log_probabilities(y: NDArray[np.int64], mean: float, size: float) -> Floats:
    """Return log probabilities, by the ratio of each count's probability to the one before."""
    steps = np.empty(len(y))
    steps[0] = log_probability(0, mean, size)
    before = y[:-1].astype(np.float64)
    if math.isinf(size):
        steps[1:] = math.log(mean) - np.log(before + 1)
    else:
        steps[1:] = np.log((before + size) / (before + 1)) + math.log(mean / (mean + size))
    return np.cumsum(steps)
