"""What the agent makes of beacons that stand: news are told, and learned from, though none of them has moved."""

from __future__ import annotations

import pytest

from outlast.engine.protocol.agent import Reading
from outlast.engine.protocol.outputs import ToCoordinator
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.messages import Progress, StartWorker, ToWorkers, WorkerExited
from outlast.model.terms import Phase
from tests.engine.test_phases import plan
from tests.engine.test_silence import Node


def stands(node: Node, worker: int, *, rank: int, step: int, body_s: float = 0.0, phase: Phase = Phase.BODY) -> None:
    """From now on the same is read of it at each tick. `body_s`: the body of a step has typically lasted so long for it."""
    node.readings[worker] = Reading(Beacon(worker=worker, rank=rank, step=step, beats=1, phase=phase, typical_s={Phase.BODY: body_s}), stopped=False)


def progress(node: Node) -> list[tuple[int, int]]:
    """Of one tick: the newest step that a rank here has committed, and the newest that all have."""
    node.now_s += limits.TICK_S
    out = node.agent.on_tick(node.readings, now_s=node.now_s)
    return [(one.message.newest, one.message.oldest) for one in out if isinstance(one, ToCoordinator) and isinstance(one.message, Progress)]


def test_what_all_have_committed_counts_a_spare_as_soon_as_it_holds_a_rank() -> None:
    """A parked spare is given the rank of one that is gone. It has not moved yet."""
    node = Node()
    node.agent.on_command(StartWorker(3, -1, "hot", 1), now_s=0.0)
    for worker in (1, 2):
        stands(node, worker, rank=worker - 1, step=7)
    stands(node, 3, rank=-1, step=0, phase=Phase.PARKED)
    assert progress(node) == [(7, 7)]
    assert progress(node) == []
    node.agent.on_command(ToWorkers((3,), (2,), plan(generation=2, step=7)), now_s=node.now_s)
    assert progress(node) == [(7, 0)]
    assert progress(node) == []


@pytest.mark.parametrize("ended", [True, False])
def test_how_long_a_phase_lasts_is_learned_from_those_alone_that_can_be_read(ended: bool) -> None:
    """Worker 2, which took longest, has ended; or nothing can be read of it any more. Nobody else has moved."""
    node = Node()
    stands(node, 1, rank=0, step=7, body_s=1.0)
    stands(node, 2, rank=1, step=7, body_s=4.0)
    progress(node)
    assert node.agent.deadlines.of(phase=Phase.BODY, steps_done=7) == 4.0 * limits.DEADLINE_FACTOR
    if ended:
        node.agent.on_event(WorkerExited(2, 102, None, 9, False, 7, (), (), "body", node.now_s, node.now_s, ""), now_s=node.now_s)
    del node.readings[2]
    progress(node)
    assert node.agent.deadlines.of(phase=Phase.BODY, steps_done=7) == 1.0 * limits.DEADLINE_FACTOR
