"""Only processes of the run that was started are struck.

Method: a real shell in place of a launcher, with a real child. The title of the child is that of
its program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from outlast.runtime.drill.striking import Target, still_there


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait; exit 0"], start_new_session=True) as shell:
        yield shell
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)


def wait_for(target: Target, title: str) -> object:
    until_s = time.monotonic() + 10
    while (found := target.find(title)) is None and time.monotonic() < until_s:
        time.sleep(0.01)
    return found


def test_a_child_of_the_run_is_found_and_struck(launcher: subprocess.Popen[bytes]) -> None:
    target = Target(launcher.pid)
    process = wait_for(target, "sleep")
    assert process is not None
    assert target.send(process, signal.SIGKILL)  # type: ignore[arg-type]
    launcher.wait(10)
    assert not still_there({process})  # type: ignore[arg-type]


def test_a_process_of_another_program_is_not_struck(launcher: subprocess.Popen[bytes]) -> None:
    """Method: the process has the title and was found by it, but its parent is another process."""
    target, process = Target(launcher.pid), wait_for(Target(launcher.pid), "sleep")
    with subprocess.Popen(["sleep", "60"]) as other:
        mine = Target(os.getpid()).find("sleep")
        assert mine is not None
        assert mine.pid == other.pid
        assert not target.send(mine, signal.SIGKILL)
        assert target.find("sleep") == process
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("change", [{"began": 1}, {"title": "outlast-rank0"}])
def test_a_pid_that_was_given_to_another_process_is_not_struck(
    launcher: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    target, process = Target(launcher.pid), wait_for(Target(launcher.pid), "sleep")
    assert not target.send(replace(process, **change), signal.SIGKILL)  # type: ignore[type-var]
    assert launcher.poll() is None
    assert target.find("sleep") == process


def test_nothing_is_found_once_the_launcher_is_gone() -> None:
    with subprocess.Popen(["true"]) as gone:
        target = Target(gone.pid)
    assert target.find("true") is None
    assert target.usages() == {}


def test_the_usage_of_a_launcher_counts_what_it_holds(launcher: subprocess.Popen[bytes]) -> None:
    usage = Target(launcher.pid).usages().get(launcher.pid)
    assert usage is not None
    assert usage.descriptors >= 3
    assert usage.threads == 1
    assert usage.memory_bytes > 0
