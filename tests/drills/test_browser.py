"""The page of a run in a real browser, which follows the run without an error in its console.

This needs outlast[web], `pip install playwright`, and Debian's chromium.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from outlast.model.records import Event
from outlast.runtime.tiers import local
from tests.drills._run import Drill
from tests.drills._served import served
from tests.ledger import a_run

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")
CHROMIUM = shutil.which("chromium")


pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
HIDE = """
Object.defineProperty(document, "hidden", {get: () => true, configurable: true});
document.dispatchEvent(new Event("visibilitychange"));
"""
SHOW = HIDE.replace("true,", "false,", 1)


@pytest.mark.drill
@pytest.mark.parametrize("width", [380, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_a_run_without_an_error(tmp_path: Path, width: int, scheme: str) -> None:
    """Method: a warning that comes while the page is open must appear on it by itself."""
    folder, ledger = a_run.live_run(tmp_path)
    with (
        contextlib.closing(folder),
        contextlib.closing(ledger),
        served(folder.path) as url,
        playwright.sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        assert page.locator("#warnings").is_hidden()
        ledger.add(Event(1.0, 1.0, "warning", {"text": "<b>late</b>"}))
        ledger.flush()
        page.get_by_text("<b>late</b>").wait_for(timeout=20_000)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert not errors
        browser.close()


TOKEN = "a token of the drills"


@pytest.mark.drill
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_person_saves_and_stops_a_real_run_from_its_page(
    tmp_path: Path, scripts: bool, scheme: str
) -> None:
    """Method: the run trains two ranks without an end. A wrong token is shown first. Both actions
    are confirmed, and the run ends as `outlast stop` ends it, with a checkpoint.
    """
    drill = Drill(tmp_path, "quick.py", "--steps", 1_000_000, workers=2)
    with drill:
        drill.until(lambda: drill.step >= 20, "step 20")
        with (
            served(drill.folder, OUTLAST_TOKEN=TOKEN) as url,
            playwright.sync_playwright() as driver,
        ):
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            tab = browser.new_context(java_script_enabled=scripts, color_scheme=scheme)
            page = tab.new_page()
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(url)
            page.get_by_role("link", name="Actions").click()
            for token in ("wrong, wrong, wrong", TOKEN):
                page.get_by_label("Token").fill(token)
                page.get_by_label("Your name").fill("alice")
                page.get_by_role("button", name="Sign in").click()
                if token != TOKEN:
                    assert (
                        page.get_by_role("alert").inner_text().startswith("This is not the token")
                    )
            page.get_by_role("button", name="Checkpoint now").click()
            page.get_by_label("Why").fill("before <b>lunch</b>")
            page.get_by_role("button", name="Yes, write a checkpoint now").click()
            page.get_by_role("heading", name="What was answered").wait_for(timeout=20_000)
            saved_at = drill.folder / "checkpoints"
            drill.until(lambda: local.newest_good(saved_at).checkpoint is not None, "a checkpoint")
            page.get_by_role("button", name="Stop the run").click()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.get_by_role("button", name="Yes, stop").click()
            page.get_by_role("heading", name="What was answered").wait_for(timeout=20_000)
            outcome = drill.finish()
            for _ in range(30):  # the server reads a run again after a moment
                page.get_by_role("link", name="Look again").click()
                if page.get_by_text("The run is over").count():
                    break
                page.wait_for_timeout(1_000)
            assert page.get_by_text("The run is over").count()
            assert not errors
            browser.close()
    assert outcome.code == 143, str(outcome)
    saved, stopped = outcome.report["requests"]
    assert (saved["what"], saved["reason"]) == ("checkpoint", "before <b>lunch</b>")
    assert saved["by"].startswith("alice on the page at 127.0.0.1, through "), saved
    assert (saved["state"], stopped["what"], stopped["state"]) == ("done", "stop", "done")
    assert [one["outcome"] for one in outcome.report["checkpoints"]] == ["written"]


@pytest.mark.drill
def test_hidden_tabs_hold_no_connection(tmp_path: Path) -> None:
    """A browser opens six connections to a server. Eight tabs are open, and one of them is
    visible.
    """
    folder, ledger = a_run.live_run(tmp_path)
    with (
        contextlib.closing(folder),
        contextlib.closing(ledger),
        served(folder.path) as url,
        playwright.sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tabs = browser.new_context()
        pages = []
        for _ in range(8):
            page = tabs.new_page()
            page.goto(url, timeout=20_000)
            page.get_by_text("live", exact=True).wait_for(timeout=20_000)
            page.evaluate(HIDE)
            pages.append(page)
        ledger.add(Event(1.0, 1.0, "warning", {"text": "it is late"}))
        ledger.flush()
        pages[0].evaluate(SHOW)
        pages[0].get_by_text("it is late").wait_for(timeout=20_000)
        assert pages[1].get_by_text("it is late").count() == 0
        browser.close()


@pytest.mark.drill
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_a_run_is_read_by_keyboard_and_by_roles(tmp_path: Path, scripts: bool) -> None:
    """Method: an ended run with three interruptions, without a mouse, and without scripts."""
    with served(a_run.ended_run(tmp_path)) as url, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(java_script_enabled=scripts).new_page()
        page.goto(url)
        page.keyboard.press("Tab")
        assert page.locator(":focus").inner_text() == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.url.endswith("#main")
        for role in ("banner", "navigation", "main", "contentinfo"):
            assert page.get_by_role(role).count() == 1, role
        answers = page.get_by_role("term").all_inner_texts()[:6]
        assert answers[0] == "Is it training?"
        assert answers[5] == "What did it cost?"
        times = page.get_by_role("heading", name="Where the time went")
        assert times.is_visible()
        assert page.locator("svg:not([aria-hidden=true])").count() == 0
        newest = page.locator("#i-3")
        for _ in range(60):
            if newest.locator("summary:focus").count():
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert newest.get_by_text("pid", exact=False).first.is_visible()
        browser.close()
