"""Faults of the recovery itself, one in each run. Each test asserts that the faults struck, that a
regroup ran, and that a later step was committed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.model.fault_plan import PlannedFault
from outlast.sim.options import Options
from outlast.sim.world.script import script_of
from outlast.sim.world.world import BEGAN_S, World

MODES = ("in_place", "respawn", "reenter", "sharded")
FOUR = Options(ranks=4, steps=60, latency_s=0.01)
NODES = Options(ranks=4, nodes=3, spare_nodes=1, steps=200, latency_s=0.003)
KILL = PlannedFault("kill", "kill", 1, "body", 3)


def simulated_with(options: Options, *faults: PlannedFault, seed: int = 1) -> World:
    """Return the world after a run that kept every rule. All `faults` struck, there were later
    generations, and the last one committed steps.
    """
    world = World(
        options=options, script=script_of(options.recovery_mode), faults=faults, seed=seed
    )
    world.run(bound_s=20_000.0)
    assert world.checkers.violations == []
    assert set(world.strikes.fired) == {fault.id for fault in faults}
    assert world.end is not None
    assert (world.end.state, world.committed) == ("ended", options.steps)
    generation = world.coordinator.generation
    assert generation > 1
    last_s = max(at_s for at_s, _, _ in world.strikes.struck)
    assert any(commit[0] > last_s and commit[1] == generation for commit in world.commits)
    return world


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_wakes_up_two_generations_late(mode: str) -> None:
    """Its node stands still until it is counted out, and until a rank on another node is killed.

    The worker contributes to no step, and is ended.
    """
    frozen = PlannedFault("frozen", "freeze", None, node=1, at_s=1.0, for_s=12.0)
    second = PlannedFault("second", "kill", 0, at_s=9.5)
    world = simulated_with(replace(NODES, recovery_mode=mode, steps=400), frozen, second)
    wakes_s = BEGAN_S + 13.0
    late = [
        p for p in world.nodes[1].processes.values() if p.rank >= 0 and p.machine.generation == 1
    ]
    assert late
    assert all(not p.alive and world.nodes[1].world_s(p.ended_s) > wakes_s - 0.1 for p in late)
    assert max(generation for at_s, generation, _, _ in world.commits if at_s < wakes_s) >= 3
    assert not any(generation == 1 for at_s, generation, _, _ in world.commits if at_s >= wakes_s)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_committed_without_a_coordinator_ends_the_interruption(mode: str) -> None:
    """The coordinator dies once all ranks have their plans, and another one comes two seconds
    later.

    The interruption costs only the time until that step.
    """
    stage, nth = ("starting", 2) if mode == "respawn" else ("moving", 1)
    head = PlannedFault(
        "head", "lose_coordinator", None, mark=stage, nth=nth, after_s=0.1, for_s=2.0
    )
    world = simulated_with(replace(NODES, recovery_mode=mode), KILL, head)
    [one] = world.interruptions.values()
    assert one.resumed_s is not None
    assert one.resumed_s - one.detected_s < 1.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", ["gathering", "leaving", "clearing"])
def test_a_lease_expires_during_a_regroup(mode: str, stage: str) -> None:
    if stage == "clearing" and mode != "respawn":
        stage = "moving"
    cut = PlannedFault("cut", "cut", None, node=2, mark=stage, for_s=20.0)
    world = simulated_with(replace(NODES, recovery_mode=mode, max_restarts=5), KILL, cut)
    assert "cut" in world.strikes.in_recovery
    assert world.host.has_noted("node_lost"), "node 2 was not counted out"


@pytest.mark.parametrize("mode", ["in_place", "reenter", "sharded"])
@pytest.mark.parametrize(("mark", "nth"), [("grouping", 1), ("restoring", 2), ("joined", 2)])
@pytest.mark.parametrize("kind", ["hot", "warm"])
def test_a_spare_dies_while_it_takes_over(mode: str, mark: str, nth: int, kind: str) -> None:
    """The second process that holds rank 1 is a spare. It is killed before it has committed any
    step.
    """
    if mode != "in_place" and mark == "grouping":
        pytest.skip("it builds its group before the function begins")
    options = replace(FOUR, recovery_mode=mode, spares=1, spare_kind=kind)
    kill = replace(KILL, mark="body", nth=30)  # the spare is parked by then
    world = simulated_with(options, kill, PlannedFault("spare", "kill", 1, mark, nth))
    second = next(
        p
        for node in world.nodes
        for p in node.processes.values()
        if p.worker == world.strikes.struck[1][2]
    )
    assert (second.kind, second.alive, second.rank) == (kind, False, 1)
    assert len(world.interruptions) == 2


@pytest.mark.parametrize("mode", MODES)
def test_late_doubled_and_reordered_messages_do_no_harm(mode: str) -> None:
    """Messages of an older generation, doubled messages and reordered messages change nothing.

    Method: two ranks are killed, one after the other. Each message of a survivor is delivered a
    second time, up to half a second later, over a link on which messages overtake each other.
    """
    echoes = tuple(
        PlannedFault(f"echo{rank}", "repeat", rank, "boot", for_s=1e3) for rank in (0, 2, 3)
    )
    held = PlannedFault("held", "mute", 2, "still", 1, for_s=0.3)
    second = PlannedFault("second", "kill", 3, at_s=1.2)
    simulated_with(
        replace(FOUR, recovery_mode=mode, latency_s=0.03, max_restarts=5),
        KILL,
        *echoes,
        held,
        second,
    )


@pytest.mark.parametrize("mode", MODES)
def test_all_holders_of_a_snapshot_are_lost(mode: str) -> None:
    """For replicated state, every process is killed at one moment.

    For sharded state, the only node with the images of two ranks loses power. The lost steps are
    done again.
    """
    if mode == "sharded":
        world = simulated_with(
            replace(NODES, recovery_mode=mode),
            PlannedFault("power", "lose_node", 1, at_s=1.0, for_s=1e4),
        )
        assert world.rolled_back
        return
    all_at_once = tuple(PlannedFault(f"kill{rank}", "kill", rank, at_s=1.5) for rank in range(4))
    world = simulated_with(replace(FOUR, recovery_mode=mode, steps=200), *all_at_once)
    assert [one.rung.value for one in world.interruptions.values() if one.rung is not None] == [
        "restart"
    ]
    assert world.rolled_back
    assert world.rolled_back[0][1] == 0
