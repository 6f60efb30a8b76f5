"""A rank's state is captured and restored bit for bit: into a new process, back to the beginning of
a step, and across an applied optimizer.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from outlast.errors import CorruptError, StateError
from outlast.model.limits import SHAPES_LOOK_STEPS
from outlast.runtime.worker.data.sampler import StepSampler
from outlast.runtime.worker.run_state.digest import digest
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.tensors import modules, optim_state, random_state, tree

optim = torch.optim
schedules = torch.optim.lr_scheduler


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    before = random_state.capture()
    yield
    random_state.restore(before)


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((6,), index / 40) + torch.rand(6)


class Net(nn.Module):
    """A model with dropout, BatchNorm, tied weights, a buffer that forward assigns again, and one
    that is not persistent.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, dtype=dtype)
        self.norm = nn.BatchNorm1d(6, dtype=dtype)
        self.second = nn.Linear(6, 6, dtype=dtype)
        self.second.weight = self.first.weight
        self.drop = nn.Dropout(0.3)
        self.register_buffer("mean", torch.zeros(6, dtype=dtype))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)
        self.mean: torch.Tensor
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.first(x)))
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.seen += 1
        return self.second(x) + self.mean


class Tally:
    """An object of the user, with plain numbers and a tensor, that the body of a step changes."""

    def __init__(self) -> None:
        self.total, self.history = torch.zeros(2), [0.0]

    def add(self, loss: float) -> None:
        self.total += loss
        self.history.append(loss)

    def state_dict(self) -> dict[str, Any]:
        return self.__dict__

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Rows(optim.Optimizer):
    """An optimizer that keeps tuples, numbers and a bf16 tensor beside float parameters. Torch's
    load_state_dict would cast them and lose precision.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s.update(
                        count=0,
                        factors=(torch.zeros(p.shape[0], dtype=p.dtype), torch.zeros(())),
                        low=torch.zeros_like(p, dtype=torch.float64),
                    )
                s["count"] += 1
                s["factors"] = (
                    s["factors"][0] * 0.9 + p.grad.reshape(p.shape[0], -1).mean(1),
                    s["factors"][1] + 1,
                )
                s["low"].mul_(0.9).add_(p.grad)
                p.sub_((s["low"] / s["count"]).to(p.dtype), alpha=group["lr"])


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd-momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adamw-foreach": lambda p: optim.AdamW(p, lr=0.01, foreach=True),
    "adamw-fused-amsgrad": lambda p: optim.AdamW(p, lr=0.01, fused=True, amsgrad=True),
    "adamw-tensor-lr": lambda p: optim.AdamW(p, lr=torch.tensor(0.01)),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, centered=True),
    "tuples": Rows,
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda o: None,
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 10),
    "onecycle": lambda o: schedules.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0, factor=0.5),
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 0.9**step),
    "chain": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1), schedules.MultiStepLR(o, [2, 3])], [3]
    ),
}


class Training:
    """One rank's training, with a step that can be interrupted."""

    def __init__(
        self,
        optimizer: str = "adamw",
        scheduler: str = "cosine",
        *,
        dtype: torch.dtype = torch.float32,
        scaled: bool = False,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.model = Net(dtype)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2, enabled=True)
            if scaled
            else None
        )
        self.tally = Tally()
        self.generator = torch.Generator().manual_seed(seed)
        data = Noisy()
        loader = DataLoader(data, batch_sampler=StepSampler(data, 5, seed=9))
        self.state = State(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            loader=loader,
            tally=self.tally,
            generator=self.generator,
        )

    def fetch(self) -> torch.Tensor:
        assert self.state.source is not None
        batch: torch.Tensor = self.state.source.next_batch()
        return batch.to(self.model.first.weight.dtype)

    def body(self, batch: torch.Tensor) -> None:
        noise = (
            torch.rand(6, generator=self.generator) + random.random() + float(np.random.normal())
        )
        loss = (self.model(batch) - noise.to(batch.dtype)).square().mean()
        self.tally.add(loss.item())
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)

    def apply(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(self.scheduler, schedules.ReduceLROnPlateau):
                self.scheduler.step(self.tally.history[-1])
            elif self.scheduler is not None:
                self.scheduler.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        batch = self.fetch()
        self.body(batch)
        self.apply()

    def save(self) -> Any:
        """Return copies of the state, as an image would hold them."""
        both = (self.state.private.tensors(), self.state.shared_tensors())
        return [
            (text, {name: tensor.clone() for name, tensor in tensors.items()})
            for text, tensors in both
        ]

    def load(self, saved: Any) -> None:
        self.state.private.load(*saved[0])
        self.state.load_shared(*saved[1])


def assert_same(left: Any, right: Any) -> None:
    for (text, tensors), (other_text, others) in zip(left, right, strict=True):
        assert text == other_text
        assert list(tensors) == list(others)
        for name, tensor in tensors.items():
            assert tensor.dtype == others[name].dtype, name
            assert digest({"x": tensor}) == digest({"x": others[name]}), name


CASES = [(optimizer, "cosine") for optimizer in OPTIMIZERS] + [
    ("sgd-momentum", scheduler) for scheduler in SCHEDULERS
]


@pytest.mark.parametrize(("optimizer", "scheduler"), CASES)
@pytest.mark.parametrize("at", [0, 3])
def test_a_new_process_goes_on_as_if_it_were_the_old_one(
    optimizer: str, scheduler: str, at: int
) -> None:
    """Method: save at a step (0: before the first one, without optimizer state), load into a
    training of another seed that has run some steps, train both, and compare.
    """
    old = Training(optimizer, scheduler)
    for _ in range(at):
        old.step()
    saved = old.save()
    for _ in range(4):
        old.step()
    expected = old.save()
    new = Training(optimizer, scheduler, seed=5)
    new.step()
    new.load(saved)
    assert_same(new.save(), saved)
    for _ in range(4):
        new.step()
    assert_same(new.save(), expected)


def undisturbed(steps: int, *args: str, scaled: bool = False) -> Any:
    training = Training(*args, scaled=scaled)
    for _ in range(steps):
        training.step()
    return training.save()


@pytest.mark.parametrize(("optimizer", "scheduler"), CASES)
def test_a_step_repeated_in_place_leaves_no_trace(optimizer: str, scheduler: str) -> None:
    """Method: at every step, interrupt the body after its backward, roll back, and run it again. At
    every other step this happens twice.
    """
    expected, other = undisturbed(4, optimizer, scheduler), Training(optimizer, scheduler)
    for number in range(4):
        batch = other.fetch()
        for _ in range(1 + number % 2):
            other.state.begin()
            other.body(batch)
            other.state.roll_back()
            assert all(parameter.grad is None for parameter in other.model.parameters())
        other.state.begin()
        other.body(batch)
        other.apply()
    assert_same(other.save(), expected)


@pytest.mark.parametrize(("optimizer", "scheduler"), CASES)
def test_an_applied_optimizer_can_be_undone(optimizer: str, scheduler: str) -> None:
    """The first step, which makes the optimizer's state, can be undone too.

    Method: at every step, apply the optimizer, undo and roll back, and repeat.
    """
    expected, other = undisturbed(3, optimizer, scheduler), Training(optimizer, scheduler)
    for _ in range(3):
        batch = other.fetch()
        other.state.begin()
        other.state.keep_undo()
        other.body(batch)
        other.apply()
        other.state.undo()
        other.state.roll_back()
        other.body(batch)
        other.apply()
    assert_same(other.save(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_survive(dtype: torch.dtype) -> None:
    old = Training("adamw", dtype=dtype)
    old.step()
    saved = old.save()
    old.step()
    new = Training("adamw", dtype=dtype, seed=3)
    new.load(saved)
    new.step()
    assert_same(new.save(), old.save())


def test_a_scaler_forgets_its_stage_and_gets_its_scale_back() -> None:
    """The scale grows during the test. Calling unscale_ twice in a step would raise."""
    expected, final = (
        undisturbed(5, "sgd-momentum", scaled=True),
        undisturbed(6, "sgd-momentum", scaled=True),
    )
    other = Training("sgd-momentum", scaled=True)
    for _ in range(5):
        batch = other.fetch()
        other.state.begin()
        other.body(batch)
        other.state.roll_back()
        other.state.begin()
        other.body(batch)
        other.apply()
    assert_same(other.save(), expected)
    new = Training("sgd-momentum", scaled=True, seed=4)
    new.load(expected)
    new.step()
    assert_same(new.save(), final)


def test_a_skipped_step_at_the_blocks_end_rolls_the_scale_back() -> None:
    """A block that fires no optimizer hook votes at its end, after scaler.update()."""
    training = Training("sgd-momentum", scaled=True)
    training.step()
    before = training.save()
    batch = training.fetch()
    assert training.scaler is not None
    training.state.begin()
    training.scaler._scale.fill_(float("inf"))  # type: ignore[union-attr]
    training.body(batch)
    training.apply()
    training.state.roll_back()
    assert training.state.source is not None
    training.state.source.seek({"step": 1})
    assert_same(training.save()[1:], before[1:])


def test_loading_keeps_the_identity_of_parameters_and_optimizer_tensors() -> None:
    """DDP and the optimizer hold references to them."""
    training = Training("adamw")
    training.step()
    saved = training.save()
    mine = [
        *training.model.parameters(),
        *optim_state.tensors("optimizer", training.optimizer).values(),
        training.model.norm.running_mean,
    ]
    training.step()
    training.load(saved)
    now = [
        *training.model.parameters(),
        *optim_state.tensors("optimizer", training.optimizer).values(),
        training.model.norm.running_mean,
    ]
    assert all(a is b for a, b in zip(mine, now, strict=True))
    for tensor in (*saved[0][1].values(), *saved[1][1].values()):
        if tensor.is_floating_point():
            tensor.fill_(7)  # what the state was loaded from is not what it uses
    assert training.tally.total[0] != 7
    assert training.model.first.weight[0, 0] != 7


def test_gradients_that_were_zeros_at_begin_are_zeros_again() -> None:
    """After zero_grad(set_to_none=False), weight decay moves a parameter that got no gradient. With
    None it would not move.
    """
    unused = nn.Parameter(torch.ones(2))
    used = nn.Parameter(torch.ones(2))
    optimizer = optim.SGD([unused, used], lr=0.1, weight_decay=0.5)
    state = State(optimizer=optimizer)
    unused.grad = torch.zeros(2)
    state.begin()
    (used.sum() + unused.sum()).backward()
    state.roll_back()
    assert used.grad is None
    assert unused.grad is not None
    assert not unused.grad.any()


def _two_parameters() -> tuple[State, list[nn.Parameter]]:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    return State(optimizer=optim.SGD(parameters, lr=0.1)), parameters


def test_which_gradients_are_zeros_and_which_are_none_is_restored() -> None:
    """A replaced rank has to treat a parameter without a gradient as its predecessor would have."""
    state, parameters = _two_parameters()
    parameters[1].grad = torch.ones(2)
    state.begin()
    new, mine = _two_parameters()
    mine[0].grad = torch.ones(2)
    new.load_shared(*state.shared_tensors())
    assert mine[0].grad is None
    assert mine[1].grad is not None
    assert not mine[1].grad.any()


def test_an_image_without_a_record_of_gradients_is_read() -> None:
    """Such an image was written by an older outlast."""
    text, tensors = _two_parameters()[0].shared_tensors()
    new, mine = _two_parameters()
    mine[0].grad = torch.ones(2)
    described = tree.decode(text, {})
    del described["graded"]
    new.load_shared(tree.encode(described, "shared").text, tensors)
    assert mine[0].grad is not None
    assert mine[1].grad is None


def test_hyper_parameters_set_in_the_body_are_restored() -> None:
    training = Training("adamw-tensor-lr", "none")
    lr = training.optimizer.param_groups[0]["lr"]
    training.state.begin()
    lr.mul_(2)
    training.optimizer.param_groups[0]["weight_decay"] = 9.0
    training.optimizer.param_groups[0]["new"] = 1
    training.state.roll_back()
    group = training.optimizer.param_groups[0]
    assert group["lr"] is lr
    assert lr == torch.tensor(0.01)
    assert (group["weight_decay"], "new" in group) == (0.01, False)


def test_modes_that_a_step_has_changed_are_restored() -> None:
    """An interrupted step may have frozen a network, or set it to evaluation."""
    training = Training()
    model = training.model
    model.first.bias.requires_grad_(False)
    model.first.eval()
    training.state.begin()
    model.eval()
    model.first.train()
    model.requires_grad_(False)
    model.first.bias.requires_grad_(True)
    training.state.roll_back()
    assert (model.training, model.first.training) == (True, False)
    taking = {name: one.requires_grad for name, one in model.named_parameters()}
    assert not taking.pop("first.bias")
    assert all(taking.values())


def test_state_dtypes_are_kept_where_load_state_dict_would_cast() -> None:
    training = Training("tuples", dtype=torch.bfloat16)
    training.step()
    new = Training("tuples", dtype=torch.bfloat16, seed=1)
    new.load(training.save())
    weight = new.model.first.weight
    assert new.optimizer.state[weight]["low"].dtype == torch.float64
    assert type(new.optimizer.state[weight]["factors"]) is tuple


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_bytes_needed_are_known_before_the_first_step(optimizer: str) -> None:
    """The estimate is never too small, and not much too large, within the slack for headers."""
    training = Training(optimizer)
    private, shared = training.state.bytes_needed()
    training.step()
    for (text, tensors), said in zip(training.save(), (private, shared), strict=True):
        real = len(text) + sum(tensor.nbytes + len(name) for name, tensor in tensors.items())
        assert real <= said <= real * 3 + 40_000
    exact = optim_state.estimate_bytes(OPTIMIZERS[optimizer](Net(torch.float32).parameters()))
    have = optim_state.estimate_bytes(training.optimizer)
    assert (exact.bytes, exact.count) == (have.bytes, have.count) or exact.how.startswith("twice")


def test_parameters_known_only_to_an_optimizer_are_kept() -> None:
    loose = nn.Parameter(torch.ones(3))
    state = State(optimizer=optim.SGD([loose], lr=0.1))
    text, tensors = state.shared_tensors()
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    with torch.no_grad():
        loose.zero_()
    state.load_shared(text, saved)
    assert loose.tolist() == [1, 1, 1]


def test_names_ignore_wrappers_and_shared_parameters_occur_once() -> None:
    net = Net(torch.float32)
    compiled = torch.compile(net, backend="eager")
    assert list(State(model=compiled).parameters) == list(State(model=net).parameters)
    assert len(State(model=net, again=net.first).parameters) == len(list(net.parameters()))


def test_a_state_that_changes_shape_is_an_error_that_names_the_tensor() -> None:
    training = Training()
    training.state.check_signature()
    training.step()
    training.state.check_signature()
    training.model.mean = torch.zeros(9)
    with pytest.raises(
        StateError, match=r"model\.mean was torch.float32 \[6\] and is now torch.float32 \[9\]"
    ):
        training.state.check_signature()
    training.model.mean = torch.zeros(6)
    training.model.first = nn.Linear(6, 6)
    with pytest.raises(StateError, match=r"model\.first is not the one"):
        training.state.check_signature()


def test_a_parameter_that_changes_shape_is_found_within_sixteen_looks() -> None:
    """Method: `.data` is replaced, so the parameter is still the same object."""
    training = Training()
    for _ in range(5):
        training.state.check_signature()
    training.model.first.weight.data = torch.zeros(9, 9)
    with pytest.raises(
        StateError,
        match=r"model\.first\.weight was torch.float32 \[6, 6\] and is now torch.float32 \[9, 9\]",
    ):
        all(training.state.check_signature() is None for _ in range(SHAPES_LOOK_STEPS))


def test_a_saved_state_of_another_model_is_refused_before_any_write() -> None:
    saved = Training().save()
    other = nn.Linear(6, 7)
    state = State(model=other, optimizer=OPTIMIZERS["adamw"](other.parameters()), scheduler=None)
    before = other.weight.clone()
    with pytest.raises(StateError, match="schedulers"):
        state.load_shared(*saved[1])
    with pytest.raises(StateError, match="holds objects"):
        state.private.load(*saved[0])
    with pytest.raises(StateError, match=r"model\.weight is not among"):
        State(model=other).load_shared(State().shared_tensors()[0], saved[1][1])
    with pytest.raises(CorruptError):
        state.private.load("[", {})
    assert torch.equal(before, other.weight)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.ones(4), r"float32 \[3\] here, but torch.float32 \[4\]"),
        (torch.ones(1, 3), r"float32 \[3\] here, but torch.float32 \[1, 3\]"),
        (torch.ones(3, dtype=torch.int32), r"float32 \[3\] here, but torch.int32 \[3\]"),
    ],
)
def test_a_tensor_of_another_dtype_or_shape_is_refused(given: torch.Tensor, words: str) -> None:
    parameters = {name: nn.Parameter(torch.zeros(3)) for name in ("first", "second")}
    with pytest.raises(StateError, match=f"second is torch.{words}"):
        modules.overwrite(parameters, {"first": torch.ones(3), "second": given})
    assert not any(parameter.any() for parameter in parameters.values()), "nothing was written"


