"""What each rank is told when survivors go on in their processes, how long that may take, and which
spares are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Output, ToAgent
from outlast.model import limits
from outlast.model.messages import (
    Broke,
    Donated,
    Hello,
    Inventory,
    Joined,
    KillWorker,
    Registered,
    StartWorker,
    StoreUp,
    Underway,
    WorkerExited,
    WorkerStarted,
)
from outlast.model.terms import Rung, Waypoint
from tests.engine.test_lost_steps import Run
from tests.engine.test_roster import killed


def plan_sources(run: Run) -> list[tuple[str, str, str]]:
    """Return from each rank's plan how the rank goes on, and the sources of its private and its
    replicated state.
    """
    plans = [run.coordinator.roster.holder(rank).path.plan for rank in range(2)]
    return [(plan.then, plan.private, plan.replicated) for plan in plans if plan is not None]


def loses_rank_1(mode: str, *, replicated: bool = False) -> Run:
    """Return a run that lost rank 1 at step 10 and has planned the next generation, while rank 0
    goes on.
    """
    run = Run(mode, replicated=replicated)
    run.dies(10)
    run.stands_still(10)
    assert run.coordinator.stage is Stage.MOVING
    return run


def loses_contact(mode: str, *, replicated: bool = False) -> Run:
    """Return a run in which a collective failed at step 10. Both ranks live and go on."""
    run = Run(mode, replicated=replicated)
    run.say(Broke(run.workers[0], 1, 10, "collective", "reset by peer", "", run.now_s))
    run.gathers()
    run.say(*(Inventory(worker, 1, 10, 10, 10, False, (5, 10)) for worker in run.workers))
    assert run.coordinator.stage is Stage.MOVING
    return run


def comes_up(run: Run, *messages: Registered | Joined) -> int:
    """Let the worker that replaces rank 1 start and connect. Return its number."""
    born = run.coordinator.roster.holder(1).worker
    run.say(
        StoreUp("127.0.0.1", 1, 1),
        WorkerStarted(born, 200 + born, "node", run.now_s),
        Hello(born, 200 + born),
        *messages,
    )
    return born


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "replicated", "survivor", "successor"),
    [
        ("in_place", True, ("in_place", "keep", "none"), ("start", "slot", "donor")),
        ("reenter", True, ("reenter", "slot", "transfer"), ("start", "slot", "transfer")),
        ("reenter", False, ("reenter", "slot", "none"), ("start", "slot", "none")),
    ],
)
def test_a_survivor_goes_its_way_and_a_successor_starts(
    mode: str, replicated: bool, survivor: tuple[str, str, str], successor: tuple[str, str, str]
) -> None:
    """A rank that repeats the step in place keeps the state it holds. All others take their private
    state from what they had sealed.
    """
    assert plan_sources(loses_rank_1(mode, replicated=replicated)) == [survivor, successor]


def is_alone(run: Run, mode: str) -> None:
    """Let rank 1's successor reach a collective before run.steps, and let all ranks stand still.

    `mode` is the recovery mode of the successor.
    """
    born = comes_up(run)
    run.say(
        Registered(born, 2, -1, mode, False, True, "", at_steps=False),
        Broke(born, 2, -1, "alone", "a.py:3 needs all ranks before run.steps", "", run.now_s),
    )
    run.gathers()
    run.say(
        Inventory(run.workers[0], 2, 10, 10, 10, False, ()),
        Inventory(born, 2, -1, -1, -1, False, ()),
    )


def test_a_successor_that_cannot_be_alone_lets_all_enter_main_again() -> None:
    """Rank 1's successor reaches a collective before run.steps. That is not a fault of its own."""
    run = loses_rank_1("in_place", replicated=True)
    assert plan_sources(run)[0][0] == "in_place"
    is_alone(run, "reenter")
    assert (run.coordinator.stage, run.coordinator.generation) == (Stage.MOVING, 3)
    assert plan_sources(run) == [("reenter", "slot", "transfer"), ("start", "slot", "transfer")]
    one = run.interruption
    assert one is not None
    assert (one.id, one.ranks, one.pids) == (1, (1,), (100 + run.workers[1],))
    assert "rank 1 cannot be replaced in place: a.py:3 needs all ranks" in one.reason


def test_a_successor_that_cannot_be_alone_restarts_all_without_main() -> None:
    run = loses_rank_1("in_place", replicated=True)
    is_alone(run, "respawn")
    assert run.coordinator.stage is Stage.HANDOVER


