"""A regroup: the one story of every recovery, from the first sign of a fault to training.

    detected    a fault is booked, and its companions are gathered for a few milliseconds
    gathered    every survivor is told to leave its collective
    quiesced    every survivor stands still and has sent its inventory; every lost process is
                confirmed dead, so that its rank may be given to another
    decided     decisions.py chooses the rung and its reason
    planned     plans.py gives each member its plan for the next generation
    resumed     all members have joined, and a step is committed

Read this file from top to bottom as far as "decided", then plans.py, then "resumed". A fault in any
stage leads back to "detected". Nothing here waits: each deadline is a timer, and what the timer
does needs no other process.

This module is pure.
"""

from __future__ import annotations

import functools

from outlast.engine.coordinator.cut_for_good import CutForGood
from outlast.engine.coordinator.decisions import (
    Quiesced,
    decide_last_save,
    decide_recovery,
    describe_kept,
    work_out_cost,
)
from outlast.engine.coordinator.member import Member, costliest_tier
from outlast.engine.coordinator.node_drain import NodeDrain
from outlast.engine.coordinator.plans import Plans
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import IN_A_GENERATION, Stage, Timer, cancel, set_timer
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.coordinator.unacknowledged import decision_reasons
from outlast.engine.placement import offers
from outlast.engine.protocol.outputs import End, Output, SaveLast, Tell
from outlast.engine.recovery import RecoveryVerdict
from outlast.engine.restore import RestoreVerdict
from outlast.model import limits
from outlast.model.messages import Committed, Donated, Finished, Inventory, Joined, Leave, Underway
from outlast.model.records import WENT_ON
from outlast.model.terms import Mechanism, Rung, Waypoint

# at these waypoints ranks wait for each other
_TOGETHER = (Waypoint.CONNECTS, Waypoint.RESTORES)


