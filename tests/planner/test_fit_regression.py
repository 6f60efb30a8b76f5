"""planner/fit/regression.py and counts.py find the rates of cells whose rates are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import PCG64, Generator

from outlast.errors import UsageError
from outlast.planner.fit.counts import SIZE_MAX, fit_size, log_probability, predict
from outlast.planner.fit.regression import fit_poisson

X = np.array([[1.0, a, b] for a in (0.0, 1.0) for b in (0.0, 1.0)] * 6)  # 24 cells, two covariates
NAMES = ("one", "a", "b")
TRUE = np.log([0.2, 3.0, 0.4])


def counts(luck: Generator, mean: np.ndarray) -> np.ndarray:
    """Draw Poisson counts by inverting the distribution of each."""
    chance = luck.random(mean.shape)
    out, below, term = np.zeros(mean.shape), np.exp(-mean), np.exp(-mean)
    for number in range(1, 2000):
        above = chance > below
        if not above.any():
            break
        out[above] = number
        term = term * mean / number
        below = below + term
    return out


def test_intervals_of_factors_hold_the_truth_in_nine_of_ten_records() -> None:
    luck, inside = Generator(PCG64(1)), []
    exposure = np.full(len(X), 12.0)
    for _ in range(300):
        fit = fit_poisson(
            X, names=NAMES, exposure=exposure, count=counts(luck, exposure * np.exp(X @ TRUE))
        )
        inside.append(np.abs(fit.coefficients - TRUE) <= 1.645 * fit.standard_errors)
    assert np.all(np.abs(np.mean(inside, axis=0) - 0.9) <= 0.045)


def test_without_covariates_it_is_the_mean_of_jeffreys_posterior() -> None:
    """That mean is (n + 1/2) / E, as in rates.py."""
    fit = fit_poisson(np.ones((3, 1)), names=["rate"], exposure=[1.0, 2.0, 3.0], count=[0, 2, 1])
    assert math.exp(fit.coefficients[0]) == pytest.approx(3.5 / 6)
    assert fit.standard_errors[0] == pytest.approx(1 / math.sqrt(3.5))


def test_the_score_with_firths_correction_is_zero() -> None:
    """Method: compute the equation in the head of the module from the fit."""
    luck = Generator(PCG64(2))
    exposure = 1 + 5 * luck.random(len(X))
    count = counts(luck, exposure * np.exp(X @ TRUE))
    fit = fit_poisson(X, names=NAMES, exposure=exposure, count=count)
    mean = exposure * np.exp(X @ fit.coefficients)
    leverage = np.diag(
        np.sqrt(mean)[:, None]
        * X
        @ np.linalg.inv(X.T @ (mean[:, None] * X))
        @ (X * np.sqrt(mean)[:, None]).T
    )
    assert X.T @ (count + leverage / 2 - mean) == pytest.approx(np.zeros(3), abs=1e-5)


def test_a_level_without_a_failure_keeps_a_finite_rate() -> None:
    x = np.array([[1.0, 0.0], [1.0, 1.0]])
    fit = fit_poisson(x, names=["one", "quiet"], exposure=[10.0, 10.0], count=[40, 0])
    # half a failure, as its own Gamma posterior has it
    assert fit.rate(x)[1] * 10 == pytest.approx(0.5, rel=1e-6)
    assert fit.rate(x)[0] * 10 == pytest.approx(40.5, rel=1e-6)


def test_what_the_exposure_cannot_tell_apart_is_named() -> None:
    x = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    with pytest.raises(UsageError, match="cannot tell what the other does"):
        fit_poisson(
            x, names=["one", "this", "the other"], exposure=[1.0, 1.0, 1.0], count=[1, 2, 3]
        )


def test_a_level_that_was_never_watched_cannot_be_told() -> None:
    x = np.array([[1.0, 0.0], [1.0, 1.0]])
    with pytest.raises(UsageError, match="cannot tell what unseen does"):
        fit_poisson(x, names=["one", "unseen"], exposure=[1.0, 0.0], count=[1, 0])


def test_cells_that_vary_together_need_the_sandwich() -> None:
    """Method: 40 months, each with a random factor that its cells share. The plain interval is too
    narrow, and that of the sandwich is not.
    """
    luck = Generator(PCG64(3))
    months = np.repeat(np.arange(40), 4)
    x = np.tile(np.array([[1.0, 0.0], [1.0, 1.0]] * 2), (40, 1))
    true, plain, sandwich = np.log([5.0, 2.0]), [], []
    for _ in range(200):
        shared = np.exp(0.6 * (np.sqrt(12) * (luck.random(40) - 0.5)))
        shared /= np.mean(np.exp(0.6 * np.sqrt(12) * (np.linspace(0, 1, 10_001) - 0.5)))
        count = counts(luck, np.exp(x @ true) * shared[months])
        for clusters, into in ((None, plain), (months, sandwich)):
            fit = fit_poisson(
                x, names=["one", "a"], exposure=np.ones(len(x)), count=count, clusters=clusters
            )
            into.append(abs(fit.coefficients[0] - true[0]) <= 1.645 * fit.standard_errors[0])
    assert np.mean(plain) < 0.7
    assert 0.82 <= np.mean(sandwich) <= 0.95


@pytest.mark.parametrize(
    ("exposure", "count", "said"),
    [
        ([-1.0, 1.0], [0, 1], "below 0"),
        ([1.0, math.nan], [0, 1], "below 0"),
        ([1.0, 1.0], [-1, 1], "below 0"),
        ([0.0, 1.0], [1, 1], "no exposure"),
    ],
)
def test_cells_that_cannot_be_are_refused(
    exposure: list[float], count: list[float], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        fit_poisson(np.ones((2, 1)), names=["one"], exposure=exposure, count=count)


def test_each_cell_has_one_of_each() -> None:
    with pytest.raises(UsageError, match="cells: "):
        fit_poisson(np.ones((2, 1)), names=["one"], exposure=[1.0], count=[1, 2])


# --- counts to come -------------------------------------------------------------------------------


@given(st.floats(1e-3, 500.0), st.floats(0.05, 1e5))
def test_probabilities_sum_to_one_and_have_the_mean(mean: float, size: float) -> None:
    one = predict([mean], size=size, reach=int(mean * (1 + 40 / min(size, 40.0))) + 200)
    assert one.probability.sum() == pytest.approx(1.0, abs=1e-4)
    assert (one.probability * np.arange(len(one.probability))).sum() == pytest.approx(
        mean, rel=2e-2, abs=1e-3
    )


@given(st.integers(0, 200), st.floats(0.1, 200.0), st.floats(0.1, 1e4))
def test_probabilities_by_ratios_are_those_of_the_formula(y: int, mean: float, size: float) -> None:
    assert predict([mean], size=size, reach=y).log_score(y) == pytest.approx(
        max(log_probability(y, mean, size), math.log(np.finfo(float).tiny)), abs=1e-6
    )


def test_an_endless_size_is_poisson() -> None:
    assert predict([3.0], size=math.inf).probability[:3] == pytest.approx(
        [math.exp(-3), 3 * math.exp(-3), 4.5 * math.exp(-3)]
    )
    assert log_probability(4, 3.0, math.inf) == pytest.approx(
        log_probability(4, 3.0, 1e6), abs=1e-5
    )


def test_a_gamma_rate_and_poisson_counts_are_a_negative_binomial() -> None:
    """Method: the mixture over quantiles of the Gamma (shape 1) is compared with size 1."""
    shares = (np.arange(4000) + 0.5) / 4000
    mixed = predict(-5.0 * np.log1p(-shares), size=math.inf)
    direct = predict([5.0], size=1.0)
    assert mixed.probability[:30] == pytest.approx(direct.probability[:30], abs=2e-4)


def test_the_spread_between_months_is_learnt() -> None:
    """Method: 200 months of counts whose means vary by a Gamma of shape 1 (size 1), and 200 that do
    not vary.
    """
    luck = Generator(PCG64(4))
    spread = counts(luck, -40.0 * np.log1p(-luck.random(200)))
    assert fit_size(spread, np.full(200, 40.0)) == pytest.approx(1.0, rel=0.25)
    assert fit_size(counts(luck, np.full(200, 40.0)), np.full(200, 40.0)) > 100
    assert fit_size(np.full(50, 7), np.full(50, 7.0)) == pytest.approx(SIZE_MAX, rel=0.01)


def test_the_predicted_interval_holds_nine_of_ten_months_to_come() -> None:
    """Method: learn from 60 months and predict the next 20, forty times. Counts are whole numbers,
    so the interval may hold a few more.
    """
    luck, inside = Generator(PCG64(5)), []
    for _ in range(40):
        months = counts(luck, -40.0 * np.log1p(-luck.random(80)))
        mean = float(months[:60].mean())
        one = predict([mean], size=fit_size(months[:60], np.full(60, mean)))
        inside += [one.quantile(0.05) <= month <= one.quantile(0.95) for month in months[60:]]
    assert 0.86 <= np.mean(inside) <= 0.94


def test_what_was_thought_impossible_scores_badly_and_not_endlessly() -> None:
    assert predict([1.0], size=math.inf).log_score(5000) == pytest.approx(
        math.log(np.finfo(float).tiny)
    )


def test_no_period_teaches_no_spread() -> None:
    with pytest.raises(UsageError, match="no period to learn"):
        fit_size([], [])
