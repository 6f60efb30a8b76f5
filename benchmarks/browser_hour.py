"""The live page in a real browser, while ranks of the run are killed and stopped for an hour.

    python benchmarks/browser_hour.py [--minutes 60] [--seed 1]

It needs outlast[web], `pip install playwright`, and Debian's chromium. Four tabs are open all the
time: the overview, the run, a node and a rank. Each minute another page of the run is visited as
well. A rank is killed or stopped after 5 to 25 s, drawn by the seed. At the end the page has to
show as many interruptions as the ledger has. Exit code 1 if a console said anything or a page
threw an error, if the page differs from the ledger, or if the run did not go on to the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page, sync_playwright

SCRIPT = """
import time, torch, outlast
run = outlast.join()
torch.manual_seed(0)
model = run.replicate(torch.nn.Linear(32, 32))
optimizer = torch.optim.AdamW(model.parameters())
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=10**9):
    with step:
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss.detach(), reduce="mean")
    time.sleep(0.1)
"""
OUTLAST = (sys.executable, "-m", "outlast")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="outlast-browser-") as root,
        contextlib.ExitStack() as to_end,
    ):
        script, run = Path(root) / "train.py", Path(root) / "runs" / "fire"
        script.write_text(SCRIPT)
        command = (*OUTLAST, "run", "--nproc-per-node", "2", "--run-dir", str(run), str(script))
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        to_end.callback(end, training)
        wait_until(lambda: status(run).get("step", 0) > 3, "the run trains")
        serve = (*OUTLAST, "serve", str(run.parent), "--port", "0")
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        to_end.callback(end, server)
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None, "the server names no address"
        driver = to_end.enter_context(sync_playwright())
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        to_end.callback(browser.close)
        return watch(
            browser.new_context(), found[0], run, args.minutes * 60, random.Random(args.seed)
        )


def watch(tabs: BrowserContext, url: str, run: Path, for_s: float, chance: random.Random) -> int:
    """Strike ranks and look at pages for so long. Return the exit code."""
    said: list[str] = []
    page_of_run = f"{url}runs/{run.name}/"
    node = status(run)["workers"][0]["node"]
    paths = ("", f"node?name={node}", "rank?number=0")
    kept = [opened(tabs, said, url)] + [opened(tabs, said, page_of_run + path) for path in paths]
    visited = opened(tabs, said, url)
    others = [*paths, "interruptions", "files", "interruption?id=1", "rank?number=1"]
    began_s, struck, visits = time.monotonic(), 0, 0
    next_visit_s = first_nodes = 0.0
    while (now_s := time.monotonic() - began_s) < for_s:
        strike(run, chance)
        struck += 1
        if now_s >= next_visit_s:
            visited.goto(page_of_run + others[visits % len(others)])
            visits, next_visit_s = visits + 1, now_s + 60
            first_nodes = first_nodes or elements(kept[1])
        kept[1].wait_for_timeout(chance.uniform(5, 25) * 1000)
    kept[1].wait_for_timeout(5000)
    report = json.loads(asked("report", run))
    top = [one for one in report["interruptions"] if one["parent"] is None]
    kept[1].reload()
    shown = re.search(r"([\d,]+) interruptions?", kept[1].inner_text("body"))
    count = int(shown[1].replace(",", "")) if shown else -1
    alive = status(run)["state"] == "training"
    print(f"minutes                {for_s / 60:.0f}")
    print(f"strikes at ranks       {struck}")
    print(f"interruptions          {len(top)} in the ledger, {count} on the page")
    lost = sum(one["steps_lost"] for one in report["interruptions"])
    print(f"steps                  {report['steps']}, {lost} lost")
    print(f"visits of other pages  {visits}")
    print(f"elements of the page   {first_nodes:.0f} at first, {elements(kept[1])} at the end")
    print(f"messages and errors    {len(said)}")
    for one in said[:20]:
        print(f"  {one}")
    return 0 if alive and not said and count == len(top) else 1


def opened(tabs: BrowserContext, said: list[str], url: str) -> Page:
    """Open a tab, whose messages and errors go to `said`."""
    page = tabs.new_page()
    page.on("console", lambda message: said.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"{page.url}: {error}"))
    answer = page.goto(url)
    assert answer is not None, url
    assert answer.ok, f"{url}: {answer.status}"
    return page


def elements(page: Page) -> int:
    return int(page.evaluate("document.getElementsByTagName('*').length"))


def strike(run: Path, chance: random.Random) -> None:
    """Kill or stop one rank that trains now, if there is one."""
    training = [one for one in status(run).get("workers", ()) if one["state"] == "training"]
    if training:
        with contextlib.suppress(ProcessLookupError):
            number = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
            os.kill(chance.choice(training)["pid"], number)


def status(run: Path) -> dict[str, Any]:
    text = asked("status", run)
    return dict(json.loads(text)) if text else {}


def asked(command: str, run: Path) -> str:
    """Return what a command says of the run in JSON; "" while there is no run yet."""
    done = subprocess.run((*OUTLAST, command, str(run), "--json"), capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def wait_until(condition: Any, what: str) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError(f"not within a minute: {what}")


def end(process: subprocess.Popen[Any]) -> None:
    """End a process by SIGTERM, or by SIGKILL after 20 s."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    process.kill()


if __name__ == "__main__":
    sys.exit(main())
