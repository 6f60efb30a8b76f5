"""The agent sends equal messages of its workers as one: no message is lost or sent twice, each
worker's messages stay in order, and no worker waits for a silent one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.agent.agent import Agent, split_order
from outlast.engine.cluster.agent_session import AgentSession, NodeOffer
from outlast.engine.cluster.batching import MessageBatch
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.shared_plans import RankFields, SharedPlans, with_store
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Kill, Output, SendOverLink, SetTimer
from outlast.model import limits
from outlast.model.messages import (
    Broke,
    Committed,
    Enrol,
    FromNode,
    FromWorkers,
    Hello,
    Inventory,
    Joined,
    KillWorker,
    Leave,
    Registered,
    Regroup,
    StartWorker,
    StoreUp,
    ToNode,
    ToWorkers,
    Underway,
    Welcome,
    WorkerExited,
    WorkerStarted,
)

WORKERS = (7, 8, 9)
LEASE_S = 600.0


def an_agent_session() -> AgentSession:
    """Return the session of an agent that has three workers and that the coordinator has
    welcomed.
    """
    agent_session = AgentSession(
        Agent(now_s=0.0, only_node=False), offer=NodeOffer("a", 3), beat_s=100.0
    )
    agent_session.on_connected(images=(), transfer=(), session=1, now_s=0.0)
    agent_session.on_link(Welcome(1, 0, LEASE_S, False, ()), now_s=0.0)
    for number, worker in enumerate(WORKERS, 1):
        agent_session.on_link(
            ToNode(number, 0, 0.0, StartWorker(worker, number - 1, "rank", 1)), now_s=0.0
        )
        agent_session.on_event(WorkerStarted(worker, worker, "a", 0.0), now_s=0.0)
    return agent_session


def lines(outputs: list[Output]) -> list[Any]:
    return [
        one.message.message
        for one in outputs
        if isinstance(one, SendOverLink) and isinstance(one.message, FromNode)
    ]


def underway(worker: int, place: int = 1) -> Underway:
    return Underway(worker, 1, place)


def test_equal_messages_of_all_workers_of_a_node_are_sent_as_one() -> None:
    agent_session = an_agent_session()
    assert lines(agent_session.on_worker(underway(7), now_s=0.0)) == []
    assert lines(agent_session.on_worker(underway(8), now_s=0.0)) == []
    assert lines(agent_session.on_worker(underway(9), now_s=0.0)) == [
        FromWorkers(WORKERS, underway(0))
    ]


def test_a_batch_waits_only_a_moment_for_a_silent_worker() -> None:
    agent_session = an_agent_session()
    assert SetTimer("batch", 5.0 + limits.BATCH_WAIT_S) in agent_session.on_worker(
        underway(7), now_s=5.0
    )
    assert not [
        one
        for one in agent_session.on_worker(underway(8), now_s=5.001)
        if isinstance(one, SetTimer)
    ], "the first to speak has set the timer"
    assert lines(agent_session.on_timer(now_s=5.002, name="batch")) == [
        FromWorkers((7, 8), underway(0))
    ]
    assert lines(agent_session.on_timer(now_s=5.003, name="batch")) == []


def test_a_batch_does_not_wait_for_dead_workers() -> None:
    agent_session = an_agent_session()
    agent_session.on_event(
        WorkerExited(9, 9, None, 9, False, 0, (), (), "body", 1.0, 1.0, ""), now_s=1.0
    )
    agent_session.on_worker(underway(7), now_s=1.0)
    assert lines(agent_session.on_worker(underway(8), now_s=1.0)) == [
        FromWorkers((7, 8), underway(0))
    ]


def test_different_messages_are_sent_apart_and_a_single_one_unchanged() -> None:
    agent_session = an_agent_session()
    agent_session.on_worker(underway(7), now_s=1.0)
    agent_session.on_worker(underway(8, place=3), now_s=1.0)
    assert lines(agent_session.on_worker(underway(9), now_s=1.0)) == [
        FromWorkers((7, 9), underway(0)),
        underway(8, place=3),
    ]


def test_a_workers_second_message_sends_the_waiting_batch_first() -> None:
    agent_session = an_agent_session()
    agent_session.on_worker(underway(7), now_s=1.0)
    broke = Broke(8, 1, 0, "collective", "", "", 1.0)
    assert lines(agent_session.on_worker(broke, now_s=1.0)) == [underway(7), broke]
    agent_session.on_worker(underway(7, place=2), now_s=1.0)
    assert lines(agent_session.on_worker(underway(7, place=3), now_s=1.0)) == [underway(7, place=2)]


def test_the_largest_of_the_measured_values_is_sent() -> None:
    chorus = MessageBatch()
    for worker, taken_s in ((7, 0.2), (8, 0.5), (9, 0.1)):
        chorus.add(Joined(worker, 2, 4, taken_s, 1.0 - taken_s))
    assert chorus.take() == [FromWorkers(WORKERS, Joined(0, 2, 4, 0.5, 0.9))]
    for worker in WORKERS:
        chorus.add(Committed(worker, 2, 5, float(worker)))
    assert chorus.take() == [FromWorkers(WORKERS, Committed(0, 2, 5, 9.0))]


WORDS = st.one_of(
    st.builds(Underway, st.sampled_from(WORKERS), st.just(1), st.integers(1, 3)),
    st.builds(Joined, st.sampled_from(WORKERS), st.just(1), st.just(4), st.just(0.0), st.just(0.0)),
    st.builds(
        Registered,
        st.sampled_from(WORKERS),
        st.just(1),
        st.just(4),
        st.just("in_place"),
        st.booleans(),
        st.just(True),
        st.just(""),
    ),
    st.builds(
        Inventory,
        st.sampled_from(WORKERS),
        st.just(1),
        st.integers(3, 4),
        st.just(4),
        st.just(4),
        st.booleans(),
        st.just((4, 3)),
    ),
    st.builds(Hello, st.sampled_from(WORKERS), st.just(1)),
)


@given(st.lists(st.one_of(WORDS, st.sampled_from(["time", "lost", "back"])), max_size=30))
def test_each_message_arrives_once_and_in_order_despite_lost_connections(
    course: list[Any],
) -> None:
    """In the drawn course, `time` means that the batch's wait is over, and `lost` and `back` mean
    that the connection breaks and returns.

    At the end the connection is there, and the wait is over.
    """
    agent_session, said, heard, numbers = an_agent_session(), [], [], 3
    arrived = numbers

    def take(outputs: list[Output]) -> None:
        nonlocal arrived
        for one in outputs:
            if (
                isinstance(one, SendOverLink)
                and isinstance(one.message, FromNode)
                and one.message.number == arrived + 1
            ):
                arrived += 1
                message = one.message.message
                heard.extend(
                    [replace(message.message, worker=worker) for worker in message.workers]
                    if isinstance(message, FromWorkers)
                    else [message]
                )

    for act in [*course, "back", "time"]:
        if act == "time":
            take(agent_session.on_timer(now_s=1.0, name="batch"))
        elif act == "lost":
            agent_session.on_disconnected()
        elif act == "back":
            agent_session.on_connected(images=(), transfer=(), session=1, now_s=1.0)
            take(agent_session.on_link(Welcome(1, arrived, LEASE_S, False, None), now_s=1.0))
        else:
            said.append(act)
            take(agent_session.on_worker(act, now_s=1.0))
    for worker in WORKERS:
        assert [one for one in heard if one.worker == worker] == [
            one for one in said if one.worker == worker
        ]


def test_a_new_coordinator_hears_later_messages_and_none_twice() -> None:
    """Method: a worker sends one message before the Enrol, and one between the Enrol and the
    Welcome, while the new coordinator has heard neither.
    """
    agent_session = an_agent_session()
    agent_session.on_disconnected()
    agent_session.on_worker(underway(7), now_s=1.0)
    said = agent_session.on_connected(images=(), transfer=(), session=1, now_s=1.0)
    (line,) = [one for one in said if isinstance(one, SendOverLink)]
    assert [house.said for house in line.message.housed if house.worker == 7] == [(underway(7),)]  # type: ignore[union-attr]
    later = underway(7, place=2)
    agent_session.on_worker(later, now_s=1.0)
    agent_session.on_timer(now_s=1.002, name="batch")
    welcomed = agent_session.on_link(Welcome(2, 0, LEASE_S, False, None), now_s=1.01)
    assert [
        one.message
        for one in welcomed
        if isinstance(one, SendOverLink) and isinstance(one.message, FromNode)
    ] == [FromNode(1, 0, 1.01, later)]
    (second,) = lines(agent_session.on_worker(Hello(8, 8), now_s=1.02))
    assert second == Hello(8, 8)


@pytest.mark.parametrize("killed", [(), (9,), (7, 8)])
def test_messages_said_together_are_sent_as_if_said_one_by_one(
    killed: tuple[int, ...],
) -> None:
    """Some of the workers have been ordered killed and have not ended yet. The batch does not wait
    for their messages.
    """
    together, apart = an_agent_session(), an_agent_session()
    for agent_session in (together, apart):
        for number, worker in enumerate(killed, 4):
            agent_session.on_link(ToNode(number, 0, 0.0, KillWorker(worker, "why not")), now_s=0.0)
    said = lines(together.on_workers(WORKERS, underway(7), now_s=1.0))
    assert said == [
        line for worker in WORKERS for line in lines(apart.on_worker(underway(worker), now_s=1.0))
    ]
    assert lines(together.on_timer(now_s=1.002, name="batch")) == lines(
        apart.on_timer(now_s=1.002, name="batch")
    )


def test_workers_that_speak_when_the_lease_is_out_are_killed() -> None:
    """The agent stood still, and notices the end of its lease only when its workers send something.

    Method: two workers send a message. Then, before any of them has ended, all three do.
    """
    agent_session = an_agent_session()
    out = agent_session.on_workers((7, 8), underway(7), now_s=LEASE_S)
    assert [one.worker for one in out if isinstance(one, Kill)] == list(WORKERS)
    assert lines(out) == []
    assert agent_session.on_workers((7, 8), underway(7, place=2), now_s=LEASE_S + 0.1) == []


def test_a_registration_is_not_undone_by_an_older_one() -> None:
    """Method: the worker's registration from outlast.join arrives again after the one from
    run.steps.
    """
    agent_session = an_agent_session()
    newest = Registered(7, 1, 4, "in_place", True, True, "")
    for one in (newest, replace(newest, step=-1, recovery_mode="respawn", at_steps=False)):
        agent_session.on_worker(one, now_s=1.0)
    said = agent_session.on_connected(images=(), transfer=(), session=1, now_s=1.0)
    messages = [one.message for one in said if isinstance(one, SendOverLink)]
    (enrol,) = [one for one in messages if isinstance(one, Enrol)]
    assert [house.said for house in enrol.housed if house.worker == 7] == [(newest,)]


def test_a_registration_that_comes_twice_keeps_its_place() -> None:
    """The next coordinator takes the registration for the beginning of run.steps, which Joined then
    ends.

    Method: workers 7 and 8 register together, and each sends its own copy again.
    """
    agent_session = an_agent_session()
    registered = Registered(7, 1, -1, "in_place", False, True, "")
    agent_session.on_workers((7, 8), registered, now_s=1.0)
    for worker in (7, 8):
        agent_session.on_worker(Joined(worker, 1, 0, 0.1, 0.1), now_s=1.0)
        agent_session.on_worker(replace(registered, worker=worker), now_s=1.1)
    said = agent_session.on_connected(images=(), transfer=(), session=1, now_s=1.2)
    messages = [one.message for one in said if isinstance(one, SendOverLink)]
    (enrol,) = [one for one in messages if isinstance(one, Enrol)]
    assert [
        [type(one) for one in house.said] for house in enrol.housed if house.worker in (7, 8)
    ] == [[Registered, Joined]] * 2


# --- from the coordinator to the workers -------------------------------------------------------


def test_ranks_share_a_plan_and_each_worker_gets_its_own_rank() -> None:
    plans = SharedPlans(
        generation=2,
        rank=-1,
        world_size=3,
        store_host="",
        store_port=0,
        settle="none",
        then="start",
        step=4,
        donor=-1,
        donate=False,
        replicated="none",
        fault_s=None,
        detected_s=None,
    )
    first, second = (plans.of(RankFields("slot", "", 4)) for _ in range(2))
    third = plans.of(RankFields("slot", "", 5))
    assert first is second
    assert third == replace(first, high_water=5)
    sent = with_store((first, second, third), host="here", port=9)
    assert sent[id(first)] is sent[id(second)]
    assert sent[id(third)] == replace(third, store_host="here", store_port=9)
    told = split_order(ToWorkers((7, 8), (0, 1), first))
    assert told == [(7, replace(first, rank=0)), (8, replace(first, rank=1))]
    assert split_order(ToWorkers((7, 8), (), Leave(1, "why"))) == [
        (7, Leave(1, "why")),
        (8, Leave(1, "why")),
    ]


def test_an_agent_houses_the_plan_of_each_worker_with_its_rank() -> None:
    agent_session = an_agent_session()
    plan = Regroup(
        1, -1, 3, "h", 1, "none", "start", 0, -1, False, "none", "none", "", 0, None, None
    )
    agent_session.on_link(ToNode(4, 0, 1.0, ToWorkers((7, 9), (0, 2), plan)), now_s=1.0)
    (line,) = agent_session.on_connected(images=(), transfer=(), session=1, now_s=1.0)
    assert isinstance(line, SendOverLink)
    assert {house.worker: house.plan and house.plan.rank for house in line.message.housed} == {
        7: 0,
        8: None,
        9: 2,
    }  # type: ignore[union-attr]


def test_a_large_run_is_given_longer_to_leave() -> None:
    """Method: a rank dies in runs of two sizes. The leave timers differ by the time for the
    additional ranks.
    """

    def patience_s(ranks: int) -> float:
        coordinator = Coordinator(options=CoordinatorOptions(ranks, Restart()))
        coordinator.start(now_s=0.0)
        coordinator.on_message(StoreUp("h", 1, 1), now_s=0.0)
        workers = [member.worker for member in coordinator.roster.members()]
        for message in (
            said
            for worker in workers
            for said in (
                Hello(worker, worker),
                Registered(worker, 1, 0, "in_place", False, True, ""),
            )
        ):
            coordinator.on_message(message, now_s=0.0)
        coordinator.on_message(FromWorkers(tuple(workers), Joined(0, 1, 0, 0.0, 0.0)), now_s=0.0)
        assert coordinator.stage is Stage.TRAINING
        coordinator.on_message(
            WorkerExited(workers[0], 1, None, 9, False, 0, (0,), (0,), "body", 1.0, 1.0, ""),
            now_s=1.0,
        )
        out = coordinator.on_timer(now_s=2.0, name="gather")
        return next(
            one.at_s - 2.0
            for one in out
            if isinstance(one, SetTimer) and one.name == "leave" and one.at_s is not None
        )

    assert abs(patience_s(1_002) - patience_s(2) - 1_000 * limits.RANK_HEARD_S) < 1e-9
