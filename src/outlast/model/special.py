"""The special functions that the closed forms need, in plain Python.

They are accurate near the points where textbook formulas lose their digits.

Symbols    P(a, x)     regularised lower incomplete gamma: the chance that a Gamma(a, 1) variable is
           at most x; Q = 1 - P
           W0          principal branch of Lambert's W
Sources    Abramowitz and Stegun, Handbook of Mathematical Functions, 1964: 6.5 (series, continued
           fraction), 26.4.17 (Wilson-Hilferty). DLMF 5.11.3 (Stirling); Lentz's method: Thompson
           and Barnett, J. Comput. Phys. 64, 1986.
Limits     gamma: relative error below 1e-11 up to a = 1e6; time grows with the square root of a.

This module is pure: numbers in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import NormalDist

EPSILON = 2.0**-53
TINY = 1e-300  # takes the place of zero in Lentz's method


def log_gap(u: float) -> float:
    """Return -ln(1 - u) - u for u < 1.

    Near 0 it is computed as u^2/2 + u^3/3 + ..., because the plain formula loses its digits there.
    The error is at most a few roundings.
    """
    if abs(u) > 0.25:
        return -math.log1p(-u) - u
    total, power, count = 0.0, u * u, 2
    while (after := total + power / count) != total:
        total, power, count = after, power * u, count + 1
    return total


def lambert_gap(x: float) -> float:
    """Return 1 + W0(-e^(-1 - x)) for x >= 0, in [0, 1].

    It is the distance from the branch point, and has all its digits for any small x. It is the u
    with -ln(1 - u) - u = x, found by Newton's method. It is about sqrt(2x) for small x, and about
    1 - e^(-1 - x) for large x.
    """
    if x > 1:
        rest = math.exp(-1 - x)
        for _ in range(8):
            image = math.exp(rest - 1 - x)
            rest -= (rest - image) / (1 - image)
        return 1 - rest
    if x == 0:
        return 0.0
    root = math.sqrt(2 * x)
    u = root * (1 - root / 3 + root * root / 36)
    for _ in range(5):
        u -= (log_gap(u) - x) * (1 - u) / u
    return u


# --- gamma ----------------------------------------------------------------------------------------


def gamma_p(shape: float, x: float) -> float:
    """Return P(shape, x)."""
    return _gamma(shape, x)[0]


def gamma_q(shape: float, x: float) -> float:
    """Return Q(shape, x) = 1 - P. It keeps its digits even if it is small."""
    return _gamma(shape, x)[1]


def _gamma(a: float, x: float) -> tuple[float, float]:
    if x <= 0:
        return 0.0, 1.0
    weight = _gamma_weight(a, x)
    if x < a + 1:
        lower = weight * _gamma_series(a, x)
        return lower, 1 - lower
    upper = weight * a * _fraction(_gamma_terms(a, x), x + 1 - a)
    return 1 - upper, upper


def _gamma_weight(a: float, x: float) -> float:
    """Return x^a e^-x / Gamma(a + 1). For large a, a deviance is used, so that nothing cancels."""
    if a < 10:
        return math.exp(a * math.log(x) - x - math.lgamma(a + 1))
    ratio = x / a
    deviance = log_gap(1 - ratio) if abs(1 - ratio) <= 0.25 else ratio - 1 - math.log(ratio)
    stirling = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * a * a)) / (a * a)) / (a * a)) / a
    return math.exp(-a * deviance - stirling) / math.sqrt(2 * math.pi * a)


def _gamma_series(a: float, x: float) -> float:
    total, term, n = 1.0, 1.0, a
    while term > total * EPSILON:
        n += 1
        term *= x / n
        total += term
    return total


def _gamma_terms(a: float, x: float) -> Iterator[tuple[float, float]]:
    n = 1
    while True:
        yield -n * (n - a), x + 2 * n + 1 - a
        n += 1


def _fraction(terms: Iterable[tuple[float, float]], first: float) -> float:
    """Return 1 / (first + n1 / (d1 + n2 / (d2 + ...))) by Lentz's method."""
    d = 1 / (first or TINY)
    c, value = 1 / TINY, d
    for above, below in terms:
        d = 1 / ((below + above * d) or TINY)
        c = (below + above / c) or TINY
        value *= (step := c * d)
        if abs(step - 1) <= 2 * EPSILON:
            break
    return value


def gamma_quantile(chance: float, shape: float) -> float:
    """Return the x with P(shape, x) = chance, for 0 < chance < 1 and shape > 0.

    It is found by Newton's method, kept between bounds.
    """
    low, high = 0.0, math.inf
    x = _gamma_guess(chance, shape)
    for _ in range(200):
        below, above = _gamma(shape, x)
        off = below - chance if chance < 0.5 else (1 - chance) - above
        low, high = (x, high) if off < 0 else (low, x)
        slope = _gamma_weight(shape, x) * shape / x if x > 0 else 0.0
        after = x - off / slope if slope > 0 else math.inf
        if not low < after < high:
            after = (
                math.sqrt(low) * math.sqrt(high)
                if low > 0 and high < math.inf
                else (2 * low if math.isinf(high) else high / 2)
            )
        if abs(after - x) <= 4 * EPSILON * after:
            return after
        x = after
    return x


def _gamma_guess(chance: float, shape: float) -> float:
    """Return a first guess by Wilson-Hilferty; if it is not above 0, by the series' first term."""
    z, ninth = NormalDist().inv_cdf(chance), 1 / (9 * shape)
    cube = 1 - ninth + z * math.sqrt(ninth)
    series = math.exp((math.log(chance) + math.lgamma(shape + 1)) / shape)
    return shape * cube**3 if cube > 0.2 else max(series, 5e-324)
