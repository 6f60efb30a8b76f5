"""Was it the OOM killer: counters that rise, do not rise, or cannot be read."""

from __future__ import annotations

from pathlib import Path

from outlast.model.limits import OOM_WINDOW_S
from outlast.runtime.agent.oom import OomWatch, counter_files


def test_a_kill_right_after_a_counter_rose_is_taken_for_it(tmp_path: Path) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 1\noom_kill 3\noom_group_kill 0\n")
    watch = OomWatch([counter])
    watch.look(100.0)
    assert watch.judge(101.0) is False
    counter.write_text("low 0\noom 2\noom_kill 4\noom_group_kill 0\n")
    assert watch.judge(102.0) is True
    assert watch.judge(102.0 + OOM_WINDOW_S) is True
    assert watch.judge(102.1 + OOM_WINDOW_S) is False


def test_counters_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    """Unknown is not green."""
    watch = OomWatch([tmp_path / "none"])
    watch.look(0.0)
    assert watch.judge(1.0) is None


def test_a_counter_that_starts_anew_is_no_rise(tmp_path: Path) -> None:
    """A control group may be made again while we run."""
    counter = tmp_path / "c"
    counter.write_text("oom_kill 9\n")
    watch = OomWatch([counter])
    watch.look(0.0)
    counter.write_text("oom_kill 0\n")
    assert watch.judge(1.0) is False


def test_both_hierarchies_are_looked_for(tmp_path: Path) -> None:
    """Only files that exist and count are kept; the machine's own counter is in /proc/vmstat."""
    groups = tmp_path / "cgroup"
    groups.write_text("4:memory:/none/such\n0::/none/such\n")
    assert all(path.exists() for path in counter_files(groups))
    assert counter_files(tmp_path / "absent") in ([], [Path("/proc/vmstat")])
