"""Check the object storage of a run at its start.

Can the place be reached, is it free for this run, and which checkpoints does it have? A process of
its own answers (runtime/objects/program.py), and the launcher waits for it, since no worker runs
yet. If the place cannot be used, the command ends with exit code 2 before anything is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from outlast.app.launch.torchrun import ObjectOptions, RunOptions
from outlast.errors import UsageError
from outlast.model.records import Event
from outlast.model.texts import escaped, size_words
from outlast.runtime.coordinator.upload_process import UploadProcess
from outlast.runtime.loop import Loop
from outlast.runtime.objects.store_calls import ask
from outlast.runtime.objects.upload_order import UploadOrder

_LOOKED_AT_COUNT = 8  # of the newest manifests
_OTHER = "give this run a URL of its own"


def look(objects: ObjectOptions) -> list[str]:
    """Return the runs whose checkpoints are at the URL, the newest first.

    Raises UsageError if it cannot be reached, read or written.
    """
    asked = {"url": objects.url, "most": _LOOKED_AT_COUNT}
    *_, report = ask("look", asked)
    return [one["run"] for one in report["checkpoints"] if one["run"] is not None]


def check_new(objects: ObjectOptions) -> None:
    """Refuse a place that another run has used. Raises UsageError."""
    if runs := look(objects):
        raise UsageError(
            f"{objects.url} has checkpoints of the run {runs[0]} already",
            hint=f"{_OTHER}, or go on with that run: --resume",
        )


def check_resumed(objects: ObjectOptions, run: str, *, from_scratch: bool) -> None:
    """Refuse a place whose newest checkpoint is not of `run`. Raises UsageError.

    A run that is trained again from scratch must not find those of the training before.
    """
    try:
        runs = look(objects)
    except UsageError as error:
        also = "to go on from the disk alone, leave the URL out of --keep"
        raise UsageError(error.message, hint=f"{error.hint}; {also}".removeprefix("; ")) from None
    if runs and runs[0] != run:
        raise UsageError(
            f"{objects.url} has checkpoints of another run, {runs[0]}; this is {run}", hint=_OTHER
        )
    if runs and from_scratch:
        raise UsageError(
            f"{objects.url} has checkpoints of the training before (--from-scratch)",
            hint="name another URL for the new training",
        )


def bring(objects: ObjectOptions, *, root: Path, run: str, quiet: bool) -> None:
    """Download the newest good checkpoint of `run` into `root`, if the disk has none as new."""
    for report in ask("fetch", {"url": objects.url, "root": str(root.absolute()), "run": run}):
        match report["what"]:
            case "refused":
                _tell(f"warning: {report['text']}")
            case "fetched" if report["step"] and not quiet:
                size = size_words(report["bytes"])
                _tell(f"downloaded step {report['step']} from {objects.url} ({size})")


def start_uploads(
    options: RunOptions,
    *,
    run: str,
    root: Path,
    loop: Loop,
    tell: Callable[[str], None],
    record: Callable[[Event], None],
) -> UploadProcess | None:
    """Start the process that uploads a run's checkpoints; None if `--keep` has no URL."""
    objects = options.checkpoints.objects
    if objects is None:
        return None
    order = UploadOrder(
        objects.url,
        root.absolute(),
        run,
        objects.every,
        options.checkpoints.retention,
        objects.bytes_per_s,
    )
    return UploadProcess(loop, order, tell=tell, record=record)


def _tell(text: str) -> None:
    print(f"outlast {escaped(text)}", file=sys.stderr)
