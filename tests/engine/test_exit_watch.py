"""Workers whose script is over and whose process does not end, in virtual time."""

from __future__ import annotations

import pytest

from outlast.engine.agent.agent import Agent
from outlast.engine.agent.worker_watch import Reading
from outlast.engine.coordinator.awaited import describe_wait
from outlast.engine.protocol.outputs import Deliver, Kill, Output, Tell, ToAgent, ToCoordinator
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.messages import (
    Finished,
    Ping,
    Pong,
    StartWorker,
    WorkerExited,
    WorkerHung,
    WorkerLingers,
    WorkerStarted,
)
from outlast.model.terms import Phase
from tests.engine.test_lost_steps import Run

STEPS = 4


class Node:
    """An agent with two workers, ticked as the launcher does. `answers` holds what each worker says
    it is doing.

    Worker 1 reached its end at second 0. Worker 2 is in its script.
    """

    def __init__(self, *, answers: dict[int, str], hang_after_s: float | None = None) -> None:
        self.now_s = 0.0
        self.agent = Agent(now_s=0.0, hang_after_s=hang_after_s)
        self.answers = answers
        self.out: list[Output] = []
        self.readings: dict[int, Reading] = {}
        for worker, phase in ((1, Phase.EXIT), (2, Phase.BOOT)):
            self.agent.on_command(StartWorker(worker, worker - 1, "rank", 1), now_s=0.0)
            self.agent.on_event(WorkerStarted(worker, 100 + worker, "node", 0.0), now_s=0.0)
            beacon = Beacon(worker=worker, pid=100 + worker, rank=worker - 1, beats=1, phase=phase)
            self.readings[worker] = Reading(beacon, stopped=False)

    def ticks(self, until_s: float) -> None:
        """Tick until `until_s`. A worker that is asked and has an answer gives it at once."""
        while self.now_s < until_s:
            self.now_s += limits.TICK_S
            new = self.agent.on_tick(self.readings, now_s=self.now_s)
            for one in new:
                if (
                    isinstance(one, Deliver)
                    and isinstance(one.message, Ping)
                    and (where := self.answers.get(one.worker)) is not None
                ):
                    pong = Pong(one.worker, one.message.nonce, 0, where)
                    self.out += self.agent.on_worker(pong, now_s=self.now_s)
            self.out += new

    def said(self, sort: type) -> list[WorkerLingers | WorkerHung]:
        told = [one.message for one in self.out if isinstance(one, ToCoordinator)]
        return [one for one in told if isinstance(one, sort)]  # type: ignore[misc]


def test_a_worker_that_does_not_end_is_reported_at_growing_intervals() -> None:
    node = Node(answers={1: "a.py:3 in saves"})
    node.ticks(limits.LINGER_S - 2 * limits.TICK_S)
    assert node.said(WorkerLingers) == []
    node.ticks(8.5 * limits.LINGER_S)
    said = node.said(WorkerLingers)
    assert [round(one.at_s) for one in said] == [10, 20, 40, 80], said
    assert {(one.worker, one.over_s, one.where) for one in said} == {(1, 0.0, "a.py:3 in saves")}


def test_a_worker_that_does_not_answer_is_reported_without_a_place() -> None:
    node = Node(answers={})
    node.ticks(limits.LINGER_S + limits.LINGER_ANSWER_S - 2 * limits.TICK_S)
    assert node.said(WorkerLingers) == []
    node.ticks(limits.LINGER_S + limits.LINGER_ANSWER_S + 2 * limits.TICK_S)
    assert [one.where for one in node.said(WorkerLingers)] == [""]


def test_a_worker_that_ends_is_not_reported_any_more() -> None:
    node = Node(answers={1: "a.py:3 in saves"})
    node.ticks(limits.LINGER_S + 1.0)
    gone = WorkerExited(1, 101, 0, None, False, 0, (), (), "exit", node.now_s, node.now_s, "")
    node.agent.on_event(gone, now_s=node.now_s)
    del node.readings[1]
    node.ticks(5 * limits.LINGER_S)
    assert len(node.said(WorkerLingers)) == 1


def test_ticks_may_be_skipped_until_a_lingering_worker_is_asked() -> None:
    node = Node(answers={1: "a.py:3 in saves"})
    node.ticks(1.0)
    assert node.agent.quiet_until_s() == limits.LINGER_S


@pytest.mark.parametrize("hang_after_s", [None, 60.0])
def test_a_process_that_does_not_end_is_no_hang(hang_after_s: float | None) -> None:
    """The other rank has ended. The run is not repeated because this process takes hours to end."""
    node = Node(answers={1: "a.py:3 in saves"}, hang_after_s=hang_after_s)
    gone = WorkerExited(2, 102, 0, None, False, 0, (), (), "exit", 0.0, 0.0, "")
    node.agent.on_event(gone, now_s=0.0)
    del node.readings[2]
    node.ticks(limits.EVALUATION_DEADLINE_S + 60.0)
    assert node.said(WorkerHung) == []
    assert node.said(WorkerLingers)


def test_a_plain_rank_may_go_on_for_hours_when_another_has_ended() -> None:
    """A plain rank makes no outlast call, so the agent knows nothing of its progress, and its boot
    has no deadline.
    """
    node = Node(answers={1: "a.py:3 in saves"})
    node.ticks(limits.BOOT_DEADLINE_S + 60.0)
    assert node.said(WorkerHung) == []


def test_the_run_names_a_process_that_does_not_end_and_kills_none() -> None:
    """The run reports the process each time, and keeps the first report for the report of
    the run.
    """
    run = Run(replicated=True)
    coordinator, (first, second) = run.coordinator, (run.workers[0], run.workers[1])
    for worker in (first, second):
        coordinator.on_message(Finished(worker, 1, STEPS, False), now_s=run.now_s)
    wait = describe_wait(coordinator.run, {})
    assert wait is not None
    assert wait.what == "ranks 0, 1 to end, after the last step"
    out: list[Output] = []
    for at_s in (10.0, 20.0):
        word = WorkerLingers(second, run.now_s, run.now_s + at_s, "a.py:3 in saves")
        out += coordinator.on_message(word, now_s=run.now_s + at_s)
    told = [one.text for one in out if isinstance(one, Tell)]
    assert ["10 s ago" in told[0], "20 s ago" in told[1]] == [True, True], told
    assert all("warning: rank 1" in text and "a.py:3 in saves" in text for text in told), told
    assert len(out) == 3, "one event, two lines"
    assert not [one for one in out if isinstance(one, Kill | ToAgent)]
    wait = describe_wait(coordinator.run, {})
    assert wait is not None
    assert wait.what == (
        "rank 1 to end: the script is over, and the process goes on;"
        " rank 0 to end, after the last step"
    )
