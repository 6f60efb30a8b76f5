"""Rules for checkpoints: only good ones are offered, and the last good one stays."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.model import limits
from outlast.sim.rules.checker import Checker
from outlast.sim.rules.final_observations import RunEnded
from outlast.sim.rules.observations import (
    CheckpointOffered,
    CheckpointsRemoved,
    ManifestOrdered,
    ManifestToWrite,
    Observation,
    Planned,
    SaveFailed,
    ShardHeard,
)


class OnlyGoodOffered(Checker):
    """A checkpoint is offered only if it is good.

    It has a manifest, and all of its bytes were right when they were last read.
    """

    of = (CheckpointOffered,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, CheckpointOffered) and seen.why_not:
            yield (
                f"generation {seen.generation} begins from the checkpoint of step {seen.step}:"
                f" {seen.why_not}"
            )


class ShardsOfOneHistory(Checker):
    """The shards of a checkpoint are those that were reported, and belong to one history.

    No shard belongs to a step that was rolled back meanwhile, or was removed.
    """

    of = (ManifestToWrite,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, ManifestToWrite) and not seen.matches_shards:
            yield f"the manifest of step {seen.step} names other shards than those on the disks"


class ManifestOnceAllShards(Checker):
    """When all shards of a step and a generation were written, one checkpoint is made of them.

    Shards of a step that was rolled back may still be reported. No checkpoint is made of them.
    """

    of = (ShardHeard, Planned, ManifestOrdered)

    def __init__(self) -> None:
        self._heard: dict[tuple[int, int], set[int]] = {}
        self._due_s: dict[int, float] = {}
        self._newest: dict[int, int] = {}  # step -> generation of the newest shard
        self._made: dict[int, int] = {}  # the same when a checkpoint was made of it
        self._backs: list[tuple[int, int]] = []  # a generation, and the step that it went back to

    def see(self, seen: Observation) -> Iterator[str]:
        for step in [step for step, due_s in self._due_s.items() if self.now_s > due_s]:
            del self._due_s[step]
            yield f"all shards of step {step} were written, but no checkpoint is made of them"
        # otherwise the same violation would be reported again
        if isinstance(seen, ShardHeard) and any(
            seen.generation < later and back < seen.step for later, back in self._backs
        ):
            return  # the step was rolled back
        if isinstance(seen, ShardHeard) and seen.generation > self._made.get(seen.step, -1):
            self._newest[seen.step] = max(seen.generation, self._newest.get(seen.step, -1))
            ranks = self._heard.setdefault((seen.step, seen.generation), set())
            comes_again = seen.rank in ranks
            ranks.add(seen.rank)
            if len(ranks) == seen.ranks and not comes_again:
                self._due_s[seen.step] = self.now_s
        elif isinstance(seen, ManifestOrdered):
            self._due_s.pop(seen.step, None)
            self._made[seen.step] = self._newest.get(seen.step, -1)
        elif isinstance(seen, Planned):
            self._heard.clear()  # earlier reports may be of steps that were rolled back
            back = min(seen.steps, default=0)
            self._backs = [one for one in self._backs if one[1] < back] + [(seen.generation, back)]


class LastGoodStays(Checker):
    """The newest good checkpoint is never removed."""

    of = (CheckpointsRemoved,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, CheckpointsRemoved) and seen.left < seen.good:
            yield (
                f"the checkpoints of steps {list(seen.steps)} are removed, but that of step"
                f" {seen.good} was the newest good one"
            )


class OldCheckpointsRemoved(Checker):
    """No more checkpoints stay than have to be kept, if the newest of them is good."""

    of = (CheckpointsRemoved,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, CheckpointsRemoved)
            and len(seen.stay) > limits.CHECKPOINTS_KEPT_COUNT
            and seen.left == seen.stay[-1]
        ):
            yield (
                f"the checkpoints of steps {list(seen.stay)} stay, but only"
                f" {limits.CHECKPOINTS_KEPT_COUNT} have to be kept"
            )


class FailedSaveEndsNoRun(Checker):
    """A run does not fail if nothing but saves have failed."""

    of = (SaveFailed, RunEnded)

    def __init__(self) -> None:
        self._failed: list[int] = []

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, SaveFailed):
            self._failed.append(seen.step)
        if (
            isinstance(seen, RunEnded)
            and self._failed
            and seen.state == "failed"
            and not seen.strikes
        ):
            yield f"only saves (of steps {self._failed}) failed, but so did the run: {seen.reason}"
