"""Nodes that cannot reach each other, as reported to the coordinator; an agent that has stood
still; workers that check the lease of their agent.
"""

from __future__ import annotations

import math

from outlast.engine.budget import default_budgets
from outlast.engine.coordinator.cut_links import CutLinks
from outlast.engine.coordinator.hang_inquiry import Inquiry, judge_accused
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.stages import Stage
from outlast.engine.hang import MemberReport, find_culprits
from outlast.engine.protocol.outputs import Deliver, Kill, SetTimer
from outlast.engine.protocol.worker import WorkerMachine
from outlast.engine.recovery import Situation, decide_rung
from outlast.model import limits
from outlast.model.messages import (
    IMAGE,
    Broke,
    Donated,
    Grant,
    Hello,
    Inventory,
    Joined,
    Leave,
    Registered,
    ReportedMember,
    StartWorker,
    ToNode,
    ToWorkers,
    WorkerExited,
)
from outlast.model.terms import Phase, Rung
from tests.engine.test_nodes import LEASE_S, AgentSite, coordinator_sessions, trains


def test_pauses_between_attempts_grow_and_start_over_after_a_group() -> None:
    links, now_s, pauses = CutLinks(), 0.0, []
    for generation in range(1, 9):
        links.cut("b", ["a"], generation=generation, now_s=now_s)
        # the report from the other end, about the same attempt
        links.cut("a", ["b"], generation=generation, now_s=now_s + 0.4)
        pauses.append(links.retry_s - now_s)
        now_s = links.retry_s + 10.0
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert links.reason == "nodes a and b cannot reach each other"
    assert links.ends == {"a", "b"}
    links.forget()
    assert not links
    links.cut("b", ["a"], generation=9, now_s=now_s)
    assert links.retry_s == now_s + limits.LINK_RETRY_S


def test_a_cut_link_is_waited_for_a_limited_time() -> None:
    links = CutLinks()
    links.cut("b", ["a"], generation=1, now_s=100.0)
    links.cut("b", ["a"], generation=2, now_s=1_800.0)
    assert not links.is_out(now_s=100.0 + limits.NODE_WAIT_S - 0.1)
    assert links.is_out(now_s=100.0 + limits.NODE_WAIT_S)
    links.lose("a")
    assert not links.is_out(now_s=1e9)


def _stands(
    rank: int,
    step: int,
    phase: Phase = Phase.VOTE,
    *,
    cut_off: tuple[int, ...] = (),
    collectives: int | None = 8,
) -> MemberReport:
    return MemberReport(rank + 1, rank, phase, step, 9.0, False, collectives, "", cut_off)


def test_a_rank_behind_is_not_blamed_while_a_peer_cannot_be_reached() -> None:
    """Rank 2 reaches all others. It has passed its vote, and waits one step further on."""
    members = [_stands(0, 4, cut_off=(1,)), _stands(1, 4), _stands(2, 5, Phase.BODY)]
    verdict = find_culprits(members=members, overdue={1: 1.0, 2: 1.0, 3: 1.0})
    assert (verdict.culprits, verdict.awaited) == ((), True)
    assert "rank 0 cannot reach rank 1" in verdict.reason


def test_an_accused_rank_behind_a_cut_link_is_not_blamed() -> None:
    before = ReportedMember(1, 0, "vote", 4, 2.0, 1.0, False, 8, "")
    now = ReportedMember(1, 0, "vote", 4, 2.3, 1.0, False, 8, "", cut_off=(1,))
    heard = Inquiry(2, set(), accused={1: before}, reason="has come less far")
    assert judge_accused(heard, [(before, 0.1)]).culprits == (1,)
    assert (
        judge_accused(heard, [(now, 0.0)]).culprits,
        judge_accused(heard, [(now, 0.0)]).awaited,
    ) == ((), True)


