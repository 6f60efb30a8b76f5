"""Behind which step a script without outlast calls has saved a file, and loads it again.

Many optimizers (SGD) keep no count of their own steps. After a restart nobody could then tell from
which step the script's own checkpoint goes on. So each file that the script writes by `torch.save`
is noted in the run's folder with the number of steps before it, and looked up when a later process
loads it by `torch.load`.

A file is known by its device, inode, size and time of change: a file that is written under another
name first, and then renamed, is the same one. A copy is another.

Not seen: file objects in place of paths, and files that other libraries write or read.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

NAME = "own-saves.jsonl"


class OwnSaves:
    """The files of one run's script, as all of its processes have saved them.

    loaded   the step behind which the file was saved that this process has loaded; None: it has
             loaded none of them, or several of different steps
    """

    def __init__(self, run_folder: str) -> None:
        self.loaded: int | None = None
        self._path = Path(run_folder) / NAME
        self._several = False

    def on_save(self, where: Any, *, step: int) -> None:
        """Note that `where` was saved behind `step`."""
        if (key := _key(where)) is None:
            return
        line = json.dumps({"file": key, "step": step}) + "\n"
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)

    def on_load(self, where: Any) -> None:
        """Look up behind which step `where` was saved, if this run has saved it."""
        key = _key(where)
        if key is None or self._several:
            return
        step = next((one["step"] for one in self._noted() if one["file"] == key), None)
        if step is None:
            return
        self._several = self.loaded not in (None, step)
        self.loaded = None if self._several else step

    def _noted(self) -> list[dict[str, Any]]:
        """Return what was noted, the newest first. A line that was cut short is left out."""
        noted = []
        with contextlib.suppress(OSError):
            for line in self._path.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    noted.append(json.loads(line))
        return noted[::-1]


def _key(where: Any) -> list[int] | None:
    """Return what a file is known by; None if `where` is not the path of one."""
    if not isinstance(where, str | os.PathLike):
        return None
    try:
        found = os.stat(where)
    except (OSError, ValueError):
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
