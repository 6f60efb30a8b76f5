"""`WriterProcess`: the launcher's end of the process that writes the images of a node's ranks.

    writer = WriterProcess(loop, vault.folder, tell=..., orphaned=...)
    writer.start()          once ranks train
    writer.roll_back(generation=4, step=20)
    writer.close()

The process (writer_program.py) has a session of its own and the lowest priority. The loop reads its
reports, and never waits for it. It is asked now and then whether it lives. If it dies, does not
answer for WRITER_SILENT_S, or writes nothing for so long though it has an order, it is killed and
started again, with a warning that counts. So it is if its socket was removed and it has no order.
The ranks then hand over their images once more. While none can be reached, they write them
themselves.

Limits     A launcher hears of a generation by the plans of its ranks. If all ranks have left a node
           that goes on without any, its writer does not hear which steps are rolled back after
           that. What it still writes then may replace a file of the same step. A restore refuses
           the checkpoint by its checksums, and takes the one before.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from outlast.engine.durable import Rollbacks
from outlast.errors import message_of
from outlast.model.limits import (
    BOOT_DEADLINE_S,
    UPLOADER_AGAIN_S,
    WRITER_AGAIN_S,
    WRITER_SILENT_S,
)
from outlast.model.messages import Checkpointed
from outlast.model.pauses import growing_pause_s
from outlast.model.texts import cut_at_word
from outlast.runtime import clock
from outlast.runtime.coordinator.side_process import LOWEST_PRIORITY
from outlast.runtime.image_writer.write_orders import (
    ASK,
    PROGRAM,
    SOCKET_NAME,
    encode_rollback,
)
from outlast.runtime.loop import Loop, LoopTimer

_LINE_BYTES = 65_536
_WORDS_COUNT = 300
_ROLLBACKS_COUNT = 100  # that a new process hears of: ranks of older generations hand over nothing
_END_S = 1.0  # what a process that was killed may take to end


class WriterProcess:
    """Start the process when it is asked for, and again whenever it dies.

    tell       gets a line for people
    orphaned   gets the report of an image whose worker has died since it was captured
    """

    def __init__(
        self,
        loop: Loop,
        vault: Path,
        *,
        tell: Callable[[str], None],
        orphaned: Callable[[Checkpointed], None],
    ) -> None:
        self._loop = loop
        self._socket = vault / SOCKET_NAME
        self._tell = tell
        self._orphaned = orphaned
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._timer: LoopTimer | None = None
        self._deaths = 0  # of all its processes
        self._work = _Work()
        self._rollbacks = Rollbacks()

    @property
    def pid(self) -> int | None:
        """Return the pid of the process, or None if it does not run now."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, unless it runs or is about to be started again."""
        if self._process is not None or self._timer is not None:
            return
        try:
            process, errors = _started(self._socket)
        except (OSError, MemoryError) as error:
            self._died(f"no process can be started: {message_of(error)}")
            return
        self._process, self._errors, self._work = process, errors, _Work()
        assert process.stdout is not None and process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self._loop.add_reader(process.stdout.fileno(), self._read)
        for generation, step in self._rollbacks.noted()[-_ROLLBACKS_COUNT:]:
            self._write(encode_rollback(generation, step))
        self._loop.call_soon(self._look_after(process))

    def roll_back(self, *, generation: int, step: int) -> None:
        """Note that a generation goes on from a step: no later image of before gets a name."""
        is_news = self._rollbacks.note(generation=generation, step=step)
        if is_news:  # each rank gets the same plan
            self._write(encode_rollback(generation, step))

    def _write(self, line: bytes) -> None:
        """Write a line to the process, if there is one. It does not read if it is hung or dead."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), line)

    def close(self) -> None:
        """End the process. What it has not written by now belongs to no checkpoint."""
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            self._forget()
        with contextlib.suppress(OSError):
            self._socket.unlink(missing_ok=True)

    # --- its reports ------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), _LINE_BYTES)
        except BlockingIOError:
            return
        *lines, self._work.unread = (self._work.unread + data).split(b"\n")
        for line in lines:
            # Lines that the interpreter's own start-up files print are not reports.
            with contextlib.suppress(ValueError):
                if isinstance(report := json.loads(line), dict):
                    self._heard(report)
        if not data:
            self._died(self._forget())

    def _heard(self, report: dict[str, Any]) -> None:
        self._work.note(report.get("what"), now_s=clock.now_s())
        if report.get("what") == "orphan":
            self._orphaned(_message(report["order"], str(report["error"])))

    def _look_after(self, process: subprocess.Popen[bytes]) -> Callable[[], None]:
        """Return what asks this process again and again whether it lives, until it has ended."""

        def look() -> None:
            if self._process is process:
                self._read()  # the launcher itself may have stood still, and be late to hear
            if self._process is not process:
                return
            now_s = clock.now_s()
            if why := self._work.why_hung(now_s=now_s):
                process.kill()  # its end is read like any other
                self._tell(
                    f"warning: the process that writes checkpoints {why} for {WRITER_SILENT_S:g} s,"
                    " and is replaced; the disk may hang"
                )
                return
            if self._work.is_idle and not self._socket.exists():
                process.kill()
                self._tell(
                    f"warning: {self._socket} was removed, so the process that writes checkpoints"
                    " is replaced"
                )
                return
            self._work.note_asked(now_s=now_s)
            self._write(ASK)
            self._loop.call_at(now_s + WRITER_SILENT_S / 4, look)

        return look

    def _died(self, why: str) -> None:
        self._deaths += 1
        pause_s = growing_pause_s(self._deaths, first_s=WRITER_AGAIN_S, most_s=UPLOADER_AGAIN_S)
        if self._deaths & (self._deaths - 1) == 0:  # 1, 2, 4, 8 ...
            self._tell(
                f"warning: the process that writes checkpoints: {why}; it is started again, and the"
                f" run goes on (deaths so far: {self._deaths})"
            )
        self._timer = self._loop.call_at(clock.now_s() + pause_s, self._again)

    def _again(self) -> None:
        self._timer = None
        self.start()

    def _forget(self) -> str:
        """End the process, and return how it has ended."""
        process, errors = self._process, self._errors
        assert process is not None and process.stdout is not None and errors is not None
        self._process = self._errors = None
        self._loop.remove_reader(process.stdout.fileno())
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a disk may hold it up for long
            process.wait(_END_S)
        code = process.returncode
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _WORDS_COUNT))
        said = errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        errors.close()
        for end in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if end is not None:
                    end.close()
        because = f": {cut_at_word(said, _WORDS_COUNT)}" if said else ""
        return f"it has ended with exit code {code}{because}"


def _started(path: Path) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Start the process. Return it, and what it writes to stderr. Raises OSError."""
    # This file needs no temporary folder, and the process never waits for anyone to read it.
    fd = os.memfd_create("outlast-writer-errors", os.MFD_CLOEXEC)
    errors = open(fd, "r+b", buffering=0)  # noqa: SIM115 - closed with the process
    try:
        process = subprocess.Popen(
            (*PROGRAM, str(path), str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    except (OSError, MemoryError):
        errors.close()
        raise
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
    return process, errors


class _Work:
    """What the process does now, and since when it owes an answer.

    unread    the begin of a line that it has not written completely
    orders    how many it carries out
    moved_s   when it has last begun or ended one, or written bytes
    """

    def __init__(self) -> None:
        self.unread = b""
        self.orders = 0
        self._listens = False
        self.moved_s = clock.now_s()
        self._asked_s: float | None = self.moved_s  # None: it has answered since
        self._has_begun = False

    @property
    def is_idle(self) -> bool:
        """Return True if it listens, and carries out nothing now."""
        return self._listens and self.orders == 0

    def note(self, what: object, *, now_s: float) -> None:
        """Note a report."""
        self._asked_s, self._has_begun = None, True
        self._listens |= what == "listens"
        if what != "alive":
            self.orders += {"begun": 1, "ended": -1}.get(str(what), 0)
            self.moved_s = now_s

    def note_asked(self, *, now_s: float) -> None:
        """Note that the process is asked whether it lives."""
        if self._asked_s is None:
            self._asked_s = now_s

    def why_hung(self, *, now_s: float) -> str:
        """Return why the process has to be replaced, or ""."""
        # On a busy machine an interpreter takes long to start at the lowest priority.
        patience_s = WRITER_SILENT_S if self._has_begun else BOOT_DEADLINE_S
        if self._asked_s is not None and now_s - self._asked_s >= patience_s:
            return "has not answered"
        if self.orders > 0 and now_s - self.moved_s >= WRITER_SILENT_S:
            return "has written nothing"
        return ""


def _message(order: dict[str, Any], error: str) -> Checkpointed:
    """Return the report that the worker of an order would have sent."""
    written = not error
    return Checkpointed(
        order["worker"],
        order["generation"],
        order["rank"],
        order["step"],
        order["name"] if written else "",
        order["length"] if written else 0,
        f"{order['checksum']:016x}" if written else "",
        error,
    )
