"""Replicated state of which each rank writes a share: they make the whole, or are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import CorruptError
from outlast.model.limits import SPLIT_LEAST_BYTES
from outlast.model.manifest import SPLIT, Manifest
from outlast.runtime.tiers import local
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.image import ImageHeader, TensorPiece, TensorSpec
from outlast.runtime.tiers.replicated import read_replicated
from outlast.runtime.tiers.split_state import Contents, SharePart, metadata_of, split
from tests.tiers import split as saved
from tests.tiers.divided import replicated as old_form
from tests.tiers.faulty import FaultyDisk, crash, in_a_child
from tests.tiers.saved import flip_bit

SHAPES = st.lists(st.lists(st.integers(0, 600), max_size=3).map(tuple), min_size=1, max_size=12)


def specs_of(shapes: list[tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"t{at}", "F32", shape) for at, shape in enumerate(shapes))


def header_of(parts: tuple[SharePart, ...], contents: tuple[TensorSpec, ...] | None) -> ImageHeader:
    specs = [part.own_spec for part in parts]
    spans = tuple((spec, 0, spec.nbytes) for spec in specs)
    return ImageHeader(metadata_of(specs, parts, contents=contents), 0, spans)


# --- the shares -----------------------------------------------------------------------------------


@given(SHAPES, st.integers(1, 9))
def test_shares_have_each_row_once_and_are_about_equal(
    shapes: list[tuple[int, ...]], ranks: int
) -> None:
    """A rank has at most one part of a tensor, since a file has a name once."""
    specs = specs_of(shapes)
    shares = split(specs, ranks)
    headers = {
        f"f{rank}": header_of(parts, None if rank else specs) for rank, parts in enumerate(shares)
    }
    Contents.of(headers["f0"].metadata).check(headers)
    sizes = [sum(part.own_spec.nbytes for part in parts) for parts in shares]
    assert sum(sizes) == sum(spec.nbytes for spec in specs)
    for parts in shares:
        names = [part.spec.name for part in parts]
        assert len(names) == len(set(names))
    writers = max(1, min(ranks, sum(sizes) // SPLIT_LEAST_BYTES))
    assert sum(1 for size in sizes if size) <= writers
    # A share begins and ends at the row nearest to its place, and small tensors are not cut.
    slack = max(SPLIT_LEAST_BYTES, *map(row_bytes, specs))
    assert max(sizes) <= sum(sizes) / writers + slack


def row_bytes(spec: TensorSpec) -> int:
    """Return the bytes of a row, as the tensor is cut."""
    rows = next((size for size in spec.shape if size != 1), 1)
    return spec.nbytes // max(rows, 1)


@given(SHAPES, st.integers(1, 5), st.randoms())
def test_ranks_agree_whatever_the_order_of_their_tensors(
    shapes: list[tuple[int, ...]], ranks: int, random: Any
) -> None:
    """A rank that was replaced may hold its optimizer's state in another order."""
    specs = list(specs_of(shapes))
    first = split(tuple(specs), ranks)
    random.shuffle(specs)
    assert split(tuple(specs), ranks) == first


def test_one_large_tensor_is_cut_evenly_and_few_others_are() -> None:
    """Method: a transformer's shapes on four ranks."""
    shapes = [(50_000, 64), *[(256, 64), (64,), (64, 256), (1, 64, 64), ()] * 20]
    shares = split(specs_of(shapes), 4)
    sizes = [sum(part.own_spec.nbytes for part in parts) for parts in shares]
    assert max(sizes) <= 1.02 * min(sizes)
    cut = {part.spec.name for parts in shares for part in parts if not part.is_whole}
    assert 1 <= len(cut) <= 3, cut


def test_a_small_state_is_written_by_rank_0_alone() -> None:
    shares = split(specs_of([(100,), (50, 20)]), 4)
    assert [len(parts) for parts in shares] == [2, 0, 0, 0]


# --- the files ------------------------------------------------------------------------------------


def committed(root: Path, *steps: int, ranks: int = 4) -> DiskTier:
    tier = DiskTier(root)
    for step in steps:
        tier.commit(saved.put(tier, step, ranks=ranks))
    return tier


