"""How many steps a fault may cost, by what the run had to fall back on when it struck."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.model.drills.drill_faults import ALL_KINDS
from outlast.model.drills.drill_redundancy import (
    InForce,
    least,
    lost_beyond,
    may_lose,
    nodes_survived,
)

# four ranks on one node at step 50, with a copy of step 40 in shared memory and a checkpoint of 30
DDP = InForce(50, False, 4, 1, 1, 40, 30, 0)
SHARDED = InForce(50, True, None, None, 1, 49, 30, 1)


@pytest.mark.parametrize(
    ("kind", "ranks", "then", "steps"),
    [
        ("kill", (1,), DDP, 0),
        ("kill", (1,), replace(DDP, copies=2), 0),
        ("kill", (1,), replace(DDP, copies=1), 11),  # the last one; a step may be in flight
        ("kill", (1,), replace(DDP, copies=1, kept_step=0), 21),
        ("kill", (1,), replace(DDP, copies=1, kept_step=0, checkpoint_step=0), 51),
        ("raise", (1,), replace(DDP, copies=1), 0),  # its process lives on
        ("kill_spare", (), replace(DDP, copies=1), 0),
        ("lose_store", (), replace(DDP, copies=1), 0),
        ("lose_node", (0, 1), replace(DDP, nodes=2), 0),
        ("lose_node", (0, 1, 2, 3), DDP, 21),  # shared memory goes with the host
        ("lose_node", (), DDP, 0),  # a host without ranks
        ("kill", (1,), SHARDED, 1),
        ("kill", (1,), replace(SHARDED, kept_step=50), 0),
        ("raise", (1,), SHARDED, 1),
        ("lose_node", (1,), SHARDED, 1),
        ("lose_node", (1,), replace(SHARDED, nodes_survived=0), 21),
        # a peer may have sealed over the image before it
        ("torn_image", (1,), SHARDED, 21),
        ("corrupt_image", (1,), replace(SHARDED, kept_step=50, checkpoint_step=0), 51),
        ("torn_image", (1,), DDP, 0),  # only random state is in it
        ("kill", (1,), replace(DDP, sharded=None, copies=None), 0),
        ("kill", (1,), None, 0),
    ],
)
def test_a_fault_may_cost_what_nobody_else_held(
    kind: str, ranks: tuple[int, ...], then: InForce | None, steps: int
) -> None:
    assert may_lose(ALL_KINDS[kind], ranks, then) == steps


def lost(number: int, steps: int | None, *, parent: int | None = None) -> dict[str, Any]:
    return {"id": number, "parent": parent, "steps_lost": steps}


@pytest.mark.parametrize(
    ("interruptions", "allowed", "beyond"),
    [
        ([lost(1, 0), lost(2, 0)], {}, 0),
        ([lost(1, 3)], {1: 5}, 0),
        ([lost(1, 3)], {1: 1}, 2),
        ([lost(1, 3)], {}, 3),
        ([lost(1, 0), lost(2, 3)], {1: 9}, 3),  # what one may cost is not another's
        ([lost(1, 1), lost(2, 3, parent=1), lost(3, 1, parent=2)], {2: 4}, 1),
        ([lost(1, 1), lost(2, None)], {1: 9}, None),
    ],
)
def test_lost_steps_count_beyond_what_their_own_faults_allowed(
    interruptions: list[dict[str, Any]], allowed: dict[int, int], beyond: int | None
) -> None:
    assert lost_beyond(interruptions, allowed) == beyond


@pytest.mark.parametrize(
    ("sharded", "nodes", "nodes_to_lose", "voters", "count"),
    [
        (None, None, None, 3, None),
        (False, 1, None, 0, 0),
        (False, 4, None, 0, 0),  # the one that leads may be lost, and none can take over
        (False, 4, None, 3, 1),
        (False, 4, None, 5, 2),
        (False, 2, None, 5, 1),
        (True, None, 1, 3, 1),
        (True, None, 2, 3, 1),
        (True, None, None, 3, 0),
    ],
)
def test_a_node_may_be_lost_if_others_hold_the_state_and_can_lead(
    sharded: bool | None, nodes: int | None, nodes_to_lose: int | None, voters: int, count: int
) -> None:
    found = nodes_survived(sharded=sharded, nodes=nodes, nodes_to_lose=nodes_to_lose, voters=voters)
    assert found == count


def test_the_least_of_all_moments_and_the_oldest_image_are_said() -> None:
    few = replace(DDP, copies=2, spares=0, kept_step=45)
    assert least([DDP, few]) == {
        "copies": 2,
        "spares": 0,
        "nodes_survived": 0,
        "behind_steps": 10,
    }
    assert least([]) == dict.fromkeys(("copies", "spares", "nodes_survived", "behind_steps"))
