"""The live view of a real run in a real terminal: its lines stay in place, and none wraps."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from pathlib import Path

import pytest

from outlast.runtime.ledger.view import look
from tests.app.test_live import screen
from tests.drills._run import Drill, drilled

SCRIPT = """
import os, time, torch, outlast
run = outlast.join()
model = run.replicate(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = run.state(model=model, optimizer=optimizer)
def note(number):
    with open(os.environ["DRILL_COMMITS"], "a") as file:
        print(run.rank, number, os.getpid(), file=file)
for step in run.steps(state, until=150, log_every=10):
    with step:
        loss = model(torch.ones(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        step.log(loss=loss.detach(), reduce="mean")
        optimizer.step()
        step.on_commit(lambda number=step.number: note(number))
        time.sleep(0.02)
    if run.rank == 0:
        print(f"bar {step.number}", end="\\r", flush=True)
"""


def drained(terminal: int) -> bytes:
    """Return what can be read at this moment."""
    out = b""
    while select.select([terminal], [], [], 0)[0]:
        try:
            data = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        out += data
    return out


@pytest.mark.drill
@pytest.mark.timeout(120)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_view_stays_in_place_in_a_real_terminal(tmp_path: Path, width: int) -> None:
    """Method: a rank is killed, and the script writes lines and a progress bar meanwhile."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    terminal, console = pty.openpty()
    fcntl.ioctl(console, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {"TERM": "xterm", "LC_ALL": "C.UTF-8", "NO_COLOR": ""}
    drill = Drill(
        tmp_path,
        str(script),
        workers=2,
        flags=("--spares", 1),
        env=environment,
        console=console,
        within_s=90.0,
    )
    said = b""
    with drill:

        def seen(done: bool) -> bool:
            nonlocal said
            said += drained(terminal)
            return done

        drill.until(lambda: seen(drill.step > 30), "training")
        os.kill(drill.pid_of(1), signal.SIGKILL)
        drill.until(lambda: seen(b"back after" in said and b"SIGKILL" in said), "the verdict")
        while drill.process.poll() is None:
            seen(False)
            time.sleep(0.01)
        said += drained(terminal)
        outcome = drill.finish()
    os.close(terminal)
    assert outcome.code == 0, outcome
    (part,) = look(str(drill.folder)).records.sessions
    losses = [one.logged["loss"] for one in part.steps if "loss" in one.logged]
    assert len(losses) > 1
    assert losses[-1] < losses[0], "the curve of the loss is in the ledger"
    text = said.decode().replace("\r\n", "\n")
    frames = [frame for frame in text.split("\x1b[J") if " of 150" in frame]
    assert len(frames) > 3, "it was drawn again and again"
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", frame).splitlines() for frame in frames]
    drawn = [[line for line in lines if " of 150" in line or "workers" in line] for lines in plain]
    assert all(len(line) < width for lines in drawn for line in lines), drawn
    newest = plain[-1]
    assert any("ETTR" in line and "loss" in line for line in newest), newest
    last = [line for line in newest if "back after" in line]
    assert len(last) == 1, newest
    assert last[0].startswith("  #1  rank 1, signal: back after")
    left = [line for line in screen(text, 100_000) if line]
    assert not [line for line in left if "workers" in line or " of 150" in line], "the view is gone"
    assert [line for line in left if line.startswith("step 150 loss")]
    assert len([line for line in left if line.startswith("bar ")]) <= 1, "a bar is one line"


@pytest.mark.drill
@pytest.mark.timeout(120)
def test_the_first_status_line_names_ranks_their_place_and_a_deadline(tmp_path: Path) -> None:
    """It comes at once, before any process of the script is up."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    outcome = drilled(tmp_path, str(script), workers=2)
    assert outcome.code == 0, outcome
    lines = [line for line in outcome.stderr.splitlines() if line.startswith("outlast ")]
    first = next(line for line in lines if "workers: " in line)
    assert "  starting  step 0   " in first, first
    assert "workers: 2 starting" in first, first
    told = r"waits for .*ranks 0, 1: they are forked once .* imported, for up to \d+ m$"
    assert re.search(told, first), first
