"""Find out whether the failure rate of a unit changes with its age.

A Weibull law is fitted by maximum likelihood. The lives of units may be observed in part.

Units      Ages are in seconds since the unit was put into service, not since the record began.
Symbols    k  shape: below 1 infant mortality, 1 a constant rate, above 1 wear-out
           s  scale_s; the hazard at age a is (k/s) (a/s)^(k-1)
           e  age at which a stretch of observation begins (left truncation)
           x  age at which it ends, by a failure or by the end of the record (right censoring)
           d  number of failures
           S(k) = sum of x^k - e^k over all stretches
Method     For a given k, the best scale is (S/d)^(1/k). The log-likelihood at that scale is, up to
           a constant, l(k) = d ln k - d ln S(k) + (k-1) sum of ln x over failures. It is concave in
           k, because ln(S/k) is the logarithm of a moment-generating function of ln age. So
           Newton's method inside a bracket finds its only maximum.
Errors     Standard errors come from the observed information of (k, ln s).
Test       A constant rate is compared with the Weibull law by the likelihood ratio, which follows a
           chi-square law with one degree of freedom (Wilks).
Repair     A unit that fails, is repaired and goes on gives several stretches. Its hazard goes on
           from the age that it has ("as bad as old", a power-law process).
Sources    Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data, 2002, sections
           1.3, 3.2; Crow 1974 for the repaired unit.
Limits     The intervals are those of large samples, so no shape is fitted with fewer than FEW
           failures. k is searched for in [SHAPE_MIN, SHAPE_MAX]. If all units are equally old, an
           effect of age cannot be told from an effect of calendar time.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outlast.errors import UsageError

SHAPE_MIN, SHAPE_MAX = 0.02, 50.0
FEW = 5  # with fewer failures, no shape is fitted
LEVEL = 0.9  # level of the confidence intervals
REFUTED = 0.05  # if the p value is below this, the rate is taken to change with age
_ROUNDS = 100

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Stretches in which units were observed. Make them with `of`, which checks them.

    entry_s  the unit's age at the beginning of each stretch
    exit_s   the unit's age at the end of each stretch
    failed   whether each stretch ended in a failure
    """

    entry_s: Floats
    exit_s: Floats
    failed: NDArray[np.bool_]

    @classmethod
    def of(cls, *, entry_s: ArrayLike, exit_s: ArrayLike, failed: ArrayLike) -> Lifetimes:
        """Make lives from ages.

        Raises UsageError for an age that is negative or not finite, and for a stretch that ends
        before it begins.
        """
        lives = cls(
            np.asarray(entry_s, dtype=np.float64),
            np.asarray(exit_s, dtype=np.float64),
            np.asarray(failed, dtype=np.bool_),
        )
        if (
            not (lives.entry_s.shape == lives.exit_s.shape == lives.failed.shape)
            or lives.entry_s.ndim != 1
        ):
            raise UsageError(
                "the numbers of entry ages, exit ages and failure flags differ",
                hint="give each stretch of observation one of each",
            )
        wrong = ~(
            np.isfinite(lives.exit_s) & (lives.entry_s >= 0) & (lives.entry_s <= lives.exit_s)
        )
        if wrong.any():
            first = int(np.argmax(wrong))
            raise UsageError(
                f"stretch {first + 1} of life is from age {lives.entry_s[first]:g} s to"
                f" {lives.exit_s[first]:g} s",
                hint="ages are finite and not negative, and the first is not above the second",
            )
        return lives

    @property
    def count(self) -> int:
        return int(self.failed.sum())

    @property
    def exposure_s(self) -> float:
        return float((self.exit_s - self.entry_s).sum())


@dataclass(frozen=True, slots=True)
class WeibullFit:
    """A fitted Weibull law. `shape_low` and `shape_high` are the 90 % interval.

    `p_constant` is the p value of the test for a constant rate: the probability of data that speak
    at least as clearly against it, if the rate were constant.
    """

    count: int
    shape: float
    shape_se: float
    shape_low: float
    shape_high: float
    scale_s: float
    log_scale_se: float
    p_constant: float


@dataclass(frozen=True, slots=True)
class ShapeVerdict:
    """This verdict says whether the rate changes with age.

    fit     the fitted law; None if no law could be fitted
    varies  True: use the shape of `fit`. False: use a constant rate
    reason  a sentence that says why
    """

    fit: WeibullFit | None
    varies: bool
    reason: str


