"""Which checkpoints can be divided among another number of ranks, told without torch."""

from __future__ import annotations

from pathlib import Path

from outlast.runtime.tiers.dividing import why_not
from tests.tiers.divided import STATEFUL, A, replicated, sharded


def test_replicated_state_can_be_divided(tmp_path: Path) -> None:
    assert why_not(replicated(tmp_path, 1)) == ""


def test_a_stateful_loader_stays_with_its_ranks(tmp_path: Path) -> None:
    assert "StatefulDataLoader" in why_not(replicated(tmp_path, 1, position=STATEFUL))


def test_a_state_without_a_loader_can_be_divided(tmp_path: Path) -> None:
    assert why_not(replicated(tmp_path, 1, position=None)) == ""


def test_parts_that_make_a_whole_can_be_divided(tmp_path: Path) -> None:
    """The moments differ by rank, as those of shards do; a parameter that is not cut is alike."""
    held = {rank: {"model.a": A[rank : rank + 1], "model.b": A} for rank in range(3)}
    shards = {rank: {"model.a": [[3, 2], [rank, 0]]} for rank in range(3)}
    assert why_not(sharded(tmp_path, 1, held, shards=shards)) == ""


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    held = {rank: {"model.a": A[rank : rank + 1]} for rank in range(2)}
    shards = {rank: {"model.a": [[3, 2], [rank, 0]]} for rank in range(2)}
    assert "model.a do not make a whole" in why_not(sharded(tmp_path, 1, held, shards=shards))


def test_replicas_of_shards_count_once(tmp_path: Path) -> None:
    """HSDP: ranks 0 and 2 hold the same rows, and so do ranks 1 and 3; one rank has no row."""
    rows = {0: A[:2], 1: A[2:], 2: A[:2], 3: A[2:], 4: A[:0]}
    at = {0: [0, 0], 1: [2, 0], 2: [0, 0], 3: [2, 0], 4: [3, 0]}
    held = {rank: {"model.a": one} for rank, one in rows.items()}
    shards = {rank: {"model.a": [[3, 2], one]} for rank, one in at.items()}
    assert why_not(sharded(tmp_path, 1, held, shards=shards)) == ""


def test_stages_of_a_pipeline_are_named(tmp_path: Path) -> None:
    said = why_not(sharded(tmp_path, 1, {0: {"model.a": A}, 1: {"model.b": A}}))
    assert "model.a is on rank 0, and not on rank 1" in said


def test_values_of_each_rank_are_named(tmp_path: Path) -> None:
    said = why_not(sharded(tmp_path, 1, {0: {"model.a": A}, 1: {"model.a": A + 1}}))
    assert "each rank has values of its own for model.a" in said


def test_an_older_outlast_did_not_say_how_tensors_are_cut(tmp_path: Path) -> None:
    said = why_not(sharded(tmp_path, 1, {0: {"model.a": A}, 1: {"model.a": A}}, laid_out=False))
    assert "an older outlast" in said