class RegroupMachine:
    """Carry a run from a fault to the next generation.

    The coordinator makes one for the whole run. Each fault enters by `fault`, and the messages and
    timers that follow move the regroup on:

        outputs = regroup.fault(now_s, member, Mechanism.KILLED, ...)  # detected
        outputs = regroup.on_gather_timer(now_s)                       # gathered
        outputs = regroup.on_inventory(now_s, [member], message)       # quiesced, decided, planned
        outputs = regroup.on_joined(now_s, [member], message)          # resumed

    It goes through the stages at the head of this module once for each regroup. Four fields last
    from one call to another:

        cuts        the links that stay cut, and the node that is given up for one
        _chosen     a verdict that gives up live ranks; it is carried out once they are dead
        drains      the ranks of a node that is being drained, until the rung is chosen
        _gives_up   how a run ends that is given up, while its last state is being saved

    It does not find faults: process_exit.py, fault_reports.py and node_changes.py do. A regroup may
    also end the run, if a budget is spent.
    """

    def __init__(self, run: RunParts, stop: StopRequest, plans: Plans) -> None:
        self.run = run
        self.stop = stop
        self.plans = plans
        self._chosen: RecoveryVerdict | None = None
        self.drains = NodeDrain(run)
        self.cuts = CutForGood(run, stop, self.drains)
        self._gives_up: End | None = None

    # --- detected --------------------------------------------------------------------------------

    def fault(
        self, now_s: float, member: Member, mechanism: Mechanism, fault_s: float | None, error: str,
        traceback: str, reason: str, *, joins: bool = False,
    ) -> list[Output]:  # fmt: skip  # one argument a line would hide the story
        """Book the fault of one rank, and begin a regroup if none is under way.

        Call it once for each fault, when it is first seen. The death of a condemned process is no
        further fault. Faults that come while the run gathers or leaves are one event.

        fault_s   when the fault came; None: not known
        joins     it belongs to the newest open interruption
        """
        run, faults = self.run, self.run.faults
        one_node = faults.count_node_loss() and mechanism is Mechanism.LOST_NODE
        together = one_node or joins or run.lifecycle.is_in(Stage.GATHERING, Stage.LEAVING)
        first = not run.interruptions.open
        run.interruptions.fault(
            rank=member.rank, pid=member.process.pid, node=member.process.host, mechanism=mechanism,
            generation=run.lifecycle.generation, step=run.progress.step, fault_s=fault_s,
            fault_not_before_s=None if fault_s is not None else run.progress.moved_s,
            detected_s=now_s, same_event=together and not first, error=error, traceback=traceback,
            reason=reason,
        )  # fmt: skip  # one argument a line would hide the story
        faults.note_times(first=first, fault_s=fault_s, now_s=now_s)
        return [*run.records(), *self._answer(now_s, member, mechanism, reason)]

    def _answer(
        self, now_s: float, member: Member, mechanism: Mechanism, reason: str
    ) -> list[Output]:
        """Begin a regroup for a booked fault, unless the stage under way will handle it."""
        lifecycle, collateral = self.run.lifecycle, mechanism is Mechanism.LOST_CONTACT
        if lifecycle.is_in(*IN_A_GENERATION):
            wait_s = limits.COLLATERAL_WAIT_S if collateral else limits.COMPANION_WAIT_S
            return self.gather(now_s, max(wait_s, self._pause_s()))
        if lifecycle.is_in(Stage.GATHERING) and not collateral and not self._pause_s():
            # The wait began with collateral. Its cause has shown itself now, so wait no longer than
            # for the companions of that.
            return [set_timer(Timer.GATHER, now_s + limits.COMPANION_WAIT_S)]
        plan = member.path.plan
        if lifecycle.is_in(Stage.HANDOVER) and plan is not None and plan.donate:
            return self._lose_donor(now_s, member, reason)
        # The stage that is under way waits for this member, and will see that it is gone.
        return []

    def _lose_donor(self, now_s: float, donor: Member, reason: str) -> list[Output]:
        """Go back to LEAVING, to choose another donor once this one is confirmed dead.

        The other members have not moved since they stood still.
        """
        run = self.run
        run.lifecycle.enter(Stage.LEAVING)
        run.faults.note_cut_short(False)
        ends = not donor.life.dead and not donor.life.condemned
        killed = run.kill(now_s, [donor], reason) if ends else []
        return [cancel(Timer.HANDOVER), *killed]

    def _pause_s(self) -> float:
        """Return how long to pause because kills from outside keep the run from any new step."""
        struck = self.run.faults.budgets.strikes > limits.STRIKES_COUNT
        return limits.STRIKES_PAUSE_S if struck else 0.0

    def gather(self, now_s: float, wait_s: float) -> list[Output]:
        """Wait `wait_s` for companions: faults with the same cause show within milliseconds."""
        self.run.faults.note_cut_short(self.run.lifecycle.is_in(Stage.TRAINING))
        self.run.lifecycle.enter(Stage.GATHERING)
        return [set_timer(Timer.GATHER, now_s + wait_s)]

    def drain(self, now_s: float, ranks: frozenset[int], *, until_s: float) -> list[Output]:
        """Begin a regroup in which the live `ranks` of a drained node are given up.

        until_s   what has to move before that has moved by then, or the drain is called off
        """
        self.run.faults.set_times(fault_s=now_s, detected_s=now_s)
        self.drains.begin(ranks, until_s=until_s)
        return self.gather(now_s, limits.COMPANION_WAIT_S)

    def give_up(self, now_s: float, members: list[Member], why: str) -> list[Output]:
        """Book a hang for each living one of `members`, and kill it. `why` completes "rank 3"."""
        out: list[Output] = []
        for member in members:
            if not member.life.condemned and not member.life.dead:
                member.life.condemned = True
                reason = f"rank {member.rank} (pid {member.process.pid}) {why}"
                out += self.fault(now_s, member, Mechanism.HANG, None, "", "", reason)
                out += self.run.kill(now_s, [member], why)
        return out

    # --- gathered --------------------------------------------------------------------------------

    def gathered(self, now_s: float) -> list[Output]:
        """Tell every survivor to leave its collective and to send its inventory."""
        run = self.run
        run.lifecycle.enter(Stage.LEAVING)
        opened = run.interruptions.open
        reason = opened[-1].reason if opened else "regroup"
        live = run.roster.live()
        for member in live:
            member.path.joined = False
        # Workers that are sent the same object share an order: make one for each generation.
        numbers = {member.path.plan_generation for member in live}
        leaves = {number: Leave(number, reason) for number in numbers}
        asked = [
            member for member in live if member.answers_leave and member.path.inventory is None
        ]
        out = run.tell((member, leaves[member.path.plan_generation]) for member in asked)
        steps_s = limits.LEAVE_STEPS * run.roster.script.step_s
        heard_s = limits.RANK_HEARD_S * run.options.world_size
        deadline = limits.LEAVE_DEADLINE_S + steps_s + heard_s
        if not all(member.script.attached for member in live):
            deadline = limits.REGROUP_DEADLINE_S
        return [*out, set_timer(Timer.LEAVE, now_s + deadline), *self.check_quiesced(now_s)]

    def on_inventory(self, now_s: float, members: list[Member], message: Inventory) -> list[Output]:
        """Note that members stand still, and what they hold. Go on once all do."""
        remains = self.run.roster.remains
        # A process that has ended holds nothing any more: what it had sealed is known by its end.
        quiet = [
            member
            for member in members
            if member.path.plan_generation == message.generation and not member.life.dead
        ]
        for member in quiet:
            remains.note_done(member.rank, message.committed)
            member.path.inventory = message
            member.script.attached = member.script.attached or message.committed >= 0
            if member.script.attached:  # even if its Joined has not arrived yet
                remains.note_attached(member.rank)
        if not quiet:  # these inventories are of a generation or of processes that are over
            return []
        self.run.note_of_rank(message.committed, max(message.passed, message.committed))
        return self.check_quiesced(now_s) if self.run.lifecycle.is_in(Stage.LEAVING) else []

    # --- quiesced --------------------------------------------------------------------------------

    def check_quiesced(self, now_s: float) -> list[Output]:
        """Decide, once every survivor stands still and every lost process is confirmed dead."""
        run, roster = self.run, self.run.roster
        if roster.first("not still", lambda m: m.answers_leave and m.path.inventory is None):
            return []  # a survivor has not sent its inventory yet
        if roster.first("not dead", lambda m: m.life.condemned and not m.life.dead) is not None:
            return []  # a process that is being killed may still commit
        if run.faults.losing_node or roster.orphans or run.nodes.returning:
            return []  # it is not known yet what is left on some node
        run.keep_in_place(None)
        if run.short_of_places():
            # There is no room for a lost rank, so wait for a node.
            return [cancel(Timer.LEAVE), *run.await_node(now_s)]
        found = run.find_room(now_s)
        facts = functools.cache(lambda: self._facts(now_s))  # all ends of links share them
        links = self.cuts.look(now_s, lambda ranks: self.drains.why_not(facts(), ranks))
        decided = [] if links.waits else self._decide(now_s)
        return [cancel(Timer.LEAVE), cancel(Timer.NODES), *found, *links.outputs, *decided]

    # --- decided ---------------------------------------------------------------------------------

    def _decide(self, now_s: float) -> list[Output]:
        """Choose the restore point and the rung, and begin to carry them out."""
        run, roster = self.run, self.run.roster
        restore = self.plans.restore(leaving=self.drains.ranks)
        if run.keep_in_place(restore.step):
            self._chosen = None  # that verdict would move these ranks
        # Beacons are read once a tick. The inventories, and the ends of the dead, are newer.
        run.progress.note(roster.committed_by_all(), 0)
        finished = self._finished()
        in_process = not roster.sharded and restore.step is not None and not finished
        torn = roster.torn(restore) if in_process else []
        if torn:
            # These ranks hold neither the step before nor the step after, so they cannot go on in
            # their processes. Kill them, and decide again.
            return self.give_up(now_s, torn, "failed after the step was applied; its state is torn")
        start = self.plans.source(restore, finished=finished).start
        seen = self._collect_facts(now_s, restore, start, finished=finished)
        drain = self.drains.decide(seen)
        if drain.finish and restore.step is not None:
            # These ranks stand at a vote that has passed. They apply and commit that step, and
            # stand still again. Then decide again.
            return self.plans.finish(now_s, drain.finish, restore.step)
        if (waits := self.drains.carry(now_s, drain, seen)) is not None:
            return waits  # images have to reach another node before any rank is given up
        verdict = self._choose(seen, drain.ranks)
        given_up = [m for m in roster.live() if m.rank in verdict.replace]
        if given_up:
            # The rung gives up live ranks: carry it out once their deaths are confirmed.
            self._chosen = verdict
            return run.kill(now_s, given_up, verdict.reason)
        self._chosen = None
        run.interruptions.acquit({m.rank: m.process.pid for m in roster.live()})
        self._book(now_s, verdict, restore, start)
        return [*run.records(), *self._carry_out(now_s, verdict, restore, start)]

    def _finished(self) -> bool:
        return any(m.script.finished or m.life.done for m in self.run.roster.members())

    def _facts(self, now_s: float) -> Quiesced:
        """Return the facts from which `CutForGood` decides whether ranks could move now."""
        restore, finished = self.plans.restore(), self._finished()
        start = self.plans.source(restore, finished=finished).start
        return self._collect_facts(now_s, restore, start, finished=finished)

    def _collect_facts(
        self, now_s: float, restore: RestoreVerdict, start: Restart | None, *, finished: bool
    ) -> Quiesced:
        """Return the facts by which the drain and the rung are decided."""
        run, faults = self.run, self.run.faults
        return Quiesced(
            world_size=run.options.world_size,
            lost=tuple(sorted(m.rank for m in run.roster.members() if m.life.dead)),
            raised=frozenset(faults.raised), drained=self.drains.ranks,
            mode=run.roster.recovery_mode, finished=finished,
            attached=any(m.script.attached for m in run.roster.live()),
            restore=restore, start=start, links_cut=bool(run.links), committed=run.progress.step,
            reached=run.progress.since_plan.executed, error=self._last_error(),
            trained=run.progress.trained, outside=self._struck_from_outside(),
            now_s=now_s,
            ended_in_run_phase=any(m.life.ended_in_run_phase for m in run.roster.members()),
        )  # fmt: skip  # one argument a line would hide the story

    def _last_error(self) -> str:
        """Return the newest error of the script, for the final message of a run that gives up.

        If the script has raised nothing, return the reason of the newest interruption.
        """
        opened = self.run.interruptions.open
        newest = (opened[-1].error or opened[-1].reason) if opened else ""
        return self.run.faults.user_error[0] or newest

    def _struck_from_outside(self) -> bool:
        """Return True if all lost ranks were killed from outside, and nothing else has happened."""
        faults, members = self.run.faults, self.run.roster.members()
        lost = {m.rank for m in members if m.life.dead}
        return bool(lost) and lost <= faults.killed and not faults.raised

    def _choose(self, seen: Quiesced, moving: tuple[int, ...]) -> RecoveryVerdict:
        """Choose the rung, and charge the budgets for it. `moving`: ranks of a drained node."""
        run = self.run
        self.drains.over()  # later faults of these ranks are charged as any other
        verdict = decide_recovery(
            seen=seen, moving=moving, chosen=self._chosen, parked=run.roster.parked(),
            spares=self._offers((*seen.lost, *moving) or tuple(sorted(seen.raised))),
            budgets=run.faults.budgets,
        )  # fmt: skip  # one argument a line would hide the story
        if verdict.budgets is not None:
            run.faults.charge(verdict.budgets)
        return verdict

    def _offers(self, ranks: tuple[int, ...]) -> list[int]:
        """Return for each of `ranks` the spare that may take it, or -1; empty: no spare can."""
        roster = self.run.roster
        ready = [(worker, roster.spare(worker).home) for worker in roster.parked()]
        room = self.run.room_without(ranks)
        found = offers(ranks, homes=roster.homes, spares=ready, room=room)
        workers = [found.get(rank, (-1, ""))[0] for rank in ranks]
        return workers if max(workers, default=-1) >= 0 else []

    def _book(
        self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict, start: Restart | None
    ) -> None:
        """Write into the open interruptions what was decided, why, and what it costs."""
        run = self.run
        before = run.faults.steps_repeated_before(run.interruptions)
        cost = work_out_cost(
            restore=restore, start=start, sharded=run.roster.sharded,
            committed=run.committed_for_good(),
            executed=run.progress.since_plan.executed,
            booked_before=0 if run.faults.cut_short else before,
        )  # fmt: skip  # one argument a line would hide the story
        held = [restore.reason] if run.roster.outlast else []  # a plain script has no state here
        if held and restore.step is None and start is not None:
            held.append(start.words)
        why = "; ".join([*decision_reasons(run), verdict.reason, *held])
        run.interruptions.book_decision(
            now_s=now_s, rung=verdict.rung, reason=why, repeated=cost.repeated, lost=cost.lost
        )

    def _carry_out(
        self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict, start: Restart | None
    ) -> list[Output]:
        """Plan the next generation, or end the run."""
        if verdict.rung is Rung.STOP:
            return self._give_up(now_s, verdict.reason, restore, start)
        if verdict.survivors != "exit":
            return self.plans.move(now_s, verdict, restore, start)
        if self.stop.end is not None:  # a stop was asked for, so no process is started again
            return self.stop.kill_all(now_s, self.stop.end)
        return self.plans.restart_all(now_s, verdict.reason, restore, start)

    # --- given up: what lives is saved first -----------------------------------------------------

    def _give_up(
        self, now_s: float, reason: str, restore: RestoreVerdict, start: Restart | None
    ) -> list[Output]:
        """End the run. Save its newest state first, unless the disk has it already.

        If that state cannot be saved, tell people what is kept.
        """
        run, end = self.run, End(1, "failed", reason, self.run.faults.user_error[1])
        if not run.options.saves_last:
            return self.stop.kill_all(now_s, end)
        members = run.roster.members()
        save = decide_last_save(
            restore=restore, start=start, sharded=run.roster.sharded,
            checkpoint=run.sources.checkpoint,
            donor_lives=any(m.rank == restore.donor and not m.life.dead for m in members),
        )  # fmt: skip  # one argument a line would hide the story
        if save.method == "hand_over":
            self._gives_up = end
            return [*self.plans.hand_over(now_s, restore)]
        if save.method in ("sealed", "kept"):
            kept = save.method == "kept"
            last: list[Output] = [SaveLast(save.step, run.roster.sharded, kept=kept)]
        else:
            said = "" if run.roster.recovery_mode == "plain" else describe_kept(
                committed=run.progress.step, checkpoint=run.sources.checkpoint, reason=save.reason
            )  # fmt: skip  # one argument a line would hide the story
            last = [Tell(said)] if said else []
        return [*last, *self.stop.kill_all(now_s, end)]

    def on_donated(self, now_s: float, message: Donated, donor: Member) -> list[Output]:
        """Go on with the sealed transfer image. A run that gives up saves the image, and ends."""
        end, lifecycle = self._gives_up, self.run.lifecycle
        newest = message.generation == lifecycle.generation
        if end is None or not newest or not lifecycle.is_in(Stage.HANDOVER):
            return self.plans.on_donated(now_s, message, donor)
        save = SaveLast(message.step, sharded=False)
        return [cancel(Timer.HANDOVER), save, *self.stop.kill_all(now_s, end)]

    # --- resumed ---------------------------------------------------------------------------------

    def on_underway(self, now_s: float, members: list[Member], message: Underway) -> list[Output]:
        """Note how far members have come on their way into the generation, and adapt the deadline.

        A script that runs towards run.steps may take long. Once every missing member only waits for
        others, no script is at work any more, and the short deadline of a regroup holds.
        """
        run = self.run
        if message.generation != run.lifecycle.generation:
            # This message is of a generation that is over.
            return []
        for member in members:
            member.path.come_to(message.place)
        if not run.lifecycle.is_in(Stage.MOVING, Stage.STARTING):
            return []
        if message.place == Waypoint.IN_SCRIPT:
            # The group is built, and the script goes on: it builds its model, which may take long.
            return [set_timer(Timer.MOVE, now_s + limits.BOOT_DEADLINE_S)]
        # Ranks that start also compare their states and read checkpoints, which may take long.
        waiting = {Waypoint.CONNECTS}
        if run.lifecycle.is_in(Stage.MOVING):
            waiting.add(Waypoint.RESTORES)
        if run.roster.first("at work", lambda one: one.is_late and one.is_at_work(waiting)):
            return []
        return [set_timer(Timer.MOVE, now_s + limits.REGROUP_DEADLINE_S)]

    def on_joined(self, now_s: float, members: list[Member], message: Joined) -> list[Output]:
        """Note that members have joined the generation. Once all have, the run trains."""
        run = self.run
        if message.generation != run.lifecycle.generation:
            # This Joined is of a generation that is over.
            return []
        for member in members:
            member.path.newest_report = message.generation, message.step
            member.path.joined = member.script.attached = True
            run.roster.remains.note_attached(member.rank)
        donated = any(m.path.plan is not None and m.path.plan.donate for m in members)
        run.faults.note_restore(message.restore_s, donated=donated)
        if not run.lifecycle.is_in(Stage.MOVING, Stage.STARTING):
            return []
        if run.roster.first("not joined", lambda m: not m.path.joined) is not None:
            return []
        run.lifecycle.enter(Stage.TRAINING)
        run.progress.set_generation_live(True)
        if message.step > run.progress.planned:
            # The run had no state left, and the script has resumed from a file of its own.
            run.interruptions.went_on_from(message.step)
            run.progress.note(message.step, message.step)
        run.links.forget()
        run.interruptions.joined(
            now_s=now_s, restore_s=run.faults.restore_s, tier=costliest_tier(run.roster.members())
        )
        spares = set_timer(Timer.SPARES, now_s)
        joined = [*run.records(), cancel(Timer.MOVE), spares, *self.stop.tell_members()]
        # The commit that closes the interruption may have arrived before the last Joined.
        at_s = run.first_commit_s(run.roster.members())
        return joined if at_s is None else [*joined, *run.resumed(now_s, at_s)]

    def on_committed(self, now_s: float, members: list[Member], message: Committed) -> list[Output]:
        """Note that members have committed a step. A new step closes the open interruptions.

        Under replicated state one rank's commit counts for all, because all have voted. Under
        sharded state a step is committed once the last owner has sealed it.
        """
        run = self.run
        if message.generation != run.lifecycle.generation:
            # This commit is of a generation that is over.
            return []
        for member in members:
            if message.is_new:
                member.path.committed_s = message.at_s
            run.roster.remains.note_done(member.rank, message.step)
        run.progress.note_commit(message.step, sharded=run.roster.sharded)
        behind = message.step - 1 if message.step else None
        if not run.roster.outlast:
            # The first step of a plain script shows from where its own checkpoint resumed.
            run.interruptions.went_on_from(behind)
        at_s = run.first_commit_s(run.roster.members())
        if at_s is None or not message.is_new:
            return []
        first = run.progress.note_trained()
        if run.roster.outlast and run.lifecycle.is_in(Stage.MOVING, Stage.STARTING):
            # All have joined, because they have voted. Their Joined messages are still to come.
            return []
        told = first and not run.roster.outlast
        went_on = [run.noted(now_s, WENT_ON, {"step": behind})] if told else []
        return [*went_on, *run.resumed(now_s, at_s)]

    def on_finished(self, now_s: float, members: list[Member], message: Finished) -> list[Output]:
        """Note that members are past the last step."""
        run = self.run
        for member in members:
            member.script.finished = True
            member.path.newest_report = message.generation, message.step
            member.script.left_in_step = message.in_step
        run.progress.note(message.step, message.step)
        present = message.generation == run.lifecycle.generation
        return run.resumed(now_s, now_s) if present and run.lifecycle.is_in(Stage.TRAINING) else []

    # --- timers: a stage has taken long enough ---------------------------------------------------

    def on_gather_timer(self, now_s: float) -> list[Output]:
        """Tell the survivors to leave: companions of the fault have had time to show themselves."""
        return self.gathered(now_s) if self.run.lifecycle.is_in(Stage.GATHERING) else []

    def on_leave_timer(self, now_s: float) -> list[Output]:
        """Give up the members that have not left their collective by now."""
        if not self.run.lifecycle.is_in(Stage.LEAVING):
            return []
        if self.drains.is_late(now_s):
            return self.check_quiesced(now_s)  # it calls the drain off
        late = self.run.roster.not_quiesced()
        if self._is_worth_waiting(now_s, late):
            # These members may only lack a processor, and to kill them would lose the state.
            return [set_timer(Timer.LEAVE, now_s + limits.LEAVE_DEADLINE_S)]
        return self._too_late(now_s, Timer.LEAVE, late, "did not leave its collective in time")

    def _is_worth_waiting(self, now_s: float, late: list[Member]) -> bool:
        """Return True for up to LEAVE_LAST_S, if no other survivor holds the replicated state."""
        run = self.run
        if run.roster.sharded or run.roster.recovery_mode == "plain":
            return False  # the state is in images, or outlast knows nothing of it
        if not any(m.script.attached for m in late):
            return False  # those that are late hold nothing
        if any(m.script.attached and m not in late for m in run.roster.live()):
            return False  # another survivor holds the same state
        began_s = run.faults.detected_s
        return began_s is not None and now_s < began_s + limits.LEAVE_LAST_S

    def on_move_timer(self, now_s: float) -> list[Output]:
        """Give up the members that have not joined by now: first the donor that others wait for."""
        if not self.run.lifecycle.is_in(Stage.MOVING, Stage.STARTING):
            return []
        # The donor comes first, because the others wait for it.
        if (donor := self.plans.donor()) is not None and not donor.life.condemned:
            why = "did not hand over its state in time"
            return self._too_late(now_s, Timer.MOVE, [donor], why)
        late = self.run.roster.holding_up()
        if len(late) > 1 and all(m.path.waypoint in _TOGETHER for m in late):
            # They wait for each other, so it is not known which of them is at fault.
            return self._try_again(now_s, late)
        return self._too_late(now_s, Timer.MOVE, late, "did not join the new generation in time")

    def _try_again(self, now_s: float, members: list[Member]) -> list[Output]:
        """Let all leave the generation that `members` could not join, and form the next one.

        The budgets of repeats and restarts bound how often this is tried.
        """
        ranks = ", ".join(str(m.rank) for m in members)
        what = (
            "connecting to each other" if members[0].path.waypoint is _TOGETHER[0] else "restoring"
        )
        why = f"ranks {ranks} were {what}, and did not join the new generation in time"
        contact = Mechanism.LOST_CONTACT
        return self.fault(now_s, members[0], contact, None, "", "", why)

    def on_handover_timer(self, now_s: float) -> list[Output]:
        """Give up the donor, which has not written the transfer image by now."""
        if not self.run.lifecycle.is_in(Stage.HANDOVER):
            return []
        if self._gives_up is not None:
            # The run gives up, and the donor was to save its last state. End it without that.
            return self.stop.kill_all(now_s, self._gives_up)
        live = self.run.roster.live()
        donors = [m for m in live if m.path.plan is not None and m.path.plan.donate]
        return self._too_late(now_s, Timer.HANDOVER, donors, "did not hand over in time")

    def on_links_timer(self, now_s: float) -> list[Output]:
        """Try the next generation although a link was cut."""
        return self.check_quiesced(now_s) if self.run.lifecycle.is_in(Stage.LEAVING) else []

    def _too_late(
        self, now_s: float, timer: Timer, members: list[Member], why: str
    ) -> list[Output]:
        """Give up `members`, because a deadline has passed while they were waited for.

        Members on a node without a connection are not given up yet. Either the node comes back, or
        its lease ends. Until then the timer is set again.
        """
        late = [member for member in members if member.home not in self.run.nodes.silent]
        again: list[Output] = []
        if len(late) < len(members):
            # Their node has no connection now, so look again later.
            again = [set_timer(timer, now_s + limits.SILENT_LOOK_S)]
        return [*again, *self.give_up(now_s, late, why)]
