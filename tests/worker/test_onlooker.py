"""Steps of a script without outlast calls, as torch's optimizer hooks report them.

The environment of a spare is tested here too.
"""

from __future__ import annotations

import collections
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)

from outlast.engine.protocol.worker import WorkerMachine
from outlast.errors import UsageError
from outlast.model.beacon import Beacon
from outlast.model.messages import Committed
from outlast.model.terms import Cause, Phase
from outlast.runtime.worker.process import rank_variables
from outlast.runtime.worker.process.error_text import text_with_line
from outlast.runtime.worker.script.onlooker import Onlooker, ungrouped_hint
from outlast.runtime.worker.start import bootstrap


class Seen:
    """A stand-in for a session: its machine and its beacon are real, and it keeps what is
    reported.
    """

    def __init__(self, *, high_water: int = 0, folder: Path | None = None) -> None:
        self.spec = SimpleNamespace(run_folder=str(folder or "no such folder"))
        self.warnings: list[str] = []
        self.machine = WorkerMachine(worker=1)
        self.beacon = Beacon(worker=1)
        self.said: list[Any] = []
        self.causes: list[Cause | None] = []
        self.machine.generation = 2
        self.machine._first_commit_said = False
        plan = SimpleNamespace(high_water=high_water, world_size=2)
        self.machine.plan = plan  # type: ignore[assignment]

    def do(self, act: Callable[[WorkerMachine], list[Any]]) -> None:
        self.said += [output.message for output in act(self.machine)]

    def enter(self, phase: Phase, *, cause: Cause | None = None) -> None:
        self.causes.append(cause)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def mark(self, name: str, step: int) -> None:
        """Pass a place at which a drill could strike. No fault comes here."""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Seen]]:
    made: list[Onlooker] = []
    for owner, names in (
        (torch, ("save", "load")),
        (sys.modules["torch.serialization"], ("save", "load")),
        (torch.multiprocessing, ("start_processes",)),
        (nn.Module, ("state_dict", "load_state_dict")),
        (safetensors.torch, ("save_file", "load_file")),
        (importlib.import_module("torch.multiprocessing.spawn"), ("start_processes",)),
    ):
        for name in names:  # what the onlooker replaces is put back after the test
            monkeypatch.setattr(owner, name, getattr(owner, name))

    def watch(**options: Any) -> Seen:
        seen = Seen(**options)
        onlooker = Onlooker(seen)  # type: ignore[arg-type]
        onlooker._on_optimizers(importlib.import_module("torch.optim.optimizer"))
        onlooker._on_files(sys.modules["torch.serialization"])
        onlooker._on_safetensors(safetensors.torch)
        onlooker._on_modules(sys.modules["torch.nn.modules.module"])
        onlooker._on_spawn(importlib.import_module("torch.multiprocessing.spawn"))
        made.append(onlooker)
        return seen

    yield watch
    for one in made:
        one.retire()


def trained(
    steps: int, *, kind: Any = torch.optim.AdamW, given: dict[str, Any] | None = None
) -> Any:
    net = nn.Linear(2, 1)
    optimizer = kind(net.parameters(), lr=1e-3)
    if given is not None:
        optimizer.load_state_dict(given)
    train(net, optimizer, steps)
    return optimizer.state_dict()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        net(torch.ones(2)).sum().backward()
        optimizer.step()


def test_each_call_of_the_optimizer_is_a_step(watched: Callable[..., Seen]) -> None:
    seen = watched()
    trained(5)
    assert seen.beacon.step == 5
    assert [type(one) for one in seen.said] == [Committed]
    assert (seen.said[0].step, seen.said[0].generation) == (1, 2)
    assert set(seen.causes) == {Cause.PRODUCTIVE}


