"""Decisions about checkpoints: when one is complete, which one is offered, which ones are removed,
and what all ranks begin from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.coordinator.takeover import RecoveredState
from outlast.engine.durable import (
    Saves,
    begins_from_images,
    newest_common,
    newest_good,
    superfluous,
)
from outlast.engine.protocol.outputs import FindCheckpoint, Record, Tell, ToAgent, WriteManifest
from outlast.model.messages import Checkpointed, StartWorker
from outlast.model.records import Event

RANKS = 2


def shard(rank: int, step: int, *, generation: int = 1, error: str = "") -> Checkpointed:
    return Checkpointed(
        rank + 1,
        generation,
        rank,
        step,
        "" if error else f"rank-{rank}",
        0 if error else 8,
        "" if error else f"{generation:x}",
        error,
    )


@dataclass(frozen=True)
class Lies:
    step: int
    has_manifest: bool = True


FOLDERS = st.lists(
    st.builds(Lies, st.integers(1, 12), st.booleans()), unique_by=lambda one: one.step
)


# --- complete, or not -----------------------------------------------------------------------------


def test_a_save_is_complete_once_all_ranks_have_written_and_then_only_once() -> None:
    saves = Saves(RANKS)
    assert saves.put(shard(1, 5)) == ()
    assert saves.put(shard(1, 10)) == ()
    assert saves.put(shard(0, 5)) == (shard(0, 5), shard(1, 5))
    assert (saves.put(shard(0, 5)), saves.put(shard(1, 5))) == ((), ()), "it is reported again"


def test_a_step_that_is_executed_again_is_saved_again() -> None:
    saves = Saves(RANKS)
    for generation in (1, 2):
        saves.note_rollback(generation=generation, step=0)
        saves.put(shard(0, 5, generation=generation))
        assert len(saves.put(shard(1, 5, generation=generation))) == RANKS


def test_a_save_that_failed_for_one_rank_is_never_complete() -> None:
    saves = Saves(RANKS)
    saves.put(shard(0, 5))
    saves.fail(5)
    assert saves.put(shard(1, 5)) == ()


def test_a_regroup_that_rolls_nothing_back_costs_no_save() -> None:
    saves = Saves(RANKS)
    saves.put(shard(0, 5))
    saves.note_rollback(generation=2, step=5)
    assert saves.takes(shard(1, 5))
    assert len(saves.put(shard(1, 5))) == RANKS


def test_a_step_that_was_rolled_back_stays_rolled_back() -> None:
    """Method: step 4 belongs to a history that ended when all ranks went back to step 3. Then they
    reached step 6, and went back to step 5.
    """
    saves = Saves(RANKS)
    saves.note_rollback(generation=2, step=3)
    saves.note_rollback(generation=3, step=5)
    assert [saves.takes(shard(0, step, generation=1)) for step in (3, 4)] == [True, False]
    assert [saves.takes(shard(0, step, generation=2)) for step in (4, 5, 6)] == [True, True, False]


Course = st.lists(
    st.one_of(
        st.tuples(
            st.just("shard"), st.integers(0, RANKS - 1), st.integers(1, 4), st.integers(0, 3)
        ),
        st.tuples(st.just("back"), st.integers(0, 4)),
    )
)


@given(Course)
def test_a_complete_save_has_shards_of_one_past_only(course: list[Any]) -> None:
    """Method: shards arrive from this generation, and late ones from up to three generations
    before. No later rollback undid the step of any shard in a complete save.
    """
    saves, generation, backs = Saves(RANKS), 1, []
    for what in course:
        if what[0] == "back":
            generation += 1
            backs.append((generation, what[1]))
            saves.note_rollback(generation=generation, step=what[1])
            continue
        one = shard(what[1], what[2], generation=max(1, generation - what[3]))
        for each in saves.put(one) if saves.takes(one) else ():
            assert not [back for back in backs if back[0] > each.generation and back[1] < each.step]


# --- offered, and removed -------------------------------------------------------------------------


@given(FOLDERS, st.sets(st.integers(1, 12)))
def test_the_newest_good_checkpoint_is_offered_and_bad_ones_are_named(
    folders: list[Lies], spoilt: set[int]
) -> None:
    good, refused = newest_good(folders, why_not=lambda one: "spoilt" if one.step in spoilt else "")
    fine = [one.step for one in folders if one.has_manifest and one.step not in spoilt]
    assert (good.step if good is not None else None) == max(fine, default=None)
    newer = sorted(
        (one.step for one in folders if one.has_manifest and one.step > max(fine, default=0)),
        reverse=True,
    )
    assert [(one.step, why) for one, why in refused] == [(step, "spoilt") for step in newer]


def test_a_folder_without_a_manifest_is_not_read() -> None:
    read = []
    newest_good([Lies(3, False), Lies(2), Lies(1)], why_not=lambda one: read.append(one.step) or "")  # type: ignore[func-returns-value]
    assert read == [2]


@given(FOLDERS, st.sets(st.integers(1, 12)), st.integers(0, 3))
def test_checkpoints_that_are_needed_or_in_progress_are_not_removed(
    folders: list[Lies], spoilt: set[int], keep: int
) -> None:
    good, _ = newest_good(folders, why_not=lambda one: "spoilt" if one.step in spoilt else "")
    gone = superfluous(folders, good=good.step if good is not None else None, keep=keep)
    committed = sorted((one.step for one in folders if one.has_manifest), reverse=True)
    stay = {one.step for one in folders} - set(gone)
    assert good is None or good.step in stay
    assert not gone or set(committed[: max(keep, 1)]) <= stay
    assert {one.step for one in folders if one.step > max(committed, default=0)} <= stay
    if good is not None and good.step >= committed[: max(keep, 1)][-1]:
        assert {one.step for one in folders if one.has_manifest and one.step in stay} == set(
            committed[: max(keep, 1)]
        )


@given(FOLDERS, st.integers(0, 3), st.integers(1, 5))
def test_checkpoints_of_every_nth_step_are_kept_longer(
    folders: list[Lies], keep: int, every: int
) -> None:
    """The option `every` keeps the steps it names in addition to what is kept without it, and
    nothing else.
    """
    good, _ = newest_good(folders, why_not=lambda one: "")
    step = good.step if good is not None else None
    gone = set(superfluous(folders, good=step, keep=keep))
    committed = {one.step for one in folders if one.has_manifest}
    spared = {one for one in gone & committed if one % every == 0}
    assert set(superfluous(folders, good=step, keep=keep, every=every)) == gone - spared


def test_complete_images_newer_than_the_checkpoint_come_first() -> None:
    assert newest_common([(7, 6), (6, 5)], is_whole=lambda step: True) == 6
    assert newest_common([(7, 6), (7, 6)], is_whole=lambda step: step == 6) == 6
    assert newest_common([(7, 6), (5, 4)], is_whole=lambda step: True) is None
    assert [begins_from_images(images, checkpoint=5) for images in (4, 5, 6)] == [
        False,
        False,
        True,
    ]


# --- the coordinator ------------------------------------------------------------------------------


def coordinator(**more: Any) -> Coordinator:
    one = Coordinator(options=CoordinatorOptions(RANKS, Restart(), durable=True, **more))
    one.start(now_s=0.0)
    one.roster.script.outlast = True
    return one


def clearing(**more: Any) -> Coordinator:
    """Return a coordinator whose ranks are all gone and are all to restart."""
    one = coordinator(**more)
    one.run.lifecycle.enter(Stage.CLEARING)
    for member in one.roster.members():
        member.life.dead = True
    return one


def started(outputs: list[Any]) -> int:
    return sum(isinstance(one, ToAgent) and isinstance(one.message, StartWorker) for one in outputs)


def test_a_failed_save_is_reported_and_changes_nothing_else() -> None:
    one = coordinator()
    one.run.lifecycle.enter(Stage.TRAINING)
    for outputs in (
        one.on_message(shard(0, 5, error="No space left"), now_s=1.0),
        one.on_manifest(now_s=1.0, step=5, folder="", error="No space left"),
    ):
        assert [type(output) for output in outputs] == [Record, Tell]
    assert (one.stage, one.run.sources.checkpoint.restart()) == (Stage.TRAINING, Restart())


def test_the_manifest_is_requested_once_the_last_shard_is_written() -> None:
    one = coordinator()
    assert one.on_message(shard(1, 5), now_s=1.0) == []
    (order,) = one.on_message(shard(0, 5), now_s=1.0)
    assert order == WriteManifest(5, False, (("rank-0", 8, "1"), ("rank-1", 8, "1")))


def test_no_rank_starts_from_a_checkpoint_before_it_was_read() -> None:
    one = clearing()
    one.on_manifest(now_s=1.0, step=5, folder="five", error="")
    one.run.sources.choose(one.run.sources.checkpoint.restart())
    first = one.regroup.plans.when_cleared(2.0)
    assert [output for output in first if isinstance(output, FindCheckpoint)] == [FindCheckpoint()]
    assert started(first) == 0
    assert one.regroup.plans.when_cleared(2.1) == [], "it is asked once"
    assert started(one.on_checkpoint_found(now_s=3.0, step=5, folder="five", refused=())) == RANKS
    assert {
        member.path.plan.checkpoint
        for member in one.roster.members()
        if member.path.plan is not None
    } == {"five"}


def test_a_damaged_checkpoint_is_reported_and_an_older_one_is_used() -> None:
    one = clearing()
    one.on_manifest(now_s=1.0, step=5, folder="five", error="")
    one.run.sources.choose(one.run.sources.checkpoint.restart())
    one.regroup.plans.when_cleared(2.0)
    outputs = one.on_checkpoint_found(now_s=3.0, step=4, folder="four", refused=("five: torn",))
    assert [output.text for output in outputs if isinstance(output, Tell)] == [
        "warning: five: torn"
    ]
    assert {
        (member.path.plan.step, member.path.plan.checkpoint)
        for member in one.roster.members()
        if member.path.plan is not None
    } == {(4, "four")}


def copied(rank: int, step: int, generation: int = 1, error: str = "") -> Checkpointed:
    return Checkpointed(rank + 1, generation, rank, step, "", 0, "", error, in_vault=True)


def test_a_copy_in_the_vault_counts_once_all_ranks_have_sealed_it() -> None:
    """No manifest is requested, and nothing is written to the ledger."""
    one = coordinator()
    assert one.on_message(copied(1, 5), now_s=1.0) == []
    assert one.run.sources.kept_step == 0
    assert one.on_message(copied(0, 5), now_s=1.0) == []
    assert one.run.sources.kept_step == 5
    assert one.run.sources.checkpoint.step == 0, "it lies on no disk"


def test_a_rank_without_room_for_a_copy_is_reported() -> None:
    one = coordinator()
    (told,) = one.on_message(copied(1, 5, error="no room"), now_s=1.0)
    assert isinstance(told, Tell)
    assert "rank 1 keeps no copies" in told.text
    one.on_message(copied(0, 5), now_s=1.0)
    assert one.run.sources.kept_step == 0


def test_copies_of_steps_that_were_rolled_back_do_not_count() -> None:
    """Method: one rank has copied step 7 when all ranks are lost. Step 7 is executed again in
    another generation.
    """
    one = coordinator()
    one.on_message(copied(0, 7), now_s=1.0)
    one.run.sources.begin_generation(generation=2, step=5)
    one.on_message(copied(1, 7), now_s=1.0)
    assert one.run.sources.kept_step == 0
    for rank in range(RANKS):
        one.on_message(copied(rank, 7, generation=2), now_s=2.0)
    assert one.run.sources.kept_step == 7


@pytest.mark.parametrize("good", [9, 6, 0])
def test_no_rank_starts_from_a_copy_before_it_was_read(good: int) -> None:
    """A damaged copy is reported. An older copy is used if it is newer than the checkpoint."""
    one = clearing()
    one.on_manifest(now_s=1.0, step=5, folder="five", error="")
    one.run.sources.note_kept(9)
    one.run.sources.choose(Restart(9, "kept", "kept"))
    first = one.regroup.plans.when_cleared(2.0)
    assert [output for output in first if isinstance(output, FindCheckpoint)] == [FindCheckpoint()]
    damaged = () if good == 9 else ("the copies of step 9 are not used",)
    found = one.on_checkpoint_found(
        now_s=3.0, step=5, folder="five", refused=damaged, kept_step=good
    )
    assert started(found) == RANKS
    assert [output.text for output in found if isinstance(output, Tell)] == (
        [] if good == 9 else ["warning: the copies of step 9 are not used"]
    )
    plans = [member.path.plan for member in one.roster.members()]
    expected = (good, "kept", "kept", "") if good else (5, "checkpoint", "checkpoint", "five")
    assert [
        (plan.step, plan.replicated, plan.private, plan.checkpoint) for plan in plans if plan
    ] == [expected] * RANKS


def test_a_rank_that_has_sealed_nothing_reads_its_checkpoint_again() -> None:
    """The slots of such a rank may hold other steps, from before.

    A rank whose image of that step lies sealed reads the image.
    """
    one = clearing()
    one.on_manifest(now_s=1.0, step=5, folder="five", error="")
    before = one.regroup.plans.of_rank(0, "slot", 5)
    assert (before.private, before.checkpoint) == ("slot", ""), "nobody has read it as a whole"
    one.on_checkpoint_found(now_s=1.0, step=5, folder="five", refused=())
    one.roster.clear()
    one.roster.remains.find_images(0, (9, 8))
    one.roster.remains.find_images(1, (6, 5))
    plans = [one.regroup.plans.of_rank(rank, "slot", 5) for rank in range(RANKS)]
    assert [(plan.private, plan.checkpoint) for plan in plans] == [
        ("checkpoint", "five"),
        ("slot", ""),
    ]
    one.roster.script.sharded = True
    again = one.regroup.plans.of_rank(0, "slot", 5)
    assert again.private == "slot", "all have sealed what they go on from"


def test_a_run_stopped_while_checkpoints_are_read_starts_no_process() -> None:
    one = clearing()
    one.run.sources.choose(Restart())
    one.regroup.plans.when_cleared(2.0)
    one.run.lifecycle.enter(Stage.STOPPING)
    assert one.on_checkpoint_found(now_s=3.0, step=4, folder="four", refused=()) == []


def test_images_older_than_a_checkpoint_are_used_only_if_it_is_refused() -> None:
    """The images were on a node that was cut off. The other ranks went on meanwhile, and saved a
    checkpoint.
    """
    one = clearing()
    one.roster.script.sharded = True
    one.on_manifest(now_s=1.0, step=5, folder="five", error="")
    for rank in range(RANKS):
        one.roster.remains.find_images(rank, (4, 3))
    assert one.regroup.plans.restore().step is None
    assert one.regroup.plans.source(one.regroup.plans.restore(), finished=False).start == Restart(
        5, "checkpoint", "checkpoint", "five"
    )
    one.run.sources.choose(one.run.sources.checkpoint.restart())
    one.regroup.plans.when_cleared(2.0)
    one.on_checkpoint_found(now_s=3.0, step=2, folder="two", refused=("five: torn",))
    assert one.run.sources.begin_from == Restart(4, "none", "slot")


def test_images_lost_with_a_node_during_a_restart_are_not_used() -> None:
    """Method: the state is sharded. Each rank's image of step 7 was there when the restart was
    decided, and the newest checkpoint is of step 5.
    """
    one = clearing()
    one.roster.script.sharded = True
    one.on_manifest(now_s=1.0, step=5, folder="five", error="")
    one.run.sources.choose(Restart(7, "none", "slot"))
    one.roster.remains.lose_rank(1)
    assert [
        output
        for output in one.regroup.plans.when_cleared(2.0)
        if isinstance(output, FindCheckpoint)
    ] == [FindCheckpoint()]
    assert started(one.on_checkpoint_found(now_s=3.0, step=5, folder="five", refused=())) == RANKS
    plans = [member.path.plan for member in one.roster.members()]
    assert [(plan.step, plan.private, plan.checkpoint) for plan in plans if plan is not None] == [
        (5, "checkpoint", "five")
    ] * RANKS


def test_another_coordinator_knows_the_newest_checkpoint() -> None:
    remembered = RecoveredState()
    for step in (5, 10):
        remembered.take(Event(1.0, 0.0, "checkpoint", {"step": step, "folder": f"step {step}"}))
    one = Coordinator(options=CoordinatorOptions(RANKS, Restart(), nodes=2, durable=True))
    one.remember(remembered)
    assert one.run.sources.checkpoint.restart() == Restart(
        10, "checkpoint", "checkpoint", "step 10"
    )
