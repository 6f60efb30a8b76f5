"""Find the checkpoints that a person names by a path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outlast.errors import UsageError, message_of
from outlast.model.texts import some
from outlast.runtime.folders import run_folder
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.local import MANIFEST_NAME
from outlast.runtime.tiers.tier import CheckpointTier


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """A tier, and the step of the checkpoint that was named; None if none was named."""

    tier: DiskTier
    step: int | None = None


def find(where: str | Path | None, *, step: int | None = None) -> CheckpointPlace:
    """Return where the checkpoints are that `where` names.

    It names one checkpoint, a folder of checkpoints, or a run: its folder, or its name under runs/.
    None means the newest run. Raises UsageError if there is no such thing, and if `step` is given
    and is not there.
    """
    try:
        place = _one(where) or CheckpointPlace(DiskTier(_root(where)))
    except (OSError, ValueError) as error:
        raise UsageError(f"{where} cannot be read: {message_of(error)}") from None
    if step is None:
        return place
    if place.step not in (None, step):
        raise UsageError(f"{where} is the checkpoint of step {place.step}, not of step {step}")
    check_step(place.tier, step)
    return CheckpointPlace(place.tier, step)


def check_step(tier: CheckpointTier, step: int) -> None:
    """Raise UsageError unless a tier has a checkpoint of `step`."""
    steps = [str(one.step) for one in tier.step_folders() if one.has_manifest]
    if str(step) not in steps:
        raise UsageError(
            f"{tier.place} has no checkpoint of step {step}",
            hint=f"it has those of step {some(steps)}" if steps else "it has none",
        )


def _one(where: str | Path | None) -> CheckpointPlace | None:
    """Return the place of a single checkpoint, or None if the path is not one."""
    if where is None or not (Path(where) / MANIFEST_NAME).exists():
        return None
    folder = Path(where).resolve()  # "." has no name
    name = folder.name.removeprefix("step-")
    tier = DiskTier(folder.parent)
    if not name.isdecimal() or tier.folder(int(name)) != folder:
        raise UsageError(
            f"{where} has a manifest, and not the name of a step",
            hint="name it as it was saved: step- and twelve digits",
        )
    return CheckpointPlace(tier, int(name))


def _root(where: str | Path | None) -> Path:
    if where is not None and any(Path(where).glob("step-*")):
        return Path(where)
    run = run_folder.find(None if where is None else str(where))
    options = run_folder.read_card(run).get("options")
    given = options.get("checkpoints") if isinstance(options, dict) else None
    return Path(given) if isinstance(given, str) else run / "checkpoints"