def test_a_parameter_is_written_in_place_without_autograd() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    at = parameter.data_ptr()
    modules.overwrite({"p": parameter}, {"p": torch.arange(3.0)})
    assert parameter.tolist() == [0.0, 1.0, 2.0]
    assert parameter.data_ptr() == at
    assert parameter.requires_grad
    assert parameter.grad_fn is None


def test_signatures_of_ranks_that_run_the_same_script_are_equal() -> None:
    assert Training(seed=1).state.signature() == Training(seed=2).state.signature()
    assert (
        Training("tuples", dtype=torch.float64).state.signature()
        != Training("tuples").state.signature()
    )


def fsdp1() -> nn.Module:
    """Return a module whose class has that name. The real class needs a process group."""
    return type("FullyShardedDataParallel", (nn.Sequential,), {})()


REFUSED = [
    ("thing", object(), "thing=.*is of type object"),
    ("private", Tally(), "name is taken"),
    ("a.b", Tally(), "plain word"),
    ("lazy", nn.LazyLinear(3), "lazy.weight has no shape"),
    ("meta", nn.Linear(2, 2, device="meta"), "meta.weight is on the meta device"),
    ("old", fsdp1(), r"old is wrapped in FullyShardedDataParallel \(FSDP1\)"),
]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED, ids=lambda value: str(value)[:12])
def test_what_cannot_be_state_is_refused_by_its_argument(
    name: str, value: object, words: str
) -> None:
    with pytest.raises(StateError, match=words):
        State(**{name: value})


