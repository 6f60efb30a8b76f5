"""A coordinator that follows one that died: what it concludes from the workers that agents have,
and from the messages that arrive while it asks them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.coordinator.interruptions import InterruptionLog
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.remains import ScriptFacts
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.coordinator.takeover import RecoveredEnd, RecoveredState
from outlast.engine.protocol.outputs import End, Output, Record, SetTimer
from outlast.model import limits
from outlast.model.messages import (
    Broke,
    Committed,
    FromNode,
    Hello,
    Housed,
    Images,
    Inventory,
    Joined,
    KillWorker,
    Registered,
    StartStore,
    StartWorker,
    TermWorker,
    WorkerExited,
)
from outlast.model.records import Interruption
from outlast.model.terms import Mechanism
from tests.engine.test_interruptions import log_of, newest
from tests.engine.test_nodes import LEASE_S, _plan, beats, coordinator_sessions, enrols, orders

Word = Hello | Registered | Broke | Inventory | Joined | Committed


def at_work(worker: int, rank: int) -> Housed:
    """Return a worker that trains in generation 1."""
    said = (
        Hello(worker, 100 + worker),
        Registered(worker, 1, 0, "in_place", False, True, ""),
        Joined(worker, 1, 0, 0.1, 0.1),
    )
    return Housed(
        worker, rank, "rank", 100 + worker, _plan(rank=rank, generation=1), said, False, None
    )


def housed(rank: int, *said: Word, generation: int = 2) -> Housed:
    """Return worker 1 for rank 0, or worker 2 for rank 1. The newest plan that was delivered to it
    is of `generation`.
    """
    return Housed(
        rank + 1,
        rank,
        "rank",
        101 + rank,
        _plan(rank=rank, generation=generation),
        said,
        False,
        None,
    )


def trains_in(
    generation: int, rank: int, *, sharded: bool = False, committed_s: float | None = None
) -> Housed:
    """Return a worker that trains in this generation. `committed_s` is the time of its first commit
    there.
    """
    worker = rank + 1
    said = (
        Hello(worker, 101 + rank),
        Registered(worker, generation, 0, "in_place", sharded, True, ""),
        Joined(worker, generation, 0, 0.1, 0.1),
    )
    commits = () if committed_s is None else (Committed(worker, generation, 1, committed_s),)
    return housed(rank, *said, *commits, generation=generation)


def the_next(remembered: RecoveredState) -> CoordinatorSessions:
    """Return the next coordinator. It waits for nodes a and b; rank 0 lived on a, and rank
    1 on b.
    """
    options = CoordinatorOptions(
        2,
        Restart(),
        nodes=2,
        generation=remembered.generation,
        first_interruption=1 + len(remembered.interruptions),
        first_worker=3,
    )
    sessions = CoordinatorSessions(Coordinator(options=options), epoch=2, lease_s=LEASE_S)
    sessions.coordinator.remember(replace(remembered, homes={0: "a", 1: "b"}))
    sessions.rebuild(now_s=10.0, nodes={"a": 1, "b": 1})
    return sessions


def rebuilt(
    *found: Housed, remembered: RecoveredState | None = None
) -> tuple[CoordinatorSessions, list[Output]]:
    """Rebuild the run at 10 s, with the workers of rank 0 on node a and those of rank 1 on node b.

    Return the sessions, and the outputs after the last node had enrolled.
    """
    sessions = the_next(remembered or RecoveredState())
    out: list[Output] = []
    for rank, node in enumerate("ab"):
        out = enrols(
            sessions,
            node,
            now_s=10.0,
            epoch=1,
            housed=tuple(one for one in found if one.rank == rank),
        )
    return sessions, out


def interrupted(script: ScriptFacts | None = None) -> RecoveredState:
    """Return the records of a run that lost rank 1 in generation 1, at 1.0 s, detected at 1.1 s."""
    return RecoveredState(
        generation=1, interruptions={1: newest(log_of())}, script=script or ScriptFacts()
    )


def booked(outputs: list[Output]) -> list[Interruption]:
    return [
        output.record
        for output in outputs
        if isinstance(output, Record) and isinstance(output.record, Interruption)
    ]


def all_stand_still(sessions: CoordinatorSessions) -> list[Output]:
    """Let all living ranks stand still in generation 2, at step 5. Return the outputs of the last
    inventory.
    """
    out = sessions.on_timer(now_s=11.0, name="gather")
    for member in sessions.coordinator.roster.live():
        out = sessions.on_link(
            member.home,
            FromNode(1, 0, 11.1, Inventory(member.worker, 2, 5, 5, 5, False, ())),
            now_s=11.1,
        )
    return out


def test_a_fault_seen_during_a_takeover_is_dealt_with_after_it() -> None:
    """Method: rank 0 on node a is killed after its node has enrolled, and before node b has."""
    sessions = coordinator_sessions()
    sessions.rebuild(now_s=0.0, nodes={"a": 1, "b": 1})
    enrols(sessions, "a", epoch=1, housed=(at_work(1, 0),))
    killed = WorkerExited(1, 101, None, 9, False, 0, (), (), "body", 1.0, 1.0, "")
    assert sessions.on_link("a", FromNode(1, 0, 1.0, killed), now_s=1.0) == []
    out = enrols(sessions, "b", now_s=2.0, epoch=1, housed=(at_work(2, 1),))
    assert [(one.ranks, one.pids, one.error) for one in booked(out)] == [((0,), (101,), "signal 9")]
    assert sessions.coordinator.stage is Stage.GATHERING


# --- progress without a coordinator
# ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sharded", "commits", "resumed_s"),
    [
        (False, (None, None), None),
        (False, (None, 7.0), 7.0),
        (False, (8.0, 7.0), 7.0),
        (True, (None, 7.0), None),
        (True, (8.0, 7.0), 8.0),
    ],
)
def test_a_step_committed_without_a_coordinator_ends_an_interruption(
    sharded: bool, commits: tuple[float | None, float | None], resumed_s: float | None
) -> None:
    """Both ranks train in generation 2.

    A step of replicated state is committed once one rank has committed it, a step of sharded state
    once all have.
    """
    found = [
        trains_in(2, rank, sharded=sharded, committed_s=at_s) for rank, at_s in enumerate(commits)
    ]
    sessions, out = rebuilt(*found, remembered=interrupted(ScriptFacts(outlast=True)))
    assert sessions.coordinator.stage is Stage.TRAINING
    assert [one.resumed_s for one in booked(out)] == ([] if resumed_s is None else [resumed_s])
    assert bool(sessions.coordinator.interruptions.open) == (resumed_s is None)


def test_a_sharded_step_is_not_known_as_committed_while_a_rank_is_gone() -> None:
    """The process of rank 1 is gone, so what it had committed is unknown."""
    sessions, _ = rebuilt(
        trains_in(2, 0, sharded=True, committed_s=7.0),
        remembered=interrupted(ScriptFacts(outlast=True, sharded=True)),
    )
    assert [one.id for one in sessions.coordinator.interruptions.open] == [1]
    assert sessions.coordinator.stage is Stage.GATHERING


@pytest.mark.parametrize(("committed_s", "resumed_s"), [(None, []), (7.0, [7.0])])
def test_a_commit_of_an_older_generation_ends_no_interruption(
    committed_s: float | None, resumed_s: list[float]
) -> None:
    """Method: rank 0 was told of generation 3, and rank 1 not yet. Rank 1 had committed in
    generation 2, at 4.0 s.
    """
    sessions, out = rebuilt(
        trains_in(3, 0, committed_s=committed_s),
        trains_in(2, 1, committed_s=4.0),
        remembered=interrupted(ScriptFacts(outlast=True)),
    )
    assert [one.resumed_s for one in booked(out) if one.resumed_s is not None] == resumed_s
    assert sessions.coordinator.stage is Stage.GATHERING


# --- scripts without outlast calls ----------------------------------------------------------------

PLAIN = (housed(0, Hello(1, 101)), housed(1, Hello(2, 102)))


def test_a_script_without_outlast_calls_goes_on_if_all_its_processes_run() -> None:
    """No rank is killed because of the takeover, and the open interruption ends because all
    processes run. The run was not asked to stop.
    """
    sessions, out = rebuilt(*PLAIN, remembered=interrupted())
    assert sessions.coordinator.runs_plain
    assert [one.resumed_s for one in booked(out)] == [10.0]
    assert [
        order
        for _, order in orders(out)
        if isinstance(order, (KillWorker, TermWorker, StartWorker))
    ] == []
    assert {output.name for output in out if isinstance(output, SetTimer)}.isdisjoint(
        {"gather", "stop"}
    )


@pytest.mark.parametrize(
    "found",
    [
        PLAIN[:1],
        (PLAIN[0], housed(1)),
        (PLAIN[0], replace(PLAIN[1], killed=True)),
        (PLAIN[0], housed(1, Hello(2, 102), generation=1)),
        (PLAIN[0], housed(1, Hello(2, 102), Registered(2, 2, 0, "in_place", False, True, ""))),
    ],
    ids=[
        "one is gone",
        "one has not begun",
        "one was to be killed",
        "one is of the generation before",
        "one has called outlast.join",
    ],
)
def test_processes_that_are_not_all_at_work_come_to_a_new_generation(
    found: tuple[Housed, ...],
) -> None:
    sessions, out = rebuilt(*found)
    assert sessions.coordinator.stage is Stage.GATHERING
    assert [(one.mechanism, one.resumed_s) for one in booked(out)][-1:] == [
        (Mechanism.LOST_CONTACT, None)
    ]


def test_a_plain_script_is_asked_to_stop_again_by_the_next_coordinator() -> None:
    """The previous coordinator may have died before it had sent SIGTERM to all workers."""
    asked = RecoveredEnd(End(0, "stopped", "enough", ""), by_signal=True)
    sessions, out = rebuilt(*PLAIN, remembered=RecoveredState(generation=2, ending=asked))
    assert [
        (node, order.worker) for node, order in orders(out) if isinstance(order, TermWorker)
    ] == [("a", 1), ("b", 2)]
    assert SetTimer("stop", 10.0 + sessions.coordinator.run.options.term_grace_s) in out


# --- errors reported without a coordinator
# ----------------------------------------------------------


def test_an_error_raised_without_a_coordinator_is_named_as_the_fault() -> None:
    """Only the agent of that rank had heard its report."""
    raised = Broke(2, 2, 0, "exception", "boom", "line 3", 9.0)
    sessions, _ = rebuilt(
        trains_in(2, 0),
        housed(1, Hello(2, 102), Registered(2, 2, 0, "in_place", False, True, ""), raised),
    )
    (one,) = booked(all_stand_still(sessions))
    assert (one.ranks, one.mechanism, one.error, one.traceback) == (
        (1,),
        Mechanism.EXCEPTION,
        "boom",
        "line 3",
    )


def test_errors_raised_without_a_coordinator_are_booked_after_a_takeover() -> None:
    """Method: both ranks raised, each by itself. That is one event, and it is in the ledger before
    anything else is done.
    """
    said = [
        (
            Hello(w, 100 + w),
            Registered(w, 2, 0, "in_place", False, True, ""),
            Broke(w, 2, 0, "exception", f"boom {w}", "", 9.0),
        )
        for w in (1, 2)
    ]
    sessions, out = rebuilt(housed(0, *said[0]), housed(1, *said[1]))
    assert [(one.id, one.ranks, one.mechanism, one.error) for one in booked(out)][-1] == (
        1,
        (0, 1),
        Mechanism.EXCEPTION,
        "boom 1",
    )
    assert sessions.coordinator.stage is Stage.GATHERING


def test_an_error_is_booked_beside_an_earlier_failure() -> None:
    """Method: rank 1 was lost in generation 1. In generation 2, while there was no coordinator,
    rank 0 raised.
    """
    raised = Broke(1, 2, 0, "exception", "boom", "", 9.0)
    before = RecoveredState(generation=1, interruptions={1: replace(newest(log_of()), pids=(99,))})
    sessions, out = rebuilt(
        housed(0, Hello(1, 101), Registered(1, 2, 0, "in_place", False, True, ""), raised),
        trains_in(2, 1),
        remembered=before,
    )
    assert [(one.id, one.parent, one.ranks, one.mechanism) for one in booked(out)][-1] == (
        2,
        1,
        (0,),
        Mechanism.EXCEPTION,
    )
    _, last = {one.id: one for one in booked(all_stand_still(sessions))}.values()
    assert (last.id, last.error) == (2, "boom")


def test_an_error_that_is_booked_already_is_not_booked_again() -> None:
    """The coordinator that died had booked the error of this process."""
    log = InterruptionLog()
    log.fault(
        rank=1,
        pid=102,
        node="b",
        mechanism=Mechanism.EXCEPTION,
        generation=2,
        step=0,
        fault_s=9.0,
        fault_not_before_s=None,
        detected_s=9.1,
        same_event=False,
        error="boom",
        traceback="",
        reason="rank 1 raised",
    )
    raised = Broke(2, 2, 0, "exception", "boom", "", 9.0)
    _, out = rebuilt(
        trains_in(2, 0),
        housed(1, Hello(2, 102), Registered(2, 2, 0, "in_place", False, True, ""), raised),
        remembered=RecoveredState(generation=2, interruptions={1: newest(log)}),
    )
    assert {one.id for one in booked(out)} <= {1}


@pytest.mark.parametrize(("generation", "cut"), [(3, True), (2, False)])
def test_nodes_count_as_cut_off_if_the_newest_generation_failed_for_it(
    generation: int, cut: bool
) -> None:
    """Method: rank 1 could not connect to rank 0 on its way into `generation`, and rank 0 was told
    of generation 3.
    """
    broke = Broke(2, generation, 0, "collective", "no connection", "", 9.0, unreached=(0,))
    sessions, _ = rebuilt(
        housed(0, Hello(1, 101), generation=3),
        housed(1, Hello(2, 102), broke, generation=generation),
    )
    assert (sessions.coordinator.links.reason if sessions.coordinator.links else "") == (
        "nodes a and b cannot reach each other" if cut else ""
    )


@pytest.mark.parametrize(
    ("committed", "wait_s"),
    [(-1, limits.REGROUP_DEADLINE_S), (0, limits.LEAVE_DEADLINE_S + 2 * limits.RANK_HEARD_S)],
    ids=["it has no state yet", "it has state"],
)
def test_all_have_longer_to_leave_if_a_quiesced_rank_has_no_state_yet(
    committed: int, wait_s: float
) -> None:
    """Method: rank 1 stands still, and had not reached run.steps when it was told to leave. Rank 0
    has not answered yet.
    """
    still = Inventory(2, 2, committed, committed, committed, False, ())
    sessions, _ = rebuilt(
        trains_in(2, 0),
        housed(
            1,
            Hello(2, 102),
            Registered(2, 2, -1, "in_place", False, True, "", at_steps=False),
            still,
        ),
    )
    out = sessions.on_timer(now_s=11.0, name="gather")
    assert [
        output.at_s for output in out if isinstance(output, SetTimer) and output.name == "leave"
    ] == [11.0 + wait_s]


# --- what the next generation is told -------------------------------------------------------------


@pytest.mark.parametrize(("fault_s", "told_s"), [(1.0, 1.0), (None, 1.1)])
def test_plans_carry_the_time_of_a_fault_from_before_the_takeover(
    fault_s: float | None, told_s: float
) -> None:
    """Method: rank 1 was lost, and its rank has no new worker yet.

    If the time of the fault is unknown, the plans carry the time of its detection.
    """
    one = replace(newest(log_of()), fault_s=fault_s)
    sessions, _ = rebuilt(
        trains_in(2, 0),
        remembered=RecoveredState(
            generation=2, script=ScriptFacts(outlast=True), interruptions={1: one}
        ),
    )
    all_stand_still(sessions)
    plans = [member.path.plan for member in sessions.coordinator.roster.members()]
    assert [plan and (plan.generation, plan.fault_s, plan.detected_s) for plan in plans] == [
        (3, told_s, 1.1)
    ] * 2


@pytest.mark.parametrize("transfers", [{"a": (2, 5), "b": (1, 3)}, {"a": (1, 3), "b": (2, 5)}])
def test_the_newest_transfer_image_counts_in_any_order_of_nodes(
    transfers: dict[str, tuple[int, int]],
) -> None:
    """All ranks have ended since the state was handed over, and begin from the image that was
    handed over.
    """
    sessions = the_next(RecoveredState(generation=2, script=ScriptFacts(outlast=True)))
    for rank, node in enumerate("ab"):
        enrols(
            sessions,
            node,
            now_s=10.0,
            epoch=1,
            step=5,
            transfer=transfers[node],
            housed=() if rank else (trains_in(2, 0),),
        )
    killed = WorkerExited(1, 101, None, 9, False, 5, (), (), "body", 10.1, 10.1, "")
    sessions.on_link("a", FromNode(1, 0, 10.1, killed), now_s=10.1)
    sessions.on_timer(now_s=11.0, name="gather")
    plans = [member.path.plan for member in sessions.coordinator.roster.members()]
    assert [plan and (plan.generation, plan.step, plan.replicated) for plan in plans] == [
        (3, 5, "transfer")
    ] * 2


@pytest.mark.parametrize(("delivered", "ended_in", "newest"), [(2, 1, 0), (2, 2, 3), (1, 1, 3)])
def test_a_step_that_was_undone_is_not_committed_for_the_next_coordinator(
    delivered: int, ended_in: int, newest: int
) -> None:
    """Method: a process on node b had committed step 3 and ended. Node b enrols before node a.

    Generation 2 goes on from step 0. If its plan has reached no worker, it has undone nothing.
    """
    sessions = the_next(RecoveredState(generation=2, script=ScriptFacts(outlast=True)))
    ended = Images(1, (), 3, (ended_in, 3))
    enrols(sessions, "b", now_s=10.0, epoch=1, images=(ended,))
    enrols(sessions, "a", now_s=10.0, epoch=1, housed=(trains_in(delivered, 0),))
    run = sessions.coordinator.run
    assert (run.progress.step, run.progress.executed) == (newest, 3)


def test_a_store_ordered_before_the_run_began_is_not_ordered_again() -> None:
    """Method: the coordinator was lost while nodes enrolled, and node a enrols with its successor.

    A second store would leave the first one running, and its address would not be used.
    """
    sessions = CoordinatorSessions(
        Coordinator(options=CoordinatorOptions(2, Restart(), nodes=2)), epoch=2, lease_s=LEASE_S
    )
    sessions.coordinator.remember(RecoveredState())
    sessions.rebuild(now_s=10.0, nodes={"b": 1})
    ordered = [
        (node, order)
        for out in (
            enrols(sessions, "b", now_s=10.0, epoch=1),
            enrols(sessions, "a", now_s=10.1),
            beats(sessions, "a", now_s=10.2),
        )
        for node, order in orders(out)
        if isinstance(order, StartStore | StartWorker)
    ]
    stores = [node for node, order in ordered if isinstance(order, StartStore)]
    ranks = [(node, order.rank) for node, order in ordered if isinstance(order, StartWorker)]
    assert (stores, ranks) == (["b"], [("a", 0), ("b", 1)]), ordered
