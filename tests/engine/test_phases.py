"""Where a replaced rank meets its peers when a phase (run.phase) lies between two steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.protocol.worker import WorkerMachine
from outlast.engine.restore import Holding, decide_replicated
from outlast.model.messages import Broke, Regroup, WorkerExited
from outlast.model.terms import Rung
from tests.engine.test_lost_steps import SEALED, Run

DEAD = Holding((0,), False, 6, (5, 6), 6, False, ())
AT_6 = Holding((1,), True, 6, (6,), 6, False, ())


def plan(*, generation: int, step: int, settle: str = "repeat") -> Regroup:
    return Regroup(
        generation,
        1,
        3,
        "here",
        1,
        settle,
        "in_place",
        step,
        -1,
        False,
        "none",
        "keep",
        "",
        step,
        None,
        None,
    )


def test_a_rank_that_asks_for_the_next_step_has_done_all_phases() -> None:
    verdict = decide_replicated(
        holdings=[DEAD, AT_6, replace(AT_6, ranks=(2,), phases=1, begun=True)]
    )
    assert (verdict.step, verdict.phases, verdict.replay) == (6, 1, False)


def test_a_newcomer_comes_through_the_script_if_no_rank_is_past_it() -> None:
    verdict = decide_replicated(holdings=[DEAD, AT_6, replace(AT_6, ranks=(2,), phases=1)])
    assert (verdict.step, verdict.phases, verdict.replay) == (6, 1, True)


def test_after_a_step_settled_forward_its_phases_lie_ahead_of_all() -> None:
    """What the survivors did after step 5 says nothing about step 6."""
    in_hook = Holding((1,), True, 5, (5, 6), 5, True, (), phases=1, begun=True)
    verdict = decide_replicated(holdings=[DEAD, in_hook, replace(in_hook, ranks=(2,))])
    assert (
        verdict.step,
        set(verdict.settle.values()),
        verdict.phases,
        verdict.replay,
    ) == (6, {"forward"}, 0, True)


def test_before_the_first_step_there_is_nothing_to_replay() -> None:
    start = Holding((1,), True, 0, (0,), 0, False, ())
    assert not decide_replicated(holdings=[replace(DEAD, committed=0, prepared=(0,)), start]).replay


def test_a_commit_opens_the_phases_after_it() -> None:
    machine = WorkerMachine(worker=1)
    machine.joined(plan(generation=1, step=5), group_s=0.0, restore_s=0.0)
    machine.note_past_phase()
    machine.note_begun(over=False)
    assert (machine.phases, machine.begun) == (1, True)
    machine.note_committed(step=6, now_s=1.0)
    assert (machine.phases, machine.begun) == (0, False)


def test_the_donor_has_run_the_code_after_the_step_if_any_rank_has() -> None:
    """Method: rank 0 is still in the hook of step 6. Rank 1 has reached a phase after the step, and
    rank 2 the next step.
    """
    hook = Holding((0,), True, 5, (5, 6), 6, True, ())
    phase = Holding((1,), True, 6, (6,), 6, False, ())
    begun = Holding((2,), True, 6, (6,), 6, False, (), phases=1, begun=True)
    assert decide_replicated(holdings=[replace(DEAD, ranks=(3,)), hook, phase, begun]).donor == 2
    verdict = decide_replicated(holdings=[replace(DEAD, ranks=(3,)), hook, phase])
    assert verdict.donor == 1
    verdict = decide_replicated(holdings=[replace(DEAD, ranks=(3,)), hook])
    assert verdict.donor == 0


@pytest.mark.parametrize(
    ("ranks", "phase", "rung"),
    [
        ((0, 1), "evaluation", Rung.STOP),
        ((0, 1), "body", Rung.RESTART),
        ((1,), "evaluation", Rung.RESPAWN),
    ],
)
def test_a_phase_in_which_all_scripts_have_ended_is_not_left_out(
    ranks: tuple[int, ...], phase: str, rung: Rung
) -> None:
    """A rank that has peers left comes back, and tries the phase again with them."""
    run = Run(replicated=True)
    for worker in [run.workers[rank] for rank in ranks]:
        run.say(Broke(worker, 1, 6, "exception", "Boom: no", "trace", run.now_s))
        held = (6, SEALED, SEALED, phase, run.now_s, run.now_s, "")
        run.say(WorkerExited(worker, 100 + worker, 1, None, False, *held))
    if ranks == (1,):
        run.stands_still(6)
    else:
        run.gathers()
    assert run.interruption is not None
    assert run.interruption.rung is rung, run.interruption
    assert ("leave that phase out; last error: Boom: no" in run.interruption.reason) == (
        rung is Rung.STOP
    )
