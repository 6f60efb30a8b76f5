"""The files that a script writes while `outlast check` tries it, so that they can be restored.

The script may open a file for writing, rename onto it, or remove it. Before that, the file is
copied into the trial's folder, once for all ranks. `outlast.runtime.trials` restores the copies,
and removes what the script has created.

    TRIAL/touched/<digest of the path>.json   {"path": ..., "existed": true}
    TRIAL/touched/<digest of the path>.copy   the content of the file before

Python reports each such call by an audit event. torch.save opens its file in C++, so it is wrapped.

Limits   Not seen: files that other native libraries or other programs write. A file larger than
         TRIAL_COPY_BYTES may not be overwritten: the script gets a PermissionError.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from outlast.model.limits import TRIAL_COPY_BYTES

# the folders that outlast, torch and Python use for themselves
_LEFT_ALONE = ("/dev/", "/proc/", "/sys/", "/run/", os.path.expanduser("~/.cache/"))
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class TouchedFiles:
    """Keep a copy of each file before it is changed. One object serves a process and its forks.

    folder   where the copies go
    ours     folders in which anything may be written: the trial's own
    """

    def __init__(self, folder: Path, ours: tuple[str, ...]) -> None:
        self._folder = folder
        self._ours = tuple(f"{os.path.realpath(one)}{os.sep}" for one in ours if one)
        self._inside = threading.local()
        self._known: set[str] = set()

    def begin(self) -> None:
        """Watch this process from here on. It cannot be ended."""
        self._folder.mkdir(exist_ok=True)
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if getattr(self._inside, "busy", False):
            return
        match event, arguments:
            case "open", (path, mode, flags, *_):
                if isinstance(path, (str, bytes)) and _is_for_writing(mode, flags):
                    self.keep(path)
            case "os.rename", (source, target, *_):
                self.keep(source)
                self.keep(target)
            case (("os.remove" | "os.truncate"), (path, *_)):
                self.keep(path)
            case "os.mkdir", (path, *_):
                self.keep(path)
            case (("os.link" | "os.symlink"), (_, target, *_)):
                self.keep(target)
            case "shutil.rmtree", (path, *_):
                self._refuse_removal(path)
            case _:
                pass

    def keep(self, given: Any) -> None:
        """Copy what is at a path, unless that was done already.

        A path that does not exist is ignored.
        """
        if not isinstance(given, (str, bytes, os.PathLike)):
            return
        self._inside.busy = True
        try:
            path = os.path.realpath(os.fsdecode(given))
            if path not in self._known and not self._is_left_alone(path):
                self._known.add(path)
                self._keep(path)
        finally:
            self._inside.busy = False

    def _is_left_alone(self, path: str) -> bool:
        return path.startswith((*_LEFT_ALONE, *self._ours)) or "__pycache__" in path

    def _keep(self, path: str) -> None:
        record = self._record_of(path)
        if record.exists():
            return
        existed = os.path.lexists(path)
        if os.path.isfile(path):
            size_bytes = os.path.getsize(path)
            if size_bytes > TRIAL_COPY_BYTES:
                raise PermissionError(
                    f"`outlast check` does not let the script overwrite {path}: its"
                    f" {size_bytes:,} bytes are too many to be kept for that time"
                )
            self._put(record.with_suffix(".copy"), lambda at: shutil.copy2(path, at))
        text = json.dumps({"path": path, "existed": existed})
        self._put(record, lambda at: at.write_text(text))

    def _record_of(self, path: str) -> Path:
        digest = hashlib.blake2b(path.encode(errors="surrogateescape"), digest_size=12)
        return self._folder / f"{digest.hexdigest()}.json"

    def _put(self, place: Path, write: Any) -> None:
        """Write a complete file, unless another rank was faster. Then its file is kept."""
        part = place.with_name(f"{place.name}.{os.getpid()}-{threading.get_ident()}")
        write(part)
        with contextlib.suppress(FileExistsError):
            os.link(part, place)
        part.unlink()

    def _refuse_removal(self, given: Any) -> None:
        path = os.path.realpath(os.fsdecode(given))
        if os.path.isdir(path) and not self._is_left_alone(path) and self._stood_before(path):
            raise PermissionError(
                f"`outlast check` does not let the script remove the folder {path}"
            )

    def _stood_before(self, path: str) -> bool:
        self._inside.busy = True
        try:
            made = self._record_of(path)
            return not made.exists() or bool(json.loads(made.read_text())["existed"])
        finally:
            self._inside.busy = False


def _is_for_writing(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str) and mode:
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)


def watch_torch_save(files: TouchedFiles) -> None:
    """Keep what torch.save would overwrite. The script has imported torch, or will soon."""
    serialization = importlib.import_module("torch.serialization")
    torch = importlib.import_module("torch")
    original = serialization.save

    @functools.wraps(original)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
        files.keep(f)
        return original(obj, f, *args, **kwargs)

    serialization.save = torch.save = save  # type: ignore[attr-defined]  # named by its text
