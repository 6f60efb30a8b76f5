"""Which nodes are in a run, as its ledger says while the run goes on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from outlast.model.records import LEADS, Event, Meta
from outlast.runtime.ledger.node_events import NodesIn, read_nodes
from outlast.runtime.ledger.store import Ledger


def event(wall_s: float, kind: str, **data: object) -> Event:
    return Event(wall_s - 1000.0, wall_s, kind, data)


def test_nodes_that_have_joined_are_in_until_they_are_lost(tmp_path: Path) -> None:
    """One that has come back is in since then. The newest voters count.

    One that the run's policy has excluded stays. A drill on hosts struck no host any more after
    that, and its last fault did not fire.
    """
    path = tmp_path / "ledger.db"
    assert read_nodes(path) == NodesIn(), "there is no ledger yet"
    with closing(Ledger.create(path, Meta("r", "r", 2, "1", 1.0, 1001.0), pid=1)) as ledger:
        for one in (
            *(event(1002.0, "node_joined", node=node, session=1) for node in "abc"),
            event(1003.0, LEADS, node="a", epoch=1, voters=["a", "b", "c"]),
            event(1004.0, "node_lost", node="b", reason="x"),
            event(1004.0, LEADS, node="a", epoch=1, voters=[]),
            event(1005.0, "node_barred", node="c", reason="rule unexplained: exclude c"),
            event(1005.0, "node_departed", node="c", left=[2]),
            event(1006.0, "node_joined", node="b", session=2),
            event(1007.0, LEADS, node="a", epoch=1, voters=["a", "b"]),
        ):
            ledger.add(one)
        ledger.flush()
        assert read_nodes(path) == NodesIn({"a": 1002.0, "b": 1006.0, "c": 1002.0}, ("a", "b"))
