"""`WriterProcess`: the launcher's end of the process that writes the images of a node's ranks.

    writer = WriterProcess(loop, vault.folder, tell=..., orphaned=...)
    writer.start()          once ranks train
    writer.roll_back(generation=4, step=20)
    writer.close()

The process (writer_program.py) has a session of its own and the lowest priority. The launcher's
loop reads its reports, and does not wait for it before the end of the run. The loop asks it now and
then whether it lives, and kills it in three cases:

- it has not answered for WRITER_SILENT_S
- it has an order, and has written nothing for WRITER_SILENT_S
- it has no order, and its socket was removed

Once it has ended, it is started again after a pause, and people are warned. The ranks then hand
over their images once more. A rank that reaches no writer writes its image itself.

Limits     A launcher hears of a generation from the plans of its ranks. A node may go on without
           any rank. Then its writer does not hear which steps are rolled back, and what it still
           writes may replace a file of the same step. The checksums of that checkpoint do not match
           then, so a restore refuses it, and takes the one before.
           A process that waits for a disk in the kernel may not end when it is killed. The loop
           checks now and then whether it has ended. No other process is started before that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from outlast.runtime import clock
from outlast.runtime.image_writer.write_orders import (
    ASK,
    PROGRAM,
    SOCKET_NAME,
    encode_rollback,
)
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.reporting_child import ReportingChild

_ROLLBACKS_COUNT = 100  # the newest, of which a new process hears: older ranks hand over nothing
_END_S = 1.0  # how long the end of a run waits for a process that was killed
_ENDED_LOOK_S = 0.1


class WriterProcess:
    """The process as its launcher sees it. It is started once, and again whenever it ends.

    tell       called with a line for people
    orphaned   called with the report of an image whose worker died after it had captured it
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
        self._child: ReportingChild | None = None
        self._ending: ReportingChild | None = None  # it was killed, but may still run
        self._timer: LoopTimer | None = None
        self._deaths = 0  # how often a process has ended, or could not be started
        self._work = _Work()
        self._rollbacks = Rollbacks()

    @property
    def pid(self) -> int | None:
        """Return the pid of the process, or None if it does not run now."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the process, unless it runs or is about to be started again."""
        if self._child is not None or self._ending is not None or self._timer is not None:
            return
        try:
            child = ReportingChild((*PROGRAM, str(self._socket), str(os.getpid())))
        except (OSError, MemoryError) as error:
            self._died(f"no process can be started: {message_of(error)}")
            return
        self._child, self._work = child, _Work()
        self._loop.add_reader(child.fd, self._read)
        for generation, step in self._rollbacks.noted()[-_ROLLBACKS_COUNT:]:
            child.write(encode_rollback(generation, step))
        self._loop.call_soon(self._look_after(child))

    def roll_back(self, *, generation: int, step: int) -> None:
        """Note that a generation goes on from a step.

        An image of a later step that an older generation has captured gets no file name any more.
        """
        is_news = self._rollbacks.note(generation=generation, step=step)
        if is_news and self._child is not None:  # each rank of the node gets the same plan
            self._child.write(encode_rollback(generation, step))

    def close(self) -> None:
        """End the process. What it has not written by now belongs to no checkpoint."""
        if self._timer is not None:
            self._timer.cancel()
        if self._child is not None:
            self._forget()
        if self._ending is not None:
            self._ending.end(within_s=_END_S)
            self._ending = None
        with contextlib.suppress(OSError):
            self._socket.unlink(missing_ok=True)

    # --- its reports ------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._child is not None
        reports, is_over = self._child.read()
        for report in reports:
            self._heard(report)
        if is_over:
            self._forget()
            self._look_for_end()

    def _heard(self, report: dict[str, Any]) -> None:
        self._work.note(report.get("what"), now_s=clock.now_s())
        if report.get("what") == "orphan":
            self._orphaned(_message(report["order"], str(report["error"])))

    def _look_after(self, child: ReportingChild) -> Callable[[], None]:
        """Return a function that asks this process now and then whether it lives."""

        def look() -> None:
            if self._child is child:
                self._read()  # the launcher itself may have stood still, and be late to hear
            if self._child is not child:
                return
            now_s = clock.now_s()
            if why := self._work.why_hung(now_s=now_s):
                child.kill()
                self._tell(
                    f"warning: the process that writes checkpoints {why} for {WRITER_SILENT_S:g} s,"
                    " and is replaced; the disk may hang"
                )
                return
            if self._work.is_idle and not self._socket.exists():
                child.kill()
                self._tell(
                    f"warning: {self._socket} was removed, so the process that writes checkpoints"
                    " is replaced"
                )
                return
            self._work.note_asked(now_s=now_s)
            child.write(ASK)
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

    def _forget(self) -> None:
        """Kill the process, and listen to it no more."""
        self._ending, self._child = self._child, None
        assert self._ending is not None
        self._loop.remove_reader(self._ending.fd)
        self._ending.kill()

    def _look_for_end(self) -> None:
        """Go on once the process that was killed has ended. A disk may hold it up for long."""
        assert self._ending is not None
        if not self._ending.has_ended():
            self._timer = self._loop.call_at(clock.now_s() + _ENDED_LOOK_S, self._look_for_end)
            return
        code, said = self._ending.end()
        self._ending = self._timer = None
        self._died(f"it has ended with exit code {code}{said}")


class _Work:
    """Keep in mind what the process is doing, and since when it owes an answer.

    orders    how many orders it is carrying out
    moved_s   when it last began or ended an order, or wrote bytes
    """

    def __init__(self) -> None:
        self.orders = 0
        self._listens = False
        self.moved_s = clock.now_s()
        self._asked_s: float | None = self.moved_s  # None: it has answered since
        self._has_begun = False

    @property
    def is_idle(self) -> bool:
        """Return True if the process accepts orders, and is carrying out none."""
        return self._listens and self.orders == 0

    def note(self, what: object, *, now_s: float) -> None:
        """Note a report of the process. `what`: its kind."""
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
