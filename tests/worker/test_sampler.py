"""StepSampler: the order depends only on seed and step."""

from __future__ import annotations

import collections
import itertools
import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import StateError
from outlast.runtime.worker.data.sampler import StepSampler, mix, permute


@settings(max_examples=80, deadline=None)
@given(
    length=st.integers(1, 500),
    batch=st.integers(1, 40),
    world=st.integers(1, 8),
    seed=st.integers(0, 2**70),
    step=st.integers(0, 200),
    last=st.booleans(),
)
def test_the_union_over_ranks_is_the_same_batch_for_every_world_size(
    length: int, batch: int, world: int, seed: int, step: int, last: bool
) -> None:
    """The order is the same too: the slices of the ranks, joined in order, are what a single rank
    gets.
    """
    if length < batch and not last:
        return
    alone = StepSampler(length, batch, seed=seed, drop_last=not last)
    expected = alone.indices(step)
    union: list[int] = []
    for rank in range(world):
        sampler = StepSampler(length, batch, seed=seed, drop_last=not last)
        try:
            sampler.bind(rank, world)
        except StateError:
            assert min(batch, (length % batch or batch) if last else batch) < world
            return
        sampler.seek(step)
        mine = next(iter(sampler))
        assert mine
        union += mine
    assert union == expected


@dataclass
class Place:
    """What a sampler asks of a mesh: the place of one rank in the dimensions that split the
    data.
    """

    shape: tuple[int, ...]
    at: list[int] | None

    def get_coordinate(self) -> list[int] | None:
        return self.at


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3), (2, 1, 2)])
def test_a_mesh_splits_the_data_by_its_own_dimensions(shape: tuple[int, ...]) -> None:
    """The places of the mesh, in order, take the shares in order, whichever rank asks."""
    alone = StepSampler(100, 12, seed=2)
    shares: list[int] = []
    for at in itertools.product(*map(range, shape)):
        sampler = StepSampler(100, 12, seed=2, mesh=Place(shape, list(at)))
        sampler.bind(7, 64)
        assert len(sampler.indices(5)) == 12 // math.prod(shape)
        shares += sampler.indices(5)
    assert shares == alone.indices(5)


def test_a_rank_outside_the_mesh_is_told_which_mesh_to_give() -> None:
    sampler = StepSampler(100, 12, mesh=Place((2,), None))
    with pytest.raises(StateError, match="not in the mesh") as refused:
        sampler.bind(0, 4)
    assert "run.device_mesh" in (refused.value.hint or "")


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_every_epoch_is_a_permutation(length: int, key: int) -> None:
    out = permute(np.arange(length, dtype=np.uint64), length, key=key)
    assert sorted(out.tolist()) == list(range(length))


def test_an_epoch_holds_every_sample_once_and_epochs_differ() -> None:
    sampler = StepSampler(103, 10, seed=4, drop_last=False)
    epochs = [list(sampler) for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [11, 11, 11]
    flat = [list(itertools.chain(*epoch)) for epoch in epochs]
    assert all(sorted(order) == list(range(103)) for order in flat)
    assert flat[0] != flat[1] != flat[2]
    assert list(StepSampler(103, 10, seed=5, drop_last=False)) != epochs[0]


def test_the_order_of_a_seed_never_changes() -> None:
    """These are golden numbers: a checkpoint made by one version must go on with the same batches
    under another.
    """
    sampler = StepSampler(1_000_000, 6, seed=7)
    assert [sampler.indices(step) for step in (0, 1, 170_000)] == GOLDEN


def test_the_order_is_not_biased() -> None:
    """Method: chi-square over all orders of four samples, and over the position of one sample among
    a hundred. A correct sampler exceeds the bounds once in 10^6 draws.
    """
    orders = collections.Counter(
        tuple(permute(np.arange(4, dtype=np.uint64), 4, key=mix(key)).tolist())
        for key in range(2_400)
    )
    assert sum((orders[order] - 100) ** 2 / 100 for order in itertools.permutations(range(4))) < 70
    places = collections.Counter(
        int(permute(np.array([17], dtype=np.uint64), 100, key=mix(key))[0]) for key in range(5_000)
    )
    assert sum((places[place] - 50) ** 2 / 50 for place in range(100)) < 180


def test_a_seek_gives_the_same_batches_as_running_there() -> None:
    sampler = StepSampler(50, 8, seed=1)
    running = list(itertools.chain(*(list(sampler) for _ in range(3))))
    for step in (0, 5, 6, 11, 17):
        other = StepSampler(50, 8, seed=1)
        other.seek(step)
        assert next(iter(other)) == running[step]
        assert other.indices(step) == running[step]


@given(
    length=st.integers(1, 100),
    before=st.integers(1, 12),
    after=st.integers(1, 12),
    steps=st.integers(0, 60),
    last=st.booleans(),
)
def test_another_global_batch_goes_on_after_the_samples_already_given(
    length: int, before: int, after: int, steps: int, last: bool
) -> None:
    """No sample of the epoch comes again, and less than one new batch is left out."""
    if last and length < max(before, after):
        return  # that makes no batch
    old = StepSampler(length, before, drop_last=last)
    new = StepSampler(length, after, drop_last=last)
    epoch = old.epoch_of(steps)
    given_before = sum(len(old.global_indices(step)) for step in range(epoch * len(old), steps))
    begin = new.step_behind(steps, before)
    assert epoch <= new.epoch_of(begin) <= epoch + 1
    passed = sum(len(new.global_indices(step)) for step in range(epoch * len(new), begin))
    assert passed < given_before + after
    assert passed >= given_before or new.epoch_of(begin) > epoch
    assert new.step_behind(steps, after) == steps, "the same size is the same step"


def test_without_shuffle_the_order_is_that_of_the_data() -> None:
    sampler = StepSampler(range(10), 4, shuffle=False, drop_last=False)
    assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(sampler) == 3


def test_sizes_that_cannot_work_are_refused_with_a_hint() -> None:
    with pytest.raises(StateError, match="hint"):
        StepSampler(5, 8)
    with pytest.raises(StateError, match="2 has no sample for each of 4"):
        StepSampler(10, 2).bind(0, 4)
    with pytest.raises(StateError, match="drop_last=True"):
        StepSampler(9, 4, drop_last=False).bind(0, 2)


def test_a_sampler_can_be_sent_to_a_process() -> None:
    sampler = StepSampler(50, 8, seed=1)
    sampler.bind(1, 2)
    assert pickle.loads(pickle.dumps(sampler)).indices(3) == sampler.indices(3)


GOLDEN = [
    [505504, 466553, 974314, 234998, 420236, 817621],
    [386007, 276778, 856333, 857547, 928354, 444213],
    [813535, 785027, 697815, 524209, 510109, 939242],
]
