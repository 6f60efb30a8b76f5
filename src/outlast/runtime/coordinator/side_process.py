"""A program beside the run for which nothing waits, such as the one that serves metrics.

It has a session of its own, so that Ctrl-C does not reach it, and the lowest priority. It ends with
the launcher: its own code asks the kernel for that. If it ends earlier, that is reported once, and
the run goes on without it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence

from outlast.model.texts import cut_at_word
from outlast.runtime.linux import LOWEST_PRIORITY
from outlast.runtime.loop import Loop

_WORDS_BYTES = 4096
_WORDS_COUNT = 300


class SideProcess:
    """Start `command` now. If it ends too early, report that in a sentence that contains `what`."""

    def __init__(
        self, loop: Loop, command: Sequence[str], *, what: str, tell: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._what = what
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            os.setpriority(os.PRIO_PROCESS, self._process.pid, LOWEST_PRIORITY)
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            tell(f"warning: {what}: no process can be started for it: {error.strerror}")
            self.close()
            return
        loop.add_reader(self._pidfd, self._over)

    @property
    def pid(self) -> int | None:
        """Return the pid of the process, or None if it does not run any more."""
        return None if self._process is None else self._process.pid

    def _over(self) -> None:
        said = self._last_words()
        self._forget()
        because = f": {said}" if said else ""
        self._tell(f"warning: {self._what}: its process has ended, the run goes on{because}")

    def _last_words(self) -> str:
        """Return the error that it has reported.

        This does not wait for a pipe that others hold open.
        """
        assert self._process is not None and self._process.stderr is not None
        fd = self._process.stderr.fileno()
        os.set_blocking(fd, False)
        data = b""
        with contextlib.suppress(OSError):
            while piece := os.read(fd, _WORDS_BYTES):
                data = (data + piece)[-_WORDS_BYTES:]
        lines = data.decode("utf-8", "replace").split("\n")
        errors = [line for line in lines if line.startswith("error: ")]
        return cut_at_word("".join(errors[-1:]).removeprefix("error: "), _WORDS_COUNT)

    def close(self) -> None:
        """End the process, if it still runs. It has nothing to save."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def _forget(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        process.kill()
        process.wait()  # it is dead, or will be in a moment
        if process.stderr is not None:
            process.stderr.close()
