"""Write what workers print to files in torchrun's layout, and to the console by torchrun's rules.

    <log_dir>/<run id>_<suffix>/attempt_<n>/<local rank>/{stdout,stderr}.log, error.json

A spare has `spare_<worker>` in place of a rank, and goes on in a rank's files once it takes one. A
host of the store has `store_<worker>`.

Files get the bytes as they come. The console gets whole lines. If the end of a line does not come
(progress bars), its beginning is shown after LOG_PARTIAL_S. A traceback is shown as a whole, and
only once if several processes have it (console_tracebacks.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Any, BinaryIO

from outlast.errors import UsageError
from outlast.model.limits import (
    LOG_DRAIN_MAX_BYTES,
    LOG_FOLDER_MAX_BYTES,
    LOG_FOLDERS_COUNT,
    LOG_LINE_MAX_BYTES,
    LOG_PARTIAL_S,
    LOG_READ_BYTES,
    LOG_READ_LITTLE_BYTES,
    LOG_TAIL_LINES,
    MESSAGE_MAX_BYTES,
)
from outlast.runtime.agent.console_tracebacks import HeldTraceback, LogPlace, ShownTracebacks
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop, LoopTimer

STDOUT, STDERR = 1, 2  # torchrun's bits for --redirects and --tee
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}

# ("stdout" or "stderr", a line with its end, or the beginning of one)
Sink = Callable[[str, str], None]
Streams = Mapping[int, int] | int  # bits for all local ranks, or for each local rank


def parse_streams(text: str, flag: str) -> Streams:
    """Parse torchrun's form: "3" for all, or "0:1,1:2" by local rank.

    1 is stdout, 2 is stderr, 3 is both. Raises UsageError, which names `flag`, if the text has
    another form.
    """
    if re.fullmatch(r"[0-3]", text):
        return int(text)
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        return {
            int(rank): int(bits) for rank, bits in (item.split(":") for item in text.split(","))
        }
    raise UsageError(
        f"{flag} {text}: not a choice of streams",
        hint=(
            f"`{flag} 3` is for all workers; `{flag} 0:1,1:2` is stdout of local rank 0, stderr"
            " of 1"
        ),
    )


@dataclass(frozen=True)
class ConsolePolicy:
    """The streams that are shown on the console.

    All streams are, except those that are redirected and those of ranks that `only_ranks` leaves
    out. Streams under --tee get a prefix.
    """

    role: str = "default"
    redirects: Streams = 0
    tee: Streams = 0
    only_ranks: frozenset[int] = frozenset()
    prefix: str = ""  # TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE

    def prefix_of(self, local_rank: int, stream: int) -> str | None:
        """Return the prefix of a line, or None if the line does not go to the console."""
        if self.only_ranks and local_rank not in self.only_ranks:
            return None
        if _bits(self.tee, local_rank) & stream:
            if not self.prefix:
                return f"[{self.role}{local_rank}]:"
            return Template(self.prefix).safe_substitute(
                role_name=self.role, rank=local_rank, local_rank=local_rank
            )
        return None if _bits(self.redirects, local_rank) & stream else ""


def _bits(streams: Streams, local_rank: int) -> int:
    """Return which streams of this local rank are chosen: STDOUT, STDERR, both (3) or none (0)."""
    return streams if isinstance(streams, int) else streams.get(local_rank, 0)


def make_log_folder(log_dir: Path, run_id: str) -> Path | None:
    """Make a fresh folder for this launch. Return None for /dev/null, which means no files.

    Raises UsageError if `log_dir` is a file.
    """
    if str(log_dir) == os.devnull:
        return None
    if log_dir.is_file():
        raise UsageError(f"--log-dir {log_dir} is a file", hint="give a folder")
    log_dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{run_id}_", dir=log_dir))
    folder.chmod(0o755)
    return folder


class WorkerLogs:
    """Read the workers' pipes, and write their output to files and to the console.

    `folder` is what `make_log_folder` returned; None: no files. `sink` gets the console's lines.
    """

    def __init__(self, loop: Loop, folder: Path | None, policy: ConsolePolicy, sink: Sink) -> None:
        self._loop = loop
        self._folder = folder
        self._policy = policy
        self._sink = sink
        self._pipes: dict[int, list[_Pipe]] = {}
        self._shown = ShownTracebacks()
        self._folders: dict[int, str] = {}  # of the newest workers, also of those that have ended

    def error_file(self, attempt: int, place: int | str) -> str:
        """Return the path for TORCHELASTIC_ERROR_FILE.

        `place` is a local rank, `spare_<worker>` or `store_<worker>`. The path is "" without files,
        as in torchrun.
        """
        path = self._place(attempt, place)
        return str(path / "error.json") if path is not None else ""

    def attach(
        self,
        worker: int,
        stdout: int,
        stderr: int,
        *,
        attempt: int,
        place: int | str,
        rank: int = -1,
    ) -> None:
        """Read both descriptors from now on, and close them at the end.

        A place that was used before keeps its text, and loses its error file.
        """
        out = _Pipe(self._loop, stdout, STDOUT, self._sink)
        error = _Pipe(self._loop, stderr, STDERR, self._sink)
        error.held = HeldTraceback(
            self._loop,
            worker,
            lambda text: self._sink(_NAMES[STDERR], text),
            self._shown,
            read=error.read_some,
        )
        self._pipes[worker] = [out, error]
        self.move(worker, attempt=attempt, place=place, rank=rank)

    def move(self, worker: int, *, attempt: int, place: int | str, rank: int = -1) -> None:
        """Let `worker` write at `place` from now on. With a rank it is shown on the console.

        rank   its rank in the run; -1: the same as its local rank
        """
        folder = self._place(attempt, place)
        self._note_folder(worker, folder)
        if folder is not None:
            with contextlib.suppress(OSError):
                (folder / "error.json").unlink(missing_ok=True)
        for pipe in self._pipes.get(worker, ()):
            prefix = self._policy.prefix_of(place, pipe.stream) if isinstance(place, int) else None
            path = None if folder is None else folder / f"{_NAMES[pipe.stream]}.log"
            pipe.turn_to(path, prefix)
            if pipe.held is not None and isinstance(place, int):
                log = os.path.abspath(pipe.file.name) if pipe.file is not None else ""
                pipe.held.place = LogPlace(place if rank < 0 else rank, attempt, log)

    def stderr_tail(self, worker: int) -> tuple[str, ...]:
        """Return the last LOG_TAIL_LINES lines that the worker wrote to stderr."""
        return next(
            (pipe.tail_lines() for pipe in self._pipes.get(worker, ()) if pipe.stream == STDERR), ()
        )

    def _note_folder(self, worker: int, folder: Path | None) -> None:
        self._folders.pop(worker, None)
        path = "" if folder is None else os.path.abspath(folder)
        if 0 < len(os.fsencode(path)) <= LOG_FOLDER_MAX_BYTES:
            self._folders[worker] = path
        while len(self._folders) > LOG_FOLDERS_COUNT:
            del self._folders[next(iter(self._folders))]

    def folders(self) -> dict[int, str]:
        """Return the absolute paths of the folders with the output of workers.

        There are none without files. Only the newest LOG_FOLDERS_COUNT workers are known.
        """
        return dict(self._folders)

    def folder_of(self, worker: int) -> str:
        """Return the folder with the output of one worker; "" if there is none."""
        return self._folders.get(worker, "")

    def paths(self, worker: int) -> dict[str, Path]:
        """Return the files to which the worker's streams are written, by name.

        There are none without files.
        """
        return {
            _NAMES[pipe.stream]: Path(pipe.file.name)
            for pipe in self._pipes.get(worker, ())
            if pipe.file is not None
        }

    def heard_s(self) -> dict[int, float]:
        """Return when each worker last printed anything, on the monotonic clock."""
        return {
            worker: max(pipe.heard_s for pipe in pipes) for worker, pipes in self._pipes.items()
        }

    def drain(self, worker: int) -> None:
        """Read what is in the pipes of a dead worker, without waiting for the end of file.

        One of its children may still hold the pipes open.
        """
        for pipe in self._pipes.get(worker, ()):
            pipe.drain()

    def close(self, worker: int) -> None:
        """Read the rest of the worker's output, and close its pipes and files."""
        for pipe in self._pipes.pop(worker, ()):
            pipe.drain()
            pipe.close()

    def _place(self, attempt: int, place: int | str) -> Path | None:
        """Return the folder of a place. Return None without files, or if the disk refuses it.

        Without a folder, the output goes to the console only.
        """
        if self._folder is None:
            return None
        path = self._folder / f"attempt_{attempt}" / str(place)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._sink(
                "stderr", f"outlast: {path} cannot be made: {error.strerror}; no log there\n"
            )
            return None
        return path


