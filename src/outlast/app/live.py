"""The live view of `outlast run`, on stderr.

On a terminal, it is a few lines that stay in place. Elsewhere, it is plain lines.

A snapshot is what `outlast status --json` prints. The view reads no clock: `wall_s` of the
snapshots is its time. For a resumed run, `wall_s` and ETTR cover all its launcher sessions, as in
`outlast report`. There is one thread, and nothing is drawn between calls.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from outlast.app import words
from outlast.app.status import headline, last_interruptions
from outlast.app.words import Facts
from outlast.model import limits

WAIT_SHOWN_S = 3.0  # a wait that is shorter is not worth a line
_LOUD = ("warning", "error", "page")  # beginnings of lines that --quiet leaves


class LiveView:
    """The live view. Use it as a context manager, or call `close`.

    console         one for stderr (see words.console_for)
    status_every_s  off a terminal, a status line so often; 0: never
    quiet           only warnings and errors are printed
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
        self._live: Live | None = None
        self._facts: Facts | None = None
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
        """Show this from now on.

        Off a terminal, there is a line at the start, at each interruption and its end, and now and
        then.
        """
        snapshot = words.escaped_all(snapshot)
        self._facts = snapshot
        if self._quiet:
            return
        if self._console.is_terminal:
            self._start()
            if self._live is not None:
                self._live.update(_view(snapshot), refresh=True)
            return
        for line in self._news(snapshot):
            self._write(line)

    def print_line(self, text: str) -> None:
        """Print a line for people above the view."""
        if not self._quiet or text.startswith(_LOUD):
            self._write(Text(words.escaped(text, lines=True)))

    def pass_through(self, write: Callable[[], object]) -> None:
        """Call `write` with the view out of its way.

        It writes to the same terminal in another way, such as the output of a worker.
        """
        drawn = self._live is not None
        self._stop()
        try:
            write()
        finally:
            if drawn and self._facts is not None:
                self.update(self._facts)

    def close(self) -> None:
        """Take the view away. What was printed stays."""
        self._stop()

    def _start(self) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _write(self, line: Text) -> None:
        self._console.print(Text.assemble(("outlast ", "dim"), line), soft_wrap=True)

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
        lines += self._wait_news(snapshot.get("waits_for"), at_s)
        every_s = self._status_every_s
        if every_s and (self._said_s is None or at_s >= self._said_s + every_s):
            self._said_s = at_s
            lines.append(Text.assemble(headline(snapshot), f"   workers: {_workers(snapshot)}"))
        return lines

    def _wait_news(self, wait: Facts | None, at_s: float) -> list[Text]:
        """Say once what is waited for, when that has lasted for WAIT_SHOWN_S."""
        what = wait["what"] if wait else ""
        if what != self._wait[0]:
            self._wait = (what, at_s, False)
        _, since_s, shown = self._wait
        if wait is None or shown or at_s < since_s + WAIT_SHOWN_S:
            return []
        self._wait = (what, since_s, True)
        return [Text(words.waits(wait))]


def _view(snapshot: Facts) -> RenderableType:
    parts: list[RenderableType] = [
        headline(snapshot),
        Padding(Text(f"workers  {_workers(snapshot)}"), (0, 0, 0, 2)),
    ]
    if snapshot.get("waits_for"):
        parts.append(Padding(Text(words.waits(snapshot["waits_for"])), (0, 0, 0, 2)))
    if snapshot.get("interruptions"):
        parts.append(Padding(last_interruptions(snapshot), (0, 0, 0, 2)))
    return Group(*parts)


def _workers(snapshot: Facts) -> str:
    text = words.states(snapshot.get("workers", ()))
    spares: list[typing.Any] = list(snapshot.get("spares", ()))
    return f"{text}; spares: {words.spares(spares)}" if spares else text
