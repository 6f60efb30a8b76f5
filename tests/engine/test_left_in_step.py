"""A rank leaves the script with exit code 0 in the middle of a step, tested without processes."""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.stages import Stage, Timer, set_timer
from outlast.engine.protocol.outputs import End, Output, ToAgent
from outlast.model import limits
from outlast.model.messages import Broke, Finished, KillWorker, WorkerExited
from outlast.model.terms import Mechanism
from tests.engine.test_lost_steps import Run

STEP = 4


class LeavingRun:
    """A run in which ranks leave the script during a step."""

    def __init__(self) -> None:
        self.run = Run("in_place", replicated=True)
        self.coordinator = self.run.coordinator
        self.out: list[Output] = []

    def hears(self, message: Finished | Broke | WorkerExited) -> None:
        self.run.now_s += 0.01
        self.out += self.coordinator.on_message(message, now_s=self.run.now_s)

    def leaves(self, rank: int, *, in_step: bool = True, ends: bool = True) -> None:
        worker = self.run.workers[rank]
        self.hears(Finished(worker, 1, STEP, False, in_step))
        if ends:
            now_s = self.run.now_s
            self.hears(
                WorkerExited(
                    worker, 100 + worker, 0, None, False, STEP, (), (), "exit", now_s, now_s, ""
                )
            )

    def time_is_up(self) -> None:
        self.run.now_s += limits.LEFT_IN_STEP_S
        self.out += self.coordinator.on_timer(now_s=self.run.now_s, name=Timer.LEFT.value)

    @property
    def faults(self) -> list[tuple[tuple[int, ...], Mechanism]]:
        return [(one.ranks, one.mechanism) for one in self.coordinator.interruptions.open]


def test_ranks_that_all_leave_in_a_step_end_the_run_well() -> None:
    """A script may end this way on purpose, although more steps were requested."""
    left = LeavingRun()
    left.leaves(0)
    left.leaves(1)
    (end,) = [one for one in left.out if isinstance(one, End)]
    assert (end.exit_code, end.state) == (0, "ended")
    left.time_is_up()
    assert not left.faults


def test_a_rank_that_leaves_alone_is_replaced_once_the_others_had_time() -> None:
    left = LeavingRun()
    left.leaves(1)
    assert not left.faults
    assert set_timer(Timer.LEFT, left.run.now_s + limits.LEFT_IN_STEP_S) in left.out
    left.time_is_up()
    assert left.faults == [((1,), Mechanism.EXIT)]
    assert "with exit code 0, and rank 0 has not" in left.coordinator.interruptions.open[0].reason
    assert left.coordinator.stage is Stage.GATHERING


@pytest.mark.parametrize("ends", [True, False])
def test_a_rank_that_leaves_alone_is_blamed_at_once_for_a_collective(ends: bool) -> None:
    """The process may not have ended yet. If so, it is killed."""
    left = LeavingRun()
    left.leaves(1, ends=ends)
    worker = left.run.workers[0]
    left.hears(Broke(worker, 1, STEP, "collective", "peer lost", "", left.run.now_s))
    assert left.faults == [((1,), Mechanism.EXIT)]
    killed = [
        one for one in left.out if isinstance(one, ToAgent) and isinstance(one.message, KillWorker)
    ]
    assert len(killed) == (0 if ends else 1)


def test_a_rank_that_left_its_loop_between_two_steps_is_waited_for() -> None:
    """The peer may write a file after its loop, and take as long as it likes."""
    left = LeavingRun()
    left.leaves(1, in_step=False)
    left.time_is_up()
    assert not left.faults


def test_a_rank_that_left_before_its_first_step_is_blamed_for_a_collective() -> None:
    """The others build their model together. This rank has ended without reaching run.steps."""
    left = LeavingRun()
    member = left.coordinator.roster.holder(1)
    member.script.attached = False
    worker, now_s = member.worker, left.run.now_s
    left.hears(
        WorkerExited(worker, 100 + worker, 0, None, False, -1, (), (), "exit", now_s, now_s, "")
    )
    left.time_is_up()
    assert not left.faults, "the others may have work of their own"
    left.hears(Broke(left.run.workers[0], 1, 0, "collective", "peer lost", "", left.run.now_s))
    assert left.faults == [((1,), Mechanism.EXIT)]
    assert "before run.steps, with exit code 0" in left.coordinator.interruptions.open[0].reason


def test_a_rank_that_left_early_is_blamed_though_its_peer_comes_first() -> None:
    """The rank closes its connections before its process ends, so its peer's report arrives
    first.
    """
    left = LeavingRun()
    member = left.coordinator.roster.holder(1)
    member.script.attached = False
    worker, now_s = member.worker, left.run.now_s
    left.hears(Broke(left.run.workers[0], 1, 0, "collective", "peer lost", "", left.run.now_s))
    assert left.faults == [((0,), Mechanism.LOST_CONTACT)]
    left.hears(
        WorkerExited(worker, 100 + worker, 0, None, False, -1, (), (), "exit", now_s, now_s, "")
    )
    assert left.faults == [((1,), Mechanism.EXIT)]
