"""What is recorded of an interruption as it unfolds: nothing twice, the times in order, and a class
that fits the mechanism.
"""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.interruptions import InterruptionLog
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import End, Record, SetTimer, ToAgent
from outlast.model import limits
from outlast.model.messages import (
    Broke,
    Finished,
    Hello,
    Inventory,
    Joined,
    Leave,
    Registered,
    StoreLost,
    ToWorkers,
    WorkerExited,
    WorkerHung,
    WorkerStarted,
)
from outlast.model.records import Interruption
from outlast.model.terms import FailureClass, Mechanism, Rung, Tier
from tests.engine.test_lost_steps import Run


def log_of(
    mechanism: Mechanism = Mechanism.SIGNAL,
    reason: str = "rank 1 ended",
    traceback: str = "",
) -> InterruptionLog:
    """Return a log in which rank 1 was lost in generation 1, one second after the start."""
    log = InterruptionLog()
    log.fault(
        rank=1,
        pid=101,
        node="here",
        mechanism=mechanism,
        generation=1,
        step=4,
        fault_s=1.0,
        fault_not_before_s=None,
        detected_s=1.1,
        same_event=False,
        error="boom" if mechanism is Mechanism.EXCEPTION else "",
        traceback=traceback,
        reason=reason,
    )
    return log


def newest(log: InterruptionLog) -> Interruption:
    return log.changed()[-1]


def test_all_have_joined_no_later_than_a_step_was_committed() -> None:
    """The last rank's Joined may arrive after the commit that it led to."""
    log = log_of()
    log.book_decision(now_s=1.2, rung=Rung.RESPAWN, reason="rank 1 is forked", repeated=1, lost=0)
    log.joined(now_s=1.5, restore_s=0.1, tier=Tier.PEER)
    assert log.resumed(at_s=1.45, generation=2) == 1
    one = newest(log)
    assert (one.regrouped_s, one.restored_s, one.resumed_s) == (1.4, 1.45, 1.45)


def test_a_repeated_reason_is_recorded_once() -> None:
    """Method: another rank joins the interruption with a reason that is known. Then the run decides
    twice, for the same reason.
    """
    log = log_of()
    log.fault(
        rank=2,
        pid=102,
        node="here",
        mechanism=Mechanism.HANG,
        generation=1,
        step=4,
        fault_s=None,
        fault_not_before_s=None,
        detected_s=1.1,
        same_event=True,
        error="",
        traceback="",
        reason="rank 2 hangs; rank 1 ended",
    )
    for _ in range(2):
        log.book_decision(
            now_s=1.2, rung=Rung.RESPAWN, reason="ranks are forked", repeated=1, lost=0
        )
    assert newest(log).reason == "rank 1 ended; rank 2 hangs; ranks are forked"


@pytest.mark.parametrize(
    ("first", "then", "ranks", "nodes"),
    [
        # the first report was collateral: rank 1 lost its connection to rank 2, which was killed
        (Mechanism.LOST_CONTACT, Mechanism.SIGNAL, (2,), ("there",)),
        (Mechanism.SIGNAL, Mechanism.SIGNAL, (1, 2), ("here", "there")),
    ],
)
def test_the_nodes_of_an_interruption_are_those_of_its_ranks(
    first: Mechanism, then: Mechanism, ranks: tuple[int, ...], nodes: tuple[str, ...]
) -> None:
    log = log_of(first)
    log.fault(
        rank=2,
        pid=102,
        node="there",
        mechanism=then,
        generation=1,
        step=4,
        fault_s=1.0,
        fault_not_before_s=None,
        detected_s=1.2,
        same_event=True,
        error="",
        traceback="",
        reason="rank 2 ended",
    )
    one = newest(log)
    assert (one.ranks, one.nodes) == (ranks, nodes)


def joins(log: InterruptionLog, rank: int, node: str) -> None:
    """Let `rank`, which is on `node`, lose a connection in the newest interruption."""
    log.fault(
        rank=rank,
        pid=100 + rank,
        node=node,
        mechanism=Mechanism.LOST_CONTACT,
        generation=1,
        step=4,
        fault_s=None,
        fault_not_before_s=None,
        detected_s=1.2,
        same_event=True,
        error="",
        traceback="",
        reason=f"rank {rank}'s collective failed",
    )


