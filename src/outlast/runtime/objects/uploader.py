"""`Uploader`: copies the checkpoints of a run to object storage, one at a time, the newest first.

It runs in a separate process (runtime/objects/program.py), at the lowest priority. Nothing waits
for it while the run goes on.

    disk      step 10   step 20   step 30   step 40        each written by the ranks
    URL       step 10 ─────────────────>    step 40        EVERY is over, and the upload before it

What is due      `decide_upload`: the newest checkpoint on the disk, if it is newer than the newest
                 at the URL, and EVERY is over since that one was written.
A failure        It may be of the server, of the network, or of a file that is damaged on the disk.
                 It is reported, counted, and tried again after a pause, which grows. The next try
                 takes the checkpoint that is the newest then.
Retention        As on the disk. The checkpoint that was just uploaded counts as good: its lengths
                 were compared, and its bytes were summed while they were sent. It is not read
                 back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlast.engine import durable
from outlast.errors import CorruptError, OutlastError, whole_message_of
from outlast.model.keep import Every
from outlast.model.limits import (
    UPLOAD_AGAIN_FIRST_S,
    UPLOAD_AGAIN_S,
    UPLOAD_LAST_TRIES_COUNT,
    UPLOAD_LOOK_S,
    UPLOAD_TOLD_S,
)
from outlast.model.manifest import OF_RUNS
from outlast.model.pauses import growing_pause_s
from outlast.runtime import clock
from outlast.runtime.objects.copying import BytePace, copy, held
from outlast.runtime.objects.upload_order import UploadOrder
from outlast.runtime.tiers import local
from outlast.runtime.tiers.local import CheckpointFolder
from outlast.runtime.tiers.tier import CheckpointTier

Say = Callable[[dict[str, Any]], None]  # reports to the launcher
Rest = Callable[[float], bool]  # waits, and returns whether the run is over


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The newest checkpoint of the run at the URL. Step 0: there is none."""

    step: int = 0
    written_s: float = 0.0


def decide_upload(
    newest: int, last: Uploaded, *, every: Every, now_s: float, is_over: bool
) -> bool:
    """Return whether the checkpoint of step `newest` is uploaded now.

    Times are wall time. Once the run is over, the newest checkpoint does not wait for EVERY.
    """
    if newest <= last.step:
        return False
    if is_over or not last.step:
        return True
    if every.seconds:
        return now_s - last.written_s >= every.seconds or now_s < last.written_s
    return newest - last.step >= every.steps


class Uploader:
    """Upload checkpoints until the run is over and its newest checkpoint is uploaded.

    say    is called after each upload and each failure
    rest   waits for some seconds, or until the run is over
    """

    def __init__(
        self, order: UploadOrder, open_target: Callable[[], CheckpointTier], say: Say, rest: Rest
    ) -> None:
        self._order = order
        self._open_target = open_target
        self._target: CheckpointTier | None = None
        self._say = say
        self._rest = rest
        self._last: Uploaded | None = None  # None: the URL was not read yet
        self._failures = 0  # in a row
        # steps whose files on the disk are not as their manifest says
        self._damaged: set[int] = set()
        self._told_s = 0.0

    def run(self) -> bool:
        """Upload until the run is over. Return whether its newest checkpoint is at the URL."""
        while not self._rest(self._pause_s()):
            self._turn(is_over=False)
        for number in range(UPLOAD_LAST_TRIES_COUNT):
            if number:
                self._rest(UPLOAD_AGAIN_FIRST_S * 2.0**number)
            if self._turn(is_over=True):
                return True
        return False

    def _turn(self, is_over: bool) -> bool:
        """Upload what is due. Return False if that failed."""
        try:
            found = self._newest_on_disk()
            if found is None:
                return True
            self._upload_if_due(found, is_over)
        except (OutlastError, OSError, MemoryError) as error:  # boundary: training goes on
            self._failures += 1
            why = whole_message_of(error)
            self._say({"what": "failed", "why": why, "failures": self._failures})
            return False
        self._failures = 0
        return True

    def _pause_s(self) -> float:
        """Return how long to wait before the next look."""
        if not self._failures:
            return UPLOAD_LOOK_S
        return growing_pause_s(self._failures, first_s=UPLOAD_AGAIN_FIRST_S, most_s=UPLOAD_AGAIN_S)

    def _newest_on_disk(self) -> CheckpointFolder | None:
        """Return the newest finished checkpoint of the run, or None. Only manifests are read."""
        for one in local.step_folders(self._order.root):
            if not one.has_manifest or one.step in self._damaged:
                continue
            found = local.read_manifest(one.folder)
            if isinstance(found, CheckpointFolder) and self._is_ours(found):
                return found
        return None

    def _is_ours(self, found: CheckpointFolder) -> bool:
        return found.manifest.run == self._order.run and found.manifest.kind in OF_RUNS

    def _upload_if_due(self, found: CheckpointFolder, is_over: bool) -> None:
        if self._target is None:
            self._target = self._open_target()
        if self._last is None:
            self._last = newest_of(self._target, self._order.run)
        step, now_s = found.manifest.step, clock.wall_s()
        if not decide_upload(
            step, self._last, every=self._order.every, now_s=now_s, is_over=is_over
        ):
            return
        self._upload(found, self._target)
        self._last = Uploaded(step, now_s)
        self._prune(self._target, step)

    def _upload(self, found: CheckpointFolder, target: CheckpointTier) -> None:
        began_s = clock.now_s()
        manifest = found.manifest
        pace = BytePace(self._order.bytes_per_s, seen=self._sent)
        try:
            with held(found.folder, manifest) as chunks:
                copy(manifest, target, chunks=chunks, source=str(found.folder), pace=pace)
        except CorruptError:
            self._damaged.add(manifest.step)  # a further try would send the same bytes
            raise
        self._say(
            {
                "what": "uploaded",
                "step": manifest.step,
                "bytes": sum(entry.length for entry in manifest.files),
                "seconds": round(clock.now_s() - began_s, 3),
            }
        )

    def _sent(self, count: int) -> None:
        """Report from time to time that bytes are being sent."""
        now_s = clock.now_s()
        if now_s - self._told_s >= UPLOAD_TOLD_S:
            self._told_s = now_s
            self._say({"what": "sent"})

    def _prune(self, target: CheckpointTier, step: int) -> None:
        """Remove what the retention does not keep, and what earlier tries have left."""
        keep = self._order.retention
        try:
            folders = target.step_folders()
            for gone in durable.superfluous(folders, good=step, keep=keep.last, every=keep.every):
                target.remove(gone)
        except (OutlastError, OSError) as error:  # boundary: the next upload tries again
            why = whole_message_of(error)
            self._say({"what": "warning", "text": f"older checkpoints are not removed: {why}"})


def newest_of(target: CheckpointTier, run: str) -> Uploaded:
    """Return the newest checkpoint of a run that is at a URL. Only manifests are read."""
    for one in target.step_folders():
        if not one.has_manifest:
            continue
        try:
            manifest = target.manifest(one.step)
        except CorruptError:
            continue  # it does not count, because a newer one will be uploaded
        if manifest.run == run:
            return Uploaded(one.step, target.written_s(one.step))
    return Uploaded()
