"""Read the dumps of strangers in separate processes, under limits of memory and time.

All cores that this process may use are used.

A reading process is forked, because a fresh interpreter would cost more than a hundred dumps. It
keeps none of our descriptors except its two pipes. It gets the names of files through one pipe,
reads each file, and answers through the other. The answers are small states
(`diagnose/collectives/packed.py`) as JSON, so nothing that comes back is unpickled. These limits
hold whatever a dump may do to the process:

    memory    RLIMIT_AS: what it had at its start, and `memory_bytes`
    time      a timer of processor time for each file, `limit_s`; the kernel ends the process.
              WALL_S for a file that a disk never delivers
    files     RLIMIT_FSIZE 0: it can write to its pipes only

If a process ends while it reads a batch of files, another one reads them one by one. So the bad
file is found and named, and the others are read.

Not promised: protection from a dump that executes code in the interpreter. Such code can read what
this user may read. Forking is safe beside our threads, because the child uses nothing of theirs: no
logging, no standard streams, no locks.
"""

from __future__ import annotations

import collections
import gc
import json
import os
import resource
import selectors
import signal
import stat
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, NoReturn

from outlast.diagnose.collectives import (
    Dump,
    OversizedDump,
    Packer,
    Unpacker,
    UnreadableDump,
    read_dump,
)
from outlast.model.pieces import Piece
from outlast.model.texts import cut_at_word
from outlast.runtime.linux import keep_heap

MEMORY_BYTES = 1 << 30  # for one process
LIMIT_S = 20.0  # of processor time for one file; 2,000 entries with stacks take 0.05 s
WALL_S = 60.0  # the limit for all files that a process is given at once
BATCH_COUNT = 128  # files that a process is given at once: some 100 ms of work
# processes that may have to be ended; after more of them, only what was read so far is returned
ENDED_MAX_COUNT = 16
_ANSWER_BYTES_MAX = 1 << 30
_LENGTH = struct.Struct("<Q")
_ENDED_BADLY = 70  # exit code of a reading process that raised an unexpected error


def read_dumps(
    pieces: Iterable[Piece],
    *,
    processes: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
    limit_s: float = LIMIT_S,
    on_progress: Callable[[int, int], None] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[list[Dump], dict[str, str]]:
    """Return the dumps that could be read, in order, and why each other piece could not be read.

    processes    how many processes read at once; None: one for each core that this process may use
    on_progress  is called from time to time with (pieces done, pieces in all)
    is_over      is called from time to time; once it returns True, no more dumps are read
    """
    if not (given := list(pieces)):
        return [], {}
    most = min(processes or len(os.sched_getaffinity(0)), len(given))
    with _ReaderPool(given, most, memory_bytes, limit_s) as pool:
        pool.work(on_progress or (lambda done, count: None), is_over)
    return [dump for _, dump in sorted(pool.read.items())], pool.unreadable


# --- the process that asks ------------------------------------------------------------------------


class _Reader:
    """One reading process, and the places in the list of pieces that it is reading."""

    def __init__(self, memory_bytes: int, limit_s: float, unpacker: Unpacker) -> None:
        self.unpacker = unpacker
        requests, self._to = _pipe()
        self.answers, answers = _pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _serve(requests, answers, memory_bytes, limit_s)
        requests.close()
        answers.close()
        self.batch: list[int] = []
        self.over_s = 0.0
        self._came = bytearray()

    def give(self, batch: list[int], pieces: Sequence[Piece]) -> None:
        self.batch, self.over_s = batch, time.monotonic() + WALL_S
        rows = [
            (pieces[place].path, pieces[place].name, pieces[place].size_bytes) for place in batch
        ]
        try:
            _send(self._to, json.dumps(rows).encode())
        except OSError:
            pass  # it has ended, which shows when its pipe is read

    def take(self) -> dict[str, Any] | None:
        """Return a whole answer, if there is one. Raises EOFError if the process has ended."""
        more = os.read(self.answers.fileno(), 1 << 20)
        if not more:
            raise EOFError
        self._came += more
        if len(self._came) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._came)
        if length > _ANSWER_BYTES_MAX:
            raise EOFError
        if len(self._came) < _LENGTH.size + length:
            return None
        body, self._came = self._came[_LENGTH.size :], bytearray()
        return dict(json.loads(body))

    def end(self) -> int:
        """Return how the process ended, as subprocess says it.

        A process that is alive is killed.
        """
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            os.kill(self.pid, signal.SIGKILL)
            status = os.waitpid(self.pid, 0)[1]
        for pipe in (self._to, self.answers):
            try:
                pipe.close()
            except OSError:
                pass  # the pipe has what was not yet written to a process that has ended
        return os.waitstatus_to_exitcode(status)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    read, write = os.pipe()
    return open(read, "rb"), open(write, "wb")


