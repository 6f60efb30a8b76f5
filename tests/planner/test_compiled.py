"""Compiled, many runs are the same runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.planner.histories import draw
from outlast.planner.outcomes import Outcomes
from outlast.planner.runs import run_any
from outlast.planner.scenario import Scenario
from outlast.planner.sweep import Task, simulate
from tests.planner.worlds import node, scenarios, tier, world

numba = pytest.importorskip("numba", reason="the extra outlast[numba] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # it compiles for 15 s the first time


def same(one: Outcomes, other: Outcomes, *, duration_s: float) -> None:
    """But for what rounding leaves."""
    near = {"rtol": 1e-6, "atol": 1e-6 * duration_s}
    for name in ("position_s", "kept_s", "lost_s", "wait_s"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **near)
    for name in ("interruptions", "waits", "beyond_bound"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for cause, booked in one.seconds.items():
        np.testing.assert_allclose(booked, other.seconds[cause], err_msg=cause.value, **near)


@given(scenario=scenarios(waves=True), seed=st.integers(0, 10_000))
@settings(max_examples=300, deadline=None)
def test_each_replica_is_the_one_that_arrays_say(scenario: Scenario, seed: int) -> None:
    """Any scenario: lemons, stops, waves, tiers that divide each other and not, waiting and
    shrinking; `runs.py` is held against the definition itself.
    """
    from outlast.planner.compiled import run_any_compiled

    histories = draw(scenario, seed=seed, replicas=5)
    same(
        run_any_compiled(scenario, histories),
        run_any(scenario, histories),
        duration_s=scenario.job.duration_s,
    )


def test_a_task_is_summed_up_alike() -> None:
    from outlast.planner.compiled import simulate_compiled

    one = world(
        duration_s=20_000.0, failures=(node(2_000.0),), tiers=(tier("disk", 100.0, stall_s=2.0),)
    )
    task = Task((one, replace(one, tiers=(tier("disk", 50.0, stall_s=2.0),))), seed=1, replicas=50)
    for compiled, arrays in zip(simulate_compiled(task), simulate(task), strict=True):
        np.testing.assert_allclose(compiled.ettr, arrays.ettr, rtol=1e-9)
        assert compiled.shares == pytest.approx(arrays.shares)