@pytest.mark.parametrize(
    ("living", "ranks", "nodes"),
    [
        ({1: 101}, (2, 3), ("here", "there")),  # rank 3 was on that node too
        ({1: 101, 3: 103}, (2,), ("there",)),
        ({1: 101, 2: 102, 3: 103}, (), ()),
        ({}, (1, 2, 3), ("here", "there")),
    ],
)
def test_a_node_is_blamed_only_while_one_of_its_ranks_is(
    living: dict[int, int], ranks: tuple[int, ...], nodes: tuple[str, ...]
) -> None:
    """Ranks 1 and 3 are on node `here`, and rank 2 is on node `there`.

    Method: all three have lost a connection. Those that live are acquitted.
    """
    log = log_of(Mechanism.LOST_CONTACT)
    joins(log, 2, "there")
    joins(log, 3, "here")
    log.acquit(living)
    one = newest(log)
    assert (one.ranks, one.nodes) == (ranks, nodes)


def test_an_acquittal_after_a_takeover_keeps_nodes_that_may_be_to_blame() -> None:
    """Method: another coordinator reads the interruption from the ledger, without its nodes by
    rank. It acquits one rank, and then all.
    """
    before = log_of(Mechanism.LOST_CONTACT)
    joins(before, 2, "there")
    log = InterruptionLog(first_id=2)
    log.recover([newest(before)])
    log.acquit({1: 101})
    assert newest(log).nodes == ("here", "there")
    log.acquit({1: 101, 2: 102})
    assert newest(log).nodes == ()


def test_no_node_is_blamed_for_a_lost_contact_that_is_excused() -> None:
    log = log_of(Mechanism.LOST_CONTACT)
    log.excuse(reason="the link between two nodes was cut")
    one = newest(log)
    assert (one.ranks, one.pids, one.nodes) == ((), (), ())


def test_a_lost_node_is_not_booked_as_the_users_error() -> None:
    """Method: a rank raises, and then its node is lost."""
    log = log_of(Mechanism.EXCEPTION)
    assert newest(log).failure_class is FailureClass.USER_CODE
    log.node_lost(reason="node a has no power")
    one = newest(log)
    assert (one.mechanism, one.failure_class, one.reason) == (
        Mechanism.LOST_NODE,
        FailureClass.UNKNOWN,
        "node a has no power; rank 1 ended",
    )


@pytest.mark.parametrize(
    ("mechanism", "error", "cause"),
    [
        (Mechanism.EXCEPTION, "CorruptError: an image does not match", FailureClass.STORAGE),
        (Mechanism.CORRUPT, "", FailureClass.STORAGE),
        (Mechanism.EXCEPTION, "CapacityError: no room", FailureClass.UNKNOWN),
        (Mechanism.EXCEPTION, "StateError: a dict", FailureClass.USER_CODE),
    ],
)
def test_damage_and_shortage_are_not_booked_as_the_users_error(
    mechanism: Mechanism, error: str, cause: FailureClass
) -> None:
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 7, in f\n    g()\n'
        '  File "/srv/outlast/runtime/tiers/image.py", line 7, in g\n    raise\n'
        f"outlast.errors.{error}\n"
    )
    log = log_of(mechanism, traceback=traceback if error else "")
    assert newest(log).failure_class is cause


@pytest.mark.parametrize(("steps", "lost"), [(3, 5), (-1, 1)])
def test_the_restart_that_happens_decides_the_booked_cost(steps: int, lost: int) -> None:
    """Method: the decision assumed that two steps are lost. Then the newest good checkpoint turns
    out to be an older or a newer one.
    """
    log = log_of()
    log.book_decision(now_s=1.2, rung=Rung.RESTART, reason="all restart", repeated=2, lost=2)
    log.went_further_back(steps=steps)
    one = newest(log)
    assert (one.steps_lost, one.steps_repeated) == (lost, lost)


def test_the_restore_time_is_that_of_the_generation_that_trains() -> None:
    """Method: rank 0 takes long to restore, and the new rank 1 dies before it has joined. The next
    generation restores quickly, although a message of the previous one arrives again.
    """
    run = Run()
    run.dies(5)
    run.stands_still(5)
    first, second = run.workers[0], run.coordinator.roster.holder(1).worker
    run.say(slow := Joined(first, 2, 5, 0.1, 50.0))
    run.say(WorkerExited(second, 7, None, 9, False, -1, (), (), "boot", run.now_s, run.now_s, ""))
    run.stands_still(5, generation=2)
    third = run.coordinator.roster.holder(1).worker
    run.say(
        slow,
        WorkerStarted(third, 8, "node", run.now_s),
        Hello(third, 8),
        Registered(third, 3, 5, "reenter", True, True, ""),
    )
    run.now_s += 9.0
    run.say(Joined(first, 3, 5, 0.1, 0.2), Joined(third, 3, 5, 0.1, 0.1))
    assert run.coordinator.stage is Stage.TRAINING
    assert run.interruption is not None
    regrouped_s, restored_s = run.interruption.regrouped_s, run.interruption.restored_s
    assert regrouped_s == pytest.approx(run.now_s - 0.2)
    assert restored_s == run.now_s


