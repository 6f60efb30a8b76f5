"""Decide whether the end of a process is a normal end or a fault.

The kernel has reported the end, or the node of the process is lost.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.epilogue import Epilogue, script_had_ended
from outlast.engine.coordinator.left_in_step import LeftInStep
from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.regroup import RegroupMachine
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.spares import SparePool
from outlast.engine.coordinator.stages import Stage, Timer, set_timer
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.protocol.outputs import End, Output, Tell
from outlast.model import limits
from outlast.model.messages import WorkerExited, WorkerFailedToStart
from outlast.model.terms import FailureClass, Mechanism, Phase

_SIGKILL = 9


class ProcessExits:
    """Handle the ends of processes. It has no state of its own."""

    def __init__(
        self, run: RunParts, stop: StopRequest, regroup: RegroupMachine, spares: SparePool
    ) -> None:
        self.run = run
        self.stop = stop
        self.regroup = regroup
        self.spares = spares
        self.epilogue = Epilogue(run, stop)
        self.left = LeftInStep(run, stop, regroup)

    def on_exit(self, now_s: float, message: WorkerExited) -> list[Output]:
        """Handle the end of a process. What is in its slots is remembered for its successor."""
        run, roster = self.run, self.run.roster
        if message.worker in roster.orphans:
            return self._on_orphan_exit(now_s, message)
        member = roster.of(message.worker)
        if member is None or member.life.dead:
            # The end was reported before, or the rank has another holder.
            return []
        member.life.dead, member.life.ended_in_run_phase = True, message.phase == Phase.EVALUATION
        if member.rank < 0:
            return self._on_spare_exit(now_s, member, message)
        run.note_of_rank(message.committed, max(message.committed, *message.prepared, 0))
        roster.remains.note_done(member.rank, message.committed)
        had_state = member.script.attached and not member.life.node_lost
        roster.remains.record_exit(member.rank, message, had_state=had_state)
        if run.lifecycle.is_in(Stage.STOPPING):
            return self.stop.when_stopped()
        if run.lifecycle.is_in(Stage.CLEARING):
            return self.regroup.plans.when_cleared(now_s)
        missed = self._is_missed(member)
        if self.stop.ended_well(member, message) and not missed:
            return self._on_done(now_s, member)
        if script_had_ended(member, message) and not missed:
            warned = self.epilogue.failed_at_exit(now_s, member, message)
            return [*warned, *self._on_done(now_s, member)]
        if (
            # without an exit code it was killed, or lost with its node: its script is not to blame
            message.exit_code is not None
            and not member.life.condemned
            and self.epilogue.is_reached(member)
        ):
            failed = self.epilogue.script_exited(now_s, member, message)
            return [*failed, *self._on_done(now_s, member)]
        return [*self._fault_of(now_s, member, message), *self._go_on(now_s)]

    def _is_missed(self, member: Member) -> bool:
        """Return True if the rank left before run.steps, and a peer's collective has just failed.

        A process closes its connections before it ends, so the failed collective may be reported
        before this end.
        """
        early = member.script.registered and not member.script.attached
        stops = self.stop.by_signal or self.stop.end is not None
        return early and not stops and self.run.lifecycle.is_in(Stage.GATHERING, Stage.LEAVING)

    def on_failed_to_start(self, now_s: float, message: WorkerFailedToStart) -> list[Output]:
        """Handle a process that could not be started, like one that has ended."""
        exited = WorkerExited(
            message.worker, 0, 1, None, False, -1, (), (), "boot", now_s, now_s, message.error
        )
        return self.on_exit(now_s, exited)

    def on_lost_with_node(self, now_s: float, member: Member, reason: str) -> list[Output]:
        """Handle the loss of a process with its node. Nothing is known about how it ended."""
        return self.on_exit(now_s, lost_with_node(member, now_s, reason))

    def _go_on(self, now_s: float) -> list[Output]:
        """Go on with a regroup that may have waited for this death."""
        leaving = self.run.lifecycle.is_in(Stage.LEAVING)
        return self.regroup.check_quiesced(now_s) if leaving else []

    def _on_orphan_exit(self, now_s: float, message: WorkerExited) -> list[Output]:
        # The process had lost its rank to another one before it ended.
        del self.run.roster.orphans[message.worker]
        if self.run.lifecycle.is_in(Stage.STOPPING):
            return self.stop.when_stopped()
        return self._go_on(now_s)

    def _on_done(self, now_s: float, member: Member) -> list[Output]:
        """Note that a rank has ended well. The run ends once all ranks have."""
        run = self.run
        member.life.done = True
        if run.roster.first("not done", lambda m: not m.life.done) is not None:
            return [*self.left.on_done(now_s, member), *self._go_on(now_s)]
        if self.stop.end is None:
            if not run.roster.outlast:
                run.interruptions.book_unseen_steps()  # the script has ended without a known step
            run.interruptions.resumed(at_s=now_s, generation=run.lifecycle.generation + 1)
        # Write the end down before any process is killed: the next coordinator has to know it.
        end = self.stop.end or End(0, "ended", "all ranks ended well", "")
        return [*run.records(), *self.stop.finish(now_s, end)]

    def _fault_of(self, now_s: float, member: Member, message: WorkerExited) -> list[Output]:
        """Book the fault that ended `member`. That of a condemned member is booked already."""
        run, rank = self.run, member.rank
        if member.life.condemned:
            if member.life.node_lost:
                run.interruptions.node_lost(reason=member.life.node_lost)
            return run.records()  # its fault was booked when it was condemned
        if member.life.node_lost:
            why = member.life.node_lost
            kind = Mechanism.LOST_NODE
            return self.regroup.fault(now_s, member, kind, None, message.error, "", why)
        # A kill that may have been for memory may come again, so it is charged as other faults.
        if message.signal == _SIGKILL and not (message.oom or message.oom_near):
            run.faults.note_killed(rank)
        mechanism = _mechanism_of(member, message)
        error, traceback = member.path.raised or (message.error or _how(message), "")
        why = f"rank {rank} (pid {member.process.pid}) ended: {_how(message)}"
        out = self.regroup.fault(now_s, member, mechanism, message.fault_s, error, traceback, why)
        if message.oom:
            why = f"rank {rank} was killed for memory by the kernel"
            run.interruptions.classify(failure_class=FailureClass.HOST_MEMORY, reason=why)
        return out

    def _on_spare_exit(self, now_s: float, spare: Member, message: WorkerExited) -> list[Output]:
        run = self.run
        run.roster.drop(spare)
        if run.lifecycle.is_in(Stage.STOPPING):
            return self.stop.when_stopped()
        data = {"pid": spare.process.pid, "kind": spare.kind, "error": message.error}
        out: list[Output] = [event(now_s, "spare_lost", data)]
        if self.spares.note_ended(spare):
            how = message.error or _how(message)
            out.append(Tell(f"warning: a {spare.kind} spare ended before it could park: {how}"))
        return [*out, set_timer(Timer.SPARES, now_s + limits.SPARE_REFILL_DELAY_S)]


def lost_with_node(member: Member, now_s: float, reason: str) -> WorkerExited:
    """Note that a process is lost with its node, and return a WorkerExited that stands for it.

    It says nothing but the reason.
    """
    member.life.node_lost = reason
    return WorkerExited(
        member.worker, member.process.pid, None, None, False, -1, (), (), "", now_s, None, reason
    )


def _mechanism_of(member: Member, message: WorkerExited) -> Mechanism:
    """Return how the process failed. An error that its script raised comes before its exit."""
    if member.path.raised:
        return Mechanism.EXCEPTION
    if message.signal is not None:
        return Mechanism.SIGNAL
    return Mechanism.LOST_CONTACT if member.path.collateral else Mechanism.EXIT


def _how(message: WorkerExited) -> str:
    if message.signal is not None:
        return f"signal {message.signal}"
    return f"exit code {message.exit_code}"
