"""Several folders of `outlast diagnose --collect` that are read together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.runtime.evidence.collected import collected_folder, of_earlier_attempts
from outlast.runtime.evidence.reading import diagnose

WAITS = "all_reduce (torch/distributed/distributed_c10d.py:2501)"


def collect_into(folder: Path, *, at_s: float, first_pid: int, ranks: range, apart: int) -> None:
    """Write what `--collect` writes about ranks that wait for rank `apart`, which is elsewhere."""
    (folder / "node").mkdir(parents=True)
    (folder / "stacks").mkdir()
    pids = {rank: first_pid + rank for rank in ranks}
    record = {"collected_at_s": at_s, "ranks": {pid: rank for rank, pid in pids.items()}}
    (folder / "node/collected.json").write_text(json.dumps({**record, "lacking": []}, indent=1))
    for rank, pid in pids.items():
        frame = "save_checkpoint (train.py:25)" if rank == apart else WAITS
        look = (
            f"Process {pid}: python -u train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
            f'Thread {pid} (idle): "MainThread"\n    {frame}\n    <module> (train.py:57)\n'
        )
        (folder / f"stacks/stack_rank_{rank}.txt").write_text(f"{look}\n{look}")


@pytest.mark.parametrize("newest", ["a", "b"])
def test_of_two_attempts_in_one_folder_only_the_newer_one_is_read(
    tmp_path: Path, newest: str
) -> None:
    """The files were copied, so their own times say nothing. The record of the collection counts.
    Rank 1 hung in folder a, and rank 2 in folder b.
    """
    for name, apart, pid in (("a", 1, 100), ("b", 2, 900)):
        at_s = 1_795_790_000.0 + (300.0 if name == newest else 0.0)
        collect_into(tmp_path / name, at_s=at_s, first_pid=pid, ranks=range(4), apart=apart)
    verdict = diagnose([str(tmp_path)]).verdict
    assert [one.rank for one in verdict.ranks] == [1 if newest == "a" else 2]
    older = "b" if newest == "a" else "a"
    assert f"only the newest collection is read, and not {older};" in verdict.reason


@pytest.mark.parametrize("newest", ["outer", "inner"])
def test_a_collection_may_lie_in_the_folder_of_another(tmp_path: Path, newest: str) -> None:
    """Rank 1 hung in the outer folder, and rank 2 in the one within it."""
    for name, folder, apart, pid in (
        ("outer", tmp_path, 1, 100),
        ("inner", tmp_path / "again", 2, 900),
    ):
        at_s = 1_795_790_000.0 + (300.0 if name == newest else 0.0)
        collect_into(folder, at_s=at_s, first_pid=pid, ranks=range(4), apart=apart)
    verdict = diagnose([str(tmp_path)]).verdict
    assert [one.rank for one in verdict.ranks] == [1 if newest == "outer" else 2]


def test_folders_of_two_nodes_are_one_incident(tmp_path: Path) -> None:
    for name, ranks in (("a", range(2)), ("b", range(2, 4))):
        collect_into(tmp_path / name, at_s=100.0 + len(ranks), first_pid=7, ranks=ranks, apart=3)
    verdict = diagnose([str(tmp_path)]).verdict
    assert [one.rank for one in verdict.ranks] == [3]
    assert "newest collection" not in verdict.reason


def test_a_job_that_was_collected_twice_is_read_from_both_folders(tmp_path: Path) -> None:
    for name, at_s in (("a", 100.0), ("b", 400.0)):
        collect_into(tmp_path / name, at_s=at_s, first_pid=7, ranks=range(4), apart=3)
    verdict = diagnose([str(tmp_path)]).verdict
    assert [one.rank for one in verdict.ranks] == [3]
    assert "newest collection" not in verdict.reason


@pytest.mark.parametrize(
    "record",
    [b"", b"{", b"[]", b'{"ranks": 3}', b'{"ranks": {"x": 1}, "collected_at_s": 1}', b"[" * 99_999],
)
def test_a_record_that_was_changed_says_nothing(record: bytes) -> None:
    assert collected_folder("a/node/collected.json", record) is None
    assert of_earlier_attempts([]) == []
