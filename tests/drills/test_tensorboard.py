"""The example of docs/how-to/monitor-a-run.md: TensorBoard gets each committed step once."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("tensorboard")

from tests.drills._run import Drill

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "monitor-a-run.md"
STEPS = 60
SCRIPT = """
import os, torch, outlast
from torch.utils.tensorboard import SummaryWriter
run = outlast.join()
torch.manual_seed(0)
model = run.replicate(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = run.state(model=model, optimizer=optimizer)
def note(number):
    with open(os.environ["DRILL_COMMITS"], "a") as file:
        print(run.rank, number, os.getpid(), file=file)
"""


def example() -> str:
    """Return the code of the page, with the two lines filled in that it leaves to the reader."""
    (code,) = re.findall(r"```python\n(writer = None\n.*?)```", PAGE.read_text(), re.DOTALL)
    code = code.replace("until=10_000", f"until={STEPS}, log_every=0")
    return code.replace(
        "        loss = loss_of(step.batch)\n",
        "        step.on_commit(lambda number=step.number: note(number))\n"
        "        loss = model(torch.ones(2, 4)).pow(2).mean() + step.number\n",
    )


@pytest.mark.drill
@pytest.mark.timeout(120)
@pytest.mark.parametrize("rank", [0, 1])
def test_tensorboard_gets_each_committed_step_once(tmp_path: Path, rank: int) -> None:
    """Method: a rank is killed. If it is rank 0, the value of the step around the kill may be
    missing.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + example())
    drill = Drill(tmp_path, str(script), workers=2, flags=("--spares", 1), within_s=90.0)
    with drill:
        drill.until(lambda: drill.step > 20, "training")
        os.kill(drill.pid_of(rank), signal.SIGKILL)
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert len(outcome.interruptions) == 1, outcome
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps: list[int] = []
    for file in (tmp_path / "logs").iterdir():
        events = EventAccumulator(str(file)).Reload()
        scalars = events.Scalars("loss")
        steps += [one.step for one in scalars]
        assert all(one.step <= one.value < one.step + 5 for one in scalars)
    assert len(steps) == len(set(steps)), "written twice"
    missing = set(range(1, STEPS + 1)) - set(steps)
    assert len(missing) <= (5 if rank == 0 else 0), missing
