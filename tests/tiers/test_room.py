"""How much memory is left, also where the kernel or a sandbox says little about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outlast.runtime.cgroups import Hierarchy
from outlast.runtime.tiers.room import memory_left, room_in


@pytest.mark.parametrize("said", [None, "", "MemTotal: 8 kB\nMemFree: 4 kB\n"])
def test_memory_that_nothing_limits_has_no_known_limit(tmp_path: Path, said: str | None) -> None:
    """Method: /proc/meminfo is missing, empty, or does not say how much is available, and no
    control group sets a limit. The file system of the vault still limits it.
    """
    meminfo = tmp_path / "meminfo"
    if said is not None:
        meminfo.write_text(said)
    room = memory_left([], meminfo)
    assert (room.free, room.of) == (sys.maxsize, "no limit on memory is known")
    assert 0 < room_in(tmp_path, []).free < sys.maxsize


def test_the_tightest_limit_on_memory_is_named(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable: 7 kB\n")
    assert (memory_left([], meminfo).free, memory_left([], meminfo).of) == (
        7 * 1024,
        "memory of this machine",
    )
    group.mkdir()
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("1000\n")
    (group / "memory.stat").write_text("inactive_file 0\n")
    room = memory_left([Hierarchy(2, (group,))], meminfo)
    assert room.free <= 5000
    assert str(group) in room.of
