"""Run one function over many numbers, or over a few large tasks, on all cores of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

A = TypeVar("A")
T = TypeVar("T")
CHUNK_COUNT = 8  # how many numbers a process gets at once


def on_all_cores(function: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    """Yield results in the order of the numbers, which may have no end.

    When the caller stops asking, the processes end. It must be possible to pickle `function` by
    name.
    """
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        yield from map(function, numbers)
        return
    with multiprocessing.get_context("fork").Pool(cores, initializer=_leave_interrupts) as pool:
        # imap reads ahead without a limit, so it would never finish reading an endless iterator.
        for row in _rows(numbers, cores * CHUNK_COUNT * 4):
            yield from pool.imap(function, row, chunksize=CHUNK_COUNT)


class OnCores(Protocol):
    """A `map` over tasks, as `on_cores` returns it."""

    def __call__(self, function: Callable[[A], T], tasks: Sequence[A], /) -> Iterable[T]: ...


def on_cores(cores: int | None = None) -> OnCores:
    """Return a `map` over tasks that runs them in `cores` processes and keeps their order.

    None means one process for each core. With one task, or one core, this process does all the
    work.
    """

    def mapped(function: Callable[[A], T], tasks: Sequence[A], /) -> Iterable[T]:
        count = min(len(tasks), cores or len(os.sched_getaffinity(0)))
        if count <= 1:
            return [function(task) for task in tasks]
        with multiprocessing.get_context("fork").Pool(count, initializer=_leave_interrupts) as pool:
            return pool.map(function, tasks, chunksize=1)

    return mapped


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
    """Ignore Ctrl-C, which is for the process that asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
