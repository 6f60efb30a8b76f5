"""Copies of replicated state in simulated runs: the state from which all ranks go on if all of them
are lost.
"""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.restore_sources import RestoreSources
from outlast.errors import UsageError
from outlast.sim.options import Options, check
from outlast.sim.simulated_run import simulate_seed
from tests.sim.test_disks import all_at, simulate_run

MODES = ["in_place", "respawn", "reenter"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("keep_every", "checkpoint_every", "back"),
    [(1, 0, 8), (2, 0, 8), (3, 0, 6), (5, 3, 6), (3, 5, 6), (0, 0, 0)],
)
def test_all_go_on_from_the_newest_of_copies_and_checkpoints(
    mode: str, keep_every: int, checkpoint_every: int, back: int
) -> None:
    """All ranks are killed in step 9. Step 8 is the newest committed step."""
    options = {"keep_every": keep_every, "checkpoint_every": checkpoint_every}
    assert simulate_run(*all_at(9), mode=mode, **options)[1] == ([(8, back)] if back < 8 else [])


def test_copies_need_a_vault_that_all_ranks_share() -> None:
    with pytest.raises(UsageError, match="copies in the vault are not possible with 2 nodes"):
        check(Options(nodes=2, keep_every=1))


def broken_rules(seed: int) -> set[str]:
    """Return the rules that the run of a seed breaks. Its script copies each step."""
    given = {"keep_every": 1, "recovery_mode": MODES[seed % 3], "nodes": 1, "ranks": 2}
    return {one.rule for one in simulate_seed(seed=seed, given=given).violations}


def test_a_coordinator_that_forgets_its_copies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a planted bug, all ranks begin from the beginning although there are copies. A rule
    finds it.
    """
    assert not any(broken_rules(seed) for seed in range(10))
    monkeypatch.setattr(RestoreSources, "note_kept", lambda self, step: None)
    assert any("NothingDurableLost" in broken_rules(seed) for seed in range(60))
