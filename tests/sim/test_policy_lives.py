"""Drawn verdicts in simulated runs: the policy acts, and the rules hold. A skipped stretch has the
same result as its steps, with a policy too.
"""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.barring import BARRED
from outlast.engine.coordinator.policy_actions import STOPPED
from outlast.model.records import DRAINING
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
    """Verdicts are drawn from a stream of their own, so they change no run without an interruption.
    The runs have five ranks, because no scripted run has five, and a scripted run may need a
    policy.
    """
    for seed in range(10):
        simulated, other = (
            simulate_seed(seed=seed, given={"policy": name, "ranks": 5})
            for name in (policy, "none")
        )
        assert simulated.violations == ()
        if not other.rungs:
            assert simulated.trace_digest == other.trace_digest


def test_a_policy_does_all_that_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule holds while the policy acts. Method: note the actions and the records that the
    rules see.

    In these runs the policy bars, drains, stops and asks to shrink.
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
        simulated = simulate_seed(seed=seed, given=ROOMY | {"steps": 40})
        assert simulated.violations == (), f"seed {seed}"
    assert {BARRED, DRAINING, STOPPED, "shrink"} <= done


@pytest.mark.parametrize("mode", ["in_place", "reenter", "respawn", "sharded"])
def test_a_skipped_stretch_has_the_result_of_its_steps_under_a_policy(mode: str) -> None:
    for seed in range(2):
        given = ROOMY | {"recovery_mode": mode, "steps": 300}
        leaping, stepping = (
            simulate_seed(seed=seed, given=given, every_step=every_step)
            for every_step in (False, True)
        )
        assert [line[12:] for line in leaping.newest] == [line[12:] for line in stepping.newest], (
            f"seed {seed}"
        )
