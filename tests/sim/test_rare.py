"""Rare branches of the code that decides: simulated lives come to each of them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import outlast.engine
from outlast.sim.life import live

MOST_SEEDS = 2_000
ELSEWHERE = {  # name of a branch that no drawn life comes to -> the test that does
}


def _named() -> Counter[str]:
    """The names in all calls of `rare` under engine/."""
    out: Counter[str] = Counter()
    for path in Path(outlast.engine.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "rare":
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}: a name is written in quotes"
                out[node.args[0].value] += 1
    return out


def test_each_rare_branch_has_a_name_of_its_own() -> None:
    assert [name for name, count in _named().items() if count > 1] == []


def test_the_swarm_comes_to_each_rare_branch() -> None:
    missing = set(_named()) - set(ELSEWHERE)
    seed = 0
    while missing and seed < MOST_SEEDS:
        missing -= set(live(seed=seed, given={}).marks)
        seed += 1
    assert not missing, f"{seed} lives did not come to: {sorted(missing)}"