@pytest.mark.parametrize(("mode", "replicated"), [("in_place", "donor"), ("reenter", "transfer")])
def test_a_process_that_boots_is_started_by_the_next_plan_too(mode: str, replicated: str) -> None:
    """Method: rank 1's successor was told of generation 2. While it boots, that generation is given
    up, because rank 0's group cannot be built.
    """
    run = loses_rank_1(mode, replicated=True)
    born = comes_up(run)
    run.say(Broke(run.workers[0], 2, 10, "collective", "no connection", "", run.now_s))
    run.gathers()
    run.say(
        Inventory(run.workers[0], 2, 10, 10, 10, False, ()),
        Inventory(born, 2, -1, -1, -1, False, ()),
    )
    assert run.coordinator.generation == 3
    assert plan_sources(run)[1] == ("start", "slot", replicated)


def test_a_rank_leaves_a_torn_state_by_entering_main_again() -> None:
    """Method: both ranks begin step 11 from a transfer image of step 10.

    Rank 0 sees the vote pass and fails while it applies the step. Rank 1 dies, and no rank can
    reach step 11.
    """
    run = loses_rank_1("reenter", replicated=True)
    first = run.workers[0]
    run.say(Donated(first, 2, 10))
    born = comes_up(run)
    for worker in (first, born):
        run.say(
            Registered(worker, 2, 10, "reenter", False, True, ""), Joined(worker, 2, 10, 0.1, 0.1)
        )
    run.say(Broke(first, 2, 10, "exception", "boom", "", run.now_s))
    run.say(
        WorkerExited(
            born, 200 + born, None, 9, False, 10, (10,), (), "body", run.now_s, run.now_s, ""
        )
    )
    run.gathers()
    run.say(Inventory(first, 2, 10, 11, 11, False, ()))
    assert run.coordinator.generation == 3
    assert plan_sources(run) == [("reenter", "slot", "transfer"), ("start", "slot", "transfer")]


# --- how long it may take -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("befalls", "mode", "replicated", "rung", "wait_s"),
    [
        (loses_contact, "in_place", True, Rung.REPEAT, limits.REGROUP_DEADLINE_S),
        (loses_rank_1, "in_place", True, Rung.RESPAWN, limits.REGROUP_DEADLINE_S),
        (loses_contact, "reenter", True, Rung.REENTER, limits.REGROUP_DEADLINE_S),
        (loses_contact, "reenter", False, Rung.REENTER, limits.BOOT_DEADLINE_S),
        (loses_rank_1, "reenter", False, Rung.RESPAWN, limits.BOOT_DEADLINE_S),
    ],
    ids=[
        "all stand in the step",
        "one donates",
        "one donates to all",
        "all run their set-up again",
        "one boots",
    ],
)
def test_a_generation_has_boot_time_unless_all_stand_or_wait_for_a_donor(
    befalls: Callable[..., Run], mode: str, replicated: bool, rung: Rung, wait_s: float
) -> None:
    run = befalls(mode, replicated=replicated)
    assert run.interruption is not None
    assert run.interruption.rung is rung
    assert run.timers["move"] == pytest.approx(run.now_s + wait_s)


def test_after_the_donor_has_handed_over_a_generation_has_boot_time() -> None:
    run = loses_rank_1("in_place", replicated=True)
    run.say(Donated(run.workers[0], 2, 10))
    assert run.timers["move"] == pytest.approx(run.now_s + limits.BOOT_DEADLINE_S)


def is_on_the_way(*, first: Waypoint, second: Waypoint) -> tuple[Run, int]:
    """Return a run that lost rank 1 and in which rank 0 has handed its state over. Both ranks are
    at these places in generation 2.
    """
    run = loses_rank_1("in_place", replicated=True)
    born = comes_up(run)
    run.say(Donated(run.workers[0], 2, 10))
    run.say(Underway(run.workers[0], 2, first.value), Underway(born, 2, second.value))
    return run, born


@pytest.mark.parametrize("second", [Waypoint.CONNECTS, Waypoint.RESTORES])
def test_once_no_script_is_at_work_the_deadline_of_a_regroup_holds(second: Waypoint) -> None:
    run, _ = is_on_the_way(first=Waypoint.CONNECTS, second=second)
    assert run.timers["move"] == pytest.approx(run.now_s + limits.REGROUP_DEADLINE_S)


@pytest.mark.parametrize("second", [Waypoint.BEGINS, Waypoint.AWAITS_STATE, Waypoint.IN_SCRIPT])
def test_while_a_script_is_at_work_it_has_boot_time(second: Waypoint) -> None:
    run, _ = is_on_the_way(first=Waypoint.CONNECTS, second=second)
    assert run.timers["move"] > run.now_s + limits.REGROUP_DEADLINE_S


