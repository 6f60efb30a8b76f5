"""The protocol in a virtual world: what must never happen, and what must happen in the end, whatever is struck and when.

The world itself checks, in every run (`_world.py`, `_script.py`): a rank has one living process and is given away only
after the old one is dead; nobody commits in a generation once a newer one has; all that join a generation join at one
step, with the state of that step; what a plan reads (slot, transfer image) is there; a run ends once, with nobody alive.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outlast.engine import hang
from outlast.model import limits
from outlast.model.terms import Mechanism, Rung
from tests.engine import _script
from tests.engine._world import KINDS, MARKS, Fault, World

WAYS = ("in_place", "respawn", "reenter", "sharded")
ONCE = ("boot", "join", "setup", "restoring", "still", "settled", "donating", "closing", "finishing", "epilogue")
PROTOCOL = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
BOUND_S = 100.0
SILENCE_S = 5.0


@pytest.fixture(autouse=True)
def _short_deadlines() -> Iterator[None]:
    """Ten minutes of waiting are thousands of ticks: the same deadlines, in the same order, a hundredth as long."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"FIRST_STEPS_DEADLINE_S": 2.0, "BOOT_DEADLINE_S": 8.0, "REGROUP_DEADLINE_S": 4.0, "STEP_CEILING_S": 8.0}.items():
            patch.setattr(limits, name, value)
        patch.setattr(hang, "_FIXED", {phase: min(value, 8.0) for phase, value in hang._FIXED.items()})
        yield


def a_world(way: str, *faults: Fault, spares: int = 0, spare_kind: str = "hot", seed: int = 0, **more: int) -> World:
    return World(
        script=getattr(_script, way), sharded=way == "sharded", faults=faults, spares=spares, spare_kind=spare_kind, seed=seed,
        hang_after_s=SILENCE_S if way == "plain" else None, **more,  # a plain script's hangs are found by silence, and only if that is asked for
    )  # fmt: skip


def strikes(kinds: tuple[str, ...] = KINDS) -> st.SearchStrategy[Fault]:
    return st.builds(
        Fault, st.sampled_from(kinds), st.sampled_from((0, 1, 2, -1)), st.sampled_from(MARKS), st.integers(1, 5), st.sampled_from((0.0, 0.002, 0.02))
    )


def ended_well(world: World) -> None:
    end = world.run(bound_s=BOUND_S)
    assert (end.state, end.exit_code) == ("ended", 0), f"{end}, committed {world.committed}, struck {world.struck}"
    assert world.committed == (world.until if world.trained_generation else 0), f"committed {world.committed}, struck {world.struck}"
    assert all(one.resumed_s is not None for one in world.interruptions.values()), list(world.interruptions.values())


# --- safety and liveness under any faults --------------------------------------------------------------


@pytest.mark.parametrize("way", [*WAYS, "plain"])
def test_undisturbed_every_step_is_committed_once_by_every_rank(way: str) -> None:
    world = a_world(way, spares=1)
    ended_well(world)
    assert not world.interruptions
    assert way == "plain" or sorted((rank, step) for _, _, rank, step in world.commits) == [(rank, step) for rank in range(3) for step in range(1, 7)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["kill", "stop", "raise", "hang"])
