"""Each rule finds what breaks it and nothing else. The rules find a protocol that is broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from outlast.engine.coordinator import decisions
from outlast.engine.coordinator.plans import Plans
from outlast.engine.restore import RestoreVerdict
from outlast.model.limits import RESPAWNS_COUNT
from outlast.model.messages import Regroup
from outlast.model.records import Interruption
from outlast.model.terms import CAUSES, Cause, FailureClass, Mechanism, Rung
from outlast.sim import simulated_run
from outlast.sim.rules.checkers import Checkers
from outlast.sim.rules.final_observations import (
    ActionDecided,
    CulpritsAtEnd,
    Diagnosed,
    DrainPlanned,
    EventWritten,
    FirstFault,
    InterruptionAtEnd,
    NodeStaysOut,
    NothingMoves,
    RecordRewritten,
    RecoveryChosen,
    RunEnded,
    SecondsAtEnd,
    StartedOnBarredNode,
    TextShown,
    WarningHeard,
)
from outlast.sim.rules.observations import (
    AgentsAsked,
    CheckpointOffered,
    CheckpointsRemoved,
    Enrolled,
    Executed,
    GroupJoined,
    HangReported,
    KillOrdered,
    ManifestOrdered,
    ManifestToWrite,
    Observation,
    OldStore,
    Planned,
    PowerLost,
    RankGiven,
    Regrouped,
    Restored,
    RunBegun,
    SaveFailed,
    ShardHeard,
    SharedMessageLate,
    SilenceReported,
    SpareCount,
    StartedOver,
    StartOrderedEarly,
    StepDone,
    StopAsked,
    StoppedProcessWentOn,
)
from outlast.sim.shrink import shrink


def over(**changes: object) -> RunEnded:
    given: dict[str, object] = {
        "state": "ended",
        "exit_code": 0,
        "reason": "",
        "committed": 6,
        "until": 6,
        "trained": True,
        "plain": False,
        "stop_asked": False,
        "refused": False,
        "alive": (),
        "open_interruptions": (),
        "interruptions": 1,
        "strikes": 1,
        "ranks": 3,
        "done": (0, 1, 2),
        "blamed": (1,),
        "struck": (1,),
        "kinds": ("kill",),
        "max_restarts": 3,
    }
    return RunEnded(**(given | changes))  # type: ignore[arg-type]


def booked(interrupted: bool = True, worked_s: float = 6.0, **seconds: float) -> SecondsAtEnd:
    """Return the seconds of one rank in a run of ten seconds."""
    given = {"productive": 6.0, "stall": 1.0, "startup": 3.0} | seconds
    return SecondsAtEnd(
        10.0,
        (dict.fromkeys(CAUSES, 0.0) | {Cause(name): value for name, value in given.items()},),
        (worked_s,),
        (0.0,),
        interrupted,
    )


LOST = [EventWritten("node_lost", {"node": "node-0"})]


def acted(action: str, *nodes: str, at_s: float = 0.0) -> ActionDecided:
    """Return an action of a policy that may act twice in ten seconds."""
    return ActionDecided(action, nodes, False, at_s, (2, 10.0))


def failed(reason: str, **changes: object) -> RunEnded:
    return over(state="failed", exit_code=1, reason=reason, **changes)


def answered(rung: str, reason: str = "", **changes: object) -> RecoveryChosen:
    """Return the answer to an error: rank 1 of three has raised in step 4, has died, and is forked.
    The others go on where they are. `reason` is the reason of the answer.
    """
    given: dict[str, object] = {
        "rung": rung,
        "moves": True,
        "reason": f"{reason}; last error: boom",
        "kept": (0, 2),
        "reentered": (),
        "begun": (),
        "taken": (),
        "forked": (1,),
        "there": (0, 2),
        "ready": 0,
        "held": True,
        "over": False,
        "recovery_mode": "in_place",
        "ranks": 3,
        "stop_asked": False,
        "apart": False,
    }
    return RecoveryChosen(**(given | changes))  # type: ignore[arg-type]


def noted(
    nodes: int = 1,
    moved: int | None = None,
    begun: int | None = None,
    late_s: float = 0.0,
    **changes: object,
) -> InterruptionAtEnd:
    """Return the record of an interruption: rank 1 was killed in step 4.

    `late_s` is the time from the moment at which training went on until the record said so.
    """
    given: dict[str, object] = {
        "id": 1,
        "mechanism": Mechanism.SIGNAL,
        "fault_s": 0.9,
        "detected_s": 1.0,
        "ranks": (1,),
        "pids": (1002,),
        "rung": Rung.RESPAWN,
        "left_s": 1.1,
        "resumed_s": 1.2,
        "reason": "rank 1 ended: signal 9; step 3 is committed on a live rank",
        "error": "signal 9" if "mechanism" not in changes else "",
    }
    record = Interruption(**(given | changes))  # type: ignore[arg-type]
    return InterruptionAtEnd(
        record, nodes, moved, begun, None if record.resumed_s is None else record.resumed_s - late_s
    )


AT_S = 2_000.0  # long after the beginning
RESTARTED = {"moves": False, "kept": (), "forked": ()}
PLANS = [Planned(generation, (0,), 0, ()) for generation in range(1, 12)]
STEP = [Regrouped(1, 2, (0, 1)), StepDone(7, 0, 20, 1, 1, (7,)), StepDone(8, 1, 20, 1, 1, (8,))]
DRAINED = [
    Diagnosed(1, {"a": 0.9}),
    replace(acted("drain", "a"), moves=True),
    EventWritten("node_barred", {"node": "a"}),
]
PLAN = Regroup(
    2, 1, 3, "here", 1, "none", "start", 4, -1, False, (), "none", "none", "", 4, None, None
)


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        ([Planned(2, (4, 4, 3), 4, ())], "OneStepPerGeneration"),
        ([Planned(2, (4,), 4, ()), Planned(2, (4,), 4, ())], "OneStepPerGeneration"),
        ([Planned(3, (4,), 4, (), cut_s=0.5)], "PauseAfterCutLink"),
        ([Planned(3, (4,), 4, (), cut_s=1.5, store_cut="node-0")], "PauseAfterCutLink"),
        ([Planned(3, (4,), 5, (), follow=(1,))], "NothingLost"),
        ([Planned(3, (4,), 5, (), image=5)], "NothingLost"),
        ([Planned(3, (5,), 5, (), image=5, again=True)], "HandedOverOnce"),
        ([Planned(3, (5,), 5, (), returning=("node-1",))], "ReturningNodeAwaited"),
        ([OldStore(3, 1, 2)], "NewestStore"),
        ([StartedOver(7, 1, 4, (2, 3), read=True)], "SealedStateUsed"),
        ([RankGiven(7, PLAN, (3,))], "OneOwner"),
        ([RankGiven(7, PLAN, (), neighbours=2, room=2)], "RoomOnNodes"),
        ([StepDone(7, 1, 2, 5, 5, (3, 7))], "OneOwner"),
        ([StepDone(7, 1, 2, 5, 5, (7,)), StepDone(8, 2, 1, 5, 5, (8,))], "Fenced"),
        ([GroupJoined(7, 1, 2, 5, 4)], "StateFitsStep"),
        ([StepDone(7, 1, 2, 5, 4, (7,))], "StateFitsStep"),
        ([StepDone(7, 1, 2, 5, 5, (7,), excess=-1)], "StateFitsStep"),
        ([over(), over()], "RunEnds"),
        ([over(state="failed", exit_code=1, reason="refused")], "RunEnds"),
        ([GroupJoined(7, 1, 2, 5, 5), GroupJoined(8, 2, 2, 4, 4)], "StateFitsStep"),
        ([Restored(7, 1, "slots", 5, (4, 3))], "SealedStateExists"),
        ([CheckpointOffered(2, 4, "there is no manifest")], "OnlyGoodOffered"),
        ([CheckpointOffered(2, 4, "the shard of rank 1 is torn")], "OnlyGoodOffered"),
        ([ManifestToWrite(4, False)], "ShardsOfOneHistory"),
        ([CheckpointsRemoved((2,), 2, 0)], "LastGoodStays"),
        (
            [
                SaveFailed(4, "no room"),
                over(state="failed", exit_code=1, reason="crash loop", interruptions=0, strikes=0),
            ],
            "FailedSaveEndsNoRun",
        ),
        ([Planned(2, (0, 0), 5, (), 4)], "NothingDurableLost"),
        ([Planned(2, (4, 4), 5, (0,))], "NothingLost"),
        ([Planned(2, (3, 3), 5, (), copied=4)], "NothingCopiedLost"),
        ([Planned(2, (5, 5), 5, (), own_node_copies=(1,))], "CopiedElsewhere"),
        ([Planned(2, (5, 5), 5, (), few_copies=(1,))], "CopiedElsewhere"),
        ([Planned(2, (5, 5), 5, (), close_copies=(1,))], "CopiedElsewhere"),
        ([NothingMoves(10.0, "here")], "RunEnds"),
        ([over(interruptions=2)], "NoFalseAlarm"),
        ([over(blamed=(1, 2))], "OnlyStruckBlamed"),
        ([CulpritsAtEnd(1, "signal", ("hang", "repeat"))], "MechanismFitsFault"),
        ([CulpritsAtEnd(1, "hang", (), (-30.0, 4.0), 10.0, 1.0)], "TimesWithinRun"),
        ([Regrouped(2, 3, (0, 2))], "AllRanksJoined"),
        ([StoppedProcessWentOn(7, 1, 4.0)], "StoppedProcessEnded"),
        ([StoppedProcessWentOn(7, 1, 4.0, 2.5)], "StoppedProcessEnded"),
        ([StoppedProcessWentOn(7, 1, 11.0, 10.9)], "StoppedProcessEnded"),
        ([over(done=(0, 2))], "RunEnds"),
        ([over(alive=(3,))], "RunEnds"),
        ([over(committed=5)], "RunEnds"),
        ([over(exit_code=1)], "RunEnds"),
        ([over(open_interruptions=(1,))], "RunEnds"),
        ([over(state="failed", exit_code=1, reason="bad luck")], "RunEnds"),
        ([failed("no node with room for ranks [1]")], "GivesUpWithCause"),
        ([failed("processes [7] cannot be killed")], "GivesUpWithCause"),
        (
            [
                *PLANS[:2],
                failed("2 interruptions without a step committed after step 0: a crash loop"),
            ],
            "GivesUpWithCause",
        ),
        (
            [
                *PLANS[:1],
                failed("3 interruptions without a step committed after step 0: a crash loop"),
            ],
            "GivesUpWithCause",
        ),
        (
            [
                *PLANS[:6],
                *STEP,
                *PLANS[6:10],
                failed("6 interruptions without a step executed after step 1: a crash loop"),
            ],
            "GivesUpWithCause",
        ),
        (
            [
                *STEP,
                *PLANS[:7],
                failed("20 interruptions without a step committed after step 1: a crash loop"),
            ],
            "GivesUpWithCause",
        ),
        (
            [
                *STEP,
                *PLANS[:6],
                StepDone(7, 0, 20, 1, 1, (7,)),
                *PLANS[6:10],
                failed("6 interruptions without a step executed after step 0: a crash loop"),
            ],
            "GivesUpWithCause",
        ),
        (
            [*PLANS[:3], failed("3 whole restarts without enough progress in between")],
            "GivesUpWithCause",
        ),
        (
            [*PLANS[:5], failed("2 whole restarts without enough progress in between")],
            "GivesUpWithCause",
        ),
        (
            [*PLANS[:6], failed(f"the budget of {RESPAWNS_COUNT} replacements is spent")],
            "GivesUpWithCause",
        ),
        ([over(state="stopped", exit_code=130, asked=((130, ""),))], "RunEnds"),
        (
            [
                over(
                    state="stopped",
                    stop_asked=True,
                    exit_code=1,
                    reason="stop timed out",
                    asked=((0, "its time is up"),),
                )
            ],
            "StoppedAsAsked",
        ),
        (
            [over(state="stopped", stop_asked=True, asked=((0, ""),), ending_s=12.0)],
            "StoppedAsAsked",
        ),
        (
            [StopAsked(False, False, False, True), KillOrdered(7, False, unstruck=True)],
            "StopsSoftly",
        ),
        (
            [
                StopAsked(True, False, False, True),
                TextShown("stopping: enough; the step in flight is committed first"),
            ],
            "StopsSoftly",
        ),
        (
            [
                StopAsked(False, False, False, True),
                TextShown("stopping: enough; workers are sent SIGTERM"),
            ],
            "StopsSoftly",
        ),
        ([RecordRewritten(noted(resumed_s=None).record, noted(left_s=1.15).record)], "WrittenOnce"),
        (
            [
                RecordRewritten(
                    noted(resumed_s=None, generation=2).record, noted(generation=1).record
                )
            ],
            "WrittenOnce",
        ),
        ([RecordRewritten(noted().record, noted(reason="another").record)], "WrittenOnce"),
        ([over(spent=2, rungs=(("respawn", False),))], "BudgetsPaid"),
        (
            [
                RankGiven(7, PLAN, ()),
                RankGiven(8, replace(PLAN, generation=3), ()),
                over(plain=True),
            ],
            "FreshStore",
        ),
        ([over(spent=0, rungs=(("respawn", False),), kinds=("raise",))], "BudgetsPaid"),
        ([over(spent=2, rungs=(("respawn", False),), kinds=("part",))], "BudgetsPaid"),
        ([InterruptionAtEnd(noted(nodes=2).record, 2, None, stood_s=0.1)], "ResumedOnceAllCommit"),
        (
            [
                InterruptionAtEnd(
                    noted(nodes=2, resumed_s=None).record, 2, None, stood_s=0.1, unsure_s=9.0
                )
            ],
            "ResumedOnceAllCommit",
        ),
        ([HangReported(0.5)], "HangNamesDeadline"),
        ([HangReported(True)], "HangNamesDeadline"),
        ([HangReported(600.0, 5.0)], "HangNamesDeadline"),
        ([SilenceReported(False, 0.0)], "HangNamesDeadline"),
        ([SilenceReported(5.0, 10.0)], "HangNamesDeadline"),
        ([HangReported(600.0, alone=True)], "AllRanksAsked"),
        ([HangReported(600.0, looks=1)], "LaggardAskedTwice"),
        ([AgentsAsked(number) for number in range(1, 10)], "FewInquiries"),
        ([SharedMessageLate("node-0", (7, 8))], "SharedMessagePassedOn"),
        ([Enrolled("node-0", over=(7,))], "EnrolmentIsTrue"),
        ([Enrolled("node-0", unnamed=(7,))], "EnrolmentIsTrue"),
        ([Enrolled("node-0", lost_store=True)], "EnrolmentIsTrue"),
        ([Enrolled("node-0", untold_store=True)], "EnrolmentIsTrue"),
        ([NodeStaysOut("node-0", 6.0)], "NodeEnrolsAgain"),
        ([StartOrderedEarly("node-0")], "HeardBeforeOrders"),
        ([KillOrdered(7, True)], "KillsOnce"),
        ([KillOrdered(7, False, idle=True)], "KillsOnce"),
        ([KillOrdered(7, False), KillOrdered(7, False)], "KillsOnce"),
        (
            [*STEP, failed("no node with room for ranks [1] in 1800 s", kinds=("lose_node",))],
            "FullTimeBeforeGivingUp",
        ),
        (
            [PLANS[0], failed("no node with room for ranks [1] in 600 s", kinds=("lose_node",))],
            "FullTimeBeforeGivingUp",
        ),
        ([CheckpointsRemoved((), 6, 6, (2, 4, 6))], "OldCheckpointsRemoved"),
        ([booked(startup=2.9)], "SecondsSum"),
        ([booked(startup=4.0, repeated=-1.0)], "SecondsSum"),
        ([booked(worked_s=5.9)], "SecondsSum"),
        ([booked(worked_s=7.1)], "SecondsSum"),
        ([booked(interrupted=False, startup=2.0, repeated=1.0)], "SecondsSum"),
        ([booked(startup=2.0, idle=1.0)], "CausesShown"),
        ([booked(startup=2.0, drain=1.0)], "CausesShown"),
        ([EventWritten("node_awaited", {"places": 1})], "CausesShown"),
        ([*LOST, EventWritten("node_awaited", {"places": 0})], "CausesShown"),
        ([*LOST, EventWritten("node_found", {})], "CausesShown"),
        ([answered("spare")], "RungAsRecorded"),
        ([answered("respawn", taken=(1,), forked=())], "RungAsRecorded"),
        ([answered("repeat", forked=(), kept=(), reentered=(0, 1, 2))], "RungAsRecorded"),
        ([*STEP, answered("restart", **RESTARTED)], "CheapestRung"),
        ([*STEP, answered("respawn", there=(0, 1, 2))], "CheapestRung"),
        ([*STEP, answered("respawn", ready=1)], "CheapestRung"),
        ([failed("7 interruptions: a crash loop", plain=True)], "GivesUpWithCause"),
        ([noted(ranks=(1, 1))], "NamedOnce"),
        ([noted(pids=(1002, 1002))], "NamedOnce"),
        ([noted(reason="rank 1 ended; rank 1 ended")], "NamedOnce"),
        ([noted(reason="")], "NamedOnce"),
        ([noted(rung=None)], "NamedOnce"),
        ([noted(step=4, fault_s=None)], "EarliestTimeNamed"),
        ([noted(fault_not_before_s=1.5)], "EarliestTimeNamed"),
        (
            [noted(mechanism=Mechanism.EXCEPTION, failure_class=FailureClass.USER_CODE)],
            "WellFormed",
        ),
        ([noted(mechanism=Mechanism.EXCEPTION, error="boom", traceback="at line 3")], "WellFormed"),
        (
            [
                noted(
                    mechanism=Mechanism.EXCEPTION,
                    failure_class=FailureClass.USER_CODE,
                    error="boom",
                )
            ],
            "WellFormed",
        ),
        ([noted(failure_class=FailureClass.USER_CODE)], "WellFormed"),
        ([noted(parent=2)], "WellFormed"),
        ([noted(resumed_s=1.3), noted(id=2, parent=1)], "WellFormed"),
        ([noted(restored_s=1.25)], "TimesInOrder"),
        ([noted(moved=2)], "LostStepsBooked"),
        ([noted(begun=1, steps_repeated=2)], "RepeatedStepsBooked"),
        ([noted(moved=1, begun=2, steps_lost=1)], "RepeatedStepsBooked"),
        ([noted(late_s=0.1)], "ResumedWhenAtWork"),
        ([noted(late_s=-0.1)], "ResumedWhenAtWork"),
        ([RankGiven(7, PLAN, ()), noted(generation=1, fault_s=None)], "PlanNamesTimes"),
        ([TextShown("a hot spare ended before it could park: signal 9")], "EarlySpareEndReported"),
        ([over(early_s=2.0)], "EarlySpareEndReported"),
        (
            [
                EventWritten("script", {"sharded": False}),
                EventWritten("script", {"sharded": False}),
            ],
            "ScriptFactsNotedOnce",
        ),
        ([over(noted=False)], "ScriptFactsNotedOnce"),
        ([replace(noted(step=3), committed=(4, 5))], "CommittedStepNamed"),
        ([replace(noted(step=7), committed=(4, 5))], "CommittedStepNamed"),
        (
            [EventWritten("warning", {"text": "slow"}), EventWritten("warning", {"text": "slow"})],
            "WarnedOnce",
        ),
        ([FirstFault("kill", 0.2, None, 0.01, 0.0)], "SingleFaultInTime"),
        ([FirstFault("stop", 0.5, 1.2, 0.01, 0.0)], "SingleFaultInTime"),
        ([FirstFault("exit", 0.01, None, 0.01, 0.0, 3, True, "lost_contact")], "SingleFaultInTime"),
        ([FirstFault("hang", 2.0, None, 0.01, 0.0, 9, True)], "SingleFaultInTime"),
        ([FirstFault("deaf", 22.0, None, 0.01, 0.0, 7, True)], "SingleFaultInTime"),
        ([FirstFault("hang", 625.0, None, 0.01, 0.0, 0, True)], "SingleFaultInTime"),
        ([FirstFault("hang", 17.0, None, 0.01, 0.0, silence_s=5.0)], "SingleFaultInTime"),
        ([StartedOver(7, 1, 4, (3, 4))], "SealedStateUsed"),
        ([SpareCount(2, 1, 0.1)], "SparesReplaced"),
        ([SpareCount(0, 1, 7.0)], "SparesReplaced"),
        ([SpareCount(1, 1, 7.0, 1)], "SparesReplaced"),
        ([Diagnosed(1, {"a": 0.79}), acted("drain", "a")], "DrainNeedsReason"),
        (
            [Diagnosed(1, {"a": 0.79}), Diagnosed(1, {"a": 0.79}), acted("shrink", "a")],
            "DrainNeedsReason",
        ),
        ([Diagnosed(1, {"a": 0.9}), acted("drain", "b")], "DrainNeedsReason"),
        ([acted("exclude", "a", "b"), acted("exclude", "c", at_s=5.0)], "WithinBudget"),
        ([DrainPlanned(3, (4, 4), 5, True)], "DrainUndoesNoStep"),
        ([DrainPlanned(3, (5, 5), 5, True, (2,))], "DrainEmptiesNode"),
        ([DrainPlanned(3, (5, 5), 5, True, (), (0,))], "DrainFinishesStep"),
        ([replace(acted("page"), own=True)], "NoActionOnOwnInterruption"),
        (
            [*DRAINED, *(StepDone(7, 0, 1, step, step, (7,)) for step in range(1, 16)), over()],
            "DrainsSoon",
        ),
        ([StartedOnBarredNode("a", 7)], "NoWorkOnBarredNode"),
    ],
)
def test_only_the_broken_rule_is_reported(seen: list[Observation], rule: str) -> None:
    checkers = Checkers()
    for one in seen:
        checkers.see(AT_S, one)
    assert [(one.rule, one.at_s) for one in checkers.violations] == [(rule, AT_S)]
    assert checkers.result == "bad"


@pytest.mark.parametrize(
    "asked",
    [StopAsked(False, True, False, True), StopAsked(False, False, True, True)],
    ids=["nothing is trained", "again"],
)
@pytest.mark.parametrize(("over_s", "rules"), [(1.2, []), (1.6, ["StopsAtOnce"])])
def test_a_run_that_is_asked_to_end_at_once_does(
    asked: StopAsked, over_s: float, rules: list[str]
) -> None:
    checkers = Checkers()
    checkers.see(1.0, asked)
    checkers.see(
        over_s, over(state="stopped", stop_asked=True, asked=((0, "enough"),), reason="enough")
    )
    assert [one.rule for one in checkers.violations] == rules


@pytest.mark.parametrize(("at_s", "rules"), [(0.1, ["NodesAwaitedAtStart"]), (600.0, [])])
def test_nodes_that_were_asked_for_are_waited_for(at_s: float, rules: list[str]) -> None:
    checkers = Checkers()
    checkers.see(at_s, RunBegun(3, 2))
    assert [one.rule for one in checkers.violations] == rules


@pytest.mark.parametrize(("made", "rules"), [(True, []), (False, ["ManifestOnceAllShards"])])
def test_a_manifest_is_ordered_once_all_shards_are_there(made: bool, rules: list[str]) -> None:
    checkers = Checkers()
    checkers.see(1.0, ShardHeard(4, 0, 1, 2))
    checkers.see(1.1, ShardHeard(4, 1, 1, 2))
    if made:
        checkers.see(1.1, ManifestOrdered(4))
    checkers.see(1.2, ShardHeard(4, 1, 1, 2))
    checkers.see(1.3, Planned(2, (4,), 4, (0, 1)))
    assert [one.rule for one in checkers.violations] == rules


@pytest.mark.parametrize(("back", "rules"), [(2, []), (4, ["ManifestOnceAllShards"])])
def test_no_manifest_is_due_for_a_step_that_was_rolled_back(back: int, rules: list[str]) -> None:
    """Method: shards are reported after the plan that goes back to a step before theirs."""
    checkers = Checkers()
    checkers.see(1.0, Planned(2, (back,), back, (0, 1)))
    checkers.see(1.1, ShardHeard(4, 0, 1, 2))
    checkers.see(1.2, ShardHeard(4, 1, 1, 2))
    checkers.see(1.3, Planned(3, (back,), back, (0, 1)))
    assert [one.rule for one in checkers.violations] == rules


@pytest.mark.parametrize(("said", "rules"), [(True, []), (False, ["WarnedOnce"])])
def test_a_warning_has_to_be_recorded(said: bool, rules: list[str]) -> None:
    checkers = Checkers()
    checkers.see(1.0, WarningHeard("odd"))
    if said:
        checkers.see(1.0, EventWritten("warning", {"text": "odd"}))
    checkers.see(2.0, over())
    assert [one.rule for one in checkers.violations] == rules


@pytest.mark.parametrize(
    ("noticed_s", "over_s", "rules"),
    [
        (7.0, 20.0, []),
        (9.0, 20.0, ["DeadNodeCountedOut"]),
        (None, 7.0, []),
        (None, 20.0, ["DeadNodeCountedOut"]),
    ],
)
def test_a_node_without_power_is_counted_out_in_time(
    noticed_s: float | None, over_s: float, rules: list[str]
) -> None:
    checkers = Checkers()
    checkers.see(1.0, PowerLost("a", 6.2))
    if noticed_s is not None:
        checkers.see(noticed_s, EventWritten("node_lost", {"node": "a"}))
    checkers.see(over_s, over())
    assert [one.rule for one in checkers.violations] == rules


@pytest.mark.parametrize(
    ("signals", "plans", "rules"),
    [(6, 5, []), (5, 5, ["GivesUpWithCause"]), (6, 4, ["GivesUpWithCause"])],
)
def test_a_run_that_gives_up_for_kills_was_killed_as_often_as_it_says(
    signals: int, plans: int, rules: list[str]
) -> None:
    """Five kills from outside do not end a run before its first step, and the sixth does.

    Method: the run gives up at the sixth. The rule must find it if fewer processes ended by a
    signal, or if fewer plans were made since the newest step.
    """
    checkers = Checkers()
    reason = (
        "6 interruptions without a step committed after step 0: ranks are killed from outside"
        " again and again, and the run has stood still for 31 s"
    )
    for one in (*PLANS[:plans], failed(reason, signals=signals)):
        checkers.see(1.0, one)
    assert [one.rule for one in checkers.violations] == rules


@pytest.mark.parametrize(("executed", "rules"), [(True, []), (False, ["GivesUpWithCause"])])
def test_a_crash_loop_counts_from_the_first_time_a_step_is_executed(
    executed: bool, rules: list[str]
) -> None:
    """A step counts once a rank has executed it, even if all ranks are interrupted before they
    commit it.

    Method: step 1 is executed under the first of six plans, and committed under the third.
    """
    checkers = Checkers()
    done = [Executed(1)] if executed else []
    reason = "6 interruptions without a step executed after step 1: a crash loop"
    for one in (PLANS[0], *done, *PLANS[1:3], *STEP, *PLANS[3:6], failed(reason)):
        checkers.see(1.0, one)
    assert [one.rule for one in checkers.violations] == rules


FINE: tuple[Observation, ...] = (
    Planned(1, (0, 0), 0, (0, 1)),
    RankGiven(7, PLAN, ()),
    Restored(7, 1, "slots", 5, (5, 4)),
    GroupJoined(7, 1, 2, 5, 5),
    GroupJoined(8, 2, 2, 5, 5),
    CheckpointOffered(2, 4, ""),
    ManifestToWrite(4, True),
    SaveFailed(6, "no room"),
    CheckpointsRemoved((2,), 4, 4),
    Planned(2, (4,), 5, (), 4),
    StepDone(7, 1, 2, 6, 6, (7,)),
    Planned(3, (4, 4), 6, ()),
    StepDone(8, 2, 3, 5, 5, (8,)),
    CulpritsAtEnd(1, "hang", ("hang", "repeat")),
    CulpritsAtEnd(2, "lost_contact", ()),
    Regrouped(2, 3, (0, 1, 2)),
    StoppedProcessWentOn(7, 1, 0.6),
    StoppedProcessWentOn(7, 1, 4.0, 3.9),
    booked(),
    booked(worked_s=7.0),
    booked(startup=2.0, repeated=1.0),
    Diagnosed(1, {"a": 0.8, "b": 0.3}),
    acted("drain", "a"),
    Diagnosed(2, {"b": 0.3}),
    acted("drain", "b"),
    Diagnosed(3, {"c": 0.3}),
    ActionDecided("drain", ("c",), True, 0.0, (2, 10.0)),
    acted("exclude", "c"),
    acted("page", at_s=1.0),
    acted("page", at_s=2.0),
    acted("page", at_s=11.0),
    DrainPlanned(3, (4, 4), 5, False),
    DrainPlanned(4, (5, 5), 5, True),
    DrainPlanned(5, (5, 5), 5, False, (2,)),
    DrainPlanned(5, (5, 5), 5, False, (), (0,)),
    KillOrdered(7, False),
    KillOrdered(8, False),
    KillOrdered(7, False, True),
    replace(noted(id=8, step=6), committed=(4, 5)),
    EventWritten("warning", {"text": "slow"}),
    EventWritten("warning", {"text": "slow"}, 2),
    EventWritten("warning", {"text": "odd"}),
    FirstFault("hang", 1.8, None, 0.01, 0.0, 9, True),
    FirstFault("hang", 1800.0, None, 0.01, 0.0, 7),
    FirstFault("hang", 12.0, None, 0.01, 0.4, 2, True),
    FirstFault("hang", 5.6, None, 0.01, 0.0, silence_s=5.0),
    FirstFault("hang", 5.6, None, 0.01, 0.0, 9, True, body_s=1.0),
    StopAsked(False, False, False, True),
    KillOrdered(9, False),
    TextShown("stopping: enough; the step in flight is committed first"),
    SpareCount(1, 1, 7.0, 1, True),
    SpareCount(1, 1, 0.1, 1),
    EventWritten("script", {"sharded": False}),
    EventWritten("script", {"sharded": True}),
    TextShown("all is well"),
    TextShown("a hot spare ended before it could park: signal 9", True),
    RecordRewritten(noted(resumed_s=None, left_s=None, rung=None).record, noted().record),
    answered("respawn"),
    RunBegun(3, 3),
    HangReported(1.0, looks=2),
    HangReported(5.0, 5.0),
    SilenceReported(5.0, 5.0),
    CheckpointsRemoved((), 4, 4, (2, 4, 6)),
    AgentsAsked(1),
    AgentsAsked(2),
    Enrolled("node-0"),
    NodeStaysOut("node-0", 1.0),
    Planned(5, (4, 4), 6, (), cut_s=1.5),
    noted(
        id=9,
        reason="rank 1 (pid 7) ended: signal 9; rank 2 raised; rank 2 (pid 8) ended: signal 9",
        step=4,
        fault_not_before_s=0.5,
    ),
    noted(moved=1, begun=2, steps_lost=1, steps_repeated=2),
    noted(id=4, late_s=0.01),
    noted(id=5, nodes=2, late_s=3.0),
    noted(id=6, resumed_s=None),
    RankGiven(7, replace(PLAN, generation=8, fault_s=0.9, detected_s=1.0), ()),
    noted(id=7, generation=7, fault_s=0.95),
)


def test_what_is_as_it_should_be_breaks_none() -> None:
    checkers = Checkers()
    for one in FINE:
        checkers.see(1.0, one)
    assert checkers.result == "unknown", "the run is not over"
    checkers.see(2.0, over())
    assert (checkers.result, checkers.violations) == ("ok", [])


@pytest.mark.parametrize(
    "end",
    [
        [over(blamed=(0, 1), plain=True)],
        [over(state="failed", exit_code=1, reason="refused", refused=True)],
        [failed("no node with room for ranks [1]", kinds=("kill", "lose_node"))],
        [*PLANS[:2], failed("3 interruptions without a step committed after step 0: a crash loop")],
        [
            *PLANS[:2],
            *STEP,
            *PLANS[2:7],
            failed("6 interruptions without a step executed after step 1: a crash loop"),
        ],
        [*PLANS[:4], failed("3 whole restarts without enough progress in between")],
    ],
    ids=["plain", "refused", "no node", "never trained", "at one step", "restarts"],
)
def test_ends_that_are_no_surprise_break_no_rule(end: list[Observation]) -> None:
    checkers = Checkers()
    for one in end:
        checkers.see(AT_S, one)
    assert (checkers.result, checkers.violations) == ("ok", [])


# --- a protocol that is broken on purpose ---------------------------------------------------------


def restores_a_step_too_early(patch: pytest.MonkeyPatch) -> None:
    decide = decisions.decide_sharded

    def older(**seen: Any) -> RestoreVerdict:
        verdict = decide(**seen)
        return RestoreVerdict(verdict.step - 1, {}, -1, (), "") if verdict.step else verdict

    patch.setattr(decisions, "decide_sharded", older)


def skips_the_generation(patch: pytest.MonkeyPatch) -> None:
    """Break the protocol: the next plan has the same number as the last one."""
    move = Plans.move

    def same(self: Plans, *args: object) -> object:
        self.run.lifecycle.generation -= 1
        return move(self, *args)  # type: ignore[arg-type]

    patch.setattr(Plans, "move", same)


MUTANTS = [restores_a_step_too_early, skips_the_generation]


@pytest.fixture
def mutant(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        request.param(patch)
        yield


@pytest.mark.parametrize("mutant", MUTANTS, indirect=True, ids=lambda one: one.__name__)
@pytest.mark.usefixtures("mutant")
def test_a_broken_protocol_is_caught_and_its_life_made_smaller() -> None:
    for seed in range(200):
        found = simulated_run.simulate_seed(seed=seed, given={})
        if found.result == "bad":
            break
    else:
        pytest.fail("200 seeds have not caught it")
    smaller = shrink(found)
    assert smaller.result == "bad"
    assert {one.rule for one in smaller.violations} & {one.rule for one in found.violations}
    assert len(smaller.faults) <= len(found.faults)
    assert len(smaller.faults) <= 2
