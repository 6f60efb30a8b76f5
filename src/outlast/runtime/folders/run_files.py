"""The files of a run that people read: what its workers printed, and the evidence.

Only regular files under `logs/` and `evidence/` are listed and read. Symbolic links in a path are
not followed, so a name can lead nowhere else. This does not wait for a pipe or a device. Nothing is
written.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import RunFolderError
from outlast.runtime.ledger.pointer import LEDGER, find_ledger


class NoFileError(RunFolderError):
    """The run has no such file."""


FOLDERS = ("logs", "evidence")
FILES_MOST = 2_000  # the most files of one run in a listing
DEEPEST = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class RunFile:
    """One file. `path` is relative to the run's folder."""

    path: str
    size_bytes: int
    changed_wall_s: float


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file: `data` begins at `from_byte`."""

    path: str
    size_bytes: int
    from_byte: int
    data: bytes


def run_names(root: Path) -> list[str]:
    """Return the folders under `root` that contain a run, including a run that cannot be read.

    The run that was started or resumed last comes first.
    """
    found: list[tuple[float, str]] = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(root):
            with contextlib.suppress(OSError):
                card = os.stat(os.path.join(entry.path, "run.json"))
                found.append((card.st_mtime, entry.name))
    return [name for _, name in sorted(found, reverse=True)]


def is_run(path: Path) -> bool:
    """Return whether this is the folder of one run, and not a folder of runs."""
    return (path / "run.json").is_file()


def ledger_changed(run: Path) -> tuple[int, ...]:
    """Return numbers that differ once the ledger was written again."""
    numbers: list[int] = []
    ledger = run / LEDGER
    with contextlib.suppress(RunFolderError):
        ledger = find_ledger(run).path
    for path in (ledger, Path(f"{ledger}-wal"), run / "run.json"):
        found = None
        with contextlib.suppress(OSError):
            found = os.stat(path)
        # A reader makes an empty ledger.db-wal if there is none. Nothing was written then.
        if found is None or found.st_size == 0:
            numbers += [0, 0, 0]
        else:
            numbers += [found.st_mtime_ns, found.st_size, found.st_ino]
    return tuple(numbers)


def run_files(run: Path, *, under: str = "") -> list[RunFile]:
    """Return the files of a run in order of their names, at most FILES_MOST.

    `under`: only those below this folder, as in `evidence/interruption-3`.
    """
    out: list[RunFile] = []
    starts = [under] if under else list(FOLDERS)
    for start in starts:
        try:
            fd = _open(run, start, _FOLDER)
        except (OSError, NoFileError):
            continue
        try:
            out += _walk(fd, start, FILES_MOST - len(out), DEEPEST)
        finally:
            os.close(fd)
    return out


def tail(run: Path, name: str, *, most_bytes: int, before: int | None = None) -> Tail:
    """Return the end of a file, or what is before byte `before`.

    Raises NoFileError if there is no such file.
    """
    try:
        fd = _open(run, name, _FILE)
    except OSError:
        raise _no_file(name) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _no_file(name)
        end = found.st_size if before is None else max(0, min(before, found.st_size))
        begin = max(0, end - most_bytes)
        return Tail(name, found.st_size, begin, os.pread(fd, end - begin, begin))
    except OSError:
        raise _no_file(name) from None
    finally:
        os.close(fd)


def _no_file(name: str) -> NoFileError:
    return NoFileError(f"the run has no file {name}", hint="its page lists the files it has")


def _open(run: Path, name: str, flags: int) -> int:
    """Open a place below the run's folder without following a link. Raises OSError."""
    parts = name.split("/")
    if parts[0] not in FOLDERS or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise _no_file(name)
    at = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = deeper
        return os.open(parts[-1], flags, dir_fd=at)
    finally:
        os.close(at)


def _walk(fd: int, name: str, most_count: int, deepest: int) -> Iterator[RunFile]:
    """Yield the files below an open folder."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(fd)):
            if most_count <= 0:
                return
            with contextlib.suppress(OSError):
                found = os.stat(entry, dir_fd=fd, follow_symlinks=False)
                path = f"{name}/{entry}"
                if stat.S_ISREG(found.st_mode):
                    yield RunFile(path, found.st_size, found.st_mtime)
                    most_count -= 1
                elif stat.S_ISDIR(found.st_mode) and deepest > 0:
                    inner = os.open(entry, _FOLDER, dir_fd=fd)
                    try:
                        for one in _walk(inner, path, most_count, deepest - 1):
                            yield one
                            most_count -= 1
                    finally:
                        os.close(inner)
