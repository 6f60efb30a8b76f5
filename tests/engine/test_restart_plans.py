"""Which rung the coordinator chooses, depending on the living ranks and the sealed images, and the
reason it gives.
"""

from __future__ import annotations

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.model.messages import (
    Donated,
    Hello,
    Inventory,
    Joined,
    Registered,
    StoreUp,
    WorkerExited,
)
from outlast.model.records import Interruption
from outlast.model.terms import Rung
from tests.engine.test_lost_steps import Run


def booked(run: Run) -> Interruption:
    assert run.interruption is not None
    return run.interruption


def starts_over() -> Run:
    """Return a run whose script restarts: rank 1 died at step 10, and rank 0 stands still with the
    state.
    """
    run = Run("respawn", replicated=True)
    run.dies(10)
    run.stands_still(10)
    assert run.coordinator.stage is Stage.HANDOVER
    return run


def test_a_script_that_cannot_be_entered_again_is_named_as_the_reason() -> None:
    one = booked(starts_over())
    assert one.rung is Rung.RESPAWN
    assert "the script made collectives of its own before run.steps" in one.reason


def test_a_transfer_image_is_used_again_when_one_dies_before_run_steps() -> None:
    """Method: all ranks restart from rank 0's transfer image. Then rank 0's successor dies while it
    boots, and no rank is in a step.
    """
    run = starts_over()
    run.say(Donated(run.workers[0], 2, 10))
    run.dies(10, rank=0)
    assert run.coordinator.stage is Stage.STARTING
    run.dies(-1, rank=0)
    run.gathers()
    assert (booked(run).id, booked(run).rung, booked(run).steps_lost) == (2, Rung.RESPAWN, 0)
    assert "no process stands in a step with the state that there is" in booked(run).reason
    run.dies(-1, rank=1)
    plans = [run.coordinator.roster.holder(rank).path.plan for rank in range(2)]
    assert [(plan.step, plan.replicated) for plan in plans if plan is not None] == [
        (10, "transfer")
    ] * 2


def test_a_booting_process_is_kept_when_the_last_one_in_a_step_dies() -> None:
    """Method: rank 1 is forked again, and rank 0 dies before rank 1 reaches run.steps.

    Everything needed to go on is sealed.
    """
    run = Run()
    run.dies(10)
    run.stands_still(10)
    boots = run.coordinator.roster.holder(1)
    run.dies(10, rank=0)
    run.gathers()
    assert (boots.life.condemned, run.coordinator.roster.holder(1)) == (False, boots)
    assert "ranks [0] are forked from the zygote" in booked(run).reason


def test_the_state_of_a_rank_inside_a_step_is_handed_over_again() -> None:
    """Method: all ranks have started over from rank 0's transfer image of step 10, and one of them
    dies in the next step.

    The image is still there, but lacks what the script did since.
    """
    run = starts_over()
    run.say(Donated(run.workers[0], 2, 10))
    run.dies(10, rank=0)
    for rank in range(2):
        worker = run.coordinator.roster.holder(rank).worker
        run.say(
            Registered(worker, 3, 10, "respawn", False, True, ""),
            StoreUp("127.0.0.1", 1, 1),
            Hello(worker, 100 + worker),
        )
        run.say(Joined(worker, 3, 10, 0.1, 0.1))
    assert run.coordinator.stage is Stage.TRAINING
    first = run.coordinator.roster.holder(0)
    run.dies(10)
    run.gathers()
    run.say(Inventory(first.worker, 3, 10, 10, 10, False, (), phases=2))
    assert run.coordinator.stage is Stage.HANDOVER
    assert first.path.plan is not None
    assert (first.path.plan.generation, first.path.plan.step, first.path.plan.donate) == (
        4,
        10,
        True,
    )


def test_images_of_the_run_before_are_used_until_this_run_has_its_own() -> None:
    """Method: a launcher that died left images of step 7 in memory.

    Rank 1 is killed while it boots, before any rank has reported what state there is.
    """
    one = Coordinator(options=CoordinatorOptions(2, Restart(7, "none", "slot")))
    one.start(now_s=0.0)
    one.on_message(StoreUp("127.0.0.1", 1, 1), now_s=0.1)
    for worker in (1, 2):
        one.on_message(Hello(worker, 100 + worker), now_s=0.2)
        one.on_message(
            Registered(worker, 1, -1, "reenter", False, True, "", at_steps=False), now_s=0.3
        )
    one.on_message(
        WorkerExited(2, 102, None, 9, False, -1, (), (), "setup", 1.0, 1.0, ""), now_s=1.0
    )
    one.on_timer(now_s=1.1, name="gather")
    one.on_message(Inventory(1, 1, -1, -1, -1, False, ()), now_s=1.2)
    one.on_message(
        WorkerExited(1, 101, None, 9, False, -1, (), (), "setup", 1.3, 1.3, ""), now_s=1.3
    )
    assert one.stage is Stage.STARTING
    plans = [one.roster.holder(rank).path.plan for rank in range(2)]
    assert [(plan.generation, plan.step, plan.private) for plan in plans if plan is not None] == [
        (2, 7, "slot")
    ] * 2
