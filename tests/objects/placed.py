"""Checkpoints of a small state at a URL, for tests that need some."""

from __future__ import annotations

from pathlib import Path

from outlast.runtime.objects.copying import BytePace, copy, held
from outlast.runtime.objects.url_places import open_place
from outlast.runtime.tiers.tier import CheckpointTier
from tests.tiers.saved import save


def put(url: str, scratch: Path, *steps: int, run: str = "run-1") -> CheckpointTier:
    """Put checkpoints of the steps at a URL."""
    target = open_place(url)
    disk = save(scratch, *steps, run=run)
    for step in steps:
        manifest = disk.manifest(step)
        with held(disk.folder(step), manifest) as chunks:
            copy(manifest, target, chunks=chunks, source="scratch", pace=BytePace())
    return target
