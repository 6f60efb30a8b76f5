"""The actions on the page of a run: behind the token, confirmed, and never by another site.

The launcher is a real control socket that records what it is asked. tests/drills/test_browser.py
uses a real browser and a real run.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from outlast.engine.coordinator.requests import RunRequest
from outlast.model.records import Event
from outlast.runtime import clock
from outlast.runtime.coordinator.control_socket import ControlSocket
from outlast.runtime.loop import Loop
from tests.app.test_page import HOSTILE, Tags
from tests.ledger import a_run

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from outlast.app.web import actions, signed_in
from outlast.app.web.application import application
from outlast.app.web.signed_in import PageAction, SignedIn
from outlast.app.web.site import Site
from tests.app.test_serve import Answer, ask

TOKEN = "the token of this server"
FORM = "application/x-www-form-urlencoded"


class Launcher:
    """A control socket in a live run, which answers as `says` tells, in a thread of its own."""

    def __init__(self, folder: Path, says: dict[str, str]) -> None:
        self.asked: list[RunRequest] = []
        self.says = says
        self._loop = Loop()
        self._control = ControlSocket(self._loop, folder, tell=print)
        self._control.open(self._on_request)
        self._over = threading.Event()
        self._look()
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until(self._over.is_set, within_s=120.0), daemon=True
        )
        self._thread.start()

    def _look(self) -> None:
        self._loop.call_at(clock.now_s() + 0.02, self._look)

    def _on_request(self, one: RunRequest) -> None:
        self.asked.append(one)
        self._control.answer(one.number, self.says.get(one.what, "done"), f"{one.what} {HOSTILE}")

    def close(self) -> None:
        self._over.set()
        self._thread.join(10.0)
        self._control.close()
        self._loop.close()


class Browser:
    """A browser without scripts: it keeps the cookie, and sends the forms that a page has."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.cookie = ""

    def get(self, leaf: str = "actions") -> Answer:
        return ask(self.app, f"/runs/toy/{leaf}", headers={"cookie": self.cookie})

    def post(self, leaf: str, fields: dict[str, str], **headers: str) -> Answer:
        body = urlencode(fields).encode()
        usual = {"content-type": FORM, "content-length": str(len(body)), "cookie": self.cookie}
        given = usual | {name.replace("_", "-"): value for name, value in headers.items()}
        answer = ask(self.app, f"/runs/toy/{leaf}", method="POST", headers=given, body=body)
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    def sign_in(self, token: str = TOKEN, name: str = "alice") -> Answer:
        return self.post("sign-in", {"token": token, "name": name})

    def key(self) -> str:
        found = re.search(r'name="key" value="([^"]+)"', self.get().body)
        assert found is not None
        return found[1]

    def prepare(self, what: str, node: str = "") -> dict[str, str]:
        """Name an action, and return the fields of the form that confirms it."""
        page = self.post("confirm", {"key": self.key(), "what": what, "node": node})
        assert page.status == 200, page.body
        assert not Tags(page.body).open
        found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.body)
        assert 'action="act" method="post"' in page.body
        return dict(found)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        ledger.add(Event(clock.now_s(), 1.0, "node_joined", {"node": "spare-1"}))
        ledger.flush()
        made = Launcher(folder.path, {})
        yield made
        made.close()


@pytest.fixture
def browser(tmp_path: Path, launcher: Launcher) -> Browser:
    return Browser(application(Site(tmp_path), token=TOKEN.encode()))


# --- who may ask ----------------------------------------------------------------------------------


def test_without_a_token_the_page_is_read_only_and_says_so(
    tmp_path: Path, launcher: Launcher
) -> None:
    browser = Browser(application(Site(tmp_path)))
    page = browser.get()
    assert page.status == 200
    assert "This page is read-only" in page.body
    assert "<form" not in page.body
    for leaf in actions.POSTS:
        assert browser.post(leaf, {"token": ""}).status == 405
    assert launcher.asked == []


