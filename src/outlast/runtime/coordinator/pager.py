"""Pages: messages to a person, sent when the policy decides so.

Each page is sent by a separate process (runtime/page_sender.py), which repeats failed tries. The
launcher starts this process, and the loop reports its end. While the run goes on, the launcher
never waits for it.

Once       An interruption is paged once, however often the policy decides to page.
Bounds     At most AT_ONCE_COUNT processes send at a time, and at most WAITING_MAX_COUNT pages wait.
           Further pages are left out, with a warning. At the end of a run, the launcher waits up to
           LAST_S for pages. After that, the processes go on by themselves until their tries are
           used up.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import typing
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from outlast.model.limits import PAGE_SENT
from outlast.model.records import Event
from outlast.model.shorten import end_of
from outlast.model.texts import cut_at_word
from outlast.model.verdict import summary
from outlast.runtime import clock
from outlast.runtime.interpreter import module_command
from outlast.runtime.linux import LOWEST_PRIORITY
from outlast.runtime.loop import Loop

AT_ONCE_COUNT = 4
WAITING_MAX_COUNT = 100
LAST_S = 5.0
# the most bytes of each text in a page, so that a pipe takes a whole page at once
_TEXT_BYTES = 4096
_VERDICTS_COUNT = 20
_SENDER = module_command("outlast.runtime.page_sender")


@dataclass(frozen=True, slots=True)
class PageTargets:
    """The receivers of pages: a command, a webhook, or both. `folder` is that of the run."""

    run: str
    folder: str
    command: tuple[str, ...] = ()
    webhook: str = ""


class Pager:
    """Send the pages of a run.

    tell     gets a line for people
    record   gets an event for the ledger: `paged`, once a page was sent or given up
    """

    def __init__(
        self,
        loop: Loop,
        targets: PageTargets,
        *,
        tell: Callable[[str], None],
        record: Callable[[Event], None],
    ) -> None:
        self._loop = loop
        self._targets = targets
        self._tell = tell
        self._record = record
        self._paged: set[int] = set()
        self._verdicts: dict[int, str] = {}
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._at_work: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}  # by pidfd

    def on_verdict(self, interruption: int, verdict: Mapping[str, object]) -> None:
        """Keep the verdict for the page that may follow it."""
        self._verdicts[interruption] = end_of(summary(verdict), _TEXT_BYTES)
        while len(self._verdicts) > _VERDICTS_COUNT:
            del self._verdicts[next(iter(self._verdicts))]

    def note(self, event: Event) -> None:
        """Send a page, if this event is the policy's decision to page a person."""
        if not is_page(event):
            return
        number = event.data.get("interruption")
        if not isinstance(number, int) or number in self._paged:
            return
        self._paged.add(number)
        if len(self._waiting) >= WAITING_MAX_COUNT:
            self._tell(f"warning: the page about interruption {number} is left out: too many wait")
            return
        page = {
            "run": self._targets.run,
            "folder": self._targets.folder,
            "interruption": number,
            "step": event.data.get("step", 0),
            "class": event.data.get("class", "unknown"),
            "rule": event.data.get("rule", ""),
            "reason": end_of(str(event.data.get("reason", "")), _TEXT_BYTES),
            "verdict": self._verdicts.get(number, ""),
            "wall_s": event.wall_s or clock.wall_s(),
        }
        asked = {
            "page": page,
            "command": list(self._targets.command) or None,
            "webhook": self._targets.webhook or None,
        }
        self._waiting.append((number, json.dumps(asked).encode()))
        # This does not happen now, because a recovery may be in progress.
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        while self._waiting and len(self._at_work) < AT_ONCE_COUNT:
            number, asked = self._waiting.popleft()
            try:
                pidfd = self._start(number, asked)
            except OSError as error:
                self._over(number, f"no process can be started for it: {error.strerror}")
                continue
            self._loop.add_reader(pidfd, functools.partial(self._ended, pidfd))

    def _start(self, number: int, asked: bytes) -> int:
        process = subprocess.Popen(
            _SENDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            # without a pidfd, the launcher would not notice the end of the process
            process.kill()
            process.wait()
            raise
        self._at_work[pidfd] = number, process
        os.set_blocking(process.stdin.fileno(), False)
        with contextlib.suppress(OSError):  # if the process is dead, its end is reported anyway
            os.write(process.stdin.fileno(), asked)
        process.stdin.close()
        return pidfd

    def _ended(self, pidfd: int) -> None:
        number, process = self._at_work.pop(pidfd)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        process.kill()
        process.wait()
        said, errors = (_read(stream.fileno()) for stream in _streams(process))
        for stream in _streams(process):
            stream.close()
        if said.strip() == PAGE_SENT:
            self._over(number, "")
        else:
            self._over(number, cut_at_word(errors.strip() or "its process was killed", 300))
        self._loop.call_soon(self._begin)

    def _over(self, number: int, error: str) -> None:
        data = {"interruption": number, "ok": not error, "error": error}
        self._record(Event(clock.now_s(), clock.wall_s(), "paged", data))
        if error:
            self._tell(f"warning: the page about interruption {number} did not arrive: {error}")

    def close(self) -> None:
        """Wait for a moment until the remaining pages are sent. The processes then go on alone."""
        until_s = clock.now_s() + LAST_S
        self._begin()
        while self._at_work and clock.now_s() < until_s:
            pidfd, (_, process) = next(iter(self._at_work.items()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.01, until_s - clock.now_s()))
                self._ended(pidfd)
                self._begin()
        for pidfd in self._at_work:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._at_work.clear()


def is_page(event: Event) -> bool:
    """Return True if this is the policy's decision to tell a person, and no rehearsal of it."""
    return (
        event.kind == "policy"
        and event.data.get("action") == "page"
        and not event.data.get("dry_run")
    )


def _streams(process: subprocess.Popen[bytes]) -> list[typing.IO[bytes]]:
    return [stream for stream in (process.stdout, process.stderr) if stream is not None]


def _read(fd: int) -> str:
    """Return what is in a pipe, without waiting for processes that hold its other end."""
    os.set_blocking(fd, False)
    with contextlib.suppress(OSError):
        return os.read(fd, 65_536).decode("utf-8", "replace")
    return ""
