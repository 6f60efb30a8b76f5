"""Whether the live page of 16,384 ranks scrolls smoothly in a real browser.

    python benchmarks/scroll.py [--times 5]
    python benchmarks/scroll.py --picture FILE   only write a picture of the page

It needs outlast[web], `pip install playwright`, and Debian's chromium. A run of 16,384 ranks on
2,048 nodes, with 300 interruptions, is written and goes on: each second its ledger gets a new step.
`outlast serve` shows it, and the browser follows its events. The page is scrolled down and up
`--times` times, for twenty seconds each, with the wheel. Printed are the longest task of the page's
thread while it scrolls (the browser reports those over 50 ms) and the longest call of a script
(reported from 5 ms on), each as the median over the times; how many parts of the page were drawn
again meanwhile; and how many clicks lead from the page to a rank. Exit code 0 if the goals are
kept: no script over 50 ms, and two clicks.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from page import begin, node
from playwright.sync_api import Page, sync_playwright

from outlast.model.records import StepsBucket

RANKS, SPAN_S, STEPS = 16_384, 1e5, 100_000
SCROLL_S = 20.0
GOAL_MS = 50
CLICKS_GOAL = 2
RANK = 12_345
WATCH = """
window.seen = { tasks: [], scripts: [], parts: 0 };
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.seen.tasks.push(one.duration);
}).observe({ type: "longtask" });
new PerformanceObserver((list) => {
  for (const frame of list.getEntries())
    for (const one of frame.scripts) window.seen.scripts.push(one.duration);
}).observe({ type: "long-animation-frame" });
document.addEventListener("DOMContentLoaded", () => {
  new MutationObserver((changes) => {
    window.seen.parts += changes.filter((one) => one.target.id === "main").length;
  }).observe(document.getElementById("main"), { childList: true });
});
"""


@contextlib.contextmanager
def running(path: Path) -> Iterator[None]:
    """Write a run that gets a new step each second."""
    folder, ledger, snapshot = begin(
        path, ranks=RANKS, steps=STEPS, interruptions=300, span_s=SPAN_S, buckets=1_000
    )
    is_over = threading.Event()

    def go_on() -> None:
        at_s, step = SPAN_S, STEPS
        while not is_over.wait(1.0):
            ledger.add(StepsBucket(at_s, at_s + 1, step, step + 1, 1.0, 1.0, 1.0))
            at_s, step = at_s + 1, step + 1
            ledger.set_snapshot(snapshot | {"step": step}, now_s=at_s)
            ledger.flush()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        ledger.close()
        folder.close()


@contextlib.contextmanager
def served(path: Path) -> Iterator[str]:
    """Serve a run, and yield the address of its page."""
    command = [sys.executable, "-m", "outlast", "serve", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None, "the server names no address"
            yield found[0]
        finally:
            server.kill()


def scroll(page: Page) -> dict[str, list[float]]:
    """Scroll down and up for SCROLL_S. Return what the browser saw meanwhile."""
    page.evaluate("window.seen.tasks = []; window.seen.scripts = []")
    over_s, down = time.monotonic() + SCROLL_S, 400
    while time.monotonic() < over_s:
        before = page.evaluate("scrollY")
        page.mouse.wheel(0, down)
        page.wait_for_timeout(50)
        if page.evaluate("scrollY") == before:
            down = -down
    seen: dict[str, list[float]] = page.evaluate("window.seen")
    return seen


def draw(page: Page, file: Path) -> None:
    """Write a picture of the top of the page."""
    page.set_viewport_size({"width": 1200, "height": 1500})
    page.screenshot(path=file)


def clicks_to(page: Page, rank: int) -> int:
    """Go from the page of the run to that of a rank. Return the number of clicks."""
    page.get_by_role("link", name=node(rank), exact=True).last.click()
    page.get_by_role("link", name=str(rank), exact=True).click()
    page.get_by_role("heading", name=f"rank {rank}").wait_for()
    return 2


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--picture", type=Path, metavar="FILE")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="outlast-scroll-") as root,
        running(Path(root) / "wide"),
        served(Path(root) / "wide") as url,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.set_default_timeout(120_000)
        page.add_init_script(WATCH)
        page.goto(url)
        page.get_by_text("live", exact=True).wait_for()
        if args.picture is not None:
            draw(page, args.picture)
            return 0
        found = [scroll(page) for _ in range(args.times)]
        parts = page.evaluate("window.seen.parts")
        clicks = clicks_to(page, RANK)
        browser.close()
    longest = {
        what: [max(one[what], default=0.0) for one in found] for what in ("tasks", "scripts")
    }
    for what, values in longest.items():
        print(
            f"longest of the {what}: {statistics.median(values):.0f} ms (median of {args.times}),"
            f" {max(values):.0f} ms at most"
        )
    print(f"{parts} parts were drawn again; {clicks} clicks to rank {RANK:,}")
    kept = statistics.median(longest["scripts"]) <= GOAL_MS and clicks <= CLICKS_GOAL and parts > 0
    print("reached" if kept else "missed")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
