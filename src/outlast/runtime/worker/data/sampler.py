"""A sampler whose order depends only on the seed and the step.

    sampler = outlast.StepSampler(dataset, batch_size=64)
    loader = DataLoader(dataset, batch_sampler=sampler)

The order does not depend on the world size, nor on what was drawn before. Step k (counted from 0)
takes batch k mod E of epoch k div E, where E batches make an epoch. The order of an epoch is a
keyed permutation. It is computed for the indices that are asked for: a seek costs nothing, and no
list of all indices is ever made.

The permutation is a Feistel network over a grid of at least `length` cells. An index outside of the
range is sent through again (cycle walking: Black and Rogaway, CT-RSA 2002). Its round function is
the finalizer of splitmix64. It shuffles well; it is not cryptography.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from typing import Protocol

import numpy as np

from outlast.errors import StateError

# 6 rounds leave a bias that a chi-square test finds over 5 samples, and 10 leave almost none; this
# matters only for tiny data sets
_ROUNDS = 12
# how many indices are computed at once; NumPy's calls take as long for a single batch
_AHEAD = 1024
_MASK = (1 << 64) - 1
_Words = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]


class SamplerMesh(Protocol):
    """The part of torch's DeviceMesh that is used here."""

    @property
    def shape(self) -> Sequence[int]: ...
    def get_coordinate(self) -> Sequence[int] | None: ...


def share_in(mesh: SamplerMesh) -> tuple[int, int]:
    """Return (r, n): this rank takes share r of n, where the dimensions of `mesh` split the data.

    Ranks that differ only in other dimensions of the whole mesh take the same share. It raises
    StateError if this rank is not in the mesh.
    """
    place = mesh.get_coordinate()
    if place is None:
        raise StateError(
            "this rank is not in the mesh that splits the data",
            hint='make the mesh of all ranks by run.device_mesh(...), and give mesh["data"]',
        )
    shape = tuple(mesh.shape)
    return int(np.ravel_multi_index(tuple(place), shape)), math.prod(shape)


