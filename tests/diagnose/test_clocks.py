"""One clock: times of ranks and nodes whose clocks are wrong are set right, and nobody else's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.clocks import APART_S, note_of, on_one_clock, wrong_clocks
from outlast.diagnose.findings import Finding
from outlast.model.verdict import Evidence, Role
from outlast.runtime.evidence.reading import diagnose
from tests.diagnose.collectives.simulator import Job, Layout


def line(at_s: float | None, *, rank: int | None = None, node: str | None = None) -> Finding:
    return Finding(Evidence("log", 1, "x", Role.ROOT), "cuda.oom", at_s=at_s, rank=rank, node=node)


OFFSETS = {0: 0.0, 1: 0.3, 2: 0.1, 3: -7_200.0}


def test_a_rank_whose_clock_is_wrong_is_set_right_and_so_is_its_node() -> None:
    """Method: rank 3 lives on b, whose clock is two hours behind; b's kernel log names no rank."""
    given = [
        line(100.0, rank=0, node="a"),
        line(-7_050.0, rank=3, node="b"),
        line(-7_040.0, node="b"),
        line(170.0, node="a"),
        line(180.0, node="c"),
    ]
    assert [one.at_s for one in on_one_clock(given, OFFSETS)] == pytest.approx(
        [100.0, 150.0, 160.0, 170.0, 180.0], abs=0.2
    )
    assert on_one_clock([line(None, rank=3)], OFFSETS) == [line(None, rank=3)]


def test_where_a_node_lives_may_be_told_elsewhere() -> None:
    assert [
        one.at_s
        for one in on_one_clock(
            [line(0.0, node="b")], OFFSETS, about=[line(None, rank=3, node="b")]
        )
    ] == pytest.approx([7_200.0], abs=0.2)


def test_clocks_that_agree_are_left_alone() -> None:
    offsets = {0: 0.0, 1: 0.9 * APART_S, 2: -0.9 * APART_S}
    given = [line(100.0, rank=1), line(200.0, rank=2)]
    assert (on_one_clock(given, offsets), note_of(offsets), wrong_clocks({})) == (given, "", {})


def test_it_is_said_whose_clock_was_off() -> None:
    assert "the clock of rank 3 is off by -7,200 s" in note_of(OFFSETS)
    assert "the clocks of ranks 2 and 3 are off by -7,200 s to +60 s" in note_of(
        {0: 0.0, 1: 0.0, 2: 60.0, 3: -7_200.0, 4: 0.0}
    )


@given(
    st.dictionaries(st.integers(0, 9), st.floats(-1e5, 1e5), max_size=8),
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 12)), max_size=8),
)
def test_the_order_in_time_of_one_rank_never_changes(
    offsets: dict[int, float], told: list[tuple[float, int]]
) -> None:
    before = [line(at_s, rank=rank) for at_s, rank in told]
    after = on_one_clock(before, offsets)
    moved = {
        one.rank: round((one.at_s or 0.0) - (was.at_s or 0.0), 3)
        for was, one in zip(before, after, strict=True)
    }
    assert all(
        round((one.at_s or 0.0) - (was.at_s or 0.0), 3) == moved[was.rank]
        for was, one in zip(before, after, strict=True)
    )
    assert all(moved[rank] == 0 for rank in moved if rank not in offsets)


@pytest.mark.parametrize("behind_s", [0, 7_200])
def test_what_came_first_is_told_by_one_clock(tmp_path: Path, behind_s: int) -> None:
    """Method: rank 0's disk is full at 10:00:00, and rank 5 is out of memory half an hour later, by
    a clock that is right or two hours behind. What came first is why; what came later by 0.75 less.
    """
    job = Job(Layout(2, 1, 4), sleeps={5: 9}, steps=3)
    for rank in range(8):
        dump = job.dump(rank)
        for entry in dump["entries"]:
            entry["time_created_ns"] -= behind_s * 10**9 if rank == 5 else 0
        (tmp_path / f"trace_{rank}.json").write_text(
            json.dumps({**dump, "entries": list(dump["entries"])})
        )
    (tmp_path / "rank_0.log").write_text(
        "2026-01-02 10:00:00 OSError: [Errno 28] No space left on device: '/ckpt'\n"
    )
    hour = 10 - behind_s // 3_600
    (tmp_path / "rank_5.log").write_text(
        f"2026-01-02 {hour:02}:30:00 torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    found = diagnose([str(tmp_path)])
    assert found.verdict.failure_class.value == "storage"
    assert any("clock of rank 5 is off by -7,200 s" in note for note in found.notes) is bool(
        behind_s
    )
