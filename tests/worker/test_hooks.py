"""Optimizer hooks: the first optimizer call of a step asks for the vote, whatever wraps the
optimizer, and what cannot be repeated is refused.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outlast.errors import StepInterrupted, TransactionError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from outlast.runtime.worker.script.hooks import OptimizerHooks, scaler_reset, user_line  # noqa: E402
from outlast.runtime.worker.script.unnamed import UnnamedOptimizers  # noqa: E402
from outlast.runtime.worker.tensors import optim_state  # noqa: E402

KINDS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
}


class Asked:
    """A counter of votes that refuses the next one if it is told to."""

    def __init__(self) -> None:
        self.votes = 0
        self.undo = 0
        self.repeat = False

    def vote(self) -> None:
        self.votes += 1
        if self.repeat:
            self.repeat = False
            raise StepInterrupted

    def needs_undo(self) -> None:
        self.undo += 1


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def hook(asked: Asked) -> Iterator[Any]:
    made: list[OptimizerHooks] = []

    def build(*optimizers: Any) -> OptimizerHooks:
        scalers = [one for one in optimizers if isinstance(one, torch.amp.GradScaler)]
        given = [one for one in optimizers if one not in scalers]
        hooks = OptimizerHooks(given, scalers, before_first=asked.vote, after_undo=asked.needs_undo)
        made.append(hooks)
        hooks.begin()
        return hooks

    yield build
    for hooks in made:
        hooks.remove()


def a_step(model: nn.Module) -> Any:
    loss = model(torch.ones(2, 3)).sum()
    loss.backward()
    return loss


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_call_of_each_step_asks_for_a_vote_with_a_scheduler_too(
    kind: str, hook: Any, asked: Asked
) -> None:
    model = nn.Linear(3, 1)
    optimizer = KINDS[kind](model.parameters())
    before = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # schedulers wrap optimizer.step
    hooks = hook(optimizer)
    after = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for number in (1, 2, 3):
        hooks.begin()
        a_step(model)
        assert hooks.called == 0
        optimizer.step()
        assert (hooks.called, asked.votes) == (1, number)
        assert __file__ in hooks.first_line
        before.step()
        after.step()
        optimizer.zero_grad()


def test_an_interrupted_vote_keeps_the_optimizer_from_running(hook: Any, asked: Asked) -> None:
    model = nn.Linear(3, 1)
    optimizer = KINDS["adamw"](model.parameters())
    hooks = hook(optimizer)
    a_step(model)
    kept = model.weight.detach().clone()
    asked.repeat = True
    with pytest.raises(StepInterrupted):
        optimizer.step()
    assert torch.equal(model.weight, kept)
    assert not optimizer.state
    hooks.begin()
    optimizer.step()
    assert not torch.equal(model.weight, kept)


def test_optimizers_ask_for_one_vote_and_none_may_step_twice(hook: Any, asked: Asked) -> None:
    one, two = nn.Linear(3, 1), nn.Linear(3, 1)
    first, second = KINDS["sgd"](one.parameters()), KINDS["adamw"](two.parameters())
    hooks = hook(first, second)
    a_step(one)
    a_step(two)
    first.step()
    second.step()
    assert (hooks.called, asked.votes) == (2, 1)
    with pytest.raises(TransactionError) as caught:
        first.step()
    assert str(caught.value).count(f"{__file__}:") == 2
    assert "accumulate" in caught.value.hint
    hooks.begin()
    first.step()


def test_a_backward_after_an_applied_optimizer_is_reported_once_a_step(
    hook: Any, asked: Asked
) -> None:
    one, two = nn.Linear(3, 1), nn.Linear(3, 1)
    first, second = KINDS["sgd"](one.parameters()), KINDS["sgd"](two.parameters())
    hooks = hook(first, second)
    a_step(one)
    a_step(one)
    first.step()
    assert asked.undo == 0
    a_step(two)
    torch.autograd.backward(two(torch.ones(1, 3)))
    second.step()
    assert asked.undo == 1
    hooks.begin()
    a_step(one)
    assert asked.undo == 1


def test_closures_are_refused_with_the_line(hook: Any, asked: Asked) -> None:
    model = nn.Linear(3, 1)
    optimizer = KINDS["sgd"](model.parameters())
    hook(optimizer)
    for call in (
        lambda: optimizer.step(lambda: a_step(model)),
        lambda: optimizer.step(closure=lambda: a_step(model)),
    ):
        with pytest.raises(
            TransactionError, match=rf"{__file__}:\d+ in <lambda>: SGD.step was given a closure"
        ):
            call()
    assert asked.votes == 0


def test_an_optimizer_called_during_backward_is_refused(hook: Any) -> None:
    model = nn.Linear(3, 1)
    optimizer = KINDS["sgd"](model.parameters())
    hook(optimizer)
    model.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with pytest.raises(TransactionError, match="while a backward is running"):
        a_step(model)


def test_calls_outside_a_step_or_after_removal_are_not_noticed(hook: Any, asked: Asked) -> None:
    backward = torch.autograd.backward
    model = nn.Linear(3, 1)
    optimizer = KINDS["sgd"](model.parameters())
    hooks = hook(optimizer)
    assert torch.autograd.backward is not backward
    hooks.end()
    a_step(model)
    optimizer.step()
    optimizer.step()
    hooks.remove()
    hooks.remove()
    optimizer.step()
    assert asked.votes == 0
    assert torch.autograd.backward is backward


@pytest.mark.parametrize("kind", KINDS)
def test_a_scaler_that_skips_asks_for_no_vote_and_one_that_steps_for_one(
    kind: str, hook: Any, asked: Asked
) -> None:
    """In either case the scaler calls a fused optimizer, which skips the step by itself."""
    model = nn.Linear(3, 1)
    optimizer = KINDS[kind](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    hooks = hook(optimizer)
    for value, expected in ((math.inf, int(kind == "fused")), (1.0, 1)):
        hooks.begin()
        optimizer.zero_grad()
        kept = model.weight.detach().clone()
        scaler.scale(model(torch.full((2, 3), value)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert hooks.called == expected
        assert torch.equal(model.weight, kept) == math.isinf(value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("explicit", [False, True])
def test_a_step_that_failed_after_unscale_repeats_with_the_same_result(
    kind: str, explicit: bool, hook: Any, asked: Asked
) -> None:
    """Method: interrupt the vote inside scaler.step, repeat it, and compare with a run that was
    never interrupted.
    """

    def train(repeat: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = KINDS[kind](model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        hooks = hook(optimizer)

        def attempt() -> None:
            hooks.begin()
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(model(torch.ones(2, 3)).square().sum()).backward()
            if explicit:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()

        attempt()
        saved = scaler.state_dict()
        asked.repeat = repeat
        if repeat:
            with pytest.raises(StepInterrupted):
                attempt()
            scaler.load_state_dict(saved)
            scaler_reset(scaler, [optimizer])
        attempt()
        return model.weight.detach().clone(), scaler.state_dict()

    disturbed, undisturbed = train(True), train(False)
    assert torch.equal(disturbed[0], undisturbed[0])
    assert disturbed[1] == undisturbed[1]


def test_without_the_reset_the_repeat_would_raise() -> None:
    model = nn.Linear(3, 1)
    optimizer = KINDS["sgd"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.ones(2, 3)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.load_state_dict(scaler.state_dict())
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler_reset(scaler, [optimizer])
    scaler.unscale_(optimizer)


def test_the_users_line_is_the_innermost_outside_of_torch() -> None:
    seen: list[str] = []

    class Module(nn.Module):
        def forward(self, x: Any) -> Any:
            seen.append(user_line())
            return x

    Module()(torch.ones(1))
    assert seen[0].startswith(f"{__file__}:")
    assert seen[0].endswith(" in forward")


def test_the_users_line_is_that_of_the_script_and_not_of_a_library() -> None:
    """If a library that the script calls communicates, the line is the one of the script that makes
    the call.
    """
    code = "def wait_for_everyone(see):\n    return see()\n"
    made: dict[str, Any] = {}
    exec(compile(code, "/venv/lib/site-packages/accelerate/state.py", "exec"), made)
    assert made["wait_for_everyone"](user_line).startswith(f"{__file__}:")
    with ThreadPoolExecutor(1) as pool:  # no frame of the script is on that thread
        assert "thread.py:" in pool.submit(user_line).result()


def scaled_step(
    model: nn.Module, scaler: torch.amp.GradScaler, *optimizers: Any, by: float = 1.0
) -> None:
    scaler.scale(model(torch.ones(2, 3)).sum() * by).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)


def test_a_scaler_that_skips_its_optimizers_asks_when_it_is_updated(
    hook: Any, asked: Asked
) -> None:
    model = nn.Linear(3, 1)
    optimizer, scaler = KINDS["sgd"](model.parameters()), torch.amp.GradScaler("cpu")
    hooks = hook(optimizer, scaler)
    scaled_step(model, scaler, optimizer, by=float("inf"))
    assert (hooks.called, asked.votes) == (0, 0)
    scaler.update()
    assert (hooks.called, asked.votes) == (0, 1)
    assert __file__ in hooks.first_line
    hooks.begin()
    optimizer.zero_grad()
    scaled_step(model, scaler, optimizer)
    scaler.update()
    assert (hooks.called, asked.votes) == (1, 2)


def test_an_interrupted_vote_keeps_the_scaler_from_being_updated(hook: Any, asked: Asked) -> None:
    model = nn.Linear(3, 1)
    optimizer, scaler = KINDS["sgd"](model.parameters()), torch.amp.GradScaler("cpu")
    hook(optimizer, scaler)
    scaled_step(model, scaler, optimizer, by=float("inf"))
    before, asked.repeat = scaler.get_scale(), True
    with pytest.raises(StepInterrupted):
        scaler.update()
    assert scaler.get_scale() == before
    scaler.update()
    assert asked.votes == 2


def test_a_scaler_that_is_not_registered_asks_for_nothing(hook: Any, asked: Asked) -> None:
    model = nn.Linear(3, 1)
    optimizer, scaler = KINDS["sgd"](model.parameters()), torch.amp.GradScaler("cpu")
    hook(optimizer)
    scaled_step(model, scaler, optimizer, by=float("inf"))
    scaler.update()
    assert asked.votes == 0


def test_a_backward_after_a_skipped_step_comes_after_the_vote(hook: Any, asked: Asked) -> None:
    model = nn.Linear(3, 1)
    optimizer, scaler = KINDS["sgd"](model.parameters()), torch.amp.GradScaler("cpu")
    hook(optimizer, scaler)
    scaled_step(model, scaler, optimizer, by=float("inf"))
    scaler.update()
    assert asked.undo == 0
    a_step(model)
    assert asked.undo == 1


def test_a_removed_hook_leaves_the_scaler_as_torch_made_it(asked: Asked) -> None:
    plain = torch.amp.GradScaler.update
    hooks = OptimizerHooks([KINDS["sgd"](nn.Linear(3, 1).parameters())], before_first=asked.vote)
    hooks.begin()
    assert torch.amp.GradScaler.update is not plain
    hooks.remove()
    assert torch.amp.GradScaler.update is plain


class Outer(torch.optim.Optimizer):
    """An optimizer that wraps another one whose step does the work, as SAM and Lookahead do."""

    def __init__(self, parameters: Any, *, shares_state: bool = False) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base = torch.optim.SGD(self.param_groups, momentum=0.9)
        if shares_state:
            self.state = self.base.state

    def step(self, closure: Any = None) -> None:
        self.base.step()


@pytest.fixture
def watched() -> Iterator[Any]:
    """`watched(model, **optimizers)` begins a block in which unnamed optimizers are looked for."""
    made: list[OptimizerHooks] = []

    def build(model: nn.Module, **named: Any) -> OptimizerHooks:
        hooks = OptimizerHooks(
            named.values(),
            before_first=lambda: None,
            unnamed=UnnamedOptimizers(named, dict(model.named_parameters())),
        )
        made.append(hooks)
        hooks.begin()
        return hooks

    yield build
    for hooks in made:
        hooks.remove()


def test_an_optimizer_inside_a_named_one_is_refused_by_its_attribute(watched: Any) -> None:
    """Its momentum would not be kept. The first block may be one that creates the optimizer
    anew.
    """
    model = nn.Linear(3, 1)
    outer = Outer(model.parameters())
    hooks = watched(model, optimizer=outer)
    a_step(model)
    outer.base.step()
    hooks.end()
    hooks.begin()
    with pytest.raises(TransactionError, match="this SGD steps weight, and") as caught:
        outer.base.step()
    assert caught.value.hint == "name it as well: run.state(..., base=optimizer.base)"
    assert hooks.refused is caught.value
    assert __file__ in str(caught.value)


def test_an_unnamed_optimizer_is_refused_where_none_has_a_name(watched: Any) -> None:
    model = nn.Linear(3, 1)
    forgotten = torch.optim.AdamW(model.parameters())
    hooks = watched(model)
    forgotten.step()
    hooks.begin()
    with pytest.raises(TransactionError, match="this AdamW steps weight"):
        forgotten.step()


def test_unnamed_optimizers_with_nothing_to_keep_are_accepted(watched: Any) -> None:
    """Method: optimizers that are made anew in each block, have other parameters, are called
    between blocks, or share the state of a named one.
    """
    model, probe = nn.Linear(3, 1), nn.Linear(3, 1)
    outer = Outer(model.parameters(), shares_state=True)
    other = torch.optim.AdamW(probe.parameters())
    between = torch.optim.SGD(model.parameters())
    hooks = watched(model, optimizer=outer)
    for _ in range(3):
        a_step(model)
        torch.optim.SGD(model.parameters()).step()
        other.step()
        outer.step()
        hooks.end()
        between.step()
        hooks.begin()
    assert hooks.refused is None


class Lookahead(torch.optim.Optimizer):
    """An optimizer that wraps another one and never calls torch's constructor. Some well-known ones
    do not.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups
        self.state = collections.defaultdict(dict)

    def step(self, closure: Any = None) -> None:
        self.inner.step()
        for parameter in self.param_groups[0]["params"]:
            slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
            slow.lerp_(parameter.detach(), 0.5)


def test_a_wrapper_without_torchs_constructor_votes_by_its_inner_one(
    watched: Any, asked: Asked
) -> None:
    model = nn.Linear(3, 1)
    outer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    hooks = watched(model, optimizer=outer, inner=outer.inner)
    hooks._before_first = asked.vote
    a_step(model)
    outer.step()
    assert (asked.votes, hooks.called) == (1, 1)


def test_an_estimate_makes_no_step_of_the_inner_optimizer() -> None:
    model = nn.Linear(3, 1)
    outer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    a_step(model)
    before = model.weight.detach().clone()
    estimate = optim_state.estimate_bytes(outer)
    assert (estimate.bytes, estimate.count) == (16, 2)
    assert torch.equal(model.weight, before)
    assert not outer.inner.state
