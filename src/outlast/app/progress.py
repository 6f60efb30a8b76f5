"""A bar on stderr while much data is read. If stderr is not a terminal, there is none."""

from __future__ import annotations

import contextlib
import sys
import typing
from collections.abc import Callable, Iterator

from outlast.model.limits import PROGRESS_FROM_BYTES, PROGRESS_FROM_DUMPS_COUNT
from outlast.runtime.evidence.reading import ReadingProgress


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[ReadingProgress], None]]:
    """Give a function that shows how far reading has come, and remove the bar at exit."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    bar = _Bar()
    try:
        yield bar.show
    finally:
        bar.close()


class _Bar:
    """A bar. It imports rich only for much data: reading little takes less time than the import."""

    def __init__(self) -> None:
        self._rich: typing.Any = None
        self._tasks: dict[str, int] = {}

    def show(self, progress: ReadingProgress) -> None:
        if progress.total < (
            PROGRESS_FROM_DUMPS_COUNT if progress.what == "dumps" else PROGRESS_FROM_BYTES
        ):
            return
        if self._rich is None:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Rich

            columns = (
                TextColumn("reading {task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeRemainingColumn(),
            )
            self._rich = Rich(*columns, console=Console(stderr=True), transient=True)
            self._rich.start()
        if progress.what not in self._tasks:
            self._tasks[progress.what] = self._rich.add_task(progress.what, total=progress.total)
        self._rich.update(self._tasks[progress.what], completed=progress.done)

    def close(self) -> None:
        if self._rich is not None:
            self._rich.stop()
