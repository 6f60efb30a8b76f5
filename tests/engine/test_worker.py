"""One rank's part in the protocol, as its messages and its inventory show it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.protocol.outputs import Output, Say, Wake
from outlast.engine.protocol.worker import WorkerMachine
from outlast.model.messages import Broke, Inventory, Leave, Regroup
from tests.engine.test_phases import plan

AGAIN = Leave(2, "rank 0 is lost")


def trains(*, step: int = 5) -> WorkerMachine:
    """Return a machine that trains in generation 1, from `step` on."""
    machine = WorkerMachine(worker=1)
    machine.on_message(plan(generation=1, step=step))
    machine.follow()
    machine.joined(plan(generation=1, step=step), group_s=0.0, restore_s=0.0)
    return machine


def goes_on_with(machine: WorkerMachine, order: Regroup) -> None:
    """Let the machine stand still in generation 1, and give it the next plan."""
    machine.on_message(Leave(1, "rank 0 is lost"))
    machine.stand_still(in_hook=True)
    machine.on_message(order)


def inventory(outputs: list[Output]) -> Inventory:
    (said,) = [output.message for output in outputs if isinstance(output, Say)]
    assert isinstance(said, Inventory)
    return said


# --- the state it holds ---------------------------------------------------------------------------


@pytest.mark.parametrize(("settle", "step", "passed"), [("forward", 6, 6), ("repeat", 5, 5)])
def test_a_step_passed_once_a_plan_says_that_all_go_forward_to_it(
    settle: str, step: int, passed: int
) -> None:
    """Method: the rank has prepared step 6, and is told to leave again before it could follow the
    plan.
    """
    machine = trains()
    machine.note_prepared(step=6)
    goes_on_with(machine, plan(generation=2, step=step, settle=settle))
    assert machine.on_message(AGAIN) == [Wake()]
    said = inventory(machine.stand_still(in_hook=True))
    assert (said.committed, said.prepared, said.passed) == (5, 6, passed)


def test_a_process_that_boots_reports_no_passed_step() -> None:
    """Method: a booting process is to start from step 5, and is told to leave before it has
    started.
    """
    machine = WorkerMachine(worker=1)
    machine.on_message(replace(plan(generation=2, step=5, settle="none"), then="start"))
    said = inventory(machine.on_message(AGAIN))
    assert (said.committed, said.passed) == (-1, -1)


@pytest.mark.parametrize(("step", "begun", "over"), [(5, True, True), (6, False, False)])
def test_requests_after_a_step_are_forgotten_with_the_step(
    step: int, begun: bool, over: bool
) -> None:
    """Method: the rank is past step 5, and has heard that no step follows.

    The next generation begins from that step, or from another one.
    """
    machine = trains()
    machine.note_begun(over=True)
    goes_on_with(machine, order := plan(generation=2, step=step))
    machine.joined(order, group_s=0.0, restore_s=0.0)
    machine.on_message(AGAIN)
    said = inventory(machine.stand_still(in_hook=False))
    assert (said.committed, said.begun, said.over) == (step, begun, over)


# --- how long it goes on --------------------------------------------------------------------------


def test_work_begun_in_a_generation_goes_on_only_there() -> None:
    assert (trains().in_time(1), trains().in_time(2)) == (True, False)
    machine = trains()
    goes_on_with(machine, plan(generation=2, step=5))
    assert (machine.in_time(1), machine.in_time(2)) == (False, True)


def test_work_of_a_generation_does_not_go_on_once_it_is_to_be_left() -> None:
    machine = trains()
    machine.on_message(Leave(1, "rank 0 is lost"))
    assert not machine.in_time(1)
    machine.stand_still(in_hook=False)
    assert not machine.in_time(1)


# --- which thread answers an order to leave -------------------------------------------------------


def test_a_rank_that_entered_main_again_leaves_without_its_main_thread() -> None:
    """Its main thread is in the script's set-up and in no group. It takes the newest plan once it
    reaches run.steps.
    """
    machine = trains()
    goes_on_with(machine, replace(plan(generation=2, step=5), replicated="donor"))
    machine.forget_state()
    machine.detach()
    out = machine.on_message(AGAIN)
    assert Wake() not in out
    assert inventory(out).committed == -1
    assert machine.newer_plan(than=-1) is None


def test_a_rank_past_its_last_step_sends_its_inventory_at_once() -> None:
    machine = trains()
    machine.finished(stopped=False)
    out = machine.on_message(Leave(1, "rank 0 is lost"))
    assert inventory(out).committed == 5
    assert Wake() in out


def test_a_rank_in_a_new_steps_call_is_woken_before_its_inventory() -> None:
    """Run.steps is called again, so a step may be under way. Only the main thread knows how far
    that step is.
    """
    machine = trains()
    machine.finished(stopped=False)
    machine.note_steps_resumed()
    assert machine.on_message(Leave(1, "rank 0 is lost")) == [Wake()]
    assert inventory(machine.stand_still(in_hook=False)).committed == 5


def test_a_rank_told_to_leave_at_its_last_step_sends_one_inventory() -> None:
    """Method: the order to leave arrives before the rank has reported that it is past its last
    step.
    """
    machine = trains()
    machine.on_message(Leave(1, "rank 0 is lost"))
    machine.finished(stopped=False)
    assert machine.on_message(Leave(1, "rank 0 is lost")) == []
    assert inventory(machine.stand_still(in_hook=False)).committed == 5


# --- whether main's function starts over ----------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "replicated", "reenters", "again"),
    [
        ("reenter", "transfer", False, True),
        ("reenter", "donor", True, True),
        ("in_place", "none", True, True),
        ("in_place", "donor", True, False),
        ("in_place", "none", False, False),
        ("in_place", "donor", False, False),
    ],
)
def test_main_is_entered_again_if_a_plan_or_its_group_needs_it(
    then: str, replicated: str, reenters: bool, again: bool
) -> None:
    """A rank whose state a donor has meets the others at run.steps, and may go on from
    where it is.
    """
    order = replace(plan(generation=2, step=5), then=then, replicated=replicated)
    assert WorkerMachine(worker=1).starts_over(order, reenters=reenters) is again


# --- a script that raises before it has joined ----------------------------------------------------


def raised(machine: WorkerMachine, *, born: int) -> Broke:
    """Let the script raise, and return the report. `born` is the generation in which the process
    was started.
    """
    machine.born_in(born)
    (said,) = [
        output.message
        for output in machine.broke(mechanism="exception", error="boom", traceback="", now_s=1.0)
        if isinstance(output, Say)
    ]
    assert isinstance(said, Broke)
    return said


def test_an_error_before_any_plan_is_of_the_generation_of_the_start() -> None:
    assert raised(WorkerMachine(worker=1), born=3).generation == 3


def test_an_error_after_a_plan_is_of_the_generation_of_that_plan() -> None:
    machine = WorkerMachine(worker=1)
    machine.on_message(plan(generation=4, step=5))
    assert raised(machine, born=3).generation == 4


def test_an_own_error_of_a_rank_that_was_told_to_leave_is_reported_once() -> None:
    """Method: two ranks raise at the same time, each by itself. The second has already been told to
    leave.

    An exception that only interrupts the rank, or that comes after its inventory, is not reported.
    """
    machine = trains()
    machine.on_message(Leave(machine.generation, "rank 0 raised"))
    what = {"mechanism": "exception", "error": "boom", "traceback": "", "now_s": 1.0}
    assert machine.broke(**what) == []
    (said,) = machine.broke(**what, ends=True)
    assert isinstance(said, Say)
    assert isinstance(said.message, Broke)
    assert machine.broke(**what, ends=True) == []
    still = trains()
    still.on_message(Leave(still.generation, "rank 0 raised"))
    still.stand_still(in_hook=False)
    assert still.broke(**what, ends=True) == []
