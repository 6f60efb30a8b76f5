"""Which ranks a generation waits for, which it gives up, and how all ranks go on, depending on what
the coordinator knows about them.
"""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Output, SetTimer, ToAgent
from outlast.model import limits
from outlast.model.messages import (
    Broke,
    Committed,
    Donated,
    Finished,
    Hello,
    Inventory,
    Joined,
    KillWorker,
    Registered,
    StoreUp,
    Underway,
    WorkerExited,
    WorkerStarted,
)
from outlast.model.terms import Rung, Waypoint
from tests.engine import test_program
from tests.engine.test_lost_steps import Run
from tests.engine.test_nodes import coordinator_sessions, trains


def killed(outputs: list[Output]) -> list[int]:
    return [
        output.message.worker
        for output in outputs
        if isinstance(output, ToAgent) and isinstance(output.message, KillWorker)
    ]


# --- who holds up a generation --------------------------------------------------------------------


def test_a_rank_that_does_not_join_in_time_is_killed() -> None:
    """Method: rank 1 was forked again and boots for too long, while rank 0 has joined."""
    run = Run()
    run.dies(5)
    run.stands_still(5)
    run.say(Joined(run.workers[0], 2, 5, 0.1, 0.1))
    assert run.coordinator.stage is Stage.MOVING
    boots = run.coordinator.roster.holder(1)
    assert killed(
        run.coordinator.on_timer(now_s=run.now_s + limits.BOOT_DEADLINE_S, name="move")
    ) == [boots.worker]


def starts() -> test_program.Run:
    """Return a run whose two processes have been started and have reported nothing about the script
    yet.
    """
    return test_program.Run(greets=True)


def late(coordinator: Coordinator) -> list[int]:
    """Return the workers that are killed when the time for the first generation is over."""
    return killed(coordinator.on_timer(now_s=limits.BOOT_DEADLINE_S + 10.0, name="move"))


def test_the_rank_least_far_is_killed_though_none_has_registered() -> None:
    """Method: rank 0 builds the first group and waits in it for rank 1, which boots for too
    long.
    """
    run = starts()
    first, second = run.workers()[0], run.workers()[1]
    for message in (Hello(first, 101), Underway(first, 1, Waypoint.CONNECTS.value)):
        run.coordinator.on_message(message, now_s=run.now_s)
    assert late(run.coordinator) == [second]


def test_no_rank_is_late_in_a_script_without_outlast_calls() -> None:
    """Both processes run, and report nothing more for as long as they run."""
    run = starts()
    for worker in run.workers().values():
        run.coordinator.on_message(Hello(worker, 100 + worker), now_s=run.now_s)
    assert late(run.coordinator) == []


# --- how all ranks go on --------------------------------------------------------------------------


def test_the_recovery_mode_of_joined_ranks_counts_before_run_steps() -> None:
    """Method: rank 0 enters main's function again. Rank 1 is forked again and dies while it boots.
    Rank 0 enters the function once more, and is not killed.
    """
    run = Run()
    run.dies(10)
    run.stands_still(10)
    first = run.coordinator.roster.holder(0)
    run.say(Registered(first.worker, 2, -1, "reenter", False, True, "", False))
    run.dies(-1)
    run.stands_still(-1, generation=2)
    assert run.interruption is not None
    assert run.interruption.rung is Rung.RESPAWN
    assert (run.coordinator.stage, run.coordinator.generation) == (Stage.MOVING, 3)
    assert (run.coordinator.roster.holder(0), first.life.condemned) == (first, False)
    plans = [run.coordinator.roster.holder(rank).path.plan for rank in range(2)]
    assert [(one.then, one.step) for one in plans if one is not None] == [
        ("reenter", 10),
        ("start", 10),
    ]


# --- who needs a place ----------------------------------------------------------------------------


def test_a_rank_that_has_ended_needs_no_place() -> None:
    """Method: rank 1 has ended well, and its node is lost. Then rank 0 raises.

    Rank 0 hands its state over at once. After that, the run waits for a place for rank 1.
    """
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    for message in (
        Joined(1, 1, 0, 0.1, 0.1),
        Joined(2, 1, 0, 0.1, 0.1),
        Committed(1, 1, 5, 1.0),
        Committed(2, 1, 5, 1.0),
        Finished(2, 1, 5, False),
    ):
        one.on_message(message, now_s=1.0)
    one.on_message(
        WorkerExited(2, 102, 0, None, False, 5, (5,), (5,), "epilogue", 2.0, None, ""), now_s=2.0
    )
    one.node_lost(now_s=3.0, node="b", reason="node b has no power")
    one.on_message(Broke(1, 1, 5, "exception", "boom", "", 4.0), now_s=4.0)
    one.on_timer(now_s=4.1, name="gather")
    one.on_message(Inventory(1, 1, 5, 5, 5, False, ()), now_s=4.2)
    assert one.stage is Stage.HANDOVER
    assert killed(one.on_message(Donated(1, 2, 5), now_s=5.0)) == [1]
    out = one.on_message(
        WorkerExited(1, 101, None, 9, False, 5, (5,), (5,), "body", 5.1, None, ""), now_s=5.1
    )
    assert SetTimer("nodes", 5.1 + limits.NODE_WAIT_S) in out
    assert one.stage is Stage.CLEARING


def test_a_waypoint_costs_few_checks_with_any_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: count how often members are checked for lateness while 200 ranks start."""
    looks = []
    is_late = Member.is_late.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Member, "is_late", property(lambda one: looks.append(one) or is_late(one)))
    one = Coordinator(options=CoordinatorOptions(world_size=200, start=Restart()))
    one.start(now_s=0.0)
    workers = [member.worker for member in one.roster.members()]
    one.on_message(StoreUp("127.0.0.1", 1, 1), now_s=0.0)
    for worker in workers:
        one.on_message(WorkerStarted(worker, 100 + worker, "node", 0.0), now_s=0.0)
        one.on_message(Hello(worker, 100 + worker), now_s=0.0)
    for worker in workers:
        one.on_message(Underway(worker, 1, Waypoint.CONNECTS.value), now_s=1.0)
    assert 200 <= len(looks) <= 4 * 200
