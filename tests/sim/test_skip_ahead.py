"""Undisturbed stretches of training that are advanced by arithmetic have the same result as their
steps, simulated one by one.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

import pytest

from outlast.errors import UsageError
from outlast.model.fault_plan import PlannedFault
from outlast.sim.draws import Stream
from outlast.sim.faults.drawn_faults import draw_company, draw_faults
from outlast.sim.faults.partition_faults import draw_partition_faults
from outlast.sim.options import Options, draw_options
from outlast.sim.simulated_run import simulate_seed
from outlast.sim.world.script import script_of
from outlast.sim.world.timeline import FIXED, ROUTINE, Timeline
from outlast.sim.world.world import World

SEEDS, MORE = range(6), pytest.mark.drill  # so many by default, and the others in `make drill`
BOUND_S = 50_000.0


def run(
    seed: int, options: Options, faults: tuple[PlannedFault, ...], *, every_step: bool
) -> World:
    """Simulate a run that keeps all lines of its trace."""
    world = World(
        options=options,
        script=script_of(options.recovery_mode),
        faults=faults,
        seed=seed,
        every_step=every_step,
    )
    world.trace.newest = deque()
    world.run(bound_s=BOUND_S)
    return world


def drawn(seed: int) -> tuple[Options, tuple[PlannedFault, ...]]:
    """Return the options and the faults of a run of some hundred steps. Some faults strike at a
    second, the others at a step, a mark or a stage. Most of them strike in a recovery.
    """
    options = draw_options(
        Stream(seed, "options"),
        {
            "steps": 150 + 50 * (seed % 5),
            "recovery_mode": ("in_place", "respawn", "reenter", "sharded")[seed % 4],
        },
    )
    options = replace(options, checkpoint_every=17 * (seed % 3))
    faults = draw_faults(Stream(seed, "faults"), options) + draw_partition_faults(
        Stream(seed, "partings"), options
    )
    faults += draw_company(Stream(seed, "company"), options, faults[0])
    spread = Stream(seed, "spread")
    return options, tuple(
        replace(one, at_s=spread.between(0.0, 8.0), mark="", nth=1, at_step=None, times=1)
        if spread.chance(0.4)
        else one
        for one in faults
    )


def said(world: World) -> list[tuple[float, str]]:
    return [(float(line[:12]), line[12:]) for line in world.trace.newest]


def stretches(world: World) -> int:
    return sum("all ranks have committed step" in what for _, what in said(world))


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(range(SEEDS.stop, 12), marks=MORE)])
def test_a_skipped_stretch_has_the_result_of_its_steps(seeds: range) -> None:
    """The same runs are simulated in both ways. All lines of the trace, the marks and the results
    are equal; a stretch is one line. The sum of thousands of steps differs from their product in
    the last digits, so a time may be rounded differently.
    """
    count = saved = 0
    for seed in seeds:
        options, faults = drawn(seed)
        leapt, walked = (
            run(seed, options, faults, every_step=every_step) for every_step in (False, True)
        )
        assert [what for _, what in said(leapt)] == [what for _, what in said(walked)], (
            f"seed {seed}"
        )
        assert [at_s for at_s, _ in said(leapt)] == pytest.approx(
            [at_s for at_s, _ in said(walked)], abs=2e-6
        ), f"seed {seed}"
        assert (leapt.marks, leapt.committed, leapt.checkers.result, leapt.strikes.fired) == (
            walked.marks,
            walked.committed,
            walked.checkers.result,
            walked.strikes.fired,
        )
        for one, other in zip(
            leapt.interruptions.values(), walked.interruptions.values(), strict=True
        ):
            assert (one.step, one.rung, one.generation, one.mechanism, one.pids) == (
                other.step,
                other.rung,
                other.generation,
                other.mechanism,
                other.pids,
            )
        assert leapt.accounts.worked.seconds() == pytest.approx(
            walked.accounts.worked.seconds(), abs=1e-6
        )
        count += stretches(leapt)
        saved += walked.timeline.events - leapt.timeline.events
    assert count >= len(seeds)
    assert saved > 0


@pytest.mark.parametrize(
    "beat_s",
    [
        pytest.param(0.1, id="more heartbeats than steps", marks=MORE),
        pytest.param(1.0, id="more steps than heartbeats"),
    ],
)
def test_leases_and_times_are_right_after_a_skipped_stretch(beat_s: float) -> None:
    """A node loses power at some moment after the stretch. The time at which it is counted out
    shows when it was heard last. With 40 nodes, some heartbeat is always on its way.
    """
    options = Options(
        ranks=40, nodes=42, spare_nodes=2, steps=250, latency_s=0.003, beat_s=beat_s, drift=0.01
    )
    for seed in range(2):
        faults = (PlannedFault("x", "lose_node", 7, at_s=3.0 + seed / 7, for_s=1e6),)
        leapt, walked = (
            run(seed, options, faults, every_step=every_step) for every_step in (False, True)
        )
        assert stretches(leapt) >= 2
        assert said(leapt) == [(pytest.approx(at_s, abs=2e-6), what) for at_s, what in said(walked)]
        lost = leapt.interruptions[1]
        assert lost.detected_s == pytest.approx(walked.interruptions[1].detected_s, abs=1e-6)
        assert lost.fault_not_before_s == pytest.approx(
            walked.interruptions[1].fault_not_before_s, abs=0.1
        )


def test_an_hour_of_failures_takes_hardly_more_than_its_failures() -> None:
    simulated = simulate_seed(
        seed=1,
        given={
            "recovery_mode": "in_place",
            "ranks": 40,
            "nodes": 12,
            "spare_nodes": 2,
            "spares": 0,
            "step_s": 2.0,
            "for_s": 3600.0,
            "failures": 12,
            "latency_s": 0.001,
            "beat_s": 5.0,
            "phase_after": -1,
            "first_step_s": 0.0,
        },
    )
    assert (simulated.result, simulated.end, len(simulated.fired)) == ("ok", "stopped", 12)
    assert 3600.0 <= simulated.sim_s < 3610.0
    assert simulated.marks["committed"] > 40 * 1000
    assert simulated.events < 40_000


def test_steps_that_a_fault_waits_for_are_simulated() -> None:
    options = Options(ranks=3, nodes=1, steps=500)
    at_step, at_mark = (
        PlannedFault("step", "kill", 1, at_step=200),
        PlannedFault("mark", "kill", 2, mark="voting", nth=350),
    )
    world = run(4, options, (at_step, at_mark), every_step=False)
    assert world.checkers.result == "ok"
    struck = zip(world.strikes.struck, world.interruptions.values(), strict=True)
    steps = {one.id: interruption.step for (_, one, _), interruption in struck}
    assert steps["step"] == 199
    # Visits count, not steps: the vote of the first fault's step may have been repeated.
    assert steps["mark"] in (348, 349)
    assert stretches(world) == 3


def test_lives_of_few_steps_have_no_stretches() -> None:
    assert stretches(run(1, Options(steps=25), (), every_step=False)) == 0


def test_no_leap_passes_what_is_fixed() -> None:
    timeline, order = Timeline(began_s=0.0), []
    timeline.after(1.0, lambda: order.append("beat"), sort=ROUTINE)
    gone = timeline.after(2.0, lambda: order.append("cancelled"), sort=FIXED)
    timeline.after(5.0, lambda: order.append("fault"), sort=FIXED)
    timeline.cancel(gone, sort=FIXED)
    assert (timeline.next_fixed_s, timeline.busy) == (5.0, 0)
    timeline.leap(4.0)
    assert timeline.step()
    assert timeline.now_s == 4.0
    assert not timeline.step(until_s=4.5)
    assert timeline.step()
    assert not timeline.step()
    assert order == ["beat", "fault"]
    assert timeline.next_fixed_s in (None, 5.0)
    assert math.isclose(timeline.now_s, 5.0)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"failures": 3}, "no time over which"),
        ({"failures": -1}, "failures is -1"),
        ({"for_s": -1.0}, "no time may be negative"),
        ({"step_s": 0.0}, "step_s and silence_s have to be above 0"),
    ],
)
def test_an_hour_that_cannot_be_is_refused(given: dict[str, float], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        simulate_seed(seed=1, given=given)


@pytest.mark.parametrize(("seed", "mechanism"), [(2, "lost_contact"), (1, "lost_node")])
def test_a_stop_before_a_lost_node_is_counted_out_blames_no_rank(seed: int, mechanism: str) -> None:
    """The first rank that reports an error is collateral. The loss of its node is known only when
    the lease is over, and the run ends before that. The node's machine may live on, and report
    earlier that its launcher has ended.
    """
    faults = (PlannedFault("x", "lose_node", 5, at_s=29.5, for_s=300.0),)
    world = run(
        seed,
        Options(
            ranks=10,
            nodes=12,
            spare_nodes=2,
            steps=1000,
            latency_s=0.001,
            beat_s=5.0,
            step_s=2.0,
            for_s=40.0,
        ),
        faults,
        every_step=False,
    )
    assert (world.checkers.violations, world.end and world.end.state) == ([], "stopped")
    assert [one.mechanism.value for one in world.interruptions.values()] == [mechanism]