def test_one_fault_at_any_place_is_one_interruption_and_costs_no_step(way: str, kind: str) -> None:
    """Every mark, early and late, both a rank that donates and one that does not; with and without a spare."""
    for number, mark in enumerate(MARKS):
        for visit in (1,) if mark in ONCE else (1, 3):
            fault = Fault(kind, number % 2, mark, visit)
            world = a_world(way, fault, spares=number // 2 % 2)
            ended_well(world)
            assert not world.rolled_back, f"{fault}: {world.rolled_back}"
            assert len(world.interruptions) == (1 if world.struck and (kind != "raise" or world.interruptions) else 0), f"{fault}: {world.interruptions}"


@PROTOCOL
@given(way=st.sampled_from(WAYS), faults=st.lists(strikes(), min_size=2, max_size=2), spares=st.integers(0, 2), seed=st.integers(0, 10_000))
@example(way="in_place", faults=[Fault("kill", 0, "body", 3), Fault("kill", 0, "boot", 2)], spares=0, seed=0)  # dies again before it attaches
@example(way="sharded", faults=[Fault("kill", 0, "body", 3), Fault("kill", 1, "setup", 2)], spares=0, seed=0)  # nobody has attached yet
@example(way="respawn", faults=[Fault("kill", 1, "body", 3), Fault("kill", 0, "donating", 1)], spares=0, seed=0)  # the donor dies
@example(way="respawn", faults=[Fault("kill", 1, "body", 3), Fault("kill", 2, "still", 1, 0.002)], spares=0, seed=0)  # a bystander dies
@example(way="reenter", faults=[Fault("kill", 1, "body", 3), Fault("kill", 0, "donating", 1)], spares=0, seed=0)
@example(way="in_place", faults=[Fault("kill", 0, "body", 3), Fault("store", 0, "grouping", 1)], spares=1, seed=0)
@example(way="in_place", faults=[Fault("kill", 0, "body", 3), Fault("kill", 1, "body", 3)], spares=1, seed=0)  # two faults, one spare
def test_after_two_faults_training_goes_on_and_no_step_is_lost(way: str, faults: list[Fault], spares: int, seed: int) -> None:
    """Three ranks, two faults: under replicated state somebody holds it all; under sharded state all owners have sealed it."""
    world = a_world(way, *faults, spares=spares, seed=seed)
    ended_well(world)
    assert not world.rolled_back, f"{world.rolled_back}, struck {world.struck}"


@settings(PROTOCOL, max_examples=100)
@given(
    way=st.sampled_from((*WAYS, "plain")), faults=st.lists(strikes(), min_size=3, max_size=6), spares=st.integers(0, 2),
    kind=st.sampled_from(("hot", "warm")), seed=st.integers(0, 10_000),
)  # fmt: skip
@example(way="plain", faults=[Fault("kill", 0, "boot"), Fault("kill", 0, "body", 2), Fault("hang", 0, "body", 3)], spares=0, kind="hot", seed=0)
def test_after_many_faults_training_goes_on_or_ends_with_a_verdict(way: str, faults: list[Fault], spares: int, kind: str, seed: int) -> None:
    world = a_world(way, *faults, spares=spares, spare_kind=kind, seed=seed)
    end = world.run(bound_s=BOUND_S * 2)
    if end.state == "ended":
        assert end.exit_code == 0
        assert world.committed == world.until or way == "plain"
    else:
        assert (end.exit_code, end.state) == (1, "failed")
        assert any(words in end.reason for words in ("crash loop", "whole restarts", "budget")), end


@settings(PROTOCOL, max_examples=60)
@given(faults=st.lists(strikes(("kill", "stop", "exit")), min_size=1, max_size=3), seed=st.integers(1, 10_000))
def test_under_replicated_state_every_step_goes_forward_or_is_repeated_as_a_whole(faults: list[Fault], seed: int) -> None:
    """A step that anybody committed is committed by all others too, in that generation or by going forward or by healing: none is committed twice."""
    world = a_world("in_place", *faults, spares=1, seed=seed)
    world.run(bound_s=BOUND_S)
    if not world.rolled_back:
        for rank in range(world.ranks):
            steps = [step for _, _, who, step in world.commits if who == rank]
            assert steps == sorted(set(steps)), f"rank {rank} committed {steps}"


# --- what ends a run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*WAYS, "plain"])
@pytest.mark.parametrize("kind", ["kill", "raise", "exit"])
def test_a_fault_that_always_comes_ends_the_run(way: str, kind: str) -> None:
    world = a_world(way, Fault(kind, 1, "body", 3, times=1000), spares=1)
    end = world.run(bound_s=BOUND_S)
    assert (end.state, end.exit_code) == ("failed", 1) or (way == "plain" and kind == "raise")
    if kind == "raise" and way != "plain":
        assert end.traceback == "traceback"
        assert "boom" in end.reason


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mark", ["setup", "body"])
def test_refused_input_ends_the_run_and_is_no_interruption(way: str, mark: str) -> None:
    """What raised leaves the script too, before it can be killed."""
    world = a_world(way, *(Fault("refuse", rank, mark) for rank in range(3)), spares=1)
    end = world.run(bound_s=BOUND_S)
    assert (end.state, end.exit_code, end.reason) == ("failed", 1, "refused")
    assert not world.interruptions


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_every_few_steps_ends_no_run(way: str) -> None:
    """Budgets refill with progress: thirty faults, each twelve steps after the last."""
    faults = tuple(Fault("kill", number % 3, "body", 1 + 13 * number if way == "in_place" else 1 + 12 * number) for number in range(1, 20))
    world = a_world(way, *faults, spares=1, until=150)
    ended_well(world)
    assert len(world.interruptions) >= 10


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mark", ["joined", "body", "prepared", "still", "settled", "closing"])
def test_a_stop_that_is_asked_for_at_any_place_ends_the_run(way: str, mark: str) -> None:
    """Also while a fault is being dealt with."""
    world = a_world(way, Fault("kill", 0, "body", 3), until=40)

    def ask() -> None:
        world.led(lambda: world.coordinator.ask_stop(now_s=world.now_s, reason="somebody asked", exit_code=130))

    world.after({"joined": 0.01, "body": 0.08, "prepared": 0.13, "still": 0.14, "settled": 0.145, "closing": 0.3}[mark], ask)
    end = world.run(bound_s=BOUND_S)
    assert (end.state, end.exit_code, end.reason) == ("stopped", 130, "somebody asked")


def test_all_that_stand_at_one_place_for_ever_are_moved_on() -> None:
    """Nobody can be told from the others, and one has to go."""
    faults = [Fault("hang", rank, "voting", 5, 0.0) for rank in range(3)]
    world = a_world("in_place", *faults, until=8)
    end = world.run(bound_s=BOUND_S)
    assert world.interruptions[1].mechanism is Mechanism.HANG
    assert end.state in ("ended", "failed")


# --- how interruptions are booked ------------------------------------------------------------------------


def test_one_event_is_booked_once_whoever_speaks_first() -> None:
    for seed in range(40):
        world = a_world("in_place", Fault("kill", 1, "body", 20, 0.012), spares=1, until=24, seed=seed)
        ended_well(world)
        (one,) = world.interruptions.values()
        assert (one.mechanism, one.ranks, one.rung) == (Mechanism.SIGNAL, (1,), Rung.SPARE)
        assert one.fault_s == world.struck[0][0]
        assert one.steps_repeated == 1
        assert one.steps_lost == 0


def test_two_ranks_that_die_at_once_are_one_interruption() -> None:
    world = a_world("in_place", Fault("kill", 0, "body", 3), Fault("kill", 1, "body", 3), spares=2)
    ended_well(world)
    (one,) = world.interruptions.values()
    assert one.ranks == (0, 1)


def test_a_fault_before_the_first_commit_is_a_child_and_resumes_with_its_parent() -> None:
    world = a_world("in_place", Fault("kill", 0, "body", 3), Fault("kill", 1, "grouping", 1))
    ended_well(world)
    parent, child = world.interruptions.values()
    assert (parent.parent, child.parent) == (None, parent.id)
    assert parent.resumed_s == child.resumed_s
    assert parent.detected_s < child.detected_s
    assert parent.steps_repeated + child.steps_repeated == 1, "the step was begun once before the fault, and once after both"


def test_a_commit_of_a_generation_does_not_close_the_fault_that_ends_it() -> None:
    """The tail of a step fails on one rank while the others commit: one interruption, resumed by the next generation's first commit."""
    world = a_world("in_place", Fault("raise", 0, "passed", 1))
    ended_well(world)
    (one,) = world.interruptions.values()
    assert one.resumed_s is not None
    assert one.resumed_s >= min(at_s for at_s, generation, _, _ in world.commits if generation > one.generation)


def test_a_step_that_all_had_prepared_goes_forward() -> None:
    """Rank 1 dies with its vote cast: nobody has seen the outcome, all have sealed, so nothing is repeated."""
    world = a_world("in_place", Fault("kill", 1, "voting", 3))
    ended_well(world)
    (one,) = world.interruptions.values()
    assert one.steps_repeated == 0


@pytest.mark.parametrize("way", ["in_place", "respawn", "reenter"])
@pytest.mark.parametrize("after", [0, 3])
def test_an_interrupted_phase_repeats_no_step(way: str, after: int) -> None:
    """An evaluation before the first step, or between two; in the second case a fault in the step after it too, which is repeated."""
    world = a_world(way, Fault("kill", 1, "phase", 1), Fault("kill", 1, "body", after + 1), phase_after=after)
    ended_well(world)
    assert [fault.mark for _, fault, _ in world.struck] == ["phase", "body"]
    in_phase, in_step = world.interruptions.values()
    assert (in_phase.step, in_phase.steps_repeated, in_phase.steps_lost) == (after, 0, 0)
    assert (in_step.step, in_step.steps_repeated, in_step.steps_lost) == (after, 1, 0)


def test_lost_contact_with_nobody_dead_repeats_the_step() -> None:
    world = a_world("in_place", until=6)

    def cut() -> None:
        world.leave_group(world.processes[1])

    world.after(0.085, cut)
    ended_well(world)
    (one,) = world.interruptions.values()
    assert (one.mechanism, one.rung) == (Mechanism.LOST_CONTACT, Rung.REPEAT)


def test_a_last_rank_that_is_lost_after_the_last_step_starts_from_what_was_left_for_it() -> None:
    for way in WAYS:
        world = a_world(way, Fault("kill", 1, "epilogue", 1), Fault("kill", 2, "epilogue", 1, 0.002))
        ended_well(world)
        assert not world.rolled_back
        assert all(one.steps_lost == 0 for one in world.interruptions.values())