def checkpoint(root: Path, step: int) -> local.CheckpointFolder:
    found = local.read_manifest(local.checkpoint_folder(root, step))
    assert isinstance(found, local.CheckpointFolder)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_the_whole_state_comes_back_with_any_ranks_private_state(
    tmp_path: Path, ranks: int
) -> None:
    committed(tmp_path, 5, ranks=ranks)
    for like in range(ranks):
        image = read_replicated(checkpoint(tmp_path, 5), like)
        for name, one in saved.state(5).items():
            spec, data = image.tensors[name]
            assert (spec.shape, bytes(data)) == (one.shape, one.tobytes()), name
        assert bytes(image.tensors["private/text"][1]) == f"rank {like}".encode()
        assert bytes(image.tensors["shared/text"][1]) == b"{}"
    with pytest.raises(CorruptError, match=f"has no rank-{ranks}"):
        read_replicated(checkpoint(tmp_path, 5), ranks)


def test_each_rank_writes_about_its_share(tmp_path: Path) -> None:
    committed(tmp_path, 5)
    sizes = [entry.length for entry in checkpoint(tmp_path, 5).manifest.files]
    whole = sum(one.nbytes for one in saved.state(5).values())
    assert max(sizes) < 1.2 * whole / 4, sizes


def test_the_old_form_is_still_read(tmp_path: Path) -> None:
    """Before, rank 0's file had the whole state."""
    old_form(tmp_path, 3)
    for like in (0, 1):
        image = read_replicated(checkpoint(tmp_path, 3), like)
        assert {"shared/model.a", "private/text"} <= set(image.tensors)


@pytest.mark.parametrize("file", [0, 1, 2, 3])
def test_a_flipped_bit_in_any_file_is_found(tmp_path: Path, file: int) -> None:
    """In the restore itself too, since a disk may damage a file after it was verified."""
    committed(tmp_path, 1, 2)
    folder = local.checkpoint_folder(tmp_path, 2)
    for at in (-1, 9, -5000):
        flip_bit(folder / local.shard_name(file), at)
        with pytest.raises(CorruptError):
            read_replicated(checkpoint(tmp_path, 2))
        search = local.newest_good(tmp_path)
        assert search.checkpoint is not None
        assert (search.checkpoint.manifest.step, len(search.refused)) == (1, 1)
        flip_bit(folder / local.shard_name(file), at)
    assert local.newest_good(tmp_path).refused == ()


@pytest.mark.parametrize("file", [0, 1, 2, 3])
@pytest.mark.parametrize("cut", [0, 8, 4000, None])
def test_a_missing_or_shortened_file_is_named(tmp_path: Path, file: int, cut: int | None) -> None:
    committed(tmp_path, 1, 2)
    path = local.checkpoint_folder(tmp_path, 2) / local.shard_name(file)
    if cut is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:cut])
    search = local.newest_good(tmp_path)
    assert search.checkpoint is not None
    assert search.checkpoint.manifest.step == 1
    assert local.shard_name(file) in search.refused[0].reason
    with pytest.raises(CorruptError, match=f"rank-{file}"):
        read_replicated(checkpoint(tmp_path, 2))


@pytest.mark.parametrize("lost", list(saved.state(0)))
def test_files_that_lack_a_part_are_never_committed(tmp_path: Path, lost: str) -> None:
    tier = committed(tmp_path, 1)
    manifest = saved.put(tier, 2, lost=lost)
    with pytest.raises(CorruptError, match=f"{lost} is not whole: no file has its rows"):
        tier.commit(manifest)
    assert [one.manifest.step for one in local.checkpoints(tmp_path)] == [1]


def test_files_that_lack_a_part_are_never_restored(tmp_path: Path) -> None:
    """Method: the manifest is written by other means, and all of its checksums are right."""
    tier = committed(tmp_path, 1)
    for step, faults in ((2, {"lost": "shared/large"}), (3, {"twice": True})):
        manifest = saved.put(tier, step, **faults)  # type: ignore[arg-type]
        path = local.checkpoint_folder(tmp_path, step) / local.MANIFEST_NAME
        path.write_bytes(manifest.encode())
        with pytest.raises(CorruptError, match=r"no file has its rows|two files have row"):
            read_replicated(checkpoint(tmp_path, step))
    search = local.newest_good(tmp_path)
    assert search.checkpoint is not None
    assert search.checkpoint.manifest.step == 1
    assert [one.folder.name[-1] for one in search.refused] == ["3", "2"]


