"""`--keep disk:auto`: how often a checkpoint pays, and that a checkpoint is requested when it is
due.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.coordinator.timed_saves import DECIDED, TimedSaves
from outlast.engine.save_interval import ExpectedFailures, SaveInterval, decide_interval
from outlast.model import limits
from outlast.model.fault_plan import PlannedFault
from outlast.model.intervals import best_s
from outlast.model.messages import Checkpointed
from outlast.sim.options import Options
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World
from tests.engine.test_policy_actions import events, ran

LLAMA = ExpectedFailures(4.5e7, "the rate of Llama 3's GPUs, for 4 GPUs")
SLOW = Options(ranks=2, steps=28, latency_s=0.001, step_s=10.0)  # 280 s
SECONDS = st.floats(0.0, 1e6)


def decided(
    pause_s: float = 0.05, write_s: float = 1.0, needed: int = 0, watched_s: float = 3600.0
) -> SaveInterval:
    return decide_interval(
        pause_s=pause_s, write_s=write_s, needed_count=needed, watched_s=watched_s, expected=LLAMA
    )


def saving(options: Options = SLOW, *faults: PlannedFault) -> World:
    """Return the world of a run that was started with `--keep disk:auto`."""
    none = PlannedFault("none", "kill", 0, "voting", 999)
    world = World(
        options=options,
        script=script_of(options.recovery_mode),
        faults=faults or (none,),
        steady=True,
    )
    coordinator = world.host.coordinator
    coordinator.requests.timed_saves = TimedSaves(coordinator.run, LLAMA)
    return world


def test_the_interval_is_the_one_that_loses_the_least_time() -> None:
    """Before the first loss the expected failure rate counts, and after it the run's own rate."""
    first, second = decided(), decided(needed=3)
    assert first.interval_s == pytest.approx(best_s(0.05, 4.5e7))
    assert first.reason == (
        "a checkpoint each 35 m 21 s: it pauses training for 50 ms, it is complete 1.00 s after"
        " it was asked for, and one is expected to be needed once in 12,500 h 00 m (the rate of"
        " Llama 3's GPUs, for 4 GPUs), and none was so far"
    )
    assert second.interval_s == pytest.approx(best_s(0.05, 1200.0))
    assert second.reason.endswith("and one was needed 3 times in 1 h 00 m")


@given(pause_s=SECONDS, write_s=SECONDS, needed=st.integers(0, 1000), watched_s=st.floats(1, 1e9))
def test_an_interval_keeps_its_bounds(
    pause_s: float, write_s: float, needed: int, watched_s: float
) -> None:
    """It is never shorter than two writes, and more losses never make it longer."""
    one = decided(pause_s, write_s, needed, watched_s).interval_s
    least_s = min(max(limits.SAVE_LEAST_S, 2 * write_s), limits.SAVE_MOST_S)
    assert least_s <= one <= limits.SAVE_MOST_S
    if needed:
        assert decided(pause_s, write_s, needed + 1, watched_s).interval_s <= one


def test_a_run_that_is_not_expected_to_fail_saves_once_a_day() -> None:
    never = ExpectedFailures(math.inf, "a file")
    one = decide_interval(pause_s=1.0, write_s=1.0, needed_count=0, watched_s=60.0, expected=never)
    assert one.interval_s == limits.SAVE_MOST_S
    assert "needed never (a file)" in one.reason


def test_the_first_checkpoint_comes_soon_and_others_follow() -> None:
    """The ledger records one decision, because the interval does not change after that."""
    world = saving()
    ran(world)
    steps = [int(str(one["step"])) for one in events(world, "checkpoint")]
    assert len(steps) > 5
    assert steps[0] * SLOW.step_s >= limits.SAVE_FIRST_S
    (recorded,) = events(world, DECIDED)
    assert recorded["interval_s"] == pytest.approx(2 * SLOW.step_s, abs=0.1)
    assert str(recorded["why"]).startswith("a checkpoint each 20.0 s: it pauses training for 0 ms")


def test_a_checkpoint_that_a_regroup_interrupted_is_requested_again() -> None:
    """Method: the rank that was asked is killed while it votes for the step that was to be
    saved.
    """
    undisturbed = saving()
    ran(undisturbed)
    first = int(str(events(undisturbed, "checkpoint")[0]["step"]))
    world = saving(SLOW, PlannedFault("first", "kill", 0, "voting", first))
    ran(world)
    assert world.interruptions
    saved = int(str(events(world, "checkpoint")[0]["step"]))
    assert first <= saved <= first + 2


@pytest.mark.parametrize("both", [True, False])
def test_only_a_loss_that_needed_a_checkpoint_counts(both: bool) -> None:
    """Method: all ranks die, or one rank dies whose state a survivor has."""
    faults = [PlannedFault(f"of {rank}", "kill", rank, "voting", 15) for rank in range(1 + both)]
    world = saving(SLOW, *faults)
    ran(world)
    assert world.interruptions
    timed = world.host.coordinator.requests.timed_saves
    assert timed is not None
    timed.on_shard(Checkpointed(1, 1, 0, 99, "f", 1, "00", "", paused_s=1.0))
    why = timed.on_saved(1e3, step=99, error="")
    assert ("one was needed 1 time in" in str(why)) is both


def test_the_longest_pause_of_a_rank_decides() -> None:
    """A save that fails later makes the run try again soon."""
    world = saving()
    timed = world.host.coordinator.requests.timed_saves
    assert timed is not None
    ran(world)
    for rank, paused_s in enumerate((0.2, 0.9, 0.1)):
        timed.on_shard(Checkpointed(1, 1, rank, 99, "f", 1, "00", "", paused_s=paused_s))
    recorded, said = (
        timed.on_saved(1e3, step=99, error=""),
        timed.on_saved(1e3, step=100, error="no"),
    )
    assert "it pauses training for 900 ms" in str(recorded)
    assert said == []


def test_a_checkpoint_for_somebody_else_does_not_say_how_long_one_takes() -> None:
    """An example is the checkpoint of a stop: it is not known when it was requested."""
    world = saving()
    timed = world.host.coordinator.requests.timed_saves
    assert timed is not None
    ran(world)
    timed.on_shard(Checkpointed(1, 1, 0, 99, "f", 1, "00", "", paused_s=0.9))
    (recorded, *_) = timed.on_saved(1e3, step=99, error="")
    assert "it is complete 9.97 s after it was asked for" in str(recorded)