class _ReaderPool:
    """Read dumps in several processes, and keep the list of the remaining ones."""

    def __init__(self, pieces: list[Piece], most: int, memory_bytes: int, limit_s: float) -> None:
        self.pieces, self.memory_bytes, self.limit_s = pieces, memory_bytes, limit_s
        self.read: dict[int, Dump] = {}
        self.unreadable: dict[str, str] = {}
        count = max(1, min(BATCH_COUNT, len(pieces) // (most * 4)))
        self._batches = collections.deque(
            list(range(at, min(at + count, len(pieces)))) for at in range(0, len(pieces), count)
        )
        self._most, self._ended_count = most, 0
        self._shared: dict[Any, Any] = {}
        self._readers: list[_Reader] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _ReaderPool:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.end()
        self._selector.close()

    def work(self, on_progress: Callable[[int, int], None], is_over: Callable[[], bool]) -> None:
        # the garbage collector would go through all dumps again and again as they arrive, and none
        # of them contains a cycle
        with_collector = gc.isenabled()
        gc.disable()
        try:
            for _ in range(min(self._most, len(self._batches))):
                self._start()
            while self._readers:
                self._step()
                if is_over():
                    self._stop()
                on_progress(len(self.read) + len(self.unreadable), len(self.pieces))
        finally:
            if with_collector:
                gc.enable()

    def _stop(self) -> None:
        """Stop reading. What is not read by now is named as unreadable."""
        left = [place for batch in self._batches for place in batch]
        for reader in list(self._readers):
            left += reader.batch
            self._let_go(reader)
        self._batches.clear()
        for place in left:
            if place not in self.read:
                self.unreadable.setdefault(self.pieces[place].name, "the time limit was over")

    def _start(self) -> None:
        reader = _Reader(self.memory_bytes, self.limit_s, Unpacker(self._shared))
        self._readers.append(reader)
        self._selector.register(reader.answers, selectors.EVENT_READ, reader)
        self._feed(reader)

    def _feed(self, reader: _Reader) -> None:
        if self._batches:
            reader.give(self._batches.popleft(), self.pieces)
        else:
            self._let_go(reader)

    def _let_go(self, reader: _Reader) -> int:
        self._readers.remove(reader)
        self._selector.unregister(reader.answers)
        return reader.end()

    def _step(self) -> None:
        for key, _ in self._selector.select(timeout=1.0):
            reader: _Reader = key.data
            try:
                answer = reader.take()
            except (EOFError, ValueError):
                self._lost(reader, late=False)
                continue
            if answer is not None:
                self._keep(reader, answer)
                self._feed(reader)
        for reader in [reader for reader in self._readers if time.monotonic() > reader.over_s]:
            self._lost(reader, late=True)

    def _keep(self, reader: _Reader, answer: dict[str, Any]) -> None:
        for place, dump in zip(answer["places"], reader.unpacker.unpack(answer), strict=True):
            self.read[reader.batch[place]] = dump
        for place, why in answer["unreadable"]:
            self.unreadable[self.pieces[reader.batch[place]].name] = why

    def _lost(self, reader: _Reader, *, late: bool) -> None:
        """Handle a process that ended while it was reading, or is ended now.

        Its pieces are read again, one by one. If there was only one, that piece is named.
        """
        code, batch = self._let_go(reader), reader.batch
        self._ended_count += 1
        if len(batch) > 1:
            self._batches.extendleft([place] for place in reversed(batch))
        else:
            self.unreadable[self.pieces[batch[0]].name] = self._why(code, late=late)
        if self._ended_count >= ENDED_MAX_COUNT:
            for place in (place for left in self._batches for place in left):
                self.unreadable[self.pieces[place].name] = (
                    f"not read: {self._ended_count} processes had to be ended over other files"
                )
            self._batches.clear()
        elif self._batches:
            self._start()

    def _why(self, code: int, *, late: bool) -> str:
        if late:
            return f"the process that read it was ended: no answer within {WALL_S:g} s"
        if code == -signal.SIGPROF:
            return (
                f"the process that read it was ended: more than {self.limit_s:g} s of processor"
                " time"
            )
        if code < 0:
            return f"the process that read it was ended by {signal.Signals(-code).name}"
        return f"the process that read it ended with exit code {code}"


def _send(pipe: IO[bytes], body: bytes) -> None:
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


# --- the process that reads -----------------------------------------------------------------------


def _serve(requests: IO[bytes], answers: IO[bytes], memory_bytes: int, limit_s: float) -> NoReturn:
    """Read the dumps that are requested, until the pipe ends.

    It never returns into the code of the process that forked it.
    """
    code = _ENDED_BADLY
    try:
        gc.disable()
        gc.freeze()
        for number in range(1, signal.NSIG):
            if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None):
                signal.signal(number, signal.SIG_DFL)
        # Ctrl-C is handled by the process that asked. When that one ends, the pipe ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.setsid()
        kept = sorted((requests.fileno(), answers.fileno()))
        os.closerange(0, kept[0])
        os.closerange(kept[0] + 1, kept[1])
        os.closerange(kept[1] + 1, os.sysconf("SC_OPEN_MAX"))
        _confine(memory_bytes)
        keep_heap()
        packer = Packer()
        while len(head := requests.read(_LENGTH.size)) == _LENGTH.size:
            rows = json.loads(requests.read(_LENGTH.unpack(head)[0]))
            _send(
                answers,
                json.dumps(
                    _read(rows, packer, memory_bytes, limit_s), separators=(",", ":")
                ).encode(),
            )
        code = 0
    finally:
        os._exit(code)


def _confine(memory_bytes: int) -> None:
    try:
        with open("/proc/self/statm", "rb") as file:
            own_bytes = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        own_bytes = 1 << 30
    for what, limit in (
        (resource.RLIMIT_AS, own_bytes + memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (limit, limit))


def _read(
    rows: Sequence[tuple[str | None, str, int]], packer: Packer, memory_bytes: int, limit_s: float
) -> dict[str, Any]:
    dumps: list[Dump] = []
    places: list[int] = []
    unreadable: list[tuple[int, str]] = []
    for place, (path, name, size_bytes) in enumerate(rows):
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        try:
            dumps.append(_dump_in(path, size_bytes, name))
            places.append(place)
        except (OversizedDump, MemoryError):  # the latter if the bytes alone are too many
            unreadable.append((place, f"needs more than {memory_bytes >> 20} MB of memory"))
            gc.collect()  # objects that were partly read may refer to each other
        except (UnreadableDump, OSError) as error:
            unreadable.append((place, str(error)))
            gc.collect()
        except Exception as error:  # boundary: one file, of strangers
            # The others are read in any case.
            why = f"{type(error).__name__}: {cut_at_word(str(error), 120)}"
            unreadable.append((place, f"not a dump: {why}"))
    signal.setitimer(signal.ITIMER_PROF, 0)
    return packer.pack(dumps) | {"places": places, "unreadable": unreadable}


def _dump_in(path: str | None, size_bytes: int, name: str) -> Dump:
    try:
        return read_dump(_bytes_of(path, size_bytes), name=name)
    except UnreadableDump as error:
        if error.refused or path is None or (now_bytes := os.stat(path).st_size) <= size_bytes:
            raise
        # it was written again since it was found
        return read_dump(_bytes_of(path, now_bytes), name=name)


def _bytes_of(path: str | None, size_bytes: int) -> bytes:
    """Return at most `size_bytes` of a file. Raises OSError if it is not a regular file any more.

    Opening never waits.
    """
    if path is None:
        raise OSError("it has no file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        raw = os.read(descriptor, size_bytes)
        # one call returns two gigabytes at most
        while len(raw) < size_bytes and (more := os.read(descriptor, size_bytes - len(raw))):
            raw += more
        return raw
    finally:
        os.close(descriptor)
