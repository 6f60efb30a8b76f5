"""Without `outlast run` a script runs alone: a step needs no vote, and wrong use is refused in the
same words.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import outlast
from outlast.errors import StateError, TransactionError, UsageError
from outlast.runtime.worker.member.membership import Membership
from outlast.runtime.worker.run import Run
from tests.drills._scripts import write

LOGGING = """
state = named()
for step in run.steps(state, until=10):
    with step:
        step.log(before=run.rank + 1.0, reduce="mean")
        update(step)
        step.log(total=torch.tensor(10.0 * run.rank), reduce="sum")
end()
"""


@pytest.fixture
def run() -> Run:
    return Run(Membership.of(None, reenters=False))


def _state(run: Run, **more: object) -> outlast.State:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    data = TensorDataset(torch.randn(16, 4))
    loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=4))
    return run.state(
        **{
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "loader": loader,
            **more,
        }
    )


def _update(state: outlast.State, step: outlast.Step) -> None:
    optimizer = state.optimizers["optimizer"]
    optimizer.zero_grad()
    state.given["model"](step.batch[0]).sum().backward()  # type: ignore[operator]
    optimizer.step()


def _train(run: Run, state: outlast.State, body: Callable[[outlast.Step], object]) -> None:
    for step in run.steps(state, until=3):
        with step:
            body(step)


def test_two_calls_of_steps_go_on_with_the_numbers_and_the_batches(run: Run) -> None:
    """Method: calls of run.steps up to 2 and then up to 5 end where one call up to 5 does."""
    state = _state(run)
    numbers = []
    for until in (2, 5):
        for step in run.steps(state, until=until, log_every=0):
            with step:
                _update(state, step)
            numbers.append(step.number)
    assert numbers == [1, 2, 3, 4, 5]
    whole_run = Run(Membership.of(None, reenters=False))
    whole = _state(whole_run)
    for step in whole_run.steps(whole, until=5, log_every=0):
        with step:
            _update(whole, step)
    assert outlast.digest(state.given["model"]) == outlast.digest(whole.given["model"])


def test_a_second_call_with_another_state_is_refused(run: Run) -> None:
    for step in run.steps(_state(run), until=1):
        with step:
            pass
    with pytest.raises(UsageError, match="another state"):
        run.steps(_state(run), until=2)


def test_a_loop_may_be_left_early_and_continued(run: Run) -> None:
    state = _state(run)
    for step in run.steps(state, until=9):
        with step:
            _update(state, step)
        if step.number == 3:
            break
    with next(run.steps(state, until=9)) as after:
        assert after.number == 4


def test_a_step_is_entered_once_and_in_its_turn(run: Run) -> None:
    """Method: a step is entered inside another one, twice, and not at all. Each error names the
    line in this file.
    """
    here = Path(__file__).name
    state = _state(run)
    step = next(run.steps(state, until=5))
    with pytest.raises(TransactionError, match=rf"{here}:\d+ in .*inside another step"), step, step:
        pass
    steps = Run(Membership.of(None, reenters=False)).steps(_state(run), until=5)
    with (first := next(steps)):
        pass
    with pytest.raises(TransactionError, match=rf"{here}:\d+ in .*entered twice"), first:
        pass
    next(steps)
    with pytest.raises(TransactionError, match=rf"{here}:\d+ in .*step 2 was skipped"):
        next(steps)


def test_an_absent_batch_is_an_error_with_the_reason(run: Run) -> None:
    with pytest.raises(TransactionError, match="2 micro-batches"):
        _ = next(run.steps(_state(run), until=1, accumulate=2)).batch
    alone = Run(Membership.of(None, reenters=False))
    with pytest.raises(TransactionError, match="without a loader"):
        _ = next(alone.steps(_state(alone, loader=None), until=1)).batch


def test_what_cannot_be_saved_is_named(run: Run) -> None:
    with pytest.raises(StateError, match=r"thing=\.\.\.\) is of type list"):
        run.state(thing=[1])
    with pytest.raises(StateError, match="RandomSampler"):
        run.state(loader=DataLoader(TensorDataset(torch.zeros(4, 1)), shuffle=True))


def test_a_tensor_that_changes_its_shape_is_named(run: Run) -> None:
    state = _state(run)
    state.given["model"].register_buffer("late", torch.zeros(2))  # type: ignore[attr-defined]
    state = run.state(model=state.given["model"])

    def grow(step: outlast.Step) -> None:
        if step.number == 2:
            state.given["model"].late = torch.zeros(3)  # type: ignore[attr-defined]

    with pytest.raises(StateError, match=r"model\.late was .*\[2\] and is now .*\[3\]"):
        _train(run, state, grow)


def test_values_are_logged_and_callbacks_called_once_after_the_block(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    called = []
    for step in run.steps(_state(run), until=3, log_every=2):
        with step:
            step.log(loss=torch.tensor(2.0), reduce="mean")
            step.log(lr=0.5)
            step.on_commit(lambda number=step.number: called.append(number))
            assert len(called) == step.number - 1
        assert step.logged == {"loss": 2.0, "lr": 0.5}
    assert called == [1, 2, 3]
    assert capsys.readouterr().out.splitlines() == ["step 1 loss 2 lr 0.5", "step 2 loss 2 lr 0.5"]


def test_a_function_given_to_log_gets_the_values_after_the_commit(run: Run) -> None:
    told: list[tuple[int, dict[str, float]]] = []
    for step in run.steps(_state(run), until=2, log_every=0):
        with step:
            step.log(loss=torch.tensor(2.0), lr=0.5, to=lambda *what: told.append(what))
            step.log(other=1.0)
            assert len(told) == step.number - 1
    assert told == [(1, {"loss": 2.0, "lr": 0.5}), (2, {"loss": 2.0, "lr": 0.5})]


def test_an_error_of_the_script_passes_through(run: Run) -> None:
    with pytest.raises(ZeroDivisionError):
        _train(run, _state(run), lambda step: step.number // 0)


def test_the_same_script_runs_under_python(tmp_path: Path) -> None:
    done = _start([sys.executable, str(write(tmp_path, LOGGING))])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["step 1 before 1 total 0", "step 10 before 1 total 0"]
    assert done.stdout.splitlines()[2].startswith("digest 0 ")


@pytest.mark.drill
def test_the_same_script_runs_under_torchrun_and_reduces_over_its_ranks(tmp_path: Path) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    done = _start(
        [torchrun, "--standalone", "--nproc-per-node", "2", str(write(tmp_path, LOGGING))]
    )
    assert done.returncode == 0, done.stderr
    assert "step 10 before 1.5 total 10" in done.stdout.splitlines(), done.stdout
    assert (
        len({line.split()[2] for line in done.stdout.splitlines() if line.startswith("digest")})
        == 1
    )


@pytest.mark.drill
@pytest.mark.parametrize("command", [[], ["-m", "outlast", "run", "--nproc-per-node", "2"]])
def test_loader_workers_leave_no_folder_behind(tmp_path: Path, command: list[str]) -> None:
    """A worker that shares tensors has a folder in TMPDIR, which it removes when it ends."""
    script = Path(__file__).parents[1] / "drills" / "scripts" / "ddp.py"
    files = tmp_path / "files"
    files.mkdir()
    own = {"TMPDIR": str(files), "DRILL_COMMITS": str(tmp_path / "commits")}
    arguments = [str(script), "--steps", "4", "--loaders", "2"]
    done = _start([sys.executable, *command, *arguments], own=own, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(files.glob("pymp-*"))


def _start(
    command: list[str], *, own: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(own or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=50,
    )
