"""`outlast top`: what it shows, and what it does with a real terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from rich.console import Console

from outlast.app.page.page_model import page_of
from outlast.app.views.top import view
from outlast.runtime.ledger.view import look
from tests.app.command import outlast
from tests.app.test_page import MADE_S, big_run
from tests.ledger import a_run


def drawn(page: object, *, height: int, width: int = 100, offset: int = 0) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(view(page, height=height, offset=offset))  # type: ignore[arg-type]
    return captured.get().splitlines()


def test_without_a_terminal_the_view_is_printed_once(tmp_path: Path) -> None:
    done = outlast("top", a_run.ended_run(tmp_path), COLUMNS="100")
    assert done.returncode == 0, done.stderr
    assert "Is it training?" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("height", [16, 24, 40, 80])
def test_the_view_fits_into_the_screen(tmp_path: Path, height: int) -> None:
    """Method: a run with failures and one of many ranks, at several heights, narrow and wide."""
    failed = page_of(look(str(a_run.ended_run(tmp_path))), wall_s=MADE_S)
    for page in (failed, page_of(big_run(64, interruptions=40), wall_s=MADE_S)):
        for width in (80, 160):
            lines = drawn(page, height=height, width=width)
            assert len(lines) <= height
            assert any("Whose fault was it?" in line for line in lines)
            assert any(line.startswith("rank") for line in lines)


def test_ranks_are_scrolled(tmp_path: Path) -> None:
    page = page_of(big_run(64), wall_s=MADE_S)
    first, later = (drawn(page, height=30, offset=offset)[-1] for offset in (0, 100))
    assert int(later.split()[0]) == int(first.split()[0]) + 100
    assert drawn(page, height=30, offset=10**6)[-1].split()[0] == "511"


class Terminal:
    """The command at a terminal of its own."""

    def __init__(self, path: Path) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            [sys.executable, "-m", "outlast.app.cli", "top", str(path)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
        )
        self.said = ""

    def until(self, text: str) -> None:
        """Read until it has said this, for half a minute at most."""
        end_s = time.monotonic() + 30
        while text not in self.said:
            assert time.monotonic() < end_s, self.said
            if select.select([self.master], [], [], 0.5)[0]:
                self.said += os.read(self.master, 65536).decode("utf-8", "replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for fd in (self.master, self.slave):
            with contextlib.suppress(OSError):
                os.close(fd)


@pytest.mark.parametrize("end", ["q", "ctrl-c", "sigterm"])
def test_at_a_terminal_it_gives_the_screen_back(tmp_path: Path, end: str) -> None:
    """It takes the other screen, and leaves it and the terminal's modes as they were."""
    terminal = Terminal(a_run.ended_run(tmp_path))
    try:
        terminal.until("Whose fault was it?")
        assert "\x1b[?1049h" in terminal.said
        if end == "q":
            os.write(terminal.master, b"q")
        else:
            terminal.process.send_signal(signal.SIGINT if end == "ctrl-c" else signal.SIGTERM)
        terminal.until("\x1b[?1049l")
        code = terminal.process.wait(timeout=20)
        assert code == {"q": 0, "ctrl-c": 130, "sigterm": 143}[end]
        assert termios.tcgetattr(terminal.slave) == terminal.before
    finally:
        terminal.close()
