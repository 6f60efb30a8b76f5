"""Control groups: which files belong to this process, and how much memory the limits of its group
and the groups above it leave.

The trees of control groups are made up.
"""

from __future__ import annotations

from pathlib import Path

from outlast.runtime.cgroups import memory_hierarchies, memory_room

UNLIMITED_V1 = 9_223_372_036_854_771_712


def group(folder: Path, **files: object) -> Path:
    """Make a group. A keyword such as `memory_max=5` becomes the file memory.max."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("memory_", "memory.", 1)).write_text(f"{content}\n")
    return folder


def room(tmp_path: Path, own: str) -> tuple[int, Path] | None:
    (tmp_path / "own").write_text(own)
    return memory_room(memory_hierarchies(tmp_path / "own", tmp_path / "tree"))


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    """Method: the process's own group has no limit, and its parent leaves less room than
    the root.
    """
    tree = tmp_path / "tree"
    group(tree, memory_max=10_000, memory_current=1_000, memory_stat="anon 900")
    parent = group(tree / "a", memory_max=2_000, memory_current=900, memory_stat="anon 900")
    group(tree / "a" / "b", memory_max="max", memory_current=900, memory_stat="anon 900")
    assert room(tmp_path, "0::/a/b\n") == (1_100, parent)


def test_cached_files_are_room_and_tmpfs_is_not(tmp_path: Path) -> None:
    """A data set that was read fills any container's limit with pages that the kernel can reclaim.
    The kernel counts pages of tmpfs among the anonymous ones.
    """
    stat = "file 800\nshmem 300\ninactive_anon 300\ninactive_file 400\nactive_file 100"
    own = group(tmp_path / "tree" / "a", memory_max=1_000, memory_current=1_000, memory_stat=stat)
    assert room(tmp_path, "0::/a\n") == (500, own)


def test_the_first_hierarchy_has_other_names(tmp_path: Path) -> None:
    memory = tmp_path / "tree" / "memory"
    group(
        memory,
        memory_limit_in_bytes=UNLIMITED_V1,
        memory_usage_in_bytes=5_000,
        memory_stat="total_active_file 0",
    )
    own = group(
        memory / "a",
        memory_limit_in_bytes=3_000,
        memory_usage_in_bytes=2_500,
        memory_stat="active_file 7\ntotal_active_file 100",
    )
    assert room(tmp_path, "4:cpu,memory:/a\n1:cpuset:/x\n0::/\n") == (600, own)


def test_a_container_sees_its_own_group_at_the_root(tmp_path: Path) -> None:
    """Without a namespace of its own, a container sees the host's path, while only its own part of
    the tree is mounted.
    """
    root = group(tmp_path / "tree", memory_max=700, memory_current=600, memory_stat="")
    assert room(tmp_path, "0::/docker/0a1b\n") == (100, root)


def test_more_taken_than_allowed_is_no_room(tmp_path: Path) -> None:
    own = group(tmp_path / "tree" / "a", memory_max=700, memory_current=900, memory_stat="")
    assert room(tmp_path, "0::/a\n") == (0, own)


def test_without_a_limit_the_room_is_unknown(tmp_path: Path) -> None:
    """The same holds for a group outside the mounted tree, and where nothing can be read."""
    group(tmp_path / "tree", memory_max=700, memory_current=600, memory_stat="")
    group(tmp_path / "tree" / "a", memory_max="max", memory_current=600, memory_stat="")
    assert room(tmp_path, "0::/../a\n") is None
    assert room(tmp_path, "") is None
    assert memory_hierarchies(tmp_path / "absent") == []
    (tmp_path / "tree" / "memory.max").unlink()
    assert room(tmp_path, "0::/a\n") is None