def test_a_rank_that_does_not_answer_or_is_alone_is_blamed_all_the_same() -> None:
    cut = _stands(0, 4, cut_off=(1,))
    deaf = find_culprits(members=[cut, _stands(2, 4, collectives=None)], overdue={1: 1.0, 3: 1.0})
    alone = find_culprits(members=[cut, _stands(2, 4, Phase.DATA)], overdue={1: 1.0, 3: 1.0})
    assert (deaf.culprits, alone.culprits) == ((3,), (3,))


def test_a_cut_link_is_charged_to_no_budget() -> None:
    budgets = default_budgets(0)
    for mode, rung in (
        ("in_place", Rung.REPEAT),
        ("reenter", Rung.REENTER),
        ("respawn", Rung.RESPAWN),
    ):
        for _ in range(20):
            situation = Situation(
                lost=(),
                raised=(),
                recovery_mode=mode,
                state=True,
                committed=3,
                reached=3,
                error="",
                trained=True,
                free=True,
            )
            verdict = decide_rung(situation=situation, spares=(), budgets=budgets, world_size=2)
            assert (verdict.rung, verdict.budgets) == (rung, budgets)
    assert (budgets.at_step, budgets.repeats, budgets.restarts.spent) == (0, 0, [])


def test_an_agent_past_its_lease_kills_its_workers_before_any_order() -> None:
    site = AgentSite.make()
    site.connects()
    site.is_welcome()
    site.told(1, StartWorker(1, 0, "rank", 1))
    site.now_s += LEASE_S + 1.0
    late = site.hears(ToNode(2, 0, site.now_s, ToWorkers((1,), (), Leave(1, "a rank is lost"))))
    assert [type(output) for output in late if isinstance(output, (Kill, Deliver))] == [Kill]
    assert site.agent_session.lent_until_s == -math.inf
    assert not any(
        isinstance(output, Deliver)
        for output in site.hears(ToNode(3, 0, site.now_s, ToWorkers((1,), (), Leave(1, "again"))))
    )


def test_a_late_grant_does_not_save_a_lease_that_is_over() -> None:
    site = AgentSite.make()
    site.connects()
    site.is_welcome()
    site.told(1, StartWorker(1, 0, "rank", 1))
    site.now_s += LEASE_S
    assert any(isinstance(output, Kill) for output in site.hears(Grant(1, 0, site.now_s)))


def test_a_worker_acts_as_long_as_the_lease_of_its_node_runs() -> None:
    machine = WorkerMachine(worker=1)
    assert machine.may_act(lent_until_s=10.0, now_s=9.9)
    assert not machine.may_act(lent_until_s=10.0, now_s=10.0)


def test_a_cut_link_is_tried_again_after_a_pause_and_nobody_is_killed() -> None:
    """Method: rank 1 on node b could not reach rank 0 on node a. Both stand still before the pause
    is over.
    """
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    for worker in (1, 2):
        one.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
    one.on_message(
        Broke(2, 1, 0, "collective", "no connection", "", 2.0, unreached=(0,)), now_s=2.0
    )
    one.on_timer(now_s=2.1, name="gather")
    out = [
        output
        for worker in (1, 2)
        for output in one.on_message(Inventory(worker, 1, 0, 0, 0, False, ()), now_s=2.2)
    ]
    (again,) = [output for output in out if isinstance(output, SetTimer) and output.name == "links"]
    assert (again.at_s, one.generation, one.stage) == (2.0 + limits.LINK_RETRY_S, 1, Stage.LEAVING)
    one.on_timer(now_s=2.0 + limits.LINK_RETRY_S, name="links")
    assert (one.generation, one.stage) == (2, Stage.MOVING)
    assert [member.worker for member in one.roster.live()] == [1, 2]
    (told,) = one.interruptions.open
    assert (told.ranks, told.reason.split("; ")[0]) == ((), "nodes a and b cannot reach each other")