def test_private_state_that_moved_in_the_tail_is_noticed() -> None:
    """Method: random draws, a buffer, and an object."""
    training = Training()
    plain = State(model=training.model)
    for move in (
        lambda: torch.rand(1),
        lambda: training.model.seen.add_(1),
        lambda: setattr(training.model, "mean", torch.ones(6)),
    ):
        plain.private.tensors()
        assert not plain.private.moved()
        move()
        assert plain.private.moved()
    plain.private.tensors()
    training.model.seen.add_(1)
    assert not plain.private.random_moved()
    with_object = State(tally=training.tally)
    with_object.private.tensors()
    training.tally.add(1.0)
    assert with_object.private.moved()


def test_a_buffer_registered_in_forward_is_kept_from_then_on() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    state = State(model=net)
    assert "model.late" not in state.private.tensors()[1]
    state.begin()
    net.register_buffer("late", torch.ones(2))
    state.roll_back()
    assert "model.late" in state.private.tensors()[1]


def test_a_module_that_runs_but_is_not_registered_is_named() -> None:
    """Containers without values of their own, and modules inside registered ones, are not named."""
    known, stranger = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 3)
    state = State(model=known)
    with state.watch_modules() as found:
        nn.Sequential(nn.ReLU(), stranger)(known(torch.ones(1, 2)))
    if not torch._dynamo.eval_frame.cached_backends:  # an earlier test may have compiled something
        assert found == ["Linear (9 values)"]
    with state.watch_modules() as found:
        known(torch.ones(1, 2))
    assert found == []


