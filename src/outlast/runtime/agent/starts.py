"""`Starts`: starts workers once there is a store, and again if they fail before their script.

    ordered ──there is a store──> started ──says Hello──> heard
       ^                             └─fails, or ends before that──> tried again later, or given up
       └─────────────────────────────────────┘

`engine/starting.py` decides whether a worker is tried again. The coordinator is not told about
tries: to it, the worker is late. A worker that is given up, or that is killed while it waits, is
reported as one that failed to start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outlast.engine.protocol.outputs import Spawn
from outlast.engine.starting import FailedStart, LastReport, decide_start
from outlast.model import limits
from outlast.runtime import clock
from outlast.runtime.agent.host import ProcessHost
from outlast.runtime.agent.processes import Exited
from outlast.runtime.agent.specs import Specs
from outlast.runtime.loop import Loop


@dataclass(slots=True)
class _Start:
    """One worker that has not sent any message yet."""

    order: Spawn
    waits: bool = True  # no process was asked for yet, or the next try is still to come
    failures: int = 0
    first_s: float = 0.0
    reported: LastReport = field(default_factory=LastReport)


@dataclass(frozen=True)
class StartNews:
    """The receivers of what the starts report.

    given_up   is called with the number of a worker that could not be started, and the reason
    tell       is called with each line for people
    """

    given_up: Callable[[int, str], object]
    tell: Callable[[str], object]


class Starts:
    """Start workers, and try again. `order` starts one; the driver then reports what becomes of it.

    greets   workers say Hello once they run; a program (--no-python) never does
    """

    def __init__(
        self, loop: Loop, host: ProcessHost, specs: Specs, news: StartNews, *, greets: bool
    ) -> None:
        self._loop = loop
        self._host = host
        self._specs = specs
        self._news = news
        self._greets = greets
        self._starts: dict[int, _Start] = {}
        self._any_heard = False
        self._over = False

    def order(self, order: Spawn) -> None:
        """Start a worker as soon as there is a store."""
        self._starts[order.worker] = _Start(order)
        self._ask(order.worker)

    def end(self) -> None:
        """Start no worker any more: the run is over."""
        self._over = True

    def _ask(self, worker: int) -> None:
        self._specs.when_store_is_known(lambda: self._start(worker))

    def _start(self, worker: int) -> None:
        start = self._starts.get(worker)
        if start is None or not start.waits or self._over:
            return
        if self._host.holds(worker):  # its last process has ended, and is not reaped yet
            self._loop.call_at(clock.now_s() + limits.HOUSEKEEPING_S, lambda: self._start(worker))
            return
        start.waits = False
        self._host.start(self._specs.worker(start.order))

    def heard(self, worker: int) -> None:
        """Note that a worker has sent a message, so it has started."""
        if (start := self._starts.pop(worker, None)) is not None and start.failures:
            self._news.tell(f"a worker has started after {start.failures} failures")
        self._any_heard = True

    def killed(self, worker: int) -> bool:
        """Note that a worker is to be killed.

        Return True if it has no process now, and will not get one.
        """
        start = self._starts.get(worker)
        if start is None or not start.waits:
            return False
        del self._starts[worker]
        self._loop.call_soon(lambda: self._news.given_up(worker, "given up before it was started"))
        return True

    def store_is_hopeless(self, reason: str) -> None:
        """Give up all workers that wait: there will be no store for them."""
        waiting = [worker for worker, start in self._starts.items() if start.waits]
        for worker in waiting:
            del self._starts[worker]
            self._news.given_up(worker, reason)

    def failed(self, worker: int, error: str) -> None:
        """Handle a worker that has failed before it sent any message: try again, or give it up."""
        start, now_s = self._starts.get(worker), clock.now_s()
        if start is None or self._over:
            self._news.given_up(worker, error)
            return
        start.failures += 1
        start.first_s = start.first_s if start.failures > 1 else now_s
        failed = FailedStart(start.failures, start.first_s, self._any_heard, error)
        verdict = decide_start(failed, now_s=now_s)
        if verdict.again_s is None:
            del self._starts[worker]
            self._news.given_up(worker, verdict.reason)
            return
        if start.reported.note_if_due(error, now_s=now_s):
            self._news.tell(f"warning: {verdict.reason}")
        start.waits = True
        self._loop.call_at(verdict.again_s, lambda: self._ask(worker))

    def tries_again(self, exited: Exited, error: str) -> bool:
        """Handle the end of a worker. Return True if it is tried again.

        It is tried again if it ended by itself with an error before its script began. A worker that
        was killed is not tried again, because nothing had kept it from starting.
        """
        by_itself = exited.exit_code not in (None, 0) and not exited.killed
        if exited.worker not in self._starts or not self._greets or self._over or not by_itself:
            self._starts.pop(exited.worker, None)
            return False
        words = error or f"it ended with exit code {exited.exit_code} before its script began"
        self.failed(exited.worker, words)
        return exited.worker in self._starts
