"""The disk of a run is full, or slow, for a while, and nobody else's is.

Method: a program in place of `outlast run`, which writes into its folder of checkpoints when it is
told to.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.runtime.drill import drill_disk
from outlast.runtime.drill.drill_disk import RunDisk, may_be_filled, may_be_slowed, mounting

# It writes so many bytes to a new file, waits until they are on the disk, and prints how long that
# took, or the number of the error.
WRITES = """
import os, sys, time
for number, line in enumerate(sys.stdin):
    began_s = time.monotonic()
    try:
        with open(f"checkpoints/{number}", "wb") as file:
            file.write(os.urandom(int(line)))
            file.flush()
            os.fsync(file.fileno())
        print(time.monotonic() - began_s, flush=True)
    except OSError as error:
        print(-error.errno, flush=True)
"""
ENOSPC = -28
MIB = 1 << 20


class Writer:
    """The program, and what it says."""

    def __init__(self, run: Path, before: list[str]) -> None:
        command = [*before, sys.executable, "-c", WRITES]
        self.process = subprocess.Popen(
            command, cwd=run, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.write(1)  # it runs

    def write(self, size: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"%d\n" % size)
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return tmp_path / "run"


def writer(run: Path, before: list[str]) -> Iterator[Writer]:
    made = Writer(run, before)
    with made.process:
        yield made
        made.process.kill()


@pytest.fixture
def in_memory(run: Path) -> Iterator[Writer]:
    yield from writer(run, mounting(run / "checkpoints"))


@pytest.fixture
def on_disk(run: Path) -> Iterator[Writer]:
    yield from writer(run, [])


@pytest.mark.skipif(bool(may_be_filled()), reason=f"NO FULL DISK: {may_be_filled()}")
def test_the_disk_is_full_for_a_while_and_has_room_again(run: Path, in_memory: Writer) -> None:
    assert in_memory.write(2 * MIB) > 0.0
    with RunDisk(in_memory.process.pid, run, slowed=False) as disk:
        assert disk.strike("full_disk", until_s=105.0)
        assert not disk.strike("full_disk", until_s=106.0), "it is full already"
        disk.look(104.0)
        assert in_memory.write(2 * MIB) == ENOSPC
        disk.look(105.0)
        assert in_memory.write(2 * MIB) > 0.0
    assert not any((run / "checkpoints").iterdir()), "nobody else sees that file system"


def test_a_run_that_has_ended_has_no_disk(run: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        with RunDisk(ended.pid, run, slowed=False) as disk:
            assert not disk.strike("full_disk", until_s=5.0)
            assert not disk.strike("slow_disk", until_s=5.0), "its writes were not counted"


@pytest.mark.skipif(bool(may_be_slowed(Path())), reason=f"NO SLOW DISK: {may_be_slowed(Path())}")
def test_the_disk_is_slow_for_a_while_and_fast_again(run: Path, on_disk: Writer) -> None:
    """A MiB a second: so 3 MiB take two seconds at least. Its group is removed afterwards."""
    with RunDisk(on_disk.process.pid, run, slowed=True) as disk:
        assert groups_left()
        assert disk.strike("slow_disk", until_s=105.0)
        assert on_disk.write(3 * MIB) > 2.0
        disk.look(105.0)
        assert on_disk.write(3 * MIB) < 2.0
    assert not groups_left()
    assert on_disk.process.poll() is None, "it goes on, in the group above"


def test_what_is_missing_for_a_slow_disk_is_said(tmp_path: Path) -> None:
    """There is no tree of control groups here, or the folder is on no disk."""
    assert "does not control disks" in may_be_slowed(tmp_path / "new" / "run", mount=tmp_path)
    assert "on no block device" in may_be_slowed(Path("/proc/self"))
    assert list(tmp_path.iterdir()) == []


def groups_left() -> list[Path]:
    name = f"outlast-drill-disk-{os.getpid()}-*"
    return [*drill_disk.MOUNT.glob(name), *drill_disk.MOUNT.glob(f"blkio/{name}")]
