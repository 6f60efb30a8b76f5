"""Identical ranks of a node are simulated as one, with the same result as if each were simulated by
itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from outlast.engine.protocol.outputs import Deliver
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import Leave, Regroup
from outlast.sim.draws import Pool, ProcessDraws, Stream
from outlast.sim.faults.drawn_faults import draw_failures, draw_faults
from outlast.sim.faults.partition_faults import draw_partition_faults
from outlast.sim.options import Options, draw_options
from outlast.sim.shortcuts import identical_ranks
from outlast.sim.shortcuts.identical_ranks import Parted
from outlast.sim.simulated_run import simulate
from outlast.sim.world.processes import SimulatedProcess
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World

SEEDS = 8
BOUND_S = 50_000.0
LARGE = Options(
    ranks=48,
    nodes=7,
    spare_nodes=1,
    steps=100_000,
    latency_s=0.001,
    beat_s=5.0,
    step_s=2.0,
    for_s=600.0,
    failures=1,
)


def drawn(seed: int) -> tuple[Options, tuple[PlannedFault, ...]]:
    """Return the options and the faults of a run of some minutes, with three ranks on each node.

    In two of three runs, the faults are like those of hardware. In the others they are of all other
    kinds, at drawn seconds.
    """
    given = {
        "recovery_mode": ("in_place", "respawn", "reenter", "sharded")[seed % 4],
        "nodes": 4 + seed % 5,
        "spare_nodes": 1,
        "ranks": 3 * (3 + seed % 5),
        "for_s": 120.0,
        "failures": 8,
        "beat_s": 1.0,
        "step_s": 0.5,
    }
    options = draw_options(Stream(seed, "options"), given)
    if seed % 3:
        return options, draw_failures(Stream(seed, "failures"), options)
    faults = draw_faults(Stream(seed, "faults"), options) + draw_partition_faults(
        Stream(seed, "partings"), options
    )
    spread = Stream(seed, "spread")
    return options, tuple(
        replace(one, at_s=spread.between(0.0, 20.0), mark="", nth=1, at_step=None, times=1)
        for one in faults
    )


def run(
    seed: int, options: Options, faults: tuple[PlannedFault, ...], *, every_rank: bool
) -> World:
    """Simulate a run that keeps all lines of its trace."""
    world = World(
        options=options,
        script=script_of(options.recovery_mode),
        faults=faults,
        seed=seed,
        every_rank=every_rank,
    )
    world.trace.newest = deque()
    world.run(bound_s=BOUND_S)
    return world


@pytest.mark.drill
def test_a_stand_in_has_the_same_result_as_its_ranks() -> None:
    """The same runs are simulated in both ways. All lines of the trace are equal to the
    microsecond. The marks, the interruptions and the booked seconds of each rank are equal too.
    """
    saved = 0
    for seed in range(SEEDS):
        options, faults = drawn(seed)
        one, each = (
            run(seed, options, faults, every_rank=every_rank) for every_rank in (False, True)
        )
        assert list(one.trace.newest) == list(each.trace.newest), f"seed {seed}"
        assert (one.marks, one.committed, one.checkers.violations, one.strikes.fired) == (
            each.marks,
            each.committed,
            each.checkers.violations,
            each.strikes.fired,
        )
        assert list(one.interruptions.values()) == list(each.interruptions.values())
        assert one.accounts.worked.seconds() == pytest.approx(
            each.accounts.worked.seconds(), abs=1e-6
        )
        saved += each.timeline.events - one.timeline.events
    assert saved > 0


def test_most_ranks_of_a_large_run_have_a_stand_in() -> None:
    """There are six nodes with eight ranks each. The two nodes that may have to hand over state are
    simulated rank by rank. So 20 processes are simulated instead of 48.
    """
    simulated = simulate(
        seed=1,
        options=LARGE,
        faults=tuple(PlannedFault(str(n), "kill", 20 + n, at_s=40.0 * n) for n in range(1, 13)),
    )
    alone = simulate(seed=1, options=LARGE, faults=simulated.faults, every_rank=True)
    assert (simulated.result, simulated.end, len(simulated.fired)) == ("ok", "stopped", 12)
    assert (simulated.trace_digest, simulated.marks["committed"]) == (
        alone.trace_digest,
        alone.marks["committed"],
    )
    assert simulated.events < 0.7 * alone.events


@pytest.mark.parametrize("kind", ["stop", "deaf", "hang", "raise", "hold", "mute", "repeat"])
def test_a_rank_with_a_fault_that_does_not_end_it_has_no_stand_in(kind: str) -> None:
    faults = (
        PlannedFault("x", kind, 30, at_s=50.0, for_s=4.0),
        PlannedFault("y", "kill", 40, at_s=55.0),
        PlannedFault("z", "exit", 30, mark="voting", nth=80),
    )
    one, each = (run(3, LARGE, faults, every_rank=every_rank) for every_rank in (False, True))
    assert list(one.trace.newest) == list(each.trace.newest)
    assert one.strikes.fired[:2] == ("x", "y")


def test_different_messages_to_the_ranks_of_a_stand_in_are_found() -> None:
    """Ranks of a stand-in that get different messages make the simulator begin again, rank by rank.
    So the run takes the same course.
    """
    plan = Regroup(
        2, 8, 16, "here", 1, "repeat", "in_place", 5, -1, False, "none", "keep", "", 5, None, None
    )
    assert plan.held_by(9) == replace(plan, rank=9)
    with pytest.raises(Parted):
        identical_ranks.check_same_orders(
            _stand_in(8, 9), [Deliver(1, plan), Deliver(2, replace(plan, rank=9, donate=True))]
        )
    with pytest.raises(Parted):
        identical_ranks.check_same_orders(_stand_in(8, 9), [Deliver(1, Leave(1, "why"))])
    identical_ranks.check_same_orders(
        _stand_in(8, 9), [Deliver(1, plan), Deliver(2, replace(plan, rank=9))]
    )


def _stand_in(*ranks: int) -> SimulatedProcess:
    world = World(options=LARGE, script=script_of("in_place"))
    mates = [
        SimulatedProcess(place + 1, rank, "rank", 1, None, None, None, 0.0, world.nodes[1])
        for place, rank in enumerate(ranks)
    ]  # type: ignore[arg-type]
    stand_in = SimulatedProcess(1, ranks[0], "rank", 1, None, None, None, 0.0, world.nodes[1])
    stand_in.mates = mates
    return stand_in


def test_those_who_begin_at_the_same_place_draw_alike_in_whatever_order() -> None:
    pool = Pool(Stream(1, "luck"), steady=False)
    one, other, elsewhere = (
        ProcessDraws(pool, 3, 4),
        ProcessDraws(pool, 3, 4),
        ProcessDraws(pool, 4, 3),
    )
    first = [one.between(1.0, 2.0) for _ in range(3)]
    assert elsewhere.between(1.0, 2.0) not in first
    assert [other.between(1.0, 2.0), other.between(1.0, 2.0)] == first[:2]
    other.aside(0.0, 1.0)
    copy = other.copy()
    assert other.between(1.0, 2.0) == copy.between(1.0, 2.0) == first[2]
    pool.calm(True)
    assert (one.between(1.0, 2.0), one.once(1.0, 2.0), one.aside(1.0, 2.0)) == (1.0, 1.0, 1.0)
