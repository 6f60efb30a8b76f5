"""The process that uploads, as the launcher sees it: a real one, a real server, real signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from outlast.engine.durable import Retention
from outlast.model.keep import Every
from outlast.model.records import Event
from outlast.runtime.coordinator import upload_process
from outlast.runtime.coordinator.upload_process import UploadProcess
from outlast.runtime.linux import LOWEST_PRIORITY
from outlast.runtime.loop import Loop
from outlast.runtime.objects.upload_order import UploadOrder
from outlast.runtime.objects.url_places import open_place
from tests.objects import s3_server
from tests.objects.s3_server import S3Server
from tests.tiers.saved import save

RUN = "run-1"
WITHIN_S = 60.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as loop:
        yield loop


class Seen:
    """What the launcher is told, and what stands in the ledger."""

    def __init__(self, loop: Loop, root: Path, url: str, **plan: object) -> None:
        self.lines: list[str] = []
        self.events: list[Event] = []
        self._loop = loop
        given = UploadOrder(url, root, RUN, **{"every": Every(steps=1), **plan})  # type: ignore[arg-type]
        self.process = UploadProcess(loop, given, tell=self.lines.append, record=self.events.append)

    def of(self, kind: str) -> list[Event]:
        return [one for one in self.events if one.kind == kind]

    @property
    def steps(self) -> list[object]:
        return [one.data["step"] for one in self.of("uploaded")]

    def until(self, condition: Callable[[], object], what: str) -> None:
        done = self._loop.run_until(lambda: bool(condition()), within_s=WITHIN_S)
        assert done, (what, self.lines)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, self.lines
        return self.process.pid


def amid_an_upload(loop: Loop, root: Path, server: S3Server, url: str) -> Seen:
    """Return once the first shard is there. The server is slow from then on."""
    save(root, 1)
    server.set_faults(delay_s=0.5)
    seen, tier = Seen(loop, root, url), open_place(url)
    seen.until(lambda: [one.step for one in tier.step_folders()] == [1], "the first shard")
    return seen


def there(url: str) -> list[int]:
    tier = open_place(url)
    steps = [one.step for one in tier.step_folders() if one.has_manifest]
    assert [tier.why_not(step) for step in steps] == [""] * len(steps)
    return steps


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_checkpoints_go_up_while_the_run_goes_on_and_at_its_end(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And at the lowest priority, in a session of its own, with the old ones removed."""
    away = (tmp_path / "away").as_uri()
    url = away if kind == "file" else s3_server.shared(monkeypatch).new_url()
    root = tmp_path / "root"
    save(root, 1)
    seen = Seen(loop, root, url, retention=Retention(2), every=Every(seconds=3600.0))
    pid = seen.pid
    seen.until(lambda: seen.steps == [1], "the first")
    assert os.getpriority(os.PRIO_PROCESS, pid) == LOWEST_PRIORITY
    assert os.getsid(pid) == pid
    save(root, 2, 3)
    seen.process.finish()
    assert (seen.steps, there(url)) == ([1, 3], [3, 1])
    assert (seen.process.pid, seen.of("upload_failed")) == (None, [])
    assert not [line for line in seen.lines if line.startswith("warning")]
    uploaded = seen.of("uploaded")[0].data
    assert uploaded["url"] == url
    assert uploaded["bytes"]
    seen.process.close()


def test_an_uploader_that_is_killed_is_started_again(loop: Loop, tmp_path: Path) -> None:
    url = (tmp_path / "away").as_uri()
    save(tmp_path / "root", 1)
    seen = Seen(loop, tmp_path / "root", url)
    os.kill(seen.pid, signal.SIGKILL)
    seen.until(lambda: seen.steps == [1], "the upload")
    (warning,) = seen.of("warning")
    assert "its process has ended with exit code -9; started again in 1 s" in str(warning.data)
    seen.process.finish()
    assert there(url) == [1]


