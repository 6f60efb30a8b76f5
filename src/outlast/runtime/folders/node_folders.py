"""Folders that the nodes of a run share, or do not share."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import xxhash

from outlast.errors import CapacityError, OutlastError, UsageError
from outlast.runtime.folders.run_folder import read_card

_NAME_CHARS = 80
_PLAIN_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_NAME_CHARS - 1}}}")
_ODD = re.compile(r"[^A-Za-z0-9._-]")


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


def node_folder_name(node: str) -> str:
    """Return a name for a folder of this node. Another node's name gives another folder.

    A node's name may hold anything. What no file name can hold, or would lead elsewhere, is
    replaced, and a digest keeps such names apart.
    """
    if _PLAIN_NAME.fullmatch(node):
        return node
    plain = _ODD.sub("_", node).lstrip("._-")
    beginning = plain[:_NAME_CHARS]
    digest = xxhash.xxh3_64_hexdigest(node.encode("utf-8", "surrogatepass"))
    return f"{beginning or 'node'}-{digest}"


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
