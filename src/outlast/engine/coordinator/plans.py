"""Carry out a recovery verdict: give each member its rank, its node, and the sources of its state.

    move            survivors go on in their processes; lost ranks go to spares or forks
    finish          ranks of a drained node finish their step before they are given up
    restart_all     all ranks restart: at once, or after a survivor has handed its state over
      hand_over       a donor writes the transfer image
      clear           all members are killed
      when_cleared    once all are dead, and their common source is checked, go on
      launch_all      all ranks are started

This is the second half of the story that regroup.py begins. This module is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from outlast.engine.coordinator.decisions import (
    SlotFacts,
    SourceVerdict,
    check_source,
    decide_own_state,
    decide_restore,
    decide_source,
)
from outlast.engine.coordinator.image_keepers import SentTo
from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.restore_sources import Restart, SourceFacts, Transfer
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.shared_plans import RankFields, SharedPlans, with_store
from outlast.engine.coordinator.stages import Stage, Timer, cancel, set_timer
from outlast.engine.placement import place
from outlast.engine.protocol.outputs import FindCheckpoint, Output, Tell, ToAgent
from outlast.engine.recovery import RecoveryVerdict
from outlast.engine.restore import RestoreVerdict
from outlast.model import limits
from outlast.model.messages import Donated, PartSource, Regroup, StartWorker, StoreUp
from outlast.model.terms import Rung


class Plans:
    """Make the plan of each member, and send it once there is a store.

    A plan is the message `Regroup`: it tells one worker its rank, its generation, and where its
    state comes from. `RegroupMachine` of regroup.py decides, and then calls one of these:

        plans.move(now_s, verdict, restore, start)           # survivors keep their processes
        plans.restart_all(now_s, reason, restore, start)     # all ranks restart

    A plan is made when its generation begins, and kept with its member (`member.path.plan`). It
    waits there for the store, for the worker's Hello, and for a donor's transfer image. Then `send`
    sends it once. A plan of an older generation is never sent.

    The class has next to no state of its own: plans are kept with the members, and sources in
    `run.sources`. A plan may never be followed: a fault while the members move leads to another
    regroup, with the next generation.
    """

    def __init__(self, run: RunParts) -> None:
        self.run = run
        self._warned: tuple[str, ...] = ()  # the last warnings about domains

    # --- survivors go on -------------------------------------------------------------------------

    def move(
        self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict, start: Restart | None
    ) -> list[Output]:
        """Let survivors go on in their processes, and give lost ranks to spares or forks."""
        run, reenter = self.run, verdict.survivors == "reenter"
        step = restore.step if restore.step is not None else start.step if start is not None else 0
        self._next_generation(step)
        run.lifecycle.enter(Stage.MOVING)
        out: list[Output] = []
        homes = self._homes_for(verdict)
        for rank, worker in verdict.replace.items():
            out += self._replace(now_s, rank, worker, homes[rank])
        sent_to = SentTo(run, run.roster.homes)
        donates = self._plan_survivors(verdict, restore, step, sent_to)
        if donates:
            run.sources.await_image(step)
        out += self._warn(sent_to)
        out += self.send(run.roster.members())
        # If there is a donor, no rank can join before it has handed over. This deadline is for the
        # donor; `on_donated` sets that of the others.
        in_process = verdict.rung in (Rung.REPEAT, Rung.SPARE) and not reenter
        deadline = limits.REGROUP_DEADLINE_S if donates or in_process else limits.BOOT_DEADLINE_S
        noted = [*run.record_places(now_s), run.record_generation(now_s)]
        return [*noted, *out, set_timer(Timer.MOVE, now_s + deadline)]

    def _plan_survivors(
        self, verdict: RecoveryVerdict, restore: RestoreVerdict, step: int, sent_to: SentTo
    ) -> bool:
        """Make the plan of each member. Return True if a donor has to write its state first."""
        roster = self.run.roster
        sharded, reenter = roster.sharded, verdict.survivors == "reenter"
        all_ranks = frozenset(range(self.run.options.world_size))
        heal = frozenset() if sharded else all_ranks if reenter else frozenset(restore.heal)
        donates = bool(heal) and restore.donor >= 0
        donates = donates and not (reenter and self._lies_there(step, restore.phases))
        replays = restore.replay and verdict.survivors == "in_place"
        plans = self._shared(
            Restart(step),
            donor=restore.donor,
            phases=restore.phases,
            source=self._source_of(restore.donor if donates else -1),
        )
        for member in roster.members():
            rank, inventory = member.rank, member.path.inventory
            settle = restore.settle.get(rank, "none")
            fresh = settle == "none" and not (sharded and inventory is not None)
            # A survivor with a torn step has settle "none", too. It is in its step, so "start" is
            # not for it: it has to leave the step.
            in_step = inventory is not None and inventory.committed >= 0
            healed = _replicated_from(sharded=sharded, reenter=reenter, is_healed=rank in heal)
            then = "start" if fresh and not (reenter and in_step) else verdict.survivors
            private = "slot" if fresh or reenter or sharded else "keep"
            keepers, shares = sent_to.of_rank(rank)
            member.path.plan = plans.of(
                self.of_rank(rank, private, step),
                keepers=keepers,
                shares=shares,
                replicated=healed,
                settle=settle,
                then=then,
                donate=donates and rank == restore.donor,
                replay=fresh and replays,
            )
            member.path.joined, member.script.finished, member.path.committed_s = False, False, None
        return donates

    def _source_of(self, donor: int) -> str:
        """Return where the transfer image is served, as HOST:PORT; "": nowhere.

        That is by the donor's node, or (-1: no donor) by the node that has the image.
        """
        run = self.run
        home = run.roster.holder(donor).home if donor >= 0 else run.sources.transfer_home()
        return run.nodes.serves(home)

    def _homes_for(self, verdict: RecoveryVerdict) -> dict[int, str]:
        """Return the node of each rank that is replaced: its spare's, or one with room."""
        roster, replace = self.run.roster, verdict.replace
        homes = {rank: roster.spare(worker).home for rank, worker in replace.items() if worker >= 0}
        room = self.run.room_without(replace)
        for home in homes.values():
            room[home] -= 1
        others = [rank for rank in replace if rank not in homes]
        return homes | place(others, homes=roster.homes, room=room)

    def _replace(self, now_s: float, rank: int, worker: int, home: str) -> list[Output]:
        roster = self.run.roster
        if worker >= 0:
            roster.promote(worker, rank, now_s=now_s)
            return []
        member = roster.add(rank=rank, kind="rank", home=home, now_s=now_s)
        return [
            ToAgent(StartWorker(member.worker, rank, "rank", self.run.lifecycle.generation), home)
        ]

    def finish(self, now_s: float, ranks: Iterable[int], step: int) -> list[Output]:
        """Let ranks that are about to be given up finish `step`, which their peers also commit.

        After that they stand still again, and send new inventories.
        """
        run, told = self.run, []
        self._next_generation(step)
        # Under sharded state they have sealed the step, and do its on-commit work.
        settle = "none" if run.roster.sharded else "forward"
        plans = self._shared(Restart(step), settle=settle, then="stand")
        for rank in ranks:
            member = run.roster.holder(rank)
            member.path.plan = plans.of(self.of_rank(rank, "keep", step))
            member.path.note_sent(member.path.plan)
            told.append((member, member.path.plan))
        deadline = set_timer(Timer.LEAVE, now_s + limits.REGROUP_DEADLINE_S)
        return [run.record_generation(now_s), *run.tell(told), deadline]

    # --- a restart: a survivor hands over ------------------------------------------------------

    def restart_all(
        self, now_s: float, reason: str, restore: RestoreVerdict, start: Restart | None
    ) -> list[Output]:
        """Restart all ranks from `start`. None: from the state of a survivor, which hands it over
        first.
        """
        if start is None:
            return self.hand_over(now_s, restore)
        self.run.sources.choose(start)
        return self.clear(now_s, reason)

    def hand_over(self, now_s: float, restore: RestoreVerdict) -> list[Output]:
        """Let the donor write the transfer image, from which all ranks will restart."""
        assert restore.step is not None
        run, start = self.run, Restart(restore.step, "transfer", "slot")
        run.lifecycle.enter(Stage.HANDOVER)
        self._next_generation(restore.step)
        run.sources.choose(start)
        run.sources.await_image(restore.step)
        donor = run.roster.holder(restore.donor)
        settle = restore.settle[donor.rank]
        plans = self._shared(start, settle=settle, then="exit", donor=donor.rank, donate=True)
        donor.path.plan = plans.of(
            self.of_rank(donor.rank, start.private, restore.step, start.checkpoint)
        )
        noted = [*run.record_places(now_s), run.record_generation(now_s)]
        orders = self.send([donor])
        return [*noted, *orders, set_timer(Timer.HANDOVER, now_s + limits.REGROUP_DEADLINE_S)]

    def on_donated(self, now_s: float, message: Donated, donor: Member) -> list[Output]:
        """Send the plans that waited for the transfer image: a donor has sealed it."""
        run = self.run
        if message.generation != run.lifecycle.generation:
            # The image was written for a generation that is over.
            return []
        waits, plan = run.sources.donating, donor.path.plan
        phases = plan.phases if plan is not None and plan.step == message.step else -1
        run.sources.note_transfer(Transfer(message.generation, message.step, donor.home, phases))
        if not waits:
            # No plan waits for it: it is the final state, or this was reported before.
            return []
        if run.lifecycle.is_in(Stage.HANDOVER):
            return self.clear(now_s, "state is handed over")
        orders = self.send(run.roster.members())
        return [*orders, set_timer(Timer.MOVE, now_s + limits.BOOT_DEADLINE_S)]

    def _lies_there(self, step: int, phases: int) -> bool:
        """Return True if the image that a donor would write is there already.

        False if the run has failed at this step again and again: the image itself may be bad.
        """
        transfer = self.run.sources.transfer
        there = transfer is not None and (transfer.step, transfer.phases) == (step, phases)
        # A node that was given up for a cut link is barred, and not all others reach it.
        there = there and self.run.sources.transfer_home() not in self.run.nodes.barred
        return there and self.run.faults.budgets.at_step < limits.REPEATS_PER_STEP_COUNT

    def donor(self) -> Member | None:
        """Return the donor of the newest plan; None: there is none, or it has handed over."""
        if not self.run.sources.donating:
            return None
        live = self.run.roster.live()
        return next((m for m in live if m.path.plan is not None and m.path.plan.donate), None)

    # --- a restart: all are killed, then started -----------------------------------------------

    def clear(self, now_s: float, reason: str) -> list[Output]:
        """Kill all members. Once they are confirmed dead, all restart from `sources.begin_from`."""
        self.run.lifecycle.enter(Stage.CLEARING)
        # The others are being killed already, so only their deaths are awaited.
        living = [member for member in self.run.roster.live() if not member.life.condemned]
        killed = self.run.kill(now_s, living, reason)
        return [cancel(Timer.HANDOVER), *killed, *self.when_cleared(now_s)]

    def when_cleared(self, now_s: float, *, looked: bool = False) -> list[Output]:
        """Start all ranks, once all members are dead and their common source is known to be good.

        looked   the source has just been read, and is good
        """
        run = self.run
        if run.faults.losing_node or run.roster.any_live() or run.nodes.returning:
            return []
        start = run.sources.begin_from
        run.keep_in_place(start.step if start.private == "slot" else None)
        if run.short_of_places():
            # There is too little room for all ranks, so wait for a node.
            return [cancel(Timer.KILL), *run.await_node(now_s)]
        found = run.find_room(now_s)
        if not check_source(self.source_facts()).is_there:
            # The source was lost while the members were killed, so take the newest saved state.
            self._begin_from(self.source_facts().saved)
        if not looked and self._has_to_look():
            return [*found, *([FindCheckpoint()] if run.sources.begin_to_look() else [])]
        plain = run.roster.recovery_mode == "plain"
        run.roster.clear()
        out: list[Output] = [cancel(Timer.KILL), cancel(Timer.NODES), *found]
        if plain:
            # A script's own init_process_group uses the same keys at each start. Only a new store
            # is free of those of the dead processes.
            run.store.forget()
            out += run.order_store(now_s, "a new store for a new start")
        run.progress.begin_again(run.sources.begin_from.step)
        return [*out, *self.launch_all(now_s)]

    def launch_all(self, now_s: float) -> list[Output]:
        """Start all ranks from `sources.begin_from`."""
        run, start = self.run, self.run.sources.begin_from
        ranks = range(run.options.world_size)
        self._next_generation(start.step)
        run.lifecycle.enter(Stage.STARTING)
        out: list[Output] = []
        plans = self._shared(start, source=self._source_of(-1))
        homes = place(ranks, homes=run.roster.homes, room=run.room(()))
        sent_to = SentTo(run, homes)
        out += self._warn(sent_to)
        for rank in ranks:
            member = run.roster.add(rank=rank, kind="rank", home=homes[rank], now_s=now_s)
            keepers, shares = sent_to.of_rank(rank)
            # The plan is made after the member is added, because images of a rank that has moved
            # to another node do not count any more.
            member.path.plan = plans.of(
                self.of_rank(rank, start.private, start.step, start.checkpoint),
                keepers=keepers,
                shares=shares,
            )
            order = StartWorker(member.worker, rank, "rank", run.lifecycle.generation)
            out.append(ToAgent(order, member.home))
        out.append(set_timer(Timer.MOVE, now_s + limits.BOOT_DEADLINE_S))
        noted = [*run.record_places(now_s), run.record_generation(now_s)]
        return [*noted, *out, set_timer(Timer.SPARES, now_s + limits.SPARE_PLAIN_WAIT_S)]

    def _warn(self, sent_to: SentTo) -> list[Output]:
        """Say which domains must not be lost, if that has changed."""
        before, self._warned = self._warned, sent_to.warnings()
        return [Tell(f"warning: {one}") for one in self._warned if one not in before]

    def _begin_from(self, start: Restart) -> None:
        """Let all begin from `start` instead, and book how many more steps that loses."""
        further = self.run.sources.choose(start)
        self.run.interruptions.went_further_back(steps=further)

    def _has_to_look(self) -> bool:
        """Return True if copies and checkpoints have to be read before all ranks begin from one.

        A checkpoint that was good when it was written may be damaged by now.
        """
        run, start = self.run, self.run.sources.begin_from
        by_checkpoint = start.private != "slot" and start.replicated != "transfer"
        there = bool(run.sources.checkpoint.folder or run.sources.kept_step)
        durable = run.options.durable or there
        return durable and run.roster.recovery_mode != "plain" and by_checkpoint

    def on_checkpoint_found(
        self, *, now_s: float, step: int, folder: str, refused: tuple[str, ...], kept_step: int = 0
    ) -> list[Output]:
        """Go on with the newest good state, now that copies and checkpoints were read.

        step, folder   of the newest checkpoint; step 0 and no folder: there is none
        kept_step      of the newest good copies in the vault; 0: there are none
        refused        a sentence for each newer one that was refused
        """
        run = self.run
        is_newest = run.sources.note_found(step, folder, kept_step=kept_step)
        out: list[Output] = []
        for why in refused:
            out.append(event(now_s, "checkpoint_refused", {"why": why}))
            out.append(Tell(f"warning: {why}"))
        if not run.lifecycle.is_in(Stage.CLEARING) or not self._has_to_look():
            # The source was changed while the checkpoints were read.
            return out
        if not is_newest:
            # A checkpoint was written while the older ones were read, so look again.
            return [*out, *self.when_cleared(now_s)]
        start = self.source(self.restore(), finished=True).start
        self._begin_from(start or self.source_facts().saved)
        out += run.records()
        return [*out, *self.when_cleared(now_s, looked=True)]

    # --- what there is to go on from -------------------------------------------------------------

    def restore(self, *, leaving: Collection[int] = ()) -> RestoreVerdict:
        """Decide which step all ranks go on from, by what survivors and slots hold.

        leaving   as for `decide_replicated`
        """
        run = self.run
        return decide_restore(
            holdings=run.roster.holdings(),
            sharded=run.roster.sharded,
            decided=run.progress.decided,
            checkpoint=run.sources.checkpoint,
            twins=run.roster.remains.twins_of_imageless(),
            copies=run.roster.remains.copies_of_lost(),
            rebuilt=run.roster.remains.rebuilt_of_lost(),
            refused=run.roster.remains.refused,
            leaving=leaving,
        )

    def source_facts(self) -> SourceFacts:
        """Return the facts about the sources from which all ranks could begin."""
        roster = self.run.roster
        remains = roster.remains
        lost = remains.imageless.difference(remains.twins_of_imageless())
        step = self.run.sources.begin_from.step
        rebuilt = remains.rebuilt_of_lost()
        lost = {
            rank
            for rank in lost
            if step not in (*remains.copies.steps(rank), *rebuilt.get(rank, ()))
        }
        return self.run.sources.facts(sharded=roster.sharded, imageless=lost)

    def source(self, restore: RestoreVerdict, *, finished: bool) -> SourceVerdict:
        """Decide what all ranks begin from if they restart."""
        run = self.run
        return decide_source(
            facts=self.source_facts(),
            restore=restore,
            recovery_mode=run.roster.recovery_mode,
            finished=finished,
            step=run.progress.step,
            at_step=run.faults.budgets.at_step,
        )

    # --- plans are made and sent -----------------------------------------------------------------

    def _next_generation(self, step: int) -> None:
        """Begin the next generation, which goes on from `step`."""
        run = self.run
        run.lifecycle.next_generation()
        run.progress.begin(step)
        run.faults.begin_generation()
        for member in run.roster.members():
            # An error of the last generation does not count in the next one.
            member.path.raised = None
        run.sources.begin_generation(generation=run.lifecycle.generation, step=step)
        run.roster.remains.copies.note_rollback(generation=run.lifecycle.generation, step=step)
        run.roster.remains.parity.note_rollback(generation=run.lifecycle.generation, step=step)

    def _shared(self, start: Restart, **common: Any) -> SharedPlans:
        """Return the maker of this generation's plans, which begin from `start`.

        common   the values of fields that all plans share, beside those that are set here
        """
        run = self.run
        host, port = run.store.address or ("", 0)
        plain = {"settle": "none", "then": "start", "donor": -1, "donate": False}
        plain |= {"replicated": start.replicated} | common
        return SharedPlans(
            generation=run.lifecycle.generation,
            rank=-1,
            world_size=run.options.world_size,
            store_host=host,
            store_port=port,
            step=start.step,
            fault_s=run.faults.fault_s,
            detected_s=run.faults.detected_s,
            **plain,
        )

    def of_rank(self, rank: int, private: str, step: int, folder: str = "") -> RankFields:
        """Return the fields of a rank's plan in which it may differ from the plans of others."""
        run, remains = self.run, self.run.roster.remains
        twin, keeps, sources = -1, "", self._sources(rank, step) if private == "slot" else ()
        refused = remains.is_refused(rank, step)
        if private == "slot":
            twin, near = run.roster.twin(rank, step), remains.homes.get(rank, "")
            keeps = remains.copies.node_of(rank, step, near=near)
            sealed, lacks = run.roster.lies_sealed(rank, step), run.roster.lacks(rank, step)
            # A rank whose image was refused reads it once more if nothing stands in for it now.
            has_images = remains.has_images(rank) and not (refused and (keeps or sources))
            own = decide_own_state(
                slots=SlotFacts(sealed, has_images, lacks, twin, keeps, bool(sources)),
                step=step,
                sharded=run.roster.sharded,
                folder=folder,
                checkpoint=run.sources.checkpoint,
                verified=run.sources.verified,
                kept_step=run.sources.kept_step,
            )
            private, folder = own.private, own.checkpoint
        before = max(run.options.start.step, run.options.committed_before)
        high_water = max(remains.done(rank), before)
        fields = RankFields(private, folder, high_water)
        if private == "copy":
            return fields._replace(twin_source=run.nodes.serves(keeps), refused=refused)
        if private == "parity":
            return fields._replace(sources=sources, refused=refused)
        if private == "twin":
            at = run.nodes.serves(remains.homes.get(twin, ""))
            return fields._replace(twin=twin, twin_source=at)
        return fields

    def _sources(self, rank: int, step: int) -> tuple[PartSource, ...]:
        """Return from what parity rebuilds the image of `rank`; empty: it has one, or cannot be."""
        remains = self.run.roster.remains
        lost = remains.lost_at(step)
        if rank not in lost:
            return ()
        return remains.parity.sources(
            rank,
            step,
            lost,
            home=lambda one: remains.homes.get(one, ""),
            serves=self.run.nodes.serves,
        )

    def send(self, members: Iterable[Member]) -> list[Output]:
        """Send each member its plan, once, if everything that the plan waits for is there.

        Plans are sent only while their generation is being formed, and once there is a store.
        """
        to_be = self.run.lifecycle.is_in(Stage.STARTING, Stage.MOVING, Stage.HANDOVER)
        if self.run.store.address is None or not to_be:
            return []
        due = ((member, self._due(member)) for member in members)
        return self.run.tell((member, plan) for member, plan in due if plan is not None)

    def _due(self, member: Member) -> Regroup | None:
        """Return the plan to send to this member now, or None if it has to wait or was sent.

        A worker that enters main's function again loses its state in memory. So its plan is held
        back until a donor has sealed the transfer image.
        """
        plan, run = member.path.plan, self.run
        if plan is None or not member.process.hello_seen or member.life.dead:
            return None
        if (
            plan.generation != run.lifecycle.generation
            or member.path.plan_generation >= plan.generation
        ):
            return None
        no_image = run.sources.donating or run.sources.transfer is None
        if plan.replicated == "transfer" and not plan.donate and no_image:
            # The plan waits until the donor has sealed the image.
            return None
        member.path.note_sent(plan)
        return plan

    def on_store_up(self, message: StoreUp) -> list[Output]:
        """Complete the plans that were made without a store, and send them: it listens now."""
        run = self.run
        run.store.note_up(message)
        members = [member for member in run.roster.members() if member.path.plan is not None]
        made = (member.path.plan for member in members if member.path.plan is not None)
        plans = with_store(made, host=message.host, port=message.port)
        for member in members:
            member.path.plan = plans[id(member.path.plan)]
        return [*run.name_store(run.nodes), *self.send(members)]


def _replicated_from(*, sharded: bool, reenter: bool, is_healed: bool) -> str:
    """Return the source of replicated state in a member's plan; "none": it keeps its own."""
    if sharded:
        return "none"
    if reenter:
        return "transfer"  # all make their models again
    return "donor" if is_healed else "none"