@pytest.mark.slow
def test_one_that_is_killed_within_an_upload_leaves_no_checkpoint(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the server is slow; the process is killed when the first shard is there."""
    server = s3_server.shared(monkeypatch)
    url = server.new_url()
    seen = amid_an_upload(loop, tmp_path, server, url)
    os.kill(seen.pid, signal.SIGKILL)
    server.set_faults()
    assert there(url) == []
    seen.until(lambda: seen.steps == [1], "the upload")
    assert there(url) == [1]
    seen.process.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_server_that_is_killed_and_comes_back_gets_all_of_it(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: killed while it answers slowly; it comes back empty, at the same port."""
    with s3_server.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = server.new_url()
        seen = amid_an_upload(loop, tmp_path, server, url)
        server.kill()
        save(tmp_path, 2)
        server.start()
        seen.until(lambda: seen.steps, "the upload")
        seen.process.finish()
        assert there(url)[0] == 2
        seen.process.close()


@pytest.mark.slow
def test_at_the_end_a_bucket_that_is_gone_is_given_up_with_a_warning(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.shared(monkeypatch)
    save(tmp_path, 1)
    seen = Seen(loop, tmp_path, "s3://gone/run")
    seen.until(lambda: seen.of("upload_failed"), "a failure")
    seen.process.finish()
    assert seen.process.pid is None
    said = seen.lines[-1]
    assert said.startswith(
        "warning: the newest checkpoint is not at s3://gone/run: s3://gone/run: there is no such"
        " bucket"
    )
    assert str(tmp_path) in said


@pytest.mark.slow
def test_at_the_end_a_silent_server_is_not_waited_for_long(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = s3_server.shared(monkeypatch)
    monkeypatch.setattr(upload_process, "UPLOAD_SILENT_S", 2.0)
    save(tmp_path, 1)
    server.set_faults(delay_s=15.0)
    try:
        seen = Seen(loop, tmp_path, server.new_url())
        began_s = time.monotonic()
        seen.process.finish()
        assert time.monotonic() - began_s < 12.0
    finally:
        server.set_faults()
    assert "nothing was heard for 2 s" in seen.lines[-1]
    assert seen.process.pid is None


@pytest.mark.slow
def test_a_signal_ends_the_wait_at_the_end(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: SIGTERM once the line that says what is waited for was told."""
    server = s3_server.shared(monkeypatch)
    save(tmp_path, 1)
    server.set_faults(delay_s=15.0)
    before = signal.getsignal(signal.SIGTERM)
    try:
        seen = Seen(loop, tmp_path, server.new_url())
        over = threading.Event()

        def send() -> None:
            while not any("Ctrl-C ends that" in line for line in seen.lines):
                if over.wait(0.02):
                    return
            os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=send)
        thread.start()
        seen.process.finish()
        over.set()
        thread.join()
    finally:
        server.set_faults()
    assert "ended by a signal" in seen.lines[-1]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_failures_are_told_less_and_less_often(loop: Loop, tmp_path: Path) -> None:
    """Each is counted in the ledger; the first, second, fourth and so on is told."""
    (tmp_path / "file").touch()
    save(tmp_path / "root", 1)
    seen = Seen(loop, tmp_path / "root", (tmp_path / "file" / "away").as_uri())
    seen.until(lambda: len(seen.of("upload_failed")) == 3, "three failures")
    assert [one.data["failures"] for one in seen.of("upload_failed")] == [1, 2, 3]
    assert [line.rpartition(": ")[2] for line in seen.lines] == ["1)", "2)"]
    seen.process.close()


@pytest.mark.slow
def test_at_the_end_failures_do_not_count_as_news(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the wait is shorter than the pause between two of the last tries."""
    s3_server.shared(monkeypatch)
    monkeypatch.setattr(upload_process, "UPLOAD_SILENT_S", 0.5)
    save(tmp_path, 1)
    seen = Seen(loop, tmp_path, "s3://gone/run")
    seen.until(lambda: seen.of("upload_failed"), "a failure")
    seen.process.finish()
    assert len(seen.of("upload_failed")) < 4
    assert "s3://gone/run: there is no such bucket" in seen.lines[-1]
    assert seen.process.pid is None
