"""The live view of `outlast run`, on stderr.

On a terminal, it is a few lines that stay in place. Elsewhere, it is plain lines.

A snapshot is what `outlast status --json` prints. The view reads no clock: `wall_s` of the
snapshots is its time. For a resumed run, `wall_s` and ETTR cover all its launcher sessions, as in
`outlast report`. There is one thread, and nothing is drawn between calls.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.text import Text

from outlast.app import words
from outlast.app.panel import Panel
from outlast.app.reports.status import checkpoint_words, headline, last_line, progress_line
from outlast.app.words import Facts
from outlast.model import limits
from outlast.model.texts import ELLIPSIS
from outlast.runtime.console import begin_line

WAIT_SHOWN_S = 3.0  # a shorter wait gets no line
START_SHOWN_S = 12.0  # a shorter wait at the start gets no line, because imports take seconds
_LOUD = ("warning", "error", "page")  # --quiet prints only lines that begin like this
NARROW = 40  # a terminal with fewer columns gets plain lines


def live_console(environment: Mapping[str, str]) -> Console:
    """Return the console of the live view, on stderr. NO_COLOR removes only the colours."""
    plain = environment.get("NO_COLOR") or environment.get("TERM") in ("dumb", "unknown")
    probe = Console(stderr=True, highlight=False, no_color=True if plain else None)
    return probe if probe.is_terminal else words.console_for(stderr=True, environment=environment)


class LiveView:
    """The live view. Use it as a context manager, or call `close`.

    console         the console of stderr (see words.console_for)
    status_every_s  seconds between status lines if stderr is not a terminal; 0: no status lines
    quiet           True if only warnings and errors are printed
    """

    def __init__(
        self,
        console: Console,
        *,
        status_every_s: float = limits.STATUS_EVERY_S,
        quiet: bool = False,
    ) -> None:
        self._console = console
        self._status_every_s = status_every_s
        self._quiet = quiet
        in_place = console.is_terminal and not console.is_dumb_terminal and console.width >= NARROW
        self._panel = Panel(console) if in_place else None
        self._said_s: float | None = None
        self._began: set[int] = set()
        self._ended: set[int] = set()
        # the wait, since when it lasts, and whether it was shown
        self._wait: tuple[str, float, bool] = ("", 0.0, False)

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, snapshot: Facts) -> None:
        """Show this snapshot from now on.

        If stderr is not a terminal, there is a line at the start, at each interruption and its end,
        and from time to time.
        """
        snapshot = words.escaped_all(snapshot)
        if self._quiet:
            return
        if self._panel is not None:
            blocks = words.shows_blocks(self._console.encoding)
            view = _view(snapshot, self._console.width, blocks=blocks)
            self._panel.draw(self._laid_out(view))
            return
        for line in self._news(snapshot):
            self._write(line)

    def print_line(self, text: str) -> None:
        """Print a line for people above the view."""
        if not self._quiet or text.startswith(_LOUD):
            self._write(Text(words.escaped(text, lines=True)))

    def pass_through(self, stream: str, text: str, write: Callable[[str], object]) -> None:
        """Print a worker's output above the view. `write` writes it to the same terminal."""
        if self._panel is None or self._quiet:
            write(text)
        else:
            self._panel.pass_through(stream, text, write)

    def close(self, write: Callable[[str, str], object] | None = None) -> None:
        """Remove the view from the terminal. The lines that were printed stay.

        `write` gets the stream and text of lines that no newline has ended.
        """
        if self._panel is not None:
            self._panel.erase()
            for stream, text in self._panel.unfinished():
                if write is not None:
                    write(stream, text)

    def _laid_out(self, lines: list[Text]) -> list[str]:
        """Return the lines as the terminal gets them, each cut to the width."""
        with self._console.capture() as page:
            for line in lines:
                self._console.print(line, no_wrap=True, crop=True)
        return page.get().splitlines()

    def _write(self, line: Text) -> None:
        if self._panel is not None:
            self._panel.erase()
        begin_line(self._console.file)
        self._console.print(Text.assemble(("outlast ", "dim"), line), soft_wrap=True)
        if self._panel is not None:
            self._panel.draw_again()

    def _news(self, snapshot: Facts) -> list[Text]:
        lines = []
        for one in snapshot.get("interruptions", ()):
            if one["id"] not in self._began:
                self._began.add(one["id"])
                lines.append(Text(words.began(one)))
            if one["id"] not in self._ended and one.get("resumed_s") is not None:
                self._ended.add(one["id"])
                lines.append(Text(words.ended(one)))
        at_s = snapshot.get("wall_s") or 0.0
        shown_s = START_SHOWN_S if _begins(snapshot) else WAIT_SHOWN_S
        lines += self._wait_news(snapshot.get("waits_for"), at_s, shown_s)
        every_s = self._status_every_s
        if every_s and (self._said_s is None or at_s >= self._said_s + every_s):
            self._said_s = at_s
            wait = snapshot.get("waits_for")
            waits = f"   {words.waits(wait)}" if wait else ""
            lines.append(
                Text.assemble(headline(snapshot), f"   workers: {_workers(snapshot)}{waits}")
            )
        return lines

    def _wait_news(self, wait: Facts | None, at_s: float, shown_s: float) -> list[Text]:
        """Return a line about a wait, once it has lasted for `shown_s`. Each wait gets one line."""
        what = wait["what"] if wait else ""
        if what != self._wait[0]:
            self._wait = (what, at_s, False)
        _, since_s, shown = self._wait
        if wait is None or shown or at_s < since_s + shown_s:
            return []
        self._wait = (what, since_s, True)
        return [Text(words.waits(wait))]


def _begins(snapshot: Facts) -> bool:
    """Return whether a run has not come to its first step yet, as far as it is known."""
    unseen = not snapshot.get("steps_seen", True)
    return snapshot.get("generation", 0) <= 1 and (unseen or snapshot.get("state") == "starting")


def _view(snapshot: Facts, width: int, *, blocks: bool) -> list[Text]:
    """Return the lines of the view: the state, the progress, the workers and the last failure."""
    room = width - 1
    lines = [headline(snapshot, room=room, apart=True)]
    if snapshot.get("target_step"):
        lines.append(progress_line(snapshot, room, blocks=blocks))
    more = f"  workers  {_workers(snapshot)}"
    last = [checkpoint_words(snapshot)] if snapshot.get("last_checkpoint") else []
    for one in [*last, f"generation {snapshot['generation']}"]:
        if len(more) + 3 + len(one) <= room:
            more += f"   {one}"
    lines.append(Text(more))
    if snapshot.get("waits_for"):
        lines.append(Text("  " + words.waits(snapshot["waits_for"]), "yellow"))
    if snapshot.get("interruptions"):
        lines.append(Text.assemble("  ", last_line(snapshot)))
    return [_cut(line, room) for line in lines]


def _cut(line: Text, room: int) -> Text:
    if line.cell_len > room:
        line.truncate(room - len(ELLIPSIS))
        line.append(ELLIPSIS)
    return line


def _workers(snapshot: Facts) -> str:
    workers = list(snapshot.get("workers", ()))
    # nodes that have not come yet have no processes
    text = words.states(workers) if workers else "none yet" if _begins(snapshot) else "none"
    spares: list[typing.Any] = list(snapshot.get("spares", ()))
    return f"{text}; spares: {words.spares(spares)}" if spares else text
