"""Groups of parameters that a script adds to an optimizer in its loop, for example to unfreeze
layers.
"""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import StateError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from outlast.runtime.worker.run_state.state import State  # noqa: E402


class Tuning:
    """A body and a head. The optimizer begins with the head's parameters."""

    def __init__(self, *, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.net[1].parameters(), lr=0.1)
        self.state = State(net=self.net, optimizer=self.optimizer)

    def unfreeze(self) -> None:
        self.optimizer.add_param_group({"params": self.net[0].parameters(), "lr": 0.01})

    def step(self) -> None:
        self.net(torch.ones(2, 3)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self) -> Any:
        text, tensors = self.state.shared_tensors()
        return text, {name: tensor.clone() for name, tensor in tensors.items()}

    def sizes(self) -> list[int]:
        return [len(group["params"]) for group in self.optimizer.param_groups]


def same(one: Any, other: Any) -> bool:
    (text, tensors), (other_text, others) = one, other
    assert text == other_text
    assert list(tensors) == list(others)
    return all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


def test_a_replaced_rank_gets_the_groups_that_its_predecessor_had() -> None:
    """The replaced rank goes on with the same bits, although its script is past the line that adds
    the group.
    """
    old, new = Tuning(), Tuning(seed=5)
    old.step()
    old.unfreeze()
    old.step()
    new.state.load_shared(*old.save())
    assert new.sizes() == [2, 2]
    assert new.optimizer.param_groups[1]["lr"] == 0.01
    assert same(new.save(), old.save())
    old.step()
    new.step()
    assert same(new.save(), old.save())


def test_a_repeated_step_begins_without_the_group_that_it_added() -> None:
    """The script adds the group again. If the group had stayed, torch would refuse a parameter in
    two groups.
    """
    tuning = Tuning()
    tuning.step()
    tuning.state.begin()
    tuning.unfreeze()
    tuning.state.roll_back()
    assert tuning.sizes() == [2]
    tuning.unfreeze()
    tuning.state.keep_undo()
    tuning.step()
    assert tuning.sizes() == [2, 2]


def test_an_undone_step_loses_the_group_that_it_added() -> None:
    tuning = Tuning()
    tuning.step()
    tuning.state.keep_undo()
    before = tuning.save()
    tuning.unfreeze()
    tuning.step()
    tuning.state.undo()
    assert tuning.sizes() == [2]
    assert same(tuning.save(), before)


def test_groups_of_a_script_that_makes_them_before_its_loop_are_compared() -> None:
    """Such groups are neither added nor removed: a different number of them means a different
    script.
    """
    old, new = Tuning(), Tuning()
    old.step()
    new.unfreeze()
    new.state = State(net=new.net, optimizer=new.optimizer)
    with pytest.raises(StateError, match=r"groups of \[2, 2\] here, but of \[2\]"):
        new.state.load_shared(*old.save())
    new.step()
    with pytest.raises(StateError, match=r"groups of \[2\] here, but of \[2, 2\]"):
        old.state.load_shared(*new.save())


def test_a_group_of_parameters_that_nothing_keeps_is_refused() -> None:
    tuning = Tuning()
    tuning.step()
    tuning.state.check_signature()
    tuning.optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()})
    with pytest.raises(StateError, match="a group of optimizer that was added in the loop"):
        tuning.state.check_signature()
