"""What a disk keeps of checkpoints, simulated as in a folder: shards first, manifest last, and what
is wrong is seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import OutlastError
from outlast.model.limits import CHECKPOINTS_KEPT_COUNT
from tests.conformance.disks import RANKS, Disk, FullError, RealDisk, Shard, SimulatedDisk


@pytest.fixture(params=["simulated", "real"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return SimulatedDisk() if request.param == "simulated" else RealDisk(tmp_path)


def shards(disk: Disk, step: int) -> list[Shard]:
    return [disk.shard(step, rank) for rank in range(RANKS)]


def save(disk: Disk, step: int) -> None:
    assert disk.manifest(step, shards(disk, step))


def test_a_checkpoint_is_there_once_its_manifest_is(disk: Disk) -> None:
    save(disk, 1)
    written = shards(disk, 2)
    assert (disk.find(), disk.steps()) == ((1, 0), [1])
    assert not disk.reads(2, 0)
    assert disk.manifest(2, written)
    assert (disk.find(), disk.steps()) == ((2, 0), [2, 1])
    assert all(disk.reads(2, rank) for rank in range(RANKS))


def test_a_shard_that_was_cut_short_is_not_there(disk: Disk) -> None:
    before = shards(disk, 1)
    assert disk.manifest(1, before)
    one = disk.shard(2, 0)
    disk.shard_cut_short(2, 1)
    assert not disk.manifest(2, [one, before[1]])
    assert disk.find() == (1, 0)
    save(disk, 2)
    assert disk.find() == (2, 0)


@pytest.mark.parametrize("at", ["shard", "manifest"])
def test_a_full_disk_costs_the_save_and_no_checkpoint_before(disk: Disk, at: str) -> None:
    save(disk, 1)
    written = shards(disk, 2) if at == "manifest" else []
    disk.fill(full=True)
    if at == "manifest":
        assert not disk.manifest(2, written)
    else:
        with pytest.raises(FullError):
            disk.shard(2, 0)
    assert disk.find() == (1, 0)
    assert disk.reads(1, 0)
    disk.fill(full=False)
    save(disk, 2)
    assert disk.find() == (2, 0)


@pytest.mark.parametrize("what", ["manifest", "0", "1"])
@pytest.mark.parametrize("how", ["corrupt", "torn"])
def test_what_is_not_as_written_is_refused_and_the_one_before_is_found(
    disk: Disk, what: str, how: str
) -> None:
    save(disk, 1)
    save(disk, 2)
    disk.spoil(2, what, how)
    assert disk.find() == (1, 1)
    assert disk.find() == (1, 0), "it is set aside"
    save(disk, 2)
    assert disk.find() == (2, 0), "its step can be saved again"


def test_a_checkpoint_is_not_written_over(disk: Disk) -> None:
    save(disk, 1)
    with pytest.raises(OutlastError):
        disk.shard(1, 0)
    assert disk.find() == (1, 0)


def test_where_nothing_is_good_nothing_is_found(disk: Disk) -> None:
    assert disk.find() == (0, 0)
    save(disk, 1)
    disk.spoil(1, "manifest", "torn")
    assert disk.find() == (0, 1)


def test_the_newest_are_kept_and_older_leftovers_go(disk: Disk) -> None:
    for step in (1, 3, 4):
        save(disk, step)
    left = shards(disk, 5)
    save(disk, 6)
    assert disk.steps() == [6, 4][:CHECKPOINTS_KEPT_COUNT]
    assert not disk.manifest(5, left), "its shards are gone"


def test_the_only_good_one_outlives_any_number_of_bad_ones(disk: Disk) -> None:
    """Each has a shard that is spoilt before its manifest is written, which is also when older ones
    are removed.
    """
    save(disk, 1)
    for step in range(2, 6):
        written = shards(disk, step)
        disk.spoil(step, "0", "corrupt")
        assert disk.manifest(step, written)
    assert disk.steps() == [5, 4, 3, 2, 1]
    assert disk.find() == (1, 4)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["cut short", "full"]), st.integers(1, 5)),
        st.tuples(st.sampled_from(["corrupt", "torn"]), st.sampled_from(["manifest", "0", "1"])),
        st.tuples(st.just("find"), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=30)
@given(acts=ACTS)
def test_any_course_of_saves_and_faults_leaves_the_same_in_both(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, Any]]
) -> None:
    """Method: the same acts on both, steps growing as in a run; what is found, refused and kept is
    the same after each.
    """
    pair: tuple[Disk, Disk] = (SimulatedDisk(), RealDisk(tmp_path_factory.mktemp("disk")))
    step = 0
    for what, value in acts:
        step += value if isinstance(value, int) else 0
        newest = max(pair[0].steps(), default=0)
        for disk in pair:
            if what == "save":
                save(disk, step)
            elif what == "cut short":
                disk.shard(step, 0)
            elif what == "full":
                written = shards(disk, step)
                disk.fill(full=True)
                assert not disk.manifest(step, written)
                disk.fill(full=False)
            elif what == "find":
                disk.found = disk.find()  # type: ignore[attr-defined]
            elif newest:
                disk.spoil(newest, value, what)
        if what == "find":
            assert pair[0].found == pair[1].found  # type: ignore[attr-defined]
        assert pair[0].steps() == pair[1].steps() or what in ("corrupt", "torn")
