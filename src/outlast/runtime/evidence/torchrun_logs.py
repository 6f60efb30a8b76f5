"""Find the files in torchrun's log folder, by attempt and rank."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import UsageError
from outlast.runtime.agent.logs import ErrorRecord, read_error_file

RANKS_MAX_COUNT = 100_000  # the most folders of ranks, over all attempts
_ATTEMPT = re.compile(r"attempt_(\d{1,6})")
_RANK = re.compile(r"\d{1,6}")


@dataclass(frozen=True, slots=True)
class FoundRank:
    """One rank's folder. `made_s` and `written_s` are of its files, in seconds since 1970."""

    run: str
    attempt: int
    rank: int
    folder: Path
    made_s: float
    written_s: float
    error: ErrorRecord | None
    error_s: float | None


def find_ranks(path: str) -> list[FoundRank]:
    """Return the ranks under a log folder, or under the folder of one run in it.

    Raises UsageError if it cannot be read, or contains too many.
    """
    root = Path(path)
    if not root.is_dir():
        raise UsageError(
            f"{path} is not a folder", hint="name the folder given to torchrun --log-dir"
        )
    out: list[FoundRank] = []
    try:
        for run in [root] if _attempts(root) else sorted(one for one in root.iterdir()):
            for number, attempt in _attempts(run):
                for folder in sorted(attempt.iterdir()):
                    if _RANK.fullmatch(folder.name) and _is_folder(folder):
                        out.append(_rank(run, number, folder))
                        if len(out) > RANKS_MAX_COUNT:
                            raise UsageError(f"{path} holds more than {RANKS_MAX_COUNT:,} ranks")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    return out


def _attempts(run: Path) -> list[tuple[int, Path]]:
    if not _is_folder(run):
        return []
    found = ((_ATTEMPT.fullmatch(one.name), one) for one in run.iterdir())
    return sorted((int(match[1]), one) for match, one in found if match and _is_folder(one))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _rank(run: Path, attempt: int, folder: Path) -> FoundRank:
    times = list(_times(folder))
    made_s = folder.stat().st_mtime  # when the last of its files was created
    error = folder / "error.json"
    record = read_error_file(error)
    error_s = error.lstat().st_mtime if record is not None else None
    if record is not None and record.timestamp > 0:
        error_s = float(record.timestamp)
    return FoundRank(
        run.name,
        attempt,
        int(folder.name),
        folder,
        min([made_s, *times]),
        max([made_s, *times]),
        record,
        error_s,
    )


def _times(folder: Path) -> Iterator[float]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield entry.stat(follow_symlinks=False).st_mtime
