"""planner/fit/weibull.py finds the laws of lifetimes that are drawn from known laws."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import PCG64, Generator

from outlast.errors import UsageError
from outlast.planner.fit.weibull import FEW, SHAPE_MAX, Lifetimes, decide_shape, fit_weibull


def drawn(
    luck: Generator, *, shape: float, scale_s: float, units: int, window_s: float, oldest_s: float
) -> Lifetimes:
    """Draw units of ages up to `oldest_s` at the start of the record. Each unit is watched until it
    fails or the record ends.
    """
    entry_s = luck.random(units) * oldest_s
    life_s = scale_s * ((entry_s / scale_s) ** shape - np.log1p(-luck.random(units))) ** (1 / shape)
    return Lifetimes.of(
        entry_s=entry_s,
        exit_s=np.minimum(life_s, entry_s + window_s),
        failed=life_s <= entry_s + window_s,
    )


def sets(shape: float, *, count: int, seed: int, units: int = 150) -> Iterator[Lifetimes]:
    luck = Generator(PCG64(seed))
    for _ in range(count):
        yield drawn(luck, shape=shape, scale_s=1000.0, units=units, window_s=700.0, oldest_s=1200.0)


def log_likelihood(lives: Lifetimes, shape: float, scale_s: float) -> float:
    """Return the log-likelihood as the law defines it, without the algebra of the module."""
    hazard = np.log(shape / scale_s) + (shape - 1) * np.log(lives.exit_s[lives.failed] / scale_s)
    return float(
        hazard.sum()
        - ((lives.exit_s / scale_s) ** shape - (lives.entry_s / scale_s) ** shape).sum()
    )


@pytest.mark.parametrize("shape", [0.6, 1.0, 2.5])
def test_the_interval_of_the_shape_holds_the_truth_in_nine_of_ten_records(shape: float) -> None:
    """Method: 400 records with known shape, left truncation and right censoring."""
    fits = [fit_weibull(lives) for lives in sets(shape, count=400, seed=int(shape * 10))]
    inside = np.mean([fit.shape_low <= shape <= fit.shape_high for fit in fits])
    assert 0.86 <= inside <= 0.94
    assert np.mean([fit.shape for fit in fits]) == pytest.approx(shape, rel=0.03)
    scales = np.array([math.log(fit.scale_s / 1000.0) / fit.log_scale_se for fit in fits])
    assert 0.86 <= np.mean(np.abs(scales) <= 1.645) <= 0.94


def test_without_the_age_at_which_watching_began_the_shape_is_wrong() -> None:
    """Method: the same records with all entries at age 0, as if each unit had been watched from its
    start.
    """
    true, naive = [], []
    for lives in sets(2.5, count=60, seed=4):
        true.append(fit_weibull(lives).shape)
        naive.append(
            fit_weibull(Lifetimes(np.zeros_like(lives.entry_s), lives.exit_s, lives.failed)).shape
        )
    error = np.std(true) / math.sqrt(len(true))
    assert abs(np.mean(true) - 2.5) < 4 * error
    assert abs(np.mean(naive) - 2.5) > 10 * error


def test_without_the_units_that_did_not_fail_the_scale_is_wrong() -> None:
    true, naive = [], []
    for lives in sets(1.0, count=60, seed=5):
        true.append(fit_weibull(lives).scale_s)
        some = lives.failed
        naive.append(
            fit_weibull(
                Lifetimes(lives.entry_s[some], lives.exit_s[some], lives.failed[some])
            ).scale_s
        )
    assert np.median(true) == pytest.approx(1000.0, rel=0.1)
    assert np.median(naive) < 500.0


def test_a_constant_rate_is_refuted_in_one_of_twenty_records_that_have_one() -> None:
    verdicts = [decide_shape(lives) for lives in sets(1.0, count=600, seed=6, units=100)]
    assert 0.03 <= np.mean([one.varies for one in verdicts]) <= 0.075
    assert all("not refuted" in one.reason for one in verdicts if not one.varies)


@pytest.mark.parametrize(("shape", "word"), [(0.5, "falls"), (3.0, "rises")])
def test_a_rate_that_changes_is_found_and_said(shape: float, word: str) -> None:
    luck = Generator(PCG64(7))
    for _ in range(20):
        verdict = decide_shape(
            drawn(luck, shape=shape, scale_s=1000.0, units=200, window_s=2000.0, oldest_s=100.0)
        )
        assert verdict.varies
        assert word in verdict.reason


def test_nothing_is_likelier_than_the_fit() -> None:
    """Method: the plain likelihood on a grid around the fit."""
    for lives in sets(1.7, count=5, seed=8):
        fit = fit_weibull(lives)
        best = log_likelihood(lives, fit.shape, fit.scale_s)
        around = [
            log_likelihood(lives, fit.shape * a, fit.scale_s * b)
            for a in np.linspace(0.8, 1.25, 31)
            for b in np.linspace(0.8, 1.25, 31)
        ]
        assert best >= max(around)


def test_standard_errors_are_those_of_the_curvature() -> None:
    """Method: second differences of the plain likelihood in (shape, ln scale), inverted."""
    [lives] = sets(1.7, count=1, seed=9)
    fit = fit_weibull(lives)
    step = np.array([1e-3, 1e-3])

    def at(a: int, b: int) -> float:
        return log_likelihood(lives, fit.shape + a * step[0], fit.scale_s * math.exp(b * step[1]))

    both = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / (4 * step[0] * step[1])
    curved = [
        (at(1, 0) - 2 * at(0, 0) + at(-1, 0)) / step[0] ** 2,
        (at(0, 1) - 2 * at(0, 0) + at(0, -1)) / step[1] ** 2,
    ]
    covariance = np.linalg.inv(-np.array([[curved[0], both], [both, curved[1]]]))
    assert [fit.shape_se, fit.log_scale_se] == pytest.approx(np.sqrt(np.diag(covariance)), rel=1e-3)


def test_a_unit_that_is_mended_and_goes_on_keeps_its_age() -> None:
    """Method: power-law processes. Each of 60 units fails several times. After a repair it has the
    same age as before.
    """
    luck = Generator(PCG64(10))
    entry, exit_, failed = [], [], []
    for _ in range(60):
        total = np.cumsum(-np.log1p(-luck.random(40)))
        ages = 300.0 * total ** (1 / 2.0)
        cuts = [0.0, *ages[ages < 900.0], 900.0]
        entry += cuts[:-1]
        exit_ += cuts[1:]
        failed += [*[True] * (len(cuts) - 2), False]
    fit = fit_weibull(Lifetimes.of(entry_s=entry, exit_s=exit_, failed=failed))
    assert fit.shape_low <= 2.0 <= fit.shape_high
    assert fit.shape_high - fit.shape_low < 0.4


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-6, 1e12), st.integers(0, 1000))
def test_the_unit_of_time_changes_nothing_but_the_scale(unit: float, seed: int) -> None:
    [lives] = sets(1.5, count=1, seed=seed, units=60)
    plain = fit_weibull(lives)
    other = fit_weibull(Lifetimes(lives.entry_s * unit, lives.exit_s * unit, lives.failed))
    assert other.shape == pytest.approx(plain.shape, rel=1e-6)
    assert other.scale_s == pytest.approx(plain.scale_s * unit, rel=1e-6)


def test_few_failures_tell_no_shape() -> None:
    lives = Lifetimes.of(
        entry_s=[0.0] * 50,
        exit_s=np.arange(1.0, 51.0),
        failed=[True] * (FEW - 1) + [False] * (51 - FEW),
    )
    verdict = decide_shape(lives)
    assert (verdict.fit, verdict.varies) == (None, False)
    assert f"{FEW - 1} failures cannot tell" in verdict.reason


def test_failures_all_at_the_greatest_age_have_no_shape() -> None:
    lives = Lifetimes.of(entry_s=[0.0] * 9, exit_s=[5.0] * 9, failed=[True] * 9)
    assert "no shape fits" in decide_shape(lives).reason
    with pytest.raises(UsageError, match="no shape is the most likely"):
        fit_weibull(lives)


def test_a_shape_at_the_edge_is_no_weibull_law() -> None:
    """All failures come within a thousandth of one age, among units that live on. That is steeper
    than any shape in the searched range.
    """
    exits = [*(1000.0 + np.arange(10) * 1e-3), *[1000.02] * 10]
    verdict = decide_shape(
        Lifetimes.of(entry_s=[0.0] * 20, exit_s=exits, failed=[True] * 10 + [False] * 10)
    )
    assert verdict.fit is not None
    assert verdict.fit.shape == pytest.approx(SHAPE_MAX)
    assert not verdict.varies
    assert "not a Weibull law" in verdict.reason


def test_no_failure_is_an_error_that_says_what_there_is() -> None:
    with pytest.raises(UsageError, match="no failure was seen"):
        fit_weibull(Lifetimes.of(entry_s=[0.0], exit_s=[1.0], failed=[False]))


@pytest.mark.parametrize(
    ("entry", "exit_"),
    [
        ([-1.0], [1.0]),
        ([2.0], [1.0]),
        ([0.0], [math.nan]),
        ([0.0], [math.inf]),
        ([math.nan], [1.0]),
    ],
)
def test_ages_that_cannot_be_are_refused(entry: list[float], exit_: list[float]) -> None:
    with pytest.raises(UsageError, match="stretch 1 of life"):
        Lifetimes.of(entry_s=entry, exit_s=exit_, failed=[True])


def test_as_many_beginnings_as_ends() -> None:
    with pytest.raises(UsageError, match="numbers of entry ages"):
        Lifetimes.of(entry_s=[0.0], exit_s=[1.0, 2.0], failed=[True, False])
