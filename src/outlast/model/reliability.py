"""Calculate how often a run fails, which ETTR that allows, and how many spares it needs.

The module also gives the uncertainty of a rate if few failures were seen.

Units      Durations are in seconds, rates are per second, probabilities are from 0 to 1.
Symbols    m  unit_mttf_s   mean time to failure of one part
           M  mttf_s        mean time to failure of the whole run: the first failure of any part
           n                number of parts that must all work
Limits     All forms take failures as independent, with a constant rate. The planner's simulation
           has waves, lemons, and racks that fail as a whole.

This module is pure: numbers in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from outlast.errors import UsageError
from outlast.model.quantities import need
from outlast.model.special import gamma_q, gamma_quantile

# Jeffreys' prior Gamma(1/2, 0) of a Poisson rate: without failures, it counts half a failure
JEFFREYS_COUNT = 0.5
SPARES_MAX_COUNT = 2**62


@dataclass(frozen=True, slots=True)
class Part:
    """A number of equal parts, each with the mean time to failure `unit_mttf_s` (inf: never)."""

    count: float
    unit_mttf_s: float


def mttf_s(count: float, unit_mttf_s: float) -> float:
    """Return M = m / n. It is inf for no parts, or for parts that never fail."""
    return mttf_of_parts_s([Part(count, unit_mttf_s)])


def mttf_of_parts_s(parts: Iterable[Part]) -> float:
    """Return M = 1 / sum of n_i / m_i, because rates add up. It is inf if nothing fails."""
    rate_per_s = 0.0
    for part in parts:
        need(count=part.count, least=0.0)
        need(unit_mttf_s=part.unit_mttf_s, above=0.0, endless=True)
        rate_per_s += part.count / part.unit_mttf_s
    return 1 / rate_per_s if rate_per_s > 0 else math.inf


# --- Meta's ETTR ----------------------------------------------------------------------------------


def expected_ettr(*, mttf_s: float, interval_s: float, save_s: float, restart_s: float) -> float:
    """Return Meta's expectation of ETTR for a long run that never queues.

    E[ETTR] = (1 - (u0 + dt/2) / M) / (1 + w / dt), or 0 if that is negative.

    M   mttf_s      mean time to failure of the run: 1 / (nodes x failures per node)
    u0  restart_s   time from a failure to training, without repeated work
    dt  interval_s  time between two saves
    w   save_s      stall of one save

    Source: "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", arXiv
    2410.21680. Its authors found it within 5 % of a Monte Carlo simulation. Error: with q = (u0 +
    dt/2) / M <= 0.3 and w <= dt, it is within q^2 + w / 2M of Daly's exact efficiency. At q = 1 it
    is 0, but the exact efficiency is not.
    """
    need(mttf_s=mttf_s, above=0.0, endless=True)
    need(interval_s=interval_s, above=0.0)
    need(save_s=save_s, restart_s=restart_s, least=0.0)
    kept = 1 - restart_s / mttf_s - interval_s / mttf_s / 2
    return max(0.0, kept) / (1 + save_s / interval_s)


def ettr_interval_s(*, mttf_s: float, save_s: float) -> float:
    """Return dt* = sqrt(2 w M), the interval that Meta uses. It is Young's."""
    need(mttf_s=mttf_s, above=0.0, endless=True)
    need(save_s=save_s, least=0.0)
    return math.sqrt(2.0) * math.sqrt(save_s) * math.sqrt(mttf_s) if save_s else 0.0


# --- spares ---------------------------------------------------------------------------------------


def spares_poisson(*, down_mean: float, availability: float) -> int:
    """Return the fewest spares s with P(Poisson(down_mean) <= s) >= availability.

    down_mean  mean number of nodes in repair: nodes / mttf of a node x mean repair time

    This is exact if every lost node is replaced at once, and idle spares do not fail. Then lost
    nodes form a Poisson stream. The number in repair is Poisson for any distribution of repair
    times (M/G/infinity; Palm 1943). If there is no spare, the run waits and fails less often. Then
    the result is an upper bound.
    """
    need(down_mean=down_mean, least=0.0)
    _check_availability(availability)
    if down_mean == 0:
        return 0
    return _fewest(lambda spares: gamma_q(spares + 1.0, down_mean) >= availability)


def _check_availability(availability: float) -> None:
    need(availability=availability, least=0.0, most=1.0)
    if availability == 1:
        raise UsageError(
            "availability is 1, but no number of spares always suffices",
            hint="ask for 0.999, for example",
        )


def _fewest(enough: Callable[[int], bool]) -> int:
    """Return the least count that is enough. All larger counts must be enough too."""
    high = 1
    while not enough(high):
        high *= 2
        if high > SPARES_MAX_COUNT:
            raise UsageError(
                "no number of spares suffices", hint="lower the availability asked for"
            )
    low = high // 2 if high > 1 else -1  # not enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# --- estimated rates ------------------------------------------------------------------------------


def rate_quantile_per_s(chance: float, *, failures: float, exposure_s: float) -> float:
    """Return the rate that the true rate is below with this probability.

    It is the quantile of Gamma(failures + 1/2, exposure), Jeffreys' posterior of a Poisson rate.

    exposure_s  summed over all parts that were watched

    Without failures the rate is not 0. On average it is half a failure in the exposure. With a
    probability of 95 % it is below 1.92 failures in the exposure.

    Raises UsageError if `chance` is not between 0 and 1.
    """
    need(failures=failures, least=0.0)
    need(exposure_s=exposure_s, above=0.0)
    if not 0 < chance < 1:
        raise UsageError(
            f"chance is {chance!r}; expected a number between 0 and 1",
            hint="0.05 and 0.95 are the ends of the 90 % interval",
        )
    return gamma_quantile(chance, failures + JEFFREYS_COUNT) / exposure_s


def rate_interval_per_s(
    *, failures: float, exposure_s: float, level: float = 0.9
) -> tuple[float, float]:
    """Return the central credible interval of the rate.

    The rate is above it with a probability of (1 - level) / 2, and below it with the same one.

    Raises UsageError if `level` is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise UsageError(
            f"level is {level!r}; expected a number between 0 and 1", hint="0.9 is usual"
        )
    low, high = (
        rate_quantile_per_s(chance, failures=failures, exposure_s=exposure_s)
        for chance in ((1 - level) / 2, (1 + level) / 2)
    )
    return low, high