def test_a_script_that_goes_on_with_its_group_has_boot_time_again() -> None:
    """Method: both ranks wait for the group at the same time. Then rank 1's script builds its
    model.
    """
    run, born = is_on_the_way(first=Waypoint.CONNECTS, second=Waypoint.CONNECTS)
    run.say(Underway(born, 2, Waypoint.IN_SCRIPT.value))
    assert run.timers["move"] == pytest.approx(run.now_s + limits.BOOT_DEADLINE_S)
    run.say(Underway(run.workers[0], 2, Waypoint.RESTORES.value))
    assert run.timers["move"] == pytest.approx(run.now_s + limits.BOOT_DEADLINE_S, abs=0.1)


def test_a_survivor_that_never_comes_to_the_group_is_killed_soon() -> None:
    """Rank 0 goes on in its step, so it runs no script code before the group. Its report that it
    has handed over arrives twice.
    """
    run, _ = is_on_the_way(first=Waypoint.BEGINS, second=Waypoint.CONNECTS)
    run.say(Donated(run.workers[0], 2, 10))
    assert run.timers["move"] <= run.now_s + limits.REGROUP_DEADLINE_S
    run.now_s = run.timers["move"]
    killed_now = killed(run.coordinator.on_timer(now_s=run.now_s, name="move"))
    assert killed_now == [run.workers[0]]


def test_ranks_that_wait_for_each_other_are_not_killed_but_try_again() -> None:
    """Both ranks are in the new group and never join. All leave it and form the next one."""
    run, born = is_on_the_way(first=Waypoint.RESTORES, second=Waypoint.RESTORES)
    run.now_s = run.timers["move"]
    assert not killed(run.coordinator.on_timer(now_s=run.now_s, name="move"))
    assert run.coordinator.stage is Stage.GATHERING
    run.gathers()
    run.say(
        Inventory(run.workers[0], 2, 10, 10, 10, False, (10,)),
        Inventory(born, 2, -1, -1, -1, False, ()),
    )
    assert run.coordinator.generation == 3
    assert run.coordinator.roster.holder(1).worker == born


def test_ranks_that_never_come_together_end_the_run() -> None:
    """The budgets bound how often this is tried, so no wait is endless."""
    run, born = is_on_the_way(first=Waypoint.RESTORES, second=Waypoint.RESTORES)
    tries = 0
    while run.coordinator.stage is Stage.MOVING and tries < 100:
        tries += 1
        generation = run.coordinator.generation
        run.coordinator.on_timer(now_s=run.now_s, name="move")
        run.gathers()
        run.say(
            Inventory(run.workers[0], generation, 10, 10, 10, False, (10,)),
            Inventory(born, generation, -1, -1, -1, False, ()),
        )
        generation = run.coordinator.generation
        run.say(Donated(run.workers[0], generation, 10))
        run.say(*(Underway(one, generation, 4) for one in (run.workers[0], born)))
    assert 2 <= tries <= limits.SAME_STEP_FAULTS_COUNT + 1
    assert run.coordinator.stage in (Stage.CLEARING, Stage.STOPPING)


# --- spares ---------------------------------------------------------------------------------------


def spare_orders(outputs: list[Output]) -> list[str]:
    """Return what is ordered for the spares: the kind of each one that is started, and the number
    of each one that is killed.
    """
    orders = [output.message for output in outputs if isinstance(output, ToAgent)]
    return [
        one.kind if isinstance(one, StartWorker) else f"kills {one.worker}"
        for one in orders
        if isinstance(one, (StartWorker, KillWorker))
    ]


def test_a_warm_spare_is_killed_once_to_make_room_for_a_hot_one() -> None:
    """The warm spare was started before it was known that the script calls outlast.join."""
    one = Coordinator(options=CoordinatorOptions(2, Restart(), spares=1))
    one.start(now_s=0.0)
    assert spare_orders(one.on_timer(now_s=5.0, name="spares")) == ["warm"]
    (spare,) = one.roster.spares()
    one.on_message(Registered(1, 1, 0, "in_place", False, True, ""), now_s=6.0)
    assert spare_orders(one.on_timer(now_s=7.0, name="spares")) == [f"kills {spare.worker}"]
    assert spare_orders(one.on_timer(now_s=7.1, name="spares")) == []
    one.on_message(
        WorkerExited(spare.worker, 0, None, 9, False, -1, (), (), "parked", 7.2, 7.2, ""), now_s=7.2
    )
    assert spare_orders(one.on_timer(now_s=8.2, name="spares")) == ["hot"]
