"""Checkpoints: when one is complete, which is offered for restore, and which are removed.

    shard ─┐
    shard ─┼─all ranks, of one past──> manifest ──written──> a checkpoint ──all bytes read──> good
    shard ─┘      └─ one fails: this save is over, and nothing else

A checkpoint exists once its manifest does. No rank restores from a checkpoint before all of its
bytes were read and found to be as written. This module is pure: what lies on the disk is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from outlast.model.messages import Checkpointed


class Lying(Protocol):
    """What lies in the folder of one step."""

    @property
    def step(self) -> int: ...
    @property
    def has_manifest(self) -> bool: ...


T = TypeVar("T", bound=Lying)
COMPLETE_KEPT = 16  # saves: what is reported again is so soon after


@dataclass(slots=True)
class Saves:
    """Shards that were reported, of saves that are not complete.

    A save is of one past: a step that was rolled back and is done again is another.
    """

    world_size: int
    _shards: dict[int, dict[int, Checkpointed]] = field(default_factory=dict)
    # the newest steps of which all shards were reported -> in which generation the last was
    _complete: dict[int, int] = field(default_factory=dict)
    # generation, and the step that it went back to; later ones went further
    _backs: list[tuple[int, int]] = field(default_factory=list)

    def went_back(self, *, generation: int, step: int) -> None:
        """`generation` goes on from `step`: saves of later steps are of a past that is over."""
        self._backs = [back for back in self._backs if back[1] < step] + [(generation, step)]
        for later in [later for later in self._shards if later > step]:
            # A save is of a past that was rolled back.
            del self._shards[later]

    def takes(self, shard: Checkpointed) -> bool:
        """Whether it is of the past that the run goes on from."""
        return not any(
            shard.generation < generation and step < shard.step for generation, step in self._backs
        )

    def put(self, shard: Checkpointed) -> tuple[Checkpointed, ...]:
        """All shards of its step, by rank, once they lie there; else none.

        What is reported again after that is of no save.
        """
        if shard.generation <= self._complete.get(shard.step, -1):
            # A shard is reported again.
            return ()
        shards = self._shards.setdefault(shard.step, {})
        shards[shard.rank] = shard
        if len(shards) < self.world_size:
            return ()
        self._complete = dict(
            [*self._complete.items(), (shard.step, shard.generation)][-COMPLETE_KEPT:]
        )
        return tuple(one for _, one in sorted(self._shards.pop(shard.step).items()))

    def fail(self, step: int) -> None:
        """A shard of it could not be written. Others may still come: they are too few."""
        self._shards.pop(step, None)


def newest_good(
    lying: Iterable[T], *, why_not: Callable[[T], str]
) -> tuple[T | None, tuple[tuple[T, str], ...]]:
    """Walk back from the newest checkpoint to the first of which every byte is as written; and
    those that were refused on the way, newest first.

    `why_not` reads one, and says what is wrong with it, or "". What has no manifest is no
    checkpoint, and is not read.
    """
    refused: list[tuple[T, str]] = []
    for one in sorted(lying, key=lambda one: one.step, reverse=True):
        if not one.has_manifest:
            continue
        if reason := why_not(one):
            # A checkpoint is refused.
            refused.append((one, reason))
            continue
        return one, tuple(refused)
    return None, tuple(refused)


def superfluous(lying: Sequence[Lying], *, good: int | None, keep: int) -> tuple[int, ...]:
    """Steps whose folders can be removed, newest first, where the newest `keep` checkpoints (at
    least one) are kept.

    `good`: the newest good one. It is never removed, nor is any that is newer; where nothing is
    good, nothing is removed. What has no manifest is removed if it is older than the newest
    checkpoint: a newer one may be a save in progress.
    """
    committed = sorted((one.step for one in lying if one.has_manifest), reverse=True)
    if good is None or not committed:
        return ()
    oldest = min(good, committed[: max(keep, 1)][-1])
    cut_short = {one.step for one in lying if not one.has_manifest}
    steps = sorted((one.step for one in lying), reverse=True)
    return tuple(
        step for step in steps if step < oldest or (step < committed[0] and step in cut_short)
    )


def newest_common(
    steps_by_rank: Sequence[Sequence[int]], *, is_whole: Callable[[int], bool]
) -> int | None:
    """The newest step of which every rank (there is one at least) has an image, if `is_whole`
    (which reads them) finds nothing wrong with those; else an older one.
    """
    common = set.intersection(*map(set, steps_by_rank))
    return next((step for step in sorted(common, reverse=True) if is_whole(step)), None)


def begins_from_images(images: int, *, checkpoint: int) -> bool:
    """Whether a run that is resumed takes the images of step `images` that a dead launcher left in
    memory: where they are newer. 0: no checkpoint.
    """
    return images > checkpoint
