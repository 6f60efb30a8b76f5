"""Batches come again bit for bit: after a seek, after an error, with and without workers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from outlast.errors import StateError
from outlast.runtime.worker.data.loaders import BatchSource, open_source
from outlast.runtime.worker.data.sampler import StepSampler
from outlast.runtime.worker.tensors import random_state, tree

STEPS = 8  # each epoch has 3 batches: these are two epochs and a part of the third


class Augmented(Dataset[Any]):
    """A data set whose samples carry draws of all three generators, as random augmentation does."""

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "noise": torch.rand(2),
            "numpy": np.random.normal(),
            "python": random.random(),
        }


class Flaky(Augmented):
    failures = 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5 and Flaky.failures:
            Flaky.failures -= 1
            raise OSError("disk")
        return super().__getitem__(index)


class Stream(IterableDataset[int]):
    """A data set that reports its own position, as torchdata asks of iterable data sets."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 13:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return self.__dict__

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Make a batch with a draw of its own, as mixup does."""
    batch: dict[str, torch.Tensor] = torch.utils.data.default_collate(samples)
    return batch | {"mix": torch.rand(1)}


def plain(workers: int = 0, *, persistent: bool = False, data: Any = None) -> DataLoader[Any]:
    data = Augmented() if data is None else data
    sampler = StepSampler(data, 4, seed=3)
    return DataLoader(
        data,
        batch_sampler=sampler,
        num_workers=workers,
        persistent_workers=persistent,
        collate_fn=collate,
    )


def stateful(workers: int = 0, *, persistent: bool = False) -> DataLoader[Any]:
    return StatefulDataLoader(
        Augmented(),
        batch_size=4,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=persistent,
        collate_fn=collate,
    )


def distributed(workers: int = 0) -> DataLoader[Any]:
    sampler = DistributedSampler(Augmented(), num_replicas=2, rank=1, seed=2)
    return StatefulDataLoader(
        Augmented(), batch_size=2, sampler=sampler, num_workers=workers, collate_fn=collate
    )


def iterable(workers: int = 0) -> DataLoader[Any]:
    return StatefulDataLoader(Stream(), batch_size=4, num_workers=workers)


def seeded(loader: DataLoader[Any]) -> BatchSource:
    """Open a loader as a restarted script does, after setting the user's seed."""
    torch.manual_seed(11)
    return open_source(loader, "loader")


def run(source: BatchSource, count: int) -> list[Any]:
    return [source.next_batch() for _ in range(count)]


def same(left: Any, right: Any) -> bool:
    return bool(tree.encode(left, "x").text == tree.encode(right, "x").text) and all(
        torch.equal(a, b)
        for a, b in zip(
            tree.encode(left, "x").tensors.values(),
            tree.encode(right, "x").tensors.values(),
            strict=True,
        )
    )


def stored(position: dict[str, Any]) -> Any:
    encoded = tree.encode(position, "loader")
    return tree.decode(
        encoded.text, {name: tensor.clone() for name, tensor in encoded.tensors.items()}
    )


MAKERS = {
    "plain": lambda: plain(),
    "plain-2-workers": lambda: plain(2),
    "plain-2-persistent": lambda: plain(2, persistent=True),
    "stateful": lambda: stateful(),
    "stateful-2-workers": lambda: stateful(2),
    "stateful-2-persistent": lambda: stateful(2, persistent=True),
    "distributed": lambda: distributed(),
    "distributed-1-worker": lambda: distributed(1),
    "iterable": lambda: iterable(),
}


def test_a_position_of_another_global_batch_counts_its_samples() -> None:
    """Three batches of 4 samples are two of 6. A position written by an older outlast counts
    batches.
    """
    data = TensorDataset(torch.arange(24))
    before, after = (
        open_source(DataLoader(data, batch_sampler=StepSampler(data, size)), "loader")
        for size in (4, 6)
    )
    run(before, 3)
    after.seek(stored(before.position()))
    assert after.position() == {"step": 2, "of": 6}
    after.seek({"step": 3})
    assert after.position() == {"step": 3, "of": 6}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_seek_gives_the_same_batches_and_moves_no_random_state(kind: str) -> None:
    """Method: go on and record positions. Then, in a new loader with another random state, seek to
    each kind of place: the start, the middle, and the end of an epoch.
    """
    source = seeded(MAKERS[kind]())
    before = random_state.capture()
    positions, batches = [stored(source.position())], []
    for _ in range(STEPS):
        batches.append(source.next_batch())
        positions.append(stored(source.position()))
    assert not random_state.moved_since(before)
    source.close()
    other = open_source(MAKERS[kind](), "loader")
    torch.rand(5), random.random(), np.random.rand()
    for at in (3, 1, 6):
        other.seek(positions[at])
        assert same(run(other, 2), batches[at : at + 2]), f"{kind} after a seek to {at}"
    other.close()
    assert not multiprocessing.active_children(), "a loader's worker outlived close()"


