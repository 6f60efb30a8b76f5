"""The parts of decision mode: what tiers hold, where ranks live, since when a rank hangs, and what
a policy learns.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.engine.restore import decide_sharded
from outlast.model import limits
from outlast.model.policy import Action
from outlast.model.terms import FailureClass, Mechanism
from outlast.planner.deciding.acting import Acting, Incident, PerfectDiagnosis
from outlast.planner.deciding.hangs import ASKING_S, Hangs
from outlast.planner.deciding.membership import SimulatedMembership, StruckRanks
from outlast.planner.deciding.tiers import TierKind, Tiers
from outlast.planner.scenario import Extent, Job, ScenarioTier
from outlast.planner.spread import constant
from tests.planner.worlds import tier, tier_lists, world

# 8 nodes, the last of which is half full; 3 racks
JOB = Job(gpus=30, duration_s=1e6, gpus_per_node=4, nodes_per_rack=3)


# --- tiers ----------------------------------------------------------------------------------------


def walked(
    tiers: tuple[ScenarioTier, ...], begin: int, for_s: float
) -> tuple[float, float, dict[int, int]]:
    """Return the position, the seconds of stalls and the finished writes, computed save by save,
    with steps of 1 s.
    """
    position, now_s, stall_s, written = float(begin), 0.0, 0.0, {}
    while True:
        due = math.floor(position) + 1
        if now_s + due - position > for_s:
            return position + for_s - now_s, stall_s, written
        position, now_s = due, now_s + due - position
        for index, one in enumerate(tiers):
            if position % one.interval_s or (
                one.interval_s == 1 and one.stall_s == one.write_s == 0
            ):
                continue
            spent_s = min(one.stall_s, for_s - now_s)
            now_s, stall_s = now_s + spent_s, stall_s + spent_s
            if spent_s < one.stall_s:
                return position, stall_s, written
            if now_s + one.write_s <= for_s:
                written[index] = int(position)


@given(tiers=tier_lists(1.0), begin=st.integers(0, 2_000), for_s=st.floats(0.0, 3_000.0))
@settings(max_examples=150)
def test_a_stretch_by_arithmetic_is_the_one_that_is_walked_save_by_save(
    tiers: tuple[ScenarioTier, ...], begin: int, for_s: float
) -> None:
    held = Tiers(world(tiers=tiers))
    trained = held.train(begin, for_s)
    position, stall_s, written = walked(tiers, begin, for_s)
    assert trained.position == pytest.approx(position, abs=1e-6)
    assert trained.stall_s == pytest.approx(stall_s, abs=1e-6)
    assert dict(trained.written) == written
    assert all(
        step > begin and dict(trained.written).get(index, -1) < step <= trained.position
        for index, step in trained.unfinished
    )


def test_a_tier_is_what_the_engine_takes_it_for() -> None:
    tiers = (
        tier("a", 1.0, survives=Extent.NODE),
        tier("b", 10.0, survives=Extent.RACK),
        tier("c", 10.0),
        tier("d", 1.0),
    )
    assert Tiers(world(tiers=tiers)).kinds == [
        TierKind.LIVE,
        TierKind.IMAGE,
        TierKind.DURABLE,
        TierKind.LIVE,
    ]


# --- who lives where ------------------------------------------------------------------------------


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from([Extent.PROCESS, Extent.NODE, Extent.RACK]),
            st.floats(0, 0.999),
            st.floats(1.0, 500.0),
        ),
        max_size=25,
    ),
    spares=st.integers(0, 6),
    parked=st.booleans(),
)
@settings(max_examples=80)
def test_every_rank_has_one_place_and_no_node_houses_more_than_it_can(
    events: list[tuple[Extent, float, float]], spares: int, parked: bool
) -> None:
    """Processes, nodes and racks are lost, and are replaced as soon as there are nodes."""
    members, now_s = SimulatedMembership(JOB, spares), 0.0
    for extent, at, repair_s in events:
        members.come_back(now_s)
        strike = members.struck(extent, at)
        for seat in strike.seats:
            members.repair(members.nodes[seat], back_s=now_s + repair_s)
        now_s = members.enough_s(len(strike.seats), from_s=now_s + 1.0)
        members.come_back(now_s)
        workers = members.take(strike, parked=parked)
        assert len(workers) == (len(strike.ranks) if parked and strike.seats else 0)
        assert sorted(members.homes) == list(range(JOB.gpus))
        assert max(Counter(members.homes.values()).values()) <= JOB.gpus_per_node
        assert [members.homes[rank] for rank in range(JOB.gpus)] == [
            members.nodes[rank // 4] for rank in range(JOB.gpus)
        ]
        assert len({*members.nodes, *members.ready}) == len(members.nodes) + len(members.ready)
        assert len(members.nodes) + len(members.ready) <= JOB.nodes + spares


def test_what_a_failure_strikes_is_whole_nodes_and_racks_with_their_ranks() -> None:
    members = SimulatedMembership(JOB, 0)
    assert members.struck(Extent.PROCESS, 0.5) == StruckRanks((15,), ())
    assert members.struck(Extent.NODE, 0.5) == StruckRanks((12, 13, 14, 15), (3,))
    assert members.struck(Extent.NODE, 0.99) == StruckRanks((28, 29), (7,))
    assert members.struck(Extent.RACK, 0.5).seats == (3, 4, 5)
    assert members.struck(Extent.RACK, 0.99).seats == (5, 6, 7)
    assert members.struck(Extent.RUN, 0.5) == StruckRanks(tuple(range(30)), ())


@given(lost=st.sets(st.integers(0, 29)))
def test_what_is_left_is_said_of_each_rank_once(lost: set[int]) -> None:
    holdings = SimulatedMembership(JOB, 0).holdings(
        sorted(lost), committed=7, usable=True, sealed=(6, 5), left=(5,), begun=True
    )
    assert sorted(rank for held in holdings for rank in held.ranks) == list(range(30))
    assert all(held.alive != bool(lost.intersection(held.ranks)) for held in holdings)
    assert decide_sharded(holdings=holdings).step == (5 if lost else 6)


# --- hangs ----------------------------------------------------------------------------------------


def test_deadlines_follow_the_step_between_a_floor_and_a_ceiling() -> None:
    def deadline_s(step_s: float) -> float:
        hangs = Hangs(16, step_s)
        return hangs.find(3, step=100, into_step_s=0.0).deadline_s

    assert [deadline_s(step_s) for step_s in (0.05, 2.0, 300.0)] == [
        limits.STEP_FLOOR_S,
        10.0,
        limits.STEP_CEILING_S,
    ]
    found = Hangs(16, 2.0).find(3, step=100, into_step_s=1.5)
    assert found.after_s == 10.0 - 1.5 + ASKING_S
    assert found.verdict.culprits == (3,)


def test_fresh_processes_are_awaited_as_long_as_first_steps_may_take() -> None:
    """The peers of a fresh process are overdue after a second. They wait until it has missed its
    own deadline.
    """
    hangs = Hangs(16, 0.1)
    hangs.start_over(50, (3,))
    assert hangs.find(3, step=51, into_step_s=0.0).after_s == pytest.approx(
        limits.FIRST_STEPS_FLOOR_S + ASKING_S
    )
    assert hangs.find(4, step=51, into_step_s=0.0).after_s == pytest.approx(1.0 + ASKING_S)
    assert hangs.find(3, step=53, into_step_s=0.0).after_s == pytest.approx(1.0 + ASKING_S)
    hangs.start_over(60, tuple(range(16)))
    assert hangs.find(5, step=61, into_step_s=0.0).after_s == pytest.approx(
        limits.FIRST_STEPS_FLOOR_S + ASKING_S
    )


# --- the policy -----------------------------------------------------------------------------------


def acting(spares: int) -> Acting:
    return Acting(PerfectDiagnosis(), SimulatedMembership(JOB, spares))


def broken(node: str, *, outage: int, due_s: float = 1.0) -> Incident:
    return Incident(due_s, outage, FailureClass.HBM, Mechanism.SIGNAL, (node,))


def test_a_node_is_taken_out_only_if_the_others_have_room() -> None:
    alone, spared = acting(0), acting(1)
    for one in (alone, spared):
        one.add(broken("node-2", outage=0))
        assert one.decide(1.0).action is Action.DRAIN
    assert alone.bar_nodes(moves=True) == ""
    assert not alone.members.barred
    assert spared.bar_nodes(moves=True) == "node-2"
    assert spared.members.barred == {"node-2"}


def test_the_default_policy_drains_two_nodes_a_day() -> None:
    one = acting(5)
    for outage, due_s in enumerate((300.0, 100.0, 200.0)):
        one.add(broken(f"node-{outage}", outage=outage, due_s=due_s))
    decided = []
    while one.next_s < math.inf:
        decided.append(one.decide(one.next_s))
    assert [(each.action, each.nodes) for each in decided] == [
        (Action.DRAIN, ("node-1",)),
        (Action.DRAIN, ("node-2",)),
        (Action.PAGE, ()),
    ]
    assert decided[-1].held == "budget"


def test_of_an_unknown_class_nobody_is_surer_than_a_half() -> None:
    one = acting(1)
    one.add(replace(broken("node-1", outage=0), failure_class=FailureClass.UNKNOWN))
    assert one.decide(1.0).action is Action.RETRY


def test_a_tier_of_a_scenario_keeps_its_place() -> None:
    """Tiers that are due together stall in the order of the list, even if a live tier is between
    them.
    """
    tiers = (
        tier("a", 10.0, stall_s=4.0),
        tier("live", 1.0, survives=Extent.NODE),
        ScenarioTier("b", 10.0, 6.0, 0.0, Extent.RUN, constant(1.0)),
    )
    held = Tiers(world(tiers=tiers))
    assert dict(held.train(0, 15.0).written) == {0: 10}
    assert dict(held.train(0, 20.0).written) == {0: 10, 2: 10}
