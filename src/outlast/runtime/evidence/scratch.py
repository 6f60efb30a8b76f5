"""The folder into which archives are unpacked. It is removed however the diagnosis ends.

SIGTERM and SIGHUP end the process in order while the folder exists, so that it is removed. After
SIGKILL the folder stays. The lock that its owner held is free then, so the next diagnosis of the
same user removes the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

PREFIX = "outlast-evidence-"
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Make the folder, and remove it with all that is in it."""
    remove_abandoned(tempfile.gettempdir())
    with _orderly_end(), tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(lock)


def remove_abandoned(parent: str) -> None:
    """Remove the folders of this user's diagnoses that were killed."""
    for path in Path(parent).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            if path.is_symlink() or not path.is_dir() or status.st_uid != os.getuid():
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A folder that was just created may not be locked yet. It is empty.
                if any(path.iterdir()):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Turn signals that ask for the end of the process into SystemExit.

    Signals that have another handler are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before: dict[int, Any] = {
        number: signal.signal(number, end)
        for number in _ENDING
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
