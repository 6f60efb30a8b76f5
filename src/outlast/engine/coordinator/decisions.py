"""The decisions of a regroup: pure functions, each of which returns its reason.

They are called once every survivor stands still and every lost process is confirmed dead:

    decide_restore    which step to go on from, by what survivors and slots hold
    decide_source     what all ranks begin from if they restart
    decide_drain      whether the ranks of a drained node are given up now
    decide_recovery   the rung: which ranks go on in their processes, and what replaces the others
    decide_last_save  whether a run that gives up saves its newest state first

`decide_own_state` is called for each rank of the plan that follows.

This module is pure: no clock, no files, and no argument is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from outlast.engine.budget import Budgets
from outlast.engine.coordinator.restore_sources import Checkpoint, Restart, SourceFacts
from outlast.engine.recovery import RecoveryVerdict, Situation, decide_rung, replacing
from outlast.engine.restore import (
    NO_REFUSALS,
    NONE,
    Holding,
    RestoreVerdict,
    decide_replicated,
    decide_sharded,
)
from outlast.model import limits


def decide_restore(
    *,
    holdings: list[Holding],
    sharded: bool,
    decided: int,
    checkpoint: Checkpoint,
    twins: Mapping[int, tuple[int, ...]],
    copies: Mapping[int, tuple[int, ...]] = NONE,
    rebuilt: Mapping[int, tuple[int, ...]] = NONE,
    refused: Mapping[int, Mapping[int, str]] = NO_REFUSALS,
    leaving: Collection[int] = (),
) -> RestoreVerdict:
    """Decide which step all ranks go on from.

    decided, leaving                  as for `decide_replicated`
    twins, copies, rebuilt, refused   as for `decide_sharded`
    """
    if not sharded:
        return decide_replicated(holdings=holdings, decided=decided, leaving=leaving)
    restore = decide_sharded(
        holdings=holdings, twins=twins, copies=copies, rebuilt=rebuilt, refused=refused
    )
    durable = checkpoint.step
    if restore.step is not None and restore.step < durable:
        # A checkpoint is newer than the images, so it wins.
        why = f"the images of step {restore.step} are older than the checkpoint of step {durable}"
        return RestoreVerdict(None, {}, -1, (), why)
    return restore


# --- what all begin from -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceVerdict:
    """The source from which all ranks begin if they restart, and why.

    start   None: a survivor has to hand its state over first
    """

    start: Restart | None
    reason: str


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """The answer whether the source that all ranks were to begin from is there, and why."""

    is_there: bool
    reason: str


def check_source(facts: SourceFacts) -> SourceCheck:
    """Check whether the source from which all ranks were to begin (`begin_from`) is still usable.

    It is not if its node is lost, if the donor died before the image was sealed, if it was refused
    as damaged, or if something newer is there.
    """
    start, newest, saved = facts.begin_from, facts.checkpoint, facts.saved
    if facts.sharded and start.private == "slot" and facts.images_lost:
        # The images went with their node.
        return SourceCheck(False, "the images that all began from are lost with a node")
    if start.step < saved.step:
        what = "a checkpoint" if saved.checkpoint else "a copy"
        return SourceCheck(False, f"by now there is {what} of step {saved.step}")
    if start.replicated == "kept" and start.step != facts.kept_step:
        return SourceCheck(False, "the copies that all began from are not there any more")
    if start.checkpoint not in ("", newest.folder):
        return SourceCheck(False, "the checkpoint that all began from was refused since")
    # A node that came back may hold an older transfer image, so compare its step.
    there = -1 if facts.transfer is None else facts.transfer.step
    if start.replicated == "transfer" and start.step != there:
        return SourceCheck(False, "the transfer image of that step is not there")
    return SourceCheck(True, "what all began from is still there")


def decide_source(
    *,
    facts: SourceFacts,
    restore: RestoreVerdict,
    recovery_mode: str,
    finished: bool,
    step: int,
    at_step: int,
) -> SourceVerdict:
    """Decide what all ranks begin from if they restart.

    step      the newest step that was committed
    at_step   interruptions at the place of the newest one: the source itself may be what fails
    """
    newest = facts.saved
    if recovery_mode == "plain":
        return SourceVerdict(newest, "a script without outlast calls begins from its beginning")
    from_nothing = restore.step is None
    there = check_source(facts).is_there
    if (
        there
        and from_nothing
        and facts.begin_from.step == step
        and at_step < limits.REPEATS_PER_STEP_COUNT
    ):
        # No later step can be restored, so all begin where they began before.
        return SourceVerdict(facts.begin_from, "no step was committed since all began there")
    if facts.sharded:
        if restore.step is None:
            return SourceVerdict(newest, restore.reason)
        return SourceVerdict(Restart(restore.step, "none", "slot"), restore.reason)
    transfer = facts.transfer
    if (finished or from_nothing) and transfer is not None and transfer.step == step:
        # The transfer image is still good, although its donor is gone.
        return SourceVerdict(
            Restart(step, "transfer", "slot"), "the transfer image of the newest step lies sealed"
        )
    if from_nothing:
        return SourceVerdict(newest, restore.reason)
    return SourceVerdict(None, "a survivor hands its state over")


# --- what one rank begins from -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The facts about the slots of one rank, for one step.

    lies_sealed   they hold the step
    has_images    they were not lost with their node
    lacks         they are known not to hold the step, because the rank's last holder is gone
    twin          a rank that holds the same shards, and has sealed the step; -1: none is known
    copied_on     a node that keeps a copy of the rank's image of the step; "": none is known
    has_parity    the rank's image of the step can be rebuilt from parity
    """

    lies_sealed: bool
    has_images: bool
    lacks: bool
    twin: int = -1
    copied_on: str = ""
    has_parity: bool = False