def test_the_page_of_a_run_that_is_over_has_no_actions(tmp_path: Path) -> None:
    a_run.ended_run(tmp_path)
    browser = Browser(application(Site(tmp_path), token=TOKEN.encode()))
    assert "The run is over" in browser.get().body
    assert "<form" not in browser.get().body
    assert 'href="actions"' not in browser.get("").body


def test_a_person_with_the_token_acts_after_a_yes(browser: Browser, launcher: Launcher) -> None:
    """The launcher hears who asked, from where and why, and the page shows its answer as text."""
    assert 'href="actions"' in browser.get("").body
    page = browser.get()
    assert 'type="password"' in page.body
    assert 'action="confirm"' not in page.body
    answer = browser.sign_in()
    assert (answer.status, answer.headers["location"]) == (303, "actions")
    said = answer.headers["set-cookie"].lower()
    assert "httponly" in said
    assert "samesite=strict" in said
    fields = browser.prepare("checkpoint")
    assert launcher.asked == [], "nothing is asked before the yes"
    assert browser.post("act", fields | {"reason": "before lunch"}).status == 303
    (asked,) = launcher.asked
    assert (asked.what, asked.node, asked.reason) == ("checkpoint", "", "before lunch")
    assert asked.by.startswith("alice on the page at 127.0.0.1, through ")
    body = browser.get().body
    assert not Tags(body).open
    assert "<img" not in body
    assert "done: checkpoint" in body


def test_nodes_can_be_named_that_have_ranks_or_stand_ready(
    browser: Browser, launcher: Launcher
) -> None:
    browser.sign_in()
    for what, node in (("drain", "here"), ("cordon", "spare-1"), ("uncordon", "spare-1")):
        browser.post("act", browser.prepare(what, node))
    assert [(one.what, one.node) for one in launcher.asked] == [
        ("drain", "here"),
        ("cordon", "spare-1"),
        ("uncordon", "spare-1"),
    ]
    key = browser.key()
    for what, node in (("drain", "none"), ("drain", ""), ("stop", "here"), ("reboot", "")):
        refused = browser.post("confirm", {"key": key, "what": what, "node": node})
        assert refused.status == 400
        assert "no such action" in refused.body
    assert len(launcher.asked) == 3


def test_a_request_that_waits_or_is_refused_is_shown_as_such(
    browser: Browser, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "ANSWER_WAIT_S", 0.1)
    launcher.says |= {"drain": "waits", "cordon": "refused"}
    browser.sign_in()
    for what in ("drain", "cordon"):
        browser.post("act", browser.prepare(what, "here"))
    body = browser.get().body
    assert "waiting: drain" in body
    assert "refused: cordon" in body
    launcher.close()
    browser.post("act", browser.prepare("stop"))
    assert "not asked: the launcher of" in browser.get().body


def test_a_yes_counts_once(browser: Browser, launcher: Launcher) -> None:
    """A double click, or a form that is sent again, does not stop a run twice."""
    browser.sign_in()
    fields = browser.prepare("stop")
    assert browser.post("act", fields).status == 303
    again = browser.post("act", fields)
    assert again.status == 409
    assert "asked already" in again.body
    assert [one.what for one in launcher.asked] == ["stop"]


# --- who may not ----------------------------------------------------------------------------------


