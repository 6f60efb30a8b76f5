"""`outlast run --no-python` as its operator sees it: a real program that is killed once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.app.reports.status import status_facts
from outlast.errors import OutlastError
from outlast.runtime.ledger.view import look
from tests.app.command import outlast

OUTLAST = str(Path(sys.executable).with_name("outlast"))
BOUND_S = 60.0


def _until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < end_s, f"not in time: {what}"
        time.sleep(0.02)


def _states(folder: Path) -> tuple[str, list[str]]:
    """Return the state of the run and those of its workers; both are empty while there is
    no run.
    """
    try:
        facts = status_facts(look(str(folder)))
    except (OutlastError, OSError, LookupError):
        return "", []
    return facts["state"], [worker["state"] for worker in facts["workers"]]


@pytest.mark.timeout(120)
def test_an_interruption_of_a_program_ends_with_its_restart(
    tmp_path: Path,
) -> None:
    """Method: each rank writes its pid and waits for a file. Rank 1 is killed and restarts, and
    then the file is made.
    """
    folder, go = tmp_path / "run", tmp_path / "go"
    text = (
        f"echo $$ > {tmp_path}/part-$RANK; mv {tmp_path}/part-$RANK"
        f" {tmp_path}/pid-$RANK-$TORCHELASTIC_RESTART_COUNT; until [ -e {go} ]; do sleep 0.05; done"
    )
    command = [
        OUTLAST,
        "run",
        "--nproc-per-node",
        "2",
        "--run-dir",
        str(folder),
        "--no-python",
        "sh",
        "-c",
        text,
    ]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=tmp_path
        )
    try:
        _until(
            lambda: (
                _states(folder) == ("training", ["training"] * 2)
                and (tmp_path / "pid-1-0").exists()
            ),
            "both at work",
        )
        os.kill(int((tmp_path / "pid-1-0").read_text()), signal.SIGKILL)
        _until(
            lambda: (
                (tmp_path / "pid-1-1").exists()
                and _states(folder) == ("training", ["training"] * 2)
            ),
            "both at work again",
        )
        go.touch()
        assert process.wait(BOUND_S) == 0, (tmp_path / "said").read_text()
    finally:
        process.kill()
        process.wait()
    report = json.loads(outlast("report", folder, "--json").stdout)
    (one,) = report["interruptions"]
    assert (one["mechanism"], one["rung"], one["ranks"]) == ("signal", "restart", [1])
    assert one["resumed_s"] is not None