def test_a_save_cut_short_at_any_write_is_never_offered(tmp_path: Path) -> None:
    """Method: a dry run counts the operations on the disk. Then one save ends at each of them, in
    the middle if it is a write. The step that was committed before stays the newest, until the
    manifest has its name.
    """
    counting = FaultyDisk()

    def save(root: Path, step: int, disk: local.Disk) -> None:
        tier = DiskTier(root, disk=disk)
        tier.commit(saved.put(tier, step))

    save(tmp_path / "dry", 2, counting)
    committed_after = counting.names.index(f"rename {local.MANIFEST_NAME}")
    assert len(counting.names) > 20
    for at in range(len(counting.names)):
        root = tmp_path / f"at-{at}"
        save(root, 1, local.DISK)
        assert in_a_child(lambda at=at, root=root: save(root, 2, FaultyDisk(at, crash))) == 7
        found = local.newest_good(root).checkpoint
        assert found is not None
        assert found.manifest.step == (2 if at > committed_after else 1), counting.names[at]
        read_replicated(found)


# --- headers that lie -----------------------------------------------------------------------------

WHOLE = TensorSpec("w", "F32", (4, 3))


@pytest.mark.parametrize(
    ("spec", "offsets"),
    [
        (TensorSpec("w", "F32", (2, 3)), [3, 0]),
        (TensorSpec("w", "F32", (2, 3)), [-1, 0]),
        (TensorSpec("w", "F32", (2, 3)), [0, 1]),
        (TensorSpec("w", "F32", (2, 3)), [0]),
        (TensorSpec("w", "F32", (2, 3)), [True, 0]),
        (TensorSpec("w", "F32", (2, 3)), None),
        (TensorSpec("w", "F32", (4, 2)), [0, 0]),
        (TensorSpec("w", "F32", (4,)), [0, 0]),
        (TensorSpec("w", "I32", (4, 3)), [0, 0]),
        (TensorSpec("w", "F32", ()), []),
    ],
)
def test_a_part_outside_its_tensor_is_refused(spec: TensorSpec, offsets: Any) -> None:
    metadata = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": offsets}})}
    header = ImageHeader(metadata, 0, ((spec, 0, spec.nbytes),))
    with pytest.raises(CorruptError, match="does not fit"):
        Contents({"w": WHOLE}).check({"f": header})


@pytest.mark.parametrize(
    "metadata",
    [{}, {"DCP_SHARDING_INFO": "{"}, {"DCP_SHARDING_INFO": "[]"}, {"DCP_SHARDING_INFO": "{}"}],
)
def test_a_header_that_does_not_say_where_its_parts_are_is_refused(
    metadata: dict[str, str],
) -> None:
    header = ImageHeader(metadata, 0, ((WHOLE, 0, WHOLE.nbytes),))
    with pytest.raises(CorruptError):
        Contents({"w": WHOLE}).check({"f": header})


@pytest.mark.parametrize(
    "said",
    ["", "{", "[]", '{"w": 3}', '{"w": ["F32", [-1]]}', '{"w": ["X", [1]]}', '{"w": ["F32", 1]}'],
)
def test_contents_that_cannot_be_read_are_refused(said: str) -> None:
    with pytest.raises(CorruptError, match="what was split"):
        Contents.of({"outlast_contents": said})


def test_a_checkpoint_that_says_nothing_of_its_parts_is_refused(tmp_path: Path) -> None:
    """Method: the manifest says that state is split, and the files are those of the old form."""
    folder = local.checkpoint_folder(tmp_path, 1)
    data = np.zeros(3, np.float32)
    piece = TensorPiece(TensorSpec("shared/w", "F32", (3,)), data.view(np.uint8).data)
    entry = local.write_shard(folder, 0, pieces=[piece], metadata={})
    with pytest.raises(CorruptError, match="what was split"):
        local.write_manifest(folder, Manifest("run", 1, 1, 1, SPLIT, (entry,)))
