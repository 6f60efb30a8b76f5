"""A link between two nodes that stays cut, although the coordinator reaches both: which node is
given up, when, and when the run waits instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.coordinator.barring import BARRED
from outlast.engine.coordinator.cut_for_good import CutEnd, decide_given_up
from outlast.engine.coordinator.cut_links import CutLinks
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Output, Record, SetTimer, Tell, ToAgent
from outlast.model import limits
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import (
    Broke,
    Hello,
    Inventory,
    Joined,
    KillWorker,
    Progress,
    ProgressReport,
    Registered,
    ReportedMember,
    StartStore,
    StartWorker,
    StoreUp,
    WorkerExited,
)
from outlast.model.records import Event
from outlast.model.terms import FailureClass, Mechanism, Phase
from outlast.sim.options import Options
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World
from tests.engine.test_nodes import LEASE_S, beats, enrols

CUT_S = limits.CUT_FOR_GOOD_S
LINKS = "nodes a and b cannot reach each other, for 120 s"


# --- which node -----------------------------------------------------------------------------------


def end(node: str, missed_by: int = 1, ranks: int = 1, why_stays: str = "") -> CutEnd:
    return CutEnd(node, missed_by, ranks, why_stays)


@pytest.mark.parametrize(
    ("ends", "node", "why"),
    [
        ([end("a"), end("b")], "b", "it is the last by name"),
        ([end("a", 2), end("b")], "a", "2 nodes cannot reach it"),
        ([end("a", ranks=1), end("b", ranks=4)], "a", "it has the fewest ranks"),
        ([end("a"), end("b", 3, 1, "it leads the run")], "a", "node b stays because it leads"),
        ([end("a", 1, 1, "it leads the run"), end("b", 1, 8)], "b", "node a stays because it"),
    ],
    ids=["alike", "missed by more", "fewer ranks", "b leads", "a leads"],
)
def test_the_node_that_most_others_cannot_reach_is_given_up(
    ends: list[CutEnd], node: str, why: str
) -> None:
    for order in (ends, ends[::-1]):
        verdict = decide_given_up(links=LINKS, ends=order)
        assert verdict.node == node
        assert verdict.reason.startswith(f"node {node} is given up: {LINKS}, and "), verdict
        assert why in verdict.reason


def test_no_node_is_given_up_if_both_have_to_stay() -> None:
    ends = [end("a", why_stays="it leads the run"), end("b", why_stays="there is no room")]
    verdict = decide_given_up(links=LINKS, ends=ends)
    assert verdict.node == ""
    assert verdict.reason == (
        f"{LINKS}, and none is given up: node a stays because it leads the run, node b stays"
        " because there is no room"
    )


def test_a_link_lasts_once_another_generation_was_tried_over_it() -> None:
    links = CutLinks()
    links.cut("b", ["a"], generation=4, now_s=100.0, since_s=10.0)
    links.cut("c", ["a"], generation=4, now_s=101.0)
    links.cut("b", ["a"], generation=4, now_s=102.0)
    assert links.lasting(now_s=131.0, for_s=CUT_S, generation=4) == ()
    assert links.lasting(now_s=129.9, for_s=CUT_S, generation=5) == ()
    assert links.lasting(now_s=130.0, for_s=CUT_S, generation=5) == (("a", "b"),)
    assert links.lasting(now_s=221.0, for_s=CUT_S, generation=5) == (("a", "b"), ("a", "c"))
    assert [links.missed(node) for node in "abcd"] == [2, 1, 1, 0]
    links.lose("b")
    assert (links.missed("a"), links.ends) == (2, {"a", "c"}), "b still counts"
    links.forget()
    assert (bool(links), links.missed("a")) == (False, 0)


def test_a_sentence_names_the_first_few_links_only() -> None:
    """A firewall may cut each pair of nodes, and each report writes the sentence to the ledger."""
    links = CutLinks()
    links.cut("a", [f"n{number:03}" for number in range(200)], generation=1, now_s=0.0)
    assert links.reason == (
        "nodes a and n000 and nodes a and n001 and nodes a and n002 and 197 more pairs cannot reach"
        " each other"
    )


# --- a group that cannot be formed ----------------------------------------------------------------


class CutRun:
    """A run on nodes a, b and, with `spare`, c. Rank 0 is on node a, and rank 1 on node b."""

    def __init__(self, *, leads: str = "a", spare: bool = True, sharded: bool = False) -> None:
        self.sealed = (0,) if sharded else ()
        options = CoordinatorOptions(
            2, Restart(), nodes=3 if spare else 2, leads_on=leads, cut_for_good_s=CUT_S
        )
        self.one = Coordinator(options=options)
        sessions = CoordinatorSessions(self.one, epoch=1, lease_s=LEASE_S)
        sessions.start(now_s=0.0)
        for node in "abc" if spare else "ab":
            enrols(sessions, node)
            beats(sessions, node)
        self.one.on_message(StoreUp("h", 1, 1), now_s=0.0, node="a")
        for worker in (1, 2):
            self.one.on_message(Hello(worker, worker), now_s=0.0)
            mode = "reenter" if sharded else "in_place"
            self.one.on_message(Registered(worker, 1, 0, mode, sharded, True, ""), now_s=0.0)
            self.one.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
        assert self.one.stage is Stage.TRAINING
        self.outputs: list[Output] = []

    def does(self, outputs: list[Output]) -> list[Output]:
        """Keep what the coordinator orders. A store that it orders listens at once."""
        self.outputs += outputs
        for one in outputs:
            if isinstance(one, ToAgent) and isinstance(one.message, StartStore):
                up = StoreUp("h", 1, one.message.number)
                self.does(self.one.on_message(up, now_s=0.0, node=one.node))
        return outputs

    def stands(self, now_s: float) -> list[Output]:
        """Let the survivors leave the generation, and stand still."""
        self.does(self.one.on_timer(now_s=now_s, name="gather"))
        out: list[Output] = []
        for member in self.one.roster.live():
            left = Inventory(member.worker, self.one.generation, 0, 0, 0, False, self.sealed)
            out += self.does(self.one.on_message(left, now_s=now_s))
        return out

    def fails(self, now_s: float) -> list[Output]:
        """Let rank 1 fail to reach rank 0 on its way into the newest generation."""
        worker = self.one.roster.holder(1).worker
        broke = Broke(
            worker, self.one.generation, 0, "collective", "no connection", "", now_s, unreached=(0,)
        )
        self.does(self.one.on_message(broke, now_s=now_s))
        return self.stands(now_s)

    def fails_until(self, until_s: float, *, now_s: float = 2.0) -> float:
        """Let one group after the other fail, until `until_s`. Return when the next one fails."""
        while now_s < until_s:
            generation = self.one.generation
            timers = [one for one in self.fails(now_s) if isinstance(one, SetTimer)]
            (again_s,) = [one.at_s for one in timers if one.name == "links"][-1:]
            assert again_s is not None
            self.does(self.one.on_timer(now_s=again_s, name="links"))
            assert (self.one.generation, self.one.stage) == (generation + 1, Stage.MOVING)
            now_s = again_s + limits.GROUP_CONNECT_S
        return now_s

    def orders(self, kind: type) -> list[tuple[str, Any]]:
        found = [one for one in self.outputs if isinstance(one, ToAgent)]
        return [(one.node, one.message) for one in found if isinstance(one.message, kind)]

    def said(self) -> list[str]:
        return [one.text for one in self.outputs if isinstance(one, Tell)]

    def events(self, kind: str) -> list[dict[str, Any]]:
        records = [one.record for one in self.outputs if isinstance(one, Record)]
        return [dict(one.data) for one in records if isinstance(one, Event) and one.kind == kind]


def dies(run: CutRun, worker: int, now_s: float) -> None:
    run.does(
        run.one.on_message(
            WorkerExited(worker, worker, None, 9, False, 0, (0,), (), "wait", now_s, now_s, ""),
            now_s=now_s,
        )
    )


@pytest.mark.parametrize(("leads", "gone", "rank"), [("a", "b", 1), ("b", "a", 0)])
def test_the_rank_of_one_node_moves_once_the_link_stays_cut(
    leads: str, gone: str, rank: int
) -> None:
    """The node that leads stays. The other rank is killed only after the limit, and its successor
    starts on the third node only after its death.
    """
    run = CutRun(leads=leads)
    held = run.one.roster.holder(rank).worker
    at_s = run.fails_until(2.0 + CUT_S)
    assert run.orders(KillWorker) == []
    run.fails(at_s)
    assert [(node, order.worker) for node, order in run.orders(KillWorker)] == [(gone, held)]
    (barred,) = run.events(BARRED)
    assert barred["node"] == gone
    assert barred["reason"].startswith(f"node {gone} is given up: {LINKS}, and node {leads} stays")
    before = len(run.orders(StartWorker))
    assert run.one.stage is Stage.LEAVING, "the death is not confirmed yet"
    dies(run, held, at_s + 0.1)
    ((node, order),) = run.orders(StartWorker)[before:]
    assert (node, order.rank, run.one.stage) == ("c", rank, Stage.MOVING)
    assert not run.one.links, "the link does not matter any more"
    (told,) = run.one.interruptions.open
    assert (told.ranks, told.mechanism) == ((rank,), Mechanism.LOST_NODE)
    assert told.failure_class is FailureClass.NETWORK
    assert told.reason.startswith(f"node {gone} is given up: {LINKS}"), told.reason
    assert run.one.budgets.since_step == 0, "no budget pays for it"


def test_a_run_without_room_waits_and_says_so_once() -> None:
    run = CutRun(spare=False)
    run.fails_until(1_000.0)
    assert (run.orders(KillWorker), run.events(BARRED)) == ([], [])
    told = [one for one in run.said() if "none is given up" in one]
    assert told == [
        f"warning: {LINKS}, and none is given up: node a stays because it leads the run, node b"
        " stays because the other nodes have too little room; the run waits for the link"
    ]
    assert [one["text"] for one in run.events("warning")] == [told[0].removeprefix("warning: ")]


def test_a_node_stays_if_state_is_sharded() -> None:
    run = CutRun(sharded=True)
    at_s = run.fails_until(2.0 + CUT_S)
    run.fails(at_s)
    assert run.orders(KillWorker) == []
    (told,) = [one for one in run.said() if "none is given up" in one]
    assert "node b stays because state is sharded" in told


def test_a_node_is_not_given_up_while_it_is_not_heard() -> None:
    """The node may be lost, and then its lease decides."""
    run = CutRun()
    at_s = run.fails_until(2.0 + CUT_S)
    run.one.nodes.note_connection_lost("b")
    run.fails(at_s)
    assert run.orders(KillWorker) == []


def test_a_death_beside_the_move_leaves_no_rank_on_the_node() -> None:
    """Method: rank 0 on node a dies while rank 1 on node b is being killed."""
    run = CutRun()
    at_s = run.fails_until(2.0 + CUT_S)
    run.fails(at_s)
    for rank in (0, 1):
        dies(run, run.one.roster.holder(rank).worker, at_s + 0.1 + rank)
    assert run.one.stage in (Stage.STARTING, Stage.MOVING), run.one.stage
    assert {member.rank: member.home for member in run.one.roster.live()} == {0: "a", 1: "c"}


# --- a link that carries nothing in training ------------------------------------------------------


def asked(run: CutRun, now_s: float, *, cut: bool = True, step: int = 4) -> list[Output]:
    """Let both agents report ranks that wait in a collective. Rank 0 is cut off from rank 1."""
    one = run.one
    out: list[Output] = []
    for rank, node in enumerate("ab"):
        one.on_message(Progress(step, step, 1.0, 8.0), now_s=now_s, node=node)
        said = ReportedMember(rank + 1, rank, Phase.BODY.value, step, 9.0, 1.0, False, 8, "")
        if cut and not rank:
            said = replace(said, cut_off=(1,), cut_off_bytes=(4096,))
        nonce = 0 if not rank else one._inquiry._asked
        report = ProgressReport(nonce, (said,), None, 0.0, False)
        out += run.does(one.on_message(report, now_s=now_s, node=node))
    return out


def test_ranks_leave_a_link_that_has_carried_nothing_for_long() -> None:
    """A new group is tried first. Only if it fails as well, a node is given up."""
    run = CutRun()
    asked(run, 10.0)
    (warned,) = [one for one in run.said() if "not acknowledged" in one]
    assert "after 120 s the ranks of one node move, if they have room elsewhere" in warned
    asked(run, 10.0 + CUT_S - 0.1)
    assert (run.one.stage, run.one.interruptions.open) == (Stage.TRAINING, [])
    at_s = 10.0 + CUT_S
    asked(run, at_s)
    assert run.one.stage is Stage.GATHERING
    (told,) = run.one.interruptions.open
    assert (told.ranks, told.reason) == ((), "nodes a and b cannot reach each other")
    run.stands(at_s + 0.1)
    assert run.orders(KillWorker) == []
    run.does(run.one.on_timer(now_s=at_s + limits.LINK_RETRY_S, name="links"))
    assert run.one.stage is Stage.MOVING, "a new group is tried"
    run.fails(at_s + 12.0)
    assert [node for node, _ in run.orders(KillWorker)] == ["b"]


@pytest.mark.parametrize("mends", ["link", "step"])
def test_a_flap_is_not_counted_together_with_the_next(mends: str) -> None:
    """Between the two the link has carried data, or the run has come to another step."""
    run = CutRun()
    asked(run, 10.0)
    if mends == "link":
        asked(run, 60.0, cut=False)
    step = 4 if mends == "link" else 5
    for now_s in (70.0, 10.0 + CUT_S, 69.0 + CUT_S):
        asked(run, now_s, step=step)
    assert (run.one.stage, run.one.interruptions.open) == (Stage.TRAINING, [])


def test_a_node_that_once_does_not_answer_has_not_mended_its_link() -> None:
    """Node a, which is cut off from b, does not answer one inquiry in time. The time goes on."""
    run = CutRun()
    asked(run, 10.0)
    waits = ReportedMember(2, 1, Phase.BODY.value, 4, 9.0, 1.0, False, 8, "")
    report = ProgressReport(0, (waits,), None, 0.0, False)
    run.does(run.one.on_message(report, now_s=60.0, node="b"))
    run.does(run.one.on_timer(now_s=61.0, name="inquiry"))
    asked(run, 10.0 + CUT_S)
    assert run.one.stage is Stage.GATHERING


@pytest.mark.parametrize(
    ("facts", "why"),
    [({"spare": False}, "no other node has room"), ({"sharded": True}, "state is sharded")],
)
def test_ranks_wait_for_a_link_if_no_node_could_be_given_up(
    facts: dict[str, Any], why: str
) -> None:
    run = CutRun(**facts)
    for now_s in (10.0, 10.0 + CUT_S, 500.0):
        asked(run, now_s)
    assert (run.one.stage, run.one.interruptions.open) == (Stage.TRAINING, [])
    (told,) = [one for one in run.said() if "none is given up" in one]
    assert why in told
    (warned,) = [one for one in run.said() if "not acknowledged" in one]
    assert ("after 120 s" in warned) == ("sharded" not in facts)
    assert told.endswith("; the run waits for the link")


# --- in a simulated world, which checks its own rules ---------------------------------------------


def ran_with_a_cut_link(
    mode: str, *, leads: str = "node-0", peer_copies: bool = False, **when: Any
) -> World:
    """Return the world after a run in which nodes 0 and 1 cannot reach each other any more.

    Ranks 0 and 1 are on node-0, ranks 2 and 3 on node-1, and none on node-2.
    """
    options = Options(
        recovery_mode=mode,
        ranks=4,
        nodes=3,
        spare_nodes=1,
        steps=40,
        latency_s=0.003,
        peer_copies=peer_copies,
    )
    faults = [PlannedFault("part", "part", None, node=0, peer=1, for_s=1e5, **when)]
    if "mark" in when:
        faults.insert(0, PlannedFault("kill", "kill", 1, "body", 8))
    world = World(options=options, script=script_of(mode), faults=tuple(faults), seed=1)
    run = world.host.coordinator.run
    given = replace(run.options, cut_for_good_s=CUT_S, leads_on=leads)
    object.__setattr__(run, "options", given)  # simulated coordinators give up no node
    world.run(bound_s=20_000.0)
    return world


@pytest.mark.parametrize(("leads", "gone"), [("node-0", "node-1"), ("node-1", "node-0")])
@pytest.mark.parametrize(
    ("mode", "when"),
    [
        ("in_place", {"at_step": 9}),
        ("respawn", {"at_step": 9}),
        ("reenter", {"at_step": 9}),
        ("in_place", {"mark": "leaving"}),
    ],
)
def test_a_simulated_run_goes_on_without_the_node(
    mode: str, when: dict[str, Any], leads: str, gone: str
) -> None:
    """The link is cut in training, or after a rank was killed. Rank 0 may be on the node that is
    given up. Then another rank hands the state over, because the other end could not fetch it.
    """
    world = ran_with_a_cut_link(mode, leads=leads, **when)
    assert world.checkers.result == "ok", "\n".join(
        [*world.trace.newest, str(world.checkers.violations)]
    )
    assert world.end is not None
    assert (world.end.state, world.committed) == ("ended", 40), world.end
    assert set(world.coordinator.roster.homes.values()) == {leads, "node-2"}
    assert CUT_S < world.age_s < 3 * CUT_S
    newest = world.interruptions[max(world.interruptions)]
    assert f"node {gone} is given up: nodes node-0 and node-1 cannot" in newest.reason


@pytest.mark.parametrize("mode", ["respawn", "reenter"])
def test_a_node_stays_if_no_live_rank_elsewhere_holds_the_state(mode: str) -> None:
    """A rank is killed, and the link is cut before the others are in a group again. By then the
    state is in the transfer image only, so all wait for the link.
    """
    world = ran_with_a_cut_link(mode, mark="leaving")
    assert world.checkers.result == "ok", str(world.checkers.violations)
    assert world.end is not None
    assert world.end.reason == "nodes node-0 and node-1 cannot reach each other, for 1800 s"


@pytest.mark.parametrize("peer_copies", [False, True])
@pytest.mark.parametrize("when", [{"at_step": 9}, {"mark": "leaving"}], ids=["training", "regroup"])
def test_a_simulated_run_of_sharded_state_waits(peer_copies: bool, when: dict[str, Any]) -> None:
    world = ran_with_a_cut_link("sharded", peer_copies=peer_copies, **when)
    assert world.checkers.result == "ok", str(world.checkers.violations)
    assert not world.host.has_noted(BARRED)
    assert world.age_s > 3 * CUT_S