@dataclass(frozen=True, slots=True)
class OwnState:
    """The source of a rank's private state: `private` and `checkpoint` of its plan."""

    private: str
    checkpoint: str
    reason: str


def decide_own_state(
    *,
    slots: SlotFacts,
    step: int,
    sharded: bool,
    folder: str,
    checkpoint: Checkpoint,
    verified: str,
    kept_step: int = 0,
) -> OwnState:
    """Decide where a rank finds its private state of `step`, if it is to read it.

    folder      of the checkpoint that the plan names already, or ""
    verified    the folder that was read as a whole last: no other checkpoint is trusted
    kept_step   the newest step of which all ranks have a copy in the vault; 0: there is none
    """
    if not sharded and not slots.lies_sealed:
        if step == 0:
            # No process has trained as this rank yet.
            return OwnState(
                "none", folder, "the state before the first step is what the script makes"
            )
        if (checkpoint.step, checkpoint.folder) == (step, verified):
            # The rank has sealed nothing since all began from a checkpoint.
            return OwnState(
                "checkpoint", verified, "the rank has sealed nothing since the checkpoint"
            )
        if kept_step == step:
            # The rank has sealed nothing since all began from their copies in the vault.
            return OwnState("kept", folder, "the rank has sealed nothing since its copy")
    if not slots.has_images and sharded and slots.copied_on:
        # A copy goes before a twin, because it has the rank's own random state as well.
        return OwnState("copy", folder, f"node {slots.copied_on} keeps a copy of the rank's image")
    if not slots.has_images and sharded and slots.has_parity:
        return OwnState("parity", folder, "the rank's image is rebuilt from parity")
    if not slots.has_images and sharded and slots.twin >= 0:
        return OwnState("twin", folder, f"rank {slots.twin} holds the same shards")
    if not slots.has_images:
        # The rank's private state was lost with its node.
        return OwnState("none", folder, "the rank's images are lost with their node")
    if not sharded and slots.lacks:
        # A node has come back with newer replicated state, and all start from that. The slots of
        # this rank hold an older step, from which all had started before the node came back.
        return OwnState("none", folder, "the rank's slots hold another step")
    return OwnState("slot", folder, "the rank's slots hold the step")


