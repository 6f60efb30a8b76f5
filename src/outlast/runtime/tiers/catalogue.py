"""List the checkpoints in a tier for people: each with its size, age and state.

State      good        every byte was read, and is as it was written
           bad         something is missing, damaged, or of another version
           unknown     all files are there with their lengths; their bytes were not read
           incomplete  there is no manifest: a save is in progress, or did not finish

Nothing here changes anything, and nothing that a checkpoint says is believed before it is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlast.errors import CorruptError
from outlast.model.manifest import Manifest
from outlast.runtime import clock
from outlast.runtime.tiers import tier as tiers
from outlast.runtime.tiers.tier import CheckpointTier, Seen, unseen

GOOD, BAD, UNKNOWN, INCOMPLETE = "good", "bad", "unknown", "incomplete"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One checkpoint. What its manifest says is None if the manifest cannot be read.

    reason      why it is bad, or ""
    size_bytes  the size of the files that the manifest names
    """

    step: int
    state: str
    reason: str
    written_s: float
    size_bytes: int | None = None
    files: int | None = None
    kind: str | None = None
    world_size: int | None = None
    run: str | None = None


def look(tier: CheckpointTier, *, step: int | None = None) -> list[CatalogueEntry]:
    """List the checkpoints, the newest first. Only their manifests are read."""
    found = []
    for one in tier.step_folders():
        if step is not None and one.step != step:
            continue
        written_s = tier.written_s(one.step)
        if not one.has_manifest:
            found.append(CatalogueEntry(one.step, INCOMPLETE, "it has no manifest", written_s))
            continue
        try:
            manifest = tier.manifest(one.step)
        except CorruptError as error:
            found.append(CatalogueEntry(one.step, BAD, error.message, written_s))
            continue
        reason = _first_missing(tier, manifest)
        found.append(_entry(manifest, BAD if reason else UNKNOWN, reason, written_s))
    return found


def verify(
    tier: CheckpointTier, *, step: int | None = None, seen: Seen = unseen
) -> Iterator[CatalogueEntry]:
    """Yield the same after every byte of each was read. None is `unknown` any more."""
    for entry in look(tier, step=step):
        if entry.state != UNKNOWN:
            yield entry
            continue
        reason = tier.why_not(entry.step, seen=seen)
        manifest = tier.manifest(entry.step)
        yield _entry(manifest, BAD if reason else GOOD, reason, entry.written_s)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The checkpoint that a restore takes now, its place, and how long reading it takes.

    entry      None if there is none to restore
    refused    newer ones that are not good, newest first, and why
    read_s     how long it took just now to read the checkpoint and to compare every byte
    """

    entry: CatalogueEntry | None
    refused: tuple[tuple[int, str], ...]
    read_s: float


def plan_restore(tier: CheckpointTier, *, seen: Seen = unseen) -> RestorePlan:
    """Find the newest good checkpoint as a restore does: by reading it."""
    refused: list[tuple[int, str]] = []
    for one in tier.step_folders():
        if not one.has_manifest:
            continue
        began_s = clock.now_s()
        (entry,) = verify(tier, step=one.step, seen=seen)
        if entry.state == GOOD:
            return RestorePlan(entry, tuple(refused), clock.now_s() - began_s)
        refused.append((entry.step, entry.reason))
    return RestorePlan(None, tuple(refused), 0.0)


def bytes_of(tier: CheckpointTier, *, step: int | None = None) -> int:
    """Return how many bytes a verification will read."""
    return sum(entry.size_bytes or 0 for entry in look(tier, step=step) if entry.state == UNKNOWN)


def prune(
    tier: CheckpointTier, *, keep: int, every: int, dry_run: bool = False, seen: Seen = unseen
) -> list[CatalogueEntry]:
    """Remove the superfluous checkpoints, and return them. With `dry_run` nothing is removed."""
    steps = tiers.superfluous(tier, keep=keep, every=every, seen=seen)
    gone = [entry for entry in look(tier) if entry.step in steps]
    for entry in gone:
        if not dry_run:
            tier.remove(entry.step)
    return gone


def _entry(manifest: Manifest, state: str, reason: str, written_s: float) -> CatalogueEntry:
    return CatalogueEntry(
        manifest.step,
        state,
        reason,
        written_s,
        size_bytes=sum(file.length for file in manifest.files),
        files=len(manifest.files),
        kind=manifest.kind,
        world_size=manifest.world_size,
        run=manifest.run,
    )


def _first_missing(tier: CheckpointTier, manifest: Manifest) -> str:
    """Return which file is not there with its length, or ""."""
    for file in manifest.files:
        try:
            tier.read(manifest.step, file, 0, memoryview(b""))
        except CorruptError as error:
            return error.message
    return ""
