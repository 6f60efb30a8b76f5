"""What the coordinator does after a verdict, in a simulated world: nodes leave between commits, and
no commit is undone.

The simulated world checks its own rules in each run (`outlast.sim.rules.checkers`). Where a run
names no policy, the default policy acts. The only diagnoses are those that the test gives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.engine.coordinator.barring import BARRED
from outlast.engine.coordinator.policy_actions import (
    DECIDED,
    DEPARTED,
    PAST_KEPT_COUNT,
)
from outlast.engine.coordinator.rank_history import RankHistory
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import End
from outlast.model import limits
from outlast.model.fault_plan import PlannedFault
from outlast.model.policy import parse
from outlast.model.records import DRAINING, Event, Generation
from outlast.model.terms import FailureClass, Mechanism, Rung
from outlast.model.verdict import Blamed, Verdict
from outlast.sim.options import Options
from outlast.sim.rules.final_observations import Diagnosed
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World

KILL = PlannedFault("first", "kill", 1, "body", 3)
# ranks 0 and 1 are on node-0, ranks 2 and 3 on node-1, and none on node-2
FOUR = Options(ranks=4, nodes=3, spare_nodes=1, steps=40, latency_s=0.001, beat_s=0.3)
BOUND_S = 3 * limits.BOOT_DEADLINE_S
LATE_S = 0.6  # the first interruption is over by then, and many steps are left


def a_world(options: Options = FOUR, *faults: PlannedFault, rule: str = "", seed: int = 0) -> World:
    """Return a world; `rule` is the text of a policy in place of the default one."""
    world = World(
        options=options,
        script=script_of(options.recovery_mode),
        faults=faults or (KILL,),
        seed=seed,
        steady=True,
    )
    if rule:
        coordinator = world.host.coordinator
        coordinator.policy.rules = parse(f"schema = 1\n{rule}", source="test")
    return world


def verdict(
    kind: FailureClass = FailureClass.GPU,
    confidence: float = 0.95,
    rank: int = 1,
    nodes: tuple[str, ...] = (),
) -> Verdict:
    return Verdict(
        kind,
        Mechanism.SIGNAL,
        confidence,
        "why it was",
        "what to do",
        ranks=() if nodes else (Blamed(rank, 1.0),),
        nodes=nodes,
    )


def diagnosed(world: World, seen: Verdict, *, at_s: float = LATE_S, interruption: int = 1) -> None:
    def arrives() -> None:
        world.see(Diagnosed(interruption, dict.fromkeys(world.options.node_names, seen.confidence)))
        world.host.on_verdict(interruption, seen)

    world.timeline.after(at_s, arrives)


def ran(world: World) -> End:
    end = world.run(bound_s=BOUND_S)
    assert not world.checkers.violations, "\n".join(
        [*world.trace.newest, str(world.checkers.violations)]
    )
    assert end is not None
    return end


def events(world: World, kind: str) -> list[dict[str, Any]]:
    return [
        dict(record.data)
        for _, record in world.host.ledger.records
        if isinstance(record, Event) and record.kind == kind
    ]


def homes(world: World) -> set[str]:
    """Return the nodes on which ranks lived last."""
    return set(world.coordinator.roster.homes.values())


# --- drain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["in_place", "reenter", "respawn", "sharded"])
def test_a_drained_nodes_ranks_move_and_every_step_stays(mode: str) -> None:
    world = a_world(replace(FOUR, recovery_mode=mode))
    diagnosed(world, verdict())
    end = ran(world)
    assert (end.state, world.committed) == ("ended", FOUR.steps)
    assert not world.rolled_back
    assert homes(world) == {"node-1", "node-2"}
    drained = world.interruptions[2]
    assert (drained.mechanism, drained.ranks, drained.pids) == (Mechanism.LOST_NODE, (0, 1), ())
    assert drained.failure_class is FailureClass.UNKNOWN, "nobody asked for it"
    assert drained.reason.startswith(
        "node node-0 is drained: rule broken-node: drain node-0 (confidence 0.95, incident 1 there)"
    )
    assert [one["node"] for one in events(world, DRAINING)] == ["node-0"]


def test_a_drain_waits_for_the_step_in_flight() -> None:
    """Another step is committed between the decision and the drain."""
    world = a_world()
    diagnosed(world, verdict())
    ran(world)
    assert world.interruptions[2].step > events(world, DECIDED)[0]["step"]


@pytest.mark.parametrize(
    ("mode", "nth", "generations"), [("in_place", 8, 4), ("reenter", 8, 4), ("respawn", 14, 6)]
)
def test_a_drained_rank_finishes_the_step_that_its_peers_commit(
    mode: str, nth: int, generations: int
) -> None:
    """Method: the drain comes while one rank is late at a vote. All ranks have sealed the step, so
    it is committed. The ranks that are moved away commit it in their processes before they end.

    The rule DrainFinishesStep would report a rank that did not commit. A generation is begun for
    this.
    """
    late = PlannedFault("late", "starve", 2, "voting", nth, for_s=0.3)
    world = a_world(replace(FOUR, recovery_mode=mode), KILL, late)
    diagnosed(world, verdict(), at_s=LATE_S)
    assert ran(world).state == "ended"
    records = [record for _, record in world.host.ledger.records]
    assert sum(isinstance(record, Generation) for record in records) == generations
    assert homes(world) == {"node-1", "node-2"}


def test_a_drain_is_charged_to_no_budget_of_recovery() -> None:
    world = a_world()
    diagnosed(world, verdict())
    left: list[int] = []
    world.timeline.after(
        LATE_S - 0.01, lambda: left.append(world.coordinator.budgets.respawns.left(step=0))
    )
    ran(world)
    assert world.interruptions[2].rung is Rung.RESPAWN
    assert world.coordinator.budgets.respawns.left(step=0) == left[0]


def test_failures_of_moved_ranks_are_charged() -> None:
    """The moved ranks are killed again and again where they start. That ends a run, however it
    began.
    """
    world = a_world(FOUR, KILL, PlannedFault("again", "kill", 0, "grouping", 1, times=1000))
    diagnosed(world, verdict())
    end = ran(world)
    assert (end.state, "killed from outside again and again" in end.reason) == ("failed", True)


def test_a_drain_that_is_disturbed_is_called_off_and_tried_again() -> None:
    """Method: rank 2 is to stay, and dies just before it stands still. Then no other rank is given
    up.
    """
    world = a_world(replace(FOUR, steps=200), KILL, PlannedFault("late", "kill", 2, "still", 2))
    diagnosed(world, verdict())
    ran(world)
    assert len(events(world, DRAINING)) == 2
    assert homes(world) == {"node-1", "node-2"}
    assert not world.rolled_back


def test_a_drain_that_always_comes_at_a_bad_moment_is_given_up() -> None:
    """The drain is given up after three tries. The workers on the node stay, and the node is
    barred.
    """
    world = a_world(
        replace(FOUR, steps=400), KILL, PlannedFault("late", "kill", 2, "still", 2, times=1000)
    )
    diagnosed(world, verdict())
    end = ran(world)
    assert (end.state, world.committed) == ("ended", 400)
    assert len(events(world, DRAINING)) == limits.DRAIN_TRIES_COUNT
    assert events(world, DEPARTED) == [{"node": "node-0", "left": [0, 1]}]
    assert world.coordinator.nodes.barred == {"node-0"}


def test_the_store_moves_off_a_node_that_is_drained() -> None:
    world = a_world()
    homes_of_store: list[str] = []
    world.timeline.after(
        LATE_S - 0.01, lambda: homes_of_store.append(world.coordinator.run.store.home)
    )
    diagnosed(world, verdict())
    ran(world)
    assert homes_of_store == ["node-0"]
    assert world.coordinator.run.store.home != "node-0"


LATER = PlannedFault("later", "kill", 0, at_s=1.5)
SLOW = '[[rule]]\naction = "exclude"'


def test_a_rank_that_is_lost_on_a_barred_node_comes_up_elsewhere() -> None:
    world = a_world(replace(FOUR, steps=200), KILL, LATER, rule=SLOW)
    diagnosed(world, verdict())
    ran(world)
    assert {rank: world.coordinator.roster.homes[rank] for rank in (0, 1)} == {
        0: "node-2",
        1: "node-0",
    }
    assert not world.rolled_back


def test_a_rank_whose_only_state_is_on_a_barred_node_comes_up_there() -> None:
    """On another node the rank would have to go back to a checkpoint, and all other ranks
    with it.
    """
    world = a_world(
        replace(FOUR, recovery_mode="sharded", steps=200, checkpoint_every=50),
        KILL,
        LATER,
        rule=SLOW,
    )
    diagnosed(world, verdict())
    ran(world)
    assert [one["node"] for one in events(world, BARRED)] == ["node-0"]
    assert (homes(world), len(world.interruptions)) == ({"node-0", "node-1"}, 2)
    assert not world.rolled_back


def test_a_node_that_is_needed_stays() -> None:
    """There is no room elsewhere, and the policy never brings a run to a standstill."""
    world = a_world(replace(FOUR, nodes=2, spare_nodes=0))
    diagnosed(world, verdict())
    end = ran(world)
    assert (end.state, len(world.interruptions)) == ("ended", 1)
    assert not events(world, BARRED)


def test_a_node_is_taken_out_when_another_one_comes() -> None:
    """Method: the spare node has no power when the verdict comes, and has power again later."""
    world = a_world(
        replace(FOUR, steps=400),
        PlannedFault("dark", "lose_node", None, node=2, at_s=0.1, for_s=6.0),
        KILL,
    )
    diagnosed(world, verdict(), at_s=4.0)  # its lease has run out by then
    ran(world)
    assert homes(world) == {"node-1", "node-2"}


def test_spares_leave_a_barred_node() -> None:
    world = a_world(replace(FOUR, spares=2, steps=120))
    diagnosed(world, verdict(), at_s=2.5)
    ran(world)
    assert homes(world) == {"node-1", "node-2"}


# --- who is meant ---------------------------------------------------------------------------------


def test_a_verdict_names_ranks_as_they_lived_then() -> None:
    """Method: node-0 lost its power, and its ranks live on node-2 when the verdict comes."""
    dark = PlannedFault("dark", "lose_node", None, node=0, at_s=0.3, for_s=3.0)
    world = a_world(replace(FOUR, steps=400), dark)
    diagnosed(world, verdict(rank=0), at_s=6.0)
    ran(world)
    decided = events(world, DECIDED)[0]
    assert (decided["nodes"], homes(world)) == (["node-0"], {"node-1", "node-2"})
    assert len(world.interruptions) == 1, "nobody lives there: nothing has to be moved"


@pytest.mark.parametrize(
    ("name", "node"), [("node-1", "node-1"), ("node-1.cluster.example", "node-1"), ("node-9", "")]
)
def test_a_node_is_found_by_its_name_with_or_without_its_domain(name: str, node: str) -> None:
    world = a_world()
    diagnosed(world, verdict(nodes=(name,)))
    ran(world)
    assert events(world, DECIDED)[0]["blamed"] == ([node] if node else [])


def test_homes_are_known_by_generation() -> None:
    lived = RankHistory()
    lived.note(1, {0: "a", 1: "a"})
    lived.note(4, {1: "b"})
    lived.note(6, {})
    assert [lived.at(1, generation) for generation in (0, 1, 3, 4, 9)] == ["", "a", "a", "b", "b"]
    assert lived.at(0, 9) == "a"


def test_the_policy_does_not_act_on_its_own_interruption() -> None:
    """The diagnosis shows that rank 0 was killed, and does not show that the policy ordered the
    kill.
    """
    world = a_world(FOUR)
    diagnosed(world, verdict())
    diagnosed(world, verdict(rank=0), at_s=1.4, interruption=2)
    diagnosed(world, verdict(rank=0), at_s=1.4, interruption=99)
    ran(world)
    assert len(world.interruptions) == 2
    assert len(events(world, DECIDED)) == 1


# --- other actions --------------------------------------------------------------------------------


def test_a_page_is_shown_and_changes_nothing() -> None:
    world = a_world(FOUR)
    diagnosed(world, verdict(FailureClass.NETWORK))
    ran(world)
    assert (len(world.interruptions), events(world, DECIDED)[0]["action"]) == (1, "page")
    assert (
        any("page: interruption 1: rule shared: page" in line for line in world.trace.newest)
        or world.committed == FOUR.steps
    )


@pytest.mark.parametrize("options", [FOUR, Options(steps=40)], ids=["nodes", "one node"])
def test_a_stop_commits_the_step_in_flight(options: Options) -> None:
    world = a_world(options, rule='[[rule]]\nid = "enough"\naction = "stop"')
    diagnosed(world, verdict())
    diagnosed(world, verdict(), at_s=LATE_S + 0.001)
    end = ran(world)
    assert (end.state, end.exit_code, end.reason) == ("stopped", 1, "rule enough: stop")
    assert 0 < world.committed < options.steps
    assert not world.rolled_back


def test_a_dry_run_only_reports() -> None:
    world = a_world(FOUR, rule='dry_run = true\n[[rule]]\naction = "drain"')
    diagnosed(world, verdict())
    ran(world)
    assert (len(world.interruptions), events(world, BARRED)) == (1, [])
    assert [(one["action"], one["dry_run"]) for one in events(world, DECIDED)] == [("drain", True)]


def test_the_only_node_is_not_drained() -> None:
    world = a_world(Options(steps=40))
    diagnosed(world, verdict())
    diagnosed(world, verdict(nodes=("",)), at_s=LATE_S + 0.01)
    ran(world)
    assert [one["held"] for one in events(world, DECIDED)] == ["nobody", "nobody"]


SHRINK = '[[rule]]\naction = "shrink"'


def test_a_shrink_is_a_drain_where_there_is_room() -> None:
    world = a_world(FOUR, rule=SHRINK)
    diagnosed(world, verdict())
    ran(world)
    assert (world.committed, homes(world)) == (FOUR.steps, {"node-1", "node-2"})


def test_a_shrink_that_finds_no_room_ends_the_run_in_time() -> None:
    """The run does not end earlier, because a node with room could still come."""
    world = a_world(replace(FOUR, nodes=2, spare_nodes=0, steps=100_000, step_s=1.0), rule=SHRINK)
    diagnosed(world, verdict(), at_s=60.0)
    end = ran(world)
    assert (end.state, end.exit_code) == ("stopped", 1)
    assert end.reason.startswith(
        f"no node with room in place of node-0 in {limits.NODE_WAIT_S:g} s; rule 1: shrink node-0"
    )
    assert world.age_s > 60.0 + limits.NODE_WAIT_S


# --- another coordinator --------------------------------------------------------------------------


def test_a_new_coordinator_does_what_was_decided() -> None:
    """Method: the first coordinator dies between the decision and the next step."""
    world = a_world(replace(FOUR, steps=200))
    diagnosed(world, verdict())
    world.timeline.after(LATE_S + 0.001, lambda: world.host.die(for_s=0.5))
    ran(world)
    assert world.host.epoch == 2
    assert homes(world) == {"node-1", "node-2"}


def test_a_new_coordinator_knows_what_the_policy_has_done() -> None:
    world = a_world(
        replace(FOUR, steps=300),
        rule='[budget]\ndrain = { times = 1, within_s = 86400 }\n[[rule]]\naction = "drain"',
    )
    rules = world.host.coordinator.policy.rules
    diagnosed(world, verdict())
    world.timeline.after(2.0, lambda: world.host.die(for_s=0.3))

    def same_policy() -> None:
        world.host.coordinator.policy.rules = rules

    world.timeline.after(4.0, same_policy)
    diagnosed(world, verdict(rank=2), at_s=4.1, interruption=1)
    diagnosed(world, verdict(rank=0), at_s=4.2, interruption=2)
    ran(world)
    assert world.host.epoch == 2
    assert [(one["action"], one["held"]) for one in events(world, DECIDED)] == [
        ("drain", ""),
        ("page", "budget"),
    ]
    assert world.coordinator.nodes.barred == {"node-0"}


def test_a_new_coordinator_goes_on_waiting_for_a_shrink() -> None:
    world = a_world(replace(FOUR, nodes=2, spare_nodes=0, steps=100_000, step_s=1.0), rule=SHRINK)
    diagnosed(world, verdict(), at_s=60.0)
    world.timeline.after(100.0, lambda: world.host.die(for_s=0.5))
    end = ran(world)
    assert world.host.epoch == 2
    assert (end.state, end.exit_code) == ("stopped", 1)
    assert 60.0 + limits.NODE_WAIT_S < world.age_s < 70.0 + limits.NODE_WAIT_S


def test_decisions_that_change_nothing_any_more_are_forgotten() -> None:
    world = a_world(replace(FOUR, steps=4))
    ran(world)
    coordinator = world.coordinator
    coordinator.run.lifecycle.enter(Stage.TRAINING)
    for number in range(3 * PAST_KEPT_COUNT):
        coordinator.on_verdict(
            now_s=1e5 * number, interruption=1, verdict=verdict(FailureClass.NETWORK)
        )
    assert len(coordinator.policy.history.past) <= PAST_KEPT_COUNT + 1
