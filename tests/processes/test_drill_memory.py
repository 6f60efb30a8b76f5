"""A process is starved of memory, and the kernel ends it and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.runtime.drill import drill_memory
from outlast.runtime.drill.drill_memory import MemoryGroups

EATS = "import time\nheld = []\nwhile True: held.append(b'1' * (1 << 20)); time.sleep(0.001)"


@pytest.fixture
def eater() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", EATS]) as process:
        yield process
        process.kill()


def groups_left() -> list[str]:
    return [one.name for one in Path("/sys/fs/cgroup").glob(f"**/outlast-drill-{os.getpid()}-*")]


@pytest.mark.skipif(bool(drill_memory.may_be_made()), reason="no control group can be made here")
def test_the_kernel_ends_a_process_whose_memory_is_taken(
    eater: subprocess.Popen[bytes],
) -> None:
    """Its group is removed once it has ended."""
    with MemoryGroups() as groups:
        assert groups.starve(eater.pid)
        assert eater.wait(30) == -signal.SIGKILL
        until_s = time.monotonic() + 10
        while groups_left() and time.monotonic() < until_s:
            groups.look()
        assert not groups_left()


@pytest.mark.skipif(bool(drill_memory.may_be_made()), reason="no control group can be made here")
def test_a_process_that_lives_on_has_its_memory_back() -> None:
    """A drill can end before the process wants more memory."""
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        with MemoryGroups() as groups:
            assert groups.starve(sleeper.pid)
            assert groups_left()
        assert not groups_left()
        assert sleeper.poll() is None
        sleeper.kill()


def test_where_no_group_can_be_made_that_is_said(tmp_path: Path) -> None:
    """There is no tree of control groups here, only a folder."""
    with MemoryGroups(tmp_path) as groups, pytest.raises(OSError, match="does not control memory"):
        groups.starve(os.getpid())
    assert not list(tmp_path.iterdir())
