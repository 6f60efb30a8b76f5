"""model/intervals.py: the exact forms agree with brute force and with a simulation. The
approximations stay within the errors that they state.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outlast.errors import UsageError
from outlast.model.intervals import (
    availability,
    best_efficiency,
    best_s,
    daly_first_s,
    daly_higher_s,
    efficiency,
    first_order_overhead,
    young_s,
)

MIN_S, HOUR_S = 60.0, 3600.0
GOLDEN = (math.sqrt(5) - 1) / 2


def maximum(f: Callable[[float], float], low: float, high: float) -> float:
    """Find the maximum of a function with one peak, by golden section over the logarithm."""
    a, b = math.log(low), math.log(high)
    for _ in range(120):
        c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
        a, b = (a, d) if f(math.exp(c)) >= f(math.exp(d)) else (c, b)
    return math.exp((a + b) / 2)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    """Return numbers that are even over orders of magnitude, with both ends."""
    return st.floats(math.log(low), math.log(high)).map(
        lambda exponent: min(max(math.exp(exponent), low), high)
    )


# --- exact forms ----------------------------------------------------------------------------------


@given(x=powers(1e-6, 30.0), restart=st.sampled_from([0.0, 0.3, 2.0]))
def test_no_interval_costs_less_than_the_exact_optimum(x: float, restart: float) -> None:
    """Golden section on Daly's exact cost finds the same interval, up to the rounding errors near
    the flat maximum. It never finds a better one.
    """
    found = maximum(lambda tau: efficiency(tau, x, 1.0, restart), 1e-8, 50.0)
    assert found == pytest.approx(best_s(x, 1.0), rel=1e-5)
    assert efficiency(found, x, 1.0, restart) <= best_efficiency(x, 1.0, restart) * (1 + 1e-13)


@given(x=powers(1e-12, 500.0), restart=st.floats(0, 100))
def test_at_the_optimum_the_efficiency_is_what_is_left_of_the_mttf(
    x: float, restart: float
) -> None:
    """At the optimum the derivative is 0, which implies eta = e^(-(tau + delta + R) / M)."""
    assert best_efficiency(x, 1.0, restart) == pytest.approx(
        math.exp(-best_s(x, 1.0) - x - restart), rel=1e-11, abs=1e-300
    )


def lived(
    interval_s: float, save_s: float, mttf_s: float, restart_s: float, gaps_s: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the efficiency of a run that fails after each of `gaps_s`, and its standard error.
    Between two failures there is a restart, and then whole stretches of tau + delta.
    """
    worked_s = np.maximum(0.0, gaps_s - restart_s)
    kept_s = interval_s * np.floor(worked_s / (interval_s + save_s))
    eta = kept_s.sum() / gaps_s.sum()
    return float(eta), float(np.std(kept_s - eta * gaps_s) / math.sqrt(len(gaps_s)) / gaps_s.mean())


LIVES = [
    (24 * HOUR_S, 5 * MIN_S, 10 * MIN_S),
    (6 * HOUR_S, 5 * MIN_S, 10 * MIN_S),
    (15 * MIN_S, 5 * MIN_S, 10 * MIN_S),
    (3.05 * HOUR_S, 2.5, 5 * MIN_S),
]


@pytest.mark.parametrize(("mttf_s", "save_s", "restart_s"), LIVES)
def test_dalys_cost_and_the_exact_optimum_agree_with_a_simulation(
    mttf_s: float, save_s: float, restart_s: float
) -> None:
    """The simulation has 2 million failures with a fixed seed. At three intervals, the efficiencies
    agree within 4 standard errors and 1e-3. Of 15 intervals around the optimum, with the same
    failures, none is better than it by more than 4 standard errors of the difference.
    """
    gaps_s = -mttf_s * np.log1p(
        -np.random.Generator(np.random.Philox(20_260_901)).random(2_000_000)
    )
    best = best_s(save_s, mttf_s)
    for interval_s in (best / 3, best, best * 3):
        eta, error = lived(interval_s, save_s, mttf_s, restart_s, gaps_s)
        exact = efficiency(interval_s, save_s, mttf_s, restart_s)
        assert abs(eta - exact) <= min(4 * error, 1e-3)
    some_s = gaps_s[:300_000]
    top, error = lived(best, save_s, mttf_s, restart_s, some_s)
    for factor in np.geomspace(0.5, 2.0, 15):
        # the error of a difference is at most 1.5 of one
        assert lived(best * factor, save_s, mttf_s, restart_s, some_s)[0] <= top + 6 * error


@pytest.mark.parametrize(
    ("mttf_h", "caption_min", "recomputed_min"),
    [(24.0, "117", 116.7), (6.0, "57", 56.7), (0.25, "9.1", 9.14)],
)
def test_dalys_captions_are_reproduced(
    mttf_h: float, caption_min: str, recomputed_min: float
) -> None:
    """FGCS 22(3), 2006: a save takes 5 min, and a restart takes 10 min."""
    interval_min = daly_higher_s(5 * MIN_S, mttf_h * HOUR_S) / MIN_S
    assert f"{interval_min:.{len(caption_min.partition('.')[2])}f}" == caption_min
    assert interval_min == pytest.approx(recomputed_min, rel=0.005)


@pytest.mark.parametrize(("mttf_h", "recomputed_min"), [(24.0, 116.7), (6.0, 56.7), (0.25, 9.17)])
def test_the_exact_optimum_of_dalys_captions(mttf_h: float, recomputed_min: float) -> None:
    assert best_s(5 * MIN_S, mttf_h * HOUR_S) / MIN_S == pytest.approx(recomputed_min, rel=0.0005)


