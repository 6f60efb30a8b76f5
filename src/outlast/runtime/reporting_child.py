"""A child process of the lowest priority that tells the launcher in lines of JSON what it does.

    child = ReportingChild((sys.executable, "-m", "some.program"))
    loop.add_reader(child.fd, lambda: heard(*child.read()))
    child.write(b"a line for its stdin")
    code, said = child.end()

It has a session of its own, so that Ctrl-C at the terminal does not reach it. None of its pipes
ever holds the launcher up.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from outlast.model.texts import cut_at_word
from outlast.runtime.linux import LOWEST_PRIORITY

_READ_BYTES = 65_536
_SAID_BYTES = 300


class ReportingChild:
    """Start `command` now. Raises OSError or MemoryError."""

    def __init__(self, command: Sequence[str]) -> None:
        # A file in memory needs no temporary folder. Unlike a pipe, it is never full.
        errors = os.memfd_create("outlast-errors", os.MFD_CLOEXEC)
        self._errors = open(errors, "r+b", buffering=0)  # noqa: SIM115 - `end` closes it
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except (OSError, MemoryError):
            self._errors.close()
            raise
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        self._pipes = stdin, stdout
        self._unread = b""  # the beginning of a line whose end has not arrived yet
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self.pid, LOWEST_PRIORITY)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fd(self) -> int:
        """Return the descriptor of its reports."""
        return self._pipes[1].fileno()

    def write(self, line: bytes) -> None:
        """Write a line to its stdin. The line is lost if the process does not read, or is dead."""
        with contextlib.suppress(OSError):
            os.write(self._pipes[0].fileno(), line)

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the reports that have arrived, and whether the process has closed its stdout."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return [], False
        *lines, self._unread = (self._unread + data).split(b"\n")
        reports = []
        for line in lines:
            # Lines that the interpreter's own start-up files print are not reports.
            with contextlib.suppress(ValueError):
                if isinstance(report := json.loads(line), dict):
                    reports.append(report)
        return reports, not data

    def kill(self) -> None:
        """Kill it. Its end is then read like any other."""
        self._process.kill()

    def has_ended(self) -> bool:
        """Return whether the process has ended, without waiting for it."""
        return self._process.poll() is not None

    def end(self, *, within_s: float | None = None) -> tuple[int | None, str]:
        """Kill it unless it has ended. Return its exit code, and ": " with what it said last.

        within_s   how long to wait for its end; None: as long as it takes. The exit code is None
                   if it has not ended by then
        """
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a disk may hold it up for long
            self._process.wait(within_s)
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _SAID_BYTES))
        said = self._errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        self._errors.close()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # text that could not be written is not needed
                pipe.close()
        return self._process.returncode, f": {cut_at_word(said, _SAID_BYTES)}" if said else ""
