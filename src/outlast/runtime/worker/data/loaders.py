"""Where batches come from: an endless stream over epochs.

The stream can report its position, and can go back to a position bit for bit.

    source = open_source(loader, "loader")
    batch = source.next_batch()
    position = source.position()         # after the batch just given; plain data and tensors, for
                                         # `tree.encode`
    source.seek(position)                # the next batch is the one that followed

Three kinds of loader can do this. The first is a DataLoader over `StepSampler`. Its workers are fed
by an endless sampler, so they live through epochs. The second is a StatefulDataLoader of torchdata.
Its state is read after each batch that was taken, so batches that were fetched ahead are neither
lost nor repeated. The third is a function that draws a batch (drawn_batches.py).

Randomness in the data set, in collate_fn and in worker_init_fn must be the same after a seek, with
any number of workers. So the three host generators are seeded before each sample, from the
sampler's seed, the epoch and the sample's index. Without workers, the main process's random state
is restored afterwards. A data set with `__getitems__` is seeded once for the rank's batch. With a
StatefulDataLoader the seed comes from torch.initial_seed(), rank, epoch and batch (with workers:
sample).

Not promised: an IterableDataset that draws random numbers in workers of a StatefulDataLoader (its
own state_dict must contain its generator); transforms that draw on a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
import xxhash
from torch.utils.data import DataLoader, Dataset, IterableDataset

from outlast.errors import StateError
from outlast.model.limits import LOADER_POSITION_BYTES
from outlast.model.texts import cut_at_word
from outlast.runtime.worker.data.loader_deaths import open_watched
from outlast.runtime.worker.data.sampler import StepSampler, mix
from outlast.runtime.worker.tensors import random_state

_HINT = (
    "use DataLoader(dataset, batch_sampler=outlast.StepSampler(dataset, batch_size=...)), or"
    " torchdata's StatefulDataLoader"
)


class BatchSource(ABC):
    """One rank's batches.

    An error in fetching costs no batch: the next call fetches the same one again.
    """

    position_bytes = 0  # room that a position may need beyond what it needs now

    def __init__(self) -> None:
        self._iterator: Iterator[Any] | None = None
        # the random state as the last `next_batch` left it; None if it may have changed since
        self.random: random_state.RandomState | None = None

    @abstractmethod
    def bind(self, rank: int, world_size: int) -> None:
        """Use the rank's share of the batches, from the next seek or first batch on."""

    def next_batch(self) -> Any:
        """Return the next batch."""
        self.random = None
        try:
            return self._next()
        except BaseException:
            # a broken iterator has moved on; a new one starts at the batch that was not returned
            self.close()
            raise

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """Return the position after the batch that was returned last."""

    @abstractmethod
    def seek(self, position: Mapping[str, Any]) -> None:
        """Go to a position that `position` returned. Raises StateError if it is of another kind."""

    @abstractmethod
    def skip(self, batches: int) -> None:
        """Skip the first `batches` batches, if counting is enough for that."""

    @abstractmethod
    def _next(self) -> Any:
        """Return the next batch, or raise; `next_batch` closes the iterator after an error."""

    def close(self) -> None:
        """End the workers. The position is kept."""
        iterator, self._iterator = self._iterator, None
        # otherwise torch ends them only when the iterator is collected as garbage
        shut_down = getattr(iterator, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        with random_state.isolated(seed) as before:
            yield
        self.random = before


def open_source(loader: DataLoader[Any], name: str) -> BatchSource:
    """Return the source for a loader.

    Raises StateError, which names `name`, if the loader cannot go back to a batch.
    """
    shield_forks()
    stateful = getattr(sys.modules.get("torchdata.stateful_dataloader"), "StatefulDataLoader", None)
    is_stateful = stateful is not None and isinstance(loader, stateful)
    if type(loader).__iter__ not in (DataLoader.__iter__, getattr(stateful, "__iter__", None)):
        raise StateError(
            f"{name} is a {type(loader).__name__} with an __iter__ of its own: its batches cannot"
            " be given again",
            hint=_HINT,
        )
    if getattr(loader, "in_order", True) is False:
        raise StateError(
            f"{name} has in_order=False: its batches come in an order that cannot be repeated",
            hint="leave in_order=True",
        )
    if isinstance(loader.batch_sampler, StepSampler):
        return StepSource(loader, loader.batch_sampler)
    if is_stateful:
        return StatefulSource(loader)
    order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    inner = getattr(order, "sampler", order)
    raise StateError(
        f"{name} is a DataLoader over {type(inner).__name__}, which cannot go back to a batch",
        hint=_HINT,
    )


@functools.cache
def shield_forks() -> None:
    """Keep forked loader workers from collecting garbage that they inherited.

    A process group in that garbage would join threads that the fork does not have, and hang.
    """
    os.register_at_fork(after_in_child=gc.freeze)


class Order(Protocol):
    """An order of samples that depends on the batch's number alone, like that of StepSampler."""

    seed: int

    def bind(self, rank: int, world_size: int) -> None: ...
    def epoch_of(self, step: int) -> int: ...
    def indices(self, step: int) -> list[int]: ...


class StepSource(BatchSource):
    """Batches of a DataLoader over a StepSampler, or another such order.

    They come through a DataLoader of our own with the same settings.
    """

    def __init__(self, loader: DataLoader[Any], sampler: Order) -> None:
        super().__init__()
        self._loader = loader
        self._sampler = sampler
        self._keyed: _KeyedSampler = _KeyedSampler(sampler)
        self._mine: DataLoader[Any] | None = None
        self.step = 0

    def bind(self, rank: int, world_size: int) -> None:
        self._sampler.bind(rank, world_size)

    def position(self) -> dict[str, Any]:
        if isinstance(self._sampler, StepSampler):
            return {"step": self.step, "of": self._sampler.batch_size}
        return {"step": self.step}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Go to a position.

        For another global batch, it counts the samples that were given so far.
        """
        self.step = count_in(position, "step")
        if "of" in position and isinstance(self._sampler, StepSampler):
            size = count_in(position, "of")
            if size != self._sampler.batch_size:
                self.step = self._sampler.step_behind(self.step, size)
        if self._loader.persistent_workers:
            self._iterator = None  # the DataLoader keeps it with its workers, and resets it
        else:
            super().close()

    def skip(self, batches: int) -> None:
        self.seek({"step": batches})

    def close(self) -> None:
        if self._iterator is None and self._mine is not None:
            self._iterator = getattr(self._mine, "_iterator", None)
        super().close()
        self._mine = None

    def _next(self) -> Any:
        if self._iterator is None:
            self._iterator = self._open()
        if self._loader.num_workers:
            batch = next(self._iterator)
        else:
            with self._seeded(self._sampler.seed):
                batch = next(self._iterator)
        self.step += 1
        return batch

    def _open(self) -> Iterator[Any]:
        self._keyed.start = self.step
        with random_state.isolated(mix(self._sampler.seed)):
            self._mine = self._copy() if self._mine is None else self._mine
            return open_watched(self._mine)

    def _copy(self) -> DataLoader[Any]:
        theirs = self._loader
        generator = torch.Generator()
        generator.manual_seed(mix(self._sampler.seed) >> 1)  # the base of the workers' seeds
        more = {
            key: getattr(theirs, key) for key in ("pin_memory_device",) if getattr(theirs, key, "")
        }
        return DataLoader(
            _KeyedDataset(theirs.dataset, self._sampler.seed),
            batch_sampler=self._keyed,
            num_workers=theirs.num_workers,
            collate_fn=theirs.collate_fn,
            pin_memory=theirs.pin_memory,
            timeout=theirs.timeout,
            worker_init_fn=theirs.worker_init_fn,
            multiprocessing_context=theirs.multiprocessing_context,
            generator=generator,
            prefetch_factor=theirs.prefetch_factor,
            persistent_workers=theirs.persistent_workers,
            **more,
        )


class StatefulSource(BatchSource):
    """Batches of a StatefulDataLoader.

    Its workers start over at each epoch, also persistent ones: they carry the epoch's seed.
    """

    position_bytes = LOADER_POSITION_BYTES

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__()
        self._loader = loader
        self._epoch = 0
        self._batches = 0
        self._rank = 0
        self._base: int | None = None
        # the loader's state after the last batch; None: it was not read yet, or an epoch begins
        self._state: dict[str, Any] | None = None

    def bind(self, rank: int, world_size: int) -> None:
        self._rank = rank

    def position(self) -> dict[str, Any]:
        if self._state is None and self._batches and self._iterator is not None:
            # a data set may return its live dict
            self._state = copy.deepcopy(self._stateful().state_dict())
        return {
            "epoch": self._epoch,
            "batches": self._batches,
            "base": self._seed(),
            "state": self._state,
        }

    def seek(self, position: Mapping[str, Any]) -> None:
        self.close()
        self._epoch, self._batches, self._base = (
            count_in(position, "epoch"),
            count_in(position, "batches"),
            count_in(position, "base"),
        )
        self._state = position["state"]

    def skip(self, batches: int) -> None:
        """Do nothing: a script that resumes by itself has set the position of its loader."""

    def close(self) -> None:
        super().close()
        self._stateful()._iterator = None

    def _next(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = self._open()
            try:
                batch = self._draw(self._iterator)
            except StopIteration:
                self._end_epoch()
                continue
            self._batches += 1
            self._state = None
            return batch
        raise StateError(
            "the loader gave no batch in a whole epoch", hint="is the data set empty on this rank?"
        )

    def _end_epoch(self) -> None:
        self._batches, self._state = 0, None
        self.close()
        self._epoch += 1

    def _draw(self, iterator: Iterator[Any]) -> Any:
        # it is read before the next batch is fetched; after an error, the loader goes back to it
        self.position()
        if self._loader.num_workers:
            return next(iterator)
        with self._seeded(self._seed(self._epoch, self._batches)):
            return next(iterator)

    def _open(self) -> Iterator[Any]:
        loader = self._stateful()
        order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        for part in (order, getattr(order, "sampler", None), loader.dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self._epoch)
        if self._state is not None:
            loader.load_state_dict(self._state)
        with random_state.isolated(self._seed(self._epoch)), self._seeding_dataset():
            return open_watched(loader)

    @contextlib.contextmanager
    def _seeding_dataset(self) -> Iterator[None]:
        """Let workers get a data set that seeds each sample.

        The loader's attribute is restored afterwards, because it is the user's.
        """
        theirs = self._loader.dataset
        if self._loader.num_workers and not isinstance(theirs, IterableDataset):
            kind = (
                _StatefulSeedingDataset
                if hasattr(theirs, "state_dict") and hasattr(theirs, "load_state_dict")
                else _SeedingDataset
            )
            # DataLoader forbids plain assignment
            self._loader.__dict__["dataset"] = kind(theirs, self._seed(self._epoch))
        try:
            yield
        finally:
            self._loader.__dict__["dataset"] = theirs

    def _seed(self, *words: int) -> int:
        """Return the seed for these words; without words, the base of all seeds.

        The base is stored in the position, because a script that sets no seed has another one after
        a restart.
        """
        if self._base is None:
            self._base = mix(mix(torch.initial_seed()) ^ self._rank)
        out = self._base
        for word in words:
            out = mix(out ^ word)
        return out

    def _stateful(self) -> Any:
        return self._loader


class _KeyedSampler:
    """Yield batches of (epoch, index), from `start` on, without end."""

    def __init__(self, sampler: Order) -> None:
        self._sampler = sampler
        self.start = 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self._from(self.start)

    def _from(self, step: int) -> Iterator[list[tuple[int, int]]]:
        while True:
            epoch = self._sampler.epoch_of(step)
            yield [(epoch, index) for index in self._sampler.indices(step)]
            step += 1


class _SeedingDataset(Dataset[Any]):
    """The user's data set, with the host generators seeded before each sample."""

    def __init__(self, inner: Any, seed: int) -> None:
        self.__dict__.update(inner=inner, seed=mix(seed))

    def __getitem__(self, index: Any) -> Any:
        self._seed_for(index)
        return self.inner[index]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        if not callable(getattr(self.inner, "__getitems__", None)):
            return [self[index] for index in indices]
        self._seed_for(indices[0])
        out: list[Any] = self.inner.__getitems__(indices)
        return out

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the user's data set. A worker_init_fn looks for them here."""
        if name.startswith("__") or "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _seed_for(self, index: Any) -> None:
        random_state.seed_cpu(
            mix(
                self.seed
                ^ (
                    index
                    if isinstance(index, int)
                    else xxhash.xxh3_64_intdigest(repr(index).encode())
                )
            )
        )


class _StatefulSeedingDataset(_SeedingDataset):
    """The same for a data set with a state: StatefulDataLoader keeps that as well."""

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


class _KeyedDataset(_SeedingDataset):
    """A data set that takes (epoch, index), so that each epoch augments a sample differently."""

    def __getitem__(self, key: Any) -> Any:
        self._seed_for(key)
        return self.inner[key[1]]

    def __getitems__(self, keys: list[Any]) -> list[Any]:
        if not callable(getattr(self.inner, "__getitems__", None)):
            return [self[key] for key in keys]
        self._seed_for(keys[0])
        out: list[Any] = self.inner.__getitems__([index for _, index in keys])
        return out

    def _seed_for(self, key: Any) -> None:
        epoch, index = key
        random_state.seed_cpu(mix(mix(self.seed ^ epoch) ^ index))


def count_in(position: Mapping[str, Any], key: str) -> int:
    """Return the count that `position` has under `key`. Raises StateError if it has none."""
    value = position.get(key)
    if type(value) is not int or value < 0:
        said = cut_at_word(str(position), 80)
        hint = "it was saved with a loader of another kind"
        raise StateError(f"a loader's position without {key!r}: {said}", hint=hint)
    return value
