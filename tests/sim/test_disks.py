"""Checkpoints in simulated runs: the step that is restored if no rank holds the state any more,
with all faults of disks.
"""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import UsageError
from outlast.model.fault_plan import PlannedFault, parse, render
from outlast.sim.options import Options
from outlast.sim.simulated_run import SimulatedRun, simulate
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World

RANKS = 3


def disk(kind: str, mark: str = "", nth: int = 1, *, number: int = 0, **more: Any) -> PlannedFault:
    return PlannedFault(f"{kind} {mark} {nth}", kind, None, mark, nth, disk=number, **more)


def all_at(step: int) -> tuple[PlannedFault, ...]:
    """Return faults that kill every rank in this step, by SIGKILL."""
    return tuple(
        PlannedFault(f"kill {rank} at {step}", "kill", rank, at_step=step) for rank in range(RANKS)
    )


def simulate_run(
    *faults: PlannedFault, mode: str = "in_place", seed: int = 1, **more: Any
) -> tuple[SimulatedRun, list[tuple[int, int]]]:
    """Simulate a run. Return it, and for each rollback the step before it and the step after it."""
    options = Options(
        **({"recovery_mode": mode, "ranks": RANKS, "steps": 12, "checkpoint_every": 3} | more)
    )
    simulated = simulate(seed=seed, options=options, faults=faults)
    world = World(options=options, script=script_of(mode), faults=faults, seed=seed)
    world.run(bound_s=1e6)
    assert (simulated.violations, simulated.end) == ((), "ended")
    assert set(simulated.fired) == {fault.id for fault in faults}
    return simulated, world.rolled_back


@pytest.mark.parametrize("mode", ["in_place", "respawn", "reenter"])
def test_a_run_goes_on_from_a_checkpoint_when_all_ranks_are_lost(
    mode: str,
) -> None:
    assert simulate_run(*all_at(9), mode=mode)[1] == [(8, 6)]
    assert simulate_run(*all_at(9), mode=mode, checkpoint_every=0)[1] == [(8, 0)]


def test_sharded_state_comes_from_a_checkpoint_if_its_holders_are_lost() -> None:
    dark = tuple(
        PlannedFault(f"dark {node}", "lose_node", None, at_step=9, node=node, for_s=20.0)
        for node in range(2)
    )
    _, back = simulate_run(
        *(
            PlannedFault(one.id, one.kind, None, "saved", 7, node=one.node, for_s=one.for_s)
            for one in dark
        ),
        mode="sharded",
        nodes=2,
    )
    ((_, step),) = back
    assert step == 6
    dead = all_at(9)
    assert simulate_run(*dead, mode="sharded")[1] == [], "images outlive their processes"


def test_a_disk_that_is_full_at_the_manifest_costs_that_checkpoint_only() -> None:
    """Rank 2 is the last rank that saves step 6. After that the disk is full for a while."""
    full = disk("full_disk", "saved", 6, for_s=0.1)
    simulated, back = simulate_run(full)
    assert (simulated.rungs, back) == ((), [])
    assert simulate_run(full, *all_at(9))[1] == [(8, 3)]


def test_a_disk_that_is_always_full_costs_all_checkpoints_and_no_step() -> None:
    simulated, back = simulate_run(disk("full_disk", "saving", 1, for_s=1e6))
    assert (simulated.rungs, back) == ((), [])


def test_flipped_bits_send_the_run_to_the_checkpoint_before() -> None:
    """Each file is corrupted with a chance of one in two. So with some seeds the newest checkpoint
    is still good, and with others no checkpoint is good.
    """
    went_back = [
        simulate_run(disk("corrupt_disk", "clearing"), *all_at(9), seed=seed)[1][0][1]
        for seed in range(1, 13)
    ]
    assert set(went_back) <= {0, 3, 6}
    assert len(set(went_back)) > 1


def test_a_torn_write_is_found_before_any_rank_reads_it() -> None:
    assert simulate_run(disk("torn_write", "saved", 6, for_s=0.2), *all_at(9))[1] == [(8, 3)]


def test_a_slow_disk_delays_saves_and_blames_no_rank() -> None:
    simulated, back = simulate_run(disk("slow_disk", "saving", 1, for_s=1e6), checkpoint_every=1)
    assert (simulated.rungs, back) == ((), [])


def test_a_regroup_does_not_wait_for_a_slow_disk() -> None:
    """Rank 0 waits in its second save, because the first one is still being written. Then rank 2 is
    killed. Rank 0 is not taken for hung.
    """
    faults = (
        disk("slow_disk", "saving", 1, for_s=1e6),
        PlannedFault("kill", "kill", 2, "saving", 2, after_s=0.03),
    )
    simulated, back = simulate_run(*faults, checkpoint_every=1)
    assert (len(simulated.rungs), back) == (1, [])


def test_one_that_is_killed_in_its_save_costs_that_checkpoint_only() -> None:
    assert simulate_run(PlannedFault("kill", "kill", 1, "saving", 2), *all_at(9))[1] == [(8, 3)]


def test_what_a_killed_rank_had_captured_becomes_a_checkpoint() -> None:
    assert simulate_run(PlannedFault("kill", "kill", 1, "saved", 2), *all_at(9))[1] == [(8, 6)]


def test_a_plan_strikes_disks_and_comes_back_as_it_was() -> None:
    text = (
        'schema = 1\n[[fault]]\nkind = "full_disk"\ntarget = { disk = 1 }\nwhen = { on_mark ='
        ' "saved", nth = 3 }\nfor_s = 0.5\nneeds = "sim"\n'
    )
    (one,) = parse(text, source="plan")
    assert (one.kind, one.disk, one.rank, one.mark, one.for_s) == (
        "full_disk",
        1,
        None,
        "saved",
        0.5,
    )
    assert parse(render((one,)), source="again") == (one,)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("target = { rank = 1 }", "full_disk cannot strike rank"),
        ("target = { disk = -1 }", "disk is -1"),
        ('target = { disk = 0 }\nneeds = "real"', "possible only in the simulated world"),
    ],
)
def test_what_cannot_strike_a_disk_is_named(changed: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(
            f'schema = 1\n[[fault]]\nkind = "full_disk"\n{changed}\nwhen = {{ at_s = 1.0 }}\n',
            source="plan",
        )


def test_a_disk_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="strikes disk 1, but there are 1"):
        simulate(seed=0, options=Options(), faults=(disk("full_disk", "saved", number=1),))
