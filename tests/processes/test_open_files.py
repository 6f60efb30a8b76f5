"""A limit of open files that is too low is raised, or ends a run at once with a hint."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.model import limits
from tests.drills._run import OUTLAST

needed = limits.RUN_FILES_COUNT + 3 * limits.WORKER_FILES_COUNT


def _limited(soft: int, hard: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, preexec_fn=limit, env={**os.environ}
    )


@pytest.mark.parametrize("hard", [12, 40, needed - 1])
def test_a_run_with_too_few_open_files_ends_at_once_with_a_hint(tmp_path: Path, hard: int) -> None:
    """No folder is made, no worker is started, and nothing is tried again."""
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    folder = tmp_path / "run"
    command = ["run", "--nproc-per-node", "2", "--spares", "1", "--run-dir", str(folder)]
    done = _limited(hard, hard, [OUTLAST, *command, str(script)])
    assert done.returncode == 2, done
    for words in ("open files", f"may have {hard} (RLIMIT_NOFILE)", "hint:", "ulimit -n"):
        assert words in done.stderr, done
    if hard > limits.RUN_FILES_COUNT + limits.WORKER_FILES_COUNT:
        assert f"3 workers, spares included, needs {needed} open files" in done.stderr, done
        assert f"ulimit -n {needed}" in done.stderr, done
    else:  # the command line was not read yet, so the number of workers is unknown
        assert "error: outlast run needs at least" in done.stderr, done
    assert "Traceback" not in done.stderr, done
    assert not folder.exists()


CHILD = """
import resource, subprocess, sys
from outlast.runtime.open_files import make_room_for_run
other = subprocess.Popen(["sleep", "60"])
make_room_for_run(3, (other.pid,))
for pid in (0, other.pid):
    print(*resource.prlimit(pid, resource.RLIMIT_NOFILE))
other.kill()
"""


def test_a_soft_limit_is_raised_for_the_launcher_and_its_zygote() -> None:
    """The hard limit stays as it is. A soft limit that is high enough stays too."""
    hard = needed + 100
    for soft, raised in ((40, needed), (needed + 7, needed + 7)):
        done = _limited(soft, hard, [sys.executable, "-c", CHILD])
        assert done.stdout.splitlines() == [f"{raised} {hard}"] * 2, done
