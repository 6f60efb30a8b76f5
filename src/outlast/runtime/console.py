"""A console that never makes its writer wait.

What is printed goes into a bounded buffer, and a thread writes it.

A terminal can be stopped (Ctrl-S), a pager may stop reading, a pipe can be closed (`| head`), and a
window can be closed. The launcher must not wait for any of these, and must not end because of them:

    slow      what does not fit into the buffer is left out; the number of these lines is printed as
              soon as there is room again
    full      the disk of a file is full: it is handled in the same way
    gone      after EPIPE or EIO, everything is left out

Cost       A write is an append under a lock.
Order      The order of both streams is kept if they lead to the same file, as on a terminal.
           Otherwise the order within each stream is kept.
Limits     A line that is left out here is still in the log files, if there are any (logs.py). At
           the end this waits for the console until nothing has moved for CONSOLE_LINGER_S.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import IO, TextIO

from outlast.model.limits import CONSOLE_BUFFER_BYTES, CONSOLE_LINGER_S

_GONE = {errno.EPIPE, errno.EIO, errno.EBADF, errno.ECONNRESET}


class ConsoleWriter:
    """Write to descriptors that may block, in a thread for which nothing waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        # how many pieces were written; `close` sees from it that something still moves
        self._moves = 0
        # the number of lines left out, by descriptor, since the last lines that were written
        self._left_out: dict[int, int] = {}
        self._gone: set[int] = set()
        self._mid_line = False  # the newest piece did not end in a newline
        threading.Thread(target=self._run, name="outlast-console", daemon=True).start()

    def put(self, fd: int, data: bytes) -> None:
        """Let the thread write this later, or leave it out. This never waits."""
        with self._changed:
            if fd in self._gone:
                return
            if self._bytes + len(data) > CONSOLE_BUFFER_BYTES:
                self._left_out[fd] = self._left_out.get(fd, 0) + data.count(b"\n")
                return
            if fd in self._left_out:
                self._append_notice(fd, self._left_out.pop(fd))
            self._append(fd, data)
            self._mid_line = not data.endswith(b"\n")
            self._changed.notify_all()

    def begin_line(self, fd: int) -> None:
        """End the line that the newest piece has left unfinished, if it did."""
        if self._mid_line:
            self.put(fd, b"\n")

    def close(self, *, idle_s: float) -> None:
        """Wait until everything is written, or until nothing has moved for `idle_s`."""
        with self._changed:
            for fd, count in self._left_out.items():
                self._append_notice(fd, count)
            self._left_out.clear()
            self._changed.notify_all()
            while self._waiting:
                seen = self._moves
                self._changed.wait_for(functools.partial(self._moved_since, seen), idle_s)
                if self._moves == seen:
                    return

    def _moved_since(self, seen: int) -> bool:
        return self._moves != seen

    def _append_notice(self, fd: int, count: int) -> None:
        """Say on a separate line how many lines were left out."""
        self._append(fd, (b"\n" if self._mid_line else b"") + _left_out(count))
        self._mid_line = False

    def _append(self, fd: int, data: bytes) -> None:
        self._waiting.append((fd, data))
        self._bytes += len(data)

    def _run(self) -> None:
        # If this thread received a signal, the handler would raise in the main thread even while
        # that one blocks signals, for instance between creating the vault and being ready to remove
        # it.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                fd, data = self._waiting[0]
            self._write(fd, data)
            with self._changed:
                self._waiting.popleft()
                self._bytes -= len(data)
                self._moves += 1
                self._changed.notify_all()

    def _write(self, fd: int, data: bytes) -> None:
        if fd in self._gone:
            return
        while data:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:  # another program has made the terminal non-blocking
                select.select([], [fd], [])
            except OSError as error:
                with self._changed:
                    if error.errno in _GONE:
                        self._gone.add(fd)
                    else:  # a full disk may have room again
                        self._left_out[fd] = self._left_out.get(fd, 0) + data.count(b"\n")
                return


class ConsoleStream(io.TextIOBase):
    """Stand in for sys.stdout or sys.stderr."""

    def __init__(self, replaced: TextIO, writer: ConsoleWriter) -> None:
        self._writer = writer
        self._fd = replaced.fileno()
        self._encoding = replaced.encoding
        self._is_terminal = replaced.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has an attribute here
        return self._encoding

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return self._is_terminal

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Write a text. Characters that the encoding cannot show are escaped."""
        if text:
            self._writer.put(self._fd, text.encode(self._encoding, "backslashreplace"))
        return len(text)

    def begin_line(self) -> None:
        """Make sure that what is written next begins a line, even after a progress bar.

        On a terminal the live view keeps unfinished lines, and moves the cursor by itself.
        """
        if not self._is_terminal:
            self._writer.begin_line(self._fd)


def begin_line(stream: IO[str] | None) -> None:
    """Make sure that what is written next begins a line, if `stream` is one of `unblocked`."""
    if isinstance(stream, ConsoleStream):
        stream.begin_line()


@contextlib.contextmanager
def unblocked() -> Iterator[None]:
    """Let no thread of this process wait for the console, or fail because of it, in the block."""
    before = sys.stdout, sys.stderr
    try:
        for stream in before:
            if stream is not None:
                stream.flush()
        out, error = _streams(*before)
    # it is closed, or is not a file (under pytest): there is nothing to wait for
    except (OSError, ValueError):
        yield
        return
    except RuntimeError:  # boundary: "can't start new thread"; what needs one next says why
        yield
        return
    sys.stdout, sys.stderr = out, error
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for writer in {
            id(one): one
            for stream in (out, error)
            if isinstance(stream, ConsoleStream)
            for one in (stream._writer,)
        }.values():
            writer.close(idle_s=CONSOLE_LINGER_S)


def _streams(out: TextIO | None, error: TextIO | None) -> tuple[TextIO, TextIO]:
    """Return both streams. `None` (closed when the process began) stays None."""
    writer = ConsoleWriter()
    other = (
        writer
        if out is None or error is None or _same_file(out.fileno(), error.fileno())
        else ConsoleWriter()
    )
    first = None if out is None else ConsoleStream(out, writer)
    second = None if error is None else ConsoleStream(error, other)
    return first, second  # type: ignore[return-value]  # a TextIOBase serves as a TextIO


def _same_file(one: int, other: int) -> bool:
    left, right = os.fstat(one), os.fstat(other)
    return (left.st_dev, left.st_ino) == (right.st_dev, right.st_ino)


def _left_out(count: int) -> bytes:
    """Say how many lines were left out. Pieces of a long line count as that line."""
    count = max(1, count)
    lines = "line was" if count == 1 else "lines were"
    return (
        f"outlast: {count} {lines} left out here, for the console did not take them; log files have"
        " all that workers print\n".encode()
    )
