"""Whether the OOM killer ended a process: the kernel's log, and counters that rise, do not rise, or
cannot be read.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from outlast.model.limits import OOM_WINDOW_S
from outlast.runtime.agent import oom
from outlast.runtime.agent.oom import MACHINE, OomKill, OomWatch, Sources, find_sources
from tests.processes.house import House


def count(path: Path, kills: int) -> Path:
    path.write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n")
    return path


def test_a_kill_right_after_our_group_counted_one_is_an_oom_kill(tmp_path: Path) -> None:
    own = count(tmp_path / "memory.events", 3)
    watch = OomWatch(Sources((own,)))
    watch.look(100.0)
    assert watch.judge(101.0, 7) is OomKill.NONE
    count(own, 4)
    watch.look(102.0)
    assert watch.judge(102.0 + OOM_WINDOW_S, 7) is OomKill.OURS
    assert watch.judge(102.0 + OOM_WINDOW_S, 8) is OomKill.NONE, "one kill explains one death"
    count(own, 6)
    watch.look(200.0)
    assert watch.judge(200.1 + OOM_WINDOW_S, 9) is OomKill.NONE, "too long ago"


def test_the_machines_counter_does_not_show_whose_process_was_killed(tmp_path: Path) -> None:
    """Another tenant may run out of memory while something else kills a worker."""
    own, machine = count(tmp_path / "memory.events", 3), count(tmp_path / "vmstat", 8)
    watch = OomWatch(Sources((own,), machine))
    watch.look(100.0)
    count(machine, 9)
    assert watch.judge(101.0, 7) is OomKill.SOMEBODY
    assert watch.judge(101.0, 7).is_possible


@pytest.mark.parametrize(("named", "whose"), [(77, OomKill.OURS), (78, OomKill.NONE)])
def test_the_kernels_log_decides_whose_process_was_killed(
    tmp_path: Path, named: int, whose: OomKill
) -> None:
    """The log names the pid, so it takes precedence over the counters. Method: a FIFO gives one
    record for each read.
    """
    own, machine = count(tmp_path / "memory.events", 3), count(tmp_path / "vmstat", 8)
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    kept = os.open(log, os.O_RDWR)
    watch = OomWatch(Sources((own,), machine, log))
    try:
        watch.look(100.0)
        for path in (own, machine):
            count(path, 9)
        said = f"3,12,34,-;Memory cgroup out of memory: Killed process {named} (python) total-vm:1"
        os.write(kept, said.encode())
        assert watch.judge(101.0, 77) is whose
        assert watch.judge(101.0 + 2 * OOM_WINDOW_S, 77) is OomKill.NONE
    finally:
        watch.close()
        os.close(kept)


def test_a_closed_host_leaves_the_kernels_log_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host makes the watch, and no other part of the launcher knows of its descriptor."""
    log = tmp_path / "kmsg"
    log.write_text("")
    monkeypatch.setattr(oom, "find_sources", lambda: Sources(log=log))
    house = House(tmp_path)
    assert log in open_files()
    house.close()
    assert log not in open_files()


def open_files() -> set[Path]:
    """Return the files that this process has open."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor that lists the folder
            found.add(one.readlink())
    return found


def test_counters_that_cannot_be_read_decide_nothing(tmp_path: Path) -> None:
    """Counters that cannot be read give neither a yes nor a no."""
    watch = OomWatch(Sources((tmp_path / "none",), tmp_path / "none"))
    watch.look(0.0)
    assert watch.judge(1.0) is OomKill.NOT_READ
    assert not watch.judge(1.0).is_possible


def test_a_counter_that_starts_anew_is_no_rise(tmp_path: Path) -> None:
    """A control group may be made again while the run lasts."""
    own = count(tmp_path / "c", 9)
    watch = OomWatch(Sources((own,)))
    watch.look(0.0)
    count(own, 0)
    assert watch.judge(1.0) is OomKill.NONE


def test_both_hierarchies_are_looked_for(tmp_path: Path) -> None:
    """Only files that exist and count are kept. The machine's own counter is in /proc/vmstat."""
    groups = tmp_path / "cgroup"
    groups.write_text("4:memory:/none/such\n0::/none/such\n")
    found = find_sources(groups)
    assert all(path.exists() for path in found.own)
    absent = find_sources(tmp_path / "absent")
    assert (absent.own, absent.machine) in (((), MACHINE), ((), None))
