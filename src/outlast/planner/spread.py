"""Durations that vary, as functions of a number in (0, 1).

Every depth of the planner takes a duration as `spread.quantile(u)` with the same u. So all depths,
and all candidates of a search, have the same luck (common random numbers).

Units      seconds.
Symbols    u  a number in (0, 1): 0.5 gives the median, 0.95 the 95th percentile
Limits     An exponential or lognormal duration has no upper end. But u has only 53 bits, so no
           exponential duration is longer than 37 means.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outlast.errors import UsageError

P95_Z = NormalDist().inv_cdf(0.95)


class Shape(str, Enum):
    """The distribution of a duration."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Spread:
    """A duration. Make one with `constant`, `exponential`, `lognormal` or `measured`.

    numbers  (mean_s,) if it is constant or exponential; (median_s, sigma of the logarithm) if it is
             lognormal; the sorted samples if it was measured
    """

    shape: Shape
    numbers: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.numbers or not all(
            math.isfinite(number) and number >= 0 for number in self.numbers
        ):
            raise UsageError(
                f"a duration is made of {self.numbers}",
                hint="give seconds that are finite and not negative",
            )

    @property
    def mean_s(self) -> float:
        """The mean duration in seconds."""
        if self.shape is Shape.LOGNORMAL:
            median_s, sigma = self.numbers
            return median_s * math.exp(sigma * sigma / 2)
        if self.shape is Shape.MEASURED:
            return _mean_of_line(self.numbers)
        return self.numbers[0]

    def quantile(self, u: ArrayLike) -> NDArray[np.float64]:
        """Return the duration at quantile `u`, in seconds and in the shape of `u`."""
        at = np.asarray(u, dtype=np.float64)
        if self.shape is Shape.CONSTANT:
            return np.full(at.shape, self.numbers[0])
        if self.shape is Shape.EXPONENTIAL:
            return -self.numbers[0] * np.log1p(-at)
        if self.shape is Shape.LOGNORMAL:
            return self._of_normal(normal_quantile(at))
        return (
            np.interp(at, np.linspace(0.0, 1.0, len(self.numbers)), self.numbers)
            if len(self.numbers) > 1
            else np.full(at.shape, self.numbers[0])
        )

    def _of_normal(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the lognormal duration that lies z standard deviations above the median."""
        median_s, sigma = self.numbers
        return median_s * np.exp(sigma * z)

    def scaled(self, factor: float) -> Spread:
        """Return a duration that is `factor` times as long."""
        if self.shape is Shape.LOGNORMAL:
            return Spread(self.shape, (self.numbers[0] * factor, self.numbers[1]))
        return Spread(self.shape, tuple(number * factor for number in self.numbers))


def quantiles(spreads: Sequence[Spread], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quantiles of several durations at the same u: (len(u), spreads, rest of u).

    Each is what `quantile` returns, but the quantiles of the normal are computed only once.
    """
    out = np.empty((len(u), len(spreads), *u.shape[1:]))
    lognormals = [spread for spread in spreads if spread.shape is Shape.LOGNORMAL]
    z = normal_quantile(u) if lognormals else u
    for place, spread in enumerate(spreads):
        out[:, place] = (
            spread._of_normal(z) if spread.shape is Shape.LOGNORMAL else spread.quantile(u)
        )
    return out


def constant(seconds: float) -> Spread:
    """Make a duration that is always the same."""
    return Spread(Shape.CONSTANT, (seconds,))


def exponential(mean_s: float) -> Spread:
    """Make an exponential duration from its mean."""
    return Spread(Shape.EXPONENTIAL, (mean_s,))


def lognormal(median_s: float, p95_s: float) -> Spread:
    """Make one from its median and its 95th percentile.

    Raises UsageError if one of them is not above 0, or if the second is below the first.
    """
    if not 0 < median_s <= p95_s:
        raise UsageError(
            f"a duration has median {median_s} s and 95th percentile {p95_s} s",
            hint="both are above 0, and the second is not less than the first",
        )
    return Spread(Shape.LOGNORMAL, (median_s, math.log(p95_s / median_s) / P95_Z))


def measured(samples_s: ArrayLike) -> Spread:
    """Make one from measured samples. Its quantiles are interpolated between the sorted samples."""
    return Spread(
        Shape.MEASURED,
        tuple(float(sample) for sample in np.sort(np.asarray(samples_s, dtype=np.float64))),
    )


def _mean_of_line(numbers: tuple[float, ...]) -> float:
    """Return the mean of the distribution whose quantiles are interpolated."""
    if len(numbers) == 1:
        return numbers[0]
    return (math.fsum(numbers) - (numbers[0] + numbers[-1]) / 2) / (len(numbers) - 1)


# Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied Statistics
# 37(3), 1988: PPND16, relative error 1e-16.
NEAR = (
    (
        2509.0809287301226727,
        33430.575583588128105,
        67265.770927008700853,
        45921.953931549871457,
        13731.693765509461125,
        1971.5909503065514427,
        133.14166789178437745,
        3.387132872796366608,
    ),
    (
        5226.495278852545925,
        28729.085735721942674,
        39307.89580009271061,
        21213.794301586595867,
        5394.1960214247511077,
        687.1870074920579083,
        42.313330701600911252,
        1.0,
    ),
)
MIDDLE = (
    (
        7.7454501427834140764e-4,
        0.0227238449892691845833,
        0.24178072517745061177,
        1.27045825245236838258,
        3.64784832476320460504,
        5.7694972214606914055,
        4.6303378461565452959,
        1.42343711074968357734,
    ),
    (
        1.05075007164441684324e-9,
        5.475938084995344946e-4,
        0.0151986665636164571966,
        0.14810397642748007459,
        0.68976733498510000455,
        1.6763848301838038494,
        2.05319162663775882187,
        1.0,
    ),
)
FAR = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        0.0012426609473880784386,
        0.026532189526576123093,
        0.29656057182850489123,
        1.7848265399172913358,
        5.4637849111641143699,
        6.6579046435011037772,
    ),
    (
        2.04426310338993978564e-15,
        1.4215117583164458887e-7,
        1.8463183175100546818e-5,
        7.868691311456132591e-4,
        0.0148753612908506148525,
        0.13692988092273580531,
        0.59983220655588793769,
        1.0,
    ),
)


def normal_quantile(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quantiles of the standard normal, in the shape of `u`."""
    flat = u.ravel()
    q = flat - 0.5
    out = q * _ratio(NEAR, 0.180625 - q * q)
    tail = np.flatnonzero(np.abs(q) > 0.425)
    if tail.size:
        end = flat[tail]
        r = np.sqrt(-np.log(np.minimum(end, 1 - end)))
        z = _ratio(MIDDLE, r - 1.6)
        far = np.flatnonzero(r > 5)
        z[far] = _ratio(FAR, r[far] - 5)
        out[tail] = np.copysign(z, q[tail])
    return out.reshape(u.shape)


def _ratio(
    polynomials: tuple[tuple[float, ...], tuple[float, ...]], r: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the ratio of two polynomials. Both are evaluated at once, because calls are slow."""
    both = np.array(polynomials)[:, :, None]
    sums = both[:, 0] * r
    sums += both[:, 1]
    for place in range(2, both.shape[1]):
        sums *= r
        sums += both[:, place]
    return np.asarray(sums[0] / sums[1])
