"""Batches drawn by the script's own function: a seek gives the same batches again, with and without
prefetch.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from outlast.errors import StateError
from outlast.runtime.worker.data.drawn_batches import DrawnBatches
from outlast.runtime.worker.run_state.state import State


def draw() -> list[float]:
    return [torch.rand(1).item(), float(np.random.normal()), random.random()]


def made(**more: Any) -> DrawnBatches:
    torch.manual_seed(3)
    return DrawnBatches(draw, **more)


def test_a_batch_is_drawn_again_from_its_position() -> None:
    """Method: a second process that seeks to the position has the batches that the first one had
    from there on.
    """
    first = made()
    batches = [first.next_batch() for _ in range(6)]
    second = made()
    for _ in range(3):
        second.next_batch()
    torch.manual_seed(99)  # the seed is part of the position
    third = DrawnBatches(draw)
    third.seek(second.position())
    assert [third.next_batch() for _ in range(3)] == batches[3:]
    assert len({tuple(batch) for batch in batches}) == 6


def test_a_prefetch_changes_no_batch_and_no_position() -> None:
    """The position counts the batches that were given out. A batch that was drawn ahead is drawn
    again.
    """
    calm, ahead = made(), made()
    batches = [calm.next_batch() for _ in range(3)]
    for number in range(3):
        ahead.prefetch()
        ahead.prefetch()
        assert ahead.position()["given"] == number
        assert ahead.next_batch() == batches[number]


class Second:
    """A mesh of two shares, of which this rank takes the second."""

    shape = (2,)

    def get_coordinate(self) -> list[int]:
        return [1]


def test_ranks_with_one_place_in_the_mesh_draw_the_same_batches() -> None:
    expected = made()
    expected.bind(1, 2)
    batches = [expected.next_batch() for _ in range(3)]
    for rank in (2, 3):
        one = made(mesh=Second())
        one.bind(rank, 4)
        assert [one.next_batch() for _ in range(3)] == batches


def test_a_draw_leaves_the_scripts_random_state_alone() -> None:
    source = made()
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    source.next_batch()
    source.prefetch()
    assert torch.equal(torch.rand(2), expected)


def test_ranks_draw_different_batches_also_from_one_seed() -> None:
    zero, one = made(), made()
    zero.bind(0, 2)
    one.bind(1, 2)
    assert zero.next_batch() != one.next_batch()


def test_what_was_drawn_ahead_for_another_rank_is_dropped() -> None:
    """A hot spare rehearses a step before it has its rank."""
    spare, rank = made(), made()
    spare.prefetch()
    spare.bind(1, 2)
    rank.bind(1, 2)
    assert spare.next_batch() == rank.next_batch()


def test_an_error_in_the_function_costs_no_batch() -> None:
    failures = [OSError("disk")]

    def flaky() -> list[float]:
        if failures:
            raise failures.pop()
        return draw()

    torch.manual_seed(3)
    source = DrawnBatches(flaky)
    with pytest.raises(OSError, match="disk"):
        source.next_batch()
    assert source.next_batch() == made().next_batch()


def test_a_numbered_function_is_given_the_number_of_its_batch() -> None:
    source = DrawnBatches(lambda number: number, numbered=True)
    assert source.next_batch() == 0
    source.prefetch()
    assert source.next_batch() == 1
    source.seek({"given": 7, "base": 1})
    assert source.next_batch() == 7


def test_a_prefetch_that_moves_kept_state_is_refused_by_name() -> None:
    """A generator of the script would be sealed one draw too late. Without prefetch, and with
    global generators, nothing is refused.
    """
    generator = torch.Generator()
    source = DrawnBatches(lambda: torch.rand(1, generator=generator))
    State(model=nn.Linear(2, 2), batches=source, noise=generator)
    source.next_batch()
    with pytest.raises(StateError, match="noise"):
        source.prefetch()
    calm = made()
    State(model=nn.Linear(2, 2), batches=calm, noise=generator)
    calm.prefetch()


def test_a_position_of_another_loader_is_refused() -> None:
    with pytest.raises(StateError, match="given"):
        made().seek({"step": 3})


def test_batches_are_skipped_by_their_count() -> None:
    """A script that resumes from its own file has the batches of the following steps."""
    whole, resumed = made(), made()
    batches = [whole.next_batch() for _ in range(5)]
    resumed.skip(4)
    assert resumed.next_batch() == batches[4]
