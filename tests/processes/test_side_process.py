"""runtime/coordinator/side_process.py: a program beside the run, whose failure does not matter to
the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from outlast.runtime.coordinator.side_process import SideProcess
from outlast.runtime.linux import LOWEST_PRIORITY
from outlast.runtime.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as loop:
        yield loop


def begun(loop: Loop, program: str, told: list[str]) -> SideProcess:
    return SideProcess(loop, (sys.executable, "-c", program), what="metrics", tell=told.append)


def test_a_side_process_that_ends_is_reported_once_with_its_error(loop: Loop) -> None:
    told: list[str] = []
    program = "import sys; sys.exit('a line\\nerror: the port is taken\\n\\nhint: another')"
    side = begun(loop, program, told)
    assert loop.run_until(lambda: bool(told), within_s=20.0)
    assert told == ["warning: metrics: its process has ended, the run goes on: the port is taken"]
    assert side.pid is None
    side.close()
    assert len(told) == 1


def test_a_side_process_has_the_lowest_priority_and_its_own_session(
    loop: Loop,
) -> None:
    told: list[str] = []
    side = begun(loop, "import time; time.sleep(60)", told)
    pid = side.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) == LOWEST_PRIORITY
    assert os.getsid(pid) == pid
    side.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (side.pid, told) == (None, [])


def test_a_program_that_does_not_exist_is_reported_and_delays_nothing(loop: Loop) -> None:
    told: list[str] = []
    side = SideProcess(loop, ("/no/such/program",), what="metrics", tell=told.append)
    assert side.pid is None
    assert told == ["warning: metrics: no process can be started for it: No such file or directory"]
    side.close()


def test_a_side_process_whose_child_holds_stderr_open_is_not_awaited(loop: Loop) -> None:
    told: list[str] = []
    program = (
        "import subprocess, sys\n"
        "subprocess.Popen(['sleep', '3'], stdout=subprocess.DEVNULL)\n"
        "sys.exit('error: done')"
    )
    begun(loop, program, told)
    assert loop.run_until(lambda: bool(told), within_s=2.0)
    assert told == ["warning: metrics: its process has ended, the run goes on: done"]
