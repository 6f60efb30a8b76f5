"""Private state: what moves after the vote is known by name, is compared between ranks, and can be
taken from a peer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from outlast.runtime.worker.run_state.state import State


class Meter:
    def __init__(self) -> None:
        self.total = 0.0
        self.history = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "history": self.history}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.total, self.history = saved["total"], saved["history"].clone()


class Counted(nn.BatchNorm1d):
    """A module with extra state."""

    seen = 0

    def get_extra_state(self) -> int:
        return self.seen

    def set_extra_state(self, state: int) -> None:
        self.seen = state


class Rank:
    """The state of one rank, and everything private in it."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        self.net = nn.Sequential(nn.Linear(4, 4), Counted(4))
        self.meter, self.idle, self.noise = Meter(), Meter(), torch.Generator().manual_seed(5)
        self.state = State(model=self.net, meter=self.meter, idle=self.idle, noise=self.noise)
        self.state.private.tensors()


MOVES: dict[str, Callable[[Rank], object]] = {
    "object:meter": lambda rank: setattr(rank.meter, "total", rank.meter.total + 1),
    "object:noise": lambda rank: torch.rand(1, generator=rank.noise),
    "extra:model.1.extra": lambda rank: setattr(rank.net[1], "seen", rank.net[1].seen + 1),
    "buffer:model.1.running_mean": lambda rank: rank.net[1].running_mean.add_(1),
    "random": lambda rank: torch.rand(1),
}


@pytest.mark.parametrize("part", MOVES)
def test_a_part_that_moves_is_named_and_stays_a_mover(part: str) -> None:
    rank = Rank()
    assert rank.state.private.moved() == set()
    MOVES[part](rank)
    assert rank.state.private.moved() == {part}
    rank.state.private.tensors()
    assert rank.state.private.moved() == set()
    assert rank.state.private.movers == {part}


def test_a_tensor_of_an_object_moves_in_place() -> None:
    """The object's text stays the same, while its tensor changes."""
    rank = Rank()
    rank.meter.history[1] += 1
    assert rank.state.private.moved() == {"object:meter"}


@pytest.mark.parametrize(
    "draw", [random.random, np.random.rand, lambda: torch.rand(1), lambda: random.gauss(0, 1)]
)
def test_a_draw_from_any_generator_of_the_process_is_a_move(draw: Callable[[], object]) -> None:
    rank = Rank()
    draw()
    assert rank.state.private.moved() == {"random"}


@pytest.mark.parametrize("part", MOVES)
def test_the_key_of_movers_tells_whether_ranks_agree(part: str) -> None:
    """Equal moves give equal keys, and one more move gives another key.

    Parts that are not movers do not affect it.
    """
    keys = []
    for times, idle in ((1, 0.0), (1, 7.0), (2, 0.0)):
        rank = Rank()
        assert rank.state.private.movers_key() == 0.0
        for _ in range(times):
            MOVES[part](rank)
        rank.state.private.moved()
        rank.idle.total = idle
        rank.state.private.tensors()
        keys.append(rank.state.private.movers_key())
    assert keys[0] == keys[1] != keys[2]
    assert 0.0 not in keys


@pytest.mark.parametrize("part", MOVES)
def test_a_successor_takes_the_movers_of_a_peer_and_keeps_the_rest(part: str) -> None:
    donor = Rank()
    MOVES[part](donor)
    donor.state.private.moved()
    donor.idle.total = 5.0
    text, live = donor.state.private.movers_tensors([])
    given = {name: tensor.clone() for name, tensor in live.items()}
    donor.state.private.tensors()
    key = donor.state.private.movers_key()
    expected = torch.rand(1)

    successor = Rank()
    successor.idle.total = 9.0
    assert successor.state.private.load_movers(text, given) == [part]
    successor.state.private.learn_movers(text, given)
    successor.state.private.tensors()
    assert successor.state.private.movers_key() == key
    assert successor.idle.total == 9.0
    if part == "random":
        assert torch.equal(torch.rand(1), expected)


def test_movers_that_all_ranks_agree_on_are_not_doubtful() -> None:
    donor = Rank()
    MOVES["random"](donor)
    MOVES["object:meter"](donor)
    donor.state.private.moved()
    text, tensors = donor.state.private.movers_tensors({"random"})
    assert Rank().state.private.load_movers(text, tensors) == ["object:meter"]


def test_a_rank_lost_after_a_phase_takes_only_what_moves_there() -> None:
    """Its own image, sealed when the phase ended, has everything that moved before."""
    donor = Rank()
    MOVES["object:meter"](donor)
    donor.state.private.moved()
    donor.state.private.tensors()
    MOVES["extra:model.1.extra"](donor)
    donor.state.private.moved(after_phase=True)
    text, tensors = donor.state.private.movers_tensors([])
    successor = Rank()
    successor.meter.total = 9.0
    assert successor.state.private.load_movers(text, tensors, after_phase=True) == [
        "extra:model.1.extra"
    ]
    assert (successor.meter.total, successor.net[1].seen) == (9.0, 1)


def test_a_rank_that_knows_of_movers_hands_them_on() -> None:
    """A rank whose own image lacks nothing receives only the names, and then hands over itself.

    What it hands over has the same parts as what came from the rank that saw them move, and marks
    the same parts as agreed on by all ranks.
    """
    donor = Rank()
    MOVES["object:meter"](donor)
    MOVES["random"](donor)
    donor.state.private.moved()
    MOVES["extra:model.1.extra"](donor)
    donor.state.private.moved(after_phase=True)
    between = Rank()
    between.meter.total = 9.0
    agreed = between.state.private.learn_movers(*donor.state.private.movers_tensors(["random"]))
    assert agreed == {"random"}
    assert (between.meter.total, between.net[1].seen) == (9.0, 0)

    text, tensors = between.state.private.movers_tensors(agreed)
    successor = Rank()
    assert successor.state.private.learn_movers(text, tensors) == agreed
    assert successor.state.private.movers == donor.state.private.movers
    doubtful = successor.state.private.load_movers(text, tensors)
    assert doubtful == ["extra:model.1.extra", "object:meter"]
    assert successor.meter.total == 9.0


@pytest.mark.parametrize("part", MOVES)
def test_a_part_that_moves_between_two_calls_of_steps_is_no_mover(part: str) -> None:
    """The part is named, because it has to be sealed, but the vote on a step does not
    compare it.
    """
    rank = Rank()
    MOVES[part](rank)
    assert rank.state.private.moved(between_calls=True) == {part}
    rank.state.private.tensors()
    assert rank.state.private.movers == set()
    assert rank.state.private.movers_key() == 0.0


def test_movers_are_described_in_words_a_user_knows() -> None:
    rank = Rank()
    for move in MOVES.values():
        move(rank)
    rank.state.private.moved()
    assert (
        rank.state.private.described_movers()
        == "buffer model.1.running_mean, extra state of model.1.extra, meter and 2 more"
    )
