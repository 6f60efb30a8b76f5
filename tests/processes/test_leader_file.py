"""The file that names the node that leads a run on several nodes."""

from __future__ import annotations

from pathlib import Path

from outlast.runtime.folders.leader_file import NAME, read_leader, write_leader


def test_the_node_that_began_to_lead_last_is_named(tmp_path: Path) -> None:
    """The file may be below the run's folder, while another launcher still holds that folder.

    A file that cannot be read does not count. Without a file, no node is named.
    """
    assert read_leader(tmp_path) is None
    write_leader(tmp_path, node="a", epoch=1, endpoint="10.0.0.1:29400")
    first = read_leader(tmp_path)
    assert first is not None
    assert (first.node, first.epoch, first.endpoint) == ("a", 1, "10.0.0.1:29400")
    for node in ("b", "c"):
        (tmp_path / "nodes" / node).mkdir(parents=True)
    write_leader(tmp_path / "nodes" / "b", node="b", epoch=2, endpoint="[fd00::2]:41000")
    (tmp_path / "nodes" / "c" / NAME).write_text("{")
    second = read_leader(tmp_path)
    assert second is not None
    assert (second.node, second.endpoint) == ("b", "[fd00::2]:41000")
    below = tmp_path / "nodes" / "b" / "nodes" / "d"
    below.mkdir(parents=True)
    write_leader(below, node="d", epoch=3, endpoint="10.0.0.4:41000")
    third = read_leader(tmp_path)
    assert third is not None
    assert third.node == "d"
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == [NAME]
