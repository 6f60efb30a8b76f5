"""Whatever happens to the console, training goes on: the console is closed, it stops, or it hangs
up.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.app.command import outlast
from tests.drills._pids import until
from tests.drills._run import OUTLAST

pytestmark = pytest.mark.timeout(150)
STEPS = 40
WITHIN_S = 90
SCRIPT = """
import os, sys, torch, outlast
run = outlast.join()
model = run.replicate(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=int(sys.argv[1]), log_every=0):
    with step:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"step {step.number} of {os.getpid()}", "." * int(sys.argv[2]), flush=True)
print("digest", run.rank, outlast.digest(state), flush=True)
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a training of two ranks. `width` is the number of letters in each of its lines."""
    begun: list[subprocess.Popen[bytes]] = []

    def run(
        *, width: int = 10, steps: int = STEPS, before: tuple[str, ...] = (), **streams: Any
    ) -> subprocess.Popen[bytes]:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        command = [
            *before,
            OUTLAST,
            "run",
            "--nproc-per-node",
            "2",
            "--run-dir",
            str(tmp_path / "run"),
            str(script),
            str(steps),
            str(width),
        ]
        begun.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                **{"stdin": subprocess.DEVNULL, **streams},
            )
        )
        return begun[-1]

    yield run
    for process in begun:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait(10)


def reported(folder: Path) -> dict[str, Any]:
    said = outlast("report", folder / "run", "--json")
    facts: dict[str, Any] = json.loads(said.stdout)
    return facts


def logged(folder: Path, rank: int) -> list[str]:
    (path,) = (folder / "run" / "logs").rglob(f"attempt_0/{rank}/stdout.log")
    return path.read_text().splitlines()


@pytest.mark.drill
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_run_without_standard_streams_trains_to_its_end(
    start: Start, tmp_path: Path, closed: str
) -> None:
    """A service manager may start a run like this. What is printed must not reach another file."""
    process = start(before=("sh", "-c", f'exec "$@" {closed}', "sh"))
    assert process.wait(WITHIN_S) == 0
    assert reported(tmp_path)["steps"] == STEPS
    assert len(logged(tmp_path, 0)) == STEPS + 1


@pytest.mark.drill
def test_a_reader_that_wants_three_lines_does_not_end_the_training(
    start: Start, tmp_path: Path
) -> None:
    """This happens in `outlast run ... | head -3`."""
    process = start(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline().startswith(b"step ")
    process.stdout.close()
    assert process.wait(WITHIN_S) == 0
    assert reported(tmp_path)["steps"] == STEPS
    assert len(logged(tmp_path, 0)) == STEPS + 1


@pytest.mark.drill
def test_a_reader_that_stops_holds_up_neither_training_nor_recovery(
    start: Start, tmp_path: Path
) -> None:
    """Method: like a pager that is not scrolled, the reader lets the pipe fill. A rank is killed,
    and the run goes on and ends.
    """
    steps = 600
    process = start(stdout=subprocess.PIPE, stderr=subprocess.PIPE, width=10_000, steps=steps)
    assert process.stdout is not None
    os.kill(int(process.stdout.readline().split()[3]), signal.SIGKILL)
    assert process.wait(WITHIN_S) == 0
    facts = reported(tmp_path)
    assert facts["steps"] == steps
    assert [one["resumed_s"] is not None for one in facts["interruptions"]] == [True]


@pytest.mark.drill
def test_a_reader_that_goes_on_sees_how_much_it_has_missed(start: Start, tmp_path: Path) -> None:
    steps, width = 600, 2_000
    process = start(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, width=width, steps=steps)
    assert process.stdout is not None
    logs = tmp_path / "run" / "logs"
    process.stdout.readline()
    until(
        "a rank has printed its digest",
        lambda: any("digest" in path.read_text()[-200:] for path in logs.rglob("stdout.log")),
        within_s=WITHIN_S,
    )
    rest = process.stdout.read().decode()
    assert process.wait(WITHIN_S) == 0
    left_out = sum(
        int(line.split()[1]) for line in rest.splitlines() if line.startswith("outlast: ")
    )
    shown = sum(
        line.endswith(width * ".") or line.startswith("digest ") for line in rest.splitlines()
    )
    assert left_out > 0
    assert 1 + shown + left_out == 2 * (steps + 1)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Yield both ends of a terminal: the reader's, and the writer's."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        with suppress(OSError):
            os.close(end)


def test_a_terminal_that_is_gone_ends_nothing(
    start: Start, terminal: tuple[int, int], tmp_path: Path
) -> None:
    """As under setsid, the terminal is not the run's controlling terminal, so the run gets no
    signal.
    """
    ours, theirs = terminal
    process = start(before=("setsid",), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert b"step" in read_until(ours, b"step 3")
    os.close(ours)
    assert process.wait(WITHIN_S) == 0
    assert reported(tmp_path)["steps"] == STEPS


@pytest.mark.drill
def test_a_terminal_that_is_stopped_holds_up_nothing(
    start: Start, terminal: tuple[int, int], tmp_path: Path
) -> None:
    """Method: Ctrl-S, without a Ctrl-Q."""
    ours, theirs = terminal
    process = start(stdin=theirs, stdout=theirs, stderr=theirs)
    assert b"step" in read_until(ours, b"step 3")
    termios.tcflow(theirs, termios.TCOOFF)
    assert process.wait(WITHIN_S) == 0
    assert reported(tmp_path)["steps"] == STEPS


def read_until(fd: int, word: bytes) -> bytes:
    seen = b""
    while word not in seen:
        seen += os.read(fd, 65536)
    return seen