# --- the rung ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quiesced:
    """The facts once all survivors stand still.

    lost                ranks whose process is gone, in rising order
    raised              ranks that are alive and raised in user code
    drained             ranks of a node that is being drained
    mode                the costliest recovery mode of the members
    attached            some live process has attached its state
    finished            some member is past the last step
    start               what all ranks begin from if they restart; None: a survivor hands over first
    links_cut           some nodes cannot reach each other
    committed           the newest step committed
    reached             the newest step executed since the newest plan
    error               the newest error, for a verdict of stop
    trained             a step was committed in this run
    outside             every lost rank was killed by SIGKILL, and not for memory
    sharded             the state is sharded
    stood               the step at which ranks of a drained node stand still once more; -1: none do
    ended_in_run_phase  a lost rank has ended in a phase (run.phase)
    """

    world_size: int
    lost: tuple[int, ...]
    raised: frozenset[int]
    drained: frozenset[int]
    mode: str
    attached: bool
    finished: bool
    restore: RestoreVerdict
    start: Restart | None
    links_cut: bool
    committed: int
    reached: int
    error: str
    trained: bool
    outside: bool = False
    now_s: float = 0.0
    sharded: bool = False
    stood: int = -1
    ended_in_run_phase: bool = False


@dataclass(frozen=True, slots=True)
class DrainVerdict:
    """The ranks of a drained node that are given up now, and why.

    finish   ranks whose process will be lost, and that have work left at the step which the run
             goes on from. Under replicated state their current step goes forward. Under sharded
             state they have sealed the step, and do its on-commit work
    """

    ranks: tuple[int, ...]
    reason: str
    finish: tuple[int, ...] = ()


def decide_drain(*, seen: Quiesced, fits_elsewhere: bool, why_not: str = "") -> DrainVerdict:
    """Decide whether the live ranks of a drained node are given up now.

    They are if no fault has happened as well, if a rank on another node holds the state, and if the
    other nodes have room. Otherwise the drain is called off, and is tried again later. Sharded
    state needs an image of one step from each rank; these images move before any rank is given up.

    why_not   why the images of the node's ranks could not be moved; "": that was not found so far
    """
    if not seen.drained:
        return DrainVerdict((), "no node is drained")
    settle, sharded = seen.restore.settle, seen.sharded
    why_not = why_not or why_no_drain(seen=seen, fits_elsewhere=fits_elsewhere)
    if why_not:
        # Something else stands in the way, so the drain is tried again later.
        return DrainVerdict((), f"the drain is called off: {why_not}")
    ranks = tuple(sorted(seen.drained))
    # In this mode all ranks restart, so all of them lose their processes.
    going = range(seen.world_size) if seen.mode == "respawn" else ranks
    stood = seen.stood == seen.restore.step
    finish = tuple(
        rank for rank in going if (not stood if sharded else settle.get(rank) == "forward")
    )
    why = "the ranks of the drained node move away"
    return DrainVerdict(
        ranks, f"{why}, once they have finished their step" if finish else why, finish
    )


def why_no_drain(*, seen: Quiesced, fits_elsewhere: bool) -> str:
    """Return what stands in the way of a drain of `seen.drained`; "": nothing does."""
    if seen.lost:
        return "a rank is lost"
    if seen.raised:
        return "a rank raised"
    if seen.finished:
        return "a rank is past the last step"
    if not seen.sharded and seen.drained.issuperset(seen.restore.settle):
        return "only ranks of the node hold the step"
    if seen.sharded and seen.restore.step is None:
        return "no image of one step is sealed by all ranks"
    return "" if fits_elsewhere else "the other nodes have too little room"


def decide_recovery(
    *,
    seen: Quiesced,
    moving: Sequence[int],
    chosen: RecoveryVerdict | None,
    spares: Sequence[int],
    parked: Collection[int],
    budgets: Budgets,
) -> RecoveryVerdict:
    """Decide the rung of a recovery.

    moving   ranks that `decide_drain` gives up
    chosen   an earlier verdict of this regroup, which had to wait until the ranks that it gives up
             were dead. It is kept, and extended to ranks that were lost since
    spares   for each rank to be replaced, the parked worker that may take it, or -1
    parked   all workers that can take a rank now
    """
    lost = seen.lost
    if chosen is not None and len(lost) < seen.world_size:
        return _extended(chosen, lost, parked)
    mode, restore, start = seen.mode, seen.restore, seen.start
    # A script that has not reached run.steps yet has the mode "respawn".
    unattached = mode == "respawn" and not seen.attached
    nobody = seen.finished or unattached or (restore.step is None and mode == "in_place")
    is_live = mode == "plain" or not nobody
    handed_over = start is not None and start.replicated == "transfer"
    to_blame = (
        not seen.drained.issuperset(lost) if seen.drained else not seen.links_cut or bool(lost)
    )
    situation = Situation(
        lost=(*lost, *moving),
        raised=tuple(sorted(seen.raised - set(lost))),
        recovery_mode=mode if is_live else "respawn",
        state=restore.step is not None or handed_over,
        committed=seen.committed,
        reached=seen.reached,
        error=seen.error,
        trained=seen.trained,
        state_is_live=is_live,
        outside=seen.outside,
        now_s=seen.now_s,
        all_raised=len(seen.raised) == len(lost) == seen.world_size,
        ended_in_run_phase=seen.ended_in_run_phase,
        free=not seen.raised and not to_blame,
    )
    return decide_rung(
        situation=situation, spares=spares, budgets=budgets, world_size=seen.world_size
    )


