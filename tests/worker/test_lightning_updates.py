"""The batches of an update: their position, and that each comes in the order of the sampler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import outlast
from outlast.errors import UsageError
from outlast.runtime.worker.adapters.lightning.updates import UpdateCalendar, Updates, refuse_loader


def loader(**options: Any) -> DataLoader[Any]:
    """Return a loader for the second of two ranks: 11 of 22 samples, in 4 batches."""
    data = TensorDataset(torch.arange(22))
    sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=True, seed=3)
    return DataLoader(data, batch_size=3, sampler=sampler, **options)


def drawn(source: Updates, count: int) -> list[list[list[int]]]:
    return [[batch[0].tolist() for batch in source.next_batch()] for _ in range(count)]


def as_lightning_draws(batches: int, accumulate: int, epochs: int) -> list[list[list[int]]]:
    found = []
    mine = loader()
    for epoch in range(epochs):
        mine.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        here = [batch[0].tolist() for batch in mine][:batches]
        found += [here[first : first + accumulate] for first in range(0, batches, accumulate)]
    return found


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("batches", "accumulate"), [(4, 1), (4, 3), (3, 2), (4, 9)])
def test_updates_have_the_batches_of_lightnings_own_sampler(
    batches: int, accumulate: int, workers: int
) -> None:
    """Method: three epochs, also where an epoch or its last update is cut short."""
    expected = as_lightning_draws(batches, accumulate, epochs=3)
    source = Updates(loader(num_workers=workers), UpdateCalendar(batches, accumulate))
    assert drawn(source, len(expected)) == expected
    source.close()


def test_a_source_goes_on_from_any_position() -> None:
    expected = as_lightning_draws(4, 3, epochs=3)
    for behind in range(len(expected)):
        source = Updates(loader(), UpdateCalendar(4, 3))
        source.seek({"updates": behind})
        assert source.position() == {"updates": behind}
        assert drawn(source, len(expected) - behind) == expected[behind:]


def test_an_error_in_the_data_costs_no_batch() -> None:
    """Method: the second of three batches fails once. Then the update comes whole."""

    class Failing(TensorDataset):
        fails = True

        def __getitem__(self, index: Any) -> Any:
            if index == expected[0][1][0] and self.fails:
                Failing.fails = False
                raise OSError("a disk")
            return super().__getitem__(index)

    expected = as_lightning_draws(4, 3, epochs=1)
    data = Failing(torch.arange(22))
    sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=True, seed=3)
    source = Updates(DataLoader(data, batch_size=3, sampler=sampler), UpdateCalendar(4, 3))
    with pytest.raises(OSError, match="a disk"):
        source.next_batch()
    assert drawn(source, 2) == expected


def test_a_step_sampler_of_the_script_keeps_its_order() -> None:
    data = TensorDataset(torch.arange(24))
    sampler = outlast.StepSampler(data, batch_size=6, seed=5)
    source = Updates(DataLoader(data, batch_sampler=sampler), UpdateCalendar(3, 2))
    source.bind(1, 2)
    sampler.bind(1, 2)
    batches = [sampler.indices(step) for step in (0, 1, 2, 4, 5, 6)]
    assert drawn(source, 4) == [batches[:2], batches[2:3], batches[3:5], batches[5:]]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([1, 2], "a train_dataloader that is a list"),
        (loader(in_order=False), "in_order=False"),
        (DataLoader(TensorDataset(torch.arange(4)), shuffle=True), "RandomSampler"),
        (DataLoader(TensorDataset(torch.arange(4)), batch_size=None), "DataLoader over NoneType"),
    ],
)
def test_a_loader_that_cannot_go_back_is_refused(given: object, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        refuse_loader(given, rank=1, world_size=2)


def test_a_sampler_of_another_rank_is_refused() -> None:
    refuse_loader(loader(), rank=1, world_size=2)
    with pytest.raises(UsageError, match="rank 1 of 2"):
        refuse_loader(loader(), rank=0, world_size=2)
