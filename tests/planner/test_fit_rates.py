"""planner/fit/rates.py: intervals hold the truth, bounds are never zero, and clusters of failures
and effects of size are found.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from numpy.random import PCG64, Generator

from outlast.errors import UsageError
from outlast.model.terms import FailureClass
from outlast.planner.fit.observed import EXTENT_OF, UNIT_OF, Observed, ObservedFailure
from outlast.planner.fit.rates import (
    bound_per_s,
    class_rate,
    class_rates,
    decide_clumped,
    decide_scale,
    unseen_rates,
)
from outlast.planner.scenario import Extent, Unit

DAY_S = 86_400.0


def poisson(luck: Generator, mean: float) -> int:
    """Draw Poisson counts by arrivals, so that only uniform numbers are drawn."""
    count, at = 0, -math.log1p(-luck.random())
    while at < mean:
        count, at = count + 1, at - math.log1p(-luck.random())
    return count


def record(
    *failures: ObservedFailure,
    ranks: int = 8,
    days: float = 10.0,
    nodes: int = 1,
    source: str = "a",
) -> Observed:
    span_s = days * DAY_S
    exposure_s = {Unit.GPU: ranks * span_s, Unit.NODE: nodes * span_s, Unit.RUN: span_s}
    return Observed(source, failures, exposure_s, span_s)


def gpu(at_s: float = 1.0, extent: Extent = Extent.PROCESS) -> ObservedFailure:
    return ObservedFailure(at_s, FailureClass.GPU, extent)


@pytest.mark.parametrize("mean", [1.0, 3.0, 10.0, 60.0])
def test_the_interval_of_a_rate_holds_the_truth_in_nine_of_ten_records(mean: float) -> None:
    """Method: 1,500 Poisson counts of one known mean. Counts are whole numbers, so the coverage is
    near 90 % and not equal to it.
    """
    luck = Generator(PCG64(int(mean)))
    seen = Counter(poisson(luck, mean) for _ in range(1500))
    rates = {
        count: class_rate(FailureClass.GPU, Unit.GPU, Extent.NODE, count=count, exposure_s=100.0)
        for count in seen
    }
    inside = (
        sum(
            times
            for count, times in seen.items()
            if rates[count].low_per_s <= mean / 100.0 <= rates[count].high_per_s
        )
        / 1500
    )
    assert 0.84 <= inside <= 0.965


def test_what_never_struck_has_a_bound_and_no_rate() -> None:
    """1.92 / E is the 95 % point of Gamma(1/2, E): a chi-square with one degree of freedom, halved,
    so 1.959964^2 / 2.
    """
    rate = class_rate(FailureClass.GPU, Unit.GPU, Extent.NODE, count=0, exposure_s=50.0)
    assert (rate.rate_per_s, rate.mttf_s, rate.low_per_s) == (None, None, 0.0)
    assert rate.high_per_s == pytest.approx(1.959964**2 / 2 / 50.0, rel=1e-6)
    assert bound_per_s(50.0) == rate.high_per_s
    with pytest.raises(UsageError, match="no failure of class gpu was seen"):
        rate.scenario_rate()


def test_a_rate_goes_into_a_scenario_with_its_count() -> None:
    law = class_rate(
        FailureClass.HBM, Unit.GPU, Extent.NODE, count=4, exposure_s=100.0, source="x"
    ).scenario_rate()
    assert (law.failure_class, law.unit, law.extent, law.mttf_s, law.count, law.source) == (
        FailureClass.HBM,
        Unit.GPU,
        Extent.NODE,
        25.0,
        4.0,
        "x",
    )


@pytest.mark.parametrize("exposure_s", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_needs_exposure(exposure_s: float) -> None:
    with pytest.raises(UsageError, match="watched gpus for"):
        class_rate(FailureClass.GPU, Unit.GPU, Extent.NODE, count=1, exposure_s=exposure_s)


def test_records_are_taken_together_class_by_class_and_extent_by_extent() -> None:
    user = ObservedFailure(5.0, FailureClass.USER_CODE, Extent.PROCESS)
    rates = class_rates(
        [
            record(gpu(), gpu(), user),
            record(gpu(), gpu(extent=Extent.NODE), days=5.0, ranks=4, source="b"),
        ]
    )
    assert [(one.failure_class, one.extent, one.count, one.unit) for one in rates] == [
        (FailureClass.GPU, Extent.PROCESS, 3, Unit.GPU),
        (FailureClass.GPU, Extent.NODE, 1, Unit.GPU),
        (FailureClass.USER_CODE, Extent.PROCESS, 1, Unit.RUN),
    ]
    assert rates[0].exposure_s == pytest.approx((8 * 10 + 4 * 5) * DAY_S)
    assert rates[2].exposure_s == pytest.approx(15 * DAY_S)
    assert rates[0].source == "a, b"


def test_records_that_watched_different_things_are_not_taken_together() -> None:
    nodes_only = Observed("table", (gpu(),), {Unit.NODE: 5.0}, 5.0)
    with pytest.raises(UsageError, match="watched different things: gpu, node"):
        class_rates([record(gpu()), nodes_only])


def test_the_loss_of_a_run_is_counted_by_runs_whatever_its_class() -> None:
    [rate] = class_rates([record(ObservedFailure(1.0, FailureClass.UNKNOWN, Extent.RUN))])
    assert rate.unit is Unit.RUN


def test_bounds_are_of_what_was_not_seen() -> None:
    assert [(one.unit, one.extent, one.count) for one in unseen_rates([record()])] == [
        (Unit.GPU, Extent.PROCESS, 0),
        (Unit.NODE, Extent.NODE, 0),
    ]
    assert [(one.unit, one.extent) for one in unseen_rates([record(gpu())])] == [
        (Unit.NODE, Extent.NODE)
    ]
    assert unseen_rates([record(gpu(extent=Extent.NODE))]) == ()


def test_every_class_has_a_unit_and_an_extent() -> None:
    assert set(UNIT_OF) == set(EXTENT_OF) == set(FailureClass)


# --- waves and sizes ------------------------------------------------------------------------------


def at_random(luck: Generator, count: int, *, days: float = 10.0) -> Observed:
    return record(*(gpu(float(share) * days * DAY_S) for share in luck.random(count)), days=days)


def test_failures_at_random_are_hardly_ever_called_clumped() -> None:
    luck = Generator(PCG64(1))
    assert np.mean([decide_clumped(at_random(luck, 60)).clumped for _ in range(500)]) <= 0.03


def test_a_wave_is_seen() -> None:
    """In the last fifth of the record, as many failures are added as the whole record has
    otherwise.
    """
    luck = Generator(PCG64(2))
    for _ in range(20):
        late = [gpu((0.8 + 0.2 * float(share)) * 10 * DAY_S) for share in luck.random(60)]
        verdict = decide_clumped(record(*late, *at_random(luck, 60).failures))
        assert verdict.clumped
        assert "waves or clumps" in verdict.reason


def test_few_failures_say_nothing_of_waves() -> None:
    verdict = decide_clumped(record(gpu(), gpu()))
    assert (verdict.clumped, verdict.ratio) == (False, None)
    assert "2 failures are too few" in verdict.reason


def test_whether_ranks_add_their_share_is_told_from_runs_of_two_sizes() -> None:
    """Method: failures of runs of 8 and of 64 ranks, drawn in proportion to the ranks, and drawn
    alike.
    """
    luck = Generator(PCG64(3))
    share = [record(*[gpu()] * poisson(luck, ranks * 2.0), ranks=ranks) for ranks in (8, 64)]
    alike = [record(*[gpu()] * poisson(luck, 60.0), ranks=ranks) for ranks in (8, 64)]
    told, not_told = decide_scale(share), decide_scale(alike)
    assert told.low is not None
    assert told.high is not None
    assert told.low <= 1 <= told.high
    assert "each rank adds its share" in told.reason
    assert "ranks do not matter" in not_told.reason


def test_the_interval_of_the_power_covers_the_truth() -> None:
    luck = Generator(PCG64(4))
    inside = 0
    for _ in range(300):
        verdict = decide_scale(
            [record(*[gpu()] * poisson(luck, ranks * 1.0), ranks=ranks) for ranks in (8, 40)]
        )
        assert verdict.low is not None
        assert verdict.high is not None
        inside += verdict.low <= 1 <= verdict.high
    assert 0.86 <= inside / 300 <= 0.95


def test_one_size_cannot_tell() -> None:
    verdict = decide_scale([record(gpu()), record(gpu(), gpu())])
    assert verdict.slope is None
    assert "one world size only (8 ranks)" in verdict.reason


def test_sizes_with_few_failures_cannot_tell_either() -> None:
    assert (
        "cannot tell whether"
        in decide_scale([record(gpu(), ranks=8), record(gpu(), gpu(), ranks=16)]).reason
    )
