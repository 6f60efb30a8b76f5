"""What a failure after the last step means, tested without processes."""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.protocol.outputs import End, Output, Tell
from outlast.model.messages import Broke, Finished, WorkerExited
from outlast.model.terms import Rung
from tests.engine.test_lost_steps import Run

STEPS = 4


class FinishedRun:
    """A run whose ranks are past the last step, and everything that its coordinator orders from
    then on.
    """

    def __init__(self, *, replicated: bool = True, finished: tuple[int, ...] = (0, 1)) -> None:
        self.run = Run(replicated=replicated)
        self.coordinator: Coordinator = self.run.coordinator
        self.workers = self.run.workers
        self.out: list[Output] = []
        for rank in finished:
            self.hears(Finished(self.workers[rank], 1, STEPS, False))

    def hears(self, message: Finished | Broke | WorkerExited) -> None:
        self.run.now_s += 0.01
        self.out += self.coordinator.on_message(message, now_s=self.run.now_s)

    def exits(self, rank: int, code: int | None, signal: int | None, phase: str) -> None:
        worker, now_s = self.workers[rank], self.run.now_s
        self.hears(
            WorkerExited(
                worker, 100 + worker, code, signal, False, STEPS, (), (), phase, now_s, now_s, ""
            )
        )

    def raises(self, rank: int, mechanism: str = "exception") -> None:
        worker = self.workers[rank]
        self.hears(Broke(worker, 1, STEPS, mechanism, "Boom: no", "trace", self.run.now_s))

    @property
    def ends(self) -> list[End]:
        return [one for one in self.out if isinstance(one, End)]

    @property
    def told(self) -> str:
        return "\n".join(one.text for one in self.out if isinstance(one, Tell))


@pytest.mark.parametrize(("code", "signal"), [(None, 11), (7, None)])
def test_a_crash_after_the_script_has_ended_well_is_a_warning(
    code: int | None, signal: int | None
) -> None:
    """The other rank still runs its last code, and is not disturbed."""
    over = FinishedRun()
    over.exits(1, code, signal, "exit")
    assert "after its script had ended well" in over.told
    assert over.coordinator.interruptions.open == []
    assert not over.ends
    over.exits(0, 0, None, "exit")
    assert [(one.exit_code, one.state) for one in over.ends] == [(0, "ended")]


def test_a_script_that_raises_at_its_end_fails_the_run_once_all_have_ended() -> None:
    over = FinishedRun()
    over.raises(1)
    over.exits(1, 1, None, "epilogue")
    assert not over.ends, "the other rank comes to its end first"
    (told,) = over.coordinator.interruptions.open
    assert (told.ranks, told.rung, told.error) == ((1,), Rung.STOP, "Boom: no")
    over.exits(0, 0, None, "exit")
    (end,) = over.ends
    assert (end.exit_code, end.state, end.traceback) == (1, "failed", "trace")
    assert "rank 1 failed after the last step: Boom: no; all 4 steps are committed" in end.reason


def test_a_rank_that_misses_a_failed_peer_is_not_blamed() -> None:
    over = FinishedRun()
    over.raises(1)
    over.raises(0, "collective")
    over.exits(0, 1, None, "epilogue")
    over.exits(1, 1, None, "epilogue")
    (end,) = over.ends
    assert "rank 1 failed" in end.reason


def test_one_replicated_rank_past_the_last_step_speaks_for_all() -> None:
    """Replicated ranks have all voted on the last step. Sharded ranks may still be in it."""
    for replicated, ends in ((True, True), (False, False)):
        over = FinishedRun(replicated=replicated, finished=(1,))
        over.raises(1)
        assert bool(over.told) is ends, (replicated, over.told)


def test_a_rank_killed_after_the_last_step_is_replaced_as_usual() -> None:
    over = FinishedRun()
    over.exits(1, None, 9, "epilogue")
    (told,) = over.coordinator.interruptions.open
    assert told.rung is not Rung.STOP
    assert not over.ends


def test_a_failure_after_the_last_step_reported_twice_is_booked_once() -> None:
    over = FinishedRun()
    over.raises(1)
    over.raises(1)
    assert len(over.coordinator.interruptions.open) == 1
