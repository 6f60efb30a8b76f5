"""Pages: runtime/coordinator/pager.py and runtime/page_sender.py, with real processes."""

from __future__ import annotations

import contextlib
import errno
import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import UsageError
from outlast.model.records import Event
from outlast.runtime import page_sender
from outlast.runtime.coordinator import pager
from outlast.runtime.coordinator.pager import AT_ONCE_COUNT, Pager, PageTargets
from outlast.runtime.loop import Loop
from outlast.runtime.page_options import page_command, page_webhook
from tests.drills._pids import below

PAGE = {
    "run": "toy",
    "folder": "/runs/toy",
    "interruption": 3,
    "step": 1204,
    "class": "gpu",
    "rule": "broken",
    "reason": "a <!channel> & more",
    "verdict": "gpu (97 % sure): Xid 79.",
}


class Server:
    """A web server that records what is posted, and gives its answers in turn. It repeats the last
    one.
    """

    def __init__(self, *answers: int) -> None:
        self.posted: list[dict[str, Any]] = []
        self.paths: list[str] = []
        left = list(answers)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805 - the library's names
                length = int(handler.headers["Content-Length"])
                self.posted.append(json.loads(handler.rfile.read(length)))
                self.paths.append(handler.path)
                answer = left.pop(0) if len(left) > 1 else left[0]
                handler.send_response(answer)
                if answer == 302:
                    handler.send_header("Location", "/elsewhere")
                handler.end_headers()

            do_GET = do_POST  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook/secret"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def server(*answers: int) -> Iterator[Server]:
    with closing(Server(*answers)) as one:
        yield one


