"""A shard that a rank had captured before it died completes the checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.model.fault_plan import PlannedFault
from tests.engine.test_policy_actions import a_world, events, ran
from tests.engine.test_requests import LONE


@pytest.mark.parametrize("mode", ["in_place", "sharded"])
def test_a_shard_that_a_killed_rank_had_captured_is_counted(mode: str) -> None:
    """Method: a rank is killed once it has captured its second shard, before that is written. The
    node's writer has the shard, and reports it after the rank's death.
    """
    options = replace(LONE, recovery_mode=mode, checkpoint_every=5)
    world = a_world(options, PlannedFault("dies", "kill", 1, "saved", 2))
    ran(world)
    assert world.interruptions, "the fault never fired"
    written = [one["step"] for one in events(world, "checkpoint")]
    assert written == sorted(set(written))
    assert {5, 10, 15} <= set(written), written
    assert events(world, "checkpoint_failed") == []
