"""What every tier promises (runtime/tiers/tier.py), held against each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from outlast.errors import CorruptError, RunFolderError
from outlast.model.manifest import FileEntry, Manifest
from outlast.runtime.objects.url_places import open_place
from outlast.runtime.tiers import tier as tiers
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.tier import CheckpointTier
from tests.objects import s3_server
from tests.tiers import split

Made = Callable[[Path, pytest.MonkeyPatch], CheckpointTier]


def at_url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointTier:
    """Return a place in a real S3 server, over HTTP."""
    return open_place(s3_server.shared(monkeypatch).new_url())


# Each makes an empty tier in a place of its own.
TIERS: dict[str, Made] = {
    "disk": lambda folder, monkeypatch: DiskTier(folder / "new" / "root"),
    "file": lambda folder, monkeypatch: open_place((folder / "new" / "root").as_uri()),
    "s3": at_url,
}


@pytest.fixture(params=TIERS)
def tier(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CheckpointTier:
    return TIERS[request.param](tmp_path, monkeypatch)


def blocks(data: bytes) -> list[memoryview]:
    return [memoryview(data)[at : at + 7] for at in range(0, len(data), 7)]


def save(tier: CheckpointTier, step: int, *files: bytes) -> Manifest:
    entries = tuple(tier.put(step, f"f{at}", blocks(data)) for at, data in enumerate(files))
    manifest = Manifest("run", 0, step, 1, "sharded", entries)
    tier.commit(manifest)
    return manifest


def read(tier: CheckpointTier, step: int, entry: FileEntry, begin: int, size: int) -> bytes:
    data = bytearray(size)
    tier.read(step, entry, begin, memoryview(data))
    return bytes(data)


def test_an_empty_tier_has_nothing(tier: CheckpointTier) -> None:
    assert list(tier.step_folders()) == []
    assert tiers.newest_good(tier) == tiers.Search(None, ())
    assert tiers.superfluous(tier, keep=1) == ()
    with pytest.raises(CorruptError):
        tier.manifest(1)


def test_a_file_is_read_as_it_was_written(tier: CheckpointTier) -> None:
    entry = tier.put(1, "a", blocks(b"hello, world"))
    assert entry == FileEntry("a", 12, xxhash.xxh3_64_intdigest(b"hello, world"))
    assert read(tier, 1, entry, 7, 5) == b"world"
    assert read(tier, 1, entry, 0, 12) == b"hello, world"
    assert read(tier, 1, entry, 12, 0) == b""
    empty = tier.put(1, "b", [])
    assert (empty.length, read(tier, 1, empty, 0, 0)) == (0, b"")


def test_a_checkpoint_exists_once_its_manifest_does(tier: CheckpointTier) -> None:
    tier.put(3, "f0", blocks(b"half"))
    assert [(one.step, one.has_manifest) for one in tier.step_folders()] == [(3, False)]
    assert tiers.newest_good(tier).step is None
    manifest = save(tier, 3, b"whole", b"")
    assert [(one.step, one.has_manifest) for one in tier.step_folders()] == [(3, True)]
    assert tier.manifest(3) == manifest
    assert tier.why_not(3) == ""
    assert tier.written_s(3) > 0


def test_steps_are_listed_newest_first(tier: CheckpointTier) -> None:
    for step in (2, 10, 9):
        save(tier, step, b"x")
    assert [one.step for one in tier.step_folders()] == [10, 9, 2]


def test_a_committed_step_is_never_written_over(tier: CheckpointTier) -> None:
    manifest = save(tier, 1, b"mine")
    with pytest.raises(RunFolderError):
        tier.put(1, "f0", blocks(b"theirs"))
    assert read(tier, 1, manifest.files[0], 0, 4) == b"mine"


def test_what_is_not_there_in_its_length_cannot_be_committed_or_read(tier: CheckpointTier) -> None:
    entry = tier.put(1, "a", blocks(b"four"))
    for wrong in (FileEntry("a", 5, entry.checksum), FileEntry("b", 4, entry.checksum)):
        with pytest.raises(CorruptError):
            tier.commit(Manifest("run", 0, 1, 1, "sharded", (wrong,)))
        with pytest.raises(CorruptError):
            read(tier, 1, wrong, 0, 0)
    assert not any(one.has_manifest for one in tier.step_folders())


def test_a_wrong_checksum_is_found_by_reading(tier: CheckpointTier) -> None:
    """Method: the manifest names another checksum than that of the bytes."""
    entry = tier.put(1, "a", blocks(b"four"))
    tier.commit(Manifest("run", 0, 1, 1, "sharded", (FileEntry("a", 4, entry.checksum ^ 1),)))
    save(tier, 2, b"good")
    counted: list[int] = []
    assert "checksum" in tier.why_not(1, seen=counted.append)
    assert sum(counted) == 4
    assert tiers.newest_good(tier).step == 2
    tier.remove(2)
    search = tiers.newest_good(tier)
    assert (search.step, [step for step, _ in search.refused]) == (None, [1])


def test_split_state_that_lacks_a_part_is_never_offered(tier: CheckpointTier) -> None:
    """Method: four ranks have split a state, and one has left out its part of a tensor."""
    tier.commit(split.put(tier, 1))
    assert tier.why_not(1) == ""
    with contextlib.suppress(CorruptError):
        tier.commit(split.put(tier, 2, lost="shared/large"))
    assert tiers.newest_good(tier).step == 1
    if any(one.step == 2 and one.has_manifest for one in tier.step_folders()):
        assert "shared/large is not whole" in tier.why_not(2)


def test_removing_leaves_the_others(tier: CheckpointTier) -> None:
    for step in (1, 2, 3, 4):
        save(tier, step, b"x" * step)
    assert tiers.superfluous(tier, keep=1, every=3) == (2, 1)
    for step in tiers.superfluous(tier, keep=1, every=3):
        tier.remove(step)
    assert [one.step for one in tier.step_folders()] == [4, 3]
    assert tier.why_not(3) == tier.why_not(4) == ""
    save(tier, 1, b"again")


def test_a_failing_source_leaves_nothing_under_the_name(tier: CheckpointTier) -> None:
    def source() -> list[memoryview]:
        raise OSError(5, "Input/output error")

    def chunks():  # type: ignore[no-untyped-def]
        yield memoryview(b"some")
        source()

    with pytest.raises(OSError, match="Input/output"):
        tier.put(1, "a", chunks())
    with pytest.raises(CorruptError):
        read(tier, 1, FileEntry("a", 4, 0), 0, 4)
    save(tier, 1, b"fine")
    assert tier.why_not(1) == ""


def test_all_bytes_of_a_file_come_in_order(tier: CheckpointTier) -> None:
    data = bytes(range(256)) * 3000
    entry = tier.put(1, "a", [memoryview(data)], length=len(data))
    assert b"".join(map(bytes, tier.chunks(1, entry))) == data
    empty = tier.put(1, "b", [])
    assert list(tier.chunks(1, empty)) == []
    for wrong in (FileEntry("a", 5, entry.checksum), FileEntry("c", 4, entry.checksum)):
        with pytest.raises(CorruptError):
            list(tier.chunks(1, wrong))


def test_one_that_is_set_aside_is_gone_and_its_step_can_be_saved(tier: CheckpointTier) -> None:
    save(tier, 1, b"good")
    save(tier, 2, b"not to be used")
    assert "refused-" in tier.set_aside(2)
    assert tiers.newest_good(tier).step == 1
    save(tier, 2, b"once more")
    assert tier.why_not(2) == ""


def test_trying_to_write_leaves_nothing_behind(tier: CheckpointTier) -> None:
    tier.try_writing()
    assert list(tier.step_folders()) == []
    save(tier, 1, b"x")
    tier.try_writing()
    assert [one.step for one in tier.step_folders()] == [1]
