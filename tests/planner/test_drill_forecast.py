"""The ETTR of a drill, predicted from its calendar: which fault costs what, and the range."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.model.drills.drill_faults import ALL_KINDS
from outlast.model.drills.drill_plan import named
from outlast.planner.drill_forecast import LEASE_S, RECOVERY_S, Undisturbed, cost_s, forecast
from outlast.sim.drill_calendar import Scheduled, draw

CALM = Undisturbed(training_s=60.0, step_s=0.2, ettr=0.98)
ON_HOSTS = replace(CALM, hosts=True)
REPLACE_S, HALF_S = RECOVERY_S["replace"], 0.1


def fault(kind: str, at_s: float = 5.0, for_s: float = 0.0) -> Scheduled:
    known = ALL_KINDS[kind]
    return Scheduled("1", known, known.stands_for, 0, at_s, for_s=for_s)


@pytest.mark.parametrize(
    ("kind", "for_s", "calm", "seconds"),
    [
        ("kill", 0.0, CALM, HALF_S + REPLACE_S),
        ("kill", 0.0, ON_HOSTS, HALF_S + RECOVERY_S["replace, hosts"]),
        ("kill", 0.0, replace(CALM, restart_s=9.0), HALF_S + 9.0),  # without outlast calls
        ("raise", 0.0, CALM, HALF_S + RECOVERY_S["repeat"]),
        ("kill_spare", 0.0, CALM, 0.0),
        ("slow", 3.0, CALM, 0.0),
        ("stop", 0.3, CALM, 0.3),  # it goes on before it is given up
        ("stop", 3.0, CALM, 0.5 + HALF_S + REPLACE_S),
        ("deaf", 0.0, CALM, 1.2 + HALF_S + REPLACE_S),
        ("deaf", 0.0, replace(CALM, step_s=1.0), 5.2 + 0.5 + REPLACE_S),
        ("cut", 1.0, ON_HOSTS, 1.0),
        ("cut", 3.0, ON_HOSTS, LEASE_S + HALF_S + RECOVERY_S["move, hosts"]),
        ("lose_node", 3.0, ON_HOSTS, LEASE_S + HALF_S + RECOVERY_S["move, hosts"]),
        ("lose_agent", 3.0, ON_HOSTS, 0.25 + HALF_S + RECOVERY_S["move, hosts"]),
        ("slow_link", 3.0, ON_HOSTS, 0.0),
        ("flip_weights", 0.0, CALM, 0.0),
        ("full_disk", 3.0, CALM, 0.0),  # training does not wait for a save
        ("torn_image", 0.0, CALM, HALF_S + REPLACE_S),
    ],
)
def test_a_fault_costs_half_a_step_its_detection_and_its_recovery(
    kind: str, for_s: float, calm: Undisturbed, seconds: float
) -> None:
    assert cost_s(fault(kind, for_s=for_s), calm) == pytest.approx(seconds)


def test_every_kind_has_a_cost() -> None:
    for name in ALL_KINDS:
        assert 0.0 <= cost_s(fault(name, for_s=3.0), ON_HOSTS) < 10.0


def test_what_is_lost_comes_on_top_of_the_undisturbed_run() -> None:
    """Ten kills, far apart. Without faults, the ETTR is that of the undisturbed run."""
    faults = [fault("kill", at_s=5.0 * number) for number in range(10)]
    found = forecast(faults, CALM)
    lost_s = 10 * (HALF_S + REPLACE_S)
    assert found.lost_s == pytest.approx(lost_s)
    assert found.ettr == pytest.approx(0.98 * 60 / (60 + lost_s))
    assert found.low < found.ettr < found.high < 0.98
    assert found.naive == pytest.approx(found.ettr), "all of them end a process"
    assert forecast([], CALM).ettr == 0.98
    assert forecast([], replace(CALM, training_s=0.0)).ettr == 0.98


def test_recoveries_that_overlap_count_once() -> None:
    near = forecast([fault("kill", 5.0), fault("kill", 5.1)], CALM)
    assert near.lost_s == pytest.approx(0.1 + HALF_S + REPLACE_S)


def test_a_hang_costs_more_than_a_naive_predictor_thinks() -> None:
    found = forecast([fault("hang"), fault("deaf", 20.0)], CALM)
    assert found.ettr < found.naive


def test_a_day_of_llama_3_is_predicted_near_what_was_measured() -> None:
    """One host, steps of 0.16 s, in benchmarks/results/drills.md: 95.9 % came, in 2.3 minutes."""
    plan = named("llama3-day")
    assert plan is not None
    calendar = draw(plan, seed=1, world_size=4, spares=1)
    found = forecast(calendar.faults, Undisturbed(134.0, 0.16, 0.985))
    assert found.ettr == pytest.approx(0.959, abs=0.015)
    assert found.low < 0.959 < found.high
