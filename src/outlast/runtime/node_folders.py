"""Folders that the nodes of a run share, or do not share."""

from __future__ import annotations

import contextlib
from pathlib import Path

import xxhash

from outlast.errors import CapacityError, OutlastError, UsageError
from outlast.runtime.run_folder import read_card


def digest_of_file(path: str) -> str:
    """Return a digest of a script, which nodes compare. Return "" if the file cannot be read."""
    with contextlib.suppress(OSError):
        return xxhash.xxh3_64_hexdigest(Path(path).read_bytes())
    return ""


def is_folder_of(path: Path, run: str) -> bool:
    """Return whether `path` is the folder of this run, which means that this node sees it."""
    with contextlib.suppress(OutlastError, OSError):
        return read_card(path).get("run") == run
    return False


def make_own(path: Path) -> None:
    """Create a folder for the logs of a node that does not see the run's. Raises CapacityError."""
    try:
        for part in ("logs", "evidence"):
            (path / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CapacityError(
            f"{path} cannot be made: {error.strerror}", hint="give another with --run-dir"
        ) from None


def mark_shared(root: Path, run: str) -> None:
    """Leave a mark in the folder of checkpoints, by which other nodes recognise it.

    Raises CapacityError.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        _mark(root, run).touch()
    except OSError as error:
        raise CapacityError(
            f"nothing can be written in {root}: {error.strerror}",
            hint="give another folder with --checkpoint-dir",
        ) from None


def check_shared(root: Path, run: str) -> None:
    """Raise UsageError if this node does not see the folder of checkpoints."""
    if not _mark(root, run).exists():
        raise UsageError(
            f"this node does not see the folder of checkpoints {root}",
            hint="give a folder that all nodes share with --checkpoint-dir",
        )


def _mark(root: Path, run: str) -> Path:
    return root / f".{run}"
