"""A backward whose generation is over is left between two of its nodes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from outlast.errors import StepInterrupted
from outlast.model.limits import BACKWARD_EXITS_COUNT
from outlast.runtime.worker.process.exits import BackwardExits

LAYERS = 40


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(LAYERS)))


def test_a_backward_ends_soon_after_its_generation_is_over() -> None:
    model, over = net(), [False]
    exits = BackwardExits(model.parameters(), over=lambda: over[0])
    exits.install()
    half = model[LAYERS // 2]
    assert isinstance(half, nn.Linear)
    half.weight.register_hook(lambda _: over.__setitem__(0, True))
    with pytest.raises(StepInterrupted):
        model(torch.randn(2, 4)).sum().backward()
    done = [layer for layer, one in enumerate(model) if one.weight.grad is not None]
    assert LAYERS // 2 - 2 * LAYERS // BACKWARD_EXITS_COUNT <= min(done) <= LAYERS // 2


def test_while_the_generation_lasts_gradients_are_the_same_bits() -> None:
    models = [net(), net()]
    exits = BackwardExits(models[1].parameters(), over=lambda: False)
    exits.install()
    exits.install()
    for model in models:
        model(torch.ones(2, 4)).sum().backward()
    assert all(
        torch.equal(one.grad, other.grad)
        for one, other in zip(*(model.parameters() for model in models), strict=True)
    )  # type: ignore[arg-type]
    assert (
        sum(len(one._backward_hooks or ()) for one in models[1].parameters())
        <= 2 * BACKWARD_EXITS_COUNT
    )
    exits.remove()
    assert not any(one._backward_hooks for one in models[1].parameters())


def test_parameters_that_take_no_gradient_have_no_exit() -> None:
    model = net()
    for parameter in itertools.islice(model.parameters(), LAYERS):
        parameter.requires_grad_(False)
    exits = BackwardExits([*model.parameters(), torch.zeros(3)], over=lambda: True)
    exits.install()
    with pytest.raises(StepInterrupted):
        model(torch.ones(2, 4)).sum().backward()


def test_exits_without_parameters_work() -> None:
    exits = BackwardExits([], over=lambda: True)
    exits.install()
    exits.remove()


def test_parameters_may_be_frozen_and_unfrozen_between_two_steps() -> None:
    """Transfer learning in stages does so, and GANs do. The parameters that take a gradient now
    have the exits.
    """
    model = net()
    first, last = model[0], model[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    exits = BackwardExits(model.parameters(), over=lambda: True)
    model.requires_grad_(False)
    exits.install()
    last.requires_grad_(True)
    exits.install()
    with pytest.raises(StepInterrupted):
        model(torch.randn(2, 4)).sum().backward()
    first.requires_grad_(True)
    last.requires_grad_(False)
    exits.install()
    with pytest.raises(StepInterrupted):
        model(torch.randn(2, 4)).sum().backward()
    assert first.weight.grad is None
    exits.remove()
    assert not any(one._backward_hooks for one in model.parameters())
