"""How long a diagnosis may take, and what happens when the time is over.

A `TimeBudget` is asked between pieces of work. Reading stops after READING_SHARE of the limit, so
that time is left to decide from what was read. `TimeBudget.interrupts` is the last resort around
reasoning. It raises `TimeOver` from a signal, in the main thread only. In another thread the
reasoning runs to its end.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

DEFAULT_LIMIT_S = 120.0
READING_SHARE = 0.75
ENDS_SHARE = 0.85  # the ends of files that were not read completely are read until then
LINES_BETWEEN_LOOKS = 1024  # a look at the clock costs as much as a few lines


class TimeOver(Exception):
    """The time limit passed while code was running that does not look at the clock."""


class TimeBudget:
    """The time limit of one diagnosis. `now_s` is a clock that never goes back."""

    def __init__(self, limit_s: float, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._now_s = now_s
        self._began_s = now_s()
        self.stopped_reading = False

    @property
    def left_s(self) -> float:
        return self._began_s + self.limit_s - self._now_s()

    def reading_is_over(self) -> bool:
        """Return True once no more may be read. The budget remembers that it has returned True."""
        over = self._now_s() - self._began_s >= self.limit_s * READING_SHARE
        self.stopped_reading = self.stopped_reading or over
        return over

    def ends_are_over(self) -> bool:
        """Return True once not even the ends of files may be read."""
        return self._now_s() - self._began_s >= self.limit_s * ENDS_SHARE

    def lines(self, source: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the same lines until reading is over."""
        for count, line in enumerate(source):
            if count % LINES_BETWEEN_LOOKS == 0 and self.reading_is_over():
                return
            yield line

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Raise TimeOver inside the block once the whole limit has passed.

        A timer that the caller had set is put back afterwards, with what was left of it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def over(number: int, frame: FrameType | None) -> None:
            raise TimeOver

        handler = signal.signal(signal.SIGALRM, over)
        left_before = signal.setitimer(signal.ITIMER_REAL, max(self.left_s, 0.01))[0]
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, left_before)
            signal.signal(signal.SIGALRM, handler)
