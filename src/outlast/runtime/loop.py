"""A single-threaded event loop: descriptors, one-shot timers, signals.

The order within a turn is fixed. Timers that are due come first, by time and then in the order in
which they were created. Then come ready descriptors in the order of registration, readers before
writers. Then come signals, and last the calls that were deferred with `call_soon`.

If thousands of descriptors are ready, LOOP_CROWD_COUNT at a time are served in that order. Those
that have been ready for longest come first, so an early message does not wait for a late one. All
are served in one turn. So when a timer is due, everything that had arrived before it was set has
been read.

An exception in a callback leaves `run`. Callbacks handle errors of files, sockets and processes
themselves, so an exception that arrives here is a bug.

Not promised: fairness within a callback, or use from a second thread.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import select
import signal
import socket
from collections import deque
from collections.abc import Callable
from types import FrameType

from outlast.model.limits import CHANNEL_READ_BYTES, LOOP_CROWD_COUNT
from outlast.runtime.clock import now_s

Callback = Callable[[], object]


class LoopTimer:
    """A call that is due later. `cancel` may be called twice, and after the call."""

    def __init__(self, when_s: float, call: Callback) -> None:
        self.when_s = when_s
        self.call: Callback | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """Run callbacks until `stop`.

    Signals need the main thread. `close` restores their handlers.
    """

    def __init__(self) -> None:
        # one buffer for all readers, used within one callback; a new one for each read would cost
        # more
        self.buffer = memoryview(bytearray(CHANNEL_READ_BYTES))
        self._epoll = select.epoll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._order: dict[int, int] = {}
        self._count = itertools.count()
        self._timers: list[tuple[float, int, LoopTimer]] = []
        self._soon: deque[Callback] = deque()
        self._signals = _Signals()
        self._running = False

    # --- descriptors ------------------------------------------------------------------------------

    def add_reader(self, fd: int, call: Callback) -> None:
        self._readers[fd] = call
        self._watch(fd)

    def add_writer(self, fd: int, call: Callback) -> None:
        self._writers[fd] = call
        self._watch(fd)

    def remove_reader(self, fd: int) -> None:
        """Stop watching a descriptor, before it is closed. Unknown descriptors are ignored."""
        if self._readers.pop(fd, None) is not None:
            self._watch(fd)

    def remove_writer(self, fd: int) -> None:
        if self._writers.pop(fd, None) is not None:
            self._watch(fd)

    def _watch(self, fd: int) -> None:
        mask = (select.EPOLLIN if fd in self._readers else 0) | (
            select.EPOLLOUT if fd in self._writers else 0
        )
        known = fd in self._order
        if mask and known:
            self._epoll.modify(fd, mask)
        elif mask:
            self._order[fd] = next(self._count)
            self._epoll.register(fd, mask)
        elif known:
            del self._order[fd]
            with contextlib.suppress(OSError):  # closed already: so the kernel has forgotten it
                self._epoll.unregister(fd)

    # --- timers and signals -----------------------------------------------------------------------

    def call_at(self, when_s: float, call: Callback) -> LoopTimer:
        timer = LoopTimer(when_s, call)
        heapq.heappush(self._timers, (when_s, next(self._count), timer))
        return timer

    def call_soon(self, call: Callback) -> None:
        """Call a function at the end of this turn."""
        self._soon.append(call)

    def add_signal(self, number: int, call: Callback) -> None:
        """Call a function from the loop, not from the handler, once a signal has arrived.

        Several signals may cause one call.
        """
        reader = self._signals.add(number, call)
        if reader not in self._readers:
            self.add_reader(reader, self._signals.collect)

    # --- running ----------------------------------------------------------------------------------

    def run(self) -> None:
        self._running = True
        while self._running:
            self.turn(None)

    def stop(self) -> None:
        """Let `run` return after this turn."""
        self._running = False

    def run_until(self, done: Callable[[], bool], *, within_s: float) -> bool:
        """Turn until `done()` or for `within_s` at most. Return whether it is done."""
        end_s = now_s() + within_s
        while not done():
            left_s = end_s - now_s()
            if left_s <= 0:
                return False
            self.turn(left_s)
        return True

    def turn(self, longest_s: float | None) -> None:
        """Wait for the next event, at most `longest_s` (None: no limit), and run what is due."""
        events = self._epoll.poll(self._patience(longest_s), max(len(self._order), 1))
        self._run_timers()
        for start in range(0, len(events), LOOP_CROWD_COUNT):
            self._serve(events[start : start + LOOP_CROWD_COUNT])
        self._signals.deliver()
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def _serve(self, events: list[tuple[int, int]]) -> None:
        events.sort(key=lambda event: self._order.get(event[0], -1))
        for fd, mask in events:
            # A callback of this turn may have removed the descriptor, so the table is asked again
            # each time. An error is reported to reader and writer.
            if mask & ~select.EPOLLOUT and (reader := self._readers.get(fd)):
                reader()
            if mask & ~select.EPOLLIN and (writer := self._writers.get(fd)):
                writer()

    def _patience(self, longest_s: float | None) -> float | None:
        if self._soon:
            return 0.0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return longest_s
        due_s = max(0.0, self._timers[0][0] - now_s())
        return due_s if longest_s is None else min(due_s, longest_s)

    def _run_timers(self) -> None:
        now = now_s()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                timer.call()

    def close(self) -> None:
        """Restore signal handlers and forget everything. Descriptors stay with their owners."""
        self._signals.close()
        self._epoll.close()
        self._readers.clear()
        self._writers.clear()
        self._order.clear()
        self._timers.clear()
        self._soon.clear()


class _Signals:
    """Signals as bytes in a socket (the interpreter's wakeup descriptor)."""

    def __init__(self) -> None:
        self._calls: dict[int, Callback] = {}
        self._before: dict[int, object] = {}
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._fd_before = -1
        self._arrived: list[int] = []

    def add(self, number: int, call: Callback) -> int:
        if self._pair is None:
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)
            self._fd_before = signal.set_wakeup_fd(
                self._pair[1].fileno(), warn_on_full_buffer=False
            )
        if number not in self._calls:
            self._before[number] = signal.signal(number, _ignore)
        self._calls[number] = call
        return self._pair[0].fileno()

    def collect(self) -> None:
        assert self._pair is not None
        try:
            self._arrived += self._pair[0].recv(4096)
        except BlockingIOError:
            return

    def deliver(self) -> None:
        while self._arrived:
            number = self._arrived[0]
            self._arrived = [other for other in self._arrived if other != number]
            if call := self._calls.get(number):
                call()

    def close(self) -> None:
        if self._pair is None:
            return
        for number, before in self._before.items():
            # `before` is what signal.signal returned, so signal.signal accepts it.
            signal.signal(number, before or signal.SIG_DFL)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._fd_before)
        for end in self._pair:
            end.close()
        self._pair = None
        self._calls.clear()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wakeup descriptor has the byte already.

    Without a handler the signal's default action would happen.
    """
