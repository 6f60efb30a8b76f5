"""`UploadProcess`: the launcher's end of the process that uploads checkpoints to object storage.

    uploader = UploadProcess(loop, order, tell=..., record=...)     begins at once
    ...                                                             the run
    uploader.finish()                                               its newest checkpoint goes, too
    uploader.close()

The process (runtime/objects/program.py) has a session of its own and the lowest priority. The loop
reads its reports, and never waits for it. If it dies it is started again, and repeats what it had
begun. In the ledger an upload is an event `uploaded`, and a failed try an event `upload_failed`.

Bounds     `finish` waits as long as bytes are uploaded, until UPLOAD_SILENT_S have passed without
           news, or a signal arrives. It does not change how the run has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from typing import Any

from outlast.model.limits import UPLOAD_SILENT_S, UPLOADER_AGAIN_S
from outlast.model.pauses import growing_pause_s
from outlast.model.records import Event
from outlast.model.texts import cut_at_word
from outlast.runtime import clock, stop_signals
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.objects.upload_order import FINISH, PROGRAM, UploadOrder
from outlast.runtime.reporting_child import ReportingChild

_WORDS_COUNT = 300
_QUICKLY_S = 1.0  # an end of the run that takes no longer needs no line that explains the wait


class UploadProcess:
    """Start the process now, and again whenever it dies.

    tell     gets a line for people
    record   gets an event for the ledger
    """

    def __init__(
        self,
        loop: Loop,
        order: UploadOrder,
        *,
        tell: Callable[[str], None],
        record: Callable[[Event], None],
    ) -> None:
        self._loop = loop
        self._order = order
        self._tell = tell
        self._record = record
        self._child: ReportingChild | None = None
        self._again: LoopTimer | None = None
        self._deaths = 0  # in a row, without an upload in between
        self._is_last = False  # whether the run is over, so that the process is not started again
        self._end = ""  # how the last process has ended, unless its exit code was 0
        self._failure = ""  # why the newest try has failed; "" after a try that has not failed
        self._start()

    @property
    def pid(self) -> int | None:
        """Return the pid of the process, or None if it does not run now."""
        return None if self._child is None else self._child.pid

    # --- while the run goes on --------------------------------------------------------------------

    def _start(self) -> None:
        self._again = None
        order = self._order.encode(launcher=os.getpid())
        try:
            self._child = child = ReportingChild((*PROGRAM, "upload", order))
        except OSError as error:
            self._died(f"no process can be started: {error.strerror}")
            return
        self._loop.add_reader(child.fd, self._read)

    def _read(self) -> bool:
        """Take the reports that have arrived, and note the end of the process.

        Return whether bytes were uploaded.
        """
        child = self._child
        assert child is not None
        reports, is_over = child.read()
        moved = any(report.get("what") in ("sent", "uploaded") for report in reports)
        for report in reports:
            self._heard(report)
        if is_over:
            self._forget()
            if not self._is_last:
                self._died(self._end or "its process has ended")
        return moved

    def _died(self, why: str) -> None:
        self._deaths += 1
        pause_s = growing_pause_s(self._deaths, first_s=1.0, most_s=UPLOADER_AGAIN_S)
        self._warn(f"uploads to {self._order.url}: {why}; started again in {pause_s:g} s")
        self._again = self._loop.call_at(clock.now_s() + pause_s, self._start)

    def _heard(self, report: dict[str, Any]) -> None:
        url = self._order.url
        match report.get("what"):
            case "uploaded":
                self._deaths, self._failure = 0, ""
                del report["what"]
                self._note("uploaded", {**report, "url": url})
            case "failed":
                why, failures = cut_at_word(report["why"], _WORDS_COUNT), report["failures"]
                self._failure = why
                self._note("upload_failed", {"url": url, "error": why, "failures": failures})
                if failures & (failures - 1) == 0:  # 1, 2, 4, 8 ... in a row
                    self._warn(
                        f"a checkpoint cannot be uploaded: {why}; it is tried again, the run goes"
                        f" on (failures in a row: {failures})"
                    )
            case "warning":
                self._warn(cut_at_word(f"{url}: {report['text']}", _WORDS_COUNT))

    def _warn(self, text: str) -> None:
        self._tell(f"warning: {text}")
        self._note("warning", {"text": text})

    def _note(self, kind: str, data: dict[str, object]) -> None:
        self._record(Event(clock.now_s(), clock.wall_s(), kind, data))

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until the newest checkpoint is uploaded, after the run is over.

        The loop does not run during this wait. SIGINT, SIGTERM and the other signals that end a run
        also end the wait.
        """
        self._is_last = True
        if self._again is not None:
            self._again.cancel()
            self._start()
        if self._child is None:
            return
        self._child.write(FINISH)  # if it is dead, that is seen below
        try:
            with _interrupted_by_signals():
                why = self._wait()
        except _InterruptedBySignal:
            why = "the wait for it was ended by a signal"
        if self._child is not None:
            self._forget()
        if why:
            self._warn(
                f"the newest checkpoint is not at {self._order.url}: {why}; it is in"
                f" {self._order.root}, and --resume uploads it"
            )

    def _wait(self) -> str:
        """Read reports until the process ends. Return why the wait ended earlier, or ""."""
        told, until_s = False, clock.now_s() + _QUICKLY_S
        while self._child is not None:
            left_s = until_s - clock.now_s()
            if left_s > 0:
                # A failure does not count as news. Otherwise a lost server would be awaited for a
                # long time.
                if select.select([self._child.fd], [], [], left_s)[0] and self._read() and told:
                    until_s = clock.now_s() + UPLOAD_SILENT_S
            elif not told:
                told, until_s = True, clock.now_s() + UPLOAD_SILENT_S
                self._tell(
                    f"the run is over; its newest checkpoint is uploaded to {self._order.url}"
                    " (Ctrl-C ends that)"
                )
            else:
                return self._failure or f"nothing was heard for {UPLOAD_SILENT_S:g} s"
        return self._end and (self._failure or self._end)

    def close(self) -> None:
        """End the process, if it still runs. Call `finish` before, unless the run failed."""
        self._is_last = True
        if self._again is not None:
            self._again.cancel()
        if self._child is not None:
            self._forget()

    def _forget(self) -> None:
        """End the process, and remember how it has ended."""
        child, self._child = self._child, None
        assert child is not None
        self._loop.remove_reader(child.fd)
        code, said = child.end()
        self._end = f"its process has ended with exit code {code}{said}" if code else ""


class _InterruptedBySignal(BaseException):
    """Ends the wait at the end of a run."""


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let each signal that ends a run raise this error in the block."""

    def leave(number: int, _frame: object) -> None:
        raise _InterruptedBySignal

    before = {one: signal.signal(one, leave) for one in stop_signals.heeded()}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