def test_a_rank_that_raised_and_is_then_killed_counts_as_killed() -> None:
    """Method: the plan of that generation is still waiting for a store."""
    run = Run()
    second = run.workers[1]
    run.say(Broke(second, 1, 6, "exception", "boom", "", run.now_s), StoreLost("it is gone", 1))
    run.stands_still(5)
    run.say(Inventory(second, 1, 5, 5, 5, False, (5, 10)))
    assert run.coordinator.generation == 2
    assert run.coordinator.roster.holder(1).path.plan_generation == 1
    run.say(
        WorkerExited(
            second, 100 + second, None, 9, False, 5, (5,), (5,), "body", run.now_s, run.now_s, ""
        )
    )
    assert run.interruption is not None
    assert (run.interruption.id, run.interruption.mechanism, run.interruption.error) == (
        2,
        Mechanism.SIGNAL,
        "signal 9",
    )


def timers_set(run: Run, message: Broke | WorkerExited) -> list[SetTimer]:
    """Return the timers that the coordinator sets for this message, one second after the previous
    one.
    """
    run.now_s += 1.0
    return [
        one
        for one in run.coordinator.on_message(message, now_s=run.now_s)
        if isinstance(one, SetTimer)
    ]


def test_once_the_culprit_is_known_only_its_companions_are_waited_for() -> None:
    """Method: rank 0 is collateral, and reports first. Then rank 1 is reported killed."""
    run = Run()
    first, second = run.workers
    assert timers_set(run, Broke(first, 1, 6, "collective", "reset by peer", "", run.now_s)) == [
        SetTimer("gather", run.now_s + limits.COLLATERAL_WAIT_S)
    ]
    killed = WorkerExited(
        second, 100 + second, None, 9, False, 5, (5,), (5,), "body", run.now_s, run.now_s, ""
    )
    assert timers_set(run, killed) == [SetTimer("gather", run.now_s + limits.COMPANION_WAIT_S)]


def test_the_culprit_is_waited_for_no_less_when_the_first_victim_ends() -> None:
    """Method: a collective of rank 0 fails, and its process exits because of that."""
    run = Run()
    first = run.workers[0]
    run.say(Broke(first, 1, 6, "collective", "reset by peer", "", run.now_s))
    assert (
        timers_set(
            run,
            WorkerExited(
                first, 100 + first, 1, None, False, 5, (5,), (5,), "body", run.now_s, run.now_s, ""
            ),
        )
        == []
    )


def test_a_rank_that_loses_contact_with_a_lost_store_is_not_blamed() -> None:
    """Method: rank 0 reports before the agent reports that the store is gone. Both ranks live."""
    run = Run()
    run.say(
        Broke(run.workers[0], 1, 6, "collective", "reset by peer", "", run.now_s),
        StoreLost("signal 9", 1),
    )
    assert run.interruption is not None
    assert (run.interruption.ranks, run.interruption.pids) == ((), ())
    assert run.interruption.reason == "the store that groups are built with was lost: signal 9"


@pytest.mark.parametrize(("restore_s", "regrouped_s"), [(0.1, 1.4), (0.4, 1.2)])
def test_all_have_joined_no_earlier_than_the_decision(restore_s: float, regrouped_s: float) -> None:
    """The decision is made at 1.2, and all ranks have joined at 1.5.

    A rank may have begun to restore its state before the others were told.
    """
    log = log_of()
    log.book_decision(now_s=1.2, rung=Rung.RESPAWN, reason="rank 1 is forked", repeated=1, lost=0)
    log.joined(now_s=1.5, restore_s=restore_s, tier=Tier.PEER)
    one = newest(log)
    assert (one.left_s, one.regrouped_s, one.restored_s) == (1.2, pytest.approx(regrouped_s), 1.5)


def test_a_fault_after_a_decision_is_answered_by_the_newest_decision() -> None:
    """Method: rank 1 is replaced. Then rank 2 dies, and all ranks are to restart. Rank 3 dies while
    they are being killed, and no further decision is made for it.
    """
    log = log_of()
    log.book_decision(now_s=1.2, rung=Rung.RESPAWN, reason="rank 1 is forked", repeated=1, lost=0)
    for rank, detected_s in ((2, 1.3), (3, 1.6)):
        log.fault(
            rank=rank,
            pid=100 + rank,
            node="here",
            mechanism=Mechanism.SIGNAL,
            generation=1,
            step=4,
            fault_s=None,
            fault_not_before_s=None,
            detected_s=detected_s,
            same_event=False,
            error="",
            traceback="",
            reason=f"rank {rank} ended",
        )
        if rank == 2:
            log.book_decision(
                now_s=1.4, rung=Rung.RESTART, reason="all restart", repeated=1, lost=0
            )
    log.joined(now_s=2.0, restore_s=0.1, tier=Tier.PEER)
    said = [(one.rung, one.left_s, one.regrouped_s, one.restored_s) for one in log.changed()]
    assert said == [
        (Rung.RESPAWN, 1.2, 1.9, 2.0),
        (Rung.RESTART, 1.4, 1.9, 2.0),
        (Rung.RESTART, 1.6, 1.9, 2.0),
    ]


