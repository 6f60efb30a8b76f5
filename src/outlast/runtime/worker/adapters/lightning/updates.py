"""Which batches an update has, and where the batches of each update come from.

Symbols    B    batches in an epoch, on each rank
           a    batches in an update (accumulate_grad_batches); the last update of an epoch takes
                the remaining ones
           U    updates in an epoch: ceil(B / a)

Update k, counted from 0, is update u = k mod U of epoch e = k div U. Its batches are those from
u * a up to min((u + 1) * a, B) of that epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from outlast.runtime.worker.adapters.lightning.not_done import not_done
from outlast.runtime.worker.data.loaders import BatchSource, StepSource, count_in, shield_forks
from outlast.runtime.worker.data.sampler import StepSampler


@dataclass(frozen=True, slots=True)
class UpdatePlace:
    """The place of an update in the training.

    epoch    the epoch of the update, counted from 0
    update   its number in its epoch, counted from 0
    batch    the number of its first batch in the epoch, counted from 0
    count    how many batches it has
    """

    epoch: int
    update: int
    batch: int
    count: int


@dataclass(frozen=True, slots=True)
class UpdateCalendar:
    """Maps the number of an update to its place.

    batches      B
    accumulate   a
    """

    batches: int
    accumulate: int

    @property
    def updates(self) -> int:
        """Return the number of updates in an epoch."""
        return math.ceil(self.batches / self.accumulate)

    def place(self, behind: int) -> UpdatePlace:
        """Return the place of the update that follows the first `behind` updates."""
        epoch, update = divmod(behind, self.updates)
        first = update * self.accumulate
        return UpdatePlace(epoch, update, first, min(self.accumulate, self.batches - first))

    def batches_behind(self, updates: int) -> int:
        """Return how many batches the first `updates` updates have."""
        place = self.place(updates)
        return place.epoch * self.batches + place.batch


class EpochOrder:
    """The order of samples that a loader's own sampler gives, for any batch of any epoch.

    It is used where StepSource expects a StepSampler. The sampler is one of torch that depends on
    its seed and on the epoch alone. So the samples of a batch are those of plain Lightning.
    """

    def __init__(self, loader: DataLoader[Any], batches: int) -> None:
        self._sampler, self._batches = loader.batch_sampler, batches
        self._epoch: tuple[int, list[list[int]]] = (-1, [])
        inner: Any = getattr(self._sampler, "sampler", self._sampler)
        self._set_epoch = getattr(inner, "set_epoch", None)
        self.seed: int = inner.seed

    def bind(self, rank: int, world_size: int) -> None:
        """Take the rank's share. Lightning has created the DistributedSampler with it."""
        if isinstance(self._sampler, StepSampler):
            self._sampler.bind(rank, world_size)

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a batch that counts from 0 over all epochs."""
        return step // self._batches

    def indices(self, step: int) -> list[int]:
        """Return this rank's samples of that batch."""
        epoch, batch = divmod(step, self._batches)
        if isinstance(self._sampler, StepSampler):
            return self._sampler.indices(epoch * len(self._sampler) + batch)
        if self._epoch[0] != epoch:
            assert self._set_epoch is not None and self._sampler is not None
            self._set_epoch(epoch)
            self._epoch = (epoch, [list(one) for one in self._sampler])
        return self._epoch[1][batch]


class Updates(BatchSource):
    """The batches of one update after the other, each a list. `run.state` takes it as a loader."""

    def __init__(self, loader: DataLoader[Any], calendar: UpdateCalendar) -> None:
        super().__init__()
        shield_forks()
        self._calendar = calendar
        self._batches = StepSource(loader, EpochOrder(loader, calendar.batches))
        self._given = 0
        # batches of the next update so far; an error in fetching loses none of them
        self._drawn: list[Any] = []

    def bind(self, rank: int, world_size: int) -> None:
        self._batches.bind(rank, world_size)

    def position(self) -> dict[str, Any]:
        return {"updates": self._given}

    def seek(self, position: Mapping[str, Any]) -> None:
        self._given = count_in(position, "updates")
        self._drawn.clear()
        self._batches.seek({"step": self._calendar.batches_behind(self._given)})

    def skip(self, batches: int) -> None:
        """Skip the first `batches` updates: to the loop around them, an update is one batch."""
        self.seek({"updates": batches})

    def close(self) -> None:
        self._batches.close()

    def _next(self) -> list[Any]:
        while len(self._drawn) < self._calendar.place(self._given).count:
            self._drawn.append(self._batches.next_batch())
        self.random = self._batches.random
        self._given += 1
        given, self._drawn = self._drawn, []
        return given


def refuse_loader(loader: object, *, rank: int, world_size: int) -> None:
    """Raise UsageError for a loader whose batches cannot be given again.

    `loader` is what Lightning has made of the script's loader, with its DistributedSampler.
    """
    sampler: Any = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    ours = isinstance(batch_sampler, StepSampler)
    hint = "give one DataLoader over a data set with a length, and shuffle=True or False"
    if not isinstance(loader, DataLoader):
        what = f"a train_dataloader that is a {type(loader).__name__}"
    elif type(loader).__iter__ is not DataLoader.__iter__:
        what = f"a {type(loader).__name__} with an __iter__ of its own"
    elif getattr(loader, "in_order", True) is False:
        what, hint = "a DataLoader with in_order=False", "leave in_order=True"
    elif not ours and type(batch_sampler) is not BatchSampler:
        what = f"a DataLoader over {type(batch_sampler).__name__}"
    elif not ours and type(sampler) is not DistributedSampler:
        wrapped = getattr(getattr(sampler, "dataset", None), "_sampler", sampler)
        what = f"a DataLoader over {type(wrapped).__name__}, whose order it cannot repeat"
        if isinstance(wrapped, (RandomSampler, SequentialSampler)):
            hint = "leave use_distributed_sampler=True"
    elif not ours and (sampler.rank, sampler.num_replicas) != (rank, world_size):
        what = f"a DistributedSampler for rank {sampler.rank} of {sampler.num_replicas}"
        hint = f"this is rank {rank} of {world_size}: leave the sampler to Lightning"
    else:
        return
    raise not_done(what, hint)
