"""The agent reads beacons that do not move: it still reports what is new in them, and learns from
them.
"""

from __future__ import annotations

import pytest

from outlast.engine.agent.worker_watch import Reading
from outlast.engine.protocol.outputs import Deliver, ToCoordinator
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.messages import (
    AskProgressReport,
    Judged,
    Ping,
    Pong,
    Progress,
    ProgressReport,
    StartWorker,
    ToWorkers,
    WorkerExited,
)
from outlast.model.terms import Phase
from tests.engine.test_phases import plan
from tests.engine.test_silence import Node


def set_beacon(
    node: Node,
    worker: int,
    *,
    rank: int,
    step: int,
    body_s: float = 0.0,
    phase: Phase = Phase.BODY,
    beats: int = 1,
    at_s: float = 0.0,
    stopped: bool = False,
) -> None:
    """Set what is read of a worker at each tick from now on.

    `body_s` is how long the body of a step has typically lasted for this worker. `at_s` is when its
    beacon last moved.
    """
    beacon = Beacon(
        worker=worker,
        rank=rank,
        step=step,
        beats=beats,
        phase=phase,
        at_ns=int(at_s * 1e9),
        typical_s={Phase.BODY: body_s},
    )
    node.readings[worker] = Reading(beacon, stopped=stopped)


def progress(node: Node) -> list[tuple[int, int]]:
    """Tick once, and return the reported pairs: the newest step that a rank of this node has
    committed, and the newest step that all its ranks have committed.
    """
    node.now_s += limits.TICK_S
    out = node.agent.on_tick(node.readings, now_s=node.now_s)
    return [
        (one.message.newest, one.message.oldest)
        for one in out
        if isinstance(one, ToCoordinator) and isinstance(one.message, Progress)
    ]


def test_the_step_committed_by_all_includes_a_spare_once_it_holds_a_rank() -> None:
    """Method: a parked spare is given the rank of a worker that is gone, and has not moved yet."""
    node = Node()
    node.agent.on_command(StartWorker(3, -1, "hot", 1), now_s=0.0)
    for worker in (1, 2):
        set_beacon(node, worker, rank=worker - 1, step=7)
    set_beacon(node, 3, rank=-1, step=0, phase=Phase.PARKED)
    assert progress(node) == [(7, 7)]
    assert progress(node) == []
    node.agent.on_command(ToWorkers((3,), (2,), plan(generation=2, step=7)), now_s=node.now_s)
    assert progress(node) == [(7, 0)]
    assert progress(node) == []


@pytest.mark.parametrize("ended", [True, False])
def test_phase_lengths_are_learned_from_readable_beacons_only(ended: bool) -> None:
    """Method: worker 2, whose steps took longest, has ended, or its beacon can no longer be read.
    No other worker has moved.
    """
    node = Node()
    set_beacon(node, 1, rank=0, step=7, body_s=1.0)
    set_beacon(node, 2, rank=1, step=7, body_s=4.0)
    progress(node)
    assert node.agent.deadlines.of(phase=Phase.BODY, steps_done=7) == 4.0 * limits.DEADLINE_FACTOR
    if ended:
        node.agent.on_event(
            WorkerExited(2, 102, None, 9, False, 7, (), (), "body", node.now_s, node.now_s, ""),
            now_s=node.now_s,
        )
    del node.readings[2]
    progress(node)
    assert node.agent.deadlines.of(phase=Phase.BODY, steps_done=7) == 1.0 * limits.DEADLINE_FACTOR


@pytest.mark.parametrize(
    ("stopped", "until_s"),
    [
        ((), limits.FIRST_STEPS_DEADLINE_S),
        ((2,), limits.STOPPED_FLOOR_S),
        ((1, 2), limits.STOPPED_FLOOR_S),
    ],
)
def test_ticks_may_be_skipped_until_a_deadline_or_a_grace_is_over(
    stopped: tuple[int, ...], until_s: float
) -> None:
    """Method: both workers are in their first step, and have not moved since the start."""
    node = Node()
    for worker in (1, 2):
        set_beacon(node, worker, rank=worker - 1, step=0, stopped=worker in stopped)
    progress(node)
    assert node.agent.quiet_until_s() == until_s


def test_ranks_that_are_all_stopped_are_named_after_their_grace() -> None:
    """The deadline of a first step does not protect them: such a step may take minutes."""
    node = Node()
    for worker in (1, 2):
        set_beacon(node, worker, rank=worker - 1, step=0, stopped=True)
    assert node.hung(limits.STOPPED_FLOOR_S - limits.TICK_S) == []
    assert [one.worker for one in node.hung(limits.STOPPED_FLOOR_S + 2 * limits.TICK_S)] == [1, 2]


