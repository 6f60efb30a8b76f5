"""The pure decisions of a regroup: what each one decides, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.coordinator.decisions import (
    LastSave,
    Quiesced,
    SlotFacts,
    check_source,
    decide_drain,
    decide_last_save,
    decide_own_state,
    decide_source,
    describe_kept,
    work_out_cost,
)
from outlast.engine.coordinator.restore_sources import Checkpoint, Restart, SourceFacts, Transfer
from outlast.engine.restore import RestoreVerdict
from outlast.model import limits

NOTHING = RestoreVerdict(None, {}, -1, (), "nothing is sealed")
HANDED_OVER = SourceFacts(
    Restart(5, "transfer", "slot"),
    Transfer(2, 5, "a"),
    Checkpoint(),
    sharded=False,
    images_lost=False,
)
DRAINED = Quiesced(
    world_size=4,
    lost=(),
    raised=frozenset(),
    drained=frozenset({1, 0}),
    mode="in_place",
    attached=True,
    finished=False,
    start=None,
    links_cut=False,
    committed=7,
    reached=7,
    error="",
    trained=True,
    restore=RestoreVerdict(7, dict.fromkeys(range(4), "keep"), 2, (), "all hold it"),
)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(HANDED_OVER, transfer=None), "the transfer image of that step is not there"),
        (
            replace(HANDED_OVER, transfer=Transfer(3, 4, "a")),
            "the transfer image of that step is not there",
        ),
        (
            replace(HANDED_OVER, checkpoint=Checkpoint(6, "six")),
            "by now there is a checkpoint of step 6",
        ),
        (
            replace(HANDED_OVER, begin_from=Restart(5, "checkpoint", "checkpoint", "five")),
            "the checkpoint that all began from was refused since",
        ),
        (
            replace(
                HANDED_OVER, begin_from=Restart(5, "none", "slot"), sharded=True, images_lost=True
            ),
            "the images that all began from are lost with a node",
        ),
        (replace(HANDED_OVER, kept_step=6), "by now there is a copy of step 6"),
        (
            replace(HANDED_OVER, begin_from=Restart(5, "kept", "kept"), kept_step=4),
            "the copies that all began from are not there any more",
        ),
    ],
)
def test_a_source_that_is_gone_is_said_to_be_gone_and_why(facts: SourceFacts, reason: str) -> None:
    """Without such a loss, the same source is there."""
    check = check_source(facts)
    assert (check.is_there, check.reason) == (False, reason)
    assert check_source(HANDED_OVER).is_there


def test_all_begin_again_from_the_same_source_unless_that_may_be_the_fault() -> None:
    """After this many interruptions at one place, a checkpoint is used instead."""
    facts = replace(HANDED_OVER, checkpoint=Checkpoint(4, "four"), transfer=Transfer(2, 5, "a"))
    facts = replace(facts, begin_from=Restart(4, "checkpoint", "checkpoint", "four"), transfer=None)
    for at_step, reason in (
        (1, "no step was committed since all began there"),
        (limits.REPEATS_PER_STEP_COUNT, NOTHING.reason),
    ):
        verdict = decide_source(
            facts=facts,
            restore=NOTHING,
            recovery_mode="respawn",
            finished=False,
            step=4,
            at_step=at_step,
        )
        assert (verdict.start, verdict.reason) == (facts.begin_from, reason)


@pytest.mark.parametrize(
    ("kept_step", "checkpoint", "start"),
    [
        (7, Checkpoint(), Restart(7, "kept", "kept")),
        (7, Checkpoint(6, "six"), Restart(7, "kept", "kept")),
        (6, Checkpoint(6, "six"), Restart(6, "checkpoint", "checkpoint", "six")),
        (0, Checkpoint(), Restart()),
    ],
)
def test_all_begin_from_the_newest_of_copies_and_checkpoints(
    kept_step: int, checkpoint: Checkpoint, start: Restart
) -> None:
    """No rank lives. If a copy and a checkpoint are of the same step, the checkpoint is used,
    because the disk outlives the run.
    """
    facts = SourceFacts(Restart(), None, checkpoint, sharded=False, images_lost=False)
    verdict = decide_source(
        facts=replace(facts, kept_step=kept_step),
        restore=NOTHING,
        recovery_mode="respawn",
        finished=False,
        step=8,
        at_step=1,
    )
    assert verdict.start == start


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (Restart(), "begin from the beginning: no state was saved"),
        (Restart(7, "kept", "kept"), "from the copy of step 7 in shared memory"),
        (Restart(4, "checkpoint", "checkpoint", "four"), "from the checkpoint of step 4"),
        (Restart(4, "none", "slot"), "from the images of step 4"),
    ],
)
def test_people_are_told_what_all_begin_from(start: Restart, words: str) -> None:
    assert start.words.endswith(words)


def test_a_survivor_hands_over_if_it_stands_in_a_step_with_the_state_of_it() -> None:
    restore = RestoreVerdict(5, {0: "keep"}, 0, (), "rank 0 holds it")
    told = decide_source(
        facts=HANDED_OVER,
        restore=restore,
        recovery_mode="respawn",
        finished=False,
        step=5,
        at_step=1,
    )
    over = decide_source(
        facts=HANDED_OVER,
        restore=restore,
        recovery_mode="respawn",
        finished=True,
        step=5,
        at_step=1,
    )
    assert (told.start, told.reason) == (None, "a survivor hands its state over")
    assert over.start == Restart(5, "transfer", "slot")


def test_a_rank_reads_its_slots_only_if_they_may_hold_the_step() -> None:
    def source(step: int = 5, verified: str = "five", kept: int = 0, **facts: bool) -> str:
        slots = SlotFacts(**{"lies_sealed": False, "has_images": True, "lacks": False} | facts)
        return decide_own_state(
            slots=slots,
            step=step,
            sharded=False,
            folder="",
            checkpoint=Checkpoint(5, "five"),
            verified=verified,
            kept_step=kept,
        ).private

    assert source(lies_sealed=True) == "slot"
    assert source(step=6, kept=6) == "kept"
    assert source(step=6, kept=6, lies_sealed=True) == "slot"
    assert source(step=6, kept=4) == "slot", "the copies are of another step"
    assert source(step=0) == "none"
    assert source() == "checkpoint"
    assert source(verified="") == "slot", "nobody has read that checkpoint as a whole"
    assert source(lies_sealed=True, has_images=False) == "none"
    assert source(verified="", lacks=True) == "none"


@pytest.mark.parametrize(
    ("seen", "fits", "why"),
    [
        (replace(DRAINED, lost=(3,)), True, "a rank is lost"),
        (replace(DRAINED, raised=frozenset({3})), True, "a rank raised"),
        (replace(DRAINED, finished=True), True, "a rank is past the last step"),
        (
            replace(DRAINED, drained=frozenset(range(4))),
            True,
            "only ranks of the node hold the step",
        ),
        (DRAINED, False, "the other nodes have too little room"),
    ],
)
def test_a_drain_is_called_off_for_a_reason(seen: Quiesced, fits: bool, why: str) -> None:
    """Without any of these conditions, the ranks move away."""
    verdict = decide_drain(seen=seen, fits_elsewhere=fits)
    assert (verdict.ranks, verdict.reason) == ((), f"the drain is called off: {why}")
    assert decide_drain(seen=DRAINED, fits_elsewhere=True).ranks == (0, 1)


def test_steps_after_the_restore_point_are_lost_and_executed_again() -> None:
    cost = work_out_cost(
        restore=NOTHING,
        start=Restart(4, "checkpoint"),
        sharded=False,
        committed=7,
        executed=8,
        booked_before=0,
    )
    assert (cost.step, cost.repeated, cost.lost) == (4, 4, 3)


def test_a_run_that_gives_up_saves_what_is_on_no_disk_yet() -> None:
    """Sharded state is already sealed. Replicated state is written by a survivor that holds it."""

    def decide(
        restore: RestoreVerdict,
        *,
        sharded: bool = False,
        newest: int = 4,
        donor_lives: bool = True,
        start: Restart | None = None,
    ) -> LastSave:
        return decide_last_save(
            restore=restore,
            start=start,
            sharded=sharded,
            checkpoint=Checkpoint(newest, "four"),
            donor_lives=donor_lives,
        )

    held = RestoreVerdict(7, dict.fromkeys(range(4), "keep"), 2, (), "all hold it")
    assert decide(held) == LastSave("hand_over", 7, "rank 2 holds the state of step 7")
    assert decide(held, sharded=True).method == "sealed"
    image = Restart(7, "transfer", "slot")
    sealed = decide(NOTHING, start=image, donor_lives=False)
    assert (sealed.method, sealed.step) == ("sealed", 7), "its donor is gone, and its image is not"
    copied = decide(NOTHING, start=Restart(6, "kept", "kept"), donor_lives=False)
    assert (copied.method, copied.step) == ("kept", 6), "nobody lives, and the copies lie there"
    for nothing, reason in (
        (decide(NOTHING), NOTHING.reason),
        (decide(NOTHING, start=Restart(4, "checkpoint", "checkpoint", "four")), NOTHING.reason),
        (decide(NOTHING, start=image, newest=7), "the checkpoint of step 7 is as new"),
        (decide(replace(held, step=0), newest=0), "no step was committed"),
        (decide(held, newest=7), "the checkpoint of step 7 is as new"),
        (decide(held, donor_lives=False), "no rank that holds the replicated state is alive"),
    ):
        assert nothing == LastSave("none", -1, reason)


@pytest.mark.parametrize(
    ("committed", "checkpoint", "kept"),
    [
        (0, Checkpoint(), ""),
        (4, Checkpoint(4, "four"), "on from the checkpoint of step 4 in four"),
        (5, Checkpoint(4, "four"), "saved: why; 1 committed step is lost; `outlast run --resume`"),
        (7, Checkpoint(), "step 7 cannot be saved: why; 7 committed steps are lost; there is no"),
    ],
)
def test_a_run_that_saves_nothing_says_what_is_kept(
    committed: int, checkpoint: Checkpoint, kept: str
) -> None:
    said = describe_kept(committed=committed, checkpoint=checkpoint, reason="why")
    assert kept in said
    assert bool(said) is bool(kept)


@pytest.mark.parametrize(
    ("mode", "finish"), [("in_place", (0,)), ("reenter", (0,)), ("respawn", (0, 2))]
)
def test_ranks_that_a_drain_gives_up_finish_their_step_first(
    mode: str, finish: tuple[int, ...]
) -> None:
    """Ranks 0 and 2 wait at a vote that has passed. Ranks 1 and 3 have committed. Ranks 0 and 1 are
    drained.

    If the script is not replaced in place, all ranks lose their processes.
    """
    settle = {0: "forward", 1: "repeat", 2: "forward", 3: "repeat"}
    seen = replace(DRAINED, mode=mode, restore=replace(DRAINED.restore, settle=settle))
    verdict = decide_drain(seen=seen, fits_elsewhere=True)
    assert (verdict.ranks, verdict.finish) == ((0, 1), finish)


def test_ranks_of_sharded_state_do_their_on_commit_work_before_they_leave() -> None:
    """They have sealed the step. Once they stand still at it again, they may be given up.

    If the script is not entered again, all ranks lose their processes.
    """
    sealed = replace(DRAINED.restore, step=7, settle={})
    seen = replace(DRAINED, sharded=True, mode="reenter", restore=sealed)
    assert decide_drain(seen=seen, fits_elsewhere=True).finish == (0, 1)
    assert decide_drain(seen=replace(seen, stood=6), fits_elsewhere=True).finish == (0, 1)
    stands = decide_drain(seen=replace(seen, stood=7), fits_elsewhere=True)
    assert (stands.ranks, stands.finish) == ((0, 1), ())
    everybody = decide_drain(seen=replace(seen, mode="respawn"), fits_elsewhere=True)
    assert everybody.finish == tuple(range(DRAINED.world_size))
    none = replace(seen, restore=replace(sealed, step=None))
    assert "no image of one step" in decide_drain(seen=none, fits_elsewhere=True).reason
    cannot = decide_drain(seen=seen, fits_elsewhere=True, why_not="node c has no room")
    assert cannot.reason == "the drain is called off: node c has no room"


def test_a_rank_without_images_takes_those_of_its_twin() -> None:
    def source(*, sharded: bool = True, has_images: bool = False, twin: int = 2) -> str:
        return decide_own_state(
            slots=SlotFacts(False, has_images, False, twin),
            step=5,
            sharded=sharded,
            folder="",
            checkpoint=Checkpoint(),
            verified="",
        ).private

    assert source() == "twin"
    assert source(has_images=True) == "slot"
    assert source(twin=-1) == "none"
    assert source(sharded=False) == "none"
