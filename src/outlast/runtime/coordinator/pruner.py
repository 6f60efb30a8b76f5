"""`Pruner`: removes the checkpoints that a run does not keep, while it trains.

An older checkpoint is removed only once a newer one was read completely, which may take long. The
launcher must notice faults meanwhile, so a thread does this.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from outlast.engine.durable import Retention
from outlast.errors import OutlastError
from outlast.model.limits import PRUNE_WAIT_S
from outlast.runtime.coordinator.saves import why_failed
from outlast.runtime.tiers import local


class Pruner:
    """Remove what `retention` does not keep, in a thread that runs while there is work.

    Call `ask` after each checkpoint. It never waits. Call `finish` at the end of the run. In
    between, there may be more checkpoints than `retention` says: a checkpoint that is written while
    another one is being read is handled after that.
    """

    def __init__(self, root: Path, retention: Retention) -> None:
        self._root = root
        self._retention = retention
        self._lock = threading.Lock()
        self._asked = False
        self._thread: threading.Thread | None = None
        self._error = ""

    def ask(self) -> None:
        """Ask the thread to read the newest checkpoint, and then to remove older ones."""
        with self._lock:
            self._asked = True
            if self._thread is not None:
                return  # the thread looks once more when it is done
            self._thread = threading.Thread(target=self._run, name="outlast-pruner", daemon=True)
            try:
                self._thread.start()
            # no more threads can be started; the next checkpoint asks again
            except RuntimeError as error:
                self._thread, self._error = None, str(error)

    def take_error(self) -> str:
        """Return why checkpoints could not be removed, once, or ""."""
        with self._lock:
            error, self._error = self._error, ""
        return error

    def finish(self) -> None:
        """Wait until all is removed, for PRUNE_WAIT_S at most."""
        thread = self._thread
        if thread is None:
            return
        thread.join(PRUNE_WAIT_S)
        if thread.is_alive():
            self._error = f"the newest one was not read in full within {PRUNE_WAIT_S:g} s"

    def _run(self) -> None:
        # A signal that this thread took would be raised in the main thread at any place.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while self._goes_on():
            try:
                local.prune(self._root, self._retention.last, every=self._retention.every)
            except (OutlastError, OSError, MemoryError) as error:  # boundary: training goes on
                self._error = why_failed(error)

    def _goes_on(self) -> bool:
        with self._lock:
            asked, self._asked = self._asked, False
            if not asked:
                self._thread = None
            return asked
