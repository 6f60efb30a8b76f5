"""Decision mode follows the definition of `scenario.py`. If the engine decides something that a
scenario does not know, decision mode says so.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.model import limits
from outlast.model.terms import Cause, FailureClass, Mechanism, Rung
from outlast.planner.deciding.acting import PerfectDiagnosis
from outlast.planner.deciding.decided import ENDS, Decided, DecidedInterruption, Rules, Unmodelled
from outlast.planner.decisions import estimate, live
from outlast.planner.histories import History, draw
from outlast.planner.runs import run
from outlast.planner.scenario import Extent, FailureRate, Repair, Scenario, ScenarioTier, Unit
from outlast.planner.spread import constant, exponential, lognormal
from tests.planner import course
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
ANOTHER_COURSE = {
    Unmodelled.ANOTHER_TIER,
    Unmodelled.NOBODY_LEFT,
    Unmodelled.SEALED_AT_ONCE,
    Unmodelled.DEADLINE,
    Unmodelled.WAITS,
}
PATIENT = Rules(node_wait_s=math.inf)
REPLICAS = (
    tier("replicas", 1.0, survives=Extent.RACK, restore_s=2.0),
    tier("disk", 100.0, stall_s=1.0),
)


def near(one: float | None, other: float | None) -> bool:
    return one is other or (
        one is not None
        and other is not None
        and math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)
    )


def agree(scenario: Scenario, history: History, decided: Decided) -> int:
    """Assert that the interruptions agree, one by one, up to the first one that the engine answers
    differently. If there is none, the whole runs agree. Return how many interruptions were
    compared.
    """
    expected = course.live(scenario, history)
    other = next(
        (
            number
            for number, answer in enumerate(decided.answers)
            if ANOTHER_COURSE.intersection(answer.unmodelled)
        ),
        len(decided.answers),
    )
    whole = other == len(decided.answers) and decided.ended_s is None
    for number, (answer, one) in enumerate(
        zip(decided.answers[:other], expected.interruptions, strict=False)
    ):
        assert (answer.fallback.tier, answer.extent) == (one.tier, one.extent)
        assert near(answer.at_s, one.at_s)
        assert near(answer.fallback.lost_s, one.lost_s)
        if whole or number < other - 1:
            assert near(answer.resumed_s, one.resumed_s)
            assert near(sum(answer.spent_s.values()), sum(one.spent_s.values()))
    if whole:
        assert len(decided.answers) == len(expected.interruptions)
        assert abs(decided.position_s - expected.position_s) < scenario.job.step_s
        assert near(decided.position_s, expected.position_s)
        for cause in Cause:
            assert near(decided.seconds[cause], expected.seconds[cause]), cause
    return other


# --- the same course ------------------------------------------------------------------------------


@given(scenario=scenarios(), seed=st.integers(0, 10_000))
@settings(max_examples=60)
def test_the_engine_follows_the_definition_unless_it_says_otherwise(
    scenario: Scenario, seed: int
) -> None:
    """The scenario is any scenario: tiers that nest or not, racks, lemons, stops, with spares or
    without.

    If the engine decides differently, the interruption says so.
    """
    scenario = replace(scenario, recovery=replace(scenario.recovery, shrinks=False))
    history = draw(scenario, seed=seed, replicas=1).one(0)
    decided = live(scenario, history, PATIENT)
    assert near(sum(decided.seconds.values()), scenario.job.duration_s)
    assert (decided.ended_s is None) == (not decided.unmodelled.keys() & set(ENDS))
    assert not decided.answers or decided.per_interruption >= 1
    if Unmodelled.NO_NODE_TO_LOSE not in decided.unmodelled:
        agree(scenario, history, decided)


def cluster(
    name: str,
    *,
    gpus: int,
    days: float,
    tiers: tuple[ScenarioTier, ...],
    spares: int,
    hours: dict[Extent, float],
) -> Scenario:
    """Return a scenario. `hours` are the hours between two failures of each extent in the whole
    job.
    """
    kinds = {
        Extent.PROCESS: FailureClass.SOFTWARE_BUG,
        Extent.NODE: FailureClass.GPU,
        Extent.RACK: FailureClass.NETWORK,
        Extent.RUN: FailureClass.STORAGE,
    }
    failures = tuple(
        FailureRate(kinds[extent], Unit.RUN, extent, 3600 * each) for extent, each in hours.items()
    )
    scenario = world(
        duration_s=86_400 * days,
        gpus=gpus,
        failures=failures,
        tiers=tiers,
        repair=Repair(spares, exponential(86_400.0), wrong=0.1),
        step_s=5.0,
    )
    recovers = replace(
        recovery(),
        detect=lognormal(20.0, 60.0),
        regroup=lognormal(60.0, 200.0),
        take=constant(30.0),
    )
    return replace(scenario, name=name, recovery=recovers)


DISK = ScenarioTier("disk", 1200.0, 3.0, 60.0, Extent.RUN, lognormal(120.0, 300.0))
MEMORY = ScenarioTier("memory", 50.0, 0.5, 5.0, Extent.RACK, constant(15.0))
LIVE = ScenarioTier("replicas", 5.0, 0.0, 0.0, Extent.RACK, constant(10.0))
CLUSTERS = (
    cluster(
        "replicated",
        gpus=1024,
        days=30,
        tiers=(LIVE, DISK),
        spares=8,
        hours={Extent.PROCESS: 20.0, Extent.NODE: 12.0, Extent.RUN: 150.0},
    ),
    cluster(
        "sharded, copies in memory",
        gpus=512,
        days=15,
        tiers=(MEMORY, DISK),
        spares=12,
        hours={Extent.NODE: 10.0, Extent.RACK: 60.0, Extent.RUN: 200.0},
    ),
    cluster(
        "storage only",
        gpus=256,
        days=14,
        tiers=(DISK,),
        spares=4,
        hours={Extent.PROCESS: 6.0, Extent.NODE: 8.0},
    ),
)


@pytest.mark.parametrize("scenario", CLUSTERS, ids=lambda scenario: scenario.name)
def test_on_common_failures_no_run_is_another_one(scenario: Scenario) -> None:
    """Eight replicas of each scenario agree in all interruptions and at the end of the run."""
    histories = draw(scenario, seed=4, replicas=8)
    compared = 0
    for replica in range(histories.replicas):
        history = histories.one(replica)
        decided = live(scenario, history, PATIENT)
        assert decided.ended_s is None
        assert not ANOTHER_COURSE & decided.unmodelled.keys()
        compared += agree(scenario, history, decided)
    assert compared > 150


@pytest.mark.slow
@pytest.mark.parametrize("scenario", CLUSTERS, ids=lambda scenario: scenario.name)
def test_the_mean_over_replicas_is_that_of_monte_carlo(scenario: Scenario) -> None:
    """The means of 200 replicas with different seeds agree within four standard errors, although
    the engine may end two replicas. With the same seed, only the replicas that the engine ends
    differ.
    """
    replicas = 200
    histories = draw(scenario, seed=11, replicas=replicas)
    decided = estimate(scenario, histories, PATIENT)
    other = (
        run(scenario, draw(scenario, seed=12, replicas=replicas)).position_s
        / scenario.job.duration_s
    )
    error = math.hypot(decided.ettr_mean_se, float(np.std(other, ddof=1)) / math.sqrt(replicas))
    assert abs(decided.ettr_mean - float(other.mean())) < 4 * error
    assert decided.ended <= 2
    assert decided.per_interruption >= 1
    same = run(scenario, histories).position_s
    runs = [live(scenario, histories.one(replica), PATIENT) for replica in range(replicas)]
    assert (
        sum(
            abs(run.position_s - float(one)) > scenario.job.step_s
            for run, one in zip(runs, same, strict=True)
        )
        == decided.ended
    )


@pytest.mark.parametrize("power", range(-3, 11))
def test_seconds_by_cause_sum_to_the_duration_at_any_scale(power: int) -> None:
    """All durations, steps and intervals are multiplied by 2**power, which is exact in floating
    point. The scales go from 1/8 to 1,024.
    """
    factor = 2.0**power
    one = CLUSTERS[1]
    recovers = replace(
        one.recovery,
        **{
            name: getattr(one.recovery, name).scaled(factor)
            for name in ("detect", "regroup", "take")
        },
    )
    scenario = replace(
        one,
        job=replace(
            one.job, duration_s=one.job.duration_s * factor, step_s=one.job.step_s * factor
        ),
        failures=tuple(replace(rate, mttf_s=rate.mttf_s * factor) for rate in one.failures),
        tiers=tuple(
            replace(
                tier,
                interval_s=tier.interval_s * factor,
                stall_s=tier.stall_s * factor,
                write_s=tier.write_s * factor,
                restore=tier.restore.scaled(factor),
            )
            for tier in one.tiers
        ),
        recovery=recovers,
        repair=replace(one.repair, time=one.repair.time.scaled(factor)),
    )
    history, plain = draw(scenario, seed=8, replicas=1).one(0), draw(one, seed=8, replicas=1).one(0)
    decided, before = live(scenario, history, PATIENT), live(one, plain, PATIENT)
    assert math.fsum(decided.seconds.values()) == pytest.approx(scenario.job.duration_s, rel=1e-12)
    assert decided.position_s == pytest.approx(before.position_s * factor, rel=1e-9)
    assert [answer.rung for answer in decided.answers] == [answer.rung for answer in before.answers]


# --- what is decided ------------------------------------------------------------------------------


def only(decided: Decided) -> DecidedInterruption:
    (answer,) = decided.answers
    return answer


def test_every_rank_is_known_and_the_engine_says_why() -> None:
    """Node 1 of 4 is lost. Processes of a spare node take its 8 ranks. The run goes on with the
    step that a survivor holds.
    """
    scenario = world(tiers=REPLICAS, repair=Repair(1, constant(1e6)))
    decided = live(scenario, told((50.5, NODE), struck=0.3))
    answer = only(decided)
    assert (answer.rung, answer.fallback.step, answer.fallback.tier, answer.mechanism) == (
        Rung.SPARE,
        50,
        "replicas",
        Mechanism.LOST_NODE,
    )
    assert (
        answer.chosen.why
        == "ranks [8, 9, 10, 11, 12, 13, 14, 15] are taken by spares; survivors go on in place"
    )
    assert answer.fallback.why == "step 50 is committed on a live rank"
    assert answer.resumed_s == 50.5 + 5 + 7 + 2
    assert decided.per_interruption == 3  # where to go on from, who takes the ranks, which rung


def test_where_nobody_is_parked_processes_are_started_on_the_spare_node() -> None:
    answer = only(
        live(
            world(tiers=REPLICAS, repair=Repair(1, constant(1e6))),
            told((50.5, NODE)),
            Rules(parked=False),
        )
    )
    assert answer.rung is Rung.RESPAWN


def test_a_script_that_raises_loses_no_process() -> None:
    """The class of the failure is an error of the script, so the step is repeated in place."""
    raises = replace(process(), failure_class=FailureClass.USER_CODE)
    answer = only(live(world(tiers=REPLICAS, failures=(raises,)), told((50.5, 0))))
    assert (answer.rung, answer.mechanism, answer.fallback.step) == (
        Rung.REPEAT,
        Mechanism.EXCEPTION,
        50,
    )


def test_sharded_state_goes_back_to_what_all_owners_have_sealed() -> None:
    """Each node seals images in its own memory each 10 steps, and a write takes 4 s. At 123 s the
    newest image is being written, so the lost rank has not sealed it.
    """
    tiers = (
        tier("memory", 10.0, write_s=4.0, survives=Extent.PROCESS, restore_s=1.0),
        tier("disk", 100.0),
    )
    answer = only(live(world(tiers=tiers), told((123, PROCESS))))
    assert (answer.rung, answer.fallback.step, answer.fallback.tier) == (
        Rung.RESPAWN,
        110,
        "memory",
    )
    assert answer.fallback.why == "step 110 is the newest snapshot that all 32 owners sealed"
    lost = only(live(world(tiers=tiers, repair=Repair(1)), told((123, NODE))))
    assert (lost.rung, lost.fallback.step, lost.fallback.tier) == (Rung.RESTART, 100, "disk")
    assert lost.fallback.why == "the checkpoint of step 100 is the newest good one"


def test_state_restored_to_memory_is_sealed_there_at_once() -> None:
    """The loss of a node empties its memory. Step 100 is read from the disk, and every rank seals
    it.

    In the scenario, memory stays empty until step 110.
    """
    tiers = (
        tier("memory", 10.0, survives=Extent.PROCESS, restore_s=1.0),
        tier("disk", 100.0, restore_s=9.0),
    )
    scenario, history = world(tiers=tiers, repair=Repair(1)), told((125, NODE), (150, PROCESS))
    first, second = live(scenario, history).answers
    assert (first.fallback.tier, first.resumed_s) == ("disk", 146)
    assert (second.fallback.tier, second.fallback.step, second.unmodelled) == (
        "memory",
        100,
        [Unmodelled.SEALED_AT_ONCE],
    )
    assert course.live(scenario, history).interruptions[1].tier == "disk"


def test_failures_before_the_rung_is_chosen_are_one_decision() -> None:
    """Detection and regroup take 12 s, and the restore takes 2 s."""
    together = live(world(tiers=REPLICAS), told((50.5, PROCESS), (55.5, PROCESS)))
    first, second = together.answers
    assert (first.chosen.decided_s, second.chosen.decided_s) == (67.5, 67.5)
    assert (first.resumed_s, second.resumed_s) == (None, 69.5)
    apart = live(world(tiers=REPLICAS), told((50.5, PROCESS), (63.5, PROCESS)))
    assert [answer.chosen.decided_s for answer in apart.answers] == [62.5, 75.5]


# --- what a scenario does not know ----------------------------------------------------------------


def test_a_run_that_never_commits_a_step_again_is_ended_as_a_crash_loop() -> None:
    """One process after the other is lost while step 50 is restored. The sixth interruption at that
    step ends the run. The rest of its time is booked as shutdown.
    """
    history = told(*((50.5 + 13 * number, PROCESS) for number in range(8)))
    decided = live(world(tiers=REPLICAS), history)
    assert decided.unmodelled[Unmodelled.CRASH_LOOP] == 1
    assert "crash loop" in decided.why_ended
    assert len(decided.answers) == limits.SAME_STEP_FAULTS_COUNT + 1
    assert decided.answers[-1].rung is Rung.STOP
    assert decided.ended_s == 50.5 + 13 * limits.SAME_STEP_FAULTS_COUNT + 12
    assert decided.seconds[Cause.SHUTDOWN] == 300 - decided.ended_s
    assert decided.position_s == 50


def test_replacements_with_steps_in_between_never_end_a_run() -> None:
    """Twenty replacements are more than the budget has. A new step gives all of them back."""
    # 14 s of recovery, a step
    history = told(*((20.5 + 15 * number, PROCESS) for number in range(20)))
    decided = live(world(tiers=REPLICAS, duration_s=400.0), history)
    assert decided.unmodelled[Unmodelled.BUDGET] == 0
    assert len(decided.answers) == 20 > limits.RESPAWNS_COUNT
    assert all(answer.rung is not Rung.STOP for answer in decided.answers)


def test_whole_restarts_are_budgeted_too_and_the_number_can_be_said() -> None:
    """All ranks are lost several times, a few steps apart."""
    history = told(*((30.5 + 20 * number, RUN) for number in range(6)))
    assert len(live(world(), history).answers) == limits.RESTARTS_COUNT + 1
    assert len(live(world(), history, Rules(max_restarts=1)).answers) == 2


def test_the_engine_waits_for_a_node_as_long_as_its_limit_says() -> None:
    """There is no spare, and a repair takes two hours. The reference run waits. The engine ends the
    run after half an hour, and this limit can be changed.
    """
    scenario, history = (
        world(tiers=REPLICAS, duration_s=20_000.0, repair=Repair(0, constant(7200.0))),
        told((50.5, NODE)),
    )
    decided = live(scenario, history)
    assert decided.unmodelled == {Unmodelled.NO_NODE: 1}
    assert decided.ended_s == 50.5 + 12 + limits.NODE_WAIT_S
    patient = live(scenario, history, PATIENT)
    assert patient.position_s == pytest.approx(course.live(scenario, history).position_s)
    assert not patient.unmodelled


def test_the_engine_does_not_shrink_and_says_that_it_waited() -> None:
    scenario = world(
        tiers=REPLICAS,
        duration_s=2_000.0,
        repair=Repair(0, constant(600.0)),
        recovers=recovery(shrinks=True),
    )
    decided = live(scenario, told((50.5, NODE)))
    assert decided.unmodelled == {Unmodelled.WAITS: 1}
    assert only(decided).resumed_s == 650.5 + 2


def test_a_surviving_tier_needs_a_rank_that_lives() -> None:
    """There is one node, and its loss destroys all replicas."""
    scenario = world(gpus=8, tiers=REPLICAS, repair=Repair(1))
    answer = only(live(scenario, told((150.5, NODE))))
    assert (answer.fallback.step, answer.fallback.tier, answer.unmodelled, answer.rung) == (
        100,
        "disk",
        [Unmodelled.NOBODY_LEFT],
        Rung.RESTART,
    )
    assert course.live(scenario, told((150.5, NODE))).interruptions[0].tier == "replicas"


def test_survivors_keep_what_they_hold_even_if_a_tier_is_faster() -> None:
    tiers = (
        tier("replicas", 1.0, survives=Extent.NODE, restore_s=9.0),
        tier("disk", 10.0, restore_s=1.0),
    )
    answer = only(live(world(tiers=tiers), told((50.5, PROCESS))))
    assert (answer.fallback.tier, answer.unmodelled) == ("replicas", [Unmodelled.ANOTHER_TIER])


def test_saves_that_overtake_each_other_are_counted() -> None:
    """Saves begin each 10 s, and a write takes 25 s. Of 30 saves, 29 begin before the one before is
    written.
    """
    assert live(world(tiers=(tier("disk", 10.0, write_s=25.0),)), told()).unmodelled == {
        Unmodelled.OVERLAP: 29
    }


# --- hangs ----------------------------------------------------------------------------------------

HANGS = Rules(hangs=frozenset({FailureClass.SOFTWARE_BUG}))


def test_a_hang_is_found_by_the_deadline_that_the_engine_has_learned() -> None:
    """Steps take 1 s, so the deadline is 5 s after the step began. The rank stopped half a second
    after that. Then the coordinator asks all ranks.
    """
    decided = live(world(tiers=REPLICAS), told((50.5, PROCESS)), HANGS)
    answer = only(decided)
    assert (answer.mechanism, answer.unmodelled) == (Mechanism.HANG, [Unmodelled.DEADLINE])
    assert answer.spent_s[Cause.DETECTION] == pytest.approx(
        limits.DEADLINE_FACTOR * 1.0 - 0.5, abs=0.2
    )
    assert decided.asked["engine.hang.find_culprits"] == 1


def test_a_fresh_process_is_given_the_time_that_first_steps_take() -> None:
    """Rank 16 is replaced, and hangs a step later, up to a second after the step began.

    Its deadline is that of first steps. Its peers wait until it has missed it.
    """
    decided = live(world(tiers=REPLICAS), told((50.5, PROCESS), (66.0, PROCESS)), HANGS)
    early, late = live(world(tiers=REPLICAS), told((50.5, PROCESS), (75.0, PROCESS)), HANGS).answers
    assert (
        decided.answers[1].spent_s[Cause.DETECTION]
        > limits.FIRST_STEPS_FLOOR_S - 1.0
        > late.spent_s[Cause.DETECTION]
    )
    assert early.resumed_s is not None


def test_a_failure_elsewhere_brings_a_hang_to_light() -> None:
    """Rank 16 hangs in a step of 10 s. A node is lost 5 s later.

    All ranks are asked to leave, and rank 16 does not leave.
    """
    slow = world(
        tiers=(tier("replicas", 10.0, survives=Extent.RACK),),
        step_s=10.0,
        repair=Repair(1),
        duration_s=2_000.0,
    )
    alone, both = (
        live(slow, told((105, PROCESS)), HANGS),
        live(slow, told((105, PROCESS), (110, NODE)), HANGS),
    )
    leaves_s = limits.LEAVE_DEADLINE_S + 10 * limits.LEAVE_STEPS + 32 * limits.RANK_HEARD_S
    assert both.answers[1].spent_s[Cause.DETECTION] == pytest.approx(5 + leaves_s)
    assert only(alone).spent_s[Cause.DETECTION] == pytest.approx(45, abs=0.2)


def test_who_hangs_while_all_join_is_missed_by_the_deadline_of_a_boot() -> None:
    """The deadline is half an hour if a process had to be started, and half a minute if one was
    parked.
    """
    scenario = world(tiers=REPLICAS, duration_s=5_000.0)
    decided = live(scenario, told((50.5, NODE), (63.5, PROCESS)), replace(HANGS, parked=False))
    assert decided.answers[1].spent_s[Cause.DETECTION] == limits.BOOT_DEADLINE_S
    parked = live(scenario, told((50.5, NODE), (63.5, PROCESS)), HANGS)
    assert parked.answers[1].spent_s[Cause.DETECTION] == limits.REGROUP_DEADLINE_S


# --- the policy -----------------------------------------------------------------------------------

TOLD = Rules(diagnosis=PerfectDiagnosis(delay_s=20.0))


def broken_gpu(extent: Extent) -> Scenario:
    rate = FailureRate(FailureClass.GPU, Unit.NODE, extent, 1e4)
    return world(
        tiers=REPLICAS,
        failures=(rate,),
        duration_s=1_000.0,
        repair=Repair(1, constant(300.0)),
        recovers=recovery(take_s=4.0),
    )


def test_a_verdict_that_blames_a_node_has_it_drained_between_two_steps() -> None:
    """The process is replaced on its node. The default policy drains the node 25 s after the
    failure. That costs a regroup, a spare and a restore, and no step is repeated.
    """
    decided = live(broken_gpu(Extent.PROCESS), told((103.5, 0)), TOLD)
    assert decided.unmodelled == {Unmodelled.DRAIN: 1}
    assert decided.asked["engine.policy.decide_action"] == 1
    assert decided.seconds[Cause.REPEATED] == pytest.approx(0.5)
    assert decided.seconds[Cause.REGROUP] == 7 + (7 + 4)
    assert decided.seconds[Cause.RESTORE] == 2 + 2
    assert math.fsum(decided.seconds.values()) == pytest.approx(1_000)


def test_a_node_that_was_barred_does_not_come_back_as_a_spare() -> None:
    """The node is lost and blamed, and it is repaired after 300 s.

    In decision mode, the second loss waits for the repair of its own node. The reference run takes
    the first node.
    """
    scenario, history = broken_gpu(Extent.NODE), told((100.5, 0), (600.5, 0))
    decided = live(scenario, history, TOLD)
    assert decided.unmodelled[Unmodelled.NOT_BACK] == 1
    assert decided.answers[1].resumed_s == 600.5 + 300 + 4 + 2
    undiagnosed = live(scenario, history)
    assert (
        undiagnosed.answers[1].resumed_s
        == course.live(scenario, history).interruptions[1].resumed_s
        == 600.5 + 5 + 7 + 4 + 2
    )


def test_without_room_elsewhere_no_node_is_taken_out() -> None:
    scenario = replace(broken_gpu(Extent.PROCESS), repair=Repair(0))
    assert not live(scenario, told((100.5, 0)), TOLD).unmodelled


def test_sharded_state_is_not_moved_off_a_node() -> None:
    scenario = replace(
        broken_gpu(Extent.PROCESS),
        tiers=(tier("memory", 10.0, survives=Extent.PROCESS), tier("disk", 100.0)),
    )
    assert Unmodelled.DRAIN not in live(scenario, told((100.5, 0)), TOLD).unmodelled


def test_a_failure_during_a_drain_calls_it_off_and_it_is_tried_again() -> None:
    """The drain begins at about 126 s, and a process is lost at 130 s."""
    decided = live(broken_gpu(Extent.PROCESS), told((100.5, 0), (130.0, 0), struck=0.1), TOLD)
    assert decided.unmodelled[Unmodelled.DRAIN] == 2
    assert math.fsum(decided.seconds.values()) == pytest.approx(1_000)


def test_a_wrong_diagnosis_takes_a_healthy_node_that_is_there() -> None:
    scenario = world(tiers=REPLICAS, repair=Repair(2, constant(1e6), wrong=1.0))
    decided = live(scenario, told((50.5, NODE), struck=0.9, diagnosis=0.5))
    assert "ranks [0, 1, 2, 3, 4, 5, 6, 7, 24, 25" in only(decided).chosen.why
    assert near(
        decided.position_s, course.live(scenario, told((50.5, NODE), diagnosis=0.5)).position_s
    )


@pytest.mark.parametrize("extent", [RACK, RUN])
def test_what_strikes_more_than_a_node_is_asked_about_with_all_its_ranks(extent: int) -> None:
    scenario = world(
        tiers=(*REPLICAS,), repair=Repair(2), failures=(process(), node(), rack(), everything())
    )
    answer = only(live(scenario, told((151.5, extent), struck=0.0)))
    assert (answer.rung, answer.fallback.step) == (
        (Rung.SPARE, 150) if extent == RACK else (Rung.RESTART, 100)
    )
