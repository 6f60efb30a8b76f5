"""Monte Carlo computes the same runs as `course.live` computes one by one, and its statistics of
them are right.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.terms import Cause, FailureClass
from outlast.model.time_units import DAY_S
from outlast.planner import monte_carlo
from outlast.planner.histories import Histories, draw
from outlast.planner.monte_carlo import Estimate, estimate
from outlast.planner.runs import run
from outlast.planner.scenario import (
    Extent,
    FailureRate,
    Lemons,
    Recovery,
    Repair,
    Scenario,
    ScenarioTier,
    Stragglers,
    Unit,
)
from outlast.planner.spread import constant, exponential, lognormal
from outlast.planner.stops import run_with_stops
from tests.planner.course import Phase, live
from tests.planner.worlds import (
    everything,
    node,
    plain_scenarios,
    process,
    rack,
    recovery,
    scenarios,
    tier,
    world,
)


def agree(scenario: Scenario, histories: Histories) -> None:
    """Assert that both agree in all results, replica by replica."""
    outcomes = run(scenario, histories)
    near = {"rtol": 1e-6, "atol": 1e-6 * scenario.job.duration_s}
    for replica in range(histories.replicas):
        course = live(scenario, histories.one(replica))
        assert outcomes.interruptions[replica] == len(course.interruptions)
        for cause in Cause:
            np.testing.assert_allclose(
                outcomes.seconds[cause][replica], course.seconds[cause], err_msg=cause.value, **near
            )
        np.testing.assert_allclose(outcomes.position_s[replica], course.position_s, **near)
        waits = [one.spent_s[Phase.WAIT] for one in course.interruptions]
        np.testing.assert_allclose(outcomes.wait_s[replica], sum(waits), **near)
        assert outcomes.waits[replica] == sum(wait > 0 for wait in waits)
        for index, rate in enumerate(scenario.failures):
            cost_s = sum(
                one.cost_s
                for one in course.interruptions
                if one.failure_class is rate.failure_class
            )
            np.testing.assert_allclose(outcomes.lost_s[replica, index], cost_s, **near)
        assert outcomes.beyond_bound[replica] == course.lemons_beyond_bound


@pytest.mark.drill
@given(scenario=scenarios(waves=True), seed=st.integers(0, 10_000))
@settings(max_examples=25)
def test_each_replica_is_the_run_that_the_definition_says(scenario: Scenario, seed: int) -> None:
    agree(scenario, draw(scenario, seed=seed, replicas=5))


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(scenario=scenarios(waves=True), seed=st.integers(0, 10_000))
@settings(max_examples=600)
def test_each_of_many_replicas_is_the_run_that_the_definition_says(
    scenario: Scenario, seed: int
) -> None:
    agree(scenario, draw(scenario, seed=seed, replicas=5))


@given(scenario=plain_scenarios(), seed=st.integers(0, 10_000))
@settings(max_examples=40)
def test_the_simplest_scenarios_are_the_runs_of_the_definition(
    scenario: Scenario, seed: int
) -> None:
    """These scenarios have one class of failures, one tier and fixed durations. Few of the
    scenarios above are so simple.
    """
    agree(scenario, draw(scenario, seed=seed, replicas=4))


@given(scenario=scenarios(waves=True), seed=st.integers(0, 10_000))
@settings(max_examples=10)
def test_failures_after_the_end_of_a_run_do_not_count(scenario: Scenario, seed: int) -> None:
    """This bug was found by hand: the failures of the second half were counted too. So a plan said
    that a run fails each 4 s, and 0 times in all.
    """
    histories = draw(scenario, seed=seed, replicas=4)
    duration_s = scenario.job.duration_s / 2
    agree(replace(scenario, job=replace(scenario.job, duration_s=duration_s)), histories)


@pytest.mark.drill
@given(scenario=scenarios(waves=True), seed=st.integers(0, 10_000))
@settings(max_examples=25)
def test_stops_last_from_a_failure_until_training_goes_on(scenario: Scenario, seed: int) -> None:
    """Method: take the interruptions of the definition, and join those that strike during a
    recovery with it. The results of the runs are those of `run`.
    """
    histories = draw(scenario, seed=seed, replicas=5)
    outcomes, stops = run_with_stops(scenario, histories)
    np.testing.assert_array_equal(outcomes.position_s, run(scenario, histories).position_s)
    for replica in range(histories.replicas):
        expected: list[tuple[float, float]] = []
        begin_s: float | None = None
        for one in live(scenario, histories.one(replica)).interruptions:
            begin_s = one.at_s if begin_s is None else begin_s
            if one.resumed_s is not None:
                expected.append((begin_s, one.resumed_s))
                begin_s = None
        if begin_s is not None:
            expected.append((begin_s, math.inf))
        found = [
            (one.begin_s, math.inf if one.end_s is None else one.end_s) for one in stops[replica]
        ]
        np.testing.assert_allclose(
            np.reshape(found, (-1, 2)), np.reshape(expected, (-1, 2)), rtol=1e-9, atol=1e-6
        )


def test_a_run_of_a_large_cluster_is_the_one_that_the_definition_says() -> None:
    """One run has the intended size: 16,384 GPUs for two days. All of it is compared."""
    failures = (
        FailureRate(FailureClass.GPU, Unit.GPU, Extent.NODE, 3e7, count=250),
        FailureRate(FailureClass.NETWORK, Unit.GPU, Extent.RACK, 5e8, count=30),
        FailureRate(FailureClass.SOFTWARE_BUG, Unit.GPU, Extent.PROCESS, 4e8),
        FailureRate(FailureClass.DEPENDENCY, Unit.RUN, Extent.RUN, 2e5),
    )
    tiers = (
        ScenarioTier("vault", 60.0, 0.05, 0.0, Extent.PROCESS, constant(3.0)),
        ScenarioTier("peers", 300.0, 0.5, 5.0, Extent.NODE, constant(20.0)),
        ScenarioTier("store", 1800.0, 3.0, 300.0, Extent.RUN, lognormal(120.0, 300.0)),
    )
    big = world(duration_s=2 * DAY_S, gpus=16_384, failures=failures, tiers=tiers, step_s=6.0)
    big = replace(
        big, recovery=Recovery(lognormal(30.0, 120.0), lognormal(60.0, 200.0), constant(60.0))
    )
    big = replace(
        big,
        repair=Repair(12, lognormal(DAY_S / 2, 2 * DAY_S), wrong=0.05, missed=0.05),
        lemons=Lemons(0.005, 10.0, 0.5),
    )
    for shrinks in (False, True):
        agree(
            replace(big, recovery=replace(big.recovery, shrinks=shrinks)),
            draw(big, seed=1, first=300, replicas=2),
        )


# --- against what is known exactly ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("mttf_s", "interval_s", "stall_s", "restart_s"),
    [
        (1_000.0, 100.0, 10.0, 50.0),
        (1_000.0, 400.0, 40.0, 300.0),
        (1_000.0, 1_500.0, 300.0, 100.0),
        (1_000.0, 60.0, 0.5, 2_000.0),
    ],
)
def test_the_mean_is_what_daly_says_exactly(
    mttf_s: float, interval_s: float, stall_s: float, restart_s: float
) -> None:
    """Daly's formula is tau / (M e^(R/M) (e^((tau + delta)/M) - 1)). It holds for exponential
    failures, one tier, and a restart that starts over when it fails.

    The simulation agrees within 4 standard errors and 1e-3. The runs are 1,000 MTTFs long, so their
    beginnings and ends cost less than an interval.
    """
    failures_s, replicas = 1_000 * mttf_s, 256
    disk = tier("disk", interval_s, stall_s=stall_s, restore_s=restart_s)
    daly = world(
        duration_s=failures_s,
        gpus=1,
        failures=(process(mttf_s),),
        tiers=(disk,),
        recovers=recovery(0.0, 0.0),
    )
    outcomes = run(daly, draw(daly, seed=3, replicas=replicas))
    ettr = outcomes.position_s / failures_s
    exactly = interval_s / (
        mttf_s * math.exp(restart_s / mttf_s) * math.expm1((interval_s + stall_s) / mttf_s)
    )
    error = float(ettr.std(ddof=1)) / math.sqrt(replicas)
    assert abs(ettr.mean() - exactly) < 4 * error + interval_s / failures_s
    assert abs(ettr.mean() - exactly) < 1e-3


def test_a_run_waits_as_often_as_nodes_in_repair_exceed_its_spares() -> None:
    """Losses come at 1 in 100 s, repairs take 250 s, and there are 5 spares. When a node is lost,
    the number of others in repair is Poisson(2.5). The run waits if 5 or more are in repair (11 %).
    The test also counts that from the times of the failures alone.
    """
    waiting = world(
        duration_s=20_000.0,
        gpus=48,
        failures=(node(600.0),),
        tiers=(tier("peers", 1.0),),
        recovers=recovery(0.0, 0.0),
    )
    waiting = replace(waiting, repair=Repair(5, constant(250.0)))
    histories = draw(waiting, seed=1, replicas=100)
    outcomes = run(waiting, histories)
    short = sum(
        int(np.sum((row > at_s - 250.0) & (row <= at_s)) > 5)
        for row in histories.at_s
        for at_s in row[np.isfinite(row)]
    )
    assert outcomes.waits.sum() == short
    beyond = 1 - sum(math.exp(-2.5) * 2.5**k / math.factorial(k) for k in range(5))
    assert short / outcomes.interruptions.sum() == pytest.approx(beyond, rel=0.05)


# --- estimates ------------------------------------------------------------------------------------


def finite(told: Estimate) -> None:
    values = asdict(told)
    numbers = [
        *values.pop("seconds").values(),
        *values.pop("lost_s").values(),
        *(value for value in values.values() if isinstance(value, float)),
    ]
    assert all(math.isfinite(number) and number >= 0 for number in numbers), told
    assert sum(told.seconds.values()) == pytest.approx(told.duration_s)
    assert (
        told.ettr_low <= told.ettr_mean <= told.ettr_high or told.ettr_high - told.ettr_low < 1e-3
    )


SMALL = world(
    duration_s=20_000.0,
    failures=(node(4_000.0), process(3_000.0), rack(9_000.0)),
    tiers=(
        tier("peers", 10.0, stall_s=0.1, survives=Extent.NODE),
        tier("disk", 100.0, stall_s=5.0, write_s=20.0),
    ),
    repair=Repair(2, exponential(500.0)),
)


def test_an_estimate_says_mean_error_and_how_far_one_run_may_be_from_it() -> None:
    """The estimate is compared with the outcomes from which it is made."""
    told = estimate(SMALL, seed=5, replicas=600)
    outcomes = run(SMALL, draw(SMALL, seed=5, replicas=600))
    ettr = outcomes.position_s / 20_000.0
    assert told.ettr_mean == pytest.approx(ettr.mean())
    assert told.ettr_mean_se == pytest.approx(ettr.std(ddof=1) / math.sqrt(600))
    assert (told.ettr_low, told.ettr_high) == pytest.approx(
        np.quantile(ettr, [0.05, 0.95]).tolist()
    )
    assert told.lost_s[FailureClass.NETWORK] == pytest.approx(outcomes.lost_s[:, 2].mean())
    assert told.mttf_s == pytest.approx(20_000.0 / outcomes.interruptions.mean())
    assert told.wait_s == pytest.approx(outcomes.wait_s.mean())
    assert told.remarks == ()
    finite(told)


def test_an_estimate_does_not_depend_on_how_replicas_are_batched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = estimate(SMALL, seed=5, replicas=700)
    monkeypatch.setattr(monte_carlo, "BATCH_REPLICAS", 256)
    parts = estimate(SMALL, seed=5, replicas=700)
    assert parts.ettr_mean == pytest.approx(whole.ettr_mean, rel=1e-12)
    assert parts.seconds == pytest.approx(whole.seconds)
    assert parts.lost_s == pytest.approx(whole.lost_s)
    assert (parts.ettr_low, parts.interruptions_high) == pytest.approx(
        (whole.ettr_low, whole.interruptions_high)
    )


def test_unknown_rates_widen_the_interval_of_a_run() -> None:
    rate = FailureRate(FailureClass.GPU, Unit.RUN, Extent.PROCESS, 500.0, count=8)
    guessed = world(
        duration_s=50_000.0, failures=(rate,), tiers=(tier("disk", 300.0, stall_s=10.0),)
    )
    open_, known = (
        estimate(guessed, seed=1, replicas=1_000),
        estimate(guessed, seed=1, replicas=1_000, uncertain=False),
    )
    assert open_.ettr_high - open_.ettr_low > 2 * (known.ettr_high - known.ettr_low)
    assert open_.interruptions == pytest.approx(known.interruptions * 8.5 / 8, rel=0.05)


def test_candidates_meet_the_same_luck() -> None:
    """A shorter restore is better in each replica, and not only in the mean."""
    faster = replace(SMALL, tiers=(replace(SMALL.tiers[0], restore=constant(1.0)), SMALL.tiers[1]))
    histories = draw(SMALL, seed=2, replicas=300)
    assert (run(faster, histories).position_s >= run(SMALL, histories).position_s - 110).all()
    paired = run(faster, histories).position_s - run(SMALL, histories).position_s
    assert paired.std() < 0.5 * run(SMALL, histories).position_s.std()


def test_a_run_with_too_many_failures_is_cut_short_and_says_so() -> None:
    """The mean is that of the whole run, within the errors of both simulations and 1 % for the
    beginning and the end.
    """
    whole, cut = (
        estimate(SMALL, seed=7, replicas=600),
        estimate(SMALL, seed=8, replicas=600, failures_max=20),
    )
    assert cut.simulated_s < SMALL.job.duration_s == cut.duration_s
    assert "days were simulated" in cut.remarks[0]
    assert cut.ettr_mean == pytest.approx(
        whole.ettr_mean, abs=4 * (whole.ettr_mean_se + cut.ettr_mean_se) + 0.01
    )
    assert cut.interruptions == pytest.approx(whole.interruptions, rel=0.05)
    finite(cut)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shrinks", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"failures": (node(1e-3), process(1e-6))},
        {"failures": (node(10.0),), "repair": Repair(0, constant(1e9))},
        {"failures": (FailureRate(FailureClass.GPU, Unit.GPU, Extent.NODE, 1e-3, shape=40.0),)},
        {
            "failures": (
                FailureRate(FailureClass.GPU, Unit.GPU, Extent.NODE, 1e12, shape=0.01, age_s=1e9),
            )
        },
        {"tiers": (tier("disk", 100.0, stall_s=1e7, write_s=1e9),)},
        {"tiers": (tier("disk", float("inf"), stall_s=3.0),)},
        {"recovery": recovery(1e12, 1e12)},
        {"tiers": (), "failures": (everything(1.0),)},
    ],
)
def test_hopeless_runs_are_answers(change: dict[str, object], shrinks: bool) -> None:
    hopeless = replace(SMALL, **change)  # type: ignore[arg-type]
    hopeless = replace(hopeless, recovery=replace(hopeless.recovery, shrinks=shrinks))
    finite(estimate(hopeless, seed=1, replicas=20, failures_max=200))


@pytest.mark.filterwarnings("error")
def test_a_hundred_million_gpus_are_an_answer() -> None:
    huge = replace(
        SMALL,
        job=replace(SMALL.job, gpus=100_000_000, duration_s=54 * DAY_S),
        failures=(node(1.8e8),),
        lemons=Lemons(0.01, 5.0, 0.1),
    )
    told = estimate(huge, seed=1, replicas=20, failures_max=300)
    assert told.ettr_mean < 0.01
    assert told.mttf_s == pytest.approx(1.8e8 / 12_500_000 / 1.04, rel=0.05)
    finite(told)


@pytest.mark.filterwarnings("error")
def test_without_failures_the_run_only_stalls() -> None:
    quiet = estimate(replace(SMALL, failures=()), seed=1, replicas=2)
    assert quiet.ettr_mean == quiet.ettr_low == quiet.ettr_high
    assert quiet.seconds[Cause.STALL] + quiet.seconds[Cause.PRODUCTIVE] == pytest.approx(20_000.0)
    assert quiet.mttf_s == math.inf
    rare = estimate(replace(SMALL, failures=(node(1e12),)), seed=1, replicas=2)
    assert rare.mttf_s == pytest.approx(1e12 / 4)


def test_throughput_knows_heat_and_slow_nodes() -> None:
    """Each of 4 nodes is slow for 100 s in each 400 s. So for 1 - 1/e of the time at least one node
    is slow, and the run has half its speed. The mean effect of heat over a day is half of the
    worst.
    """
    slow = replace(
        SMALL,
        failures=(),
        stragglers=Stragglers(400.0, 2.0, constant(100.0)),
        job=replace(SMALL.job, throttle=0.1, samples_per_step=8.0),
    )
    told = estimate(slow, seed=1, replicas=2)
    assert told.throughput == pytest.approx(told.ettr_mean * 0.95 * (1 - (1 - math.exp(-1)) / 2))
    assert told.samples_per_day == pytest.approx(told.throughput * 8 * 86_400)


def test_gpu_hours_and_money_are_of_the_job_and_its_spares() -> None:
    priced = replace(SMALL, job=replace(SMALL.job, gpu_hour_price=2.5))
    told = estimate(priced, seed=1, replicas=2)
    assert told.gpu_hours == pytest.approx((32 + 2 * 8) * 20_000 / 3600)
    assert told.money == pytest.approx(told.gpu_hours * 2.5)


def test_more_lemons_than_reckoned_with_are_told() -> None:
    """Every repair misses the fault, and the rate is known from a single failure."""
    rate = FailureRate(FailureClass.GPU, Unit.NODE, Extent.NODE, 2e5, count=1)
    many = world(
        duration_s=20_000.0,
        gpus=800,
        failures=(rate,),
        lemons=Lemons(0.01, 2.0),
        repair=Repair(5, constant(10.0), missed=1.0),
    )
    assert "lemons" in estimate(many, seed=1, replicas=256).remarks[0]


def test_too_few_replicas_for_an_error_of_the_mean_are_refused() -> None:
    with pytest.raises(UsageError, match="two replicas"):
        estimate(SMALL, seed=1, replicas=1)
