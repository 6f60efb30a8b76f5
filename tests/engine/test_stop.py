"""How a run ends that was asked to stop: what is recorded for the next coordinator, and which ranks
count as ended well.
"""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.stages import Stage
from outlast.engine.coordinator.takeover import RecoveredState
from outlast.engine.protocol.outputs import End, Output, Record, Tell
from outlast.model.messages import Committed, Joined, WorkerExited
from outlast.model.records import Event
from outlast.model.terms import Mechanism
from tests.engine.test_lost_steps import Run
from tests.engine.test_nodes import coordinator_sessions, trains


def is_asked_to_stop(one: Coordinator, *, now_s: float) -> list[Output]:
    return one.ask_stop(now_s=now_s, reason="signal 15", exit_code=143)


def endings(outputs: list[Output]) -> list[Event]:
    return [
        one.record
        for one in outputs
        if isinstance(one, Record) and isinstance(one.record, Event) and one.record.kind == "ending"
    ]


def known_of_the_end(outputs: list[Output]) -> tuple[End | None, bool]:
    """Return what a later coordinator reads from these records: the End of the run, and whether it
    is due at once.
    """
    remembered = RecoveredState()
    for event in endings(outputs):
        remembered.take(event)
    return remembered.ending.end, remembered.ending.at_once


STOPPED = End(143, "stopped", "signal 15", "")


def test_the_next_coordinator_knows_of_a_stop_and_whether_it_may_wait() -> None:
    """Method: ask for the stop once while both ranks train, and then once more."""
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    for worker in (1, 2):
        one.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
    for worker in (1, 2):
        one.on_message(Committed(worker, 1, 1, 2.0), now_s=2.0)
    assert known_of_the_end(is_asked_to_stop(one, now_s=3.0)) == (STOPPED, False)
    assert known_of_the_end(is_asked_to_stop(one, now_s=4.0)) == (STOPPED, True)


def test_a_stop_at_once_is_handed_on_before_the_living_are_known() -> None:
    """Method: ask twice while the agents enrol with a new coordinator."""
    sessions = coordinator_sessions()
    sessions.rebuild(now_s=0.0, nodes={"a": 1, "b": 1})
    one = sessions.coordinator
    assert known_of_the_end(is_asked_to_stop(one, now_s=1.0)) == (STOPPED, False)
    assert known_of_the_end(is_asked_to_stop(one, now_s=2.0)) == (STOPPED, True)
    assert one.stage is Stage.REBUILDING


def test_on_one_node_no_end_is_written_down_for_another_coordinator() -> None:
    """On one node the run ends with this coordinator."""
    run = Run()
    for _ in range(2):
        assert endings(is_asked_to_stop(run.coordinator, now_s=run.now_s)) == []


@pytest.mark.parametrize("saves", [False, True])
def test_a_stop_says_whether_the_last_step_is_saved(saves: bool) -> None:
    run = Run(checkpoint_on_stop=saves)
    told = is_asked_to_stop(run.coordinator, now_s=run.now_s)
    (said,) = [one.text for one in told if isinstance(one, Tell)]
    assert ("committed first, and saved" in said) is saves
    assert ("not saved, because checkpoints are off" in said) is not saves


@pytest.mark.parametrize("stop", [False, True])
def test_an_end_in_the_middle_of_steps_is_good_only_after_a_stop(
    stop: bool,
) -> None:
    """Method: both ranks exit with code 0, and have not reported that their steps are over."""
    run = Run()
    if stop:
        is_asked_to_stop(run.coordinator, now_s=run.now_s)
    ended: list[Output] = []
    for worker in run.workers:
        exited = WorkerExited(
            worker, 100 + worker, 0, None, False, 4, (), (), "body", run.now_s, run.now_s, ""
        )
        ended += run.coordinator.on_message(exited, now_s=run.now_s)
    assert [one for one in ended if isinstance(one, End)] == ([STOPPED] if stop else [])
    assert [(one.ranks, one.mechanism) for one in run.coordinator.interruptions.open] == (
        [] if stop else [((0, 1), Mechanism.EXIT)]
    )
