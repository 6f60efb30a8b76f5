"""The tutorial is followed to the letter: its script, its commands, and its promise of equal
digests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "first-failure.md"
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
BEFORE, AFTER = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
pytestmark = pytest.mark.drill


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-ec", command],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def digest(output: str) -> str:
    return re.findall(r"^digest (\w+)$", output, re.MULTILINE)[0]


def pid_of_rank(rank: int, folder: Path) -> int:
    """Return the pid that `outlast status` shows once the run trains, within a bounded time."""
    until_s = time.monotonic() + 90
    while time.monotonic() < until_s:
        said = shell("outlast status || true", folder).stdout
        row = re.search(rf"^ +{rank} +(\d+) .*training$", said, re.MULTILINE)
        if row and " hot" in said and re.search(r"step [1-9]\d", said):
            return int(row.group(1))
        time.sleep(0.3)
    raise AssertionError(f"no rank {rank} trains:\n{said}")


@pytest.mark.timeout(300)
def test_the_tutorial_works_to_the_letter(tmp_path: Path) -> None:
    """Method: run the page's commands in their order, in a folder of their own.

    The kill goes to one pid, which is shown to be the process that the page's `pkill` names.
    """
    install, run, look_and_kill, report, again = COMMANDS
    assert "pip install" in install
    look, kill = look_and_kill.strip().splitlines()
    assert (look, kill) == ("outlast status", "pkill -KILL outlast-rank1")
    (tmp_path / "train.py").write_text(AFTER)
    with subprocess.Popen(
        run.split(), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as struck:  # fmt: skip  # one line of the page
        pid = pid_of_rank(1, tmp_path)
        assert Path(f"/proc/{pid}/comm").read_text().strip() == "outlast-rank1"
        shell(f"kill -KILL {pid}", tmp_path)
        output, _ = struck.communicate(timeout=120)
    assert struck.returncode == 0, output
    assert re.search(r"interruption 1: back after .* by spare, \d steps? repeated, 0 lost", output)
    said = shell(report, tmp_path).stdout
    assert "Interruptions" in said, said
    assert "0 lost" in said
    undisturbed = shell(again, tmp_path)
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    assert digest(undisturbed.stdout) == digest(output)


@pytest.mark.timeout(120)
def test_the_script_before_runs_under_torchrun(tmp_path: Path) -> None:
    """Method: run the page's first script with torch's own launcher."""
    (tmp_path / "before.py").write_text(BEFORE)
    done = shell("python -m torch.distributed.run --nproc-per-node 2 before.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epoch 9 loss" in done.stdout
