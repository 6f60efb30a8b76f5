"""What `--resume` brings from a URL to the disk, and what it refuses. The server is moto's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import UsageError
from outlast.model.limits import DOWNLOAD_TRIES_COUNT
from outlast.model.manifest import FileEntry
from outlast.runtime.objects.fetching import Fetched, fetch
from outlast.runtime.objects.url_places import open_place
from outlast.runtime.tiers import local
from outlast.runtime.tiers.tier import CheckpointTier
from tests.objects import s3_server
from tests.objects.placed import put
from tests.tiers.saved import flip_bit, save

RUN = "run-1"


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    return s3_server.shared(monkeypatch).new_url()


def good_steps(root: Path) -> list[int]:
    """Return the steps on the disk, after every byte of them was verified."""
    found = local.checkpoints(root)
    for one in found:
        local.verify(one)
    return [one.manifest.step for one in found]


def test_the_newest_is_brought_to_an_empty_disk(url: str, tmp_path: Path) -> None:
    put(url, tmp_path / "scratch", 5, 10)
    told: list[str] = []
    brought = fetch(open_place(url), tmp_path / "root", RUN, tell=told.append)
    assert (brought.step, told) == (10, [])
    assert brought.size_bytes > 0
    assert good_steps(tmp_path / "root") == [10]


def test_nothing_is_brought_where_the_disk_is_as_new(url: str, tmp_path: Path) -> None:
    put(url, tmp_path / "scratch", 5, 10)
    save(tmp_path / "root", 10)
    told: list[str] = []
    assert fetch(open_place(url), tmp_path / "root", RUN, tell=told.append) == Fetched()
    assert (told, good_steps(tmp_path / "root")) == ([], [10])


def test_a_newer_one_is_brought_beside_those_on_the_disk(url: str, tmp_path: Path) -> None:
    put(url, tmp_path / "scratch", 10)
    save(tmp_path / "root", 5)
    assert fetch(open_place(url), tmp_path / "root", RUN, tell=print).step == 10
    assert good_steps(tmp_path / "root") == [10, 5]


def test_one_that_is_damaged_on_the_disk_is_replaced(url: str, tmp_path: Path) -> None:
    """And kept for people, under another name."""
    root = tmp_path / "root"
    put(url, tmp_path / "scratch", 5, 10)
    save(root, 5, 10)
    flip_bit(local.checkpoint_folder(root, 10) / "rank-0.safetensors")
    told: list[str] = []
    assert fetch(open_place(url), root, RUN, tell=told.append).step == 10
    assert good_steps(root) == [10, 5]
    (said,) = told
    assert said.endswith("it is kept as refused-step-000000000010")


class Flipped:
    """A tier whose bytes arrive damaged, so often."""

    def __init__(self, tier: CheckpointTier, times: int) -> None:
        self._tier = tier
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    def chunks(self, step: int, entry: FileEntry) -> Iterator[memoryview]:
        for data in self._tier.chunks(step, entry):
            if self.times and entry.name == "rank-1.safetensors":
                self.times -= 1
                yield memoryview(bytes([data[0] ^ 1]) + bytes(data[1:]))
            else:
                yield data


def test_bytes_that_are_damaged_on_their_way_are_asked_for_again(url: str, tmp_path: Path) -> None:
    source: Any = Flipped(put(url, tmp_path / "scratch", 10), DOWNLOAD_TRIES_COUNT - 1)
    told: list[str] = []
    assert fetch(source, tmp_path / "root", RUN, tell=told.append).step == 10
    assert (source.times, told, good_steps(tmp_path / "root")) == (0, [], [10])


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "manifest"])
def test_a_damaged_one_is_refused_by_name_and_an_older_one_taken(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """It is set aside at the URL, so that its step can be uploaded again."""
    server = s3_server.shared(monkeypatch)
    tier = put(url, tmp_path / "scratch", 5, 10)
    name = "manifest.json" if damage == "manifest" else "rank-1.safetensors"
    where = f"{url}/step-000000000010/{name}"
    data = bytearray(server.object(where))
    data[len(data) // 2] ^= 1
    changed = {"missing": None, "cut": bytes(data[:-1])}.get(damage, bytes(data))
    server.set_object(where, changed)
    told: list[str] = []
    assert fetch(open_place(url), tmp_path / "root", RUN, tell=told.append).step == 5
    assert good_steps(tmp_path / "root") == [5]
    assert not list((tmp_path / "root").glob("*10*"))
    (said,) = told
    assert said.startswith(f"a checkpoint was refused: {url}/step-000000000010")
    assert said.endswith("it is kept as step-000000000010/refused-manifest.json")
    assert [one.step for one in tier.step_folders() if one.has_manifest] == [5]
    put(url, tmp_path / "scratch2", 10)
    assert tier.why_not(10) == ""


def test_what_is_not_whole_or_of_another_run_is_passed_over(url: str, tmp_path: Path) -> None:
    tier = put(url, tmp_path / "scratch", 5)
    put(url, tmp_path / "theirs", 7, run="another")
    tier.put(9, "rank-0.safetensors", [memoryview(b"half")])
    told: list[str] = []
    assert fetch(open_place(url), tmp_path / "root", RUN, tell=told.append).step == 5
    assert told == [
        f"{url}: step 9 has no manifest, and is passed over",
        f"{url}: step 7 is of another run, another: it is not used",
    ]
    assert tier.why_not(7) == ""


def test_a_place_that_cannot_be_reached_leaves_the_disk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is gone says nothing about checkpoints: none is refused for it."""
    s3_server.shared(monkeypatch)
    save(tmp_path, 5)
    with pytest.raises(UsageError, match="there is no such bucket"):
        fetch(open_place("s3://gone/run"), tmp_path, RUN, tell=print)
    assert good_steps(tmp_path) == [5]
