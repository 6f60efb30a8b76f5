"""Predict how many failures a period will have, such as a month, with the uncertainty of that.

The count follows a negative binomial law, and its expected value is itself uncertain.

Units      Counts are per period. Expected counts follow from the rates and exposures of the caller.
Symbols    m  expected count of a period
           r  size: the variance is m + m^2 / r, so r = inf gives the Poisson law
           y  count of a period
Method     r is fitted by maximum likelihood over the observed periods, given their expected counts.
           A prediction is a mixture of negative binomials over draws of the expected count from its
           posterior: probabilities are means over the draws, and quantiles follow from their sums.
           If m has a Gamma posterior with shape a, then r = a gives the posterior predictive law of
           a constant rate.
Sources    Lawless, Canadian Journal of Statistics 15, 1987 (negative binomial); Gneiting and
           Raftery, JASA 102, 2007 (log score, coverage).
Limits     There is one r for all periods, and given their expected counts, periods are independent.
           So a drift over months appears as spread.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outlast.errors import UsageError

SIZE_MIN, SIZE_MAX = 1e-2, 1e6  # above SIZE_MAX, the law cannot be told from Poisson's
_ROUNDS = 35  # of the golden section; r is then exact to one part in a million
_LEAST = 1e-12  # lower expected counts are raised to this; a count of 0 is then all but certain
_GRID_MAX = 1 << 20

Floats = NDArray[np.float64]


def fit_size(count: ArrayLike, expected: ArrayLike) -> float:
    """Return the most likely r in [SIZE_MIN, SIZE_MAX], by golden section over its logarithm.

    Raises UsageError if there is no period.
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
    """The law of the count of one period.

    `probability[y]` is the probability of count y. It ends where the rest is negligible.
    """

    mean: float
    probability: Floats

    def quantile(self, share: float) -> int:
        """Return the smallest count that is not exceeded with a probability of at least `share`."""
        return int(np.searchsorted(np.cumsum(self.probability), share * (1 - 1e-12)))

    def log_score(self, y: int) -> float:
        """Return the logarithm of the predicted probability of the count `y` that came.

        If the probability was 0, the smallest normal number of double precision stands for it.
        """
        chance = float(self.probability[y]) if y < len(self.probability) else 0.0
        return math.log(max(chance, np.finfo(np.float64).tiny))


def predict(expected: ArrayLike, *, size: float, reach: int = 0) -> Prediction:
    """Predict the count of one period.

    expected  draws of the expected count of this period
    reach     the probabilities go up to this count at least
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
    """Return the log probability of each count, from its ratio to that of the count before."""
    steps = np.empty(len(y))
    steps[0] = log_probability(0, mean, size)
    before = y[:-1].astype(np.float64)
    if math.isinf(size):
        steps[1:] = math.log(mean) - np.log(before + 1)
    else:
        steps[1:] = np.log((before + size) / (before + 1)) + math.log(mean / (mean + size))
    return np.cumsum(steps)