def test_a_frozen_module_is_named_only_if_it_changes() -> None:
    """The script makes a frozen teacher itself, in a replaced rank as well. An average of the
    weights is frozen too, but moves after its forward, and a batch norm in training mode moves
    during it.
    """
    known = nn.Linear(2, 2)
    teacher = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval().requires_grad_(False)
    average = nn.Linear(2, 3).requires_grad_(False)
    noisy = nn.BatchNorm1d(2).requires_grad_(False)
    with State(model=known).watch_modules() as found:
        average(teacher(known(torch.ones(3, 2))))
        noisy(torch.ones(3, 2))
        average.weight.lerp_(torch.ones(3, 2), 0.1)
    if not torch._dynamo.eval_frame.cached_backends:  # an earlier test may have compiled something
        assert found == ["Linear (9 values)", "BatchNorm1d (5 values)"]


def test_a_disabled_scaler_has_no_state_and_is_left_alone() -> None:
    """Scripts make such a scaler for precisions that need none. Torch gives it no scale at all."""
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = State(model=net, optimizer=optimizer, scaler=torch.amp.GradScaler("cpu", enabled=False))
    state.begin()
    state.roll_back()
    saved = state.shared_tensors()
    state.load_shared(*saved)
    state.keep_undo()
    state.undo()
    assert not state.scalers["scaler"].is_enabled()


