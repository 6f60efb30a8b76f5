"""A replacement cannot be started because the kernel allows no more processes or descriptors. It is
tried again, and is back once the limit is lifted.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills._run import OUTLAST, Drill, Outcome, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(180)]
STEPS = ("--steps", 60, "--pause", 0.05)
SAYS = "a worker could not be started"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    outcome = drilled(tmp_path_factory.mktemp("calm"), "ddp.py", *STEPS[:2], workers=2)
    assert outcome.code == 0, str(outcome)
    return outcome.digests


@pytest.fixture
def group() -> Iterator[Path]:
    """Yield a control group that can be told how many processes and threads it may have."""
    v1 = Path("/sys/fs/cgroup/pids")
    path = (v1 if v1.exists() else Path("/sys/fs/cgroup")) / f"outlast-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "pids.max").write_text("max")
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield path
    path.rmdir()


def one_interruption(outcome: Outcome, expected: dict[int, str]) -> None:
    """Check for one interruption, of the killed rank. What kept its successor from starting is not
    an interruption.
    """
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == expected, str(outcome)
    outcome.ledger_is_sound()
    assert [one["mechanism"] for one in outcome.interruptions] == ["signal"], str(outcome)
    assert SAYS in outcome.stderr, str(outcome)


def test_a_limit_of_processes_delays_a_replacement_until_it_is_lifted(
    tmp_path: Path, group: Path, expected: dict[int, str]
) -> None:
    """Method: from the kill of rank 1 on, no further process is allowed, until the failure is on
    the console.
    """
    into = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    with Drill(tmp_path, "ddp.py", *STEPS, workers=2, before=into, within_s=150.0) as drill:
        drill.until(lambda: drill.step >= 8 and len(drill.children("outlast-store")) == 2, "step 8")
        (group / "pids.max").write_text("1")
        os.kill(drill.pid_of(1), signal.SIGKILL)
        drill.until(lambda: SAYS in drill.said(), "the failure on the console")
        (group / "pids.max").write_text("max")
        outcome = drill.finish()
    one_interruption(outcome, expected)
    assert "Resource temporarily unavailable" in outcome.stderr, str(outcome)


def test_a_limit_of_descriptors_delays_a_replacement_until_it_is_lifted(
    tmp_path: Path, expected: dict[int, str]
) -> None:
    """Method: from the kill of rank 1 on, the launcher may open no more files than it has open."""
    with Drill(tmp_path, "ddp.py", *STEPS, workers=2, within_s=150.0) as drill:
        drill.until(lambda: drill.step >= 8 and len(drill.children("outlast-store")) == 2, "step 8")
        pid = drill.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        few = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, hard))
        os.kill(drill.pid_of(1), signal.SIGKILL)
        drill.until(lambda: SAYS in drill.said(), "the failure on the console")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        outcome = drill.finish()
    one_interruption(outcome, expected)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_run_that_may_start_no_process_says_which_limit(
    tmp_path: Path, group: Path, most: int
) -> None:
    """Method: the launcher's own thread, its first child, and the first fork of that child are
    refused in turn.
    """
    (group / "pids.max").write_text(str(most))
    into = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    script = tmp_path / "train.py"
    script.write_text("")
    done = subprocess.run(
        [*into, OUTLAST, "run", str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1, done
    assert re.search(r"^error: .*Resource temporarily unavailable", done.stderr, re.MULTILINE), done
    assert "hint: a limit of the machine, of its user" in done.stderr, done
    if most < 3:  # the zygote's last words are its traceback
        assert "Traceback" not in done.stderr, done
    assert not (tmp_path / "runs").exists(), "nothing began"


@pytest.mark.parametrize("most", [5, 8, 12])
def test_a_run_that_never_gets_the_threads_it_needs_ends_with_the_reason(
    tmp_path: Path, group: Path, most: int
) -> None:
    """Method: the store, the workers' listeners and the process groups are refused in turn."""
    (group / "pids.max").write_text(str(most))
    into = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    with Drill(tmp_path, "ddp.py", *STEPS, workers=2, before=into, within_s=170.0) as drill:
        outcome = drill.finish()
    assert outcome.code == 1, str(outcome)
    last = outcome.stderr[outcome.stderr.rindex("error: ") :]
    assert re.search(r"can't start new thread|Resource temporarily unavailable", last), str(outcome)
    assert outcome.report["state"] == "failed", str(outcome)
    assert outcome.stderr.count("the store's host could not be started") <= 8, str(outcome)
