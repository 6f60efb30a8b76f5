"""How long a run waits for a node, and what a drain costs, in a simulated world.

The simulated world books the seconds of its ranks with outlast's own books, and checks its own
rules in each run.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.model.fault_plan import PlannedFault
from outlast.model.records import NODE_AWAITED, NODE_FOUND
from outlast.model.terms import Cause
from outlast.sim.rules.final_observations import SecondsAtEnd
from outlast.sim.rules.observations import Observation
from outlast.sim.world.world import World
from tests.engine.test_policy_actions import FOUR, a_world, diagnosed, events, ran, verdict

# ranks 0 and 1 are on node-0, ranks 2 and 3 on node-1, and there is no other node
FULL = replace(FOUR, nodes=2, spare_nodes=0, steps=200)
AWAY_S = 40.0


def booked(world: World) -> SecondsAtEnd:
    """Run the world to its end, and return how it books the seconds of each rank."""
    seen: list[SecondsAtEnd] = []

    def look(one: Observation) -> None:
        if isinstance(one, SecondsAtEnd):
            seen.append(one)

    world.frame.also_see.append(look)
    ran(world)
    (books,) = seen
    return books


@pytest.mark.parametrize("mode", ["in_place", "reenter", "sharded", "plain"])
def test_all_ranks_are_idle_while_no_node_has_room(mode: str) -> None:
    """Method: node-1 loses power, and has it again 40 s later. No other node has room."""
    lost = PlannedFault("power", "lose_node", 2, at_s=2.0, for_s=AWAY_S)
    world = a_world(replace(FULL, recovery_mode=mode), lost)
    books = booked(world)
    assert next(one["places"] for one in events(world, NODE_AWAITED)) in (2, 4)
    assert len(events(world, NODE_FOUND)) == 1
    for seconds in books.by_rank:
        # the lease of the node is over first, and then its agent enrols again
        assert AWAY_S - 10.0 < seconds[Cause.IDLE] < AWAY_S + 1.0, seconds
        assert seconds[Cause.REGROUP] < 10.0, seconds
        assert seconds[Cause.DRAIN] == 0.0


def test_a_wait_goes_on_under_another_coordinator() -> None:
    """Method: the coordinator dies while the run waits for node-1. The next one waits on."""
    lost = PlannedFault("power", "lose_node", 2, at_s=2.0, for_s=AWAY_S)
    world = a_world(FULL, lost)
    world.timeline.after(20.0, lambda: world.host.die(for_s=0.5))
    books = booked(world)
    assert world.host.epoch == 2
    for seconds in books.by_rank:
        assert AWAY_S - 10.0 < seconds[Cause.IDLE] < AWAY_S + 1.0, seconds


def test_a_lost_node_beside_a_spare_one_leaves_no_rank_idle() -> None:
    lost = PlannedFault("power", "lose_node", 2, at_s=2.0, for_s=1_000.0)
    books = booked(a_world(replace(FOUR, steps=200), lost))
    assert [seconds[Cause.IDLE] for seconds in books.by_rank] == [0.0] * 4
    assert sum(seconds[Cause.REGROUP] for seconds in books.by_rank) > 0.0


def test_ranks_that_move_and_ranks_that_stay_book_the_drain() -> None:
    """Method: rank 1 is killed, and then its node is drained. Only the kill costs a regroup."""
    world = a_world(FOUR)
    diagnosed(world, verdict())
    books = booked(world)
    drained, killed = world.interruptions[2], world.interruptions[1]
    assert drained.restored_s is not None
    assert killed.restored_s is not None
    took_s = drained.restored_s - drained.detected_s
    for seconds in books.by_rank:
        assert 0.0 < seconds[Cause.DRAIN] <= took_s + 0.1, (seconds, took_s)
        moved_s = seconds[Cause.REGROUP] + seconds[Cause.RESTORE]
        assert moved_s <= killed.restored_s - killed.detected_s + 0.1, seconds
    # the ranks that moved had no process for a while, or one that started
    assert books.by_rank[0][Cause.DRAIN] == pytest.approx(took_s, abs=0.2)
