"""model/reliability.py: rates add up. Meta's expectation is within its stated error of the exact
cost. Spares and credible bounds agree with plain sums.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.intervals import efficiency, young_s
from outlast.model.reliability import (
    Part,
    ettr_interval_s,
    expected_ettr,
    mttf_of_parts_s,
    mttf_s,
    rate_interval_per_s,
    rate_quantile_per_s,
    spares_poisson,
)

HOUR_S, DAY_S = 3600.0, 86_400.0
GPU_MTTF_S = 50_000 * HOUR_S


# --- MTTF -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "minutes"), [(16_384, 183.1), (100_000, 30.0), (1_000_000, 3.0)])
def test_a_run_fails_as_often_as_its_parts_together(gpus: int, minutes: float) -> None:
    assert mttf_s(gpus, GPU_MTTF_S) / 60 == pytest.approx(minutes, abs=0.05)


def test_the_rates_of_classes_add_up() -> None:
    """419 interruptions in 54 days are split by class and summed again."""
    counts = [148, 72, 54, 35, 32, 19, 17, 7, 7, 6, 6, 3, 3, 2, 2, 2, 2, 2]
    parts = [Part(16_384, 54 * DAY_S * 16_384 / count) for count in counts]
    assert mttf_of_parts_s(parts) == pytest.approx(54 * DAY_S / 419)
    assert mttf_of_parts_s([Part(8, 100.0), Part(2, 50.0), Part(1000, math.inf)]) == pytest.approx(
        1 / (0.08 + 0.04)
    )


def test_what_never_fails_has_no_end() -> None:
    assert mttf_s(0, 10.0) == mttf_s(10, math.inf) == mttf_of_parts_s([]) == math.inf


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0])
def test_an_mttf_that_cannot_be_is_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="unit_mttf_s"):
        mttf_s(8, bad)


# --- Meta's ETTR ----------------------------------------------------------------------------------


@given(interval=st.floats(1e-5, 0.6), save=st.floats(0, 1), restart=st.floats(0, 0.3))
@example(interval=0.6, save=1.0, restart=0.0)
@example(interval=1e-5, save=1.0, restart=0.3)
def test_metas_expectation_is_within_its_stated_error_of_the_exact_cost(
    interval: float, save: float, restart: float
) -> None:
    q = restart + interval / 2
    if q <= 0.3:
        meta = expected_ettr(
            mttf_s=1.0, interval_s=interval, save_s=save * interval, restart_s=restart
        )
        assert (
            abs(meta - efficiency(interval, save * interval, 1.0, restart))
            <= q * q + save * interval / 2 + 1e-14
        )


def test_metas_expectation_is_zero_where_restarts_are_too_slow() -> None:
    assert expected_ettr(mttf_s=60.0, interval_s=60.0, save_s=1.0, restart_s=300.0) == 0.0
    assert expected_ettr(
        mttf_s=math.inf, interval_s=90.0, save_s=10.0, restart_s=300.0
    ) == pytest.approx(0.9)


@given(save=st.floats(0, 1e6), mttf=st.floats(1e-6, 1e9))
def test_metas_interval_is_youngs(save: float, mttf: float) -> None:
    assert ettr_interval_s(mttf_s=mttf, save_s=save) == young_s(save, mttf)


# --- spares ---------------------------------------------------------------------------------------


def poisson_at_most(most: int, mean: float) -> float:
    return math.fsum(
        math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) for j in range(most + 1)
    )


@given(
    mean=st.floats(0.001, 400), availability=st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 0.99999])
)
def test_poisson_spares_suffice_and_one_less_does_not(mean: float, availability: float) -> None:
    """The check is a plain sum. A level that a sum meets up to the last digit is not checked."""
    spares = spares_poisson(down_mean=mean, availability=availability)
    assert poisson_at_most(spares, mean) >= availability - 1e-10
    assert spares == 0 or poisson_at_most(spares - 1, mean) < availability + 1e-10


SPARES = [
    (16_384, 24, 18),
    (16_384, 72, 40),
    (16_384, 168, 79),
    (100_000, 24, 71),
    (100_000, 72, 182),
    (100_000, 168, 394),
    (1_000_000, 24, 549),
]


@pytest.mark.parametrize(("gpus", "repair_h", "spares"), SPARES)
def test_spares_for_three_nines_at_one_failure_in_50_000_gpu_hours(
    gpus: int, repair_h: int, spares: int
) -> None:
    """Every failure takes a node out of the run for the repair."""
    assert (
        spares_poisson(down_mean=gpus / GPU_MTTF_S * repair_h * HOUR_S, availability=0.999)
        == spares
    )


def test_no_failures_need_no_spares_and_certainty_cannot_be_had() -> None:
    assert spares_poisson(down_mean=0.0, availability=0.999) == 0
    for availability in (1.0, 1.1, math.nan):
        with pytest.raises(UsageError, match="availability"):
            spares_poisson(down_mean=1.0, availability=availability)


def test_spares_of_a_very_large_run_are_found_too() -> None:
    """The mean is 3.36 million nodes in repair. The normal distribution gives the same number up to
    a few.
    """
    mean = 1e9 / 50_000 * 168
    assert spares_poisson(down_mean=mean, availability=0.999) == pytest.approx(
        mean + 3.0902 * math.sqrt(mean), abs=3
    )


# --- rates ----------------------------------------------------------------------------------------


def test_no_failure_yet_is_a_bound_and_not_zero() -> None:
    """The bound is half of the 95 % point of chi-square with one degree of freedom, 3.8415. That is
    1.92 failures in the exposure.
    """
    assert rate_quantile_per_s(0.95, failures=0, exposure_s=1000.0) == pytest.approx(
        3.841458820694124 / 2 / 1000, rel=1e-12
    )
    low, high = rate_interval_per_s(failures=0, exposure_s=1000.0)
    assert 0 < low < high


def test_the_credible_interval_of_many_failures_is_near_the_normal_one() -> None:
    low, high = rate_interval_per_s(failures=419, exposure_s=54 * DAY_S)
    assert low * 54 * DAY_S == pytest.approx(386.388622434276259, rel=1e-12)
    assert high * 54 * DAY_S == pytest.approx(419.5 + 1.645 * math.sqrt(419.5), rel=0.002)


@given(failures=st.integers(0, 10_000), exposure=st.floats(1e-3, 1e12), level=st.floats(0.01, 0.99))
def test_more_certainty_is_a_wider_interval_around_the_median(
    failures: int, exposure: float, level: float
) -> None:
    low, high = rate_interval_per_s(failures=failures, exposure_s=exposure, level=level)
    wider = rate_interval_per_s(failures=failures, exposure_s=exposure, level=(1 + level) / 2)
    assert (
        wider[0]
        < low
        < rate_quantile_per_s(0.5, failures=failures, exposure_s=exposure)
        < high
        < wider[1]
    )


@pytest.mark.parametrize(
    ("failures", "exposure_s", "chance"),
    [
        (-1, 1.0, 0.5),
        (1, 0.0, 0.5),
        (1, math.nan, 0.5),
        (1, 1.0, 0.0),
        (1, 1.0, 1.0),
        (1, 1.0, math.nan),
    ],
)
def test_a_rate_without_exposure_or_chance_is_refused(
    failures: float, exposure_s: float, chance: float
) -> None:
    with pytest.raises(UsageError):
        rate_quantile_per_s(chance, failures=failures, exposure_s=exposure_s)