class StepSampler:
    """A batch sampler that yields this rank's indices of each global batch.

        sampler = outlast.StepSampler(dataset, batch_size=64, seed=1)
        loader = DataLoader(dataset, batch_sampler=sampler)
        state = run.state(model=model, optimizer=optimizer, loader=loader)

    The order depends only on `seed` and the step. So another number of ranks, or a restart, sees
    the same samples in the same global batches.

    data         the dataset, or the number of its samples
    batch_size   samples in the global batch, over all ranks
    seed         chooses the order; each epoch has its own
    shuffle      False: the samples come in their own order
    drop_last    True: leave out the samples that do not fill a batch at the end of an epoch
    mesh         the dimensions of a device mesh that split the data; None: all ranks do

    Under tensor, sequence or pipeline parallelism several ranks work on the same samples. Say which
    dimensions split the data, and the other ranks of a group get the same batch:

        mesh = run.device_mesh((2, 2), ("data", "tensor"))
        sampler = outlast.StepSampler(dataset, batch_size=64, mesh=mesh["data"])

    It is made without a rank, and acts as rank 0 of 1 until `bind`; `run.steps` calls that. Each
    `iter()` goes from the position to the end of its epoch, and moves the position to the next
    epoch. A script that iterates over its loader once per epoch therefore sees each epoch in its
    own order. `seek` moves the position.

    The global batch is cut into n contiguous slices, and rank r of n takes slice r. If n does not
    divide the batch size, the first ranks take one sample more. Then the mean of the ranks' means
    is not the mean of the batch.

    It raises StateError if the samples do not make one batch.
    """

    def __init__(
        self,
        data: int | Sized,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        mesh: SamplerMesh | None = None,
    ) -> None:
        self.length = data if isinstance(data, int) else len(data)
        self.batch_size, self.seed, self.shuffle, self.drop_last = (
            batch_size,
            seed,
            shuffle,
            drop_last,
        )
        self.rank, self.world_size = 0, 1
        self._mesh = mesh
        self._next = 0
        # epoch, first position, indices from there on
        self._ahead: tuple[int, int, list[int]] = (-1, 0, [])
        if batch_size < 1 or self.length < 1 or len(self) < 1:
            hint = "batch_size is the global batch; use a smaller one, or drop_last=False"
            raise StateError(
                f"StepSampler: {self.length} samples make no batch of {batch_size}", hint=hint
            )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._batches_of(self.batch_size)

    def _batches_of(self, batch_size: int) -> int:
        """Return how many batches of such a size an epoch has."""
        return self.length // batch_size if self.drop_last else math.ceil(self.length / batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        start = self._next
        end = (self.epoch_of(start) + 1) * len(self)
        self._next = end
        return (self.indices(step) for step in range(start, end))

    def bind(self, rank: int, world_size: int) -> None:
        """From the next `iter()` on, let it yield the slices of `rank` out of `world_size`.

        A sampler with a mesh takes both from the mesh. Raises StateError if some batch has fewer
        samples than ranks.
        """
        if self._mesh is not None:
            rank, world_size = share_in(self._mesh)
        rest = 0 if self.drop_last else self.length % self.batch_size
        smallest = rest or self.batch_size
        if smallest < world_size:
            raise StateError(
                f"StepSampler: a batch of {smallest} has no sample for each of {world_size} ranks",
                hint="batch_size is the global batch: make it a multiple of the ranks"
                + (", or use drop_last=True" if rest else ""),
            )
        self.rank, self.world_size = rank, world_size

    def seek(self, step: int) -> None:
        """Let the next `iter()` begin with the batch of `step`, which counts from 0."""
        self._next = step

    def step_behind(self, steps: int, batch_size: int) -> int:
        """Return the step that goes on after the first `steps` batches of another size.

        No sample comes twice in that epoch. If what was given is not a whole number of batches of
        this size, the samples up to the next whole one are left out.
        """
        epoch, batch = divmod(steps, max(1, self._batches_of(batch_size)))
        here = math.ceil(batch * batch_size / self.batch_size)
        return epoch * len(self) + min(here, len(self))

    def epoch_of(self, step: int) -> int:
        """Return the epoch of `step`. Both count from 0."""
        return step // len(self)

    def indices(self, step: int) -> list[int]:
        """Return this rank's indices of the batch of `step`, which counts from 0."""
        batch = self.global_indices(step)
        share, more = divmod(len(batch), self.world_size)
        start = self.rank * share + min(self.rank, more)
        return batch[start : start + share + (self.rank < more)]

    def global_indices(self, step: int) -> list[int]:
        """Return the indices of all ranks in the batch of `step`, in order."""
        epoch, batch = divmod(step, len(self))
        start = batch * self.batch_size
        stop = min(start + self.batch_size, self.length)
        if not self.shuffle:
            return list(range(start, stop))
        known, first, ahead = self._ahead
        if known != epoch or not first <= start <= stop <= first + len(ahead):
            known, first, ahead = self._ahead = (
                epoch,
                start,
                self._permuted(epoch, start, min(self.length, max(stop, start + _AHEAD))),
            )
        return ahead[start - first : stop - first]

    def _permuted(self, epoch: int, start: int, stop: int) -> list[int]:
        indices: list[int] = permute(
            np.arange(start, stop, dtype=np.uint64), self.length, key=mix(mix(self.seed) ^ epoch)
        ).tolist()
        return indices


def permute(positions: _Words, length: int, *, key: int) -> _Words:
    """Return the values at `positions` of a permutation of range(length), chosen by `key` (64
    bits).

    It is a pure function of its arguments, and its results never change between versions.
    """
    left_size = math.isqrt(length - 1) + 1
    right_size = -(-length // left_size)
    keys = [np.uint64(mix(key + round_)) for round_ in range(1, _ROUNDS + 1)]
    out = positions.copy()
    waiting = np.arange(len(out))
    while len(waiting):
        out[waiting] = _feistel(out[waiting], np.uint64(left_size), np.uint64(right_size), keys)
        waiting = waiting[out[waiting] >= length]
    return out


def mix(word: int) -> int:
    """Return splitmix64's next output from the state `word`, of which 64 bits are used."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def _feistel(
    cells: _Words, left_size: np.uint64, right_size: np.uint64, keys: list[np.uint64]
) -> _Words:
    """Send `cells` once through the network over a grid of left_size x right_size cells.

    Each round adds a function of one coordinate to the other.
    """
    left, right = cells // right_size, cells % right_size
    for number, key in enumerate(keys):
        if number % 2:
            right = (right + _mix_all(left ^ key) % right_size) % right_size
        else:
            left = (left + _mix_all(right ^ key) % left_size) % left_size
    return left * right_size + right


def _mix_all(words: _Words) -> _Words:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
