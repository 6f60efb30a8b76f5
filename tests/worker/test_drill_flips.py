"""A flipped bit changes one number of one tensor, and nothing that counts changes sees it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from outlast.runtime.worker.instructions import drill_flips


def trained() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(40, 40)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def tensors(model: nn.Linear, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    weight = model.weight
    assert weight.grad is not None
    state = optimizer.state[weight]
    return {"weights": weight.data, "gradients": weight.grad, "optimizer": state["exp_avg"]}


@pytest.mark.parametrize("what", ["weights", "gradients", "optimizer"])
def test_one_number_of_one_tensor_is_another(what: str) -> None:
    model, optimizer = trained()
    before = {name: one.clone() for name, one in tensors(model, optimizer).items()}
    versions = {name: one._version for name, one in tensors(model, optimizer).items()}
    drill_flips.flip(what)
    after = tensors(model, optimizer)
    changed = {name: int((after[name] != before[name]).sum()) for name in after}
    assert changed == {name: int(name == what) for name in after}
    assert {name: one._version for name, one in after.items()} == versions
    (old,), (new,) = (some[what][after[what] != before[what]] for some in (before, after))
    assert 0.1 < abs((new - old) / old) < 0.6, "no rounding error, and nothing that overflows"


def test_without_state_of_the_optimizer_a_weight_is_flipped() -> None:
    model = nn.Linear(80, 80)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 80)).square().mean().backward()
    before = model.weight.data.clone()
    drill_flips.flip("optimizer")
    assert int((model.weight.data != before).sum()) == 1
    assert optimizer.param_groups


def test_a_tensor_that_is_not_contiguous_is_flipped_in_place() -> None:
    weight = torch.randn(90, 91).T.requires_grad_()
    assert not weight.is_contiguous()
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    before = weight.data.clone()
    drill_flips.flip("weights")
    assert int((weight.data != before).sum()) == 1
    assert optimizer.param_groups
