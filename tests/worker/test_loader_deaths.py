"""A killed worker of a loader is reported once, by name, where its rank asks for a batch."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from outlast.runtime.worker.data.loader_deaths import WatchedIterator
from tests.worker.test_loaders import Augmented, plain, run, same, seeded, stateful


def kill(worker: Any) -> int:
    """Kill a worker with SIGKILL, and return its pid once it has ended."""
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    return int(worker.pid)


@pytest.mark.parametrize("make", [plain, stateful])
def test_a_killed_worker_is_reported_where_a_batch_is_requested(
    make: Callable[[int], DataLoader[Any]],
) -> None:
    """The error is held back while the rank does something else, and no batch is lost."""
    expected, source = run(seeded(make(2)), 6), seeded(make(2))
    assert all(map(same, run(source, 2), expected[:2]))
    pid = kill(source._iterator._workers[0])  # type: ignore[union-attr]
    for _ in range(1000):  # the handler runs between two lines, and raises nothing
        os.getpid()
    with pytest.raises(RuntimeError, match=rf"worker \(pid {pid}\) is killed by signal: Killed"):
        source.next_batch()
    assert all(map(same, run(source, 4), expected[2:]))
    source.close()


class Broken:
    """An iterator with these workers, whose next batch raises an error."""

    def __init__(self, workers: list[Any], error: Exception) -> None:
        self._workers = workers
        self._error = error

    def __iter__(self) -> Broken:
        return self

    def __next__(self) -> Any:
        raise self._error


def test_an_error_that_follows_from_a_killed_worker_names_the_worker() -> None:
    """The connection to a worker breaks a moment before the worker has ended."""
    process = multiprocessing.get_context("fork").Process(target=signal.pause)
    process.start()
    batches = WatchedIterator(Broken([process], ConnectionResetError(104, "reset")))
    os.kill(process.pid or 0, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="is killed by signal: Killed") as raised:
        next(batches)
    assert isinstance(raised.value.__cause__, ConnectionResetError)


def test_an_error_of_the_data_set_is_not_changed() -> None:
    """A worker that lives, or has ended by itself, is not to blame."""
    workers = [SimpleNamespace(pid=1, exitcode=code) for code in (None, 0)]
    for error in (KeyError("x"), ConnectionResetError(104, "reset")):
        with pytest.raises(type(error)):
            next(WatchedIterator(Broken(workers, error)))


def test_a_worker_that_was_killed_between_two_epochs_is_reported() -> None:
    """Persistent workers live on, and their loader would find the death only seconds later."""
    source = seeded(plain(1, persistent=True))
    source.next_batch()
    pid = kill(source._iterator._workers[0])  # type: ignore[union-attr]
    source.seek({"step": 0})
    with pytest.raises(RuntimeError, match=rf"worker \(pid {pid}\) is killed by signal: Killed"):
        source.next_batch()
    assert source.next_batch() is not None
    source.close()


def test_the_death_of_another_loaders_worker_is_raised_at_once() -> None:
    """The script has a loader of its own, which outlast does not know of."""
    source = seeded(plain(1))
    source.next_batch()
    theirs: Any = iter(DataLoader(Augmented(), num_workers=1))
    (worker,) = theirs._workers
    with pytest.raises(RuntimeError, match=rf"worker \(pid {worker.pid}\) is killed"):
        kill(worker)
    source.close()
