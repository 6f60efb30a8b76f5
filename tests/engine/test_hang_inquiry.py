"""Which rank hangs in a run on several nodes: the coordinator judges by the reports of all
agents.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.coordinator.hang_inquiry import Inquiry, judge_overdue
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.stages import Timer
from outlast.engine.protocol.outputs import Output, Record, Tell, ToAgent
from outlast.model import limits
from outlast.model.messages import (
    AskProgressReport,
    Joined,
    Judged,
    KillWorker,
    Progress,
    ProgressReport,
    ReportedMember,
)
from outlast.model.terms import Mechanism
from tests.engine.test_nodes import coordinator_sessions, trains


def at_work(**on_a: int) -> Coordinator:
    """Return the coordinator of a run in which rank 0 on node a and rank 1 on node b train. `on_a`
    is the same as for `trains`.
    """
    sessions = coordinator_sessions()
    trains(sessions, **on_a)
    for worker in (1, 2):
        sessions.coordinator.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
    return sessions.coordinator


def report_of(
    rank: int, *, nonce: int, age_s: float, collectives: int = 8, exhausted: bool = False
) -> ProgressReport:
    """Return an agent's report on its only rank, which waits in the body of step 4 and is overdue
    after one second.
    """
    return ProgressReport(
        nonce,
        (ReportedMember(rank + 1, rank, "body", 4, age_s, 1.0, False, collectives, ""),),
        None,
        0.0,
        exhausted,
    )


def told(outputs: list[Output]) -> list[tuple[str, object]]:
    return [(one.node, one.message) for one in outputs if isinstance(one, ToAgent)]


@pytest.mark.parametrize("exhausted", ["", "a", "b", "ab"])
def test_ranks_that_stand_alike_wait_until_deadlines_cannot_grow(
    exhausted: str,
) -> None:
    """Rank 1 has stood still longest. The coordinator asks about it once more, and it has not moved
    by then.

    `exhausted` names the nodes whose deadlines cannot grow.
    """
    one = at_work()
    assert told(
        one.on_message(
            report_of(0, nonce=0, age_s=2.0, exhausted="a" in exhausted), now_s=9.0, node="a"
        )
    ) == [("b", AskProgressReport(1))]
    out = told(
        one.on_message(
            report_of(1, nonce=1, age_s=3.0, exhausted="b" in exhausted), now_s=9.1, node="b"
        )
    )
    if exhausted != "ab":
        assert out == [("a", Judged("nobody")), ("b", Judged("nobody"))]
        return
    assert out == [("b", AskProgressReport(2))]
    out = told(one.on_message(report_of(1, nonce=2, age_s=3.1), now_s=9.2, node="b"))
    assert [(node, order.worker) for node, order in out if isinstance(order, KillWorker)] == [
        ("b", 2)
    ]
    (booked,) = one.interruptions.open
    assert (booked.ranks, booked.mechanism, booked.fault_s) == (
        (1,),
        Mechanism.HANG,
        pytest.approx(6.1),
    )


def test_the_rank_behind_is_accused_and_not_the_one_that_stood_longest() -> None:
    """Rank 1 has stood still longest because it waits for rank 0, which has not reached the ninth
    collective.
    """
    one = at_work()
    one.on_message(
        report_of(0, nonce=0, age_s=2.0, collectives=7, exhausted=True), now_s=9.0, node="a"
    )
    out = one.on_message(report_of(1, nonce=1, age_s=3.0, exhausted=True), now_s=9.1, node="b")
    assert told(out) == [("a", AskProgressReport(2))]


def test_ranks_of_one_node_are_checked_twice_beside_a_spare_node() -> None:
    """All ranks were late, and move on while their node is asked. Some of them were read before the
    others.
    """
    one = at_work(capacity=2)
    seen = [report_of(0, nonce=0, age_s=2.0, collectives=7), report_of(1, nonce=0, age_s=0.0)]
    report = replace(seen[0], members=tuple(one.members[0] for one in seen))
    assert told(one.on_message(report, now_s=9.0, node="a")) == [("a", AskProgressReport(2))]
    moved = report_of(0, nonce=2, age_s=0.1)
    (asked,) = told(one.on_message(moved, now_s=9.1, node="a"))
    assert asked == ("a", Judged("awaited", pytest.approx(0.9)))
    assert not one.interruptions.open


@pytest.mark.parametrize(("age_s", "again_s"), [(0.7, 0.3), (0.99, limits.LATE_TICK_S)])
def test_agents_look_again_when_an_awaited_rank_is_overdue(age_s: float, again_s: float) -> None:
    """Rank 1 hangs, but it entered the step a little later than rank 0, which waits for it."""
    one = at_work()
    one.on_message(report_of(0, nonce=0, age_s=1.1), now_s=9.0, node="a")
    out = one.on_message(report_of(1, nonce=1, age_s=age_s, collectives=7), now_s=9.0, node="b")
    assert told(out) == [(node, Judged("awaited", pytest.approx(again_s))) for node in ("a", "b")]
    late = report_of(1, nonce=2, age_s=1.1, collectives=7)
    one.on_message(report_of(0, nonce=0, age_s=1.4), now_s=9.4, node="a")
    assert told(one.on_message(late, now_s=9.4, node="b")) == [("b", AskProgressReport(3))]


def test_a_node_that_has_not_answered_is_soon_asked_again() -> None:
    one = at_work()
    one.on_message(report_of(0, nonce=0, age_s=2.0), now_s=9.0, node="a")
    (asked,) = told(one.on_timer(now_s=9.7, name=Timer.INQUIRY))
    assert asked == ("a", Judged("awaited", 2 * limits.INQUIRY_DEADLINE_S))


def test_a_link_that_carries_nothing_is_named_once_for_each_step() -> None:
    """Ranks 0 and 1 are overdue, and rank 0 reports that rank 1 acknowledges nothing. There are
    three inquiries, and the run has committed a step before the last of them.
    """
    one = at_work()
    said: list[list[str]] = []
    kept: list[object] = []
    for nonce, step in ((1, 4), (2, 4), (3, 5)):
        for node in "ab":
            one.on_message(Progress(step, step, 1.0, 8.0), now_s=8.0 + nonce, node=node)
        cut = report_of(0, nonce=0, age_s=2.0)
        cut = replace(cut, members=(replace(cut.members[0], cut_off=(1,), cut_off_bytes=(4096,)),))
        one.on_message(cut, now_s=9.0 + nonce, node="a")
        out = one.on_message(report_of(1, nonce=nonce, age_s=3.0), now_s=9.1 + nonce, node="b")
        judged = Judged("awaited", limits.AWAITED_LOOK_S)
        assert told(out) == [("a", judged), ("b", judged)]
        said.append([each.text for each in out if isinstance(each, Tell)])
        kept += [each.record.data["text"] for each in out if isinstance(each, Record)]
    assert [len(texts) for texts in said] == [1, 0, 1]
    assert said[0][0].startswith(
        "warning: 4,096 bytes not acknowledged towards node b (from a): all ranks wait"
    ), said
    assert kept == [said[0][0].removeprefix("warning: ")], "the report has each text once"
    assert not one.interruptions.open


def test_the_deadlines_of_a_node_without_ranks_do_not_count() -> None:
    """Such a node has only spares. Nothing there is overdue, so its deadlines never grow."""
    said = {
        "a": report_of(0, nonce=1, age_s=2.0, exhausted=True),
        "b": report_of(1, nonce=1, age_s=3.0, exhausted=True),
        "c": ProgressReport(1, (), None, 0.0, False),
    }
    inquiry = Inquiry(1, set(), {node: (9.0, report) for node, report in said.items()})
    verdict = judge_overdue(
        inquiry, [(one, 0.0) for report in said.values() for one in report.members]
    )
    assert verdict is not None
    assert verdict.culprits == (2,)
