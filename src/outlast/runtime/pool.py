"""One function over many numbers, on all cores of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
CHUNK_COUNT = 8  # numbers handed to a process at once


def on_all_cores(function: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    """Results in the order of the numbers, which may have no end: whoever stops asking ends the processes. `function` can be pickled by name."""
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        yield from map(function, numbers)
        return
    with multiprocessing.get_context("fork").Pool(cores, initializer=_leave_interrupts) as pool:
        # imap reads ahead without bound: of an endless row it would never be done reading
        for row in _rows(numbers, cores * CHUNK_COUNT * 4):
            yield from pool.imap(function, row, chunksize=CHUNK_COUNT)


def _rows(numbers: Iterable[int], size: int) -> Iterator[list[int]]:
    row: list[int] = []
    for number in numbers:
        row.append(number)
        if len(row) == size:
            yield row
            row = []
    if row:
        yield row


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
