"""How often the traceback of a script's own error stands on the console.

Each process that ends by the error prints it once, as under torchrun. The console shows it in full
for the first of them. Each other one gets a line with its rank, its attempt and its log. The
launcher does not print it again.
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


def named_again(outcome: Outcome) -> list[Path]:
    """Return the logs of the processes of which the console says that they have the same error."""
    who = r"outlast: rank \d+ \(attempt \d+\)"
    said = rf"^{who} has the same error: ValueError: planted; its log: (.+)$"
    return [Path(path) for path in re.findall(said, outcome.stderr, re.MULTILINE)]


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
def test_a_script_without_outlast_calls_shows_it_once_in_full(tmp_path: Path, who: str) -> None:
    outcome = failing(tmp_path, PLAIN.format(who=who))
    assert shown(outcome) == 1, outcome
    each_is_named(outcome, tmp_path)


@pytest.mark.parametrize("who", [ALL, ONE])
def test_an_error_in_a_step_is_shown_once_in_full(tmp_path: Path, who: str) -> None:
    """The step is repeated in place before. A repetition shows nothing."""
    each_is_named(failing(tmp_path, ADOPTED.format(inside=who, outside=NONE)), tmp_path)


@pytest.mark.parametrize("who", [ALL, ONE])
def test_an_error_between_steps_is_shown_once_in_full(tmp_path: Path, who: str) -> None:
    each_is_named(failing(tmp_path, ADOPTED.format(inside=NONE, outside=who)), tmp_path)


def test_a_missing_module_of_all_ranks_in_all_attempts_is_shown_once(tmp_path: Path) -> None:
    """A rank may be killed while it prints, because another one has failed. What it has printed is
    shown then, and counts as cut.
    """
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nimport no_such_module\n")
    outcome = drilled(tmp_path, str(script), workers=2)
    assert outcome.code == 1, outcome
    text = outcome.stdout + outcome.stderr
    assert len(re.findall("^ModuleNotFoundError: ", text, re.MULTILINE)) == 1, outcome
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "logs").rglob("stderr.log"))
    had, head = logs.count("\nModuleNotFoundError: "), "Traceback (most recent call last)"
    assert had > 1, "nothing is repeated, so nothing is tested"
    assert text.count(head) == 1 + logs.count(head) - had, outcome
    assert text.count("has the same error: ModuleNotFoundError: ") == had - 1, outcome


def each_is_named(outcome: Outcome, folder: Path) -> None:
    """Check that each process is shown in full or named with its log, and that one is in full.

    If no process has printed the error, the launcher shows it.
    """
    logs = named_again(outcome)
    assert shown(outcome) >= 1, outcome
    assert shown(outcome) + len(logs) == max(1, processes(folder)), outcome
    assert all("ValueError: planted" in path.read_text() for path in logs), outcome


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
