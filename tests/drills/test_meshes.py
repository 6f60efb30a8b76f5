"""Meshes of several dimensions under fault: tensor, sequence, pipeline and expert parallelism, each
beside a dimension that splits the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.drills._run import CalmRun, Fault, Outcome, drilled

pytestmark = pytest.mark.timeout(280)
SCRIPT, STEPS = "meshes.py", 30
RANKS = {"fsdp-tp": 4, "sequence": 4, "pipeline": 4, "experts": 4, "hsdp-tp": 8}
# (what, place, rank, step), one after another
KILLS = (
    ("SIGKILL", "forward", 1, 5),
    ("SIGKILL", "backward", 0, 10),
    ("SIGKILL", "before_optimizer", 3, 15),
    ("SIGKILL", "tail", 2, 20),
)
STOP = ("SIGSTOP", "backward", 2, 15)
SAME_DATA = {
    "fsdp-tp": [{0, 1}, {2, 3}],
    "sequence": [{0, 1}, {2, 3}],
    "pipeline": [{0, 1}, {2, 3}],
    "experts": [{0}, {1}, {2}, {3}],
    "hsdp-tp": [{0, 1}, {2, 3}, {4, 5}, {6, 7}],
}


def faults(*some: tuple[str, str, int, int]) -> list[Fault]:
    return [{"do": do, "at": at, "rank": rank, "step": step} for do, at, rank, step in some]


def batches(outcome: Outcome) -> Mapping[int, str]:
    """Return for each rank a hash of all that it was given to train on."""
    words = [line.split() for line in outcome.stdout.splitlines() if line.startswith("batches ")]
    return {int(rank): seen for _, rank, seen in words}


def same_data(outcome: Outcome) -> list[set[int]]:
    """Return the groups of ranks that were given the same batches."""
    seen = batches(outcome)
    groups = [{rank for rank in seen if seen[rank] == text} for text in set(seen.values())]
    return sorted(groups, key=min)


def struck(folder: Path, calm_run: CalmRun, kind: str, *some: tuple[str, str, int, int]) -> Outcome:
    """Strike a run at these places, and compare every rank with that of an undisturbed run."""
    arguments = ("--kind", kind, "--steps", STEPS)
    calm = calm_run(SCRIPT, *arguments, workers=RANKS[kind])
    outcome = drilled(
        folder, SCRIPT, *arguments, workers=RANKS[kind], strikes=faults(*some), within_s=120.0
    )
    assert outcome.code == 0, outcome
    assert len(list(folder.glob("once-strike-*"))) == len(some), outcome
    assert len(outcome.interruptions) == len(some), outcome
    assert sorted(outcome.digests) == list(range(RANKS[kind])), outcome
    assert outcome.digests == calm.digests, outcome
    assert batches(outcome) == batches(calm), outcome
    outcome.ledger_is_sound()
    return outcome


@pytest.mark.drill
@pytest.mark.parametrize("kind", [*RANKS])
def test_ranks_killed_in_turn_cost_no_step_and_no_bit(
    tmp_path: Path, calm_run: CalmRun, kind: str
) -> None:
    """Four ranks are killed, each at another place of its step. Survivors enter main again, and the
    ranks that share their data have the same batches to the end.
    """
    outcome = struck(tmp_path, calm_run, kind, *KILLS)
    assert same_data(outcome) == SAME_DATA[kind], outcome
    for one in outcome.interruptions:
        assert "survivors enter main's function again" in one["reason"], outcome


@pytest.mark.drill
@pytest.mark.parametrize("kind", RANKS)
def test_a_stopped_rank_of_a_mesh_is_replaced(tmp_path: Path, calm_run: CalmRun, kind: str) -> None:
    outcome = struck(tmp_path, calm_run, kind, STOP)
    assert [one["mechanism"] for one in outcome.interruptions] == ["hang"], outcome
