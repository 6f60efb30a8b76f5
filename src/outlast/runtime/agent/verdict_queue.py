"""Find the verdicts of interruptions in a separate process, at low priority.

Training goes on meanwhile, and nothing waits for a verdict before the end of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from outlast.model import limits
from outlast.runtime import clock, linux
from outlast.runtime.loop import Loop, LoopTimer

OnVerdict = Callable[[int, Mapping[str, object]], None]


class VerdictQueue:
    """Find the verdicts of folders of evidence, one after the other.

    command      finds the verdict of the folder that is its last argument, and prints it as JSON
    on_verdict   gets the number of an interruption, and its verdict

    An interruption whose search fails, or takes too long, has no verdict.
    """

    def __init__(self, loop: Loop, command: tuple[str, ...], on_verdict: OnVerdict) -> None:
        self._loop = loop
        self._command = command
        self._on_verdict = on_verdict
        self._waiting: deque[tuple[int, Path]] = deque()
        self._at_work: tuple[int, Path, subprocess.Popen[bytes], int] | None = None
        self._limit: LoopTimer | None = None

    def ask(self, interruption: int, folder: Path) -> None:
        self._waiting.append((interruption, folder))
        self._loop.call_soon(self._begin)

    def stop(self) -> None:
        """Forget what waits, and end the search that is at work: another node goes on with them."""
        self._waiting.clear()
        if self._at_work is not None:
            self._put_down()

    def finish(self, *, within_s: float) -> None:
        """Find the remaining verdicts. The loop does not run any more."""
        until_s = clock.now_s() + within_s
        while self._at_work is not None or self._waiting:
            self._begin()
            if self._at_work is None:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._at_work[2].wait(timeout=max(0.1, until_s - clock.now_s()))
            self._over(looping=False)

    def _begin(self) -> None:
        if self._at_work is not None or not self._waiting:
            return
        interruption, folder = self._waiting.popleft()
        process: subprocess.Popen[bytes] | None = None
        mine = os.getpid()
        try:
            with (folder / "verdict.part").open("wb") as out:
                process = subprocess.Popen(
                    [*self._command, str(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.DEVNULL,
                    # so that it ends with the launcher, also with one that no longer leads the run
                    preexec_fn=lambda: linux.die_with(mine),
                )
            os.setpriority(os.PRIO_PROCESS, process.pid, 10)
            pidfd = os.pidfd_open(process.pid)
        except (OSError, subprocess.SubprocessError):
            # The folder is gone, or no process can be started or watched. The next search may work.
            if process is not None:
                process.kill()
                process.wait()
            self._loop.call_soon(self._begin)
            return
        self._at_work = (interruption, folder, process, pidfd)
        self._loop.add_reader(pidfd, lambda: self._over(looping=True))
        self._limit = self._loop.call_at(clock.now_s() + limits.DIAGNOSIS_S, process.kill)

    def _over(self, *, looping: bool) -> None:
        """Read the verdict of a search that has ended or was killed (supervision boundary).

        If the search left no verdict, the interruption has none, and the run goes on.
        """
        interruption, folder = self._put_down()
        part = folder / "verdict.part"
        try:
            verdict = json.loads(part.read_bytes())
            part.replace(folder / "verdict.json")
        except (OSError, ValueError):
            verdict = None
        if isinstance(verdict, dict):
            self._on_verdict(interruption, verdict)
        if looping:
            self._loop.call_soon(self._begin)

    def _put_down(self) -> tuple[int, Path]:
        """End the search that is at work. Return its interruption and its folder."""
        assert self._at_work is not None
        interruption, folder, process, pidfd = self._at_work
        self._at_work = None
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        if self._limit is not None:
            self._limit.cancel()
        process.kill()
        process.wait()
        return interruption, folder