def _extended(
    chosen: RecoveryVerdict, lost: tuple[int, ...], parked: Collection[int]
) -> RecoveryVerdict:
    """Extend a verdict to ranks that were lost since. Spares that are gone are not taken."""
    sources = {rank: worker if worker in parked else -1 for rank, worker in chosen.replace.items()}
    return replacing(dict.fromkeys(lost, -1) | sources, survivors=chosen.survivors)


# --- before the run gives up --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LastSave:
    """This says how a run that gives up saves its newest state.

    method   "none": it is not saved; "sealed": from images in shared memory; "kept": from copies in
             shared memory; "hand_over": a survivor first writes the replicated state
    step     the step of that state; -1: it is not saved
    """

    method: str
    step: int
    reason: str


def decide_last_save(
    *,
    restore: RestoreVerdict,
    start: Restart | None,
    sharded: bool,
    checkpoint: Checkpoint,
    donor_lives: bool,
) -> LastSave:
    """Decide whether a run that gives up has anything to save that is on no disk yet.

    start   what all ranks would begin from if they restarted; None: a survivor would hand over
    """
    handed_over = start is not None and start.replicated == "transfer"
    kept = start is not None and start.replicated == "kept"
    step = start.step if start is not None and (handed_over or kept) else restore.step
    if step is None:
        return LastSave("none", -1, restore.reason)
    if step <= 0:
        return LastSave("none", -1, "no step was committed")
    if step <= checkpoint.step:
        return LastSave("none", -1, f"the checkpoint of step {checkpoint.step} is as new")
    if kept:
        return LastSave("kept", step, f"copies of the state of step {step} lie in shared memory")
    if sharded or handed_over:
        return LastSave("sealed", step, f"the images of step {step} lie in shared memory")
    if not donor_lives:
        return LastSave("none", -1, "no rank that holds the replicated state is alive")
    return LastSave("hand_over", step, f"rank {restore.donor} holds the state of step {step}")


def describe_kept(
    *, committed: int, checkpoint: Checkpoint, reason: str, go_on: str = "`outlast run --resume`"
) -> str:
    """Return the sentence that says what is kept of a run that gives up and saves nothing.

    It is "" if the run has committed nothing.

    committed   the newest step that was committed
    reason      why its state is not saved
    """
    if committed <= 0:
        return ""
    there = f"{go_on} goes on from the checkpoint of step {checkpoint.step} in {checkpoint.folder}"
    lost = committed - checkpoint.step
    if lost <= 0:
        return there
    steps = "1 committed step is" if lost == 1 else f"{lost} committed steps are"
    rest = there if checkpoint.folder else "there is no checkpoint"
    return f"warning: the state of step {committed} cannot be saved: {reason}; {steps} lost; {rest}"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a recovery: steps that are executed again, and committed steps that are lost.

    step   the step that the run goes on from
    """

    step: int
    repeated: int
    lost: int


def work_out_cost(
    *,
    restore: RestoreVerdict,
    start: Restart | None,
    sharded: bool,
    committed: int,
    executed: int,
    booked_before: int,
) -> Cost:
    """Work out what it costs to go back to the restore point.

    booked_before   repeated steps that are booked with earlier open interruptions, if this one came
                    before any step was executed again
    """
    if restore.step is not None and not sharded:
        forward = "forward" in restore.settle.values()
        cut = restore.begun and not restore.over and not forward
        step, again = restore.step, max(0, int(cut) - booked_before)
    else:
        assert start is not None
        step, again = start.step, max(0, executed - start.step)
    return Cost(step, again, max(0, committed - step))
