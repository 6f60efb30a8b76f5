"""planner/power.py: the changes of power of a simulated run, in watts."""

from __future__ import annotations

import math

import pytest

from outlast.planner.power import Draw, Power, power
from outlast.planner.scenario import Extent, Job, Recovery, Scenario, ScenarioTier
from outlast.planner.spread import constant
from outlast.planner.stops import Stoppage

DRAW = Draw(gpu_w=700.0, idle=0.2, edge_s=2.0)
DAY_S = 86_400.0


def scenario(*, stall_s: float = 3.0, step_s: float = 5.0) -> Scenario:
    tier = ScenarioTier("storage", 600.0, stall_s, 0.0, Extent.RUN, constant(1.0))
    return Scenario(
        "one",
        Job(1000, 10 * DAY_S, step_s=step_s),
        (),
        (tier,),
        Recovery(constant(0), constant(60)),
    )


def of(stops: list[Stoppage], **how: float) -> Power:
    return power(scenario(**how), stops, draw=DRAW, ettr=0.9)


def test_a_failure_drops_all_gpus_to_idle_and_back() -> None:
    found = of([Stoppage(1000.0, 1300.0), Stoppage(5000.0, 5100.0)])
    failure = found.swings[0]
    assert found.training_w == 700_000.0
    assert (failure.kind, failure.count, failure.amplitude_w) == (
        "failure",
        2,
        pytest.approx(560_000.0),
    )
    assert failure.ramp_w_per_s == pytest.approx(280_000.0)
    assert (failure.longest_s, failure.per_day) == (300.0, pytest.approx(0.2))


def test_a_stop_that_the_end_of_the_run_cuts_off_lasts_until_then() -> None:
    failure = of([Stoppage(1000.0, 1300.0), Stoppage(10 * DAY_S - 500, None)]).swings[0]
    assert (failure.count, failure.longest_s) == (2, 500.0)


def test_saves_swing_as_often_as_they_come() -> None:
    save = of([]).swings[1]
    assert (save.kind, save.count) == ("save to storage", int(0.9 * 10 * DAY_S / 600))
    assert save.frequency_hz == pytest.approx(1 / 603)
    assert not save.in_band


def test_a_stall_shorter_than_the_edge_does_not_reach_the_bottom() -> None:
    assert of([], stall_s=1.0).swings[1].amplitude_w == pytest.approx(280_000.0)


@pytest.mark.parametrize(
    ("step_s", "in_band"), [(0.04, False), (0.05, True), (10.0, True), (10.1, False)]
)
def test_steps_are_held_against_the_risky_band(step_s: float, in_band: bool) -> None:
    step = of([], step_s=step_s).swings[-1]
    assert (step.kind, step.in_band) == ("step", in_band)


def test_of_steps_nothing_but_the_frequency_is_told() -> None:
    """The slope and the length of the changes are not known, and NaN is not a valid number for
    programs.
    """
    step = of([]).facts()["swings"][-1]
    assert (step["ramp_w_per_s"], step["longest_s"], step["frequency_hz"]) == (None, None, 0.2)


def test_a_staggered_restart_flattens_the_rise_and_costs_its_seconds() -> None:
    remedy = of([Stoppage(1000.0, 1300.0)]).remedies[1]
    assert remedy.ramp_w_per_s == pytest.approx(560_000.0 / 60)
    assert remedy.ettr_cost == pytest.approx(60 / (10 * DAY_S))


def test_a_power_floor_costs_energy_only_while_the_run_stands() -> None:
    """The expected value is computed by hand. The run does not train for 1 day of 10, at a floor of
    50 % instead of 20 %. That is 0.1 x 0.3 more, of 0.9 + 0.1 x 0.2.
    """
    remedy = of([Stoppage(0.0, DAY_S)], stall_s=0.0).remedies[2]
    assert remedy.amplitude_w == pytest.approx(350_000.0)
    assert remedy.energy_cost == pytest.approx(0.03 / 0.92)


def test_nothing_that_fails_is_no_swing() -> None:
    failure = of([]).swings[0]
    assert (failure.count, failure.amplitude_w, failure.longest_s) == (0, 0.0, 0.0)
    assert all(math.isfinite(one.energy_cost) for one in of([]).remedies)
