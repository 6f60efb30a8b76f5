"""Rare branches of the code that decides: simulated lives come to each of them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import outlast.engine
from outlast.model.fault_plan import PlannedFault
from outlast.sim.life import live, lived
from outlast.sim.options import Options

MOST_SEEDS = 2_500
FIRST = (
    15, 18, 29, 90, 154, 164, 173, 183, 221, 236, 245, 248, 276, 430, 442, 513, 576, 579, 615, 896, 1808, 2393, 20263, 20265, 20557, 21130, 21376,
    21918, 22368, 22543,
)  # fmt: skip  # they come to the rarest, as draws are now: tried first, to save time
FOUR = Options(way="in_place", ranks=4, steps=40)
MADE = {  # branches that hardly any drawn life comes to: seed, options, and what strikes
    "another rank is lost once the rung is chosen": (
        0,
        FOUR,
        (
            PlannedFault("bad", "raise", 1, "body", 3, times=1_000),
            PlannedFault("then", "kill", 2, "still", 5, after_s=0.001),
        ),
    ),
    "news of a store that another one takes the place of": (
        10,
        Options(way="in_place", ranks=3),
        (PlannedFault("first", "kill", 0, "boot"),),
    ),
    "donated for a generation that is over": (
        7,
        FOUR,
        (
            PlannedFault("first", "kill", 2, "body", 3),
            PlannedFault("twice", "repeat", 0, "donating", for_s=0.6),
            PlannedFault("then", "kill", 1, "joined", 2),
        ),
    ),
}
ELSEWHERE = {
    # tests/engine/test_protocol.py: the false alarm is made there
    "one that was taken for hung has come to its end after all",
    "one that was accused cannot reach others",  # tests/engine/test_links.py
    # tests/engine/test_policy_acting.py
    "a drain is called off",
    "the policy stops a run that ends already",
    # tests/engine/test_durable.py:
    "images that are older than a checkpoint",
    "what all begin from has changed while checkpoints were read",
    # and tests/engine/test_nodes.py:
    "a coordinator that another one has taken the place of",
    "a node that was about to return does not",
    "an agent comes too late",
    "an agent that is not in says something",
    "a rank's private state is of another step",
    "an order that the agent has followed already",
    "counted out while the agent was away",
    "the coordinator was held up itself",
    "fewer nodes than were asked for",
    "news that came twice",
    "the nodes that are there have too little room",
    "those that were killed cannot be heard",
}


def _named() -> Counter[str]:
    """The names in all calls of `rare` under engine/."""
    out: Counter[str] = Counter()
    for path in Path(outlast.engine.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "rare"
            ):
                assert isinstance(node.args[0], ast.Constant), (
                    f"{path.name}:{node.lineno}: a name is written in quotes"
                )
                out[node.args[0].value] += 1
    return out


def test_each_rare_branch_has_a_name_of_its_own() -> None:
    assert [name for name, count in _named().items() if count > 1] == []
    assert set(_named()) >= {*MADE, *ELSEWHERE}


def test_the_swarm_comes_to_each_rare_branch() -> None:
    missing = set(_named()) - set(MADE) - ELSEWHERE
    for seed in (*FIRST, *range(MOST_SEEDS)):
        if not missing:
            break
        missing -= set(live(seed=seed, given={}).marks)
    assert not missing, f"{MOST_SEEDS} lives did not come to: {sorted(missing)}"


@pytest.mark.parametrize("name", MADE)
def test_a_life_made_for_it_comes_to_the_rarest(name: str) -> None:
    seed, options, faults = MADE[name]
    life = lived(seed=seed, options=options, faults=faults)
    assert life.violations == ()
    assert name in life.marks
