"""A drain of sharded state, driven by hand: when images move, and what calls the drain off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.coordinator.decisions import Quiesced
from outlast.engine.coordinator.node_drain import NodeDrain, carried_until_s
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Timer, set_timer
from outlast.engine.protocol.outputs import Output, ToAgent
from outlast.engine.restore import RestoreVerdict
from outlast.model import limits
from outlast.model.messages import CopyKept, SendImage, ToWorkers

SEEN = Quiesced(
    world_size=2,
    lost=(),
    raised=frozenset(),
    drained=frozenset({0}),
    mode="reenter",
    attached=True,
    finished=False,
    restore=RestoreVerdict(7, {}, -1, (), "step 7"),
    start=None,
    links_cut=False,
    committed=7,
    reached=7,
    error="",
    trained=True,
)
UNTIL_S = 20.0


def a_run(*, spare_serves: str = "c:1") -> RunParts:
    """Return a run of two ranks, each on a node of its own. A third node stands ready."""
    run = RunParts.begin(CoordinatorOptions(world_size=2, start=Restart(), nodes=3))
    for node, serves in (("a", "a:1"), ("b", "b:1"), ("c", spare_serves)):
        run.nodes.join(node, 1, serves=serves)
    for rank, node in enumerate("ab"):
        member = run.roster.add(rank=rank, kind="rank", home=node, now_s=0.0)
        member.process.hello_seen = True
    run.roster.script.learn(outlast=True, sharded=True)
    run.nodes.bar("a")
    return run


def begun(run: RunParts) -> NodeDrain:
    """Return the drain of rank 0, which has done its on-commit work of step 7."""
    drain = NodeDrain(run)
    drain.begin(frozenset({0}), until_s=UNTIL_S)
    assert drain.decide(SEEN).finish == (0,)
    return drain


def sent(outputs: list[Output] | None) -> list[SendImage]:
    orders = [one.message for one in outputs or () if isinstance(one, ToAgent)]
    messages = [one.message for one in orders if isinstance(one, ToWorkers)]
    return [one for one in messages if isinstance(one, SendImage)]


def test_a_rank_is_told_once_to_send_its_image_to_the_node_that_takes_over() -> None:
    """The rank may be given up once the copy of that step is there, and not before."""
    run = a_run()
    drain = begun(run)
    verdict = drain.decide(SEEN)
    assert (verdict.ranks, verdict.finish) == ((0,), ())
    outputs = drain.carry(1.0, verdict, SEEN)
    assert sent(outputs) == [SendImage(0, 7, "c:1")]
    assert set_timer(Timer.LEAVE, UNTIL_S) in (outputs or [])
    assert sent(drain.carry(2.0, verdict, SEEN)) == []
    older = CopyKept(0, 1, (6,))
    run.roster.remains.copies.kept(older, "c")
    assert drain.note_kept(older, "c")
    assert drain.carry(3.0, verdict, SEEN) is not None, "that is another step"
    kept = CopyKept(0, 1, (7,))
    run.roster.remains.copies.kept(kept, "c")
    assert drain.note_kept(kept, "c")
    assert drain.carry(3.0, verdict, SEEN) is None
    assert run.room(())["a"] == 0, "its image is elsewhere, so the rank has no place there"


def test_a_copy_on_a_node_that_is_gone_does_not_count() -> None:
    run = a_run()
    drain = begun(run)
    verdict = drain.decide(SEEN)
    run.roster.remains.copies.kept(CopyKept(0, 1, (7,)), "d")
    assert sent(drain.carry(1.0, verdict, SEEN))


def test_a_node_without_room_calls_the_drain_off() -> None:
    run = a_run()
    drain = begun(run)
    drain.carry(1.0, drain.decide(SEEN), SEEN)
    assert drain.note_kept(CopyKept(0, 1, ()), "c")
    verdict = drain.decide(SEEN)
    assert (verdict.ranks, drain.ranks) == ((), frozenset())
    assert "node c has no room for the image of rank 0" in verdict.reason
    assert run.room(())["a"] == 1, "the rank stays, where its image is"


def test_images_that_do_not_arrive_in_time_call_the_drain_off() -> None:
    run = a_run()
    drain = begun(run)
    assert not drain.is_late(UNTIL_S), "nothing is awaited yet"
    drain.carry(1.0, drain.decide(SEEN), SEEN)
    assert not drain.is_late(UNTIL_S - 0.1)
    assert drain.is_late(UNTIL_S)
    assert "did not reach another node in time" in drain.decide(SEEN).reason


def test_a_lost_rank_calls_the_drain_off() -> None:
    run = a_run()
    drain = begun(run)
    drain.carry(1.0, drain.decide(SEEN), SEEN)
    assert drain.decide(replace(SEEN, lost=(1,))).ranks == ()
    assert not run.roster.remains.leaving


def test_ranks_stay_if_the_node_with_their_copies_is_lost() -> None:
    """Method: the images have moved, and the node that has them is lost before the ranks leave."""
    run = a_run()
    drain = begun(run)
    verdict = drain.decide(SEEN)
    drain.carry(1.0, verdict, SEEN)
    run.roster.remains.copies.kept(CopyKept(0, 1, (7,)), "c")
    assert drain.carry(2.0, verdict, SEEN) is None
    assert not run.keep_in_place(7)
    run.nodes.lose("c")
    run.roster.remains.lose_images("c")
    assert run.keep_in_place(7)
    assert run.room(())["a"] == 1


@pytest.mark.parametrize(
    ("notice_until_s", "until_s"), [(None, 5.0 + limits.IMAGES_MOVE_S), (9.0, 9.0)]
)
def test_a_notice_leaves_less_time(notice_until_s: float | None, until_s: float) -> None:
    assert carried_until_s(5.0, notice_until_s) == until_s