@dataclass
class _Pipe:
    """One stream of one worker, with the file to which it is written.

    prefix       the prefix of each line on the console; None: the stream is not shown there
    unfinished   the beginning of a line whose end has not arrived
    mid_line     the console shows the beginning of this line already
    tail         the last lines, if this is stderr
    timer        shows the unfinished line when it is due
    heard_s      when anything last arrived
    held         keeps the lines of a traceback together on the console, if this is stderr
    """

    loop: Loop
    fd: int
    stream: int
    sink: Sink
    prefix: str | None = None
    file: BinaryIO | None = None
    unfinished: bytes = b""
    mid_line: bool = False
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_TAIL_LINES))
    timer: LoopTimer | None = None
    heard_s: float = 0.0
    held: HeldTraceback | None = None

    def __post_init__(self) -> None:
        os.set_blocking(self.fd, False)
        self.loop.add_reader(self.fd, self.read_some)

    def turn_to(self, path: Path | None, prefix: str | None) -> None:
        """Write to another file from now on, and to the console with another prefix."""
        self._finish()
        if self.file:
            self.file.close()
        self.prefix = prefix
        self.file = None
        if path:
            try:
                self.file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by the next turn_to
            except OSError as error:
                self.sink("stderr", f"outlast: {path}: {error.strerror}; no log there\n")

    def read_some(self) -> int:
        """Read once. Return the number of bytes: 0 at the end, or if nothing is there now."""
        try:
            try:
                data = os.read(self.fd, LOG_READ_BYTES)
            except MemoryError:  # nothing was read; a small buffer comes from Python's own pools
                data = os.read(self.fd, LOG_READ_LITTLE_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self.loop.remove_reader(self.fd)
            self._finish()
            return 0
        self.heard_s = now_s()
        self._to_file(data)
        self._to_lines(data)
        return len(data)

    def drain(self) -> None:
        """Read what is in the pipe now, up to LOG_DRAIN_MAX_BYTES."""
        left = LOG_DRAIN_MAX_BYTES
        while left > 0 and (count := self.read_some()):
            left -= count
        self._finish()

    def close(self) -> None:
        self.loop.remove_reader(self.fd)
        os.close(self.fd)
        self.turn_to(None, None)

    def tail_lines(self) -> tuple[str, ...]:
        return tuple(self.tail)

    def flush(self) -> None:
        """Show the beginning of a line whose end has not arrived."""
        self._stop_timer()
        if self.unfinished:
            self._emit(self.unfinished)
            self.unfinished = b""

    def _finish(self) -> None:
        """Show all that has come: no more is expected for now."""
        self.flush()
        if self.held is not None:
            self.held.release()

    def _to_file(self, data: bytes) -> None:
        if not self.file:
            return
        try:
            self.file.write(data)
        except OSError as error:
            self.sink(
                "stderr", f"outlast: {self.file.name}: {error.strerror}; this log ends here\n"
            )
            self.file.close()
            self.file = None
            if self.held is not None:  # what is shortened must be in a file
                self.held.place = replace(self.held.place, log="")

    def _to_lines(self, data: bytes) -> None:
        *lines, rest = re.split(rb"(?<=\n)|(?<=\r)(?!\n)", self.unfinished + data)
        for line in lines:
            self._emit(line)
        self.unfinished = rest
        if lines:  # the line for which the timer was set has ended
            self._stop_timer()
        if len(rest) > LOG_LINE_MAX_BYTES:
            self.flush()
        elif rest and self.timer is None:
            self.timer = self.loop.call_at(now_s() + LOG_PARTIAL_S, self._show_partial)

    def _show_partial(self) -> None:
        """Show the unfinished line, unless its end has come and was not read yet."""
        self.timer = None
        length = len(self.unfinished)
        length += self.read_some()
        if len(self.unfinished) == length:  # no line has ended
            self.flush()

    def _stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def _emit(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if self.stream == STDERR:
            if self.mid_line and self.tail:
                self.tail[-1] += text.rstrip("\r\n")
            else:
                self.tail.append(text.rstrip("\r\n"))
        if self.prefix is not None:
            if self.held is not None:
                self.held.take(text, prefix=self.prefix, continues=self.mid_line)
            else:
                self.sink(_NAMES[self.stream], text if self.mid_line else self.prefix + text)
        self.mid_line = not text.endswith(("\n", "\r"))


@dataclass(frozen=True)
class ErrorRecord:
    """The content of a worker's error file. `timestamp` is in whole seconds since 1970, or 0."""

    message: str
    traceback: str
    timestamp: int


def read_error_file(path: str | Path) -> ErrorRecord | None:
    """Read an error file. Return None if it is missing or damaged.

    A process that is killed while it writes its file leaves only a part of it.
    """
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(MESSAGE_MAX_BYTES))
        return _record(value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _record(value: dict[str, Any]) -> ErrorRecord:
    message = value["message"]
    if isinstance(message, str):
        return ErrorRecord(message, "", int(value.get("timestamp", 0)))
    extra = message.get("extraInfo", {})
    return ErrorRecord(
        str(message["message"]), str(extra.get("py_callstack", "")), int(extra.get("timestamp", 0))
    )
