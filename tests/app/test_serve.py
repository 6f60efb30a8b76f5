"""`outlast serve`: pages, API and events, asked as a server would ask; and the command itself."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outlast.model.records import Event
from outlast.runtime.folders.run_files import NoFileError, run_files, tail
from outlast.runtime.fresh import Fresh
from tests.app.command import outlast
from tests.app.test_page import HOSTILE, Tags
from tests.ledger import a_run

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import anyio

from outlast.app.page.page_html import environment
from outlast.app.web.application import application
from outlast.app.web.guard import HEADERS, Guard
from outlast.app.web.pages import warm_up
from outlast.app.web.site import Site
from outlast.app.web.stream import Streams


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: str


def ask(
    app: Any,
    path: str,
    *,
    host: str = "127.0.0.1:7007",
    method: str = "GET",
    most_chunks: int = 0,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Answer:
    """Ask an application. `most_chunks`: hang up after so many pieces of the answer."""
    found: dict[str, Any] = {"body": b"", "chunks": 0}
    plain, _, query = path.partition("?")

    async def answered() -> None:
        hung_up = anyio.Event()

        async def receive() -> dict[str, Any]:
            if found.get("asked"):
                await hung_up.wait()
                return {"type": "http.disconnect"}
            found["asked"] = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                found["status"] = message["status"]
                found["headers"] = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                found["body"] += message.get("body", b"")
                found["chunks"] += 1
                if most_chunks and found["chunks"] >= most_chunks:
                    hung_up.set()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": urllib.request.unquote(plain),
            "raw_path": plain.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"host", host.encode()),
                *((name.encode(), value.encode()) for name, value in (headers or {}).items()),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 7007),
        }
        with anyio.fail_after(20):
            await app(scope, receive, send)

    anyio.run(answered)
    return Answer(found["status"], found["headers"], found["body"].decode())


def served(root: Path, only: str | None = None) -> Any:
    return application(Site(root, only))


def hostile_run(root: Path) -> Path:
    """A run of which every text is hostile, also the name of a node and a line of a log."""
    path = a_run.ended_run(root)
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute(
            "UPDATE interruptions SET reason = ?, error = ?, traceback = ?, nodes = json_array(?)",
            (HOSTILE,) * 4,
        )
        connection.execute("UPDATE lives SET node = ?, end = ?", (HOSTILE, HOSTILE))
        connection.execute("UPDATE meta SET run = ?", (HOSTILE,))
        text = "json_set(json, '$.workers[0].node', ?, '$.workers[0].state', ?)"
        connection.execute(f"UPDATE snapshot SET json = {text}", (HOSTILE, HOSTILE))
    (path / "logs" / "0").mkdir(parents=True)
    (path / "logs" / "0" / "stdout.log").write_text(f"{HOSTILE}\npassword=hunter2\n")
    return path


# --- pages ----------------------------------------------------------------------------------------

LEAVES = (
    "",
    "node?name=here",
    "rank?number=1",
    "interruption?id=3",
    "interruptions",
    "interruptions?before=3",
    "files",
)


@pytest.mark.parametrize("leaf", LEAVES)
def test_each_page_is_whole_and_its_links_are_relative(tmp_path: Path, leaf: str) -> None:
    """Every link leads to a page that is there, by a path that a proxy may put anything before."""
    a_run.ended_run(tmp_path)
    app = served(tmp_path)
    answer = ask(app, f"/runs/toy/{leaf}")
    assert answer.status == 200
    found = Tags(answer.body)
    assert not found.open
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"]
    for link in found.values("href") + found.values("src"):
        assert not link.startswith("/")
        assert "://" not in link
        if link.startswith("#"):
            assert link[1:] in ids
        elif not link.startswith(("data:", "../../static", "../../")):
            assert ask(app, f"/runs/toy/{link.removeprefix('./')}").status == 200, link
    for name, value in HEADERS.items():
        assert answer.headers[name.lower()] == value


def test_without_javascript_a_live_page_loads_itself_again(tmp_path: Path) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        body = ask(served(tmp_path), "/runs/toy/").body
    assert '<noscript><meta http-equiv="refresh"' in body
    assert 'data-events="events"' in body


@pytest.mark.parametrize("leaf", ["", "rank?number=0", "interruption?id=1", "interruptions"])
def test_no_text_of_a_run_becomes_markup(tmp_path: Path, leaf: str) -> None:
    hostile_run(tmp_path)
    answer = ask(served(tmp_path), f"/runs/toy/{leaf}")
    assert answer.status == 200
    found = Tags(answer.body)
    assert found.tags.count("script") <= 1  # our own
    assert "img" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "\x1b" not in answer.body
    assert "alert(1)" in answer.body


def test_a_log_is_shown_as_text_without_its_secrets(tmp_path: Path) -> None:
    hostile_run(tmp_path)
    app = served(tmp_path)
    assert "logs/0/stdout.log" in ask(app, "/runs/toy/files").body
    body = ask(app, "/runs/toy/file?path=logs/0/stdout.log").body
    assert "<img" not in body
    assert "\\x1b[31m" in body
    assert "hunter2" not in body


@pytest.mark.parametrize(
    "name",
    [
        "run.json",
        "logs/../run.json",
        "/etc/passwd",
        "logs",
        "logs//x",
        "logs/link/x",
        "logs/file-link",
        "logs/pipe",
        "logs/\0",
        "evidence/nothing",
    ],
)
def test_no_name_leads_out_of_the_logs_and_the_evidence(tmp_path: Path, name: str) -> None:
    path = a_run.ended_run(tmp_path / "runs")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("secret")
    (path / "logs" / "link").symlink_to(tmp_path / "outside")
    (path / "logs" / "file-link").symlink_to(tmp_path / "outside" / "x")
    os.mkfifo(path / "logs" / "pipe")
    with pytest.raises(NoFileError):
        tail(path, name, most_bytes=10)
    quoted = urllib.request.quote(name, safe="")
    assert ask(served(tmp_path / "runs"), f"/runs/toy/file?path={quoted}").status == 404
    assert run_files(path) == []


def test_a_long_log_is_shown_from_its_end_and_can_be_read_back(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    (path / "logs" / "x.log").write_text("".join(f"line {at}\n" for at in range(20_000)))
    app = served(tmp_path)
    body = ask(app, "/runs/toy/file?path=logs/x.log").body
    assert "line 19999" in body
    assert "line 5\n" not in body
    before = re.search(r"before=(\d+)", body)
    assert before is not None
    assert "line 12000\n" in ask(app, f"/runs/toy/file?path=logs/x.log&before={before[1]}").body


# --- the overview, and runs that cannot be read ---------------------------------------------------


def broken_runs(root: Path) -> None:
    """Six folders: a good run, a newer one, a corrupt one, an empty one, one that starts, none."""
    a_run.ended_run(root)
    for name, spoil in (
        (
            "newer",
            lambda path: (path / "run.json").write_text(
                (path / "run.json").read_text().replace('"format": ', '"format": 9')
            ),
        ),
        (
            "newer-ledger",
            lambda path: sqlite3.connect(path / "ledger.db").executescript(
                "PRAGMA user_version = 999"
            ),
        ),
        (
            "corrupt",
            lambda path: (path / "ledger.db").write_bytes(b"SQLite format 3\0" + b"x" * 9000),
        ),
        ("empty", lambda path: (path / "ledger.db").write_bytes(b"")),
        ("starting", lambda path: (path / "ledger.db").unlink()),
    ):
        made = a_run.ended_run(root / "made")
        for beside in ("ledger.db-wal", "ledger.db-shm"):
            (made / beside).unlink(missing_ok=True)
        spoil(made)
        made.rename(root / name)
    (root / "made").rmdir()
    (root / "no-run").mkdir()


def test_the_overview_says_of_each_run_how_it_is_or_why_not(tmp_path: Path) -> None:
    broken_runs(tmp_path)
    app = served(tmp_path)
    answer = ask(app, "/")
    assert answer.status == 200
    assert not Tags(answer.body).open
    assert "6 runs" in answer.body
    cards = {one["name"]: one for one in json.loads(ask(app, "/api/runs").body)}
    assert set(cards) == {"toy", "newer", "newer-ledger", "corrupt", "empty", "starting"}
    assert (cards["toy"]["state"], cards["toy"]["step"]) == ("ended", 200)
    assert all(one["problem"] for name, one in cards.items() if name != "toy")
    assert "install outlast" in cards["newer"]["problem"]


@pytest.mark.parametrize("name", ["newer", "newer-ledger", "corrupt", "empty", "starting"])
def test_a_run_that_cannot_be_read_has_a_page_that_says_so(tmp_path: Path, name: str) -> None:
    broken_runs(tmp_path)
    app = served(tmp_path)
    page = ask(app, f"/runs/{name}/")
    assert (page.status, page.headers["retry-after"]) == (503, "5")
    assert "What to do:" in page.body
    said = ask(app, f"/api/runs/{name}")
    assert said.status == 503
    assert set(json.loads(said.body)) == {"error", "hint"}


def test_one_run_is_served_alone(tmp_path: Path) -> None:
    broken_runs(tmp_path)
    app = served(tmp_path, "toy")
    assert ask(app, "/").headers["location"] == "runs/toy/"
    assert ask(app, "/runs/toy").headers["location"] == "toy/"
    assert ask(app, "/runs/corrupt/").status == 404
    assert len(json.loads(ask(app, "/api/runs").body)) == 1


# --- what may be asked ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:7007", 200),
        ("10.1.2.3:7007", 200),
        ("node.cluster", 200),
        ("evil.example", 421),
        ("evil.example:7007", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_only_known_names_of_hosts_are_answered(tmp_path: Path, host: str, status: int) -> None:
    """A page from elsewhere cannot read runs through a name of its own (DNS rebinding)."""
    app = application(Site(tmp_path), allowed=["node.cluster"])
    answer = ask(app, "/", host=host)
    assert answer.status == status
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(tmp_path: Path, method: str) -> None:
    assert ask(served(tmp_path), "/", method=method).status == 405


# --- the API --------------------------------------------------------------------------------------


def test_the_api_says_what_the_commands_say(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    app = served(tmp_path)
    report = json.loads(outlast("report", path, "--json").stdout)
    assert json.loads(ask(app, "/api/runs/toy").body) == report
    status = json.loads(outlast("status", path, "--json").stdout)
    assert json.loads(ask(app, "/api/runs/toy/status").body) == status
    some = json.loads(ask(app, "/api/runs/toy/interruptions?limit=2").body)
    assert [one["id"] for one in some] == [3, 2]
    assert json.loads(ask(app, "/api/runs/toy/ranks/1").body)["processes"] == 3
    assert ask(app, "/api/runs/toy/ranks/2").status == 404
    assert ask(app, "/api/runs/toy/interruptions?limit=0").status == 400


def test_the_api_is_described_and_each_path_is_tried(tmp_path: Path) -> None:
    a_run.ended_run(tmp_path)
    app = served(tmp_path)
    described = json.loads(ask(app, "/api/openapi.json").body)
    assert described["openapi"].startswith("3.")
    for path, methods in described["paths"].items():
        assert set(methods) == {"get"}
        asked = path.replace("{run}", "toy").replace("{rank}", "0")
        status = ask(app, asked).status
        assert status == (400 if path.endswith("/file") else 200), path


# --- events ---------------------------------------------------------------------------------------


def test_events_tell_the_parts_and_the_end_of_a_run(tmp_path: Path) -> None:
    a_run.ended_run(tmp_path)
    answer = ask(served(tmp_path), "/runs/toy/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    names = [
        json.loads(line.removeprefix("data: "))["name"]
        for line in answer.body.splitlines()
        if line.startswith('data: {"name"')
    ]
    assert {"head", "answers", "timeline", "interruptions"} <= set(names)
    assert answer.body.rstrip().endswith("event: over\ndata: null")


def test_a_client_that_hangs_up_frees_its_place(tmp_path: Path) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        guard = served(tmp_path)
        streams = guard._app.state.streams
        assert isinstance(streams, Streams)
        ask(guard, "/runs/toy/events", most_chunks=3)
        assert streams._open_count == 0


def test_there_are_only_so_many_streams(tmp_path: Path) -> None:
    a_run.ended_run(tmp_path)
    guard = served(tmp_path)
    assert isinstance(guard, Guard)
    guard._app.state.streams = Streams(0)
    assert ask(guard, "/runs/toy/events").status == 503


def test_a_value_is_computed_seldom_however_many_ask() -> None:
    """It stays while nothing changed, and for ten times as long as it took."""
    now_s, stamp, made = [0.0], [0], [0]

    def compute() -> int:
        made[0] += 1
        now_s[0] += 2.0
        return made[0]

    fresh = Fresh(
        compute,
        lambda: stamp[0],
        least_s=1.0,
        longest_s=100.0,
        now_s=lambda: now_s[0],
        spent_s=lambda: 2.0 * made[0],
    )
    assert [fresh.get() for _ in range(5)] == [1] * 5
    stamp[0] += 1
    now_s[0] += 19.0
    assert fresh.get() == 1
    now_s[0] += 1.0
    assert fresh.get() == 2
    now_s[0] += 50.0
    assert fresh.get() == 2
    now_s[0] += 50.0
    assert fresh.get() == 3


def test_a_value_is_kept_by_its_processor_time_and_not_by_the_clock() -> None:
    """A server at nice 19 waits for a core for a minute, and computes for 0.1 s. When the minute
    counted, its page was three minutes behind after an hour of faults.
    """
    now_s, stamp, made = [0.0], [0], [0]

    def compute() -> int:
        made[0] += 1
        now_s[0] += 60.0
        return made[0]

    fresh = Fresh(
        compute,
        lambda: stamp[0],
        least_s=1.0,
        longest_s=100.0,
        now_s=lambda: now_s[0],
        spent_s=lambda: 0.1 * made[0],
    )
    assert fresh.get() == 1
    stamp[0] += 1
    now_s[0] += 0.9
    assert fresh.get() == 1
    now_s[0] += 0.1
    assert fresh.get() == 2


def test_a_settled_value_stays_until_something_changes() -> None:
    now_s, stamp, made = [0.0], [0], [0]

    def compute() -> int:
        made[0] += 1
        return made[0]

    fresh = Fresh(
        compute,
        lambda: stamp[0],
        least_s=1.0,
        longest_s=5.0,
        settled=lambda value: value == 2,
        now_s=lambda: now_s[0],
    )
    assert fresh.get() == 1
    now_s[0] += 6.0
    assert fresh.get() == 2
    now_s[0] += 1e6
    assert fresh.get() == 2
    stamp[0] += 1
    assert fresh.get() == 3
    now_s[0] += 6.0
    assert fresh.get() == 4, "this one is not settled"


def test_a_run_that_is_over_is_read_again_only_if_it_changes(tmp_path: Path) -> None:
    """A run that goes on is read again after a while: its launcher may be gone."""
    a_run.ended_run(tmp_path / "over")
    folder, ledger = a_run.live_run(tmp_path / "live")
    with contextlib.closing(folder), contextlib.closing(ledger):
        for root, is_over in ((tmp_path / "over", True), (tmp_path / "live", False)):
            site = Site(root)
            page, card = site.shown("toy"), site.card("toy")
            for one in (site._pages["toy"], site._cards["toy"]):
                one._now_s = lambda: 1e12
            assert (site.shown("toy") is page) == is_over
            assert (site.card("toy") is card) == is_over


def test_what_the_first_answers_need_is_done_before_them(tmp_path: Path) -> None:
    """Also a run that cannot be read does not stop the server from starting."""
    broken_runs(tmp_path)
    environment.cache_clear()
    site = Site(tmp_path)
    warm_up(site)
    assert set(site._cards) == set(site.names())
    newest = site._pages[site.names()[0]]
    assert newest._kept is not None
    assert environment().cache is not None
    assert len(environment().cache) == len(environment().list_templates(extensions=["html"]))


# --- the command ----------------------------------------------------------------------------------


def test_the_command_listens_here_only_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    before = {one.name for one in path.iterdir()}
    with subprocess.Popen(
        [sys.executable, "-m", "outlast.app.cli", "serve", str(path), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert url is not None, line
            with urllib.request.urlopen(url[0], timeout=20) as answer:
                assert "20260102T030405Z-toy-abc123" in answer.read().decode()
            assert os.getpriority(os.PRIO_PROCESS, server.pid) == 19
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=20) in (0, 130)
        finally:
            server.kill()
    # SQLite keeps its index of a database that others write beside it
    assert {one.name for one in path.iterdir()} - {"ledger.db-shm", "ledger.db-wal"} == before


def test_a_verdict_that_came_late_is_seen(tmp_path: Path) -> None:
    """Method: the ledger is written while it is served; the next look must show it."""
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        site = Site(tmp_path)
        now_s = [1000.0]
        assert site.shown("toy").page.report["warnings"] == []
        site._pages["toy"]._now_s = lambda: now_s[0] + 1e9
        ledger.add(Event(1.0, 1.0, "warning", {"text": "late"}))
        ledger.flush()
        assert site.shown("toy").page.report["warnings"] == ["late"]
