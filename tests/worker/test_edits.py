"""Which parameters a script changes itself, and that a repeat restores them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from outlast.errors import StateError
from outlast.runtime.worker.run_state.state import State

Change = Callable[[nn.Parameter], object]


def in_place(parameter: nn.Parameter) -> None:
    with torch.no_grad():
        parameter.mul_(0.5).add_(1.0)


def through_data(parameter: nn.Parameter) -> None:
    parameter.data.mul_(0.5).add_(1.0)


class Trained:
    """A model, its optimizer, and a copy of the model that belongs to no optimizer."""

    def __init__(self) -> None:
        self.model = nn.Linear(3, 2)
        self.average = copy.deepcopy(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state = State(model=self.model, average=self.average, optimizer=self.optimizer)

    def values(self) -> dict[str, torch.Tensor]:
        return {name: one.detach().clone() for name, one in self.state.parameters.items()}

    def begin(self, *, bytewise: bool = False) -> None:
        self.state.begin()
        self.state.edits.begin(bytewise=bytewise)


@pytest.fixture
def trained() -> Trained:
    return Trained()


def is_as(trained: Trained, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in trained.values().items())


@pytest.mark.parametrize(
    ("change", "bytewise"), [(in_place, False), (in_place, True), (through_data, True)]
)
def test_changes_of_the_script_are_undone_from_the_next_step_on(
    trained: Trained, change: Change, bytewise: bool
) -> None:
    edits = trained.state.edits
    trained.begin(bytewise=bytewise)
    change(trained.average.weight)
    both = ["average.bias", "average.weight"]
    assert edits.look() == both
    assert edits.uncopied == both
    trained.begin()
    before = trained.values()
    change(trained.average.weight)
    assert edits.uncopied == []
    trained.state.roll_back()
    assert is_as(trained, before)


def test_an_average_that_first_moves_in_the_second_step_is_put_back(trained: Trained) -> None:
    """Its first move, before the first optimizer call, assigns the weights that it has already."""
    edits = trained.state.edits
    trained.begin(bytewise=True)
    assert edits.look() == []
    trained.begin()
    before = trained.values()
    in_place(trained.average.weight)
    assert edits.look() == ["average.bias", "average.weight"]
    assert edits.uncopied == []
    trained.state.roll_back()
    assert is_as(trained, before)
    assert edits.copied_bytes == sum(one.nbytes for one in trained.average.parameters())


def test_changes_by_optimizers_between_look_and_watch_are_no_edit(trained: Trained) -> None:
    edits = trained.state.edits
    trained.begin()
    trained.model(torch.ones(4, 3)).sum().backward()
    assert edits.look() == []
    trained.optimizer.step()
    assert edits.look() == []
    edits.watch()
    in_place(trained.model.bias)
    assert edits.look() == ["model.bias"]


def test_a_repeat_that_makes_the_same_changes_undoes_them_again(trained: Trained) -> None:
    trained.state.edits.names = {"average.weight"}
    trained.begin()
    before = trained.values()
    for _ in range(3):
        in_place(trained.average.weight)
        trained.state.roll_back()
        assert is_as(trained, before)


@pytest.mark.parametrize("change", [in_place, through_data])
def test_weights_that_are_swapped_in_a_phase_are_restored(trained: Trained, change: Change) -> None:
    """The first phase of each name has everything copied."""
    before = trained.values()
    trained.state.begin()
    trained.state.edits.begin_phase("evaluate")
    change(trained.model.weight)
    trained.state.roll_back()
    assert is_as(trained, before)


def test_a_later_phase_that_changes_an_uncopied_parameter_is_an_error(
    trained: Trained,
) -> None:
    edits = trained.state.edits
    edits.begin_phase("evaluate")
    edits.end_phase("evaluate")
    trained.state.begin()
    edits.begin_phase("evaluate")
    through_data(trained.model.weight)
    with pytest.raises(StateError, match=r"model\.weight"):
        trained.state.roll_back()


def test_parameters_that_a_phase_changed_are_copied_in_the_next_one(trained: Trained) -> None:
    edits = trained.state.edits
    for expected in (["model.weight"], []):
        trained.state.begin()
        edits.begin_phase("evaluate")
        in_place(trained.model.weight)
        assert edits.look() == expected
        edits.end_phase("evaluate")
    trained.state.begin()
    edits.begin_phase("evaluate")
    before = trained.values()
    in_place(trained.model.weight)
    trained.state.roll_back()
    assert is_as(trained, before)


def test_a_successor_knows_what_is_edited(trained: Trained) -> None:
    trained.state.edits.names = {"average.bias"}
    other = Trained()
    other.state.edits.take_over(trained.state.edits.text())
    assert other.state.edits.names == {"average.bias"}
    other.state.edits.take_over("11")  # of a rank that has other parameters
    assert other.state.edits.names == {"average.bias"}


def test_state_that_is_restored_is_not_taken_for_an_edit(trained: Trained) -> None:
    """A replaced rank begins in the middle of a run. The restored values of its parameters are not
    changes made by the script.
    """
    text, tensors = trained.state.shared_tensors()
    there = {name: tensor.clone() for name, tensor in tensors.items()}
    trained.begin()
    trained.state.load_shared(text, there)
    assert trained.state.edits.look() == []
    assert not trained.state.edits.names


def test_the_private_state_of_a_rank_is_not_compared(trained: Trained) -> None:
    trained.begin()
    trained.state.differs_by_rank = True
    in_place(trained.model.weight)
    assert trained.state.edits.look() == []
    assert trained.state.edits.copied_bytes == 0


def test_an_average_counts_as_a_whole_though_only_a_part_of_it_moved(trained: Trained) -> None:
    """A bias that is still zero does not move with the rest."""
    trained.begin(bytewise=True)
    through_data(trained.average.weight)
    assert trained.state.edits.look() == ["average.bias", "average.weight"]


def test_an_average_that_begins_to_move_after_the_first_step_is_noticed(trained: Trained) -> None:
    """Such an average was made from the model itself, so the first step changes nothing in it."""
    edits = trained.state.edits
    trained.begin(bytewise=True)
    assert edits.look() == []
    trained.begin()
    through_data(trained.average.weight)
    assert edits.look() == ["average.bias", "average.weight"]


def test_an_average_that_begins_to_move_late_is_noticed_sooner_or_later(trained: Trained) -> None:
    edits = trained.state.edits
    for _ in range(10):
        trained.begin()
        assert edits.look() == []
    found: list[str] = []
    for _ in range(70):
        trained.begin()
        trained.average.weight.data.add_(1.0)
        found += edits.look()
    assert found == ["average.bias", "average.weight"]


def test_a_frozen_copy_that_the_optimizer_was_given_is_fully_restored() -> None:
    """Method: a momentum encoder inside the model, as in MoCo. Its part that still equals the
    model's own does not move at first, and it is moved by assigning new `.data`.
    """
    model = nn.ModuleDict({"query": nn.Linear(3, 2), "key": nn.Linear(3, 2)})
    model["key"].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State(model=model, optimizer=optimizer)
    state.begin()
    state.edits.begin(bytewise=True)
    model["key"].weight.data = model["key"].weight.data * 0.9
    assert state.edits.look() == ["model.key.bias", "model.key.weight"]
    state.begin()
    state.edits.begin()
    before = {name: one.detach().clone() for name, one in state.parameters.items()}
    for one in model["key"].parameters():
        one.data = one.data * 0.9 + 1.0
    state.roll_back()
    assert all(torch.equal(one, before[name]) for name, one in state.parameters.items())


@pytest.mark.parametrize("frozen_first", [True, False])
def test_freezing_and_unfreezing_changes_no_parameter(trained: Trained, frozen_first: bool) -> None:
    """A GAN freezes one network while it trains the other, and training in stages unfreezes a
    network at some step.
    """
    edits = trained.state.edits
    trained.model.requires_grad_(not frozen_first)
    trained.begin()
    trained.model.requires_grad_(frozen_first)
    assert edits.look() == []
    edits.watch()
    trained.model.requires_grad_(not frozen_first)
    assert edits.look() == []
    assert edits.names == set()
