"""model/special.py agrees with values of an arbitrary-precision library (50 digits, here 16 of
them) and with plain sums.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.special import gamma_p, gamma_q, gamma_quantile, lambert_gap, log_gap

LAMBERT = {
    1e-30: 1.4142135623730943821e-15,
    1e-12: 1.4142128957065069496e-6,
    1e-6: 1.4135469742886646378e-3,
    1e-3: 4.405719225904808176e-2,
    0.1: 0.38318316820829483476,
    0.7: 0.77009676172305508604,
    1.0: 0.84140566043696063785,
    2.0: 0.94753090254228512759,
    10.0: 0.99998329802025595652,
}
GAMMA = [
    (0.5, 0.1, 0.34527915398142298, 0.65472084601857702),
    (2.5, 3.0, 0.693781081586721599, 0.306218918413278401),
    (30.0, 20.0, 0.0218182175255573916, 0.978181782474442608),
    (419.5, 400.0, 0.170828777427458576, 0.829171222572541424),
    (1e4, 10100.0, 0.841348750447179622, 0.158651249552820378),
    (1e6, 1000500.0, 0.691550475771497182, 0.308449524228502818),
]
QUANTILES = [
    (0.95, 0.5, 1.92072941034706223),
    (0.05, 0.5, 0.00196607000000976137),
    (0.95, 5.0, 9.153519026637572),
    (0.5, 419.5, 419.16671379486853),
    (1e-6, 2.5, 0.0064480801032485483),
    (0.999, 100.5, 134.347387223381921),
    (0.05, 419.5, 386.388622434276259),
]


@pytest.mark.parametrize(("x", "gap"), LAMBERT.items())
def test_the_distance_of_w0_from_its_branch_point_has_all_its_digits(x: float, gap: float) -> None:
    assert lambert_gap(x) == pytest.approx(gap, rel=1e-15)


@given(x=st.floats(0, 1e6))
def test_the_distance_solves_its_equation_and_stays_in_its_bounds(x: float) -> None:
    """u = 1 + W0(-e^(-1-x)) satisfies (u - 1) e^(u - 1) = -e^(-1-x). It is between sqrt(2x) - x and
    sqrt(2x), and below 1.
    """
    u = lambert_gap(x)
    assert 0 <= u <= 1
    assert math.sqrt(2 * x) - x <= u * (1 + 1e-15) <= math.sqrt(2 * x) * (1 + 1e-14)
    assert (1 - u) * math.exp(u) == pytest.approx(math.exp(-x), rel=1e-13, abs=1e-15)


def test_the_distance_moves_on_without_a_jump_where_its_method_changes() -> None:
    for edge in (1.0, log_gap(0.25)):
        below, above = lambert_gap(math.nextafter(edge, 0)), lambert_gap(math.nextafter(edge, 2))
        assert below == pytest.approx(above, rel=1e-15)
    assert lambert_gap(5e-324) > 0
    assert lambert_gap(math.inf) == 1


@pytest.mark.parametrize(("shape", "x", "lower", "upper"), GAMMA)
def test_the_incomplete_gamma_agrees_with_known_values(
    shape: float, x: float, lower: float, upper: float
) -> None:
    assert gamma_p(shape, x) == pytest.approx(lower, rel=1e-11)
    assert gamma_q(shape, x) == pytest.approx(upper, rel=1e-11)


@given(mean=st.floats(1e-6, 300), most=st.integers(0, 400))
def test_the_upper_incomplete_gamma_is_the_sum_of_a_poisson_law(mean: float, most: int) -> None:
    total = math.fsum(
        math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) for j in range(most + 1)
    )
    assert gamma_q(most + 1.0, mean) == pytest.approx(total, rel=1e-10)


def test_the_gamma_of_special_shapes_is_elementary() -> None:
    for x in (1e-9, 0.01, 0.5, 1.4, 1.6, 30.0):
        assert gamma_p(1.0, x) == pytest.approx(-math.expm1(-x), rel=1e-13)
        assert gamma_p(0.5, x) == pytest.approx(math.erf(math.sqrt(x)), rel=1e-13)
    assert (gamma_p(2.0, 0.0), gamma_q(2.0, 0.0)) == (0.0, 1.0)


@pytest.mark.parametrize(("chance", "shape", "x"), QUANTILES)
def test_the_quantile_of_gamma_agrees_with_known_values(
    chance: float, shape: float, x: float
) -> None:
    assert gamma_quantile(chance, shape) == pytest.approx(x, rel=1e-12)


@given(chance=st.floats(1e-9, 1 - 1e-9), shape=st.floats(0.05, 1e5))
def test_the_quantile_of_gamma_inverts_its_chance(chance: float, shape: float) -> None:
    assert gamma_p(shape, gamma_quantile(chance, shape)) == pytest.approx(chance, rel=1e-9)