def test_an_undo_copy_goes_to_the_host_where_the_device_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: the allocator refuses a second copy once, as a device does on which the training
    itself just fits.
    """
    net = nn.Linear(2, 2)
    state = State(model=net)
    real, asked = torch.empty_like, []

    def full(tensor: torch.Tensor, **options: object) -> torch.Tensor:
        asked.append(options)
        if not options:
            raise torch.OutOfMemoryError("the device is full")
        return real(tensor, **options)

    monkeypatch.setattr(torch, "empty_like", full)
    before = net.weight.detach().clone()
    state.keep_undo()
    with torch.no_grad():
        net.weight.add_(1)
    state.undo()
    assert torch.equal(net.weight, before)
    assert {"device": "cpu"} in asked


class Wrapper(torch.optim.Optimizer):
    """A wrapper like that of accelerate: it shows the groups and the state of the optimizer
    inside.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state


def test_a_wrapped_optimizer_is_kept_and_its_groups_are_left_alone() -> None:
    """The size of its state is found on a clone, and the hooks are on the optimizer inside."""
    net = nn.Linear(4, 4)
    inner = optim.AdamW(net.parameters(), lr=1e-3)
    state = State(net=net, optimizer=Wrapper(inner))
    assert state.bytes_needed()[1] > 3 * 20 * 4  # parameters and two moments
    assert len(inner.param_groups) == 1
    assert state.optimizers["optimizer"] is inner


def test_a_scaler_that_is_disabled_is_kept_like_any_other() -> None:
    """Such a scaler has no scale, and nothing to restore."""
    net = nn.Linear(4, 4)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    state = State(net=net, optimizer=optim.SGD(net.parameters()), scaler=scaler)
    before = net.weight.detach().clone()
    state.begin()
    state.roll_back()
    text, tensors = state.shared_tensors()
    state.load_shared(text, tensors)
    assert not scaler.is_enabled()
    assert scaler.state_dict() == {}
    assert torch.equal(net.weight, before)
    assert state.shared_tensors()[0] == text
