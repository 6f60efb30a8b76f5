"""What the drills share: undisturbed runs, made once in a session, three hosts, and the marker of
scripts as other people write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts
from tests.drills._run import CalmRun, Outcome, drilled

HERE = Path(__file__).parent
FOREIGN = tuple(HERE / name for name in ("adapters", "checked", "foreign"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of these folders: `pytest -m foreign` runs them alone."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in FOREIGN):
            item.add_marker(pytest.mark.foreign)


@pytest.fixture(scope="session")
def calm_run(tmp_path_factory: pytest.TempPathFactory) -> CalmRun:
    """Return a function: `calm_run(script, *arguments)` runs to its end, with four ranks unless
    `workers` says otherwise.

    Its books are sound. It reports no interruption, and books no cost of one.
    """
    known: dict[tuple[str | int, ...], Outcome] = {}

    def run(script: str, *arguments: str | int, workers: int = 4) -> Outcome:
        named = (workers, script, *arguments)
        if named not in known:
            outcome = drilled(tmp_path_factory.mktemp("calm"), script, *arguments, workers=workers)
            assert outcome.code == 0, str(outcome)
            assert outcome.interruptions == [], str(outcome)
            assert sorted(outcome.digests) == list(range(workers)), str(outcome)
            outcome.ledger_is_sound()
            spent_s = outcome.report["rank_seconds"]
            costs = [spent_s[name] for name in ("detection", "regroup", "restore", "repeated")]
            assert costs == [0.0] * 4, spent_s
            known[named] = outcome
        return known[named]

    return run


@pytest.fixture
def three_hosts() -> Iterator[Hosts]:
    with Hosts(3) as hosts:
        yield hosts
