"""Partitions between nodes that the coordinator still reaches, connections that are reset, and
agents and nodes that stand still.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.fault_plan import PlannedFault
from outlast.sim.options import Options
from outlast.sim.simulated_run import simulate
from outlast.sim.world.paths import RTO_MAX_S
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World

MODES = ("in_place", "respawn", "reenter", "sharded")
THREE = Options(ranks=6, nodes=3, steps=40, latency_s=0.003, max_restarts=0)
SPARE = Options(ranks=4, nodes=3, spare_nodes=1, steps=200, latency_s=0.003)
KILL = PlannedFault("kill", "kill", 1, "body", 8)


def part(for_s: float, **when: object) -> PlannedFault:
    return PlannedFault("part", "part", None, node=0, peer=1, for_s=for_s, **when)


def world_after(options: Options, *faults: PlannedFault, seed: int = 1) -> World:
    world = World(
        options=options, script=script_of(options.recovery_mode), faults=faults, seed=seed
    )
    world.run(bound_s=20_000.0)
    return world


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("for_s", [0.5, 5.0, 300.0])
def test_a_partition_in_training_costs_time_and_nothing_else(mode: str, for_s: float) -> None:
    """TCP sends lost data again. It waits as long as the partition lasted, and two minutes at most.

    No rank is blamed for waiting. The run has no budget of restarts, so nothing can be taken from
    it.
    """
    whole = simulate(seed=1, options=replace(THREE, recovery_mode=mode), faults=())
    simulated = simulate(
        seed=1, options=replace(THREE, recovery_mode=mode), faults=(part(for_s, at_step=9),)
    )
    assert (simulated.result, simulated.end, simulated.fired, simulated.rungs) == (
        "ok",
        "ended",
        ("part",),
        (),
    )
    assert for_s / 2 < simulated.sim_s - whole.sim_s < for_s + min(for_s, RTO_MAX_S) + 1.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", ["gathering", "leaving", "moving"])
def test_a_group_is_tried_again_until_the_link_is_there(mode: str, stage: str) -> None:
    """A rank is killed, and from then on two nodes cannot reach each other for 100 s. One
    replacement is counted, and one process is blamed. Once the link is back, training goes on in a
    bounded time: the longest pause, the time in which a group fails, and the time in which it is
    formed.
    """
    world = world_after(
        replace(THREE, recovery_mode=mode, max_restarts=1),
        KILL,
        part(100.0, mark="clearing" if (mode, stage) == ("respawn", "moving") else stage),
    )
    assert (world.checkers.result, world.strikes.fired) == ("ok", ("kill", "part"))
    assert world.end is not None
    assert world.end.state == "ended"
    assert {pid for one in world.interruptions.values() for pid in one.pids} == set(
        world.strikes.pids()
    )
    struck_s = next(at_s for at_s, fault, _ in world.strikes.struck if fault.id == "part")
    resumed_s = max(one.resumed_s or math.inf for one in world.interruptions.values())
    assert (
        struck_s + 100.0
        < resumed_s
        < struck_s + 100.0 + limits.LINK_RETRY_MAX_S + 2 * limits.STORE_DEADLINE_S + 1.0
    )
    assert len(world.interruptions) <= 2


@pytest.mark.parametrize("mode", MODES)
def test_a_link_that_stays_cut_ends_the_run_with_both_nodes_named(mode: str) -> None:
    world = world_after(
        replace(THREE, recovery_mode=mode, max_restarts=3), KILL, part(1e5, mark="leaving")
    )
    assert world.checkers.result == "ok"
    assert world.end is not None
    assert (world.end.state, world.end.exit_code) == ("failed", 1)
    assert "nodes node-0 and node-1 cannot reach each other, for 1800 s" in world.end.reason
    assert (
        world.age_s < limits.NODE_WAIT_S + limits.LINK_RETRY_MAX_S + limits.STORE_DEADLINE_S + 60.0
    )


def test_a_partition_that_is_longer_than_tcp_waits_is_blamed_on_no_rank() -> None:
    """Connections are given up after a quarter of an hour. Then a group is tried until the link is
    there.
    """
    world = world_after(THREE, part(1_500.0, at_step=9))
    assert world.checkers.result == "ok"
    assert world.end is not None
    assert world.end.state == "ended"
    assert [one.pids for one in world.interruptions.values()] == [()] * len(world.interruptions)
    assert world.interruptions


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_connection_costs_a_step_at_most_and_blames_no_rank(mode: str) -> None:
    world = world_after(
        replace(THREE, recovery_mode=mode, max_restarts=1),
        PlannedFault("snap", "snap", None, node=0, peer=2, at_step=9),
    )
    assert world.checkers.result == "ok"
    assert world.end is not None
    assert world.end.state == "ended"
    assert [(one.pids, one.ranks) for one in world.interruptions.values()] == [((), ())]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("agent", [False, True], ids=["all of a node", "its agent"])
def test_a_node_that_stands_still_for_less_than_a_lease_interrupts_no_rank(
    mode: str, agent: bool
) -> None:
    fault = PlannedFault(
        "still", "stop" if agent else "freeze", None, node=1, agent=agent, at_step=9, for_s=4.0
    )
    simulated = simulate(seed=1, options=replace(THREE, recovery_mode=mode), faults=(fault,))
    assert (simulated.result, simulated.end, simulated.fired, simulated.rungs) == (
        "ok",
        "ended",
        ("still",),
        (),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("agent", [False, True], ids=["all of a node", "its agent"])
def test_a_node_that_stands_still_for_longer_is_replaced(mode: str, agent: bool) -> None:
    """The node wakes up while the run goes on without it. It checks its lease first, ends its
    processes, and comes back as a new node.
    """
    fault = PlannedFault(
        "still", "stop" if agent else "freeze", None, node=1, agent=agent, at_s=1.5, for_s=9.0
    )
    world = world_after(replace(SPARE, recovery_mode=mode, max_restarts=None), fault)
    assert world.checkers.result == "ok"
    assert world.end is not None
    assert world.end.state == "ended"
    assert [one.mechanism.value for one in world.interruptions.values()] == ["lost_node"]
    assert any(commit[1] > 1 for commit in world.commits)


@pytest.mark.parametrize("mode", MODES)
def test_workers_of_a_stopped_agent_end_once_the_lease_is_over(
    mode: str,
) -> None:
    """All ranks live on one node, so no other node ends their group. The other node has their ranks
    by then.
    """
    options = Options(
        recovery_mode=mode, ranks=3, nodes=2, spare_nodes=1, steps=400, latency_s=0.003
    )
    homes = [
        node for node in (0, 1) if world_after(replace(options, steps=3)).nodes[node].processes
    ]
    assert len(homes) == 1
    world = world_after(
        options,
        PlannedFault("still", "stop", None, node=homes[0], agent=True, at_s=1.0, for_s=30.0),
    )
    assert world.checkers.result == "ok"
    assert world.end is not None
    assert world.end.state == "ended"
    newest = {
        generation: max(at_s for at_s, one, _, _ in world.commits if one == generation)
        for _, generation, _, _ in world.commits
    }
    oldest = {
        generation: min(at_s for at_s, one, _, _ in world.commits if one == generation)
        for _, generation, _, _ in world.commits
    }
    assert len(newest) == 2
    assert newest[1] < oldest[2]
    assert newest[1] > 100.0 + 5.0, "they go on as long as the lease runs"


@pytest.mark.parametrize(
    ("fault", "nodes", "said"),
    [
        (part(1.0, at_s=1.0), 1, "strikes node 1, but there are 1"),
        (
            PlannedFault("x", "part", None, node=0, peer=3, at_s=1.0),
            3,
            "strikes node 3, but there are 3",
        ),
        (
            PlannedFault("x", "stop", None, node=1, agent=True, at_s=1.0),
            1,
            "strikes node 1, but there are 1",
        ),
        (PlannedFault("x", "stop", None, node=0, agent=True, at_s=1.0), 1, "needs several nodes"),
    ],
)
def test_nodes_that_do_not_exist_are_named(fault: PlannedFault, nodes: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        simulate(seed=0, options=Options(nodes=nodes), faults=(fault,))
