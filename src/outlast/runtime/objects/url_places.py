"""Open the storage that a URL names, as a tier for checkpoints.

A folder (`file:///PATH`) is the tier of the disk, which needs nothing else. All other schemes need
the package obstore (`outlast[object-storage]`), which is imported only then.

Errors     UsageError, exit code 2: an unknown scheme, no obstore, no credentials.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from outlast.errors import UsageError
from outlast.model.store_url import FILE, is_url, read_url
from outlast.runtime.objects.patience import AT_START, RequestPatience
from outlast.runtime.tiers import checkpoint_places
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.tier import CheckpointTier


def open_place(url: str, *, patience: RequestPatience = AT_START) -> CheckpointTier:
    """Return the tier that keeps checkpoints at a URL. No request is sent yet.

    Raises UsageError if the URL cannot be used, or if obstore is needed and not installed.
    """
    place = read_url(url, name=url)
    if place.scheme == FILE:
        return DiskTier(Path(unquote(place.path)))
    try:
        from outlast.runtime.objects import object_tier
    except ImportError:
        raise UsageError(
            f"{url}: object storage needs the package obstore",
            hint="pip install 'outlast[object-storage]'",
        ) from None
    return object_tier.open_tier(place, patience)


@dataclass(frozen=True, slots=True)
class Place:
    """A tier, and the step of the checkpoint that was named; None if none was named."""

    tier: CheckpointTier
    step: int | None = None


def find(where: str | None, *, step: int | None = None) -> Place:
    """Return where the checkpoints are that the user named: at a URL, or by a path or a run.

    Raises UsageError as `checkpoint_places.find` does.
    """
    if where is None or not is_url(where):
        found = checkpoint_places.find(where, step=step)
        return Place(found.tier, found.step)
    tier = open_place(where)
    if step is not None:
        checkpoint_places.check_step(tier, step)
    return Place(tier, step)
