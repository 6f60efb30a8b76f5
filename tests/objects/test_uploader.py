"""What is uploaded and when, and what becomes of it if the server, the disk or a person interferes.

The server is a real one, over HTTP (moto's); the uploader runs in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.engine.durable import Retention
from outlast.model.keep import Every
from outlast.model.limits import UPLOAD_LAST_TRIES_COUNT
from outlast.model.manifest import FileEntry, Manifest
from outlast.runtime.objects.copying import BytePace, copy, held
from outlast.runtime.objects.patience import RequestPatience
from outlast.runtime.objects.upload_order import UploadOrder
from outlast.runtime.objects.uploader import Uploaded, Uploader, decide_upload
from outlast.runtime.objects.url_places import open_place
from outlast.runtime.tiers import local
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.tier import CheckpointTier
from tests.objects import s3_server
from tests.objects.s3_server import S3Server
from tests.tiers.saved import RANKS, flip_bit, save

RUN = "run-1"
HASTY = RequestPatience(request_s=5.0, retries=1, total_s=5.0)
HOUR = Every(seconds=3600.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    server = s3_server.shared(monkeypatch)
    yield server
    server.set_faults()


class Uploads:
    """An uploader, and what it has said. `turns`: what is done before each look, then it is over"""

    def __init__(self, root: Path, url: str, *turns: Callable[[], object], **order: Any) -> None:
        self.root, self.url = root, url
        self.said: list[dict[str, Any]] = []
        self.pauses: list[float] = []
        self._turns = list(turns)
        given = UploadOrder(url, root, RUN, **{"every": Every(steps=1), **order})
        self._uploader = Uploader(given, self._open, self.said.append, self._rest)

    def _open(self) -> CheckpointTier:
        return open_place(self.url, patience=HASTY)

    def _rest(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        if not self._turns:
            return True
        self._turns.pop(0)()
        return False

    def run(self) -> bool:
        return self._uploader.run()

    def of(self, what: str) -> list[dict[str, Any]]:
        return [one for one in self.said if one["what"] == what]

    @property
    def steps(self) -> list[int]:
        return [one["step"] for one in self.of("uploaded")]


def nothing() -> None:
    """Only look."""


def there(url: str) -> list[int]:
    """Return the steps at a URL whose every byte is right."""
    tier = open_place(url)
    steps = [one.step for one in tier.step_folders() if one.has_manifest]
    assert [tier.why_not(step) for step in steps] == [""] * len(steps)
    return steps


@pytest.mark.parametrize(
    ("newest", "last", "every", "is_over", "due"),
    [
        (0, Uploaded(), HOUR, True, False),
        (5, Uploaded(), HOUR, False, True),  # the first one does not wait: it shows that it works
        (6, Uploaded(5, 1000.0), HOUR, False, False),
        (6, Uploaded(5, 1000.0), HOUR, True, True),
        (5, Uploaded(5, 1000.0), HOUR, True, False),
        (4, Uploaded(5, 1000.0), HOUR, True, False),
        (6, Uploaded(5, 1000.0 - 3600.0), HOUR, False, True),
        (6, Uploaded(5, 9000.0), HOUR, False, True),  # a clock that has gone back
        (6, Uploaded(5, 0.0), Every(steps=1), False, True),
        (9, Uploaded(5, 0.0), Every(steps=5), False, False),
        (10, Uploaded(5, 0.0), Every(steps=5), False, True),
    ],
)
def test_what_is_due(newest: int, last: Uploaded, every: Every, is_over: bool, due: bool) -> None:
    assert decide_upload(newest, last, every=every, now_s=1000.0, is_over=is_over) is due


def test_the_newest_goes_at_its_time_and_the_last_one_goes_in_any_case(
    server: S3Server, tmp_path: Path
) -> None:
    """Method: with EVERY of an hour, checkpoints appear at each look. The first goes, and the last
    once the run is over. Nothing of the other run goes.
    """
    save(tmp_path, 99, run="another")
    uploads = Uploads(
        tmp_path,
        server.new_url(),
        nothing,
        lambda: save(tmp_path, 1, 2),
        lambda: save(tmp_path, 3),
        lambda: save(tmp_path, 4),
        every=HOUR,
    )
    assert uploads.run()
    assert uploads.steps == [2, 4]
    assert there(uploads.url) == [4, 2]
    size = sum(entry.length for entry in DiskTier(tmp_path).manifest(4).files)
    assert uploads.of("uploaded")[-1]["bytes"] == size
    assert not uploads.of("failed")


def test_old_ones_go_as_on_the_disk_and_only_there(server: S3Server, tmp_path: Path) -> None:
    turns = [lambda step=step: save(tmp_path, step) for step in range(1, 8)]
    uploads = Uploads(tmp_path, server.new_url(), *turns, retention=Retention(2, every=3))
    assert uploads.run()
    assert there(uploads.url) == [7, 6, 3]
    assert len(local.checkpoints(tmp_path)) == 7


def test_errors_of_the_server_are_repeated_and_reported(server: S3Server, tmp_path: Path) -> None:
    """Method: more 503 in a row than one request is repeated; then all is well."""
    save(tmp_path, 5)
    uploads = Uploads(tmp_path, server.new_url(), lambda: server.set_faults(fail=5), *[nothing] * 5)
    assert uploads.run()
    assert server.faults() == {"failed": 5, "left": 0}
    assert there(uploads.url) == [5]
    failed = uploads.of("failed")
    assert failed
    assert [one["failures"] for one in failed] == list(range(1, len(failed) + 1))
    assert all("the server answers 503" in one["why"] for one in failed)
    # each pause after a failure is longer than the one before
    assert uploads.pauses[2 : 1 + len(failed)] == sorted(uploads.pauses[2 : 1 + len(failed)])


def test_a_slow_server_is_waited_for(server: S3Server, tmp_path: Path) -> None:
    save(tmp_path, 5)
    uploads = Uploads(tmp_path, server.new_url(), lambda: server.set_faults(delay_s=0.3))
    assert uploads.run()
    assert uploads.steps == [5]
    assert uploads.of("uploaded")[0]["seconds"] >= 0.3 * (RANKS + 1)
    server.set_faults()
    assert there(uploads.url) == [5]


def test_a_bucket_that_is_gone_is_given_up_at_the_end_only(
    server: S3Server, tmp_path: Path
) -> None:
    save(tmp_path, 5)
    uploads = Uploads(tmp_path, "s3://gone/run", nothing, nothing)
    assert not uploads.run()
    failed = uploads.of("failed")
    assert len(failed) == 2 + UPLOAD_LAST_TRIES_COUNT
    assert all(one["why"] == "s3://gone/run: there is no such bucket" for one in failed)
    assert [one.manifest.step for one in local.checkpoints(tmp_path)] == [5]


@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_what_is_damaged_on_the_disk_never_gets_a_manifest(
    server: S3Server, tmp_path: Path, damage: str
) -> None:
    """It is reported once by name, and the next checkpoint goes."""
    save(tmp_path, 1)
    shard = local.checkpoint_folder(tmp_path, 1) / "rank-1.safetensors"
    match damage:
        case "flip":
            flip_bit(shard)
        case "cut":
            shard.write_bytes(shard.read_bytes()[:-1])
        case "missing":
            shard.unlink()
    uploads = Uploads(
        tmp_path, server.new_url(), nothing, nothing, nothing, lambda: save(tmp_path, 2)
    )
    assert uploads.run()
    (failed,) = uploads.of("failed")
    assert "step-000000000001/rank-1.safetensors" in failed["why"]
    assert there(uploads.url) == [2]


def test_one_that_is_removed_while_it_goes_up_arrives_whole(
    server: S3Server, tmp_path: Path
) -> None:
    """A slow bucket must not be outrun by the retention of the disk."""
    disk, target = save(tmp_path, 7), open_place(server.new_url())
    manifest = disk.manifest(7)

    def removed_first(entry: FileEntry) -> Iterator[memoryview]:
        if disk.step_folders():
            disk.remove(7)
        yield from chunks(entry)

    with held(disk.folder(7), manifest) as chunks:
        copy(manifest, target, chunks=removed_first, source="here", pace=BytePace())
    assert not disk.step_folders()
    assert target.why_not(7) == ""


def test_a_checkpoint_at_the_url_is_never_written_over(server: S3Server, tmp_path: Path) -> None:
    """Method: another run has put the same step there in the meantime."""
    url = server.new_url()
    save(tmp_path / "a", 5)
    theirs = Manifest("another", 1, 5, 1, "sharded", ())
    open_place(url).commit(theirs)
    uploads = Uploads(tmp_path / "a", url, nothing, lambda: save(tmp_path / "a", 6))
    assert uploads.run()
    (failed,) = uploads.of("failed")
    assert "holds a checkpoint already" in failed["why"]
    assert open_place(url).manifest(5) == theirs
    assert uploads.steps == [6]


def test_a_manifest_whose_answer_was_lost_counts_as_written(server: S3Server) -> None:
    """A put that is repeated finds its own object there."""
    tier = open_place(server.new_url())
    manifest = Manifest(RUN, 1, 5, 1, "sharded", (tier.put(5, "a", [memoryview(b"x")]),))
    tier.commit(manifest)
    tier.commit(manifest)
    assert tier.manifest(5) == manifest


def test_what_an_upload_that_was_cut_short_has_left_goes_later(
    server: S3Server, tmp_path: Path
) -> None:
    url = server.new_url()
    open_place(url).put(3, "rank-0.safetensors", [memoryview(b"half")])
    save(tmp_path, 5)
    uploads = Uploads(tmp_path, url)
    assert uploads.run()
    assert [one.step for one in open_place(url).step_folders()] == [5]


def test_a_large_file_goes_in_parts_and_comes_back(server: S3Server) -> None:
    tier = open_place(server.new_url())
    data = bytes(range(251)) * ((40 << 20) // 251)
    blocks = [memoryview(data)[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
    entry = tier.put(1, "a", blocks, length=len(data))
    assert b"".join(map(bytes, tier.chunks(1, entry))) == data


def test_the_pace_is_kept_by_the_clock() -> None:
    """Method: a clock that only pauses move."""
    now_s, seen = [0.0], list[int]()

    def pause(seconds: float) -> None:
        now_s[0] += seconds

    pace = BytePace(100.0, seen=seen.append, now=lambda: now_s[0], pause=pause)
    assert len(list(pace.through([memoryview(bytes(50))] * 10))) == 10
    assert now_s[0] == pytest.approx(4.5)  # the last of them may go once the others have
    list(pace.through([memoryview(bytes(50))]))
    assert now_s[0] == pytest.approx(5.0)
    assert sum(seen) == 550
