"""`outlast top`: the live view of any run, over the whole screen.

    outlast top              the newest run under runs/
    outlast top runs/x       another one; it may be over, or its launcher gone

It reads the run's folder once a second. The arrow keys scroll the ranks, q ends it. If the output
is not a terminal, it prints the view once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outlast.app import words
from outlast.app.command_line import Parser, add_run
from outlast.app.page.page_model import Page, page_of
from outlast.app.reports.status import STATE_STYLE, headline, last_interruptions, progress_line
from outlast.app.views.run_views import understood
from outlast.errors import OutlastError
from outlast.runtime import clock
from outlast.runtime.folders import run_folder
from outlast.runtime.folders.run_files import ledger_changed
from outlast.runtime.fresh import Fresh
from outlast.runtime.ledger.view import look
from outlast.runtime.terminal_keys import typed_keys

LOOK_EVERY_S = 1.0
BAR_COLUMNS = 24
CAUSES_MOST = 6
RANKS_LEAST = 3  # rows that ranks get, however low the screen is
TONES = {"good": "green", "watch": "yellow", "bad": "bold red", "plain": "bold"}
KEYS = {"down": 1, "j": 1, "up": -1, "k": -1, "page down": 10, " ": 10, "page up": -10, "b": -10}
TERMINATED_EXIT = 143


def main(argv: Sequence[str]) -> int:
    """Run `outlast top` and return its exit code."""
    args = parser().parse_args(list(argv))
    path = run_folder.find(args.run)
    shown = Fresh(
        functools.partial(_page, path),
        functools.partial(ledger_changed, path),
        least_s=LOOK_EVERY_S / 2,
        longest_s=LOOK_EVERY_S,
    )
    console = words.console_for(environment=os.environ)
    if not (console.is_terminal and sys.stdin.isatty()):
        blocks = words.shows_blocks(console.encoding)
        console.print(view(shown.get(), height=1_000, blocks=blocks))
        return 0
    _watch(console, shown)
    return 0


def parser() -> Parser:
    """Return the parser of the command."""
    out = Parser(
        prog="outlast top",
        description="Show a run over the whole screen, live or ended. The arrow keys scroll the"
        " ranks; q ends it.",
    )
    add_run(out)
    return out


def _page(path: Path) -> Page:
    seen = look(str(path))
    with understood(path):
        return page_of(seen, wall_s=clock.wall_s())


def _watch(console: Console, shown: Fresh[Page]) -> None:
    offset = 0
    with (
        _ended_by_sigterm(),
        typed_keys() as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            try:
                drawn = view(
                    shown.get(),
                    height=console.height,
                    offset=offset,
                    blocks=words.shows_blocks(console.encoding),
                )
            except OutlastError as error:  # it may still be starting
                drawn = Text(words.escaped(str(error), lines=True), style="yellow")
            live.update(drawn, refresh=True)
            key = keys.wait(LOOK_EVERY_S)
            if key == "q":
                return
            offset = 0 if key == "home" else max(0, offset + KEYS.get(key, 0))


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Restore the screen when SIGTERM comes, before the process ends."""

    def end(*_: object) -> typing.NoReturn:
        sys.exit(TERMINATED_EXIT)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def view(page: Page, *, height: int, offset: int = 0, blocks: bool = True) -> RenderableType:
    """Return the view in at most `height` lines. `offset` is the first rank that is shown."""
    head: list[RenderableType] = [headline(page.status, apart=True)]
    if page.status.get("target_step"):
        head.append(progress_line(page.status, 80, blocks=blocks))
    head += [Text(), _answers(page), Text()]
    causes = page.losses[-1:] + page.losses[:-1][: CAUSES_MOST - 1]
    # headline, progress, answers and the blank lines; then causes with theirs
    used = len(head) + len(page.answers) - 1
    left = height - used - RANKS_LEAST - 1
    parts = list(head)
    if left >= len(causes) + 1:
        parts += [_causes(page, len(causes), blocks=blocks), Text()]
        left -= len(causes) + 1
    some = page.status["interruptions"]
    if some and left >= len(some) * 2 + 1:
        parts += [_interruptions(page), Text()]
        left -= len(some) * 2 + 1
    parts.append(_ranks(page, offset, RANKS_LEAST + max(0, left)))
    return Group(*parts)


def _answers(page: Page) -> Table:
    table = _grid()
    table.columns[0].style = "dim"
    table.columns[0].min_width = max(len(one.question) for one in page.answers)
    for one in page.answers:
        note = Text(one.note, "dim")
        answer = Text(one.answer, TONES[one.tone])
        table.add_row(one.question, answer.append("  ").append_text(note))
    return table


def _interruptions(page: Page) -> RenderableType:
    """Return the last interruptions, each in two lines, however long the verdicts are."""
    found = last_interruptions(page.status)
    for line in found.renderables if isinstance(found, Group) else ():
        if isinstance(line, Text):
            line.no_wrap, line.overflow = True, "ellipsis"
    return found


def _causes(page: Page, count: int, *, blocks: bool) -> Table:
    table = _grid()
    some = (*page.losses[-1:], *page.losses[:-1])[:count]
    for one in some:
        style = "green" if one.cause == "productive" else "yellow"
        table.add_row(
            one.cause.replace("_", " "),
            Text(words.percent(one.share), justify="right"),
            Text(words.bar(one.share, BAR_COLUMNS, blocks=blocks), style),
            Text(words.duration(one.seconds), "dim"),
        )
    return table


def _ranks(page: Page, offset: int, rows: int) -> Table:
    """Return the ranks, those of the nodes with most trouble first."""
    ranks = [one for node in page.nodes for one in node.ranks]
    first = min(offset, max(0, len(ranks) - (rows - 1)))
    table = _grid(header=True)
    heads = ("rank", "node", "pid", "state", "processes", "losses", "productive")
    for column, name in zip(table.columns, heads, strict=False):
        column.header = Text(name, "dim")
    for name in heads[len(table.columns) :]:
        table.add_column(Text(name, "dim"), no_wrap=True)
    for one in ranks[first : first + rows - 1]:
        table.add_row(
            str(one.rank),
            Text(one.node),
            str(one.pid or "-"),
            Text(one.state, STATE_STYLE.get(one.state, "")),
            str(one.processes),
            str(one.interruptions),
            words.percent(one.productive),
        )
    return table


def _grid(*, header: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header)
    if not header:
        for _ in range(2):
            table.add_column(no_wrap=True, overflow="ellipsis")
    return table
