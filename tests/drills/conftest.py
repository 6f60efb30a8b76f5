"""What the drills share: runs that nothing happens to, each of them made once in a session."""

from __future__ import annotations

import pytest

from tests.drills._run import CalmRun, Outcome, drilled


@pytest.fixture(scope="session")
def calm_run(tmp_path_factory: pytest.TempPathFactory) -> CalmRun:
    """`calm_run(script, *arguments)`: by four ranks, to its end; its books are sound, and it tells of no interruption."""
    known: dict[tuple[str | int, ...], Outcome] = {}

    def run(script: str, *arguments: str | int) -> Outcome:
        named = (script, *arguments)
        if named not in known:
            outcome = drilled(tmp_path_factory.mktemp("calm"), script, *arguments)
            assert outcome.code == 0, str(outcome)
            assert outcome.interruptions == [], str(outcome)
            assert sorted(outcome.digests) == [0, 1, 2, 3], str(outcome)
            outcome.ledger_is_sound()
            known[named] = outcome
        return known[named]

    return run
