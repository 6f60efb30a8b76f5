"""A worker that the kernel really kills for lack of memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.runtime.agent.oom import OomKill, find_sources
from tests.processes.house import House

LIMIT_BYTES = 64 << 20


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Yield a control group with little memory, under either hierarchy."""
    v1 = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    group = (
        Path("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup") / f"outlast-test-{os.getpid()}"
    )
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(LIMIT_BYTES))
        with contextlib.suppress(OSError):  # no swap accounting
            (group / ("memory.memsw.limit_in_bytes" if v1 else "memory.swap.max")).write_text(
                str(LIMIT_BYTES if v1 else 0)
            )
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield group
    group.rmdir()


def test_a_worker_killed_for_memory_is_known_as_such(
    bare: Callable[[], House], small_group: Path
) -> None:
    """Trap 25: a kill by the OOM killer looks like any SIGKILL. As a control, the same SIGKILL
    without a counter that rose.
    """
    house = bare()
    env = {**house.spec().env, "GROUP": str(small_group / "cgroup.procs")}
    eat = 'echo $$ > "$GROUP" && exec tail /dev/zero'
    control = house.start(
        replace(house.spec(), script="sh", entry="program", args=("-c", "kill -9 $$"))
    )
    assert house.wait_exit(control).oom is OomKill.NONE
    worker = house.start(
        replace(house.spec(), script="sh", entry="program", args=("-c", eat), env=env)
    )
    exited = house.wait_exit(worker)
    assert exited.signal == signal.SIGKILL
    # The group is not the launcher's own. Only the kernel's log, if it may be read, shows that the
    # process was its own.
    wanted = (OomKill.OURS, OomKill.SOMEBODY) if find_sources().log is None else (OomKill.OURS,)
    assert exited.oom in wanted


def test_a_sigkill_beside_anothers_oom_kill_is_not_taken_for_one(
    bare: Callable[[], House], small_group: Path
) -> None:
    """Method: a process that is not part of the run is killed for lack of memory, and then a worker
    is killed by something else. If the kernel's log cannot be read, the cause is unknown, and is
    not reported as lack of memory of this run.
    """
    house = bare()
    other = subprocess.Popen(
        ["sh", "-c", 'echo $$ > "$GROUP" && exec tail /dev/zero'],
        env={**os.environ, "GROUP": str(small_group / "cgroup.procs")},
    )
    assert other.wait(60) == -signal.SIGKILL
    worker = house.start(
        replace(house.spec(), script="sh", entry="program", args=("-c", "kill -9 $$"))
    )
    exited = house.wait_exit(worker)
    assert exited.signal == signal.SIGKILL
    wanted = OomKill.SOMEBODY if find_sources().log is None else OomKill.NONE
    assert exited.oom in (wanted, OomKill.NONE)
