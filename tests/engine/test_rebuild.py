"""A coordinator after another one that died: what it makes of what the agents house, and of what is said while it asks them."""

from __future__ import annotations

from outlast.engine.protocol.outputs import Record
from outlast.engine.protocol.state import Stage
from outlast.model.messages import FromNode, Hello, Housed, Joined, Registered, WorkerExited
from outlast.model.records import Interruption
from tests.engine.test_nodes import _plan, a_hub, enrols


def at_work(worker: int, rank: int) -> Housed:
    """In generation 1."""
    said = (Hello(worker, 100 + worker), Registered(worker, 1, 0, "in_place", False, True, ""), Joined(worker, 1, 0, 0.1, 0.1))
    return Housed(worker, rank, "rank", 100 + worker, _plan(rank=rank, generation=1), said, False, None)


def test_a_fault_that_shows_while_the_picture_is_built_is_dealt_with_as_soon_as_it_is_whole() -> None:
    """Rank 0 on node a is killed after its node has enrolled, and before node b has."""
    hub = a_hub()
    hub.rebuild(now_s=0.0, nodes=("a", "b"))
    enrols(hub, "a", epoch=1, housed=(at_work(1, 0),))
    killed = WorkerExited(1, 101, None, 9, False, 0, (), (), "body", 1.0, 1.0, "")
    assert hub.on_line("a", FromNode(1, 0, 1.0, killed), now_s=1.0) == []
    out = enrols(hub, "b", now_s=2.0, epoch=1, housed=(at_work(2, 1),))
    booked = [output.record for output in out if isinstance(output, Record) and isinstance(output.record, Interruption)]
    assert [(one.ranks, one.pids, one.error) for one in booked] == [((0,), (101,), "signal 9")]
    assert hub.coordinator.stage is Stage.GATHERING
