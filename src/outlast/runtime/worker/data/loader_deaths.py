"""The death of a loader's worker. It is raised once, when the rank asks for a batch.

torch raises it from a handler of SIGCHLD, wherever the main thread is: in the script, or in the
middle of a commit. The loader itself finds it once more at a later batch, and reports it in other
words. So the run would count two interruptions, and name neither the worker nor its signal in the
second.

    batches = open_watched(loader)
    batch = next(batches)       # raises a death that was held back

Between two batches a death is held back. Deaths of workers of other loaders are raised as before.
"""

from __future__ import annotations

import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from outlast.model.limits import LOADER_END_S
from outlast.runtime import clock

_PID = re.compile(r"DataLoader worker \(pid (\d+)\)")


class WatchedIterator:
    """The iterator of a DataLoader, whose workers are watched while anything refers to it."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner
        self._workers: list[Any] = list(getattr(inner, "_workers", ()))
        self._asks = False
        self._held: RuntimeError | None = None
        if self._workers:
            _watching.add(self)
            _hold_back()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next batch. A death that occurs during the call is raised at once.

        An error that follows from a death names the worker and its signal instead.
        """
        self._asks = True
        try:
            if (held := self._held) is not None:
                self._held = None
                raise held
            return next(self._inner)
        except StopIteration:
            raise
        except Exception as error:  # boundary: the script's loader
            if "killed by signal" in str(error) or (killed := self._await_death(error)) is None:
                raise
            # the traceback is torch's, which shows where the error was found
            raise RuntimeError(killed).with_traceback(error.__traceback__) from error
        finally:
            self._asks = False

    def _shutdown_workers(self) -> None:
        """End the workers, if there are any."""
        self._workers, self._held = [], None
        shut_down = getattr(self._inner, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()

    def holds_back(self, error: RuntimeError) -> bool:
        """Return True if this is the death of a watched worker, which is raised later."""
        found = _PID.search(str(error))
        mine = found is not None and int(found[1]) in [one.pid for one in self._workers]
        if not mine or self._asks:
            return False
        self._held = error
        return True

    def _await_death(self, error: Exception) -> str | None:
        """Return which worker a signal has killed.

        This waits, because the files of a process close before it is dead.
        """
        until_s = clock.now_s() + (LOADER_END_S if isinstance(error, OSError | EOFError) else 0.0)
        while (killed := _killed(self._workers)) is None and clock.now_s() < until_s:
            time.sleep(LOADER_END_S / 100)
        return killed


def open_watched(loader: DataLoader[Any]) -> WatchedIterator:
    """Return an iterator of `loader` that is watched.

    Persistent workers live on between two iterators. Raises RuntimeError if one was killed there.
    """
    if killed := _killed(getattr(getattr(loader, "_iterator", None), "_workers", ())):
        raise RuntimeError(killed)
    return WatchedIterator(iter(loader))


def _killed(workers: Iterable[Any]) -> str | None:
    """Return which worker a signal has killed, in torch's words, or None."""
    for one in workers:
        if one.exitcode is not None and one.exitcode < 0:
            how = signal.strsignal(-one.exitcode) or f"signal {-one.exitcode}"
            return f"DataLoader worker (pid {one.pid}) is killed by signal: {how}."
    return None


_watching: weakref.WeakSet[WatchedIterator] = weakref.WeakSet()
_inner: Callable[[int, FrameType | None], Any] | None = None


def _hold_back() -> None:
    """Call our handler before the present handler of SIGCHLD, which is torch's."""
    global _inner
    present = signal.getsignal(signal.SIGCHLD)
    main = threading.current_thread() is threading.main_thread()
    if main and callable(present) and present is not _on_child:
        _inner = present
        signal.signal(signal.SIGCHLD, _on_child)


def _on_child(number: int, frame: FrameType | None) -> None:
    assert _inner is not None
    try:
        _inner(number, frame)
    except RuntimeError as error:
        # boundary: it is raised wherever the main thread is, unless a loader raises it later
        if not any(one.holds_back(error) for one in list(_watching)):
            raise
