"""Work that is given to `step.on_commit` runs at most once, whatever happens to its rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(180)]

SCRIPT = """
import os, signal
import torch
import outlast

run = outlast.join()
torch.manual_seed(0)
model = run.replicate(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
state = run.state(model=model, optimizer=optimizer)

def note(number):
    with open("began", "a") as file:
        file.write(f"{number} ")
    if number == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 20:
        raise OSError("the disk is full")
    with open("done", "a") as file:
        file.write(f"{number} ")

for step in run.steps(state, until=30):
    with step:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.rank == 0 and step.number % 5 == 0:
            step.on_commit(lambda: note(step.number))
"""


def test_work_after_a_commit_is_not_done_twice(tmp_path: Path) -> None:
    """Method: the work of step 10 kills its rank, and that of step 20 raises. Both steps stay
    committed.
    """
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcome = drilled(tmp_path, str(script), workers=2)
    assert outcome.code == 0, str(outcome)
    assert [one["mechanism"] for one in outcome.interruptions] == ["signal", "exception"]
    assert [one["steps_lost"] for one in outcome.interruptions] == [0, 0], str(outcome)
    assert (tmp_path / "began").read_text().split() == ["5", "10", "15", "20", "25", "30"]
    assert (tmp_path / "done").read_text().split() == ["5", "15", "25", "30"]


def test_work_that_fails_on_all_ranks_ends_the_run_when_it_fails_again(tmp_path: Path) -> None:
    """All ranks are lost by the first error, and start again from a copy in shared memory. The
    second error is the same, so the script is not tried a third time. The state is saved.
    """
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("if run.rank == 0 and", "if").replace("== 10", "== 0"))
    outcome = drilled(tmp_path, str(script), workers=2)
    assert outcome.code == 1, outcome
    assert [one["mechanism"] for one in outcome.interruptions] == ["exception"] * 2, outcome
    assert "error: every rank raised after step " in outcome.stderr, outcome
    assert "last error: OSError: the disk is full" in outcome.stderr, outcome
    assert "`outlast run --resume` goes on from there" in outcome.stderr, outcome
