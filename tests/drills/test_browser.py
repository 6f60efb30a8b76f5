"""The page of a run in a real browser, which follows the run without an error in its console.

It needs outlast[web], `pip install playwright`, and Debian's chromium.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.model.records import Event
from tests.ledger import a_run

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")
CHROMIUM = shutil.which("chromium")


@pytest.mark.drill
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.parametrize("width", [380, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_a_run_without_an_error(tmp_path: Path, width: int, scheme: str) -> None:
    """Method: a warning that comes while the page is open must appear on it, by itself."""
    folder, ledger = a_run.live_run(tmp_path)
    command = [sys.executable, "-m", "outlast.app.cli", "serve", str(folder.path), "--port", "0"]
    with (
        contextlib.closing(folder),
        contextlib.closing(ledger),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        playwright.sync_playwright() as driver,
    ):
        try:
            assert server.stdout is not None
            url = re.search(r"http://\S+", server.stdout.readline())
            assert url is not None
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            errors: list[str] = []
            page.on("console", lambda message: errors.append(message.text))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(url[0])
            assert page.locator("#warnings").is_hidden()
            ledger.add(Event(1.0, 1.0, "warning", {"text": "<b>late</b>"}))
            ledger.flush()
            page.get_by_text("<b>late</b>").wait_for(timeout=20_000)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert not errors
            browser.close()
        finally:
            server.kill()
