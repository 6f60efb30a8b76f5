"""Runs under the same faults are measured alike, by the steps that were seen.

Method: runs of one step a second, written down by hand.
"""

from __future__ import annotations

import pytest

from outlast.model import intervals
from outlast.model.drills.drill_sides import (
    FaultSeen,
    SeenStep,
    SideRun,
    best_saving,
    pace_for,
    side_facts,
    steps_again,
)


def steps(*some: tuple[float, int]) -> tuple[SeenStep, ...]:
    return tuple(SeenStep(at_s, step) for at_s, step in some)


def each_second(first: int, last: int, *, at_s: float) -> list[tuple[float, int]]:
    return [(at_s + step - first, step) for step in range(first, last + 1)]


def facts(run: SideRun, *, count: int, digest_equal: bool | None = True) -> dict[str, object]:
    return side_facts(
        "x",
        run,
        steps=count,
        step_s=1.0,
        digest_equal=digest_equal,
        steps_lost=steps_again(run.seen),
    )


def kill(at_s: float, *, due_s: float | None = None) -> FaultSeen:
    return FaultSeen(at_s if due_s is None else due_s, at_s, interrupts=True)


def test_an_undisturbed_run_of_the_same_pace_has_an_ettr_of_one() -> None:
    run = SideRun(0.0, 15.0, True, steps(*each_second(1, 10, at_s=5.0)), ())
    found = facts(run, count=10)
    assert found["ettr_training"] == pytest.approx(1.0)
    assert found["ettr"] == pytest.approx(10 / 15)
    assert (found["steps_lost"], found["struck_while_down"], found["survived"]) == (0, 0, 0)


def test_a_restart_from_a_checkpoint_costs_its_time_and_the_steps_again() -> None:
    """It is struck in step 11, restarts for 7 s from step 6, and ends with step 20."""
    before, after = each_second(1, 10, at_s=1.0), each_second(7, 20, at_s=18.0)
    run = SideRun(0.0, 32.0, True, steps(*before, *after), (kill(10.5),))
    found = facts(run, count=20)
    assert found["steps_lost"] == 4
    assert found["mttr_s"]["median"] == pytest.approx(23.0 - 10.5 - 1.0), "to step 12, less a step"
    assert found["ettr_training"] == pytest.approx(17 / 28)
    assert found["survived"] == 1
    assert found["step_s"] == pytest.approx(1.0), "without the time of the restart"


def test_a_step_that_was_decided_before_the_strike_is_not_the_return() -> None:
    """Step 6 comes right after the strike; the run is back with step 7."""
    seen = steps(*each_second(1, 5, at_s=1.0), (5.6, 6), *each_second(7, 9, at_s=9.0))
    found = facts(SideRun(0.0, 12.0, True, seen, (kill(5.5),)), count=9)
    assert found["mttr_s"]["max"] == pytest.approx(9.0 - 5.5 - 1.0)


def test_a_launcher_whose_steps_are_slower_pays_for_that() -> None:
    seen = tuple(SeenStep(2.0 * step, step) for step in range(1, 11))
    found = facts(SideRun(0.0, 20.0, True, seen, ()), count=10)
    assert found["ettr"] == pytest.approx(0.5)
    assert found["step_s"] == pytest.approx(2.0)


def test_a_step_of_fewer_ranks_counts_by_its_share() -> None:
    seen = tuple(SeenStep(float(step), step, 1.0 if step < 6 else 0.5) for step in range(1, 11))
    found = facts(SideRun(0.0, 10.0, True, seen, ()), count=10)
    assert found["ettr"] == pytest.approx(0.75)
    assert found["steps_with_fewer_ranks"] == 5


def test_a_fault_that_is_due_while_the_run_is_down_is_counted() -> None:
    """The second fault is due 2 s after the first, and strikes once the run has come back."""
    seen = steps(*each_second(1, 10, at_s=1.0), *each_second(11, 30, at_s=20.0))
    late, quick = kill(24.0, due_s=12.0), kill(33.0)
    found = facts(SideRun(0.0, 40.0, True, seen, (kill(10.0), late, quick)), count=30)
    assert found["struck_while_down"] == 1


def test_a_pace_that_is_too_fast_is_said_with_one_that_is_not() -> None:
    row = {"mttr_s": {"median": 10.0}, "struck_while_down": 5, "faults_fired": 10}
    assert pace_for(row, mean_gap_s=6.0, time_scale=100.0) == pytest.approx(20.0)
    assert pace_for(row | {"struck_while_down": 1}, mean_gap_s=6.0, time_scale=100.0) is None
    never = row | {"mttr_s": {"median": None}}
    assert pace_for(never, mean_gap_s=6.0, time_scale=100.0) == pytest.approx(10.0)


def test_a_run_that_was_given_up_has_not_survived_and_has_no_digest() -> None:
    run = SideRun(0.0, 100.0, False, steps(*each_second(1, 10, at_s=1.0)), (kill(10.5),))
    found = facts(run, count=20)
    assert (found["ended_well"], found["survived"], found["digest_equal"]) == (False, 0, None)
    assert found["ettr_training"] == pytest.approx(7 / 97), (
        "the time in which it stood still counts"
    )
    assert found["mttr_s"]["median"] is None


def test_a_run_that_never_trained_is_measured_as_nothing() -> None:
    found = facts(SideRun(0.0, 9.0, False, (), ()), count=5)
    assert (found["ettr"], found["ettr_training"], found["steps"]) == (0.0, None, 0)


def test_steps_that_are_printed_by_tens_are_counted_by_tens() -> None:
    assert steps_again(steps((1.0, 10), (2.0, 20), (9.0, 20), (10.0, 30))) == 10
    assert steps_again(steps((1.0, 10), (2.0, 20), (9.0, 10), (10.0, 20))) == 20


def test_the_interval_is_the_planners_and_not_below_what_a_save_takes() -> None:
    best_s = intervals.best_s(0.05, 60.0)
    assert best_saving(0.05, 0.0, mttf_s=60.0, step_s=0.1).every == round(best_s / 0.1)
    assert best_saving(0.001, 5.0, mttf_s=60.0, step_s=0.1).every == 50
    assert best_saving(0.0, 0.0, mttf_s=60.0, step_s=30.0).every == 1
