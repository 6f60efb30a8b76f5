"""Download the newest good checkpoint of a run from object storage to the disk.

`outlast run --resume` does this before anything else. All later parts then find the checkpoint
where they find every checkpoint: in the folder on the disk.

    disk   10 good   20 damaged
    URL    10        20           30 damaged      ->  30 refused, 20 downloaded

Nothing is downloaded if the disk has the newest checkpoint. A damaged checkpoint at the URL is
downloaded DOWNLOAD_TRIES_COUNT times before it is refused, because bytes may also be damaged during
a download. It is set aside at the URL, so that its step can be uploaded again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import CorruptError, OutlastError, whole_message_of
from outlast.model.limits import DOWNLOAD_TRIES_COUNT
from outlast.model.manifest import OF_RUNS, Manifest
from outlast.runtime.objects.copying import BytePace, copy
from outlast.runtime.tiers import local
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.tier import CheckpointTier, Seen, unseen

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The checkpoint that was downloaded.

    Step 0: nothing, because the disk has the newest checkpoint, or because there is none.
    """

    step: int = 0
    size_bytes: int = 0


def fetch(
    source: CheckpointTier, root: Path, run: str, *, tell: Tell, seen: Seen = unseen
) -> Fetched:
    """Download the newest good checkpoint of `run`, if it is newer than the newest on the disk.

    `tell` gets a sentence for each that was refused. Raises UsageError if the place cannot be
    reached, and CapacityError for a full disk. The disk is then as before.
    """
    disk = DiskTier(root)
    newest = next((one.step for one in disk.step_folders() if one.has_manifest), 0)
    good: int | None = None  # the newest good one on the disk; None: it was not determined yet
    for one in source.step_folders():
        if not one.has_manifest:
            tell(f"{source.place}: step {one.step} has no manifest, and is passed over")
            continue
        if one.step <= newest and good is None:
            good = _newest_good_step(root, run)
        if good is not None and one.step <= good:
            break
        manifest = _ours(source, one.step, run, tell=tell)
        if manifest is not None and _bring(source, manifest, disk, tell=tell, seen=seen):
            return Fetched(one.step, sum(entry.length for entry in manifest.files))
    return Fetched()


def _newest_good_step(root: Path, run: str) -> int:
    """Read the checkpoints on the disk. Return the newest good step of the run, or 0."""
    found = local.newest_good(root, foreign=lambda one: "" if one.run == run else "another run")
    return 0 if found.checkpoint is None else found.checkpoint.manifest.step


def _ours(source: CheckpointTier, step: int, run: str, *, tell: Tell) -> Manifest | None:
    """Return the manifest of a step if it is one of the run, and can be read."""
    try:
        manifest = source.manifest(step)
    except CorruptError as error:
        tell(f"a checkpoint was refused: {error.message}; {_set_aside(source, step)}")
        return None
    if manifest.run != run or manifest.kind not in OF_RUNS:
        tell(f"{source.place}: step {step} is of another run, {manifest.run}: it is not used")
        return None
    return manifest


def _bring(
    source: CheckpointTier, manifest: Manifest, disk: DiskTier, *, tell: Tell, seen: Seen
) -> bool:
    """Download a checkpoint. Return False if it is damaged."""
    folder = disk.folder(manifest.step)
    if (folder / local.MANIFEST_NAME).exists():
        # Otherwise the checkpoint at the URL would not be used.
        said = f"a checkpoint was refused: {folder} is damaged, or of another run"
        tell(f"{said}; it is kept as {disk.set_aside(manifest.step)}")
    why = ""
    for _ in range(DOWNLOAD_TRIES_COUNT):
        try:
            with _removed_if_cut_short(disk, manifest.step):
                copy(
                    manifest,
                    disk,
                    chunks=functools.partial(source.chunks, manifest.step),
                    source=f"{source.place}/{folder.name}",
                    pace=BytePace(seen=seen),
                )
            return True
        except CorruptError as error:
            why = error.message
    tell(f"a checkpoint was refused: {why}; {_set_aside(source, manifest.step)}")
    return False


@contextlib.contextmanager
def _removed_if_cut_short(disk: DiskTier, step: int) -> Iterator[None]:
    """Remove what was downloaded of a checkpoint if the block fails."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OutlastError, OSError):
            disk.remove(step)
        raise


def _set_aside(source: CheckpointTier, step: int) -> str:
    try:
        return f"it is kept as {source.set_aside(step)}"
    except (OutlastError, OSError) as error:
        return (
            f"it cannot be set aside ({whole_message_of(error)}): its step cannot be uploaded again"
        )
