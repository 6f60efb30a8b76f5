"""Several nodes: links that outlive their connections, leases that end before anyone relies on it,
places for ranks, and which nodes are admitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.agent.agent import Agent
from outlast.engine.cluster.agent_session import AgentSession, NodeOffer
from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.cluster.lease import Lease, LeaseBook, void_after_s
from outlast.engine.coordinator.awaited import describe_wait
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.members import Roster
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.placement import offers, place
from outlast.engine.protocol.outputs import (
    HangUp,
    HostStore,
    Kill,
    Output,
    SendOverLink,
    SetTimer,
    Spawn,
    Tell,
    Wipe,
)
from outlast.engine.protocol.reliable_link import Inbox, Offset, Outbox, rebased
from outlast.model import limits
from outlast.model.messages import (
    Beat,
    Broke,
    Committed,
    Enrol,
    Finished,
    FromNode,
    FromWorkers,
    Grant,
    Hello,
    Images,
    Inventory,
    Joined,
    KillWorker,
    LinkMessage,
    Parked,
    Progress,
    Registered,
    Regroup,
    StartWorker,
    StoreUp,
    ToNode,
    ToWorkers,
    Welcome,
    WorkerExited,
    WorkerStarted,
)
from outlast.model.shorten import end_of
from outlast.model.terms import Mechanism, Rung
from outlast.model.wire import decode, encode
from tests.engine.test_lost_steps import Run

LEASE_S = 6.0


# --- links ----------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["say", "lose", "carry"]), max_size=60))
def test_messages_arrive_once_and_in_order_despite_lost_connections(
    course: list[str],
) -> None:
    """In the drawn course, `lose` breaks the connection with everything in transit, and `carry`
    lets one message arrive.
    """
    outbox: Outbox[Any] = Outbox()
    inbox, way, said, heard = Inbox(), [], 0, []
    for act in [*course, "lose", *["carry"] * 61]:
        if act == "say":
            said += 1
            way.append(FromNode(outbox.put(Hello(said, said)), 0, 0.0, Hello(said, said)))
        elif act == "lose":
            outbox.acknowledged(inbox.heard)
            way = [FromNode(number, 0, 0.0, message) for number, message in outbox.kept()]
        elif way:
            message = way.pop(0)
            if inbox.accept(message):
                heard.append(message.message.worker)
    assert heard == list(range(1, said + 1))


def test_a_message_that_arrives_twice_is_accepted_once() -> None:
    inbox = Inbox()
    message = FromNode(1, 0, 0.0, Hello(1, 1))
    assert (inbox.accept(message), inbox.accept(message), inbox.heard) == (True, False, 1)


def test_times_are_moved_to_the_receivers_clock() -> None:
    exited = WorkerExited(1, 1, 3, None, False, 5, (), (), "body", 20.0, None, "")
    moved = rebased(exited, 1_000.0)
    assert (moved.at_s, moved.fault_s, moved.committed) == (1_020.0, None, 5)
    plan = _plan(rank=0, generation=2, fault_s=7.0)
    assert rebased(ToWorkers((1,), (0,), plan), -2.0).message.fault_s == 5.0
    assert rebased(FromWorkers((1, 2), Committed(0, 1, 5, 20.0)), 1_000.0).message.at_s == 1_020.0
    joined = FromWorkers((1, 2), Joined(0, 1, 4, 0.5, 0.2))
    assert rebased(joined, 1_000.0) == joined, "how long something took is the same on all clocks"


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0.0, 30.0), min_size=1, max_size=40))
def test_a_message_held_up_does_not_move_times(offset_s: float, held_s: list[float]) -> None:
    """The correction is the true offset plus the transit time of the fastest of the newest
    messages.
    """
    offset = Offset()
    by_s = [
        offset.hear(sent_s=float(number), now_s=number + offset_s + late_s)
        for number, late_s in enumerate(held_s)
    ][-1]
    fastest_s = min(held_s[-limits.OFFSET_SAMPLES_COUNT :])
    assert by_s == pytest.approx(offset_s + fastest_s, abs=1e-6)


# --- leases ---------------------------------------------------------------------------------------

DRIFTS = st.floats(-limits.CLOCK_DRIFT_MAX, limits.CLOCK_DRIFT_MAX)


@given(
    DRIFTS,
    DRIFTS,
    st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.booleans()), max_size=20),
)
def test_an_agents_lease_is_over_before_the_coordinator_counts_it_out(
    agent_drift: float, hub_drift: float, beats: list[tuple[float, float, bool]]
) -> None:
    """Method: beats are sent at drawn times, and each arrives after a drawn delay. Some grants are
    lost, and both clocks drift as much as they may.
    """
    lease, book, now_s = Lease(), LeaseBook(lease_s=LEASE_S), 50.0

    def agents(at_s: float) -> float:
        return 1e4 + at_s * (1 + agent_drift)

    def hubs(at_s: float) -> float:
        return at_s * (1 + hub_drift)

    lease.begins(asked_s=agents(now_s), lease_s=LEASE_S)
    book.heard("a", now_s=hubs(now_s))
    for number, (wait_s, way_s, granted) in enumerate(beats, 1):
        now_s += wait_s
        if lease.is_out(now_s=agents(now_s)):
            break
        lease.asked(number, now_s=agents(now_s))
        now_s += way_s
        if book.void(now_s=hubs(now_s)):
            break
        book.heard("a", now_s=hubs(now_s))
        if granted:
            lease.granted(number)
    due_s = book.next_s()
    void_s = now_s if due_s is None else due_s / (1 + hub_drift)
    assert lease.until_s is not None
    assert (lease.until_s - 1e4) / (
        1 + agent_drift
    ) <= void_s - limits.LEASE_KILL_S + 1e-6 or due_s is None
    assert lease.is_out(now_s=agents(void_s))


def test_each_answer_prolongs_a_lease_despite_later_questions() -> None:
    lease = Lease()
    lease.begins(asked_s=0.0, lease_s=LEASE_S)
    for number in (1, 2, 3):
        lease.asked(number, now_s=float(number))
    for number in (1, 2, 3):
        lease.granted(number)
        assert lease.until_s == number + LEASE_S


def test_the_longest_silent_node_is_counted_out_first() -> None:
    book = LeaseBook(lease_s=LEASE_S)
    for node, at_s in (("a", 0.0), ("b", 1.0), ("a", 2.0)):
        book.heard(node, now_s=at_s)
    assert book.next_s() == 1.0 + void_after_s(LEASE_S)
    assert book.void(now_s=1.5 + void_after_s(LEASE_S)) == ["b"]
    assert book.void(now_s=2.0 + void_after_s(LEASE_S)) == ["a"]
    assert book.next_s() is None


# --- places ---------------------------------------------------------------------------------------

NODES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4))


@given(
    st.sets(st.integers(0, 9)), st.dictionaries(st.integers(0, 9), st.sampled_from("abcd")), NODES
)
def test_ranks_are_placed_at_home_if_there_is_room(
    ranks: set[int], homes: dict[int, str], room: dict[str, int]
) -> None:
    placed = place(sorted(ranks), homes=homes, room=room)
    assert len(placed) == min(len(ranks), sum(room.values()))
    for node, most in room.items():
        assert sum(home == node for home in placed.values()) <= most
        at_home = [rank for rank in ranks if homes.get(rank) == node]
        assert sum(placed.get(rank) == node for rank in at_home) == min(len(at_home), most)


@given(
    st.sets(st.integers(0, 9)),
    st.dictionaries(st.integers(0, 9), st.sampled_from("abcd")),
    NODES,
    st.lists(st.sampled_from("abcd"), max_size=5),
)
def test_each_lost_rank_is_offered_one_place_and_each_spare_once(
    lost: set[int], homes: dict[int, str], room: dict[str, int], spares: list[str]
) -> None:
    found = offers(sorted(lost), homes=homes, spares=list(enumerate(spares, 100)), room=room)
    workers = [worker for worker, _ in found.values() if worker >= 0]
    assert len(found) == min(len(lost), sum(room.values()))
    assert len(workers) == len(set(workers))
    assert all(spares[worker - 100] == node for worker, node in found.values() if worker >= 0)
    for rank, (_, node) in found.items():
        home = homes.get(rank, "")
        assert node == home or sum(other == home for _, other in found.values()) >= room.get(
            home, 0
        )


@given(st.lists(st.integers(0, 7), max_size=30))
def test_a_search_over_all_ranks_finds_one_as_long_as_there_is_one(order: list[int]) -> None:
    """Method: ranks join and unjoin in a drawn order, and the question is asked after each
    change.
    """
    roster = Roster(world_size=8)
    members = [roster.add(rank=rank, kind="rank", now_s=0.0) for rank in range(8)]
    for rank in order:
        members[rank].path.joined = not members[rank].path.joined
        found = roster.first("not joined", lambda m: not m.path.joined)
        assert (found is None) == all(member.path.joined for member in members)
        assert found is None or not found.path.joined


# --- an agent and the coordinator -----------------------------------------------------------------


def _plan(*, rank: int, generation: int, fault_s: float | None = None) -> Regroup:
    return Regroup(
        generation,
        rank,
        2,
        "h",
        1,
        "none",
        "start",
        0,
        -1,
        False,
        "none",
        "none",
        "",
        0,
        fault_s,
        None,
    )


@dataclass
class AgentSite:
    """An agent session with its own clock, `now_s`, and the outputs that it has asked for."""

    agent_session: AgentSession
    now_s: float = 10.0
    done: list[Output] = field(default_factory=list)
    sessions: Iterator[int] = field(default_factory=lambda: count(1))  # one for each connection

    @classmethod
    def make(cls, node: str = "a", capacity: int = 2) -> AgentSite:
        return cls(
            AgentSession(
                Agent(now_s=10.0, only_node=False), offer=NodeOffer(node, capacity), beat_s=1.0
            )
        )

    def hears(self, message: LinkMessage) -> list[Output]:
        self.done = self.agent_session.on_link(message, now_s=self.now_s)
        return self.done

    def connects(self, images: tuple[Images, ...] = ()) -> Enrol:
        (line,) = self.agent_session.on_connected(
            images=images, transfer=(), session=next(self.sessions), now_s=self.now_s
        )
        assert isinstance(line, SendOverLink)
        assert isinstance(line.message, Enrol)
        return line.message

    def is_welcome(self, epoch: int = 1) -> None:
        self.connects()
        self.hears(Welcome(epoch, 0, LEASE_S, False, ()))

    def told(self, number: int, order: Any) -> list[Output]:
        return self.hears(ToNode(number, 0, self.now_s, order))


def test_an_agent_tells_the_next_coordinator_what_it_houses() -> None:
    site = AgentSite.make()
    site.is_welcome()
    assert Spawn(7, 0, "rank", 1) in site.told(1, StartWorker(7, 0, "rank", 1))
    site.agent_session.on_event(WorkerStarted(7, 77, "a", 10.0), now_s=10.0)
    site.agent_session.on_worker(Hello(7, 77), now_s=10.0)
    site.told(2, ToWorkers((7,), (0,), _plan(rank=-1, generation=1)))
    site.agent_session.on_worker(Registered(7, 1, 0, "in_place", True, True, ""), now_s=10.0)
    site.told(3, KillWorker(7, "why not"))
    (housed,) = site.connects().housed
    assert (housed.worker, housed.rank, housed.pid, housed.killed, housed.exited) == (
        7,
        0,
        77,
        True,
        None,
    )
    assert housed.plan == _plan(rank=0, generation=1)
    assert [type(one) for one in housed.said] == [Hello, Registered]
    assert site.connects().script == "sharded"


def test_the_tracebacks_of_many_workers_fit_into_one_enrolment() -> None:
    """Method: each of 32 workers has left a traceback of the maximum length. Together they are
    twice what fits into one message.
    """
    site = AgentSite.make(capacity=32)
    site.is_welcome()
    traceback = end_of("  line\n" * limits.TRACEBACK_MAX_BYTES, limits.TRACEBACK_MAX_BYTES)
    for worker in range(1, 33):
        site.told(worker, StartWorker(worker, worker - 1, "rank", 1))
        raised = Broke(worker, 1, 5, "exception", f"ValueError: {worker}", traceback, 10.0)
        site.agent_session.on_worker(raised, now_s=10.0)
    enrol = site.connects()
    assert sum(len(one.traceback) for house in enrol.housed for one in house.said) > 1 << 20
    came = decode(encode(enrol)[4:])
    assert isinstance(came, Enrol)
    for house in came.housed:
        (said,) = house.said
        assert isinstance(said, Broke)
        assert said.error == f"ValueError: {house.worker}"
        assert said.traceback.endswith("  line\n")


def test_an_agent_whose_lease_is_out_kills_all_and_enrols_as_new() -> None:
    site = AgentSite.make()
    site.is_welcome()
    site.told(1, StartWorker(7, 0, "rank", 1))
    site.now_s = 10.0 + LEASE_S
    assert Kill(7, "the lease of this node has run out") in site.agent_session.on_timer(
        now_s=site.now_s, name="lease"
    )
    again = site.agent_session.on_connected(images=(), transfer=(), session=9, now_s=site.now_s)
    assert again == [], "something still lives"
    ended = site.agent_session.on_event(
        WorkerExited(7, 77, None, 9, False, 4, (), (), "body", 16.0, 16.0, ""), now_s=site.now_s
    )
    assert HangUp() in ended
    enrol = site.connects((Images(0, (4, 3)),))
    assert (enrol.session, enrol.ended) == (2, 1)
    assert (enrol.housed, enrol.images) == ((), (Images(0, (4, 3), 4, (0, 4)),))


def test_a_grant_moves_the_end_of_the_lease_from_the_moment_of_asking() -> None:
    site = AgentSite.make()
    site.is_welcome()
    site.now_s = 12.0
    site.agent_session.on_timer(now_s=12.0, name="beat")
    site.now_s = 13.0
    site.hears(Grant(2, 0, 5.0))
    assert site.agent_session.lease.until_s == 12.0 + LEASE_S
    assert site.agent_session.on_timer(now_s=10.0 + LEASE_S, name="lease") == [
        SetTimer("lease", 12.0 + LEASE_S)
    ]


def test_a_connection_to_a_coordinator_of_an_older_epoch_is_closed() -> None:
    site = AgentSite.make()
    site.is_welcome(epoch=2)
    site.connects()
    assert site.hears(Welcome(1, 0, LEASE_S, False, ())) == [HangUp()]


def test_an_order_that_comes_twice_is_followed_once() -> None:
    site = AgentSite.make()
    site.is_welcome()
    assert Spawn(7, 0, "rank", 1) in site.told(1, StartWorker(7, 0, "rank", 1))
    assert site.told(1, StartWorker(7, 0, "rank", 1)) == []


def test_images_that_do_not_count_are_wiped() -> None:
    site = AgentSite.make()
    site.connects((Images(0, (4, 3)), Images(1, (9,))))
    assert Wipe((0,)) in site.hears(Welcome(1, 0, LEASE_S, False, (0,)))


def coordinator_sessions(nodes: int = 2, ranks: int = 2) -> CoordinatorSessions:
    return CoordinatorSessions(
        Coordinator(options=CoordinatorOptions(ranks, Restart(), nodes=nodes)),
        epoch=1,
        lease_s=LEASE_S,
    )


def enrols(
    sessions: CoordinatorSessions, node: str, *, now_s: float = 0.0, **told: Any
) -> list[Output]:
    said = {
        "session": 1,
        "capacity": 1,
        "epoch": 0,
        "heard": 0,
        "step": 0,
        "store": None,
        "housed": (),
        "images": (),
        "transfer": (),
        "script": "",
    } | told
    return sessions.on_link(node, Enrol(node=node, sent_s=now_s, **said), now_s=now_s)


def beats(
    sessions: CoordinatorSessions, node: str, number: int = 1, *, now_s: float = 0.0
) -> list[Output]:
    return sessions.on_link(node, Beat(number, 0, now_s), now_s=now_s)


def rings_late(sessions: CoordinatorSessions, *, now_s: float) -> list[Output]:
    """Ring the timer of the leases. Ring it once more if the sessions think that it rang late."""
    out = sessions.on_timer(now_s=now_s, name="leases")
    return (
        sessions.on_timer(now_s=now_s + limits.SILENT_LOOK_S, name="leases")
        if out == [SetTimer("leases", now_s + limits.SILENT_LOOK_S)]
        else out
    )


def orders(outputs: list[Output]) -> list[tuple[str, Any]]:
    return [
        (one.node, one.message.message)
        for one in outputs
        if isinstance(one, SendOverLink) and isinstance(one.message, ToNode)
    ]


def test_a_run_begins_once_its_nodes_have_heard_their_welcome() -> None:
    sessions = coordinator_sessions()
    sessions.start(now_s=0.0)
    for node in "ab":
        assert orders(enrols(sessions, node)) == []
    assert orders(beats(sessions, "a")) == []
    started = [
        (node, order.rank)
        for node, order in orders(beats(sessions, "b"))
        if isinstance(order, StartWorker)
    ]
    assert started == [("a", 0), ("b", 1)]


def test_a_run_begins_on_fewer_nodes_if_they_have_room() -> None:
    sessions = coordinator_sessions(nodes=3, ranks=2)
    sessions.start(now_s=0.0)
    for node in "ab":
        enrols(sessions, node)
        beats(sessions, node)
    assert (
        len(
            [
                order
                for _, order in orders(sessions.on_timer(now_s=limits.ENROL_WAIT_S, name="nodes"))
                if isinstance(order, StartWorker)
            ]
        )
        == 2
    )


def test_a_run_waits_for_room_and_ends_with_a_verdict_if_none_comes() -> None:
    sessions = coordinator_sessions(nodes=1, ranks=2)
    sessions.start(now_s=0.0)
    enrols(sessions, "a")
    assert SetTimer("nodes", limits.NODE_WAIT_S) in beats(sessions, "a")
    (end,) = [
        one
        for one in sessions.on_timer(now_s=limits.NODE_WAIT_S, name="nodes")
        if type(one).__name__ == "End"
    ]
    assert "no node with room for ranks [1]" in end.reason  # type: ignore[union-attr]


def told(outputs: list[Output]) -> list[str]:
    return [one.text for one in outputs if isinstance(one, Tell)]


def test_admitted_nodes_and_a_node_rank_given_twice_are_reported() -> None:
    """An operator needs the names of the nodes while the run waits for the others."""
    sessions = coordinator_sessions(nodes=3, ranks=2)
    sessions.start(now_s=0.0)
    enrols(sessions, "a", place=1)
    assert told(beats(sessions, "a")) == []
    enrols(sessions, "b", place=1)
    (warned,) = told(beats(sessions, "b"))
    assert warned.startswith("warning: nodes a and b were all given --node-rank 1")
    waits = describe_wait(sessions.coordinator.run, {"nodes": 600.0})
    assert waits is not None
    assert (waits.what, waits.until_s) == ("nodes: 2 of 3 are in (a, b)", 600.0)


def test_an_additional_node_stands_ready_and_gets_spares() -> None:
    sessions = coordinator_sessions()
    trains(sessions)
    sessions.coordinator.run.lifecycle.enter(Stage.TRAINING)
    enrols(sessions, "c", now_s=5.0)
    out = beats(sessions, "c", now_s=5.0)
    assert told(out) == ["node c has joined the run, and stands ready"]
    assert SetTimer("spares", 5.0 + limits.SPARE_REFILL_DELAY_S) in out


def test_a_rank_that_has_ended_needs_a_place_only_for_a_restart() -> None:
    """Method: rank 0 has ended well, and its node is lost. Then rank 1 fails after the last step,
    on a node with room for one rank.
    """
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    for worker in (1, 2):
        one.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
        one.on_message(Finished(worker, 1, 4, False), now_s=2.0)
    one.on_message(WorkerExited(1, 101, 0, None, False, 4, (4,), (), "", 3.0, 3.0, ""), now_s=3.0)
    one.node_lost(now_s=4.0, node="a", reason="no power")
    one.on_message(WorkerExited(2, 102, None, 9, False, 4, (4,), (), "", 5.0, 5.0, ""), now_s=5.0)
    out = one.on_timer(now_s=5.1, name="gather")
    (told,) = one.interruptions.open
    assert told.rung is Rung.RESTART, "it is decided at once, though there is no room for rank 0"
    assert one.stage is Stage.CLEARING
    assert SetTimer("nodes", 5.1 + limits.NODE_WAIT_S) in out
    enrols(sessions, "c", now_s=6.0)
    assert sorted(
        order.rank
        for _, order in orders(beats(sessions, "c", now_s=6.0))
        if isinstance(order, StartWorker)
    ) == [0, 1]


def test_a_node_lost_after_the_last_step_does_not_fail_the_run() -> None:
    """The script of rank 1 is not to blame. Its last code is run again, as after a kill."""
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    for worker in (1, 2):
        one.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
        one.on_message(Finished(worker, 1, 4, False), now_s=2.0)
    one.on_message(WorkerExited(1, 101, 0, None, False, 4, (4,), (), "", 3.0, 3.0, ""), now_s=3.0)
    one.node_lost(now_s=4.0, node="b", reason="no power")
    (told,) = one.interruptions.open
    assert told.rung is not Rung.STOP
    assert told.mechanism is Mechanism.LOST_NODE


def test_an_agent_whose_ranks_were_given_away_has_to_start_over() -> None:
    sessions, site = coordinator_sessions(), AgentSite.make()
    sessions.start(now_s=0.0)
    site.is_welcome()
    site.told(1, StartWorker(7, 0, "rank", 1))
    enrol = site.connects()
    (line,) = [
        one for one in sessions.on_link("a", enrol, now_s=0.0) if isinstance(one, SendOverLink)
    ]
    assert line.message == Welcome(1, 0, LEASE_S, True, None)
    assert Kill(7, "this node was counted out: its ranks are given away") in site.hears(
        line.message
    )


def trains(sessions: CoordinatorSessions, **on_a: int) -> None:
    """Let rank 0 on node a and rank 1 on node b come to run.steps.

    on_a   what node a says of itself; with a capacity of 2, both ranks live there
    """
    sessions.start(now_s=0.0)
    for node in "ab":
        enrols(sessions, node, **(on_a if node == "a" else {}))
        beats(sessions, node)
    coordinator = sessions.coordinator
    coordinator.on_message(StoreUp("h", 1, 1), now_s=0.0, node="a")
    for worker in (1, 2):
        coordinator.on_message(Hello(worker, worker), now_s=0.0)
        coordinator.on_message(Registered(worker, 1, 0, "in_place", False, True, ""), now_s=0.0)


def test_news_that_arrive_twice_are_used_once() -> None:
    sessions = coordinator_sessions()
    trains(sessions)
    sessions.on_link("a", FromNode(1, 0, 0.0, Parked(1, "hot")), now_s=0.0)
    assert sessions.on_link("a", FromNode(1, 0, 0.0, Parked(1, "hot")), now_s=0.0) == []


def test_a_node_that_is_about_to_return_and_does_not_is_not_waited_for() -> None:
    sessions = coordinator_sessions()
    trains(sessions)
    enrols(sessions, "b", now_s=1.0, session=2, ended=1, epoch=1)
    assert sessions.coordinator.nodes.returning == {"b"}
    rings_late(sessions, now_s=1.0 + void_after_s(LEASE_S))
    assert sessions.coordinator.nodes.returning == set()


def test_deaths_on_a_silent_node_are_awaited_until_its_lease_is_void() -> None:
    sessions = coordinator_sessions()
    trains(sessions)
    sessions.coordinator.roster.holder(1).life.condemned = True
    sessions.on_disconnected("b")
    assert SetTimer("kill", 60.0 + limits.SILENT_LOOK_S) in sessions.coordinator.on_timer(
        now_s=60.0, name="kill"
    )
    assert sessions.coordinator.stage is not Stage.STOPPING


def test_a_late_rank_on_a_silent_node_is_awaited_and_not_killed() -> None:
    """Method: rank 0 raises, and rank 1's answer cannot arrive. Once its node is connected again
    and rank 1 has still not answered, it is killed.
    """
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    one.on_message(Broke(1, 1, 0, "exception", "boom", "", 1.0), now_s=1.0)
    one.on_timer(now_s=1.1, name="gather")
    one.on_message(Inventory(1, 1, 0, 0, 0, False, ()), now_s=1.2)
    sessions.on_disconnected("b")
    assert sessions.on_timer(now_s=30.0, name="leave") == [
        SetTimer("leave", 30.0 + limits.SILENT_LOOK_S)
    ]
    enrols(sessions, "b", now_s=30.2, epoch=1)
    out = sessions.on_timer(now_s=30.5, name="leave")
    assert [
        (node, order.worker) for node, order in orders(out) if isinstance(order, KillWorker)
    ] == [("b", 2)]
    assert "leave" not in [output.name for output in out if isinstance(output, SetTimer)]


@pytest.mark.parametrize(
    ("stands", "plan"),
    [
        (Inventory(1, 1, 6, 6, 6, False, ()), (2, 6, 7)),
        (Inventory(1, 1, 6, 7, 6, True, (7, 6)), (2, 7, 7)),
    ],
    ids=["cannot_apply_it", "has_prepared_it"],
)
def test_a_step_seen_committed_on_a_lost_node_is_kept_if_it_can_be(
    stands: Inventory, plan: tuple[int, int, int]
) -> None:
    """Method: step 7 was seen committed when node b was lost. The last message of its rank was lost
    with it.

    The survivor applies the step if it has prepared it. Otherwise the step counts as repeated.
    """
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    for worker in (1, 2):
        one.on_message(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
    one.on_message(Progress(7, 7, 0.1, 2.0), now_s=2.0, node="b")
    one.node_lost(now_s=3.0, node="b", reason="no power")
    enrols(sessions, "c", now_s=3.1)
    beats(sessions, "c", now_s=3.1)
    sessions.on_timer(now_s=3.2, name="gather")
    one.on_message(stands, now_s=3.3)
    first, second = (member.path.plan for member in one.roster.members())
    assert first is not None
    assert second is not None
    assert (first.settle, first.step) == ("forward" if plan[1] == 7 else "repeat", plan[1])
    assert (second.generation, second.step, second.high_water) == plan


def test_a_late_inventory_from_a_lost_node_does_not_bring_its_images_back() -> None:
    """The images count again only if the node finds them sealed when it enrols again."""
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    one.node_lost(now_s=3.0, node="b", reason="no power")
    one.on_message(Inventory(2, 1, 6, 6, 6, False, (6,)), now_s=3.1)
    assert one.roster.remains.imageless == {1}


def test_images_count_where_the_rank_lived_last_and_nowhere_else() -> None:
    sessions = coordinator_sessions()
    trains(sessions)
    roster = sessions.coordinator.roster
    for node, found in (("a", False), ("b", True)):
        roster.remains.lose_rank(1)
        rings_late(sessions, now_s=void_after_s(LEASE_S))
        enrols(sessions, node, session=2, images=(Images(1, (4, 3)),), now_s=void_after_s(LEASE_S))
        beats(sessions, node, now_s=void_after_s(LEASE_S))
        assert roster.remains.has_images(1) is found


@pytest.mark.parametrize(("generation", "newest"), [(1, 6), (2, 7)])
def test_a_step_that_was_undone_is_not_committed_for_a_node_that_returns(
    generation: int, newest: int
) -> None:
    """Method: generation 2 goes on from step 6. Node b comes back, and a rank there had committed
    step 7, in generation 1 or in this one.
    """
    sessions = coordinator_sessions()
    trains(sessions)
    one = sessions.coordinator
    one.run.lifecycle.next_generation()
    one.run.progress.begin(6)
    back_s = void_after_s(LEASE_S)
    rings_late(sessions, now_s=back_s)
    found = Images(1, (7, 6), 9, (generation, 7))
    enrols(sessions, "b", session=2, images=(found,), now_s=back_s)
    beats(sessions, "b", now_s=back_s)
    assert (one.run.progress.step, one.roster.remains.done(1)) == (newest, 9)


def test_an_agent_forgets_steps_that_a_plan_has_undone() -> None:
    site = AgentSite.make()
    site.is_welcome()
    site.told(1, StartWorker(7, 0, "rank", 1))
    site.agent_session.on_worker(Joined(7, 1, 9, 0.0, 0.0), now_s=10.0)
    assert site.connects().step == 9
    site.hears(Welcome(1, 1, LEASE_S, False, ()))
    site.told(2, ToWorkers((7,), (0,), _plan(rank=-1, generation=2)))
    assert site.connects().step == 0


def test_a_delayed_coordinator_reads_what_waits_before_counting_nodes_out() -> None:
    """Method: node a's beat waits in the kernel while the timer of the sessions comes late. Node b
    has sent nothing, and is counted out at the next look.
    """
    sessions = coordinator_sessions()
    trains(sessions)
    late_s = void_after_s(LEASE_S) + 5.0
    assert sessions.on_timer(now_s=late_s, name="leases") == [
        SetTimer("leases", late_s + limits.SILENT_LOOK_S)
    ]
    beats(sessions, "a", 2, now_s=late_s)
    sessions.on_timer(now_s=late_s + limits.SILENT_LOOK_S, name="leases")
    assert ("a" in sessions.coordinator.nodes, "b" in sessions.coordinator.nodes) == (True, False)


def test_the_store_goes_to_another_node_when_its_own_is_lost() -> None:
    site, sessions = AgentSite.make(), coordinator_sessions()
    trains(sessions)
    beats(sessions, "b", 2, now_s=void_after_s(LEASE_S) - 1.0)
    out = rings_late(sessions, now_s=void_after_s(LEASE_S))
    (order,) = [
        order for node, order in orders(out) if node == "b" and type(order).__name__ == "StartStore"
    ]
    site.is_welcome()
    assert HostStore(order.reason) in site.told(1, order)


def test_an_agent_that_is_not_admitted_is_ignored() -> None:
    """The message was in transit when the node was counted out."""
    sessions = coordinator_sessions()
    assert sessions.on_link("a", FromNode(1, 0, 0.0, Hello(1, 1)), now_s=0.0) == []


def test_a_rank_does_not_begin_from_slots_that_hold_another_step() -> None:
    """Method: all ranks started over from an older step. Then a node came back with the replicated
    state of a later step.
    """
    one = coordinator_sessions().coordinator
    one.roster.remains.find_images(0, (3,))
    one.roster.remains.find_images(1, (9, 8))
    plans = [one.regroup.plans.of_rank(rank, "slot", 9) for rank in (0, 1)]
    assert [plan.private for plan in plans] == ["none", "slot"]


def test_a_quiesced_rank_finds_its_state_though_its_join_was_not_received() -> None:
    """Method: all ranks had started over elsewhere, and rank 0 had read the state it begins from.
    Then rank 1 dies before all have joined.
    """
    run = Run()
    run.coordinator.roster.remains.lose_rank(0)
    run.dies(5)
    run.stands_still(5)
    plan = run.coordinator.roster.holder(0).path.plan
    assert plan is not None
    assert (plan.generation, plan.step, plan.private) == (2, 10, "slot")
