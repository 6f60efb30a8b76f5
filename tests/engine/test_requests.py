"""What people can request of a run, in a simulated world whose own rules watch each run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.coordinator.barring import BARRED
from outlast.engine.coordinator.policy_actions import DEPARTED, UNBARRED
from outlast.engine.coordinator.requests import ANSWERED, STOPPED_EXIT, RunRequest
from outlast.model import limits
from outlast.model.drain_words import drain_of
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import Preempted
from outlast.model.records import DRAINING
from outlast.model.terms import FailureClass
from outlast.sim.options import Options
from outlast.sim.world.node import Node
from outlast.sim.world.world import World
from tests.engine.test_policy_actions import FOUR, LATE_S, a_world, events, homes, ran

LONE = Options(ranks=2, steps=40, latency_s=0.001)
TWO_SPARE = replace(FOUR, nodes=4, spare_nodes=2)


def asks(world: World, what: str, node: str = "", *, at_s: float = LATE_S, number: int = 1) -> None:
    """Request `what` at `at_s`, as a person would."""
    asked = RunRequest(number, what, node, "alice", "a fan is broken")
    world.timeline.after(at_s, lambda: world.host.on_request(asked))


def answers(world: World, number: int = 1) -> list[tuple[str, str]]:
    return [(one.state, one.text) for one in world.host.answers if one.number == number]


def node_of(world: World, name: str) -> Node:
    return next(node for node in world.nodes if node.name == name)


def last(world: World, number: int = 1) -> tuple[str, str]:
    """Return the last answer. Check that the ledger has the same one."""
    state, text = answers(world, number)[-1]
    written = [one for one in events(world, ANSWERED) if one["number"] == number]
    assert not written or (written[-1]["state"], written[-1]["text"]) == (state, text)
    return state, text


def test_a_stop_ends_the_run_after_the_step_in_flight() -> None:
    world = a_world(LONE)
    asks(world, "stop")
    end = world.run(bound_s=60.0)
    assert end is not None
    assert (end.state, end.exit_code) == ("stopped", STOPPED_EXIT)
    assert end.reason == "the run is stopped, asked for by alice: a fan is broken"
    assert 0 < world.committed < LONE.steps
    (asked,) = events(world, "request")
    assert (asked["by"], asked["reason"], asked["what"]) == ("alice", "a fan is broken", "stop")


@pytest.mark.parametrize("mode", ["in_place", "sharded"])
def test_a_checkpoint_is_written_of_a_step_after_the_request(mode: str) -> None:
    """All ranks write the checkpoint of the same step, although only one of them is told."""
    world = a_world(replace(LONE, recovery_mode=mode))
    asks(world, "checkpoint")
    ran(world)
    state, text = last(world)
    (asked,) = events(world, "request")
    (written,) = events(world, "checkpoint")
    assert (state, text.split(" is in ")[0]) == (
        "done",
        f"the checkpoint of step {written['step']}",
    )
    assert written["step"] > asked["step"]


def test_a_checkpoint_is_requested_again_after_a_regroup() -> None:
    """Method: the rank that was told is killed while it votes for the step that was to be saved."""
    world = a_world(LONE, PlannedFault("first", "kill", 0, "voting", 8))
    asks(world, "checkpoint", at_s=0.3)
    ran(world)
    assert world.interruptions
    assert last(world)[0] == "done"


@pytest.mark.parametrize("what", ["checkpoint", "drain"])
def test_a_script_without_outlast_calls_is_waited_for(what: str) -> None:
    """The script may still reach its first outlast call. When it is over, the request is
    refused.
    """
    world = a_world(replace(FOUR, recovery_mode="plain"))
    asks(world, what, "node-0")
    ran(world)
    first, over = answers(world)
    assert first == ("waits", "the script has made no outlast call yet")
    assert over == ("refused", "the run is over: all ranks ended well")
    assert homes(world) == {"node-0", "node-1"}


def test_a_drained_nodes_ranks_move_and_every_step_stays() -> None:
    world = a_world()
    asks(world, "drain", "node-0")
    end = ran(world)
    assert (end.state, world.committed) == ("ended", FOUR.steps)
    assert not world.rolled_back
    assert homes(world) == {"node-1", "node-2"}
    assert [one["node"] for one in events(world, DRAINING)] == ["node-0"]
    assert answers(world) == [
        ("waits", "the ranks of node-0 move after the step in flight"),
        ("waits", "the run does not train now; then the ranks of node-0 move"),
        ("waits", "the first step without node node-0 is committed"),
        ("done", "node node-0 is drained"),
    ]
    drained = world.interruptions[2]
    assert drained.failure_class is FailureClass.HOST_MAINTENANCE
    assert drain_of(drained.mechanism.value, drained.reason) == (
        "node-0",
        "asked for by alice: a fan is broken",
    )


def test_a_drain_waits_for_room_and_says_so() -> None:
    """Method: no node stands ready. The answer says so, and the drain is called off when the run is
    over.
    """
    world = a_world(replace(FOUR, nodes=2, spare_nodes=0))
    asks(world, "drain", "node-0")
    ran(world)
    first, second = answers(world)
    assert first == ("waits", "no other node has room for the ranks of node-0 yet")
    assert (second[0], second[1][:16]) == ("refused", "the run is over:")
    assert homes(world) == {"node-0", "node-1"}


SHARDED = replace(FOUR, recovery_mode="sharded")


def copies_on(world: World) -> dict[str, tuple[int, ...]]:
    """Return the ranks of whose images each node was sent a copy."""
    kept = {node.name: node.copies.kept_images() for node in world.nodes}
    return {name: tuple(one.rank for one in images) for name, images in kept.items() if images}


def test_images_of_sharded_state_move_before_the_ranks_do() -> None:
    """All ranks seal after each step from the request on, and the run goes on from the newest one.

    Each rank that leaves reads the copy of its own image on the node that took it over.
    """
    world = a_world(SHARDED)
    asks(world, "drain", "node-0")
    end = ran(world)
    assert (end.state, world.committed) == ("ended", FOUR.steps)
    assert not world.rolled_back
    assert homes(world) == {"node-1", "node-2"}
    assert copies_on(world) == {"node-2": (0, 1)}
    assert answers(world) == [
        ("waits", "the ranks of node-0 move after the step in flight"),
        ("waits", "the images of the ranks of node-0 move to another node"),
        ("waits", "the first step without node node-0 is committed"),
        ("done", "node node-0 is drained"),
    ]
    assert world.interruptions[2].steps_lost == 0


def test_no_image_moves_if_a_replica_elsewhere_has_it() -> None:
    """Method: ranks 0 and 2 hold the same shard, and so do ranks 1 and 3."""
    world = a_world(replace(SHARDED, replicas=2))
    asks(world, "drain", "node-0")
    ran(world)
    assert last(world)[0] == "done"
    assert not world.rolled_back
    assert copies_on(world) == {}


@pytest.mark.parametrize("parity", ["", "2+1"])
def test_no_image_moves_that_lies_elsewhere_already(parity: str) -> None:
    """Method: each rank sends copies, or parity, to another node at each step."""
    world = a_world(replace(SHARDED, nodes=5, peer_copies=True, parity=parity, steps=80))
    asks(world, "drain", "node-0")
    ran(world)
    assert last(world)[0] == "done"
    assert not world.rolled_back
    assert "node-0" not in homes(world)


def test_the_run_stops_if_sharded_state_cannot_leave_in_time() -> None:
    """Method: a step takes longer than the notice lets a drain take."""
    world = a_world(replace(SHARDED, step_s=2 * limits.NOTICE_DRAIN_S, checkpoint_every=1000))
    notice(world, "node-1", at_s=3 * limits.NOTICE_DRAIN_S)  # after the first step
    end = world.run(bound_s=20 * limits.NOTICE_DRAIN_S)
    assert end is not None
    assert (end.state, end.exit_code) == ("stopped", STOPPED_EXIT)
    assert "its ranks could not be moved in time" in end.reason


@pytest.mark.parametrize("options", [FOUR, SHARDED], ids=["replicated", "sharded"])
def test_all_nodes_are_drained_one_after_the_other(options: Options) -> None:
    """Each node stands ready again once it is empty, so the next one finds room."""
    world = a_world(replace(options, steps=120))
    asks(world, "drain_all")
    end = ran(world)
    assert (end.state, world.committed) == ("ended", 120)
    assert not world.rolled_back
    drained = [one["node"] for one in events(world, DEPARTED)]
    assert drained == ["node-0", "node-1", "node-2"]
    assert not any(one.get("dismissed") for one in events(world, DEPARTED))
    assert last(world) == ("done", "all nodes were drained")


def test_a_drained_node_is_dismissed_and_comes_back_with_a_new_session() -> None:
    """The agent of the node begins again, as if its launcher had been restarted. Then the node
    stands ready.
    """
    world = a_world(replace(FOUR, steps=200, spares=1))
    asks(world, "drain", "node-0")

    def starts_again() -> None:
        if world.coordinator.nodes.dismissed:
            node_of(world, "node-0").lose_power(for_s=0.2)
        else:
            world.timeline.after(0.02, starts_again)

    world.timeline.after(LATE_S, starts_again)
    ran(world)
    (departed,) = events(world, DEPARTED)
    assert departed.get("dismissed")
    assert [one["node"] for one in events(world, UNBARRED)] == ["node-0"]
    assert not world.coordinator.nodes.barred


# --- notices --------------------------------------------------------------------------------------


def notice(world: World, *nodes: str, at_s: float = LATE_S) -> None:
    """Let the launchers of `nodes` hear that their machines will be taken away."""

    def arrives() -> None:
        for node in nodes:
            node_of(world, node).heard_by_agent(Preempted("the launcher received SIGTERM"))

    world.timeline.after(at_s, arrives)


@pytest.mark.parametrize("options", [FOUR, SHARDED], ids=["replicated", "sharded"])
def test_a_node_that_is_taken_away_is_drained_if_another_one_has_room(options: Options) -> None:
    world = a_world(options)
    notice(world, "node-1")
    end = ran(world)
    assert (end.state, world.committed) == ("ended", FOUR.steps)
    assert not world.rolled_back
    assert homes(world) == {"node-0", "node-2"}
    assert [one.get("dismissed") for one in events(world, DEPARTED)] == [True]


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        pytest.param(replace(FOUR, nodes=2, spare_nodes=0), ("node-1",), id="no room"),
        pytest.param(FOUR, ("node-1", "node-2"), id="most of the nodes"),
    ],
)
def test_the_run_is_stopped_if_a_node_that_is_taken_away_cannot_be_drained(
    options: Options, nodes: tuple[str, ...]
) -> None:
    world = a_world(options)
    notice(world, *nodes)
    end = world.run(bound_s=60.0)
    assert end is not None
    assert (end.state, end.exit_code) == ("stopped", STOPPED_EXIT)
    assert f"node {nodes[-1]} is taken away (the launcher received SIGTERM)" in end.reason
    assert 0 < world.committed < options.steps


def test_a_cordoned_node_gets_no_work_until_it_is_uncordoned() -> None:
    """Method: the spare node is cordoned, and nothing moves to it. Later it is given work again."""
    world = a_world(TWO_SPARE)
    asks(world, "cordon", "node-2")
    asks(world, "uncordon", "node-2", at_s=LATE_S + 0.2, number=2)
    asks(world, "uncordon", "node-2", at_s=LATE_S + 0.3, number=3)
    ran(world)
    assert last(world) == ("done", "node node-2 is given no more work")
    assert last(world, 2) == ("done", "node node-2 is given work again")
    assert last(world, 3) == ("refused", "node node-2 is not cordoned")
    assert [one["node"] for one in events(world, BARRED)] == ["node-2"]
    assert [one["node"] for one in events(world, UNBARRED)] == ["node-2"]


@pytest.mark.parametrize(
    ("options", "what", "node", "why"),
    [
        (LONE, "drain", "node-0", "this run has one node"),
        (FOUR, "drain", "node-9", "no node node-9 is in this run; its nodes are node-0"),
        (replace(FOUR, nodes=2, spare_nodes=0), "cordon", "node-0", "the other nodes have no room"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    options: Options, what: str, node: str, why: str
) -> None:
    world = a_world(options)
    asks(world, what, node)
    ran(world)
    state, text = last(world)
    assert state == "refused"
    assert text.startswith(why)
    assert not events(world, BARRED)


def test_an_uncordon_calls_a_drain_off() -> None:
    world = a_world(replace(FOUR, nodes=2, spare_nodes=0))
    asks(world, "drain", "node-0")
    asks(world, "uncordon", "node-0", at_s=LATE_S + 0.2, number=2)
    ran(world)
    assert last(world) == ("refused", "node node-0 is not cordoned any more")
    assert last(world, 2)[0] == "done"
