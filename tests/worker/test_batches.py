"""The current step keeps its batches until it is committed, and an error in fetching loses no
batch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import outlast
from outlast.runtime.worker.steps.batches import Batches
from outlast.runtime.worker.steps.step import Step


class Flaky(Dataset[torch.Tensor]):
    """A data set that fails once, at a chosen sample."""

    def __init__(self) -> None:
        self.fails_at = -1

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.fails_at:
            self.fails_at = -1
            raise OSError("disk")
        return torch.tensor(index)


class Nobody:
    """An owner of steps; these steps are never entered."""

    def enter(self, step: Step) -> None: ...
    def leave(self, step: Step, error: BaseException | None) -> bool:
        return False

    def log(self, step: Step, values: dict[str, Any], reduce: str | None) -> None: ...


def _batches(data: Flaky) -> Batches:
    loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=2, shuffle=False))
    return Batches(Nobody(), outlast.State(loader=loader).source, accumulate=3)


def _held(batches: Batches) -> list[list[int]]:
    assert batches.held is not None
    return [batch.tolist() for batch in batches.held.batches]


def test_an_error_in_fetching_costs_no_batch() -> None:
    """Method: the data set fails in the second of three micro-batches. The next call returns what
    an undisturbed one would.
    """
    data = Flaky()
    batches = _batches(data)
    data.fails_at = 2
    with pytest.raises(OSError, match="disk"):
        batches.fetch(1)
    assert batches.held is None
    batches.fetch(1)
    assert _held(batches) == [[0, 1], [2, 3], [4, 5]]


def test_an_interrupted_step_keeps_its_batches_and_others_are_fetched() -> None:
    batches = _batches(Flaky())
    assert not batches.hold_again(1)
    batches.fetch(1)
    first = batches.held
    assert first is not None
    first.entered = first.left = True
    assert batches.hold_again(1)
    assert batches.held is first
    assert (first.attempt, first.entered, first.left) == (1, False, False)
    assert not batches.hold_again(2), "the run went on without this rank's attempt"
    batches.let_go()
    assert not batches.hold_again(1)
    batches.fetch(2)
    assert _held(batches) == [[6, 7], [8, 9], [10, 11]]


def test_a_step_without_a_loader_has_no_batches() -> None:
    batches = Batches(Nobody(), None, accumulate=1)
    batches.fetch(1)
    assert not batches.loads
    assert _held(batches) == []
