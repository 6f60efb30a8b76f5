"""Checkpoints: when one is complete, which is offered for restore, and which are removed.

    shard ─┐
    shard ─┼─all ranks, of one past──> manifest ──written──> a checkpoint ──all bytes read──> good
    shard ─┘      └─ one fails: this save is over, and nothing else

A checkpoint exists once its manifest does. No rank restores from a checkpoint before all of its
bytes were read and found to be as written. This module is pure: the contents of the disk are
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from outlast.model.limits import CHECKPOINTS_KEPT_COUNT
from outlast.model.messages import Checkpointed


class StepFolder(Protocol):
    """The files in the folder of one step."""

    @property
    def step(self) -> int: ...
    @property
    def has_manifest(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Retention:
    """The checkpoints that stay: the newest `last`, and one each `every` steps (0: no others)."""

    last: int = CHECKPOINTS_KEPT_COUNT
    every: int = 0


class Rollbacks:
    """Distinguish the steps that the run goes on from and those that were rolled back."""

    def __init__(self) -> None:
        # generation, and the step that it went back to; later ones went further
        self._backs: list[tuple[int, int]] = []

    def noted(self) -> tuple[tuple[int, int], ...]:
        """Return generation and step of the rollbacks that still matter, the oldest first."""
        return tuple(self._backs)

    def note(self, *, generation: int, step: int) -> bool:
        """Note that `generation` goes on from `step`, so later steps are rolled back.

        Return False if this was noted last, so that it is not new.
        """
        if self._backs[-1:] == [(generation, step)]:
            return False
        self._backs = [back for back in self._backs if back[1] < step] + [(generation, step)]
        return True

    def why_not(self, *, generation: int, step: int) -> str:
        """Return why files that `generation` wrote of `step` do not count any more, or ""."""
        return (
            "" if self.counts(generation=generation, step=step) else f"step {step} was rolled back"
        )

    def counts(self, *, generation: int, step: int) -> bool:
        """Return whether what `generation` made of `step` was not rolled back since."""
        return not any(generation < later and back < step for later, back in self._backs)


T = TypeVar("T", bound=StepFolder)
COMPLETE_KEPT = 16  # complete saves that are remembered: a shard is reported twice soon, or never


@dataclass(slots=True)
class Saves:
    """Shards that were reported, of saves that are not complete.

    A step that was rolled back and is done again is another save than before.
    """

    world_size: int
    _shards: dict[int, dict[int, Checkpointed]] = field(default_factory=dict)
    # the newest steps of which all shards were reported -> in which generation the last was
    _complete: dict[int, int] = field(default_factory=dict)
    _rollbacks: Rollbacks = field(default_factory=Rollbacks)

    def note_rollback(self, *, generation: int, step: int) -> None:
        """Drop saves of later steps, which were rolled back: `generation` goes on from `step`."""
        self._rollbacks.note(generation=generation, step=step)
        for later in [later for later in self._shards if later > step]:
            del self._shards[later]

    def takes(self, shard: Checkpointed) -> bool:
        """Return whether a shard belongs to the steps that the run goes on from."""
        return self._rollbacks.counts(generation=shard.generation, step=shard.step)

    def put(self, shard: Checkpointed) -> tuple[Checkpointed, ...]:
        """Add a shard. Return all shards of its step by rank once they are complete, else none.

        A shard that is reported again after that belongs to no save.
        """
        if shard.generation <= self._complete.get(shard.step, -1):
            return ()  # the shard was reported before
        shards = self._shards.setdefault(shard.step, {})
        shards[shard.rank] = shard
        if len(shards) < self.world_size:
            return ()
        self._complete = dict(
            [*self._complete.items(), (shard.step, shard.generation)][-COMPLETE_KEPT:]
        )
        return tuple(one for _, one in sorted(self._shards.pop(shard.step).items()))

    def fail(self, step: int) -> None:
        """Note that a shard could not be written. Others may still come, and will be too few."""
        self._shards.pop(step, None)


def newest_good(
    folders: Iterable[T], *, why_not: Callable[[T], str]
) -> tuple[T | None, tuple[tuple[T, str], ...]]:
    """Walk back from the newest checkpoint to the first of which every byte is as written.

    Return it, and those that were refused on the way, newest first. `why_not` reads one, and says
    what is wrong with it, or "". A folder without a manifest is not a checkpoint, and is not read.
    """
    refused: list[tuple[T, str]] = []
    for one in sorted(folders, key=lambda one: one.step, reverse=True):
        if not one.has_manifest:
            continue
        if reason := why_not(one):
            # Something in it is damaged, so try an older one.
            refused.append((one, reason))
            continue
        return one, tuple(refused)
    return None, tuple(refused)


def superfluous(
    folders: Sequence[StepFolder], *, good: int | None, keep: int, every: int = 0
) -> tuple[int, ...]:
    """Return the steps whose folders can be removed, newest first.

    The newest `keep` checkpoints (at least one) are kept. So is each checkpoint whose step is a
    multiple of `every`, if that is not 0. `good` is the newest good one. It is never removed, nor
    is a newer one; if nothing is good, nothing is removed. A folder without a manifest is removed
    if it is older than the newest checkpoint. A newer one may be a save in progress.
    """
    committed = sorted((one.step for one in folders if one.has_manifest), reverse=True)
    if good is None or not committed:
        return ()
    oldest = min(good, committed[: max(keep, 1)][-1])
    cut_short = {one.step for one in folders if not one.has_manifest}
    steps = sorted((one.step for one in folders), reverse=True)
    kept_for_long = {step for step in committed if every and step % every == 0}
    return tuple(
        step
        for step in steps
        if (step < oldest and step not in kept_for_long)
        or (step < committed[0] and step in cut_short)
    )


def newest_common(
    steps_by_rank: Sequence[Sequence[int]], *, is_whole: Callable[[int], bool]
) -> int | None:
    """Return the newest step of which every rank has a good image.

    There must be at least one rank. `is_whole` reads the images of a step. If something is wrong
    with them, an older step is tried. None: no step is left.
    """
    common = set.intersection(*map(set, steps_by_rank))
    return next((step for step in sorted(common, reverse=True) if is_whole(step)), None)


def begins_from_images(images: int, *, checkpoint: int) -> bool:
    """Return whether a resumed run begins from the images that a dead launcher left.

    It does if they are newer than the checkpoint.

    images       the step of the images
    checkpoint   the step of the newest checkpoint; 0: there is none
    """
    return images > checkpoint
