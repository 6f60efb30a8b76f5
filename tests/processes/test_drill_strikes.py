"""The faults of a drill are injected once each, at their time, and end when they should.

Method: a target that only records which signals it was given, and folders of orders.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Collection
from pathlib import Path

import pytest

from outlast.model.drills.drill_faults import ALL_KINDS, KINDS
from outlast.model.drills.drill_redundancy import InForce
from outlast.runtime.drill.drill_looks import InForceLooks
from outlast.runtime.drill.drill_strikes import AGAIN_S, SLOW_TURN_S, DrillStrikes, Means
from outlast.runtime.drill.striking import RunProcess, Target
from outlast.sim.drill_calendar import Scheduled


class Noted(Target):
    """A run whose processes are only numbers."""

    def __init__(self, *titles: str) -> None:
        super().__init__(os.getpid())
        self.there = {title: RunProcess(100 + at, 1, title) for at, title in enumerate(titles)}
        self.sent: list[tuple[int, signal.Signals]] = []

    def find(self, title: str) -> RunProcess | None:
        return self.there.get(title)

    def send(self, process: RunProcess, what: signal.Signals) -> bool:
        if process not in self.there.values():
            return False
        self.sent.append((process.pid, what))
        return True


def fault(kind: str, *, at_s: float | None = None, rank: int = 0, **more: object) -> Scheduled:
    known = KINDS[kind]
    return Scheduled("1", known, known.stands_for, rank, at_s, **more)  # type: ignore[arg-type]


def strikes(tmp_path: Path, target: Target, *some: Scheduled) -> DrillStrikes:
    return DrillStrikes(target, some, orders=tmp_path, truth=tmp_path / "truth.jsonl")


def test_a_fault_comes_at_its_time_and_once(tmp_path: Path) -> None:
    target = Noted("outlast-rank0")
    made = strikes(tmp_path, target, fault("kill", at_s=2.0))
    for now_s in (100.0, 101.9, 102.1, 102.2, 110.0):
        made.look(now_s, since_s=100.0, step=5)
    assert target.sent == [(100, signal.SIGKILL)]
    assert [(one.at_s, one.step) for one in made.fired] == [(102.1, 5)]
    assert json.loads((tmp_path / "truth.jsonl").read_text())["kind"] == "kill"
    assert made.left_count == 0


def test_a_fault_at_a_step_comes_while_that_step_runs(tmp_path: Path) -> None:
    target = Noted("outlast-rank0")
    made = strikes(tmp_path, target, fault("kill", at_step=40))
    made.look(100.0, since_s=1.0, step=38)
    assert not target.sent
    made.look(100.1, since_s=1.0, step=39)
    assert target.sent


def test_a_fault_waits_for_a_process_that_is_not_there(tmp_path: Path) -> None:
    target = Noted()
    made = strikes(tmp_path, target, fault("kill_spare", at_s=0.0, rank=-1))
    made.look(100.0, since_s=99.0, step=5)
    assert made.left_count == 1
    target.there["outlast-warm"] = RunProcess(7, 1, "outlast-warm")
    made.look(100.0 + AGAIN_S / 2, since_s=99.0, step=5)
    assert not target.sent, "it is not looked for at every look"
    made.look(100.0 + AGAIN_S, since_s=99.0, step=5)
    assert target.sent == [(7, signal.SIGKILL)]


def test_a_stopped_process_goes_on_after_its_time(tmp_path: Path) -> None:
    target = Noted("outlast-rank0")
    made = strikes(tmp_path, target, fault("stop", at_s=0.0, for_s=2.0))
    for now_s in (100.0, 101.9, 102.0, 103.0):
        made.look(now_s, since_s=99.0, step=5)
    assert target.sent == [(100, signal.SIGSTOP), (100, signal.SIGCONT)]


def test_a_slow_process_has_its_share_of_time_and_ends_going_on(tmp_path: Path) -> None:
    """Looked at each 10 ms of 2 s. Its share is a quarter. The file says so."""
    target = Noted("outlast-rank0")
    made = strikes(tmp_path, target, fault("slow", at_s=0.0, for_s=2.0, share=0.25))
    goes_on = 0
    for turn in range(210):
        made.look(100.0 + turn / 100, since_s=99.0, step=5)
        goes_on += turn < 200 and target.sent[-1][1] is signal.SIGCONT
    assert goes_on / 200 == pytest.approx(0.25, abs=0.05)
    kinds = [what for _, what in target.sent]
    assert kinds[:4] == [signal.SIGSTOP, signal.SIGCONT] * 2
    assert kinds[-1] is signal.SIGCONT
    assert len(kinds) <= 2 * 2.0 / SLOW_TURN_S + 1
    assert json.loads((tmp_path / "truth.jsonl").read_text())["share"] == 0.25


def test_an_order_is_written_and_its_answer_is_read(tmp_path: Path) -> None:
    made = strikes(tmp_path, Noted(), fault("nan", at_s=0.0, rank=3))
    made.look(100.0, since_s=99.0, step=5)
    assert json.loads((tmp_path / "rank-3").read_text()) == {"id": "1", "do": "nan"}
    assert (made.fired, made.left_count) == ([], 1), "it has not fired before the rank says so"
    (tmp_path / "fired-1").write_text(json.dumps({"at_s": 100.5, "pid": 7, "step": 6}))
    made.close()
    assert [(one.at_s, one.pid, one.step) for one in made.fired] == [(100.5, 7, 6)]
    assert made.left_count == 0


class Looks(InForceLooks):
    """Looks at a run whose step is the number of the look."""

    def __init__(self) -> None:
        super().__init__(lambda: pytest.fail("there is no run"))
        self.struck: list[set[int]] = []

    def now(self, now_s: float, struck: Collection[int]) -> InForce:
        self.struck.append(set(struck))
        seen = InForce(len(self.struck), False, 4, 1, 1, 0, 0, 0)
        self._looks.append((now_s, seen))
        return seen


def test_what_there_was_to_fall_back_on_is_recorded_with_each_fault(tmp_path: Path) -> None:
    """From the second fault on, the process that was killed by the first one holds nothing. What a
    process does to itself gets the newest look before the time that it says.
    """
    target, looks = Noted("outlast-rank0", "outlast-rank1"), Looks()
    faults = [fault("kill", at_s=1.0), fault("nan", at_s=2.0, rank=1)]
    truth = tmp_path / "truth.jsonl"
    made = DrillStrikes(target, faults, orders=tmp_path, truth=truth, looks=looks)
    for now_s in (101.0, 102.0, 102.1, 102.6, 103.1):
        made.look(now_s, since_s=100.0, step=5)
    assert looks.struck == [set(), {100}, {100}, {100}]
    (tmp_path / "fired-1").write_text(json.dumps({"at_s": 102.7, "pid": 101, "step": 6}))
    made.close()
    assert [one.in_force and one.in_force.step for one in made.fired] == [1, 3]
    lines = [json.loads(line) for line in truth.read_text().splitlines()]
    assert [line["in_force"]["step"] for line in lines] == [1, 3]
    assert lines[0]["in_force"]["copies"] == 4


class Disk:
    """A disk that is struck, and cannot be at first."""

    def __init__(self) -> None:
        self.struck: list[tuple[str, float]] = []
        self.ready = False

    def strike(self, kind: str, until_s: float) -> bool:
        if self.ready:
            self.struck.append((kind, until_s))
        return self.ready

    def look(self, now_s: float) -> None:
        self.ready = now_s >= 101.0


def test_a_disk_is_struck_once_it_can_be(tmp_path: Path) -> None:
    disk, kind = Disk(), ALL_KINDS["full_disk"]
    due = Scheduled("1", kind, kind.stands_for, -1, 0.0, for_s=2.0)
    truth = tmp_path / "truth.jsonl"
    means = Means(disk=disk)  # type: ignore[arg-type]
    made = DrillStrikes(Noted(), [due], orders=tmp_path, truth=truth, means=means)
    for now_s in (100.0, 101.0, 102.0):
        made.look(now_s, since_s=100.0, step=5)
    assert disk.struck == [("full_disk", 103.0)]
    assert [(one.at_s, one.pid) for one in made.fired] == [(101.0, 0)]
