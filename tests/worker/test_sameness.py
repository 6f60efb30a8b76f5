"""Replicated state is the same on all ranks, or the parts that differ are named."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from outlast.model.limits import TWINS_COUNT, WATCH_BYTES, WATCH_EVERY_STEPS, WATCH_TENSORS_COUNT
from outlast.runtime.worker.run_state.sameness import (
    UNLIKE,
    Difference,
    Watch,
    compare,
    difference,
    twins_of,
)
from outlast.runtime.worker.run_state.state import State
from tests.worker._ranks import Rank, run_ranks

prints = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xyz"), max_size=4)


def made(seed: int = 0) -> State:
    """Return parameters of many sizes, one of them larger than one piece, and the state of an
    optimizer that has stepped.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(3, 5), nn.Linear(200, 250), *(nn.Linear(2, 2) for _ in range(WATCH_TENSORS_COUNT))
    )
    optimizer = torch.optim.AdamW(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert net[1].weight.nbytes > WATCH_BYTES
    return State(model=net, optimizer=optimizer)


@given(st.lists(prints, min_size=2, max_size=5))
def test_a_tensor_differs_if_two_ranks_have_different_values(ranks: list[dict[str, str]]) -> None:
    found = difference(ranks)
    differing = {
        name
        for one in ranks
        for name in one
        if any(other.get(name) != one[name] for other in ranks)
    }
    assert set(found.names if found else ()) == differing


def test_the_odd_ranks_are_those_outside_the_majority() -> None:
    assert difference([{"a": "x"}] * 3) is None
    assert difference([{"a": "x"}, {"a": "y"}, {"a": "x"}]) == Difference(("a",), (1,))
    assert difference([{"a": "x"}, {"a": "y"}]) == Difference(("a",), (0, 1))
    assert difference([{"a": "x"}, {}, {"a": "x"}, {"a": "x"}]) == Difference(("a",), (1,))


def test_the_watch_compares_every_tensor_within_a_cycle() -> None:
    """Method: each tensor in turn is changed in its last element, in one of two equal states."""
    left, right = made(), made()
    steps = range(1, 60 * WATCH_EVERY_STEPS)  # more than one cycle
    one, other = Watch(left), Watch(right)
    assert [one.key(step) for step in steps] == [other.key(step) for step in steps]
    for name, tensor in right.whole_tensors().items():
        flat = tensor.detach().view(-1)
        before = flat[-1].item()
        flat[-1] += 1
        other = Watch(right)
        assert any(one.key(step) != other.key(step) for step in steps), name
        flat[-1] = before


def test_the_watch_finds_a_flipped_bit() -> None:
    left, right = made(), made()
    bits = right.parameters["model.1.weight"].detach().view(torch.int32).view(-1)
    bits[40_000] ^= 1
    keys = [
        (Watch(left).key(step), Watch(right).key(step)) for step in range(1, 60 * WATCH_EVERY_STEPS)
    ]
    assert any(mine != theirs for mine, theirs in keys)


def test_private_state_is_not_watched() -> None:
    state = made()
    state.differs_by_rank = True
    assert Watch(state).key(WATCH_EVERY_STEPS) == 0.0


def _compared(rank: Rank) -> list[Difference | None]:
    """Compare equal states; then another weight on rank 1, another learning rate on rank 2, and
    fewer tensors on rank 0.
    """
    dist.init_process_group(
        "gloo", store=dist.TCPStore("127.0.0.1", rank.port), rank=rank.rank, world_size=3
    )
    state = made()
    found = [compare(state)]
    bias = state.parameters["model.0.bias"].detach()
    before = bias.clone()
    bias[2] += float(rank.rank == 1)
    found.append(compare(state))
    bias.copy_(before)
    state.optimizers["optimizer"].param_groups[0]["lr"] *= 1 + (rank.rank == 2)
    found.append(compare(state))
    stage = State(stage=nn.Linear(2, 2) if rank.rank else nn.Identity())
    for parameter in stage.parameters.values():
        nn.init.ones_(parameter)
    found.append(compare(stage))
    return found


@pytest.mark.timeout(120)
def test_ranks_compare_their_state_and_all_learn_the_same() -> None:
    told = run_ranks(3, _compared)
    assert told[0] == told[1] == told[2]
    same, weight, rate, stage = told[0]
    assert same is None
    assert weight == Difference(("model.0.bias",), (1,))
    assert rate == Difference(("optimizer: hyper-parameters",), (2,))
    assert stage == Difference(("stage.bias", "stage.weight"), (0,))


@given(st.lists(st.sampled_from([b"a", b"b", UNLIKE.encode()]), min_size=1, max_size=60))
def test_ranks_that_hold_the_same_stand_for_each_other_in_small_sets(prints: list[bytes]) -> None:
    """Each rank finds its own set, and all members of a set find the same one. A rank with a twin
    is never alone.
    """
    for rank, mine in enumerate(prints):
        twins = twins_of(rank, prints)
        if mine == UNLIKE.encode() or prints.count(mine) == 1:
            assert twins == ()
            continue
        assert rank in twins
        assert 2 <= len(twins) <= TWINS_COUNT + 1
        assert {twins_of(one, prints) for one in twins} == {twins}
        assert {prints[one] for one in twins} == {mine}
