"""Scripts without an outlast call: their beacons never move, so only missing output shows a hang,
and only where the user gave a bound.
"""

from __future__ import annotations

from typing import Any

from outlast.engine.agent.agent import Agent
from outlast.engine.agent.worker_watch import Reading
from outlast.engine.protocol.outputs import ToCoordinator
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.messages import StartWorker, WorkerHung, WorkerStarted
from outlast.model.terms import Phase


class Node:
    """An agent with two workers, ticked as the launcher does."""

    def __init__(self, **options: Any) -> None:
        self.now_s = 0.0
        self.agent = Agent(now_s=0.0, **options)
        self.heard_s: dict[int, float] = {}
        self.readings: dict[int, Reading] = {}
        for worker in (1, 2):
            self.agent.on_command(StartWorker(worker, worker - 1, "rank", 1), now_s=0.0)

    def born(self) -> None:
        for worker in (1, 2):
            self.agent.on_event(
                WorkerStarted(worker, 100 + worker, "node", self.now_s), now_s=self.now_s
            )
            self.readings[worker] = Reading(
                Beacon(
                    worker=worker, pid=100 + worker, rank=worker - 1, at_ns=int(self.now_s * 1e9)
                ),
                stopped=False,
            )

    def hung(self, until_s: float, *, at_once: bool = False) -> list[WorkerHung]:
        """Tick until `until_s`, or only once at that time. Return the hangs that were reported."""
        found = []
        while self.now_s < until_s:
            self.now_s = until_s if at_once else self.now_s + limits.TICK_S
            out = self.agent.on_tick(self.readings, now_s=self.now_s, heard_s=self.heard_s)
            found += [
                one.message
                for one in out
                if isinstance(one, ToCoordinator) and isinstance(one.message, WorkerHung)
            ]
        return found


def test_all_workers_are_hung_once_none_has_spoken_for_the_bound() -> None:
    node = Node(hang_after_s=10.0)
    node.born()
    node.heard_s[2] = 5.0
    assert node.hung(14.9) == []
    found = node.hung(15.2)
    assert [one.worker for one in found] == [1, 2]
    assert {one.last_s for one in found} == {5.0}
    assert {one.deadline_s for one in found} == {10.0}
    assert node.hung(60.0) == [], "said once"


def test_without_a_bound_on_silence_no_rank_counts_as_hung() -> None:
    """This holds past the deadline of the boot too: a script that never calls outlast.join stays in
    that phase.
    """
    node = Node()
    node.born()
    assert node.hung(limits.BOOT_DEADLINE_S * 3) == []


def test_a_worker_that_is_not_born_yet_is_not_silent() -> None:
    node = Node(hang_after_s=10.0)
    assert node.hung(100.0) == []
    node.born()
    assert node.hung(109.9) == []
    assert len(node.hung(110.2)) == 2


def test_a_program_without_any_beacon_is_judged_by_its_silence_as_well() -> None:
    node = Node(hang_after_s=10.0)
    node.born()
    node.readings.clear()
    assert len(node.hung(10.2)) == 2


def test_a_starved_agent_reports_no_silence() -> None:
    """Method: the agent's own tick comes twenty seconds late, and the output of that time has not
    been read yet.
    """
    node = Node(hang_after_s=10.0)
    node.born()
    assert node.hung(5.0) == []
    assert node.hung(25.0, at_once=True) == []
    assert node.hung(29.0) == []
    assert len(node.hung(31.0)) == 2


def test_a_script_that_joined_is_judged_by_beacons_and_not_by_silence() -> None:
    node = Node(hang_after_s=10.0)
    node.born()
    for worker in (1, 2):
        node.readings[worker] = Reading(
            Beacon(worker=worker, pid=100 + worker, rank=worker - 1, beats=1, phase=Phase.SETUP),
            stopped=False,
        )
    assert node.hung(60.0) == []