def test_a_decision_names_the_node_that_acknowledges_nothing() -> None:
    """Method: rank 1 on node b is gone. It has not acknowledged 4,096 bytes of rank 0 on node a."""
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    for worker in (1, 2):
        one.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
    one.on_message(WorkerExited(2, 102, None, 9, False, 0, (), (), "body", 2.0, 2.0, ""), now_s=2.0)
    one.on_timer(now_s=2.1, name="gather")
    still = Inventory(1, 1, 0, 0, 0, False, (), cut_off=(1, 0, 7), cut_off_bytes=(4096, 5))
    one.on_message(still, now_s=2.2)
    (told,) = one.interruptions.open
    assert "; 4,096 bytes not acknowledged towards node b (from a); " in told.reason, told.reason
    assert told.reason.count("not acknowledged") == 1, "ranks 0 and 7 are not on another node"


def fails_for_its_link(one: Coordinator, *, now_s: float) -> None:
    """Let rank 1 on node b fail to reach rank 0 on node a, on its way into the newest generation.
    Then let both stand still, and let the pause for the link pass.
    """
    generation = one.generation
    one.on_message(
        Broke(2, generation, 0, "collective", "no connection", "", now_s, unreached=(0,)),
        now_s=now_s,
    )
    one.on_timer(now_s=now_s + 0.1, name="gather")
    for worker in (1, 2):
        one.on_message(Inventory(worker, generation, 0, 0, 0, False, ()), now_s=now_s + 0.2)
    one.on_timer(now_s=now_s + limits.LINK_RETRY_MAX_S + 1.0, name="links")
    assert one.generation == generation + 1


def test_a_run_goes_on_trying_however_often_a_link_fails() -> None:
    """Method: the link fails more often than one step may fail, and all processes live each
    time.
    """
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    for number in range(2 * limits.SAME_STEP_FAULTS_COUNT):
        fails_for_its_link(one, now_s=1.0 + 40.0 * number)
        assert one.stage is Stage.MOVING
    (told,) = one.interruptions.open
    assert (told.ranks, told.rung) == ((), Rung.REPEAT)
    assert (one.budgets.repeats, one.budgets.since_step) == (0, 0)


def test_a_rank_that_dies_while_a_link_is_cut_is_charged() -> None:
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    fails_for_its_link(one, now_s=1.0)
    one.on_message(
        WorkerExited(2, 102, 1, None, False, 0, (0,), (), "body", 50.0, 50.0, ""), now_s=50.0
    )
    one.on_timer(now_s=50.1, name="gather")
    one.on_message(Inventory(1, 2, 0, 0, 0, False, ()), now_s=50.2)
    assert (one.generation, one.stage) == (3, Stage.MOVING)
    assert (one.budgets.since_step, one.budgets.respawns.left(step=0)) == (
        1,
        limits.RESPAWNS_COUNT - 1,
    )


def test_an_image_out_of_reach_is_a_cut_link_to_its_node() -> None:
    """Method: rank 1 on node b is forked again, and is to take its state from the image that rank 0
    has written on node a.
    """
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    for worker in (1, 2):
        one.on_message(Registered(worker, 1, 0, "reenter", False, True, ""), now_s=1.0)
        one.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
    one.on_message(WorkerExited(2, 102, None, 9, False, 0, (), (), "body", 2.0, 2.0, ""), now_s=2.0)
    one.on_timer(now_s=2.1, name="gather")
    one.on_message(Inventory(1, 1, 0, 0, 0, False, ()), now_s=2.2)
    one.on_message(Donated(1, 2, 0), now_s=2.3)
    born = one.roster.holder(1).worker
    one.on_message(Hello(born, 103), now_s=3.0)
    one.on_message(
        Broke(born, 2, 0, "collective", "the image cannot be read", "", 4.0, unreached=(IMAGE,)),
        now_s=4.0,
    )
    assert one.links.reason == "nodes a and b cannot reach each other"
    assert [told.ranks for told in one.interruptions.open] == [(1,)], (
        "it is the same interruption that goes on"
    )