def test_ranks_without_a_process_group_are_reported_to_train_alone(
    watched: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens with accelerate on a machine without GPUs. The warning comes once, and neither
    on other ranks nor within a group.
    """
    seen = watched()
    seen.beacon.rank = 0
    trained(5)
    (said,) = seen.warnings
    assert "each of the 2 ranks trains a model of its own" in said
    assert "DistributedDataParallel" in said
    other = watched()
    other.beacon.rank = 1
    alone = watched()
    alone.beacon.rank = 0
    alone.machine.plan.world_size = 1  # type: ignore[union-attr, misc]
    trained(5)
    assert other.warnings == alone.warnings == []
    monkeypatch.setattr(torch.distributed.distributed_c10d, "is_initialized", lambda: True)
    grouped = watched()
    grouped.beacon.rank = 0
    trained(5)
    assert grouped.warnings == []


@pytest.mark.parametrize(
    ("module", "given"),
    [("transformers.trainer", "use_cpu=True"), ("accelerate", "Accelerator(cpu=True)")],
)
def test_the_hint_for_ranks_alone_is_that_of_their_library(
    monkeypatch: pytest.MonkeyPatch, module: str, given: str
) -> None:
    for other in ("transformers.trainer", "accelerate"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    assert given in ungrouped_hint()


def test_a_loaded_optimizer_shows_where_the_script_goes_on(watched: Callable[..., Seen]) -> None:
    """Steps that were executed before the failure count as repeated, and those after them
    as new.
    """
    before = trained(7)
    seen = watched(high_water=10)
    trained(5, given=before)
    assert (seen.beacon.step, seen.said[0].step) == (12, 8)
    assert seen.causes == [Cause.REPEATED] * 2 + [Cause.PRODUCTIVE] * 3


def test_the_step_by_which_torch_makes_room_for_state_does_not_count(
    watched: Callable[..., Seen],
) -> None:
    """A script that loads with torch.distributed.checkpoint goes on from the step that it loads."""
    net = nn.Linear(2, 1)
    before = trained(7)
    seen = watched(high_water=10)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    get_optimizer_state_dict(net, optimizer)
    assert optimizer.state, "torch makes no step any more, and this test has lost its point"
    assert (seen.beacon.step, seen.said) == (0, [])
    optimizer.load_state_dict(before)
    net(torch.ones(2)).sum().backward()
    optimizer.step()
    assert (seen.beacon.step, seen.said[0].step) == (8, 8)


def test_an_optimizer_without_a_count_does_not_pretend_to_have_one(
    watched: Callable[..., Seen],
) -> None:
    """The weights come from somewhere, and it is unknown to which step they belong."""
    seen = watched(high_water=10)
    nn.Linear(2, 1).load_state_dict({"weight": torch.ones(1, 2), "bias": torch.ones(1)})
    trained(3, kind=torch.optim.SGD)
    assert (seen.beacon.step, seen.said[0].step) == (3, 0)
    assert set(seen.causes) == {Cause.OTHER}


def test_a_script_that_loads_nothing_begins_with_its_first_step(
    watched: Callable[..., Seen], tmp_path: Path
) -> None:
    """The script may have saved: many scripts load only what their command line names."""
    watched(folder=tmp_path)
    torch.save(trained(2, kind=torch.optim.SGD), tmp_path / "own.pt")
    seen = watched(high_water=2, folder=tmp_path)
    trained(3, kind=torch.optim.SGD)
    assert (seen.beacon.step, seen.said[0].step) == (3, 1)
    assert seen.causes == [Cause.REPEATED, Cause.PRODUCTIVE, Cause.PRODUCTIVE]


@pytest.mark.parametrize("renamed", [False, True])
def test_a_file_that_the_run_has_saved_shows_where_the_script_goes_on(
    watched: Callable[..., Seen], tmp_path: Path, renamed: bool
) -> None:
    """This holds for an optimizer without a step count too, and for a file that is renamed once it
    is complete.
    """
    watched(folder=tmp_path)
    state = trained(7, kind=torch.optim.SGD)
    path = tmp_path / "own.pt"
    torch.save(state, tmp_path / "new.pt" if renamed else path)
    if renamed:
        (tmp_path / "new.pt").rename(path)
    seen = watched(high_water=10, folder=tmp_path)
    trained(5, kind=torch.optim.SGD, given=torch.load(path))
    assert (seen.beacon.step, seen.said[0].step) == (12, 8)
    assert seen.causes == [Cause.REPEATED] * 2 + [Cause.PRODUCTIVE] * 3


@pytest.mark.parametrize(
    ("names", "first"), [(["7.pt"], 8), (["pre.pt"], 1), (["2.pt", "7.pt"], 0)]
)
def test_weights_loaded_without_their_optimizer_show_the_step(
    watched: Callable[..., Seen], tmp_path: Path, names: list[str], first: int
) -> None:
    """Adam counts from one then. Weights of another run count as no step. `first` 0: not known."""
    torch.save({}, tmp_path / "pre.pt")  # before the onlooker watches anything
    os.utime(tmp_path / "pre.pt", (0, 0))  # long before the run
    watched(folder=tmp_path)
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for count, more in ((2, 2), (7, 5)):
        train(net, optimizer, more)
        torch.save({}, tmp_path / f"{count}.pt")
    seen = watched(high_water=10, folder=tmp_path)
    for name in names:
        nn.Linear(2, 1).load_state_dict(torch.load(tmp_path / name), strict=False)
    trained(1)
    assert seen.said[0].step == first


def save_by_handle(weights: dict[str, Any], path: Path) -> None:
    with open(path, "wb") as file:
        torch.save(weights, file)


def load_by_handle(path: Path) -> Any:
    with open(path, "rb") as file:
        return torch.load(file)


def save_from_memory(weights: dict[str, Any], path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    path.write_bytes(buffer.getvalue())


def load_from_memory(path: Path) -> Any:
    return torch.load(io.BytesIO(path.read_bytes()))


def save_as_bytes(weights: dict[str, Any], path: Path) -> None:
    path.write_bytes(safetensors.torch.save(weights))


def load_as_bytes(path: Path) -> Any:
    return safetensors.torch.load(path.read_bytes())


@pytest.mark.parametrize(
    ("save", "load", "first"),
    [
        (save_by_handle, load_by_handle, 8),
        (save_by_handle, torch.load, 8),
        (torch.save, load_by_handle, 8),
        (safetensors.torch.save_file, safetensors.torch.load_file, 8),
        (save_from_memory, load_from_memory, 0),
        (save_from_memory, torch.load, 0),
        (torch.save, load_from_memory, 0),
        (save_as_bytes, load_as_bytes, 0),
    ],
)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_weights_alone_show_their_step_or_it_is_said_to_be_unknown(
    watched: Callable[..., Seen],
    tmp_path: Path,
    save: Callable[..., Any],
    load: Callable[..., Any],
    first: int,
    kind: Any,
) -> None:
    """The script does not load its optimizer, so Adam counts from one. 0: the step is not known.

    Nothing may say then that the script began with its first step.
    """
    path = tmp_path / "own"
    watched(folder=tmp_path)
    trained(7, kind=kind)
    replaced(save)(nn.Linear(2, 1).state_dict(), path)
    seen = watched(high_water=10, folder=tmp_path)
    nn.Linear(2, 1).load_state_dict(replaced(load)(path))
    trained(3, kind=kind)
    assert seen.said[0].step == first
    repeats = [Cause.REPEATED, Cause.REPEATED, Cause.PRODUCTIVE]
    assert seen.causes == (repeats if first else [Cause.OTHER] * 3)


def replaced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that scripts find under this name now: the onlooker's, if it has one."""
    for module in (torch, safetensors.torch):
        if function.__module__.startswith(module.__name__):
            found: Callable[..., Any] = getattr(module, function.__name__)
            return found
    return function


def test_pretrained_weights_of_an_old_file_are_no_step_of_the_run(
    watched: Callable[..., Seen], tmp_path: Path
) -> None:
    """After a restart, such a script begins with its first step again."""
    path = tmp_path / "pretrained.safetensors"
    safetensors.torch.save_file(nn.Linear(2, 1).state_dict(), path)
    os.utime(path, (0, 0))
    for high_water, before in ((0, Cause.PRODUCTIVE), (2, Cause.REPEATED)):
        seen = watched(high_water=high_water, folder=tmp_path)
        nn.Linear(2, 1).load_state_dict(safetensors.torch.load_file(path))
        trained(2)
        assert seen.said[0].step == 1
        assert seen.causes == [before, Cause.PRODUCTIVE]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("loads", [False, True])
def test_weights_of_a_model_of_the_process_are_not_loaded_ones(
    watched: Callable[..., Seen], tmp_path: Path, kind: Any, loads: bool
) -> None:
    """A target network is set from the model. What the model itself has loaded counts as before.

    torch.distributed.checkpoint gives `self` as a keyword to both methods.
    """
    watched(folder=tmp_path)
    trained(7, kind=kind)
    seen = watched(high_water=10, folder=tmp_path)
    net, target = nn.Sequential(nn.Linear(2, 1)), nn.Sequential(nn.Linear(2, 1))
    if loads:
        net.load_state_dict({"0.weight": torch.ones(1, 2), "0.bias": torch.ones(1)})
    target.load_state_dict(net.state_dict())
    nn.Module.load_state_dict(self=target, state_dict=nn.Module.state_dict(self=net))
    other = {name.removeprefix("0."): one for name, one in target.state_dict().items()}
    nn.Linear(2, 1).load_state_dict(other)
    trained(2, kind=kind)
    assert seen.said[0].step == (0 if loads else 1)


def fill_by_dcp(net: nn.Module, folder: Path) -> None:
    state = get_model_state_dict(net)
    dcp.load(state, checkpoint_id=folder / "dcp")
    set_model_state_dict(net, state)


def fill_in_place(net: nn.Module, folder: Path) -> None:
    state = net.state_dict()
    for one in state.values():
        one.copy_(torch.ones(()))
    net.load_state_dict(state)


@pytest.mark.parametrize("fill", [fill_by_dcp, fill_in_place])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_model_whose_own_tensors_are_filled_has_loaded_weights(
    watched: Callable[..., Seen], tmp_path: Path, fill: Callable[..., None], kind: Any
) -> None:
    """So torch.distributed.checkpoint and readers like it load them. Their step is not known."""
    watched(folder=tmp_path)
    trained(7, kind=kind)
    dcp.save(get_model_state_dict(nn.Linear(2, 1)), checkpoint_id=tmp_path / "dcp")
    seen = watched(high_water=10, folder=tmp_path)
    fill(nn.Linear(2, 1), tmp_path)
    trained(2, kind=kind)
    assert seen.said[0].step == 0
    assert set(seen.causes) == {Cause.OTHER}


def test_a_file_of_another_run_or_two_of_different_steps_show_nothing(
    watched: Callable[..., Seen], tmp_path: Path
) -> None:
    foreign = tmp_path / "pretrained.pt"
    torch.save({}, foreign)  # before the onlooker watches anything
    watched(folder=tmp_path)
    for count in (2, 3):
        torch.save(trained(count, kind=torch.optim.SGD), tmp_path / f"{count}.pt")
    for names in (["pretrained.pt"], ["2.pt", "3.pt"]):
        seen = watched(high_water=10, folder=tmp_path)
        for name in names:
            torch.load(tmp_path / name)
        trained(1, kind=torch.optim.SGD)
        assert seen.said[0].step == 0, names


def test_ranks_that_the_script_starts_itself_are_reported(watched: Callable[..., Seen]) -> None:
    seen = watched()
    with pytest.raises(ValueError):  # torch raises this, and starts no process
        torch.multiprocessing.start_processes(print, nprocs=2, start_method="no such")
    (said,) = seen.warnings
    assert said.startswith(f"{__file__}:")
    assert "starts 2 processes by itself" in said
    assert "--nproc-per-node" in said


def test_two_optimizers_that_take_turns_make_one_step(watched: Callable[..., Seen]) -> None:
    seen = watched()
    nets = [nn.Linear(2, 1), nn.Linear(2, 1)]
    optimizers = [torch.optim.AdamW(net.parameters()) for net in nets]
    for _ in range(4):
        for net, optimizer in zip(nets, optimizers, strict=True):
            net(torch.ones(2)).sum().backward()
            optimizer.step()
    assert seen.beacon.step == 4


@pytest.mark.parametrize("kept", [False, True])
def test_an_optimizer_that_takes_over_goes_on_counting(
    watched: Callable[..., Seen], kept: bool
) -> None:
    """The new optimizer counts from one. The old one may still exist."""
    seen, net, old = watched(), nn.Linear(2, 1), []
    for count in (5, 10, 15):
        optimizer = torch.optim.AdamW(net.parameters())
        if kept:
            old.append(optimizer)
        train(net, optimizer, 5)
        assert seen.beacon.step == count
    assert set(seen.causes) == {Cause.PRODUCTIVE}


@pytest.mark.parametrize("seen_file", [False, True])
@pytest.mark.parametrize("saved", [0, 1])
def test_the_count_of_one_of_several_optimizers_is_not_the_run_s(
    watched: Callable[..., Seen], tmp_path: Path, seen_file: bool, saved: int
) -> None:
    """After it is loaded, only the file shows the step of the run. 0: that step is not known.

    Method: the second optimizer takes over after four steps, for three. Then the first one goes on.
    The script saves one of them after ten steps in all.
    """
    watched(folder=tmp_path)
    net = nn.Linear(2, 1)
    optimizers = [torch.optim.AdamW(net.parameters()) for _ in range(2)]
    for one, steps in ((0, 4), (1, 3), (0, 3)):
        train(net, optimizers[one], steps)
    torch.save(optimizers[saved].state_dict(), tmp_path / "own.pt")
    seen = watched(high_water=12, folder=tmp_path)
    given = torch.load(tmp_path / "own.pt") if seen_file else load_from_memory(tmp_path / "own.pt")
    trained(3, given=given)
    assert seen.said[0].step == (11 if seen_file else 0)
    assert seen.causes[0] == (Cause.REPEATED if seen_file else Cause.OTHER)


def test_nothing_is_counted_once_the_script_has_joined(watched: Callable[..., Seen]) -> None:
    seen = watched()
    trained(2)
    onlooker = Onlooker(seen)  # type: ignore[arg-type]
    onlooker.retire()
    assert seen.beacon.step == 0


def test_a_spare_waits_where_its_script_asks_for_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any way of asking for the rank counts, once. Other variables, and a copy of all of them, do
    not count.
    """
    for name in rank_variables.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    asked: list[str] = []

    def wait() -> None:
        asked.append("rank")
        os.environ["RANK"] = "3"

    kind = type(os.environ)
    try:
        rank_variables.ask_in_front_of(wait)
        assert os.environ.get("HOME_OF_NOBODY") is None
        assert "RANK" not in dict(os.environ)
        assert not asked
        assert int(os.environ.get("RANK", -1)) == 3
        assert (os.environ["RANK"], os.getenv("LOCAL_RANK"), asked) == ("3", None, ["rank"])
    finally:
        os.environ.__class__ = kind


def test_a_refusal_names_the_line_of_the_script_once() -> None:
    """Method: the error is raised and unwound, or described just before it is raised. An error that
    names its own line is enough.
    """
    # a script that has joined has imported
    # it
    importlib.import_module(
        "outlast.runtime.worker.script.hooks"
    )  # as a script that has joined has it

    def told(error: UsageError) -> str:
        try:
            raise error
        except UsageError as raised:
            return text_with_line(raised)

    assert told(UsageError("no such thing", hint="do")).startswith(f"{__file__}:")
    assert text_with_line(UsageError("no such thing")).startswith(f"{__file__}:")
    assert (
        text_with_line(UsageError("train.py:3 in <module>: twice"))
        == "train.py:3 in <module>: twice"
    )


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("UsageError('no such thing')", False),
        ("ValueError('x')", True),
        ("KeyboardInterrupt", False),
    ],
)
def test_a_refusal_is_left_to_the_launcher_and_has_no_traceback(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: str,
    shown: bool,
) -> None:
    """Otherwise each rank would print the same traceback. The launcher shows the line and what to
    do.
    """
    for name, value in (("argv", sys.argv), ("path", list(sys.path))):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.setattr(
        bootstrap.atexit, "register", print
    )  # otherwise pytest dies of SIGINT at its end
    script = tmp_path / "train.py"
    script.write_text(f"from outlast.errors import UsageError\nraise {raised}\n")
    failed: list[BaseException] = []
    spec = SimpleNamespace(script=str(script), args=(), entry="script", cwd=str(tmp_path))
    session = SimpleNamespace(user_failed=failed.append)
    assert bootstrap._run_guarded(spec, session) == 1  # type: ignore[arg-type]
    assert len(failed) == 1
    assert ("Traceback" in capsys.readouterr().err) == shown


class TrainsOn:
    """A part of a file. While it is saved, the script does two more steps."""

    def __reduce__(self) -> Any:
        trained(2, kind=torch.optim.SGD)
        return collections.OrderedDict, ()


def test_a_file_shows_the_step_at_which_its_save_began(
    watched: Callable[..., Seen], tmp_path: Path
) -> None:
    """A script may save on a thread, and train on meanwhile."""
    watched(folder=tmp_path)
    trained(5, kind=torch.optim.SGD)
    torch.save({**nn.Linear(2, 1).state_dict(), "late": TrainsOn()}, tmp_path / "own.pt")
    seen = watched(high_water=7, folder=tmp_path)
    torch.load(tmp_path / "own.pt")
    trained(1, kind=torch.optim.SGD)
    assert seen.said[0].step == 6
