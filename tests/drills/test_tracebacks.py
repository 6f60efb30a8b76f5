"""How often the traceback of a script's own error stands on the console.

Each process that ends by the error prints it once, as under torchrun. The launcher does not print
it again. So a rank that fails once shows it once, and a script that is started again and fails
again shows it once for each process.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.drills._run import Outcome, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(200)]
HEAD = "import os, sys, torch\n"
PLAIN = (
    HEAD
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for n in range(1, 6):
    model(torch.ones(2, 4)).sum().backward()
    if n == 3 and {who}:
        raise ValueError("planted")
    optimizer.step()
"""
)
ADOPTED = (
    HEAD
    + """
import outlast
run = outlast.join()
model = run.replicate(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=6):
    if step.number == 4 and {outside}:
        raise ValueError("planted")
    with step:
        model(torch.ones(2, 4)).sum().backward()
        if step.number == 3 and {inside}:
            raise ValueError("planted")
        optimizer.step()
"""
)
# torch puts the rank in front where there is a process group
LAST_LINE = re.compile(r"^(?:\[rank\d\]: )?ValueError: planted$", re.MULTILINE)
ALL, ONE, NONE = "True", "os.environ['RANK'] == '1'", "False"


def shown(outcome: Outcome) -> int:
    """Return how many tracebacks of the planted error are on the console."""
    return len(LAST_LINE.findall(outcome.stdout + outcome.stderr))


def failing(folder: Path, source: str) -> Outcome:
    script = folder / "train.py"
    script.write_text(source)
    outcome = drilled(folder, str(script), workers=2, flags=("--spares", 1))
    assert outcome.code == 1, outcome
    assert "ValueError: planted" in outcome.stderr, outcome
    return outcome


def processes(folder: Path) -> int:
    """Return how many processes wrote the error into their own logs."""
    logs = (folder / "run" / "logs").rglob("stderr.log")
    return sum(len(LAST_LINE.findall(path.read_text())) for path in logs)


@pytest.mark.parametrize("who", [ALL, ONE])
def test_a_script_without_outlast_calls_shows_it_once_for_each_process(
    tmp_path: Path, who: str
) -> None:
    outcome = failing(tmp_path, PLAIN.format(who=who))
    assert 1 <= shown(outcome) == processes(tmp_path), outcome


@pytest.mark.parametrize("who", [ALL, ONE])
def test_an_error_in_a_step_is_shown_once_for_each_rank_that_has_it(
    tmp_path: Path, who: str
) -> None:
    """The step is repeated in place before. A repetition shows nothing."""
    outcome = failing(tmp_path, ADOPTED.format(inside=who, outside=NONE))
    assert 1 <= shown(outcome) <= (2 if who == ALL else 1), outcome


@pytest.mark.parametrize("who", [ALL, ONE])
def test_an_error_between_steps_is_shown_once_for_each_process(tmp_path: Path, who: str) -> None:
    outcome = failing(tmp_path, ADOPTED.format(inside=NONE, outside=who))
    assert 1 <= shown(outcome) == processes(tmp_path), outcome


def test_ctrl_c_while_a_lost_peer_is_reported_shows_no_traceback_of_ours(tmp_path: Path) -> None:
    """Ctrl-C ends one rank first. Its peers are reporting its loss when the signal reaches them.

    Method: the script's own hook for exceptions is called to show the loss, and raises the signal.
    """
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, sys\n"
        "sys.excepthook = lambda *_: signal.raise_signal(signal.SIGINT)\n"
        "raise RuntimeError('Connection closed by peer')\n"
    )
    outcome = drilled(tmp_path, str(script), workers=2, flags=("--max-restarts", 0))
    assert outcome.code != 0
    assert "\nKeyboardInterrupt\n" in outcome.stderr, outcome
    assert "bootstrap.py" not in outcome.stderr, outcome
