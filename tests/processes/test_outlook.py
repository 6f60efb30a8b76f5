"""runtime/coordinator/outlook.py: the target, the time left, the loss, the last checkpoint, and
copies of the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.model.gauges import Gauges
from outlast.model.messages import Committed, Hello, Joined, Registered, WorkerStarted
from outlast.model.records import Event, Records
from outlast.runtime.coordinator.bookkeeping import _Steps
from outlast.runtime.coordinator.outlook import PACE_WINDOW_S, Outlook
from outlast.runtime.ledger.store import Ledger
from tests.ledger import a_run


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with closing(Ledger.create(tmp_path / "ledger.db", a_run.META, pid=1)) as ledger:
        yield ledger.read()


def idle() -> Coordinator:
    return Coordinator(options=CoordinatorOptions(2, Restart()))


def said(outlook: Outlook, *, step: int, now_s: float) -> dict[str, Any]:
    return outlook.facts(step, idle(), now_s=now_s)


def test_before_anything_is_known_every_value_is_null(records: Records) -> None:
    outlook = Outlook(records)
    outlook.note_gauges(None)
    facts = said(outlook, step=0, now_s=1.0)
    assert facts == {
        "target_step": None,
        "time_left_s": None,
        "logged": None,
        "last_checkpoint": None,
        "redundancy": {
            "sharded": None,
            "copies": None,
            "nodes": None,
            "spares_ready": 0,
            "kept_step": None,
            "nodes_to_lose": None,
        },
    }


def test_the_time_left_is_that_of_the_last_minutes_without_the_start(records: Records) -> None:
    """Method: the first step comes after 300 s. Then a step takes 2 s, and later 1 s."""
    outlook = Outlook(records)
    outlook.note_gauges(Gauges(10_000))
    for now_s in range(301):
        assert said(outlook, step=0, now_s=float(now_s))["time_left_s"] is None
    for step in range(1, 101):
        left_s = said(outlook, step=step, now_s=300.0 + 2 * step)["time_left_s"]
    assert left_s == pytest.approx(2 * 9_900)
    for step in range(101, 901):
        left_s = said(outlook, step=step, now_s=400.0 + step)["time_left_s"]
    assert left_s == pytest.approx(9_100, rel=0.05), "what was slow is forgotten"
    assert said(outlook, step=10_000, now_s=2_000.0)["time_left_s"] == 0.0
    assert len(outlook._pace) <= PACE_WINDOW_S


def test_a_replacement_that_has_logged_nothing_keeps_the_loss(
    records: Records,
) -> None:
    outlook = Outlook(records)
    outlook.note_gauges(Gauges(50, 7, {"loss": 0.5}))
    outlook.note_gauges(Gauges(60))
    outlook.note_gauges(None)
    facts = said(outlook, step=8, now_s=1.0)
    assert (facts["target_step"], facts["logged"]) == (60, {"step": 7, "values": {"loss": 0.5}})


def test_a_checkpoint_of_an_earlier_launcher_counts_until_a_newer_one(
    records: Records,
) -> None:
    one = records.sessions[0]
    old = Event(a_run.ZERO_S + 5.0, 0.0, "checkpoint", {"step": 40, "folder": "a"})
    outlook = Outlook(replace(records, sessions=(replace(one, events=(old,)),)))
    facts = said(outlook, step=50, now_s=1.0)
    assert facts["last_checkpoint"] == {"step": 40, "at_s": 5.0, "folder": "a"}
    outlook.note(Event(a_run.ZERO_S + 9.0, 0.0, "checkpoint", {"step": 60, "folder": "b"}))
    facts = said(outlook, step=61, now_s=1.0)
    assert facts["last_checkpoint"] == {"step": 60, "at_s": 9.0, "folder": "b"}


def test_the_verdict_on_an_interruption_is_one_line(records: Records) -> None:
    outlook = Outlook(records)
    verdict = {"class": "host_memory", "confidence": 0.97, "reason": "Rank 1 was killed."}
    outlook.note(Event(1.0, 0.0, "verdict", {"interruption": 3, "verdict": verdict}))
    assert outlook.verdict(3) == "host memory (97 % sure): Rank 1 was killed."
    assert outlook.verdict(4) is None
    for number in range(100, 200):
        outlook.note(Event(1.0, 0.0, "verdict", {"interruption": number, "verdict": verdict}))
    assert outlook.verdict(3) is None, "only those of the newest are kept"
    outlook.note(Event(1.0, 0.0, "verdict", {"interruption": 5, "verdict": "nonsense"}))


@pytest.mark.parametrize(("sharded", "copies"), [(False, 2), (True, None)])
def test_ranks_that_hold_the_whole_state_are_copies_of_it(
    records: Records, sharded: bool, copies: int | None
) -> None:
    coordinator = idle()
    coordinator.start(now_s=0.0)
    for worker in (1, 2):
        for message in (
            WorkerStarted(worker, 1000 + worker, "here", 0.0),
            Hello(worker, 1000 + worker),
            Registered(worker, 1, 0, "in_place", sharded, True, ""),
        ):
            coordinator.on_message(message, now_s=1.0)
    for worker in (1, 2):
        coordinator.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
        coordinator.on_message(Committed(worker, 1, 1, 1.0), now_s=1.0)
    redundancy = Outlook(records).facts(1, coordinator, now_s=2.0)["redundancy"]
    assert redundancy == {
        "sharded": sharded,
        "copies": copies,
        "nodes": None if sharded else 1,
        "spares_ready": 0,
        "kept_step": None,
        "nodes_to_lose": None,
    }


def test_steps_longer_than_the_window_have_a_rate_until_one_is_late() -> None:
    steps = _Steps(0.0, 0)
    for step in range(4):
        steps.seen(step, 20.0 * step)
    assert steps.rate(61.0) == pytest.approx(1 / 20)
    assert steps.rate(95.0) == pytest.approx(1 / 20)
    assert steps.rate(101.0) == 0.0