def decide_shape(lives: Lifetimes) -> ShapeVerdict:
    """Decide whether the rate changes with age, and say why."""
    count = lives.count
    if count < FEW:
        return ShapeVerdict(
            None,
            False,
            f"{count} failures cannot tell whether the rate changes with age (it takes {FEW}); a"
            " constant rate is taken",
        )
    if _all_at_one_age(lives):
        return ShapeVerdict(
            None,
            False,
            "all failures came at the greatest age seen: no shape fits them; a constant rate is"
            " taken",
        )
    fit = fit_weibull(lives)
    said = (
        f"shape {fit.shape:.2f} (90 % interval {fit.shape_low:.2f} to {fit.shape_high:.2f},"
        f" {count:,} failures)"
    )
    if not SHAPE_MIN * 1.001 < fit.shape < SHAPE_MAX / 1.001:
        return ShapeVerdict(
            fit,
            False,
            f"{said} is at the end of the range that is searched, so this is not a Weibull law; a"
            " constant rate is taken",
        )
    if fit.p_constant >= REFUTED:
        return ShapeVerdict(
            fit,
            False,
            f"{said}: a constant rate is not refuted (p = {fit.p_constant:.2f}), and is taken",
        )
    return ShapeVerdict(
        fit,
        True,
        f"{said}: the rate {'falls' if fit.shape < 1 else 'rises'} with age (p"
        f" {said_p(fit.p_constant)} for a constant one)",
    )


def said_p(p: float) -> str:
    """Write a p value with its sign: `= 0.03`, or `< 1e-12` for a smaller one."""
    return f"= {p:.2g}" if p >= 1e-12 else "< 1e-12"


def fit_weibull(lives: Lifetimes) -> WeibullFit:
    """Fit the most likely shape and scale.

    Raises UsageError if no failure was seen, or if all came at the greatest age. In the second case
    no shape is the most likely.
    """
    count = lives.count
    if count == 0:
        raise UsageError(
            "no failure was seen, so there is no shape to fit",
            hint="a credible upper bound of the rate is all there is",
        )
    if _all_at_one_age(lives):
        raise UsageError(
            "all failures came at the greatest age seen, so no shape is the most likely",
            hint="take a constant rate, or observe for longer",
        )
    unit_s = float(lives.exit_s.max())  # ages in units of the greatest, so that no power overflows
    profile = _Profile(lives.entry_s / unit_s, lives.exit_s / unit_s, lives.failed)
    shape = profile.best()
    log_scale, shape_se, log_scale_se = profile.rest(shape)
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    spread = math.exp(min(z * shape_se / shape, 700.0))
    ratio = max(0.0, 2 * (profile.log_likelihood(shape) - profile.log_likelihood(1.0)))
    return WeibullFit(
        count=count,
        shape=shape,
        shape_se=shape_se,
        shape_low=shape / spread,
        shape_high=shape * spread,
        scale_s=unit_s * math.exp(min(log_scale, 600.0)),
        log_scale_se=log_scale_se,
        p_constant=math.erfc(math.sqrt(ratio / 2)),
    )


def _all_at_one_age(lives: Lifetimes) -> bool:
    return bool((lives.exit_s[lives.failed] == lives.exit_s.max()).all())


class _Profile:
    """The function l(k) and its derivatives. Each age is divided by the greatest one."""

    def __init__(self, entry: Floats, exit_: Floats, failed: NDArray[np.bool_]) -> None:
        self.entry, self.exit = entry[entry > 0], exit_
        self.log_entry, self.log_exit = (
            np.log(self.entry),
            np.log(np.maximum(exit_, np.finfo(np.float64).tiny)),
        )
        self.count = int(failed.sum())
        self.log_failed = float(self.log_exit[failed].sum())

    def moments(self, shape: float) -> tuple[float, float, float]:
        """Return ln S, S'/S and S''/S."""
        high, low = np.exp(shape * self.log_exit), np.exp(shape * self.log_entry)
        sums = [
            float((high * self.log_exit**n).sum() - (low * self.log_entry**n).sum())
            for n in range(3)
        ]
        return math.log(sums[0]), sums[1] / sums[0], sums[2] / sums[0]

    def log_likelihood(self, shape: float) -> float:
        """Return the log-likelihood, up to a constant that is the same for all shapes."""
        return (
            self.count * (math.log(shape) - self.moments(shape)[0]) + (shape - 1) * self.log_failed
        )

    def best(self) -> float:
        """Return the most likely shape."""
        low, high, shape = SHAPE_MIN, SHAPE_MAX, 1.0
        for _ in range(_ROUNDS):
            _, first, second = self.moments(shape)
            slope = self.count * (1 / shape - first) + self.log_failed
            bend = -self.count * (1 / shape**2 + second - first**2)
            low, high = (shape, high) if slope > 0 else (low, shape)
            step = shape - slope / bend if bend < 0 else math.inf
            # Take Newton's step, or halve the bracket if that step leaves it.
            new = step if low < step < high else (low + high) / 2
            if abs(new - shape) <= 1e-12 * shape:
                return new
            shape = new
        return shape

    def rest(self, shape: float) -> tuple[float, float, float]:
        """Return ln scale at this shape, and the standard errors of the shape and of ln scale."""
        log_sum, first, second = self.moments(shape)
        log_scale = (log_sum - math.log(self.count)) / shape
        of_shape = self.count * (1 / shape**2 + second - 2 * log_scale * first + log_scale**2)
        of_both = -self.count * shape * (first - log_scale)
        of_scale = self.count * shape**2
        determinant = of_shape * of_scale - of_both**2
        if determinant <= 0:
            return log_scale, math.inf, math.inf
        return log_scale, math.sqrt(of_scale / determinant), math.sqrt(of_shape / determinant)
