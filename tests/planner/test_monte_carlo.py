"""Many runs at once are the runs that `course.live` computes, one by one; and what is said of them is right."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.model.terms import Cause
from outlast.planner.course import Phase, live
from outlast.planner.histories import Histories, draw
from outlast.planner.monte_carlo import run
from outlast.planner.scenario import Scenario
from tests.planner.worlds import scenarios


def agree(scenario: Scenario, histories: Histories) -> None:
    """All that both say, replica by replica."""
    outcomes = run(scenario, histories)
    near = {"rtol": 1e-6, "atol": 1e-6 * scenario.job.duration_s}
    for replica in range(histories.replicas):
        course = live(scenario, histories.one(replica))
        assert outcomes.interruptions[replica] == len(course.interruptions)
        for cause in Cause:
            np.testing.assert_allclose(outcomes.seconds[cause][replica], course.seconds[cause], err_msg=cause.value, **near)
        np.testing.assert_allclose(outcomes.position_s[replica], course.position_s, **near)
        waits = [one.spent_s[Phase.WAIT] for one in course.interruptions]
        np.testing.assert_allclose(outcomes.wait_s[replica], sum(waits), **near)
        assert outcomes.waits[replica] == sum(wait > 0 for wait in waits)
        for index, rate in enumerate(scenario.failures):
            cost_s = sum(one.cost_s for one in course.interruptions if one.failure_class is rate.failure_class)
            np.testing.assert_allclose(outcomes.lost_s[replica, index], cost_s, **near)
        assert outcomes.beyond_bound[replica] == course.lemons_beyond_bound


@given(scenario=scenarios(waves=True), seed=st.integers(0, 10_000))
@settings(max_examples=150)
def test_each_replica_is_the_run_that_the_definition_says(scenario: Scenario, seed: int) -> None:
    agree(scenario, draw(scenario, seed=seed, replicas=5))
