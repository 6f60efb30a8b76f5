"""Drawn verdicts in simulated lives: the policy acts, the rules hold, and a stretch is the course
that its steps take with a policy too.
"""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.policy_actions import BARRED, DRAINING, STOPPED
from outlast.sim.options import POLICIES
from outlast.sim.rules.checkers import Checkers
from outlast.sim.rules.final_observations import ActionDecided, EventWritten
from outlast.sim.rules.observations import Observation
from outlast.sim.simulated_run import simulate_seed

ROOMY = {"nodes": 4, "spare_nodes": 1, "ranks": 5, "policy": "eager"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_changes_nothing_until_a_verdict_comes(
    policy: str,
) -> None:
    """Verdicts are drawn in a stream of their own: of lives without an interruption nothing
    changes. (Of five ranks there is no play, which needs a policy.)
    """
    for seed in range(10):
        life, other = (
            simulate_seed(seed=seed, given={"policy": name, "ranks": 5})
            for name in (policy, "none")
        )
        assert life.violations == ()
        if not other.rungs:
            assert life.trace_digest == other.trace_digest


def test_a_policy_does_all_that_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule holds meanwhile. Method: note what the rules see of its actions and records.

    In these lives the policy bars, drains, stops and asks to shrink.
    """
    done: set[str] = set()
    see = Checkers.see

    def noting(rules: Checkers, at_s: float, seen: Observation) -> None:
        if isinstance(seen, EventWritten):
            done.add(seen.kind)
        elif isinstance(seen, ActionDecided):
            done.add(seen.action)
        see(rules, at_s, seen)

    monkeypatch.setattr(Checkers, "see", noting)
    for seed in (1, 13, 18, 20, 26, 59):
        life = simulate_seed(seed=seed, given=ROOMY | {"steps": 40})
        assert life.violations == (), f"seed {seed}"
    assert {BARRED, DRAINING, STOPPED, "shrink"} <= done


@pytest.mark.parametrize("mode", ["in_place", "reenter", "respawn", "sharded"])
def test_a_stretch_is_the_course_that_its_steps_take_under_a_policy(mode: str) -> None:
    for seed in range(2):
        given = ROOMY | {"recovery_mode": mode, "steps": 300}
        leaping, stepping = (
            simulate_seed(seed=seed, given=given, every_step=every_step)
            for every_step in (False, True)
        )
        assert [line[12:] for line in leaping.newest] == [line[12:] for line in stepping.newest], (
            f"seed {seed}"
        )
