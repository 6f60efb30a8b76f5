"""The two-phase commit of a step, driven by hand: which commands the machine issues, and in which
order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from outlast.engine.commit.commands import (
    BookCommit,
    Break,
    CallBack,
    Command,
    Donate,
    DropUndo,
    Flow,
    HandOver,
    Join,
    Prepare,
    ProveEqual,
    PutOff,
    RollBack,
    Save,
    SealMoved,
    StandStill,
    TakeBackTail,
    TellWorkerMachine,
    Vote,
    drive,
)
from outlast.engine.commit.commit_machine import CommitMachine
from outlast.engine.commit.image_place import BEGUN, ScriptPosition, choose_slot
from outlast.engine.commit.late_votes import LateVotes
from outlast.engine.protocol.outputs import Say, SendOut
from outlast.engine.protocol.worker import WorkerMachine
from outlast.errors import Reenter, StepInterrupted
from outlast.model.messages import (
    FromWorker,
    Leave,
    Regroup,
    SaveNow,
    SealEach,
    Sealed,
    SendImage,
)


class PeerLost(Exception):
    """The exception that a collective raises when a peer is lost."""


@dataclass(frozen=True)
class Passed:
    stop: bool = False
    save: bool = False
    unsure: bool = False
    seal: bool = False


def plan(generation: int, step: int, **more: Any) -> Regroup:
    """Return a plan by which this rank goes on in place, unless `more` says otherwise."""
    return Regroup(
        **{
            "generation": generation,
            "rank": 0,
            "world_size": 2,
            "step": step,
            "store_host": "",
            "store_port": 0,
            "then": "in_place",
            "settle": "repeat",
            "donor": -1,
            "donate": False,
            "replicated": "none",
            "private": "keep",
            "checkpoint": "",
            "high_water": 0,
            "fault_s": None,
            "detected_s": None,
        }
        | more
    )


@dataclass
class Rank:
    """One rank's machine. `fails` holds the command types that raise once; `plans` arrive one by
    one.
    """

    plans: list[Regroup] = field(default_factory=list)
    fails: list[type] = field(default_factory=list)
    sharded: bool = False
    unsure: bool = False  # a mover was seen whose state no vote has compared yet
    seen: list[Command] = field(default_factory=list)
    said: list[FromWorker] = field(default_factory=list)
    sealed_because_due: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.worker = WorkerMachine(worker=1)
        self.late = LateVotes()
        self.machine = CommitMachine(self.worker, self.late)
        self.machine.until = 9
        self._joins(plan(1, 0))

    def _joins(self, its: Regroup) -> None:
        self.worker.on_message(its)
        self.worker.follow()
        self.worker.joined(its, group_s=0.0, restore_s=0.0)

    def run(self, flow: Flow[Any]) -> Any:
        return drive(flow, self._carry_out)

    def _carry_out(self, command: Command) -> object:
        self.seen.append(command)
        if type(command) in self.fails:
            self.fails.remove(type(command))
            raise PeerLost
        match command:
            case Prepare():
                return not self.is_unsure
            case TellWorkerMachine():
                told = command.act(self.worker) or []
                self.said += [one.message for one in told if isinstance(one, Say)]
            case SealMoved():
                self.sealed_because_due.append(command.due)
            case Vote():
                return Passed(
                    save=self.worker.saves_now,
                    unsure=self.is_unsure,
                    seal=self.worker.seals_each,
                )
            case DropUndo():
                return self.sharded
            case HandOver():
                return True
            case BookCommit():
                self.worker.note_committed(step=command.step, now_s=0.0)
            case Break():
                self.worker.broke(mechanism="collective", error="", traceback="", now_s=0.0)
            case StandStill():
                self.worker.stand_still(in_hook=command.in_hook)
                its = self.plans.pop(0)
                self.worker.on_message(its)
                return its
            case Join():
                self.worker.joined(command.plan, group_s=0.0, restore_s=0.0)
            case _:
                pass
        return None

    @property
    def is_unsure(self) -> bool:
        return self.unsure and not self.late.on

    def names(self) -> list[str]:
        """Return the names of the commands since the last call, without those that only record
        something.
        """
        seen, self.seen = self.seen, []
        return [type(one).__name__ for one in seen if not isinstance(one, TellWorkerMachine)]

    def begin_step(self) -> None:
        assert self.run(self.machine.next_step())
        self.machine.give_out()
        self.machine.enter_block()
        self.names()


def test_a_step_is_prepared_then_voted_on_then_kept() -> None:
    rank = Rank()
    rank.begin_step()
    rank.run(rank.machine.vote_early())
    assert rank.names() == ["Prepare", "Vote", "DeliverVote"]
    assert rank.run(rank.machine.end_block(None))
    assert rank.names() == ["DropUndo", "BookCommit", "CallBack"]
    assert (rank.machine.committed, rank.worker.committed) == (1, 1)


def test_a_requested_checkpoint_is_of_the_step_being_voted_on() -> None:
    """The checkpoint is saved once, and every rank learns of it from the vote."""
    rank = Rank()
    rank.begin_step()
    rank.worker.on_message(SaveNow("a person asked"))
    rank.run(rank.machine.vote_early())
    assert rank.run(rank.machine.end_block(None))
    assert rank.run(rank.machine.next_step())
    assert Save(1, stopping=False, asked=True) in rank.seen
    assert not rank.worker.saves_now
    rank.machine.give_out()
    rank.machine.enter_block()
    assert rank.run(rank.machine.end_block(None))
    assert rank.run(rank.machine.next_step())
    assert Save(2, stopping=False, asked=False) in rank.seen


def test_a_checkpoint_is_requested_again_if_a_regroup_comes_first() -> None:
    """The step is repeated. The vote that passes in the end tells all ranks about the
    checkpoint.
    """
    rank = Rank(plans=[plan(2, 0)], fails=[Vote])
    rank.begin_step()
    rank.worker.on_message(SaveNow("a person asked"))
    with pytest.raises(StepInterrupted) as cut:
        rank.run(rank.machine.vote_early())
    assert not rank.run(rank.machine.end_block(cut.value))
    assert not rank.machine.agreed.save
    assert rank.worker.saves_now


def test_a_rank_seals_after_each_step_once_that_was_asked_for() -> None:
    """The report comes once, with the first step that was sealed for that. The next generation
    seals as often as the run says.
    """
    rank = Rank(sharded=True, plans=[plan(2, 2)])
    rank.begin_step()
    rank.worker.on_message(SealEach("node-0 is drained"))
    for _ in range(2):
        rank.run(rank.machine.vote_early())
        assert rank.run(rank.machine.end_block(None))
        rank.begin_step()
    assert [one for one in rank.said if isinstance(one, Sealed)] == [Sealed(1, 1, 1)]
    assert rank.sealed_because_due == [False, True, True]
    rank.fails.append(Vote)
    with pytest.raises(StepInterrupted) as cut:
        rank.run(rank.machine.vote_early())
    assert not rank.run(rank.machine.end_block(cut.value))
    assert (rank.machine.agreed.seal, rank.worker.seals_each) == (False, False)


def test_an_image_is_sent_only_while_the_rank_stands_still() -> None:
    """A request of a generation that is over is ignored."""
    rank = Rank(sharded=True)
    asked = SendImage(1, 0, "node-c:1")
    assert rank.worker.on_message(asked) == []
    rank.worker.on_message(Leave(1, "node-0 is drained"))
    rank.worker.stand_still(in_hook=False)
    assert rank.worker.on_message(asked) == [SendOut(1, 0, "node-c:1")]
    assert rank.worker.on_message(replace(asked, generation=0)) == []


def test_a_block_without_an_optimizer_votes_at_its_end() -> None:
    rank = Rank()
    rank.begin_step()
    assert rank.run(rank.machine.end_block(None))
    assert rank.names()[:2] == ["Prepare", "Vote"]


def test_sharded_state_counts_once_it_is_sealed() -> None:
    rank = Rank(sharded=True)
    rank.begin_step()
    rank.run(rank.machine.vote_early())
    rank.run(rank.machine.end_block(None))
    assert BookCommit not in map(type, rank.seen)
    assert CallBack(now=False) in rank.seen
    rank.names()
    rank.run(rank.machine.next_step())
    assert rank.names() == ["SealMoved", "BookCommit", "Save"]


def test_a_late_vote_comes_when_the_next_step_is_requested() -> None:
    """The state of all ranks is compared before the first step of a run is committed."""
    rank = Rank()
    rank.late.unproven = True
    rank.begin_step()
    rank.run(rank.machine.vote_early())
    assert rank.run(rank.machine.end_block(None))
    assert rank.names() == []
    assert rank.machine.waits_for_vote
    rank.run(rank.machine.next_step())
    assert [one for one in rank.seen if isinstance(one, Prepare)] == [
        Prepare(1, ScriptPosition(BEGUN, 0))
    ]
    assert rank.names()[:3] == ["ProveEqual", "Prepare", "Vote"]
    assert not rank.late.on


@pytest.mark.parametrize("optimizers", [1, 0])
def test_an_early_vote_that_comes_too_early_is_put_off(optimizers: int) -> None:
    """State has begun to move after the block, and no rank knows yet whether it differs between
    ranks.

    A block that calls no optimizer votes at its end, and puts its vote off in the same way. No rank
    is prepared while the vote is outstanding, so a fault leads to a repeat.
    """
    rank = Rank(unsure=True)
    rank.begin_step()
    if optimizers:
        rank.run(rank.machine.vote_early())
        assert rank.names() == ["Prepare", "Vote", "PutOff"]
    assert rank.run(rank.machine.end_block(None))
    assert (rank.worker.prepared, rank.worker.passed, rank.machine.committed) == (0, 0, 0)
    assert rank.machine.waits_for_vote
    rank.names()
    rank.run(rank.machine.next_step())
    assert rank.names()[:6] == [
        "ProveEqual",
        "Prepare",
        "Vote",
        "DeliverVote",
        "DropUndo",
        "BookCommit",
    ]
    assert not rank.late.on, "the next step votes late only if that vote says so"


def test_a_step_whose_vote_was_put_off_begins_again_with_an_early_vote() -> None:
    """Some ranks may have been interrupted before they saw that vote, and do not know of it."""
    rank = Rank(unsure=True, plans=[plan(2, 0)])
    rank.begin_step()
    rank.run(rank.machine.vote_early())
    assert PutOff(1) in rank.seen
    rank.worker.on_message(Leave(1, "a peer died"))
    assert not rank.run(rank.machine.end_block(None))
    assert not rank.late.on
    rank.begin_step()
    rank.run(rank.machine.vote_early())
    assert rank.names() == ["Prepare", "Vote", "PutOff"]


def test_a_forward_plan_is_applied_first_and_followed_before_the_next_step() -> None:
    rank = Rank(plans=[plan(2, 1, settle="forward")], fails=[Vote])
    rank.begin_step()
    rank.run(rank.machine.vote_early())
    assert StandStill(in_hook=True) in rank.seen
    rank.names()
    assert rank.run(rank.machine.end_block(None))
    assert Join not in map(type, rank.seen)
    rank.names()
    assert rank.run(rank.machine.next_step())
    assert rank.names() == ["SealMoved", "Save", "RollBack", "Join"]


def test_a_rank_finishes_its_step_before_it_is_given_up_for_a_drain() -> None:
    """The rank's node is drained. The rank completes its part of the commit, and joins no group
    before it is told what comes next. Here the drain is called off.
    """
    waits = plan(2, 1, settle="forward", then="stand")
    rank = Rank(plans=[waits, plan(3, 1)], fails=[Vote])
    rank.begin_step()
    rank.run(rank.machine.vote_early())
    assert rank.run(rank.machine.end_block(None))
    assert rank.names() == [
        "Prepare",
        "Vote",
        "Break",
        "StandStill",
        "DropUndo",
        "BookCommit",
        "CallBack",
    ]
    assert rank.run(rank.machine.next_step())
    assert rank.names() == ["SealMoved", "Save", "RollBack", "StandStill", "RollBack", "Join"]
    assert (rank.machine.committed, rank.worker.generation) == (1, 3)


def test_a_step_that_is_repeated_is_rolled_back_and_never_sealed() -> None:
    """Method: a peer is lost during the vote. The code of the loop after the block still runs."""
    rank = Rank(plans=[plan(2, 0)], fails=[Vote])
    rank.begin_step()
    with pytest.raises(StepInterrupted):
        rank.run(rank.machine.vote_early())
    assert not rank.run(rank.machine.end_block(StepInterrupted()))
    assert next(one for one in rank.seen if isinstance(one, RollBack)).in_flight
    rank.names()
    assert rank.run(rank.machine.next_step())
    assert SealMoved not in map(type, rank.seen)
    assert rank.names() == ["TakeBackTail"]


def test_a_body_that_swallows_its_interruption_does_not_vote() -> None:
    rank = Rank(plans=[plan(2, 0)])
    rank.begin_step()
    rank.worker.on_message(Leave(1, "a peer is gone"))
    with pytest.raises(StepInterrupted):
        rank.run(rank.machine.vote_early())
    assert not rank.run(rank.machine.end_block(None))
    assert Vote not in map(type, rank.seen)


def test_a_torn_step_does_not_follow_its_forward_plan() -> None:
    """Method: the optimizer raises after the plan said that the step is to be applied."""
    rank = Rank(plans=[plan(2, 1, settle="forward"), plan(3, 0)], fails=[Vote])
    rank.begin_step()
    rank.run(rank.machine.vote_early())
    rank.names()
    assert not rank.run(rank.machine.end_block(RuntimeError("half applied")))
    assert StandStill(in_hook=False) in rank.seen
    assert [one.plan.generation for one in rank.seen if isinstance(one, Join)] == [3]


def test_a_peer_lost_while_a_plan_is_followed_leads_to_the_next_plan() -> None:
    rank = Rank(plans=[plan(2, 0), plan(3, 0), plan(4, 0)], fails=[Vote, Join, Join])
    rank.begin_step()
    with pytest.raises(StepInterrupted):
        rank.run(rank.machine.vote_early())
    rank.run(rank.machine.end_block(StepInterrupted()))
    assert [one.plan.generation for one in rank.seen if isinstance(one, Join)] == [2, 3, 4]
    assert [one.in_flight for one in rank.seen if isinstance(one, RollBack)] == [True, False, False]


def test_a_donor_hands_over_before_it_leaves_main() -> None:
    """Method: the script swallows the exception that leaves the function, and the machine raises it
    again.
    """
    rank = Rank(plans=[plan(2, 0, then="reenter", donate=True)], fails=[Vote])
    rank.begin_step()
    with pytest.raises(StepInterrupted):
        rank.run(rank.machine.vote_early())
    with pytest.raises(Reenter):
        rank.run(rank.machine.end_block(StepInterrupted()))
    assert [type(one) for one in rank.seen][-1] is Donate
    assert rank.machine.is_leaving
    with pytest.raises(Reenter):
        rank.run(rank.machine.next_step())


def test_a_plan_of_a_generation_that_broke_too_is_forgotten() -> None:
    """Method: the forward plan waits for the next step, and its generation breaks before
    that step.
    """
    rank = Rank(plans=[plan(2, 1, settle="forward"), plan(3, 1)], fails=[Vote])
    rank.begin_step()
    rank.run(rank.machine.vote_early())
    rank.run(rank.machine.end_block(None))
    rank.worker.on_message(Leave(2, "a peer is gone"))
    assert rank.run(rank.machine.next_step())
    rank.machine.give_out()
    rank.machine.enter_block()
    assert not rank.machine.is_cut


def test_an_interrupted_phase_is_rolled_back_and_run_again() -> None:
    rank = Rank(plans=[plan(2, 0)], fails=[Vote])
    assert rank.run(rank.machine.before_phase())
    rank.names()
    assert not rank.run(rank.machine.end_phase(0))
    assert rank.names() == [
        "PreparePhase",
        "Vote",
        "Break",
        "StandStill",
        "RollBackPhase",
        "RollBack",
        "Join",
        "ForgetPhase",
    ]


def test_a_phase_that_a_peer_saw_pass_is_done() -> None:
    rank = Rank(plans=[plan(2, 0, phases=1)], fails=[Vote])
    rank.run(rank.machine.before_phase())
    assert rank.run(rank.machine.end_phase(0))
    assert {"RollBackPhase", "ForgetPhase"}.isdisjoint(rank.names())


def test_the_first_step_is_compared_before_its_vote() -> None:
    rank = Rank(fails=[ProveEqual], plans=[plan(2, 0)])
    rank.late.unproven = True
    rank.begin_step()
    rank.run(rank.machine.end_block(None))
    rank.run(rank.machine.next_step())
    assert TakeBackTail in map(type, rank.seen)
    assert rank.machine.committed == 0


@pytest.mark.parametrize(
    ("newest", "newest_step", "committed", "slot"),
    [
        (-1, -1, 0, 1),  # nothing is known: the number of the step decides
        (0, 4, 4, 1),  # the image of a committed step stays
        (0, 5, 4, 0),  # the image of an attempt that was rolled back does not
    ],
)
def test_an_image_does_not_overwrite_the_one_that_a_repeat_needs(
    newest: int, newest_step: int, committed: int, slot: int
) -> None:
    found = choose_slot(newest=newest, newest_step=newest_step, step=5, committed=committed)
    assert found == slot


def test_no_rank_leaves_before_the_final_state_is_handed_over() -> None:
    """Method: the last vote passes, then the state is written, and then all ranks vote that it is
    written.
    """
    rank = Rank()
    rank.machine.until = 0
    assert not rank.run(rank.machine.next_step())
    assert rank.names()[-5:] == ["Vote", "DeliverVote", "HandOver", "Vote", "DeliverVote"]
