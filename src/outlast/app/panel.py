"""A few lines at the bottom of a terminal that stay in place while other output passes above them.

What passes may be much: the lines of all workers. So the panel is laid out once for each snapshot,
and only its bytes are written again after a line that has passed.

    panel = Panel(console)
    panel.draw(["training  step 12", "2 workers"])
    panel.pass_through("stdout", "loss 0.5\\n", sys.stdout.write)
    panel.erase()

Unfinished lines   A progress bar ends in a carriage return, not in a newline. Such a line is kept
                   as the first line of the panel until it is finished, and then passes as it is.
Much output        After REDRAWN_MAX_COUNT lines between two drawings the panel stays away until the
                   next drawing: a slow terminal gets the workers' lines first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import set_cell_size
from rich.console import Console

from outlast.model.texts import escaped

REDRAWN_MAX_COUNT = 50
_UNFINISHED_MAX_COUNT = 4_000  # characters of a line that is kept back
_CLEAR_DOWN = "\x1b[J"


class Panel:
    """The panel on one terminal. It reads the width when it is drawn, so it follows a resize."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[str] = []  # laid out, with colours
        self._height = 0  # lines that are on the terminal now
        self._redrawn_count = 0
        self._unfinished: dict[str, str] = {}  # by stream: what came since its last newline

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, each of which fits into the width."""
        self._lines = list(lines)
        self._redrawn_count = 0
        self._write(self._erasing() + self._drawing())

    def draw_again(self) -> None:
        """Show the same lines again, after `erase`."""
        self._write(self._drawing())

    def pass_through(self, stream: str, text: str, write: Callable[[str], object]) -> None:
        """Let a piece of a line, or all of it, pass above the panel."""
        text = self._unfinished.pop(stream, "") + text
        if not text.endswith("\n") and len(text) < _UNFINISHED_MAX_COUNT:
            self._unfinished[stream] = text if text.endswith("\r") else text.rpartition("\r")[2]
            self._again(lambda: None)
        else:
            # of a progress bar, the last state stays
            self._again(lambda: write(text[text.rfind("\r", 0, -2) + 1 :]))

    def erase(self) -> None:
        """Remove the panel from the terminal. The lines above it stay."""
        self._write(self._erasing())

    def unfinished(self) -> list[tuple[str, str]]:
        """Return the text of each stream that was kept back, and forget it."""
        left, self._unfinished = list(self._unfinished.items()), {}
        return left

    def _again(self, write: Callable[[], object]) -> None:
        self._write(self._erasing())
        write()
        self._redrawn_count += 1
        if self._redrawn_count <= REDRAWN_MAX_COUNT:
            self._write(self._drawing())

    def _erasing(self) -> str:
        height, self._height = self._height, 0
        return f"\r\x1b[{height}A{_CLEAR_DOWN}" if height else ""

    def _drawing(self) -> str:
        width, rows = self._console.width, self._console.height
        kept = [
            set_cell_size(escaped(text.rstrip("\r").rpartition("\r")[2]), width - 1).rstrip()
            for text in self._unfinished.values()
        ]
        shown = [*kept, *self._lines][: max(0, rows - 1)]
        self._height = len(shown)
        return "".join(f"{line}\n" for line in shown)

    def _write(self, text: str) -> None:
        if text:
            self._console.file.write(text)
            self._console.file.flush()
