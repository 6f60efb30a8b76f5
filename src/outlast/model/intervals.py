"""Checkpoint intervals: the interval that loses the least time to failures, and any other's cost.

Units      Every duration is in seconds.
Symbols    delta  save_s      time for which training pauses for one save, 0 or more
           M      mttf_s      mean time to failure of the whole run, not of one part; inf if it
                              never fails
           R      restart_s   time from a failure until the run goes on from the newest save:
                              detection, replacement, restore
           tau    interval_s  productive time between the end of one save and the beginning of the
                              next
           x      delta / M
Model      The model is Daly's; `best_s` and `efficiency` are exact in it. Failures are exponential,
           and strike at any time, even during saves and restarts. Work since the last finished save
           is done again. A restart that is struck starts over.
Sources    Young, CACM 17(9), 1974. Daly, FGCS 22(3), 2006. NVIDIA, arXiv 2410.18124. The exact
           optimum with Lambert's W follows from Daly's cost.
Limits     A save is taken to block training. For a save that overlaps training, pass only the stall
           of a step. Failures while such a save is being written are not in these forms, but in the
           planner's simulation. Failures that come in waves, or with age, are not exponential.

All functions take any positive numbers up to 1e300, even an MTTF that is shorter than a save. They
never return NaN and never overflow. They raise UsageError for a number that is NaN, negative, or 0
if that is not allowed.

This module is pure: numbers in, numbers out.
"""

from __future__ import annotations

import math

from outlast.model.quantities import need
from outlast.model.special import lambert_gap

NEGLIGIBLE = 1e-34  # below this x, the exact optimum and Young's are the same float


def young_s(save_s: float, mttf_s: float) -> float:
    """Return Young's interval: tau = sqrt(2 delta M), the first order.

    Error, for delta <= M: it is longer than the best interval, by at most sqrt(delta / 2M) of it.
    The efficiency is at most delta / 8M of itself below the best. For larger delta, the interval is
    too long by an unlimited factor.
    """
    _check(save_s, mttf_s)
    if save_s == 0:
        return 0.0
    # the product under a single root may overflow
    return math.sqrt(2.0) * math.sqrt(save_s) * math.sqrt(mttf_s)


def daly_first_s(save_s: float, mttf_s: float) -> float:
    """Return Daly's first order: tau = sqrt(2 delta M) - delta.

    It is M if delta >= 2 M, where the formula would not be above 0.

    Error, for delta <= M / 2: shorter than the best interval, by at most sqrt(2 delta / M) / 3 of
    it; the efficiency is at most delta / 10M of itself below the best.
    """
    _check(save_s, mttf_s)
    return mttf_s if save_s >= 2 * mttf_s else young_s(save_s, mttf_s) - save_s


def daly_higher_s(save_s: float, mttf_s: float) -> float:
    """Return Daly's higher order.

    tau = sqrt(2 delta M) [1 + (1/3) (delta / 2M)^(1/2) + (1/9) (delta / 2M)] - delta for delta <
    2 M, else M.

    Error: within 0.6 % of the best interval for delta <= M / 2, within 6.5 % for any; the
    efficiency is within 0.2 % of the best for any.
    """
    _check(save_s, mttf_s)
    if save_s >= 2 * mttf_s:
        return mttf_s
    half = save_s / mttf_s / 2
    return young_s(save_s, mttf_s) * (1 + math.sqrt(half) / 3 + half / 9) - save_s


def best_s(save_s: float, mttf_s: float) -> float:
    """Return the exact optimum of Daly's cost, for any R: tau = M (1 + W0(-e^(-delta/M - 1))).

    It is between sqrt(2 delta M) - delta and both Young's and M.
    """
    _check(save_s, mttf_s)
    x = save_s / mttf_s
    if x < NEGLIGIBLE or math.isinf(mttf_s):
        return young_s(save_s, mttf_s)
    return mttf_s * lambert_gap(x)


def availability(interval_s: float, save_s: float, mttf_s: float, restart_s: float) -> float:
    """Return the share that is productive, to first order, in [0, 1].

    It is (T_c - delta) / (T_c (1 + (R + T_c / 2) / M)) with T_c = tau + delta.

    The formula is our own. The interval of arXiv 2410.18124 is its exact optimum.
    """
    _check(save_s, mttf_s)
    need(restart_s=restart_s, least=0.0)
    need(interval_s=interval_s, least=0.0)
    return _share(interval_s, save_s) / (
        1 + restart_s / mttf_s + interval_s / mttf_s / 2 + save_s / mttf_s / 2
    )


def efficiency(interval_s: float, save_s: float, mttf_s: float, restart_s: float) -> float:
    """Return the share of the wall clock that is productive and kept, in [0, 1].

    eta = tau / (M e^(R/M) (e^((tau + delta)/M) - 1)), which is exact for Daly's cost. It tends to 0
    (and is 0 below the smallest float) as M becomes short beside tau + delta + R. It tends to
    tau / (tau + delta) as M becomes long.
    """
    _check(save_s, mttf_s)
    need(restart_s=restart_s, least=0.0)
    need(interval_s=interval_s, least=0.0)
    alive, struck = interval_s / mttf_s, interval_s / mttf_s + save_s / mttf_s
    if struck < 1e-280:  # failures are so rare that floats have no digits left for them
        return _share(interval_s, save_s) * math.exp(-restart_s / mttf_s)
    decay = math.exp(-restart_s / mttf_s - struck)
    return alive * decay / -math.expm1(-struck) if decay > 0 else 0.0


def best_efficiency(save_s: float, mttf_s: float, restart_s: float) -> float:
    """Return the `efficiency` at `best_s`: no fixed interval does better."""
    interval_s = best_s(save_s, mttf_s)
    if math.isinf(interval_s):  # nothing fails, so nothing is saved
        return 1.0
    return efficiency(interval_s, save_s, mttf_s, restart_s)


def first_order_overhead(
    interval_s: float, save_s: float, mttf_s: float, restart_s: float = 0.0
) -> float:
    """Return the seconds lost per productive second: delta / tau + tau / 2M + R / M.

    At Young's interval it is sqrt(2 delta / M) + R / M. It is inf where no float is as large.

    Error: it is below the exact overhead (1 / efficiency - 1), by at most the square of itself
    while it is at most 0.4.
    """
    _check(save_s, mttf_s)
    need(restart_s=restart_s, least=0.0)
    need(interval_s=interval_s, least=0.0)
    if interval_s == 0:
        return math.inf if save_s else restart_s / mttf_s
    return save_s / interval_s + interval_s / mttf_s / 2 + restart_s / mttf_s


def _check(save_s: float, mttf_s: float) -> None:
    need(save_s=save_s, least=0.0)
    need(mttf_s=mttf_s, above=0.0, endless=True)


def _share(interval_s: float, save_s: float) -> float:
    """Return tau / (tau + delta), of any size; 1 where both are 0."""
    return 1.0 / (1.0 + save_s / interval_s) if interval_s > 0 else float(save_s == 0)
