"""runtime/ carries out and decides nothing: no file there branches on a generation, a rung, or who
is a member.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[1] / "src" / "outlast" / "runtime"
SUBJECTS = {"generation", "rung", "Rung", "Stage", "roster", "survivors", "restarts", "budgets"}
ALLOWED = {  # file -> why a branch there is no decision about the run
    "agent/evidence.py": (
        "what is known of a process belongs to the interruption of the generation that it was in"
    ),
    "agent/copy_keeper.py": (
        "bytes that a process of an older generation had under way are refused: the fence itself"
    ),
    "tiers/held_parity.py": (
        "parts that were sent in different generations are never in one sum: the fence itself"
    ),
    "coordinator/bookkeeping.py": "the word for the state of the run in `outlast status`",
    "worker/saving/checkpoints.py": (
        "memory for checkpoints is taken when the run begins; a rank that is replaced takes it at"
        " its first save"
    ),
    "worker/instructions/marks.py": "a drill's order says in which generation it strikes",
    "worker/communication/shared_rows.py": (
        "a vote, or a position, in shared memory carries its generation, so that an older one is"
        " not counted: the fence itself"
    ),
    "worker/adapters/lightning/strategy.py": (
        "files that Lightning writes once were written by the processes before this one"
    ),
    "tiers/vault.py": "a seal carries its generation, and is asked for by it",
}


def branches_on(source: str) -> Iterator[tuple[int, str]]:
    """Lines with a comparison, or a condition, that names one of the SUBJECTS."""
    for node in ast.walk(ast.parse(source)):
        tests: list[ast.expr] = []
        if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        elif isinstance(node, (ast.Compare, ast.BoolOp)):
            tests = [node]
        elif isinstance(node, ast.Match):
            tests = [node.subject]
        for test in tests:
            for part in ast.walk(test):
                name = (
                    part.attr
                    if isinstance(part, ast.Attribute)
                    else part.id
                    if isinstance(part, ast.Name)
                    else ""
                )
                if name in SUBJECTS:
                    yield test.lineno, name


@pytest.mark.parametrize(
    "path", sorted(RUNTIME.rglob("*.py")), ids=lambda path: str(path.relative_to(RUNTIME))
)
def test_no_file_of_the_runtime_decides_about_the_run(path: Path) -> None:
    found = sorted(set(branches_on(path.read_text())))
    if str(path.relative_to(RUNTIME)) in ALLOWED:
        assert found, "nothing to allow any more: take it out of the list"
    else:
        assert found == [], "move the decision to engine/"


@pytest.mark.parametrize(
    "source",
    [
        "if plan.generation > seen: pass",
        "while machine.generation == 0: pass",
        "x = a if rung is Rung.SPARE else b",
        "f = lambda: g.generation != h",
    ],
)
def test_a_decision_is_seen(source: str) -> None:
    assert list(branches_on(source))
