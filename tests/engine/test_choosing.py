"""Which rung the coordinator chooses by what lives and what lies sealed, and what it says of it."""

from __future__ import annotations

from outlast.engine.protocol.state import Stage
from outlast.model.messages import Donated
from outlast.model.records import Interruption
from outlast.model.terms import Rung
from tests.engine.test_lost_steps import Run


def booked(run: Run) -> Interruption:
    assert run.interruption is not None
    return run.interruption


def begins_anew() -> Run:
    """Rank 1 of a script that comes anew dies at step 10, and rank 0 stands still with the state."""
    run = Run("respawn", replicated=True)
    run.dies(10)
    run.stands_still(10)
    assert run.coordinator.stage is Stage.HANDOVER
    return run


def test_a_script_that_cannot_be_entered_again_is_said_to_be_the_reason_where_one_stands_in_a_step() -> None:
    one = booked(begins_anew())
    assert one.rung is Rung.RESPAWN
    assert "the script made collectives of its own before run.steps" in one.reason


def test_what_was_handed_over_is_begun_from_again_when_one_dies_before_run_steps() -> None:
    """All come anew from rank 0's transfer image; its own successor dies while it boots, and nobody stands in a step."""
    run = begins_anew()
    run.say(Donated(run.workers[0], 2, 10))
    run.dies(10, rank=0)
    assert run.coordinator.stage is Stage.STARTING
    run.dies(-1, rank=0)
    run.gathers()
    assert (booked(run).id, booked(run).rung, booked(run).steps_lost) == (2, Rung.RESPAWN, 0)
    assert "no process stands in a step with the state that there is" in booked(run).reason
    run.dies(-1, rank=1)
    plans = [run.coordinator.roster.holder(rank).plan for rank in range(2)]
    assert [(plan.step, plan.replicated) for plan in plans if plan is not None] == [(10, "transfer")] * 2


def test_a_process_that_boots_is_kept_when_the_last_one_that_stood_in_a_step_dies() -> None:
    """Rank 1 is forked anew, and before it comes to run.steps rank 0 dies. All that is to be gone on from lies sealed."""
    run = Run()
    run.dies(10)
    run.stands_still(10)
    boots = run.coordinator.roster.holder(1)
    run.dies(10, rank=0)
    run.gathers()
    assert (boots.condemned, run.coordinator.roster.holder(1)) == (False, boots)
    assert "ranks [0] are forked from the zygote" in booked(run).reason