@contextmanager
def mute() -> Iterator[str]:
    """Yield the address of a webhook that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/secret"


# --- one page -------------------------------------------------------------------------------------


def tries(url: str) -> tuple[list[str], list[float]]:
    """Return why the page failed, and the pauses between the tries."""
    paused: list[float] = []
    why = page_sender._tried(
        lambda: page_sender.post(url, PAGE), "the webhook", pause=paused.append
    )
    return why, paused


def test_a_page_is_posted_as_slack_takes_it_and_mentions_nobody() -> None:
    with server(200) as hook:
        assert tries(hook.url) == ([], [])
        assert hook.posted == [
            {
                "text": "outlast: toy, interruption 3: a &lt;!channel&gt; &amp; more\n"
                "gpu (97 % sure): Xid 79.\nstep 1,204; /runs/toy"
            }
        ]


def test_a_webhook_that_fails_is_tried_again_until_it_succeeds() -> None:
    with server(503, 429, 204) as hook:
        assert tries(hook.url) == ([], [1.0, 4.0])
        assert len(hook.posted) == 3


def test_tries_are_used_up_in_the_end_and_the_address_is_not_shown() -> None:
    with server(500) as hook:
        (why,), paused = tries(hook.url)
        assert (why, len(hook.posted)) == ("the webhook, 5 tries: it answers 500", 5)
        assert paused == list(page_sender.PAUSES_S)
    (why,), _ = tries(hook.url)
    assert "refused" in why
    assert "secret" not in why


@pytest.mark.parametrize("answer", [302, 400, 404])
def test_a_webhook_that_refuses_or_redirects_is_not_tried_again(answer: int) -> None:
    with server(answer, 200) as hook:
        assert tries(hook.url) == ([f"the webhook: it answers {answer}"], [])
        assert hook.paths == ["/hook/secret"]


def test_a_try_has_a_bound_whatever_the_webhook_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_sender, "TRY_S", 0.1)
    with mute() as url:
        began_s = time.monotonic()
        (why,), paused = tries(url)
    assert why.startswith("the webhook, 5 tries: ")
    assert len(paused) == 4
    assert time.monotonic() - began_s < 5.0


def test_a_command_gets_the_page_and_a_failing_one_tells_its_last_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write = f"cat > {out}; echo $OUTLAST_RUN $OUTLAST_INTERRUPTION >> {out}"
    page_sender.run_command(["sh", "-c", write], PAGE)
    said, _, environment = out.read_text().rpartition("}")
    assert json.loads(said + "}") == PAGE
    assert environment.split() == ["toy", "3"]
    with pytest.raises(OSError, match="exit code 7, no pager"):
        page_sender.run_command(["sh", "-c", "echo first >&2; echo no pager >&2; exit 7"], PAGE)


def test_a_command_that_never_ends_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 300 & echo $! > {pid}.part; mv {pid}.part {pid}; wait"]

    def run() -> None:
        with page_sender._bounded(1.0):
            page_sender.run_command(command, PAGE)

    with pytest.raises(TimeoutError, match="no answer within 1 s"):
        run()
    child = int(pid.read_text())
    for _ in range(200):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the command's child lives on")


# --- the launcher's side --------------------------------------------------------------------------


class Desk:
    """A pager with its loop, and what it told and recorded."""

    def __init__(self, **targets: Any) -> None:
        self.told: list[str] = []
        self.events: list[Event] = []
        self.loop = Loop()
        self.pager = Pager(
            self.loop,
            PageTargets("toy", "/runs/toy", **targets),
            tell=self.told.append,
            record=self.events.append,
        )

    def decide(self, number: int, *, action: str = "page", dry_run: bool = False) -> None:
        data = {
            "interruption": number,
            "action": action,
            "dry_run": dry_run,
            "reason": "because",
            "step": 7,
            "class": "gpu",
            "rule": "r",
        }
        self.pager.note(Event(1.0, 2.0, "policy", data))

    def until(self, done: Callable[[], object]) -> None:
        assert self.loop.run_until(lambda: bool(done()), within_s=30.0), (self.told, self.events)


@contextmanager
def desk(**targets: Any) -> Iterator[Desk]:
    one = Desk(**targets)
    try:
        yield one
    finally:
        for _, process in list(one.pager._at_work.values()):
            process.kill()
            process.wait()
        one.loop.close()


def test_an_interruption_is_paged_once_and_a_rehearsal_not_at_all(tmp_path: Path) -> None:
    """Method: both ways of paging are configured. The verdict that arrived earlier is in
    the page.
    """
    out = tmp_path / "out"
    append = ("sh", "-c", f"cat >> {out}; echo >> {out}")
    with server(200) as hook, desk(command=append, webhook=hook.url) as one:
        one.pager.on_verdict(3, {"class": "gpu", "confidence": 0.9, "reason": "Xid 79."})
        one.decide(1, dry_run=True)
        one.decide(2, action="drain")
        one.decide(3)
        one.decide(3)
        assert not one.events, "nothing is started before the loop goes on"
        one.until(lambda: one.events)
        one.decide(3)
        one.pager.close()
    (event,) = one.events
    assert (event.kind, dict(event.data)) == (
        "paged",
        {"interruption": 3, "ok": True, "error": ""},
    )
    assert one.told == []
    (page,) = (json.loads(line) for line in out.read_text().splitlines())
    assert (page["interruption"], page["step"], page["folder"]) == (3, 7, "/runs/toy")
    assert page["verdict"] == "gpu (90 % sure): Xid 79."
    (posted,) = hook.posted
    assert posted["text"].startswith("outlast: toy, interruption 3: because\ngpu (90 % sure)")


def test_a_page_whose_process_cannot_be_watched_is_reported_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_descriptor(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = set(below(os.getpid()))
    monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    with desk(command=("true",)) as one:
        one.decide(1)
        one.until(lambda: one.events)
        assert set(below(os.getpid())) <= before
        assert "no process can be started for it: Too many open files" in one.told[0]


def test_a_page_that_does_not_arrive_is_reported_without_its_address() -> None:
    with server(404) as hook, desk(webhook=hook.url) as one:
        one.decide(1)
        one.until(lambda: one.told)
        assert one.told == [
            "warning: the page about interruption 1 did not arrive: the webhook: it answers 404"
        ]
        assert one.events[0].data["ok"] is False


def test_a_webhook_that_never_answers_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a decision nor the loop waits, and the end of the run waits for a bounded time. Only
    a few processes send at once, and at most a hundred pages wait.
    """
    monkeypatch.setattr(pager, "LAST_S", 0.3)
    with mute() as url, desk(webhook=url) as one:
        turns = [0]

        def turn() -> None:
            turns[0] += 1
            one.loop.call_soon(turn)

        began_s = time.monotonic()
        for number in range(200):
            one.decide(number)
        assert time.monotonic() - began_s < 0.5
        assert len(one.told) == 100
        one.loop.call_soon(turn)
        one.loop.run_until(lambda: len(one.pager._at_work) == AT_ONCE_COUNT, within_s=10.0)
        before = turns[0]
        one.loop.run_until(lambda: turns[0] > before + 100, within_s=5.0)
        assert turns[0] > before + 100, "the loop goes on"
        processes = [process for _, process in one.pager._at_work.values()]
        assert len(processes) == AT_ONCE_COUNT
        began_s = time.monotonic()
        one.pager.close()
        assert time.monotonic() - began_s < 3.0
        for process in processes:
            assert process.poll() is None, "it tries on alone"
            process.kill()
            process.wait()


def test_a_sender_that_is_killed_is_reported() -> None:
    with mute() as url, desk(webhook=url) as one:
        one.decide(1)
        one.until(lambda: one.pager._at_work)
        ((_, process),) = one.pager._at_work.values()
        process.kill()
        one.until(lambda: one.told)
        assert "interruption 1 did not arrive: its process was killed" in one.told[0]


# --- the options ----------------------------------------------------------------------------------


def test_a_command_is_split_and_has_to_exist() -> None:
    assert page_command(None) == ()
    assert page_command(f"{sys.executable} -c 'print(1)'") == (sys.executable, "-c", "print(1)")
    for wrong, why in (("no-such-pager x", "no such program"), ("'", "split"), ("", "no such")):
        with pytest.raises(UsageError, match=why):
            page_command(wrong)


def test_the_address_of_a_webhook_may_be_in_a_variable_and_is_never_shown() -> None:
    environment = {"HOOK": "https://hooks.slack.com/services/T/B/secret"}
    assert page_webhook(None, environment) == ""
    for text in ("$HOOK", "${HOOK}", environment["HOOK"]):
        assert page_webhook(text, environment) == environment["HOOK"]
    with pytest.raises(UsageError, match=r"\$NONE: there is no such variable"):
        page_webhook("$NONE", environment)
    for wrong in (
        "ftp://secret/x",
        "https://",
        "secret",
        "file:///secret",
        "https://[secret",
        "https://a b/secret",
    ):
        with pytest.raises(UsageError) as failed:
            page_webhook(wrong, environment)
        assert "secret" not in str(failed.value)