def test_an_interruption_without_a_decision_is_not_booked_with_one() -> None:
    """Method: rank 1 is lost at 1.1, and all ranks have joined at 1.5 before any rung was
    chosen.
    """
    log = log_of()
    log.joined(now_s=1.5, restore_s=0.6, tier=Tier.PEER)
    one = newest(log)
    assert (one.rung, one.left_s, one.regrouped_s, one.restored_s) == (None, None, 1.1, 1.5)


@pytest.mark.parametrize("stop", [False, True])
def test_an_interruption_is_over_when_all_ranks_end_but_not_by_a_stop(
    stop: bool,
) -> None:
    """Both ranks have finished.

    Method: rank 0 ends. Rank 1 is reported hung, and ends too before the kill reaches it.
    """
    run = Run()
    if stop:
        run.coordinator.ask_stop(now_s=run.now_s, reason="signal 15", exit_code=143)
    first, second = run.workers
    run.say(
        Finished(first, 1, 4, stop),
        Finished(second, 1, 4, stop),
        exited_well(first),
        WorkerHung(second, "epilogue", 0.1, 1.0, run.now_s, "rank 1 hangs"),
    )
    run.now_s += 1.0
    out = run.coordinator.on_message(exited_well(second), now_s=run.now_s)
    (end,) = [one for one in out if isinstance(one, End)]
    assert (end.state, end.exit_code) == (("stopped", 143) if stop else ("ended", 0))
    resumed = [
        one.record.resumed_s
        for one in out
        if isinstance(one, Record) and isinstance(one.record, Interruption)
    ]
    assert resumed == ([] if stop else [run.now_s])


def exited_well(worker: int) -> WorkerExited:
    return WorkerExited(worker, 100 + worker, 0, None, False, 4, (), (), "", 9.0, 9.0, "")


def test_an_order_to_leave_gives_its_reason() -> None:
    """Method: rank 1 is killed."""
    run = Run()
    run.dies(5)
    out = run.coordinator.on_timer(now_s=run.now_s, name="gather")
    orders = [
        output.message.message
        for output in out
        if isinstance(output, ToAgent) and isinstance(output.message, ToWorkers)
    ]
    assert run.interruption is not None
    assert orders == [Leave(1, run.interruption.reason)]


def test_a_run_remembers_the_newest_interruptions_and_not_all_of_them() -> None:
    """A verdict arrives within minutes, so the newest interruptions suffice. The ledger has all of
    them.
    """
    log = InterruptionLog()
    for number in range(limits.INTERRUPTIONS_KNOWN_COUNT + 5):
        log.fault(
            rank=1,
            pid=101,
            node="here",
            mechanism=Mechanism.SIGNAL,
            generation=number,
            step=4,
            fault_s=1.0,
            fault_not_before_s=None,
            detected_s=1.1,
            same_event=False,
            error="",
            traceback="",
            reason="rank 1 ended",
        )
        log.resumed(at_s=2.0, generation=number + 1)
    assert min(log.known) == 6
    assert len(log.known) == limits.INTERRUPTIONS_KNOWN_COUNT


@pytest.mark.parametrize(
    ("oom", "oom_near", "from_outside", "cause"),
    [
        (False, False, True, FailureClass.UNKNOWN),
        (False, True, False, FailureClass.UNKNOWN),
        (True, False, False, FailureClass.HOST_MEMORY),
    ],
)
def test_a_kill_that_may_be_for_memory_is_charged_and_has_no_class(
    oom: bool, oom_near: bool, from_outside: bool, cause: FailureClass
) -> None:
    """Only a kill that was certainly not for lack of memory counts as a fault from outside."""
    run = Run()
    second, now_s = run.workers[1], run.now_s
    run.say(
        WorkerExited(
            *(second, 100 + second, None, 9, oom, 5, (5,), (5,), "body", now_s, now_s, ""),
            oom_near=oom_near,
        )
    )
    (opened,) = run.coordinator.run.interruptions.open
    assert opened.failure_class is cause
    assert (1 in run.coordinator.run.faults.killed) is from_outside
