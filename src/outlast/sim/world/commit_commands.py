"""The commands of the commit machine, carried out in simulated time.

The machine is the one that runs on a real rank (engine/commit/commit_machine.py). This file says
how long each command takes, and where a fault may strike. It also says what a command does to the
few numbers that stand for a rank's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlast.engine.commit.commands import (
    AfterFault,
    BookCommit,
    Break,
    CallBack,
    Command,
    DeliverVote,
    Donate,
    DropUndo,
    Flow,
    ForgetPhase,
    HandOver,
    Join,
    Prepare,
    PreparePhase,
    ProveEqual,
    PutOff,
    Refuse,
    RollBack,
    RollBackPhase,
    Save,
    SealMoved,
    StandStill,
    TakeBackTail,
    TellWorkerMachine,
    Vote,
    WaitToBeKilled,
)
from outlast.engine.commit.image_place import BEGUN, PREPARED, ScriptPosition
from outlast.engine.commit.late_votes import LateVotes
from outlast.engine.exhaustive import assert_never
from outlast.model.messages import Checkpointed, Regroup
from outlast.model.terms import Cause, Phase, Waypoint
from outlast.sim.world.main_thread import MainThread
from outlast.sim.world.node_parts import kept_by_all
from outlast.sim.world.processes import SealedStep, Thread

APART_FROM_STEP = 2  # state that differs by rank changes after this step and all later ones
KEEP_S = 0.002  # training pauses this long for a copy in the vault
LOOK_S = 0.05  # a rank that waits for its own thread checks this often whether it has to leave


@dataclass(frozen=True, slots=True)
class Voted:
    """A vote has passed.

    stop    True: a rank was asked to stop
    save    True: a rank was asked for a checkpoint of the step
    seal    True: a rank was asked to seal after each step
    unsure  True: state was seen to change that no vote has compared yet, and no rank votes late
    """

    stop: bool
    save: bool
    unsure: bool = False
    seal: bool = False


class CommitCommands:
    """Run the flows of a CommitMachine on a simulated main thread, one at a time.

    A rank's state is two numbers: the step that it is of, and how many pieces of the script's own
    code after that step have run on it. `begin` keeps both, so that a roll-back can be checked.
    """

    def __init__(self, thread: MainThread, late: LateVotes) -> None:
        self._thread = thread
        self._late = late
        self._copy: int | None = None  # the step of the copy of the shared state
        self._phase_began = (0, 0)  # `ran` and `own` of the process before the present phase

    def run(self, flow: Flow[Any]) -> Thread:
        """Run `flow` to its end and return its result."""
        try:
            command = next(flow)
            while True:
                try:
                    answer = yield from self._carry_out(command)
                except Exception as error:  # boundary: the flow decides about it
                    command = flow.throw(error)
                else:
                    command = flow.send(answer)
        except StopIteration as over:
            return over.value

    # --- the script -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Keep the state that a repeat of the step has to restore. A step begins."""
        process = self._thread.p
        process.began_ran, process.began_own = process.ran, process.own
        if self._late.on:
            self._copy = process.content

    def begin_phase(self) -> None:
        """Keep the state that a repeat of the phase has to restore. A phase begins."""
        self._phase_began = self._thread.p.ran, self._thread.p.own

    # --- the commands -----------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> Thread:
        thread = self._thread
        match command:
            case TellWorkerMachine():
                thread.do(command.act(thread.machine))
                if thread.machine.begun and not thread.machine.over:
                    thread.world.asks_for_step(thread.machine.committed + 1)
            case Prepare():
                self._leave_script()
                if self._moved_apart(command.step) and not self._late.on:
                    return False
                if not thread.sharded:
                    yield from thread.seal(command.step, command.place)
                return True
            case Vote():
                return (yield from self._vote(command.step))
            case PutOff():
                self._copy = thread.p.content
            case DeliverVote():
                if command.step:
                    yield from thread.mark("passed")
                if self._moved_apart(command.step):
                    self._late.want()
            case DropUndo():
                self._copy = None
                return thread.sharded
            case BookCommit():
                yield from self._book_commit(command.step)
            case CallBack():
                pass  # the simulated script has no on-commit work
            case SealMoved():
                yield from self._seal_moved(command)
            case Save():
                yield from self._save_if_due(command)
                yield from self._keep_if_due(command.step)
            case ProveEqual():
                self._leave_script()
                if self._late.unproven:
                    yield "collective", None
            case PreparePhase():
                if not thread.sharded:
                    yield from thread.seal(command.step, ScriptPosition(PREPARED, command.phases))
            case RollBackPhase():
                thread.p.ran, thread.p.own = self._phase_began
            case ForgetPhase():
                if not thread.sharded:
                    thread.unseal()
            case HandOver():
                return (yield from self._hand_over(command.step))
            case _:
                return (yield from self._carry_out_after_fault(command))
        return None

    def _carry_out_after_fault(self, command: AfterFault) -> Thread:
        thread = self._thread
        match command:
            case TakeBackTail():
                thread.p.ran, thread.p.own = thread.p.began_ran, thread.p.began_own
            case Refuse():
                raise command.error
            case Break():
                if command.peers_only and not thread.is_collateral(command.error):
                    raise command.error
                thread.broke(command.error)
            case StandStill():
                return (yield from thread.stand_still(in_hook=command.in_hook))
            case RollBack():
                yield from self._roll_back(command.plan, in_flight=command.in_flight)
            case Donate():
                yield from self._donate(command.plan)
            case WaitToBeKilled():
                while True:
                    yield "sleep", 3600.0
            case Join():
                yield from thread.mark("grouping")
                yield from thread.build(command.plan)
                thread.do(thread.machine.underway(Waypoint.RESTORES))
                thread.joined(command.plan)
            case _:
                assert_never(command)
        return None

    # --- voting and committing --------------------------------------------------------------------

    def _leave_script(self) -> None:
        """Begin a late vote. From here on the deadline of a vote counts, not that of the script."""
        if self._thread.p.beacon.phase is Phase.BETWEEN:
            self._thread.enter(Phase.VOTE)

    def _vote(self, step: int) -> Thread:
        """Vote with all ranks. Then each rank knows whether any was asked to stop."""
        thread = self._thread
        if step:
            yield from thread.mark("prepared")
        thread.enter(Phase.VOTE)
        yield from thread.mark("voting" if step else "closing")
        if step:
            thread.exit_if_lease_is_over()
        yield from thread.copies.wait()
        group, number = thread.p.group, thread.p.collectives
        if group is not None and thread.machine.stop is not None:
            group.stops.add(number)
        if group is not None and thread.machine.saves_now:
            group.asked.add(("save", number))
        if group is not None and thread.machine.seals_each:
            group.asked.add(("seal", number))
        if group is not None and self._late.on:
            group.lates.add(number)
        yield "collective", None
        if step and thread.copies.is_on:
            thread.world.state_holders.note_copied(thread.machine.generation, step - 1)
        if group is None:
            return Voted(stop=False, save=False)
        unsure = self._moved_apart(step) and number not in group.lates
        save, seal = (("save", number) in group.asked, ("seal", number) in group.asked)
        return Voted(number in group.stops, save, unsure, seal)

    def _moved_apart(self, step: int) -> bool:
        """Return True if private state was seen to change by rank before the vote of `step`."""
        options, seen = self._thread.world.options, step > APART_FROM_STEP
        return seen and options.moves == "apart" and options.ranks > 1 and not self._thread.sharded

    def _book_commit(self, step: int) -> Thread:
        thread = self._thread
        thread.exit_if_lease_is_over()
        thread.world.has_committed(thread.p, step)
        thread.do(thread.machine.note_committed(step=step, now_s=thread.node.now_s))
        thread.p.book.commit_step(
            now_s=thread.world.now_s, first=step > thread.p.high_water, then=Cause.OTHER
        )
        thread.enter(Phase.BETWEEN)
        yield from thread.mark("committed")

    def _seal_moved(self, command: SealMoved) -> Thread:
        """Seal the private state that the script has changed, or the whole of sharded state."""
        thread = self._thread
        if thread.sharded:
            if command.place.kind == BEGUN:
                yield from self._seal_whole(command.step, command.place)
        elif thread.world.options.moves and thread.p.newest[1:] != (command.step, command.place):
            yield from thread.seal(command.step, command.place)

    def _seal_whole(self, step: int, place: ScriptPosition) -> Thread:
        thread = self._thread
        if step in thread.sealed() or thread.machine.broken:
            return
        thread.enter(Phase.SNAPSHOT, cause=Cause.STALL)
        yield from thread.seal(step, place)
        thread.machine.note_sealed(steps=thread.sealed())
        thread.copies.send(step)

    # --- saving and handing over ------------------------------------------------------------------

    def _save_if_due(self, command: Save) -> Thread:
        """Copy the shard now, and let a thread write it.

        If the last save is still being written, wait for it first, unless there is a regroup.
        """
        thread, every = self._thread, self._thread.world.options.checkpoint_every
        step = command.step
        due = bool(every) and (not step % every or command.stopping)
        if not due and not command.asked:
            return
        thread.enter(Phase.CHECKPOINT, cause=Cause.STALL)
        yield from thread.mark("saving")
        while thread.world.now_s < thread.p.saves_until_s and not thread.machine.broken:
            yield "sleep", min(LOOK_S, thread.p.saves_until_s - thread.world.now_s)
        if thread.machine.broken:
            self._tell_save_failed(step)
        else:
            yield "sleep", thread.world.disks.copy_s()
            thread.world.disks.write_shard(thread.p, step)
            yield from thread.mark("saved")
        thread.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def _keep_if_due(self, step: int) -> Thread:
        """Copy the state of this rank into the vault, and report it, as `Copies.make` does.

        The newest step that all ranks have copied stays until all have copied this one.
        """
        thread, options = self._thread, self._thread.world.options
        if not options.keep_every or step % options.keep_every or thread.sharded:
            return
        process, node = thread.p, thread.node
        slots, whole = (
            node.kept.setdefault(process.rank, {}),
            kept_by_all(node.kept, ranks=options.ranks),
        )
        if step not in slots.values():
            used = next((slot for slot, kept in slots.items() if whole and kept == whole), 1)
            thread.enter(Phase.SNAPSHOT, cause=Cause.STALL)
            thread.exit_if_lease_is_over()
            slots.pop(1 - used, None)
            yield "sleep", KEEP_S
            slots[1 - used] = SealedStep(step, ScriptPosition(BEGUN, 0), process.own)
            thread.enter(Phase.BETWEEN, cause=Cause.OTHER)
        report = Checkpointed(
            process.worker,
            thread.machine.generation,
            process.rank,
            step,
            "",
            0,
            "",
            "",
            in_vault=True,
        )
        thread.node.tell(process, report)

    def _tell_save_failed(self, step: int) -> None:
        process, error = self._thread.p, "given up for a regroup"
        generation = self._thread.machine.generation
        report = Checkpointed(process.worker, generation, process.rank, step, "", 0, "", error)
        self._thread.node.tell(process, report)

    def _hand_over(self, step: int) -> Thread:
        thread = self._thread
        if thread.sharded:
            return False
        if thread.p.rank == 0:
            thread.enter(Phase.CHECKPOINT)
            thread.begins_image(step)
            yield from self._write_image()
            self._image_is_there(thread.machine.generation, step)
        return True

    def _donate(self, plan: Regroup) -> Thread:
        thread = self._thread
        thread.exit_if_lease_is_over()
        thread.begins_image(plan.step)
        yield from thread.mark("donating")
        yield from self._write_image()
        thread.exit_if_lease_is_over()
        thread.arrives(plan)
        self._image_is_there(plan.generation, plan.step)

    def _write_image(self) -> Thread:
        yield "sleep", self._thread.world.lasting(self._thread.p, 0.001, 0.01)

    def _image_is_there(self, generation: int, step: int) -> None:
        """Note that a successor can now find the replicated state in the transfer image."""
        thread, late = self._thread, self._late.metadata()
        thread.world.transfer = (generation, step, thread.node, thread.p.ran, late, thread.p.own)
        thread.do(thread.machine.donated(step=step))

    # --- after a fault ----------------------------------------------------------------------------

    def _roll_back(self, plan: Regroup, *, in_flight: bool) -> Thread:
        thread, world = self._thread, self._thread.world
        yield "sleep", world.lasting(thread.p, 0.0005, 0.002)
        if in_flight:
            thread.p.ran, thread.p.own = thread.p.began_ran, thread.p.began_own
            if self._copy is not None:
                thread.p.holds(self._copy)
        self._copy = None
        fault_s, detected_s = (
            None if at_s is None or not in_flight else thread.node.world_s(at_s)
            for at_s in (plan.fault_s, plan.detected_s)
        )
        thread.p.book.roll_back(
            now_s=world.now_s, fault_s=fault_s, detected_s=detected_s, then=Cause.REGROUP
        )
        yield from thread.mark("settled")
