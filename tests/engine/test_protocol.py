"""The protocol in a simulated world: what must never happen, and what must happen in the end,
whatever fault strikes and when.

The checkers of the world watch every run (`outlast.sim.rules.checkers`). A rank has one living
process, and is given away only after the old process is dead. No rank commits in a generation once
a newer generation has committed. All ranks that join a generation join at the same step, with the
state of that step. The sources that a plan names (slot, transfer image) exist. A step that some
rank holds is not lost.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outlast.engine.coordinator import decisions
from outlast.engine.protocol.outputs import End
from outlast.engine.recovery import RecoveryVerdict, Situation, decide_rung
from outlast.model.fault_plan import MARKS, PlannedFault
from outlast.model.limits import BOOT_DEADLINE_S
from outlast.model.messages import WorkerHung
from outlast.model.terms import Mechanism, Rung
from outlast.sim.options import Options
from outlast.sim.world.processes import SimulatedProcess
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World

MODES = ("in_place", "respawn", "reenter", "sharded")
KINDS = ("kill", "stop", "raise", "exit", "hang", "deaf", "lose_store")
ONCE = (
    "boot",
    "join",
    "parked",
    "setup",
    "restoring",
    "still",
    "settled",
    "donating",
    "phase",
    "closing",
    "finishing",
    "epilogue",
)
BEHIND_THE_LAST_STEP = ("closing", "finishing", "epilogue")
BOUND_S = 12.5 * BOOT_DEADLINE_S  # virtual time: the longest deadlines, one after another
PROTOCOL = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def fault(
    kind: str, rank: int, mark: str, nth: int = 1, after_s: float = 0.0, times: int = 1
) -> PlannedFault:
    """Return a planned fault. A fault that loses the store strikes when any rank passes the
    mark.
    """
    return PlannedFault(
        f"{kind} {rank} {mark} {nth} {after_s}",
        kind,
        None if kind == "lose_store" else rank,
        mark,
        nth,
        after_s=after_s,
        times=times,
    )


def a_world(
    mode: str,
    *faults: PlannedFault,
    spares: int = 0,
    spare_kind: str = "hot",
    seed: int = 0,
    **more: int,
) -> World:
    """Return a world. With seed 0, all work and all messages take the least time."""
    options = Options(recovery_mode=mode, ranks=3, spares=spares, spare_kind=spare_kind, **more)
    return World(
        options=options, script=script_of(mode), faults=faults, seed=seed, steady=seed == 0
    )


def strikes(kinds: tuple[str, ...] = KINDS) -> st.SearchStrategy[PlannedFault]:
    return st.builds(
        fault,
        st.sampled_from(kinds),
        st.sampled_from((0, 1, 2, -1)),
        st.sampled_from(MARKS),
        st.integers(1, 5),
        st.sampled_from((0.0, 0.002, 0.02)),
    )


def ran(world: World, *, bound_s: float = BOUND_S, false_alarm: bool = False) -> End:
    """Run the world, and check that no rule was broken. `false_alarm` says that the test itself
    causes one.
    """
    end = world.run(bound_s=bound_s)
    broken = [
        one
        for one in world.checkers.violations
        if not (false_alarm and one.rule in ("NoFalseAlarm", "OnlyStruckBlamed"))
    ]
    assert not broken, "\n".join([*world.trace.newest, str(broken)])
    assert end is not None
    return end


def ended_well(world: World, *, false_alarm: bool = False) -> None:
    end = ran(world, false_alarm=false_alarm)
    assert (end.state, end.exit_code) == (
        "ended",
        0,
    ), f"{end}, committed {world.committed}, struck {world.strikes.struck}"
    assert world.committed == (world.options.steps if world.commits else 0), (
        f"committed {world.committed}, struck {world.strikes.struck}"
    )
    assert all(one.resumed_s is not None for one in world.interruptions.values()), list(
        world.interruptions.values()
    )


# --- safety and liveness under any faults ---------------------------------------------------------


@pytest.mark.parametrize("mode", [*MODES, "plain"])
def test_undisturbed_every_step_is_committed_once_by_every_rank(mode: str) -> None:
    world = a_world(mode, spares=1)
    ended_well(world)
    assert not world.interruptions
    assert mode == "plain" or sorted((rank, step) for _, _, rank, step in world.commits) == [
        (rank, step) for rank in range(3) for step in range(1, 7)
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["kill", "stop", "raise", "hang"])
def test_one_fault_at_any_place_is_one_interruption_and_costs_no_step(mode: str, kind: str) -> None:
    """Method: every mark, on an early and on a later visit; a rank that donates and one that does
    not; with and without a spare.
    """
    for number, mark in enumerate(MARKS):
        for visit in (1,) if mark in ONCE else (1, 3):
            one = fault(kind, number % 2, mark, visit)
            world = a_world(mode, one, spares=number // 2 % 2)
            if kind == "raise" and mark in BEHIND_THE_LAST_STEP and mode != "sharded":
                continue  # this fails the run: see the next test
            ended_well(world)
            assert not world.rolled_back, f"{one}: {world.rolled_back}"
            assert len(world.interruptions) == (
                1 if world.strikes.struck and (kind != "raise" or world.interruptions) else 0
            ), f"{one}: {world.interruptions}"


@pytest.mark.parametrize("mark", BEHIND_THE_LAST_STEP)
@pytest.mark.parametrize("mode", ["in_place", "respawn", "reenter"])
def test_an_exception_after_the_last_step_fails_the_run(mode: str, mark: str) -> None:
    """That code is not run again. Every step is committed, and no rank is replaced."""
    world = a_world(mode, fault("raise", 1, mark), spares=1)
    end = ran(world)
    assert (end.state, end.exit_code) == ("failed", 1)
    assert "after the last step" in end.reason
    assert world.committed == world.options.steps
    assert [one.rung.value for one in world.interruptions.values() if one.rung] == ["stop"]


@PROTOCOL
@given(
    mode=st.sampled_from(MODES),
    faults=st.lists(strikes(), min_size=2, max_size=2),
    spares=st.integers(0, 2),
    seed=st.integers(0, 10_000),
)
# the successor dies before it attaches
@example(
    mode="in_place",
    faults=[fault("kill", 0, "body", 3), fault("kill", 0, "boot", 2)],
    spares=0,
    seed=0,
)
# no rank has attached yet
@example(
    mode="sharded",
    faults=[fault("kill", 0, "body", 3), fault("kill", 1, "setup", 2)],
    spares=0,
    seed=0,
)
# the donor dies
@example(
    mode="respawn",
    faults=[fault("kill", 1, "body", 3), fault("kill", 0, "donating", 1)],
    spares=0,
    seed=0,
)
# a rank that is not involved dies
@example(
    mode="respawn",
    faults=[fault("kill", 1, "body", 3), fault("kill", 2, "still", 1, 0.002)],
    spares=0,
    seed=0,
)
@example(
    mode="reenter",
    faults=[fault("kill", 1, "body", 3), fault("kill", 0, "donating", 1)],
    spares=0,
    seed=0,
)
@example(
    mode="in_place",
    faults=[fault("kill", 0, "body", 3), fault("lose_store", 0, "grouping", 1)],
    spares=1,
    seed=0,
)
# two faults, one spare
@example(
    mode="in_place",
    faults=[fault("kill", 0, "body", 3), fault("kill", 1, "body", 3)],
    spares=1,
    seed=0,
)
# a half-built group does not count as one
@example(
    mode="in_place",
    faults=[fault("kill", 0, "boot"), fault("lose_store", 0, "setup")],
    spares=0,
    seed=0,
)
def test_after_two_faults_training_goes_on_and_no_step_is_lost(
    mode: str, faults: list[PlannedFault], spares: int, seed: int
) -> None:
    """Three ranks, two faults: under replicated state a living rank holds all of it, and under
    sharded state all owners have sealed theirs.
    """
    world = a_world(mode, *faults, spares=spares, seed=seed)
    ended_well(world)
    assert not world.rolled_back, f"{world.rolled_back}, struck {world.strikes.struck}"


@settings(PROTOCOL, max_examples=100)
@given(
    mode=st.sampled_from((*MODES, "plain")),
    faults=st.lists(strikes(), min_size=3, max_size=6),
    spares=st.integers(0, 2),
    kind=st.sampled_from(("hot", "warm")),
    seed=st.integers(0, 10_000),
)
@example(
    mode="plain",
    faults=[fault("kill", 0, "boot"), fault("kill", 0, "body", 2), fault("hang", 0, "body", 3)],
    spares=0,
    kind="hot",
    seed=0,
)
# news of the first store crosses the order for a second store
@example(mode="in_place", faults=[fault("kill", 0, "boot")], spares=0, kind="hot", seed=10)
# a rank executes again the steps that it was given
@example(
    mode="in_place",
    faults=[
        fault("kill", 0, "reduced", 1, 0.002),
        *(fault("kill", rank, "reduced", 3) for rank in range(3)),
    ],
    spares=0,
    kind="hot",
    seed=0,
)
def test_after_many_faults_training_goes_on_or_ends_with_a_verdict(
    mode: str, faults: list[PlannedFault], spares: int, kind: str, seed: int
) -> None:
    """The checkers define what counts as a verdict and as a good end."""
    ran(a_world(mode, *faults, spares=spares, spare_kind=kind, seed=seed), bound_s=2 * BOUND_S)


@settings(PROTOCOL, max_examples=60)
@given(
    faults=st.lists(strikes(("kill", "stop", "exit")), min_size=1, max_size=3),
    seed=st.integers(1, 10_000),
)
def test_a_replicated_step_goes_forward_or_is_repeated_as_a_whole(
    faults: list[PlannedFault], seed: int
) -> None:
    """A step that one rank committed is committed by all others too: in that generation, by going
    forward, or by healing. No step is committed twice by a rank.
    """
    world = a_world("in_place", *faults, spares=1, seed=seed)
    ran(world)
    if not world.rolled_back:
        for rank in range(world.options.ranks):
            steps = [step for _, _, who, step in world.commits if who == rank]
            assert steps == sorted(set(steps)), f"rank {rank} committed {steps}"


# --- what ends a run ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [*MODES, "plain"])
@pytest.mark.parametrize("kind", ["kill", "raise", "exit"])
def test_a_fault_that_always_comes_ends_the_run(mode: str, kind: str) -> None:
    world = a_world(mode, fault(kind, 1, "body", 3, times=1000), spares=1)
    end = ran(world)
    assert (end.state, end.exit_code) == ("failed", 1) or (mode == "plain" and kind == "raise")
    if kind == "raise" and mode != "plain":
        assert end.traceback == "traceback"
        assert "boom" in end.reason


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mark", ["setup", "body"])
def test_refused_input_ends_the_run_and_is_no_interruption(mode: str, mark: str) -> None:
    """A process whose input was refused leaves the script by itself before it can be killed."""
    world = a_world(mode, *(fault("refuse", rank, mark) for rank in range(3)), spares=1)
    end = ran(world)
    assert (end.state, end.exit_code, end.reason) == ("failed", 1, "refused")
    assert not world.interruptions


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_every_few_steps_ends_no_run(mode: str) -> None:
    """Budgets refill with progress. Method: nineteen kills, each twelve or thirteen steps after the
    one before.
    """
    faults = tuple(
        fault(
            "kill", number % 3, "body", 1 + 13 * number if mode == "in_place" else 1 + 12 * number
        )
        for number in range(1, 20)
    )
    world = a_world(mode, *faults, spares=1, steps=150)
    ended_well(world)
    assert len(world.interruptions) >= 10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mark", ["joined", "body", "prepared", "still", "settled", "closing"])
def test_a_stop_that_is_asked_for_at_any_place_ends_the_run(mode: str, mark: str) -> None:
    """Method: the stop is requested at each of these places, also while a fault is being
    handled.
    """
    world = a_world(mode, fault("kill", 0, "body", 3), steps=40)

    after_s = {
        "joined": 0.01,
        "body": 0.08,
        "prepared": 0.13,
        "still": 0.14,
        "settled": 0.145,
        "closing": 0.3,
    }[mark]
    world.timeline.after(after_s, lambda: world.ask_stop(reason="somebody asked", exit_code=130))
    end = ran(world)
    assert (end.state, end.exit_code, end.reason) == ("stopped", 130, "somebody asked")


def test_ranks_that_stand_at_one_place_for_ever_are_moved_on() -> None:
    """Nothing tells the ranks apart, and one of them has to be replaced."""
    faults = [fault("hang", rank, "voting", 5, 0.0) for rank in range(3)]
    world = a_world("in_place", *faults, steps=8)
    end = ran(world)
    assert world.interruptions[1].mechanism is Mechanism.HANG
    assert end.state in ("ended", "failed")


class TakenForHung(World):
    """A world in which rank 1 is taken for hung just as it reaches its end."""

    def passes(self, process: SimulatedProcess, mark: str) -> None:
        super().passes(process, mark)
        if mark == "epilogue" and process.rank == 1:
            hung = WorkerHung(
                process.worker,
                "epilogue",
                self.now_s - 1.0,
                1.0,
                self.now_s,
                "stands in its epilogue",
            )
            self.host.hear(hung)
            process.node.end(process, 0, None)


def test_a_rank_taken_for_hung_that_ends_well_leaves_nothing_open() -> None:
    """Found by the swarm: the verdict and the end of the process crossed each other, and the report
    said that the run never recovered.
    """
    world = TakenForHung(options=Options(), script=script_of("in_place"), steady=True)
    ended_well(world, false_alarm=True)
    assert [one.mechanism for one in world.interruptions.values()] == [Mechanism.HANG]


@pytest.mark.parametrize("mark", ["settled", "donating"])
def test_the_run_starts_over_if_all_donors_die_before_they_hand_over(mark: str) -> None:
    """Found by the swarm: all ranks were started from an image that was never written, and waited
    for it for half an hour.
    """
    world = a_world(
        "respawn", fault("kill", 2, "body", 3), fault("kill", 0, mark), fault("kill", 1, mark)
    )
    ended_well(world)
    assert world.age_s < 10.0
    assert len(world.interruptions) == 3


def test_a_rank_that_was_collateral_is_the_culprit_when_it_ends_later() -> None:
    """Found by the swarm: the exit of this rank was booked as collateral, and another rank was
    named first.
    """
    world = a_world(
        "in_place",
        fault("kill", 0, "restoring", 1, 0.02),
        fault("exit", 1, "reduced"),
        spares=1,
        seed=2,
    )
    ended_well(world)
    assert [(one.mechanism, one.ranks) for one in world.interruptions.values()] == [
        (Mechanism.SIGNAL, (0,)),
        (Mechanism.EXIT, (1,)),
    ]


# --- how interruptions are booked -----------------------------------------------------------------


def test_one_event_is_booked_once_in_any_order_of_reports() -> None:
    for seed in range(40):
        world = a_world(
            "in_place", fault("kill", 1, "body", 20, 0.012), spares=1, steps=24, seed=seed
        )
        ended_well(world)
        (one,) = world.interruptions.values()
        assert (one.mechanism, one.ranks, one.rung) == (Mechanism.SIGNAL, (1,), Rung.SPARE)
        assert one.fault_s == world.strikes.struck[0][0]
        assert one.steps_repeated == 1
        assert one.steps_lost == 0


def test_two_ranks_that_die_at_once_are_one_interruption() -> None:
    world = a_world("in_place", fault("kill", 0, "body", 3), fault("kill", 1, "body", 3), spares=2)
    ended_well(world)
    (one,) = world.interruptions.values()
    assert one.ranks == (0, 1)


def test_a_fault_before_the_first_commit_resumes_with_its_parent() -> None:
    world = a_world("in_place", fault("kill", 0, "body", 3), fault("kill", 1, "grouping", 1))
    ended_well(world)
    parent, child = world.interruptions.values()
    assert (parent.parent, child.parent) == (None, parent.id)
    assert parent.resumed_s == child.resumed_s
    assert parent.detected_s < child.detected_s
    assert parent.steps_repeated + child.steps_repeated == 1, (
        "the step was begun once before the fault, and once after both"
    )


def test_a_step_cut_short_is_charged_once_though_its_donor_is_lost() -> None:
    """Found by the swarm (seed 147): the step was charged to both the parent and the child."""
    world = a_world("respawn", fault("kill", 2, "body", 3), fault("kill", 0, "donating"))
    ended_well(world)
    parent, child = world.interruptions.values()
    assert (child.parent, parent.steps_repeated, child.steps_repeated) == (parent.id, 1, 0)


def test_a_commit_of_a_generation_does_not_close_the_fault_that_ends_it() -> None:
    """Method: the end of a step fails on one rank while the others commit. That is one
    interruption, and it ends with the first commit of the next generation.
    """
    world = a_world("in_place", fault("raise", 0, "passed", 1))
    ended_well(world)
    (one,) = world.interruptions.values()
    assert one.resumed_s is not None
    assert one.resumed_s >= min(
        at_s for at_s, generation, _, _ in world.commits if generation > one.generation
    )


def test_a_fault_in_the_vote_that_closes_the_steps_repeats_no_step() -> None:
    world = a_world("in_place", fault("kill", 1, "closing", 1))
    ended_well(world)
    (one,) = world.interruptions.values()
    assert (one.steps_repeated, one.steps_lost) == (0, 0)


def test_a_step_that_all_had_prepared_goes_forward() -> None:
    """Method: rank 1 dies after it has voted. No rank has seen the outcome, and all have sealed
    their state, so nothing is repeated.
    """
    world = a_world("in_place", fault("kill", 1, "voting", 3))
    ended_well(world)
    (one,) = world.interruptions.values()
    assert one.steps_repeated == 0


@pytest.mark.parametrize("mode", ["in_place", "respawn", "reenter"])
@pytest.mark.parametrize("after", [0, 3])
def test_an_interrupted_phase_repeats_no_step(mode: str, after: int) -> None:
    """Method: the phase is an evaluation, before the first step or between two steps. A second
    fault strikes in the step after it, and only that step is repeated.
    """
    world = a_world(
        mode, fault("kill", 1, "phase", 1), fault("kill", 1, "body", after + 1), phase_after=after
    )
    ended_well(world)
    assert [one.mark for _, one, _ in world.strikes.struck] == ["phase", "body"]
    in_phase, in_step = world.interruptions.values()
    assert (in_phase.step, in_phase.steps_repeated, in_phase.steps_lost) == (after, 0, 0)
    assert (in_step.step, in_step.steps_repeated, in_step.steps_lost) == (after, 1, 0)


def test_lost_contact_without_a_death_repeats_the_step() -> None:
    world = a_world("in_place", steps=6)

    def cut() -> None:
        world.collectives.leave(world.nodes[0].processes[1])

    world.timeline.after(0.085, cut)
    ended_well(world, false_alarm=True)
    (one,) = world.interruptions.values()
    assert (one.mechanism, one.rung) == (Mechanism.LOST_CONTACT, Rung.REPEAT)


def test_a_rank_lost_after_the_last_step_starts_from_what_was_left() -> None:
    for mode in MODES:
        world = a_world(
            mode, fault("kill", 1, "epilogue", 1), fault("kill", 2, "epilogue", 1, 0.002)
        )
        ended_well(world)
        assert not world.rolled_back
        assert all(one.steps_lost == 0 for one in world.interruptions.values())


# --- where an interruption counts -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["in_place", "reenter", "sharded"])
def test_an_interruption_counts_after_the_newest_executed_step(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a fault strikes in the body of step 3, and another before that step starts again."""
    asked: list[int] = []

    def noted(*, situation: Situation, **rest: Any) -> RecoveryVerdict:
        asked.append(situation.reached)
        return decide_rung(situation=situation, **rest)

    monkeypatch.setattr(decisions, "decide_rung", noted)
    ended_well(a_world(mode, fault("kill", 1, "body", 3), fault("kill", 0, "joined", 2)))
    assert asked == [2, 2]
