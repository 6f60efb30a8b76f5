"""After which step a script without outlast calls has saved a file that it loads again.

Many optimizers (SGD) do not count their steps. After a restart it would then be unknown from which
step the script's own checkpoint goes on. So each file that the script writes by `torch.save` is
recorded in the run's folder, with the number of steps before it. When a later process loads the
file by `torch.load`, that number is looked up.

A file is identified by its device, inode, size and time of change. A file that is written under
another name first, and then renamed, is the same one. A copy is another file.

Other optimizers (Adam) count their steps. If a script loads its weights without its optimizer, they
count from one again. Then the file shows the step, too.

A process that has called neither `torch.load` nor a module's `load_state_dict` before its first
step has started from the first step.

Not seen: the step after which file objects, and files that other libraries write, were saved;
weights that come into a model by neither of these two calls.
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

    behind   the step after which this process goes on, as far as its files show; None: it has
             loaded something else, or several files of different steps
    """

    def __init__(self, run_folder: str) -> None:
        self.behind: int | None = 0
        self._found: int | None = None  # the step of the files that were loaded
        self._path = Path(run_folder) / NAME
        self._several = False

    def behind_by_weights(self) -> int | None:
        """Return the step after which this process goes on, if its optimizer is new.

        That is the step of the file of this run that it has loaded. It is 0 if it has loaded no
        such file, because other files hold no steps of this run. It is None if it has loaded files
        of different steps.
        """
        return None if self._several else self._found or 0

    def on_save(self, where: Any, *, step: int) -> None:
        """Record that `where` was saved after `step`."""
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
        """Look up after which step `where` was saved, if this run has saved it."""
        key = _key(where)
        if key is not None and not self._several:
            step = next((one["step"] for one in self._noted() if one["file"] == key), None)
            if step is not None:
                self._several = self._found not in (None, step)
                self._found = None if self._several else step
        self.on_weights()

    def on_weights(self) -> None:
        """Record that the process has loaded weights from somewhere."""
        self.behind = self._found

    def _noted(self) -> list[dict[str, Any]]:
        """Return the records, the newest first. A line that is incomplete is left out."""
        noted = []
        with contextlib.suppress(OSError):
            for line in self._path.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    noted.append(json.loads(line))
        return noted[::-1]


def _key(where: Any) -> list[int] | None:
    """Return what identifies a file, or None if `where` is not the path of a file."""
    if not isinstance(where, str | os.PathLike):
        return None
    try:
        found = os.stat(where)
    except (OSError, ValueError):
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