def test_an_agent_learns_while_a_rank_is_in_its_first_steps() -> None:
    """Method: rank 1 completes its first steps after rank 0, while a spare stays parked."""
    node = Node()
    node.agent.on_command(StartWorker(3, -1, "hot", 1), now_s=0.0)
    set_beacon(node, 3, rank=-1, step=0, phase=Phase.PARKED)
    learns = []
    for steps in (
        (0, 0),
        (limits.FIRST_STEPS_COUNT, limits.FIRST_STEPS_COUNT - 1),
        (limits.FIRST_STEPS_COUNT, limits.FIRST_STEPS_COUNT),
    ):
        for rank, step in enumerate(steps):
            set_beacon(node, rank + 1, rank=rank, step=step)
        progress(node)
        learns.append(node.agent.learns)
    assert learns == [True, True, False]


@pytest.mark.parametrize(
    ("phase", "step", "first_s"),
    [
        (Phase.BODY, 0, 0.5),
        (Phase.BODY, limits.FIRST_STEPS_COUNT, 0.1),
        (Phase.EVALUATION, 0, 0.1),
        (Phase.EVALUATION, limits.FIRST_STEPS_COUNT, 0.1),
    ],
)
def test_the_length_of_first_steps_is_learned_from_phases_of_steps_only(
    phase: Phase, step: int, first_s: float
) -> None:
    """Method: the body of the first step takes 0.1 s. Then 0.5 s pass in `phase`, at `step`."""
    node = Node()
    set_beacon(node, 1, rank=0, step=0)
    node.hung(0.1, at_once=True)
    set_beacon(node, 1, rank=0, step=step, phase=phase, beats=2, at_s=0.1)
    node.hung(0.6)
    set_beacon(node, 1, rank=0, step=step, phase=Phase.VOTE, beats=3, at_s=0.6)
    node.hung(0.7)
    assert node.agent.deadlines.first_s == pytest.approx(first_s, abs=1e-6)


def test_an_agent_reports_progress_when_asked_though_no_rank_is_late() -> None:
    """With several nodes, the coordinator asks because a rank on another node is waiting."""
    node = Node(only_node=False)
    for worker in (1, 2):
        set_beacon(node, worker, rank=worker - 1, step=7)
    progress(node)
    asked = node.agent.on_command(AskProgressReport(5), now_s=node.now_s)
    pings = [
        (one.worker, one.message)
        for one in asked
        if isinstance(one, Deliver) and isinstance(one.message, Ping)
    ]
    assert [worker for worker, _ in pings] == [1, 2]
    for worker, ping in pings:
        node.agent.on_worker(Pong(worker, ping.nonce, 8, ""), now_s=node.now_s)
    out = node.agent.on_tick(node.readings, now_s=node.now_s + limits.TICK_S)
    (told,) = [
        one.message
        for one in out
        if isinstance(one, ToCoordinator) and isinstance(one.message, ProgressReport)
    ]
    assert (told.nonce, [(one.rank, one.step, one.collectives) for one in told.members]) == (
        5,
        [(0, 7, 8), (1, 7, 8)],
    )
    assert not node.agent.asks


@pytest.mark.parametrize(
    ("phases", "stood_s", "exhausted"),
    [
        ((Phase.SETUP, Phase.SETUP), limits.BOOT_DEADLINE_S + 1.0, True),
        ((Phase.BODY, Phase.BODY), limits.STEP_CEILING_S + 1.0, True),
        ((Phase.SETUP, Phase.BODY), limits.STEP_CEILING_S + 1.0, False),
        ((Phase.BODY, Phase.BODY), 1.5, False),
        ((), 0.0, False),
    ],
)
def test_deadlines_grow_past_the_time_for_which_all_ranks_have_stood(
    phases: tuple[Phase, ...], stood_s: float, exhausted: bool
) -> None:
    """No rank on any node is to blame. If the deadlines did not grow, all ranks of this node would
    stay overdue, and the agent would ask again at once.
    """
    node = Node(only_node=False)
    for worker, phase in enumerate(phases, 1):
        set_beacon(node, worker, rank=worker - 1, step=0, phase=Phase.BODY)
        progress(node)
        set_beacon(node, worker, rank=worker - 1, step=7, phase=phase, beats=2, at_s=node.now_s)
    progress(node)
    node.now_s += stood_s
    node.agent.on_command(Judged("nobody"), now_s=node.now_s)
    deadlines = node.agent.deadlines
    assert deadlines.exhausted is exhausted
    assert exhausted or deadlines.scale == 2.0