@pytest.mark.parametrize("kind", ["plain", "plain-2-workers", "stateful", "stateful-2-workers"])
def test_augmentation_differs_between_epochs_and_samples(kind: str) -> None:
    source = seeded(MAKERS[kind]())
    noise = torch.cat([batch["noise"] for batch in run(source, STEPS)])
    source.close()
    assert len(noise.unique(dim=0)) == len(noise)


def test_workers_change_no_batch() -> None:
    """The batches of a plain loader depend on seed, epoch and sample, not on how many processes
    make them.
    """
    alone, helped = open_source(plain(), "loader"), open_source(plain(2), "loader")
    assert same(run(alone, STEPS), run(helped, STEPS))
    helped.close()


def test_samples_are_augmented_alike_for_every_world_size() -> None:
    whole = open_source(plain(), "loader").next_batch()
    halves = []
    for rank in range(2):
        source = open_source(plain(), "loader")
        source.bind(rank, 2)
        halves.append(source.next_batch())
    for key in ("index", "noise", "numpy", "python"):
        assert torch.equal(torch.cat([half[key] for half in halves]), whole[key])


@pytest.mark.parametrize(
    "make",
    [plain, lambda data: StatefulDataLoader(data, batch_size=4, collate_fn=collate)],
    ids=["plain", "stateful"],
)
def test_an_error_while_fetching_loses_no_batch(make: Any) -> None:
    Flaky.failures = 0
    expected = run(seeded(make(data=Flaky()) if make is plain else make(Flaky())), 4)
    Flaky.failures = 1
    source = seeded(make(data=Flaky()) if make is plain else make(Flaky()))
    got: list[Any] = []
    errors = 0
    while len(got) < 4:
        try:
            got.append(source.next_batch())
        except OSError:
            errors += 1
    assert errors == 1
    assert same(got, expected)


def test_the_loader_object_stays_the_users() -> None:
    """The data set that seeds the workers is used by outlast only. The user's len(), dataset and
    iteration stay as they were.
    """
    loader = stateful(1)
    data = loader.dataset
    source = open_source(loader, "loader")
    source.next_batch()
    assert loader.dataset is data
    source.close()
    mine = plain()
    open_source(mine, "loader").next_batch()
    assert len(mine) == 3
    assert [len(batch["index"]) for batch in mine] == [4, 4, 4]


def test_a_data_set_that_fetches_whole_batches_is_seeded_once_for_each() -> None:
    loader = plain(data=Subset(Augmented(), range(13)))
    first = run(open_source(loader, "loader"), 3)
    source = open_source(loader, "loader")
    source.seek({"step": 1})
    assert same(run(source, 2), first[1:])


class OwnLoop(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (DataLoader(TensorDataset(torch.ones(8)), batch_size=2, shuffle=True), "RandomSampler"),
        (DataLoader(TensorDataset(torch.ones(8)), batch_size=2), "SequentialSampler"),
        (DataLoader(Stream(), batch_size=2), "cannot go back"),
        (OwnLoop(TensorDataset(torch.ones(8))), "__iter__ of its own"),
    ],
    ids=["shuffled", "sequential", "iterable", "own-loop"],
)
def test_a_loader_that_cannot_go_back_is_refused_with_what_to_use(
    loader: DataLoader[Any], words: str
) -> None:
    with pytest.raises(StateError, match=words) as error:
        open_source(loader, "train")
    assert "train" in str(error.value)
    assert "StepSampler" in str(error.value)


def test_an_empty_loader_and_a_foreign_position_are_errors() -> None:
    with pytest.raises(StateError, match="no batch"):
        seeded(StatefulDataLoader(Augmented(), batch_size=20, drop_last=True)).next_batch()
    with pytest.raises(StateError, match="another kind"):
        open_source(plain(), "loader").seek({"epoch": 1})


def test_a_loader_worker_never_collects_its_parents_process_groups(
    tmp_path: Any,
) -> None:
    """Method: a gloo group is in a reference cycle, and a forked child collects garbage.

    Without precautions the child waits for ever for threads that it does not have.
    """
    open_source(plain(), "loader")
    gc.collect()
    gc.disable()
    try:
        group = dist.ProcessGroupGloo(dist.FileStore(str(tmp_path / "store"), 1), 0, 1)  # type: ignore[call-arg]
        cycle: list[Any] = [group]
        cycle.append(cycle)
        del group, cycle
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            gc.collect()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        gc.enable()
        gc.collect()
