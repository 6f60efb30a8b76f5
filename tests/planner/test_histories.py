"""Failures that are drawn ahead are the same in every batch. Their numbers, classes and times
follow the hazards.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.terms import FailureClass
from outlast.planner.histories import Luck, draw
from outlast.planner.scenario import Extent, FailureRate, Lemons, Repair, Scenario, Unit, Wave
from tests.planner.worlds import everything, node, process, scenarios, world

REPLICAS = 2048


def counts_until(
    scenario: Scenario, until_s: float, *, uncertain: bool = False, seed: int = 7
) -> np.ndarray:
    return np.asarray(
        (draw(scenario, seed=seed, replicas=REPLICAS, uncertain=uncertain).at_s <= until_s).sum(
            axis=1
        )
    )


def agrees(counts: np.ndarray, expected: float) -> None:
    """Assert that their mean agrees with a Poisson mean, within four standard errors."""
    assert counts.mean() == pytest.approx(expected, abs=4 * np.sqrt(expected / len(counts)))


@given(
    scenario=scenarios(waves=True),
    seed=st.integers(0, 99),
    first=st.integers(0, 600),
    count=st.integers(1, 300),
)
@settings(max_examples=15)
def test_a_replica_is_the_same_in_whatever_batch_it_is_drawn(
    scenario: Scenario, seed: int, first: int, count: int
) -> None:
    whole, part = (
        draw(scenario, seed=seed, replicas=900),
        draw(scenario, seed=seed, first=first, replicas=count),
    )
    failures = min(whole.at_s.shape[1], part.at_s.shape[1])
    here = slice(first, first + count)
    np.testing.assert_array_equal(whole.at_s[here, :failures], part.at_s[:, :failures])
    np.testing.assert_array_equal(whole.stream[here, :failures], part.stream[:, :failures])
    np.testing.assert_array_equal(
        whole.luck(Luck.REPAIR)[here, :failures], part.luck(Luck.REPAIR)[:, :failures]
    )
    np.testing.assert_array_equal(whole.lemons[here], part.lemons)
    assert np.isinf(whole.at_s[here, failures:]).all()
    assert np.isinf(part.at_s[:, failures:]).all()


def test_one_replica_taken_out_is_its_row() -> None:
    scenario = world(failures=(node(500.0), process(900.0)), lemons=Lemons(0.5, 3.0))
    drawn = draw(scenario, seed=3, first=250, replicas=20)
    for replica in (0, 5, 6, 19):
        one = drawn.one(replica)
        assert len(one.at_s) == np.isfinite(drawn.at_s[replica]).sum()
        np.testing.assert_array_equal(one.at_s, drawn.at_s[replica, : len(one.at_s)])
        np.testing.assert_array_equal(one.which, drawn.which[replica, : len(one.at_s)])
        np.testing.assert_array_equal(one.extra, drawn.extra[replica, : len(one.at_s)])
        for column in Luck:
            np.testing.assert_array_equal(
                one.luck[:, column], drawn.luck(column)[replica, : len(one.at_s)]
            )


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short = world(failures=(node(500.0),))
    long = replace(short, job=replace(short.job, duration_s=900.0))
    a, b = draw(short, seed=1, replicas=300), draw(long, seed=1, replicas=300)
    struck = np.isfinite(a.at_s)
    np.testing.assert_allclose(a.at_s[struck], b.at_s[:, : a.at_s.shape[1]][struck], rtol=1e-12)
    np.testing.assert_array_equal(
        a.luck(Luck.DETECT)[struck], b.luck(Luck.DETECT)[:, : a.at_s.shape[1]][struck]
    )


def test_luck_is_uniform_and_independent_between_purposes() -> None:
    drawn = draw(world(failures=(process(1.0),)), seed=5, replicas=1000)
    columns = [drawn.luck(column).ravel() for column in Luck]
    for u in columns:
        assert u.min() > 0
        assert u.max() < 1
        assert np.histogram(u, 20)[0] == pytest.approx(len(u) / 20, rel=0.03)
    assert np.abs(np.corrcoef(columns) - np.eye(len(Luck))).max() < 0.01


def test_failures_come_at_the_rate_of_their_units() -> None:
    """There are 4 nodes with 1 failure in 100 s each, and a run with 1 in 50 s, for 300 s. That
    makes 12 + 6 failures. They are Poisson, so the variance is the mean.
    """
    counts = counts_until(world(failures=(node(100.0), everything(50.0))), 300.0)
    agrees(counts, 18.0)
    assert counts.var() == pytest.approx(18.0, rel=0.12)
    drawn = draw(world(failures=(node(100.0), everything(50.0))), seed=2, replicas=REPLICAS)
    struck = np.isfinite(drawn.at_s)
    assert (drawn.which[struck] == 0).mean() == pytest.approx(2 / 3, abs=0.01)
    assert np.histogram(drawn.at_s[struck], 10, (0, 300))[0] == pytest.approx(
        struck.sum() / 10, rel=0.06
    )
    assert (np.diff(np.where(struck, drawn.at_s, 1e9)) >= 0).all()


def test_a_wave_multiplies_the_rate_of_its_class_while_it_lasts() -> None:
    wavy = replace(process(30.0), waves=(Wave(100.0, 150.0, 4.0), Wave(140.0, 200.0, 0.0)))
    scenario = world(failures=(wavy, everything(60.0)))
    drawn = draw(scenario, seed=2, replicas=REPLICAS)
    for which, low_s, high_s, expected in (
        (0, 0, 100, 100 / 30),
        (0, 100, 140, 160 / 30),
        (0, 140, 200, 0),
        (0, 200, 300, 100 / 30),
        (1, 100, 200, 100 / 60),
    ):
        agrees(
            ((drawn.at_s > low_s) & (drawn.at_s <= high_s) & (drawn.which == which)).sum(axis=1),
            expected,
        )


@pytest.mark.parametrize(
    ("shape", "age_s"), [(0.5, 0.0), (0.5, 1000.0), (3.0, 0.0), (3.0, 500.0), (1.5, 1.0)]
)
def test_a_weibull_hazard_is_that_of_units_of_this_age(shape: float, age_s: float) -> None:
    """Up to t, n (((age + t)/scale)^k - (age/scale)^k) failures are expected. That is checked at
    five times, besides a class with a constant rate.
    """
    aging = FailureRate(FailureClass.GPU, Unit.NODE, Extent.NODE, 400.0, shape=shape, age_s=age_s)
    scenario = world(failures=(everything(100.0), aging))
    drawn = draw(scenario, seed=4, replicas=REPLICAS)
    for until_s in (3.0, 30.0, 100.0, 200.0, 300.0):
        expected = 4 * (((age_s + until_s) / 400) ** shape - (age_s / 400) ** shape)
        agrees(((drawn.at_s <= until_s) & (drawn.which == 1)).sum(axis=1), expected)
        agrees(((drawn.at_s <= until_s) & (drawn.which == 0)).sum(axis=1), until_s / 100)


def test_rates_from_few_failures_spread_runs_further_than_chance() -> None:
    """The rate varies as Gamma(count + 1/2) / count, which has mean 1.05 and variance 0.105 at 10
    failures. So counts with mean 30 have the variance 31.5 + 0.105 x 30^2.
    """
    scenario = world(
        failures=(FailureRate(FailureClass.GPU, Unit.RUN, Extent.PROCESS, 10.0, count=10),)
    )
    counts = counts_until(scenario, 300.0, uncertain=True)
    assert counts.mean() == pytest.approx(31.5, abs=4 * np.sqrt((31.5 + 94.5) / REPLICAS))
    assert counts.var() == pytest.approx(126, rel=0.15)
    agrees(counts_until(scenario, 300.0), 30.0)


def test_lemons_fail_in_addition_to_the_usual_rate() -> None:
    """Of 4 nodes, half a lemon is expected, with factor 5 and up to 1 lemon in the bound. There are
    extra failures at 4 times the rate of one node. There are none of those that strike the whole
    run.
    """
    scenario = world(failures=(node(100.0), everything(100.0)), lemons=Lemons(0.125, 5.0))
    drawn = draw(scenario, seed=6, replicas=REPLICAS)
    agrees(drawn.lemons * 10, 5.0)
    struck = np.isfinite(drawn.at_s)
    agrees((struck & ~drawn.extra).sum(axis=1), 12.0 + 3.0)
    agrees((struck & drawn.extra).sum(axis=1), 12.0)
    assert set(drawn.which[struck & drawn.extra].tolist()) == {0}


def test_lemons_that_missed_repairs_may_add_are_reckoned_with() -> None:
    usual = world(failures=(node(100.0),), lemons=Lemons(0.25, 5.0))
    assert usual.lemons_bound == 1
    assert replace(usual, repair=Repair(missed=0.1)).lemons_bound == 4  # there are no more nodes


def test_no_failures_are_a_history_too() -> None:
    for failures in ((), (node(float("inf")),)):
        drawn = draw(world(failures=failures), seed=1, replicas=5)
        assert drawn.at_s.shape == (5, 0)
        assert len(drawn.one(4).at_s) == 0


def test_more_failures_than_memory_holds_are_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"fewer replicas"):
        draw(world(failures=(node(1e-6),)), seed=1, replicas=1000)
    with pytest.raises(UsageError, match=r"not negative"):
        draw(world(), seed=-1, replicas=1)
