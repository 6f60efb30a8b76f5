"""Failures after the last step: in the script's own last code, or while a process ends.

    the script raises, or leaves with      the run fails; the other ranks reach their end, and
    an exit code                           nothing is run again
    a process fails after its script       a warning
    has ended well
    a process is killed from outside       as in any step: all ranks restart, and run that code
    before that, or lost with its node     again

So the code after the last step runs once, unless a process is killed in it. This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.protocol.outputs import End, Output, Tell
from outlast.model.messages import WorkerExited
from outlast.model.terms import Mechanism, Phase, Rung


class Epilogue:
    """Decide what a failure after the last step means. It has no state of its own."""

    def __init__(self, run: RunParts, stop: StopRequest) -> None:
        self.run = run
        self.stop = stop

    def is_reached(self, member: Member) -> bool:
        """Return True if all ranks are past the last step, and no recovery is under way.

        Under replicated state all ranks vote at the end, so the report of one is enough.
        """
        run = self.run
        if not run.lifecycle.is_in(Stage.TRAINING) or self.stop.by_signal:
            return False
        if member.script.finished and not run.roster.sharded:
            return True
        return (
            run.roster.first("not past", lambda m: not m.script.finished and not m.life.done)
            is None
        )

    def script_raised(
        self, now_s: float, member: Member, *, at_s: float | None, error: str, traceback: str
    ) -> list[Output]:
        """Note that a script has failed after the last step. Its process is about to end."""
        if member.path.raised:
            return []  # this failure was reported before
        member.path.raised = error, traceback
        kind, why = Mechanism.EXCEPTION, f"rank {member.rank} failed after the last step"
        return self._fail(now_s, member, kind, at_s, why)

    def script_exited(self, now_s: float, member: Member, message: WorkerExited) -> list[Output]:
        """Note that a process has ended with an exit code, unless its script has said why."""
        if member.path.raised:
            return []  # its script has said why
        member.path.raised = message.error or f"exit code {message.exit_code}", ""
        why = f"rank {member.rank} (pid {member.process.pid}) left after the last step"
        return self._fail(now_s, member, Mechanism.EXIT, message.fault_s, why)

    def _fail(
        self, now_s: float, member: Member, kind: Mechanism, at_s: float | None, why: str
    ) -> list[Output]:
        run, (error, traceback) = self.run, member.path.raised or ("", "")
        run.interruptions.fault(
            rank=member.rank,
            pid=member.process.pid,
            node=member.process.host,
            mechanism=kind,
            generation=run.lifecycle.generation,
            step=run.progress.step,
            fault_s=at_s,
            fault_not_before_s=None if at_s is not None else run.progress.moved_s,
            detected_s=now_s,
            same_event=False,
            error=error,
            traceback=traceback,
            reason=why,
        )
        kept = f"all {run.progress.step} steps are committed; that code is not run again"
        run.interruptions.book_decision(
            now_s=now_s, rung=Rung.STOP, reason=kept, repeated=0, lost=0
        )
        out = run.records()
        if self.stop.end is None:
            out += self.stop.ends_with(
                now_s, End(1, "failed", f"{why}: {error}; {kept}", traceback)
            )
            out.append(Tell(f"{why}: {error}; the other ranks come to their end"))
        return out

    def failed_at_exit(self, now_s: float, member: Member, message: WorkerExited) -> list[Output]:
        """Warn of a process that failed while it ended. Its script has ended well before."""
        if message.exit_code == 0:
            return []
        how = (
            f"signal {message.signal}"
            if message.signal is not None
            else f"exit code {message.exit_code}"
        )
        if message.oom or message.oom_near:
            how += ", while the kernel counted an OOM kill,"
        text = (
            f"rank {member.rank} (pid {member.process.pid}) ended with {how} after its script had"
            " ended well, in the interpreter's own clean-up; training is whole, and nothing is run"
            " again"
        )
        return [event(now_s, "warning", {"text": text}), Tell(f"warning: {text}")]


def script_had_ended(member: Member, message: WorkerExited) -> bool:
    """Return True if the script of this process had ended well when the process ended."""
    past = member.script.finished or not member.script.attached
    return past and message.phase == Phase.EXIT.value
