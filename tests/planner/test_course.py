"""The reference run of tests/planner/course.py, checked by hand. Each rule of `scenario.py` has a
test whose numbers can be followed on paper.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.model.terms import Cause
from outlast.planner.histories import draw
from outlast.planner.scenario import Extent, Lemons, Maintenance, Repair, Scenario
from outlast.planner.spread import constant
from tests.planner.course import Phase, live
from tests.planner.worlds import (
    everything,
    node,
    process,
    rack,
    recovery,
    scenarios,
    tier,
    told,
    world,
)

PROCESS, NODE, RACK, RUN = range(4)  # the classes of `world`


def test_without_failures_only_stalls_cost() -> None:
    """The run lasts 300 s, and saves after each 100 s of training, with a stall of 10 s. The stalls
    end at 110 s and 220 s. The last 80 s of training are kept although no save follows.
    """
    course = live(world(), told())
    assert course.position_s == 280
    assert course.seconds[Cause.STALL] == 20
    assert not course.interruptions


def test_work_since_the_newest_save_is_repeated() -> None:
    """Position 200 is saved at 220 s. The failure at 250 s strikes at position 230.

    Detection, regroup and restore take 5 + 7 + 3 s. Then training goes on from position 200 for 35
    s.
    """
    course = live(world(), told((250, PROCESS)))
    (interruption,) = course.interruptions
    assert (interruption.lost_s, interruption.tier, interruption.resumed_s) == (30, "disk", 265)
    assert course.position_s == 235
    assert course.seconds[Cause.REPEATED] == 30
    assert {phase: spent for phase, spent in interruption.spent_s.items() if spent} == {
        Phase.DETECT: 5,
        Phase.REGROUP: 7,
        Phase.RESTORE: 3,
    }


@pytest.mark.parametrize(
    ("at_s", "kept"), [(109.9, 0), (110.1, 100), (215, 100), (219.9, 100), (220.1, 200)]
)
def test_a_save_counts_once_its_stall_is_over(at_s: float, kept: float) -> None:
    """Stalls begin at 100 s and 210 s, at the positions 100 and 200. A failure before the end of a
    stall loses that save.
    """
    (interruption,) = live(world(), told((at_s, PROCESS))).interruptions
    trained = {109.9: 100, 110.1: 100.1, 215: 200, 219.9: 200, 220.1: 200.1}[at_s]
    assert interruption.lost_s == pytest.approx(trained - kept)


@pytest.mark.parametrize(("at_s", "kept"), [(159.9, 0), (160.1, 100), (230, 100), (270.1, 200)])
def test_a_save_counts_once_it_is_written(at_s: float, kept: float) -> None:
    """The stalls end at 110 s and 220 s. Each write takes 50 s more."""
    course = live(
        world(tiers=(tier("disk", 100.0, stall_s=10.0, write_s=50.0),)), told((at_s, PROCESS))
    )
    assert course.seconds[Cause.REPEATED] == pytest.approx(
        at_s - 10 * (at_s > 110) - 10 * (at_s > 220) - kept
    )


def test_tiers_due_together_stall_one_after_another() -> None:
    """Both tiers save at position 100. The stall of `a` ends first, and that of `b` follows. At 113
    s only `a` has position 100, and at 117 s both have it.
    """
    tiers = (
        tier("a", 100.0, stall_s=4.0, restore_s=9.0),
        tier("b", 50.0, stall_s=6.0, restore_s=1.0),
    )
    course = live(world(tiers=tiers), told((113, PROCESS)))
    (interruption,) = course.interruptions
    assert (interruption.tier, interruption.lost_s) == ("a", 0)
    # both have it: the faster one
    assert live(world(tiers=tiers), told((117, PROCESS))).interruptions[0].tier == "b"


def test_tiers_that_do_not_survive_the_extent_are_empty_afterwards() -> None:
    """Memory saves each 10 s and is lost with its node. The disk saves each 100 s and survives.

    After the loss of a node, position 120 in memory is lost too.
    """
    tiers = (tier("memory", 10.0, survives=Extent.PROCESS, restore_s=1.0), tier("disk", 100.0))
    course = live(world(tiers=tiers), told((125, NODE), (144, PROCESS)))
    first, second = course.interruptions
    assert (first.tier, first.lost_s, first.resumed_s) == ("disk", 25, 140)
    assert (second.tier, second.lost_s) == ("disk", 4)  # memory saves at 110 first
    assert live(world(tiers=tiers), told((125, PROCESS))).interruptions[0].tier == "memory"


def test_live_replicas_lose_less_than_a_step() -> None:
    tiers = (tier("peers", 1.0, survives=Extent.NODE, restore_s=2.0), tier("disk", 100.0))
    course = live(world(tiers=tiers), told((125.5, RACK), (142.25, NODE)))
    first, second = course.interruptions
    assert (first.tier, first.lost_s, first.resumed_s) == ("disk", 25.5, 140.5)
    assert (second.tier, second.lost_s) == ("peers", 0.75)


def test_where_nothing_survives_the_run_begins_anew() -> None:
    """At first all tiers hold the beginning of the run, until they are lost."""
    course = live(world(tiers=(tier("memory", 10.0, survives=Extent.NODE),)), told((125, RUN)))
    assert course.interruptions[0].tier is None
    assert course.position_s == 300 - 125 - 12
    assert live(world(), told((95, RUN))).interruptions[0].spent_s[Phase.RESTORE] == 3
    assert live(world(tiers=()), told((125, PROCESS))).position_s == 300 - 125 - 12


def test_a_failure_during_recovery_starts_it_anew_with_the_larger_extent() -> None:
    """The first failure can restore from memory. The second one, during that recovery, cannot. The
    third one could if it came alone, but not after the second.
    """
    tiers = (tier("memory", 10.0, survives=Extent.PROCESS), tier("disk", 100.0))
    course = live(world(tiers=tiers), told((125, PROCESS), (131, NODE), (135, PROCESS)))
    assert [(one.tier, one.extent, one.lost_s) for one in course.interruptions] == [
        ("memory", Extent.PROCESS, 5),
        ("disk", Extent.NODE, 20),
        ("disk", Extent.NODE, 0),
    ]
    assert [one.resumed_s for one in course.interruptions] == [None, None, 150]
    assert course.seconds[Cause.DETECTION] == 5 + 4 + 5
    assert course.seconds[Cause.REGROUP] == 1 + 0 + 7
    assert course.position_s == 250


def test_without_a_spare_a_lost_node_makes_the_run_wait_for_a_repair() -> None:
    """There is one spare node, and a repair takes 100 s.

    The second node is lost at 130 s. The run waits until the first one is back at 150 s.
    """
    scenario = world(
        recovers=recovery(take_s=2.0), repair=Repair(1, constant(100.0)), tiers=(tier("disk", 1.0),)
    )
    first, second = live(scenario, told((50, NODE), (130, NODE))).interruptions
    assert (first.spent_s[Phase.WAIT], first.spent_s[Phase.TAKE], first.resumed_s) == (0, 2, 67)
    assert (second.spent_s[Phase.WAIT], second.resumed_s, second.in_repair) == (8, 155, 2)


def test_a_rack_takes_its_nodes_and_a_wrong_diagnosis_one_more() -> None:
    repair = Repair(1, constant(100.0), wrong=0.6)
    assert live(world(repair=repair), told((50, RACK))).interruptions[0].nodes_lost == 2
    assert live(world(repair=repair), told((50, NODE))).interruptions[0].nodes_lost == 2
    assert (
        live(world(repair=repair), told((50, NODE), diagnosis=0.7)).interruptions[0].nodes_lost == 1
    )
    assert live(world(repair=repair), told((50, PROCESS))).interruptions[0].nodes_lost == 0
    # two are gone, one was spare: until 150
    assert live(world(repair=repair), told((50, NODE))).interruptions[0].resumed_s == 153


def test_a_shrunk_run_is_slower_and_stops_once_to_grow() -> None:
    """There are 4 nodes and no spare. The tier is live, and recovery takes 5 + 7 + 3 s, so from 65
    s the run trains at 3/4 of its speed. The node is back at 150 s. After a regroup of 7 s, the run
    has its full speed again.
    """
    scenario = world(
        recovers=recovery(take_s=2.0, shrinks=True),
        repair=Repair(0, constant(100.0)),
        tiers=(tier("peers", 1.0),),
    )
    course = live(scenario, told((50, NODE)))
    assert course.interruptions[0].resumed_s == 65
    assert course.position_s == 50 + (150 - 65) * 0.75 + (300 - 157)
    assert course.seconds[Cause.DEGRADED] == (150 - 65) * 0.25
    assert course.seconds[Cause.REGROUP] == 14


def test_a_run_that_shrinks_takes_a_spare_where_there_is_one() -> None:
    scenario = world(
        recovers=recovery(take_s=2.0, shrinks=True),
        repair=Repair(1, constant(100.0)),
        tiers=(tier("peers", 1.0),),
    )
    course = live(scenario, told((50, NODE)))
    assert course.interruptions[0].resumed_s == 67
    assert course.seconds[Cause.DEGRADED] == 0
    assert course.spares_in_use == 1


def test_a_run_without_any_node_left_stands_still_and_is_degraded() -> None:
    scenario = world(
        recovers=recovery(shrinks=True),
        repair=Repair(0, constant(100.0)),
        tiers=(tier("peers", 1.0),),
    )
    course = live(scenario, told((50, RACK), (100, RACK)))
    assert course.position_s == 50 + (100 - 65) * 0.5 - 0.5 + (200 - 157) * 0.5 + (300 - 207)
    assert course.seconds[Cause.DEGRADED] == (100 - 65) * 0.5 + (150 - 115) + (200 - 157) * 0.5


def test_maintenance_stands_outside_of_time() -> None:
    """A stop of 20 s comes each 100 s. Saves, recovery and repair go on after the stop as before
    it. A failure during the stop is no interruption.
    """
    stops = Maintenance(100.0, 20.0)
    assert live(world(maintenance=stops), told((110, PROCESS))).interruptions == ()
    course = live(world(maintenance=stops), told((95, PROCESS)))
    # 5 s of detection, the stop, 7 s of regroup, 3 s to restore
    assert course.interruptions[0].resumed_s == 130
    assert course.seconds[Cause.OTHER] == 40
    assert course.position_s == 300 - 130 - 20 - 10
    assert live(world(maintenance=stops), told((250, PROCESS))).interruptions[0].at_s == 250


def test_lemons_fail_more_often_until_they_are_caught() -> None:
    lemons = Lemons(share=0.5, factor=3.0, caught=1.0)
    scenario = world(lemons=lemons, failures=(node(),), tiers=(tier("peers", 1.0),))
    assert scenario.lemons_bound == 2
    both = live(scenario, told((50, 0), (100, 0), (150, 0), lemons=2, extra=[True] * 3, lemon=0.4))
    assert len(both.interruptions) == 2  # 2 of 2, then 1 of 2, then none is left
    assert both.lemons == 0
    assert len(live(scenario, told((50, 0), lemons=1, extra=[True], lemon=0.6)).interruptions) == 0


def test_a_node_that_is_mended_badly_is_a_lemon() -> None:
    scenario = world(
        lemons=Lemons(share=0.25, factor=3.0),
        repair=Repair(1, constant(1.0), missed=0.6),
        failures=(node(),),
    )
    assert live(scenario, told((50, 0), (90, 0), lemons=0, lemon=0.9)).lemons == 2
    assert live(scenario, told((50, 0), lemons=1, lemon=0.2)).lemons == 1  # it was one before


@given(scenario=scenarios(waves=True), seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_seconds_sum_to_the_duration(scenario: Scenario, seed: int) -> None:
    course = live(scenario, draw(scenario, seed=seed, replicas=1).one(0))
    assert sum(course.seconds.values()) == pytest.approx(scenario.job.duration_s, rel=1e-9)
    assert min(course.seconds.values()) >= -1e-6
    assert course.seconds[Cause.PRODUCTIVE] == course.position_s


def test_a_run_that_fails_faster_than_it_can_recover_is_an_answer() -> None:
    scenario = world(
        failures=(process(2.0), node(40.0), rack(40.0), everything(10.0)),
        repair=Repair(0, constant(1e6)),
    )
    course = live(scenario, draw(scenario, seed=1, replicas=1).one(0))
    assert 0 <= course.position_s < 30
    assert sum(course.seconds.values()) == pytest.approx(300)
