"""Estimate the rate of each class of failure, with its interval.

Units      Rates are per second of one unit (GPU, node, rack or run). Exposure is in unit-seconds.
Symbols    n  number of failures of a class
           E  exposure in which they were counted
           b  slope of the logarithm of a run's rate over the logarithm of its ranks
Method     Each class and extent has its own rate. With Jeffreys' prior, the posterior of the rate
           is Gamma(n + 1/2, E). The stated rate is n / E. The 90 % interval leaves 5 % of the
           posterior on each side.
Unseen     A class that never struck has no rate, but an upper bound, 1.92 / E. 95 % of the
           posterior lie below it. The bound is never zero.
Scale      A Poisson regression over runs of different size tells whether the rate of a run grows
           with its ranks. b is 1 if each rank adds its share, and 0 if ranks do not matter.
Sources    Jeffreys 1946; Brown, Cai and DasGupta, Statistica Sinica 13, 2003 (coverage of this
           interval for Poisson counts).
Limits     Rates are taken as constant. The mean hides waves, wear-out and lemons. `weibull.py`
           finds a change with age, and `decide_clumped` finds counts that are too uneven.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from outlast.errors import UsageError
from outlast.model.reliability import rate_interval_per_s, rate_quantile_per_s
from outlast.model.terms import FailureClass
from outlast.planner.fit.observed import Observed
from outlast.planner.fit.regression import fit_poisson
from outlast.planner.fit.weibull import said_p
from outlast.planner.scenario import Extent, FailureRate, Unit

LEVEL = 0.9  # level of the intervals; the bound of an unseen class has the same weight above it
# number of periods into which a record is cut to see whether failures came in clumps
PERIODS_MIN, PERIODS_MAX = 6, 24
PER_PERIOD = 3  # expected failures in each period, at least
CLUMPED_P = 0.01


@dataclass(frozen=True, slots=True)
class ClassRate:
    """The rate of one class.

    If no failure was seen, `rate_per_s` is None, `low_per_s` is 0, and `high_per_s` is the bound.
    """

    failure_class: FailureClass
    unit: Unit
    extent: Extent
    count: int
    exposure_s: float
    rate_per_s: float | None
    low_per_s: float
    high_per_s: float
    source: str = ""

    @property
    def mttf_s(self) -> float | None:
        """Return the MTTF of one unit; None if none failed."""
        return None if self.rate_per_s is None else 1 / self.rate_per_s

    def scenario_rate(self) -> FailureRate:
        """Return the rate in the form of a Scenario.

        Raises UsageError if no failure was seen, because then there is only a bound. A cluster file
        can give `count = 0` with the exposure instead.
        """
        if self.mttf_s is None:
            raise UsageError(
                f"no failure of class {self.failure_class.value} was seen",
                hint="plan with the bound, or write count = 0 and the exposure",
            )
        return FailureRate(
            self.failure_class,
            self.unit,
            self.extent,
            self.mttf_s,
            count=float(self.count),
            source=self.source,
        )


def class_rate(
    failure_class: FailureClass,
    unit: Unit,
    extent: Extent,
    *,
    count: int,
    exposure_s: float,
    source: str = "",
) -> ClassRate:
    """Fit one rate. Raises UsageError if there is no exposure."""
    if not 0 < exposure_s < math.inf:
        what = f"{source or 'the record'} watched {unit.name.lower()}s for {exposure_s:g} s"
        raise UsageError(what, hint="a rate needs time in which a failure could have been seen")
    if count == 0:
        return ClassRate(
            failure_class, unit, extent, 0, exposure_s, None, 0.0, bound_per_s(exposure_s), source
        )
    low_per_s, high_per_s = rate_interval_per_s(failures=count, exposure_s=exposure_s, level=LEVEL)
    return ClassRate(
        failure_class,
        unit,
        extent,
        count,
        exposure_s,
        count / exposure_s,
        low_per_s,
        high_per_s,
        source,
    )


def bound_per_s(exposure_s: float) -> float:
    """Return the bound that the rate of an unseen class is below with a probability of 95 %."""
    return rate_quantile_per_s((1 + LEVEL) / 2, failures=0, exposure_s=exposure_s)


def class_rates(records: Sequence[Observed]) -> tuple[ClassRate, ...]:
    """Return the rate of each class and extent that any record has, most frequent first.

    Raises UsageError if the records watched different kinds of unit.
    """
    struck = Counter(
        (one.failure_class, one.extent) for record in records for one in record.failures
    )
    source = ", ".join(record.source for record in records)
    out = []
    for (failure_class, extent), count in struck.items():
        units = {record.unit_of(failure_class, extent) for record in records}
        if len(units) > 1:
            raise UsageError(
                f"{source} watched different things:"
                f" {', '.join(sorted(unit.name.lower() for unit in units))}",
                hint="calibrate them apart",
            )
        unit = units.pop()
        exposure_s = math.fsum(record.exposure_s[unit] for record in records)
        out.append(
            class_rate(
                failure_class, unit, extent, count=count, exposure_s=exposure_s, source=source
            )
        )
    return tuple(sorted(out, key=lambda one: (-one.count, one.failure_class.value, one.extent)))


def unseen_rates(records: Sequence[Observed]) -> tuple[ClassRate, ...]:
    """Return bounds for failures that were never seen.

    If no failure was seen at all, there is a bound for any failure. If nodes were watched and none
    was lost, there is a bound for the loss of a node. If a node, a rack or the run was lost, there
    is no bound.
    """
    seen = [one for record in records for one in record.failures]
    if any(one.extent >= Extent.NODE for one in seen):
        return ()
    source = ", ".join(record.source for record in records)
    exposures = {
        unit: math.fsum(record.exposure_s.get(unit, 0.0) for record in records) for unit in Unit
    }
    bounds = []
    if not seen:
        unit = next(unit for unit in Unit if exposures[unit] > 0)
        bounds.append((unit, Extent.PROCESS))
    if exposures[Unit.NODE] > 0:
        bounds.append((Unit.NODE, Extent.NODE))
    return tuple(
        class_rate(
            FailureClass.UNKNOWN, unit, extent, count=0, exposure_s=exposures[unit], source=source
        )
        for unit, extent in bounds
    )


# --- what a constant rate hides -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpreadVerdict:
    """This verdict says whether failures came in clumps, and why.

    `ratio` is the variance of the counts of equal periods, divided by their mean. It is 1 for a
    constant rate, and None if there are too few failures.
    """

    clumped: bool
    ratio: float | None
    reason: str


def decide_clumped(record: Observed) -> SpreadVerdict:
    """Decide whether failures came in clumps, by Fisher's test of dispersion over equal periods.

    p comes from Wilson and Hilferty's normal approximation of chi-square. The test assumes that the
    record was watched evenly, because units that come and go make counts uneven too.
    """
    count = len(record.failures)
    periods = min(PERIODS_MAX, count // PER_PERIOD)
    if periods < PERIODS_MIN:
        return SpreadVerdict(
            False,
            None,
            f"{count} failures are too few to see whether they come in waves (it takes"
            f" {PERIODS_MIN * PER_PERIOD})",
        )
    counts, _ = np.histogram(
        [one.at_s for one in record.failures], bins=periods, range=(0.0, record.span_s)
    )
    mean = count / periods
    chi = float(((counts - mean) ** 2).sum() / mean)
    degrees = periods - 1
    z = ((chi / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    p, ratio = 1 - NormalDist().cdf(z), chi / degrees
    said = (
        f"counts of {periods} equal periods vary {ratio:.1f} times as much as a constant rate would"
        " make them"
    )
    if p >= CLUMPED_P:
        return SpreadVerdict(
            False, ratio, f"{said} (p = {p:.2f}): nothing speaks against a constant rate"
        )
    return SpreadVerdict(
        True,
        ratio,
        f"{said} (p {said_p(p)}): failures come in waves or clumps, and the intervals of the rates"
        " are too narrow",
    )


@dataclass(frozen=True, slots=True)
class ScaleVerdict:
    """This verdict says whether the failures of a run grow with its ranks, and why.

    `slope` is the power of the growth. It is None if runs of only one size were seen.
    """

    slope: float | None
    low: float | None
    high: float | None
    reason: str


def decide_scale(records: Sequence[Observed]) -> ScaleVerdict:
    """Decide how the rate grows with size. The records must have exposures of GPUs and of runs."""
    known = [
        one
        for one in records
        if one.exposure_s.get(Unit.RUN, 0.0) > 0 and one.exposure_s.get(Unit.GPU, 0.0) > 0
    ]
    ranks = np.array([one.exposure_s[Unit.GPU] / one.exposure_s[Unit.RUN] for one in known])
    counts = np.array([float(len(one.failures)) for one in known])
    if len(known) == 0 or np.ptp(np.log(ranks)) < 0.01:
        of_what = "no world size" if not known else f"one world size only ({ranks[0]:,.0f} ranks)"
        return ScaleVerdict(
            None, None, None, f"whether failures grow with the number of ranks: {of_what} was seen"
        )
    fit = fit_poisson(
        np.stack([np.ones(len(known)), np.log(ranks)], axis=1),
        names=("rate", "log ranks"),
        exposure=[one.exposure_s[Unit.RUN] for one in known],
        count=counts,
    )
    slope, wide = (
        float(fit.coefficients[1]),
        NormalDist().inv_cdf((1 + LEVEL) / 2) * float(fit.standard_errors[1]),
    )
    low, high = slope - wide, slope + wide
    said = (
        f"failures of a run grow with its ranks to the power {slope:.2f} (90 % interval {low:.2f}"
        f" to {high:.2f})"
    )
    one, none = low <= 1 <= high, low <= 0 <= high
    told = {
        (True, False): "each rank adds its share",
        (False, True): "ranks do not matter, so take the rate of the run and not of a rank",
        (
            True,
            True,
        ): "the sizes seen cannot tell whether each rank adds its share or ranks do not matter",
        (False, False): "the growth is neither in proportion nor absent",
    }[one, none]
    return ScaleVerdict(slope, low, high, f"{said}: {told}")