# --- approximations, within what their docstrings state -------------------------------------------

EDGE = math.nextafter(0.5, 0)


@given(x=powers(1e-12, 1.0))
@example(x=1.0)
def test_youngs_interval_is_too_long_within_its_bound(x: float) -> None:
    best = best_s(x, 1.0)
    assert -1e-14 <= young_s(x, 1.0) / best - 1 <= math.sqrt(x / 2)
    assert (
        1 - efficiency(young_s(x, 1.0), x, 1.0, 0.0) / best_efficiency(x, 1.0, 0.0) <= x / 8 + 1e-14
    )


@given(x=powers(1e-12, 0.5))
@example(x=0.5)
def test_dalys_first_order_is_too_short_within_its_bound(x: float) -> None:
    assert -math.sqrt(2 * x) / 3 <= daly_first_s(x, 1.0) / best_s(x, 1.0) - 1 <= 1e-14
    assert (
        1 - efficiency(daly_first_s(x, 1.0), x, 1.0, 0.0) / best_efficiency(x, 1.0, 0.0)
        <= x / 10 + 1e-14
    )


@given(x=powers(1e-12, 500.0))
@example(x=0.5)
@example(x=math.nextafter(2.0, 0))
@example(x=2.0)
def test_dalys_higher_order_is_near_the_optimum_everywhere(x: float) -> None:
    off = abs(daly_higher_s(x, 1.0) / best_s(x, 1.0) - 1)
    assert off <= (0.006 if x <= 0.5 else 0.065)
    assert efficiency(daly_higher_s(x, 1.0), x, 1.0, 0.0) >= 0.998 * best_efficiency(x, 1.0, 0.0)


def test_dalys_forms_are_the_mttf_where_a_save_takes_twice_as_long() -> None:
    assert daly_higher_s(2.0, 1.0) == daly_higher_s(1e9, 1.0) == daly_first_s(2.0, 1.0) == 1.0


@given(
    interval=powers(1e-6, 1.0),
    save=st.just(0.0) | powers(1e-9, 1.0),
    restart=st.just(0.0) | powers(1e-6, 0.5),
)
def test_the_first_order_overhead_is_too_low_by_less_than_its_square(
    interval: float, save: float, restart: float
) -> None:
    first = first_order_overhead(interval, save, 1.0, restart)
    if first <= 0.4:
        assert (
            -1e-13 <= 1 / efficiency(interval, save, 1.0, restart) - 1 - first <= first**2 + 1e-13
        )


def test_first_order_overhead_at_youngs_interval_is_a_square_root() -> None:
    assert first_order_overhead(young_s(2.5, 10_986.0), 2.5, 10_986.0, 60.0) == pytest.approx(
        math.sqrt(2 * 2.5 / 10_986) + 60 / 10_986
    )


# --- any numbers ----------------------------------------------------------------------------------

anything = powers(1e-300, 1e300)


@given(
    save=st.just(0.0) | anything,
    mttf=anything | st.just(math.inf),
    restart=st.just(0.0) | anything,
    interval=st.just(0.0) | anything,
)
def test_no_positive_input_overflows_or_is_not_a_number(
    save: float, mttf: float, restart: float, interval: float
) -> None:
    intervals = [
        young_s(save, mttf),
        daly_first_s(save, mttf),
        daly_higher_s(save, mttf),
        best_s(save, mttf),
    ]
    assert all(tau >= 0 and (tau < math.inf or mttf == math.inf) for tau in intervals)
    shares = [
        efficiency(interval, save, mttf, restart),
        best_efficiency(save, mttf, restart),
        availability(interval, save, mttf, restart),
    ]
    assert all(0 <= share <= 1 + 1e-12 for share in shares)
    assert first_order_overhead(interval, save, mttf, restart) >= 0


def test_efficiency_tends_to_zero_for_an_mttf_far_below_a_save() -> None:
    shares = [
        best_efficiency(600.0, mttf_s, 300.0) for mttf_s in (1e4, 1e3, 1e2, 10.0, 1.0, 1e-3, 1e-300)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[3] < 1e-30
    assert shares[-1] == 0.0


def test_a_run_that_never_fails_loses_only_its_saves() -> None:
    assert efficiency(90.0, 10.0, math.inf, 300.0) == pytest.approx(0.9, rel=1e-15)
    assert best_s(10.0, math.inf) == math.inf
    assert best_efficiency(10.0, math.inf, 300.0) == 1.0
    assert first_order_overhead(90.0, 9.0, math.inf, 300.0) == 0.1


def test_with_free_saves_only_restarts_cost_time() -> None:
    assert (
        young_s(0.0, 10.0)
        == best_s(0.0, 10.0)
        == daly_higher_s(0.0, 10.0)
        == young_s(0.0, math.inf)
        == 0.0
    )
    assert best_efficiency(0.0, 10.0, 1.0) == pytest.approx(math.exp(-0.1))


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_what_cannot_be_a_duration_is_refused_by_name(bad: float) -> None:
    for call in (
        lambda: young_s(bad, 1.0),
        lambda: efficiency(1.0, bad, 1.0, 1.0),
        lambda: best_s(bad, 1.0),
    ):
        with pytest.raises(UsageError, match="save_s"):
            call()
    with pytest.raises(UsageError, match="interval_s"):
        efficiency(bad, 1.0, 1.0, 1.0)
    with pytest.raises(UsageError, match="restart_s"):
        best_efficiency(1.0, 1.0, bad)
    for mttf_s in (0.0, -1.0, math.nan):
        with pytest.raises(UsageError, match="mttf_s"):
            daly_higher_s(1.0, mttf_s)