def test_a_wrong_token_opens_nothing_and_cannot_be_guessed(
    browser: Browser, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(signed_in.TRIES_COUNT):
        assert browser.sign_in("a token that is wrong").status == 403
    assert browser.cookie == ""
    assert browser.sign_in().status == 429, "not even the right one, for a while"
    monkeypatch.setattr(signed_in, "TRIES_S", 0.0)
    assert browser.sign_in().status == 303


@pytest.mark.parametrize("leaf", ["confirm", "act", "sign-out"])
def test_a_form_without_the_key_of_the_session_does_nothing(
    browser: Browser, launcher: Launcher, leaf: str
) -> None:
    """Another site can make a browser send a form, but does not know the key."""
    browser.sign_in()
    fields = browser.prepare("stop")
    for key in (
        {},
        {"key": ""},
        {"key": "x" * 43},
        {"key": "\ud800".encode("utf-16", "surrogatepass").hex()},
    ):
        other = {name: value for name, value in fields.items() if name != "key"}
        assert browser.post(leaf, other | {"what": "stop"} | key).status == 403
    stranger = Browser(browser.app)
    assert stranger.post(leaf, fields).status == 403
    assert launcher.asked == []
    assert browser.post("act", fields).status == 303, "the session is still there"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "multipart/form-data"}, 415),
        ({"content_length": "99999999"}, 413),
        ({"content_length": "-1"}, 411),
        ({"content_length": ""}, 411),
        ({"origin": "http://127.0.0.1:7007", "sec_fetch_site": "same-origin"}, 303),
        ({"origin": "null"}, 303),
    ],
)
def test_only_forms_of_this_server_are_taken(
    browser: Browser, launcher: Launcher, headers: dict[str, str], status: int
) -> None:
    browser.sign_in()
    fields = browser.prepare("stop")
    assert browser.post("act", fields, **headers).status == status
    assert len(launcher.asked) == (status == 303)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a" * 100, b"&".join([b"a=1"] * 50), b"%%%=&&"])
def test_what_is_no_form_is_refused(browser: Browser, launcher: Launcher, body: bytes) -> None:
    headers = {"content-type": FORM, "content-length": str(len(body))}
    for leaf in actions.POSTS:
        answer = ask(browser.app, f"/runs/toy/{leaf}", method="POST", headers=headers, body=body)
        assert answer.status in (400, 403), (leaf, answer)
    assert launcher.asked == []


def test_a_session_ends_by_signing_out_and_by_time() -> None:
    now_s = [0.0]
    people = SignedIn(TOKEN.encode(), now_s=lambda: now_s[0])
    value = people.sign_in(TOKEN, "alice")
    assert value is not None
    assert people.session(value) is not None
    assert people.session(value + "x") is None
    for _ in range(20):
        now_s[0] += signed_in.IDLE_S - 1
        if people.session(value) is None:
            break
    assert signed_in.LONGEST_S < now_s[0] < signed_in.LONGEST_S + signed_in.IDLE_S
    other = people.sign_in(TOKEN, "")
    assert other is not None
    people.sign_out(other)
    assert people.session(other) is None
    idle = people.sign_in(TOKEN, "")
    assert idle is not None
    now_s[0] += signed_in.IDLE_S + 1
    assert people.session(idle) is None


def test_sessions_and_actions_that_wait_are_limited() -> None:
    people = SignedIn(TOKEN.encode(), now_s=lambda: 1.0)
    values = [people.sign_in(TOKEN, "") for _ in range(signed_in.SESSIONS_MOST_COUNT + 1)]
    assert people.session(values[0] or "") is None
    last = people.session(values[-1] or "")
    assert last is not None
    numbers = [last.prepare(PageAction("toy", "stop", "")) for _ in range(100)]
    assert last.confirm(numbers[0]) is None
    assert last.confirm(numbers[-1]) is not None
    assert last.confirm(numbers[-1]) is None


def test_signing_out_ends_the_session_in_the_browser(browser: Browser) -> None:
    browser.sign_in()
    cookie = browser.cookie
    assert browser.post("sign-out", {"key": browser.key()}).status == 303
    browser.cookie = cookie
    assert 'type="password"' in browser.get().body


def test_no_name_of_a_person_or_node_becomes_markup(tmp_path: Path, browser: Browser) -> None:
    browser.sign_in(name=HOSTILE)
    body = browser.get().body
    found = Tags(body)
    assert not found.open
    assert "img" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on")]
