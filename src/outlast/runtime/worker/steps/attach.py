"""Attach a rank to the run: restore its state from the sources that the plan names, and join.

Every way into a generation ends here: a fork, a spare, a re-entered function and a resumed run all
call `Attachment.attach`. A survivor that keeps its state calls `Attachment.join` instead.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch.nn.parallel import DistributedDataParallel

from outlast.engine.commit.image_place import ScriptPosition, choose_image
from outlast.errors import CorruptError, OutlastError, Reenter
from outlast.model.messages import CopyRefused, Regroup
from outlast.model.terms import Cause, Phase, Waypoint
from outlast.model.texts import some
from outlast.runtime import clock
from outlast.runtime.tiers.held_copies import HeldCopies
from outlast.runtime.tiers.image import Image
from outlast.runtime.worker.communication import ddp
from outlast.runtime.worker.member.membership import Membership
from outlast.runtime.worker.process.error_text import one_line
from outlast.runtime.worker.run_state.private import described
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.saving.checkpoints import Checkpoints, load_checkpoint
from outlast.runtime.worker.saving.images import (
    RankImages,
    holds_shared,
    learn_movers,
    load_edited,
    load_movers,
    load_parts,
    load_private,
    load_shared,
    load_stand_in,
    load_twin,
)
from outlast.runtime.worker.saving.state_copies import StateCopies
from outlast.runtime.worker.saving.undo import Undo
from outlast.runtime.worker.steps.agreement import Agreement
from outlast.runtime.worker.transfer.image_receiver import ImageUnreached


class Readiness(NamedTuple):
    """This says when a rank became ready. It may then wait for ranks that still restore.

    ready_s      when it was in the group with its state
    cause        what the wait is booked as
    detected_s   when the fault behind this regroup was seen; None: there was no fault
    """

    ready_s: float
    cause: Cause
    detected_s: float | None


@dataclass(slots=True)
class StepsCall:
    """The facts about the present call of run.steps.

    accumulate     micro-batches in a step
    high_water     the newest step that some holder of this rank has committed; steps up to it are
                   booked as repeated
    first_step     no step of this call has ended yet
    first          the first step of a run that has no state of its own yet
    begun_behind   the step after which this call began, as long as it is the newest; -1: unknown
    again          the plan and the donor's image that this process began with, if the donor was in
                   the next call of run.steps by then (see `begin_steps_call`); else None
    donate_s       seconds that this rank has spent on the transfer image in this regroup
    awaited        since when this rank is ready in this generation; None once a vote has passed
    strangers      modules that ran in the first step and are not in the State
    """

    accumulate: int
    high_water: int = 0
    first_step: bool = True
    first: int = 1
    begun_behind: int = -1
    again: tuple[Regroup, Image] | None = None
    donate_s: float = 0.0
    awaited: Readiness | None = None
    strangers: list[str] = field(default_factory=list)

    def waits_for_others(self, plan: Regroup, *, ready_s: float) -> None:
        """Note that this rank is in the group of `plan`, with its state, since `ready_s`."""
        self.awaited = Readiness(ready_s, plan.restoring, plan.detected_s)


class Attachment:
    """Connect this rank's State with the run: restore it, seal it, and send it to others.

    The Transaction makes one for each State. A process that enters a generation calls `attach`
    once. After a regroup that it survives, it calls `donate` if the plan says so, and then `join`:

        step = attachment.attach()           # restored, joined: the state is of `step`
        attachment.settle(step, place, ...)  # after each step: seal what has changed
        attachment.donate(plan)              # a peer was lost: write the transfer image
        attachment.join(plan)                # enter the next generation with the state as it is

    images        seals the state in the vault, and reads it
    agreement     compares what all ranks have to agree on
    undo          the copy of a step that votes late
    checkpoints   writes the state to the disk
    copies        copies in the vault, for the loss of all ranks, and on other nodes
    call          the facts about this call of run.steps
    """

    def __init__(
        self, membership: Membership, state: State, *, accumulate: int, first: int = 1
    ) -> None:
        self.member = membership
        self.state = state
        # DDP models that the script has made itself count too, even if run.state was given the
        # module inside them.
        given = [one for one in state.given.values() if isinstance(one, DistributedDataParallel)]
        around = ddp.holding(state.parameters.values())
        self.replicas = [*given, *(one for one in around if all(one is not it for it in given))]
        state.held_by(self.replicas)
        self.undo = Undo(membership.session, state)
        self.images = RankImages(membership, state)
        self.agreement = Agreement(membership, state, self.undo, self.images)
        self.checkpoints = Checkpoints(membership.session, self.images.of_checkpoint)
        self.copies = StateCopies(membership, state, self.images)
        membership.script.in_steps = True
        self.call = StepsCall(accumulate, first=first)
        # the line of the script that communicated before run.steps; "" if none did
        self._first_need = ""

    # --- attaching --------------------------------------------------------------------------------

    def attach(self) -> int:
        """Bring this rank's state to the run's step, join the run's group, and return the step."""
        member, session = self.member, self.member.session
        self.state.bind(member.rank(), member.world_size)
        if session is None:
            return self._begin_behind(self.call.first - 1)
        session.enter(Phase.REGROUP, cause=session.wait_plan(newer_than=-1).attaching)
        needed = self.images.reserve()
        self.copies.reserve(*needed)
        self.checkpoints.reserve(self.images.checkpoint_bytes(*needed))
        while True:
            plan = self._plan()
            member.came_to(Waypoint.RESTORES if member.has_group else Waypoint.AWAITS_STATE)
            try:
                if not member.has_group:
                    self._build(plan)
                self._freeze()
                began_s = clock.now_s()
                self._restore(plan)
                if not plan.brings_state:
                    self.agreement.check_first_step(self.call.first)
                    plan = replace(plan, step=self._begin_behind(self.call.first - 1))
                self.agreement.check_at_start(plan)
                return self._ready(plan, restore_s=clock.now_s() - began_s)
            except Exception as error:  # boundary: a peer was lost meanwhile
                if not member.is_collateral(error):
                    raise  # an error of another kind ends this process
                member.broke(error)
                member.destroy()
                member.stand_still(in_hook=False)
                self._leave_if_reentering()

    def _begin_behind(self, step: int) -> int:
        """Begin a run without state of its own after `step`, which the script has restored itself.

        Return `step`. A loader that can count skips the batches up to there.
        """
        if step and self.state.source is not None:
            self.state.source.skip(step * self.call.accumulate)
        return step

    def _plan(self) -> Regroup:
        """Take the newest plan and return it. From here on, a Leave interrupts the main thread."""
        session = self.member.session
        assert session is not None
        while True:
            plan = session.wait_plan(newer_than=-1)
            if session.take_plan(plan):
                return plan

    def _leave_if_reentering(self) -> None:
        """Raise Reenter if the next plan asks this process to enter main's function again."""
        session = self.member.session
        assert session is not None
        plan = session.wait_plan()
        if session.machine.starts_over(plan, reenters=self.member.reenters):
            raise Reenter

    def _build(self, plan: Regroup) -> float:
        """Build the group of `plan`, and move the DDP models to it. Return the group's seconds."""
        self.mark("grouping")
        group_s = self.member.build(plan)
        self.member.came_to(Waypoint.RESTORES)
        for wrapped in self.replicas:
            with self.member.guards.ours():
                ddp.rebuild(wrapped)
        return group_s

    def _freeze(self) -> None:
        """Keep DDP from changing its buckets, because the order of sums depends on them."""
        for wrapped in self.replicas:
            with self.member.guards.ours():
                reason = ddp.freeze_buckets(wrapped)
            if reason and self.member.session is not None:
                self.member.session.warn(f"not bit-exact: {reason}")

    def _ready(self, plan: Regroup, *, restore_s: float) -> int:
        """Report that this rank has joined the generation of `plan`. Return its step."""
        session = self.member.session
        assert session is not None
        step = plan.step
        self.call.high_water = plan.high_water
        self.copies.sender.follow(plan)
        self.images.begin(step)
        self._send_copy()
        self.copies.forget_after(step)
        if (plan.keepers or plan.shares) and not self.state.sharded:
            session.warn(
                "--keep peers, parity: the state is replicated, so each node has all of it, and no"
                " copies are made"
            )
        self._first_need = self.member.guards.first_need  # collectives of steps are not counted
        self.register()
        self._warn_if_only_rank()
        session.do(lambda machine: machine.joined(plan, group_s=0.0, restore_s=restore_s))
        self.mark("joined")
        self.call.waits_for_others(plan, ready_s=session.enter(Phase.BETWEEN, cause=Cause.OTHER))
        return step

    def register(self) -> None:
        """Report to the coordinator how this script can be recovered (trap 14).

        The answer changes once the script makes a group of its own, and is then reported again.
        """
        member = self.member
        member.guards.calls.on_held = self.register
        notes = [reason for wrapped in self.replicas if (reason := ddp.not_rebuildable(wrapped))]
        own = self._own_groups()
        if not self.state.sharded and not own and not notes:
            mode, note = "in_place", ""
        elif member.reenters:
            mode, note = "reenter", ""
        else:
            mode = "respawn"
            note = notes[0] if notes else "" if self.state.sharded else own
            note = "the ranks hold different parameters" if self.state.differs_by_rank else note
            note += (
                "; put the training into a function and give it to outlast.main, so that survivors"
                " need not start over"
            )
        member.register(
            recovery_mode=mode,
            sharded=self.state.sharded,
            exact=True,
            note=note.lstrip("; ") if mode == "respawn" else "",
            alike=self.agreement.alike,
        )

    def _warn_if_only_rank(self) -> None:
        """Warn what a kill would cost if only this rank holds the replicated state.

        The warning is shown once in a run, however often it is sent.
        """
        session, only_rank = self.member.session, self.member.world_size == 1
        copied = self.state.sharded or self.copies.keeping.copies_to_vault
        if session is not None and only_rank and not copied:
            back = (
                "to the newest checkpoint"
                if self.checkpoints.on_stop
                else "to the beginning (--keep disk:10min keeps more)"
            )
            session.warn(
                "nobody but this one rank holds the parameters: if its process is lost, training"
                f" goes back {back}"
            )

    def _own_groups(self) -> str:
        """Return why the script depends on one generation's process group, with the line; or "".

        It does if it holds a group or mesh of its own, or communicates before run.steps.
        """
        if held := self.member.guards.held:
            return f"the script holds a process group or device mesh of its own, made at {held}"
        return (
            f"the script makes collectives of its own before run.steps, at {self._first_need}"
            if self._first_need
            else ""
        )

    def settle(self, step: int, place: ScriptPosition, *, due: bool) -> None:
        """Seal what has changed since the newest image, and send a copy of it if one is due."""
        self.images.settle(step, place, due=due)
        self._send_copy()

    def _send_copy(self) -> None:
        # Replicated state needs no copies: each node holds all of it.
        if self.state.sharded:
            self.copies.sender.send(self.images.sealed)

    def mark(self, name: str) -> None:
        """Note that this rank has reached the place `name`, where a drill may inject a fault
        (marks.py).
        """
        session = self.member.session
        assert session is not None
        session.mark(name, max(session.machine.committed, session.beacon.step))

    # --- restoring --------------------------------------------------------------------------------

    def _restore(self, plan: Regroup) -> None:
        session = self.member.session
        assert session is not None
        session.enter(Phase.REGROUP, cause=plan.restoring)
        self.mark("restoring")
        image = None
        if plan.replicated in ("donor", "transfer"):
            generation = plan.generation if plan.replicated == "donor" else None
            session.fetch_transfer(plan, generation)
            image = session.vault.read_transfer(generation, plan.step)
            self.undo.late.take_over(image.metadata)
            load_shared(self.state, image)
            load_edited(self.state, image)
            # This rank may be the next donor, so it has to know the movers too.
            self.agreement.movers = learn_movers(self.state, image)
            if _is_a_call_ahead(image, plan.step):
                self.call.again = (
                    plan,
                    Image(
                        image.metadata,
                        {
                            name: (spec, memoryview(bytes(data)))
                            for name, (spec, data) in image.tensors.items()
                        },
                    ),
                )
        self._restore_own(plan, image)

    def _restore_own(self, plan: Regroup, donated: Image | None) -> None:
        """Restore what the donor's image does not contain: private state, or everything.

        `donated` is the transfer image, or None. `plan.private` names the source.
        """
        if plan.checkpoint:
            self._load_checkpoint(plan)
        elif plan.private == "kept":
            load_parts(self.state, self.copies.read(plan.step))
        elif plan.private == "slot":
            self._load_slot(plan, donated)
        elif plan.private == "twin":
            self._take_twin(plan)
        elif plan.private in ("copy", "parity"):
            self._take_copy(plan)
        elif plan.private == "none" and plan.step and donated is not None:
            self._take_stand_in(donated, plan.step)
        elif plan.private == "none" and plan.step and self.state.sharded:
            # to go on would be to train with a shard that the script has just made
            why = f"the launcher names no image of step {plan.step} for this rank's shard"
            raise OutlastError(why, hint="please report it; --resume begins from a checkpoint")
        for wrapped in self.replicas:
            ddp.restore_views(wrapped)  # loading may have replaced gradients that DDP views

    def begin_steps_call(self, step: int) -> None:
        """Begin another call of run.steps, after `step`.

        When this process attached in the call before, its donor may have been in this call already.
        The donor's state then included what the script does between the two calls, and this process
        has now done that a second time. So load the donor's state once more.
        """
        if self.call.again is not None and self.call.again[0].step == step:
            plan, image = self.call.again
            load_shared(self.state, image)
            self._restore_own(plan, image)
        self.call.again, self.call.begun_behind = None, step

    def _load_slot(self, plan: Regroup, donated: Image | None) -> None:
        """Load this rank's own image from its slot.

        If it is corrupt: sharded state raises CorruptError, so that the next plan names a copy on
        another node, or an older step. Replicated state goes on with private state of an older
        step, and warns.
        """
        session = self.member.session
        assert session is not None
        rank, begun = self.member.rank(), not plan.replay
        try:
            images = session.vault.images(rank, plan.step)
            slot, image, place = choose_image(
                images,
                begun=begun,
                phases=plan.phases,
                calls=int(_is_a_call_ahead(donated, plan.step)),
            )
        except CorruptError as error:
            if self.state.sharded:
                self.images.refuse(plan, one_line(error))
                raise
            session.warn(f"rank {rank}: {error}")
            self._load_older(plan.step)
            return
        self.images.read_from(slot)
        if holds_shared(image):
            self.state.differs_by_rank = not self.state.distributed
            load_shared(self.state, image)
        load_private(self.state, image)
        if donated is not None and not place.is_complete:
            self._take_movers(donated, plan.step, place)

    def _take_stand_in(self, donated: Image, step: int) -> None:
        """Load the donor's private state, because this rank's own was lost with its node."""
        unknown, place = load_stand_in(self.state, donated)
        if place is not None and not place.is_complete:
            self._take_movers(donated, step, place)
        if unknown:
            self._warn_of_loss(step, unknown, "a peer")

    def _take_twin(self, plan: Regroup) -> None:
        """Load the image of a rank that holds the same shards, because this rank's own was lost.

        Images of this rank in the vault of this node are from before it moved away, and are
        forgotten.
        """
        session, rank = self.member.session, self.member.rank()
        assert session is not None
        self.images.forget_all()
        came = session.fetch_twin(plan)
        image = session.vault.read(rank if came else plan.twin, plan.step)
        if unknown := load_twin(self.state, image):
            self._warn_of_loss(plan.step, unknown, f"rank {plan.twin}, which had the same shards,")

    def _take_copy(self, plan: Regroup) -> None:
        """Load this rank's image from another node, or rebuild it: its own was lost, or refused.

        A copy that cannot be read is reported (CopyRefused). The next plan names another source.
        """
        session, rank = self.member.session, self.member.rank()
        assert session is not None
        if not plan.refused:
            self.images.forget_all()
        try:
            here = not session.fetch_copy(plan)
            source = HeldCopies(session.vault) if here else session.vault
            image = source.read(rank, plan.step)
        except (CorruptError, ImageUnreached) as error:
            session.vault.forget_step(rank, plan.step)  # what was fetched is not this rank's image
            if not session.machine.broken:
                worker, generation = session.spec.worker, plan.generation
                session.say(CopyRefused(worker, generation, rank, plan.step, one_line(error)))
            raise
        self.state.differs_by_rank = not self.state.distributed
        load_shared(self.state, image)
        load_private(self.state, image)

    def _warn_of_loss(self, step: int, unknown: list[str], source: str) -> None:
        session = self.member.session
        assert session is not None
        session.warn(
            f"rank {self.member.rank()}'s own state of step {step} was lost with its node:"
            f" {source} gives it {described(unknown)}: not bit-exact from here on"
        )

    def _take_movers(self, donated: Image, step: int, place: ScriptPosition) -> None:
        """Load the donor's movers: this rank was lost after the vote of `step`, and before its next
        image.
        """
        session = self.member.session
        assert session is not None
        unknown = load_movers(self.state, donated, place)
        if unknown:
            session.warn(
                f"rank {self.member.rank()} was lost after the vote of step {step} and before what"
                " follows it: what may have changed there is taken from a peer that may differ"
                f" ({described(unknown)}): not bit-exact from here on"
            )

    def _load_older(self, step: int) -> None:
        """Load private state of an older step, and skip batches up to `step`.

        Only this rank's image of `step` is lost. The replicated state is complete.
        """
        session = self.member.session
        assert session is not None
        for older in session.vault.steps(self.member.rank()):
            if older < step:
                load_private(self.state, session.vault.read(self.member.rank(), older))
                for _ in range((step - older) * self.call.accumulate):
                    if self.state.source is not None:
                        self.state.source.next_batch()
                break
        session.warn(
            f"rank {self.member.rank()} goes on with the random state of an older step: not"
            " bit-exact from here on"
        )

    def _load_checkpoint(self, plan: Regroup) -> None:
        """Load a checkpoint. If it has fewer ranks, warn which take rank 0's private state."""
        rank, size = self.member.rank(), self.member.world_size
        taken = load_checkpoint(self.state, plan.checkpoint, rank, size)
        if taken and self.member.session is not None:
            new = f"rank {rank}" if rank == size - 1 else f"ranks {rank} to {size - 1}"
            self.member.session.warn(
                f"the checkpoint of step {plan.step} is of fewer ranks: rank 0 gives {new}"
                f" {described(taken)}"
            )

    # --- regrouping in place ----------------------------------------------------------------------

    def join(self, plan: Regroup) -> None:
        """Enter the group of `plan` with the state as it is, and report that."""
        session = self.member.session
        assert session is not None
        session.enter(Phase.REGROUP, cause=Cause.REGROUP)
        group_s = self._build(plan)
        self.mark("grouped")
        self._freeze()
        self.call.high_water = max(self.call.high_water, plan.high_water)
        donate_s, self.call.donate_s = self.call.donate_s, 0.0
        session.do(lambda machine: machine.joined(plan, group_s=group_s, restore_s=donate_s))
        self.mark("joined")
        self.call.waits_for_others(plan, ready_s=session.enter(Phase.BETWEEN, cause=Cause.OTHER))

    def donate(self, plan: Regroup) -> None:
        """Write the transfer image, from which other ranks take replicated state."""
        self.mark("donating")
        began_s = clock.now_s()
        self._write_transfer(plan.generation, plan.step, begun=not plan.replay, phases=plan.phases)
        self.call.donate_s = clock.now_s() - began_s

    def hand_over_at_end(self, step: int) -> None:
        """Write the state after the last step into the vault. Only rank 0 does so.

        If all ranks are lost from here on, they begin from that image.
        """
        if self.member.rank() == 0 and not self.state.sharded:
            self._write_transfer(self.member.generation, step)

    def _write_transfer(
        self, generation: int, step: int, *, begun: bool = True, phases: int = 0
    ) -> None:
        metadata = {**self.undo.late.metadata(), "begun_behind": str(self.call.begun_behind)}
        self.images.write_transfer(
            generation,
            step,
            agreed=self.agreement.movers,
            metadata=metadata,
            begun=begun,
            phases=phases,
        )

    # --- what the script changes itself -----------------------------------------------------------

    def begin_edits(self) -> None:
        """Copy what a repeat would have to undo, because a step begins."""
        self.state.edits.begin(bytewise=self.undo.late.unproven)
        self.undo.begin()

    def watch_edits(self) -> None:
        """Watch for edits from here on: after a block, any change is the script's own."""
        if self.member.session is not None:
            self.state.edits.watch()

    def look_for_edits(self, where: str) -> None:
        """Warn, once, if the script has changed parameters itself since it was last watched."""
        found, session = self.state.edits.look(), self.member.session
        if found and session is not None:
            mib = self.state.edits.copied_bytes / 2**20
            session.warn(
                f"the script changes parameters itself {where} ({some(found)}): each step and phase"
                f" begins with a copy of them, {mib:.1f} MiB, so that a repeat can take that back"
            )

    # --- the first step ---------------------------------------------------------------------------

    def watch(self, until_left: contextlib.ExitStack) -> None:
        """Watch which modules run in the first step."""
        self.call.strangers = until_left.enter_context(self.state.watch_modules())

    def after_first_step(self) -> None:
        """Warn of modules that ran in the first step and are not in the State."""
        self.call.first_step = False
        strangers = self.call.strangers
        if strangers and self.member.session is not None:
            are, its = ("is", "its") if len(strangers) == 1 else ("are", "their")
            self.member.session.warn(
                f"{', '.join(strangers)} ran in the first step, and {are} not in run.state(...):"
                f" {its} parameters and buffers would not survive. Give run.state the module that"
                " holds them, unless each step makes it anew"
            )

    def after_rehearsal(self) -> None:
        """Drop the gradients of a step whose result is not kept."""
        for parameter in self.state.parameters.values():
            parameter.grad = None


def _is_a_call_ahead(donated: Image | None, step: int) -> bool:
    """Return whether the donor had called run.steps again, after `step`."""
    return donated is not None and donated.metadata.get("begun_behind") == str(step)
