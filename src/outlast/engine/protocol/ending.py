"""How a run ends, and what is saved on the way: stops that were asked for, verdicts, checkpoints.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.members import Member
from outlast.engine.protocol.outputs import End, Manifest, Output, Record, SetTimer, Tell, ToAgent
from outlast.engine.protocol.state import Course, Stage
from outlast.engine.rare import rare
from outlast.model import limits
from outlast.model.messages import Checkpointed, Finished, KillWorker, Stop, TermWorker, WorkerExited


class Ending(Course):
    """Stopping: everybody is killed, then the run is over. A run that was asked to stop commits the step in flight first."""

    def ask_stop(self, *, now_s: float, reason: str, exit_code: int) -> list[Output]:
        """A signal, or a person. Asked twice, or before anything was trained: at once. While regrouping: once all are back."""
        if self.stage is Stage.ENDED:
            return []
        plain = not self.roster.outlast
        nothing_yet = self.stage is Stage.CLEARING if plain else self.stage is Stage.STARTING and not self._trained
        if self._end is not None or nothing_yet:
            return self._stop_now(now_s, End(exit_code, "stopped", reason, ""))
        self._end, self._by_signal = End(exit_code, "stopped", reason, ""), plain and bool(self.roster.live())
        out: list[Output] = [Tell(f"stopping: {reason}; " + ("workers are sent SIGTERM" if plain else "the step in flight is committed first"))]
        return [*self._record_end(now_s), *out, *self._stop_softly(now_s)]

    def _stop_softly(self, now_s: float) -> list[Output]:
        return [*self._spread_stop(), SetTimer("stop", now_s + self.options.term_grace_s)]

    def _record_end(self, now_s: float) -> list[Output]:
        """A coordinator that comes after this one is to end the run too."""
        if self.nodes.local or self._end is None:
            return []
        end, at_once = self._end, self.stage is Stage.STOPPING or self._ends_at_once
        said = {"exit_code": end.exit_code, "state": end.state, "reason": end.reason, "at_once": at_once, "by_signal": self._by_signal}
        return [Record(self.event(now_s, "ending", said), at_once=True)]

    def _spread_stop(self) -> list[Output]:
        """To all that hold a rank; again whenever a generation stands, for those that are new in it."""
        if self._end is None:
            return []
        stop = Stop(self._end.reason, self.options.checkpoint_on_stop)
        if self.roster.outlast:
            return self._tell((m, stop) for m in self.roster.live())
        # A process that is not there yet cannot hear SIGTERM: it is not to begin.
        return [ToAgent((TermWorker if m.pid else KillWorker)(m.worker, self._end.reason), m.home) for m in self.roster.live()]

    def _stop_now(self, now_s: float, end: End) -> list[Output]:
        """Kill what lives, then end. A reason given earlier (a stop asked for) stays. Who lives has to be known: while the picture is built it is noted."""
        if self._end is None or end.state == "failed":
            self._end = end
        if self.stage is Stage.REBUILDING:
            rare("a run is to end at once, and who lives is not known yet")
            self._ends_at_once = True
            return self._record_end(now_s)
        self.stage = Stage.STOPPING
        out: list[Output] = self._record_end(now_s)
        out += [SetTimer(name, None) for name in ("gather", "leave", "move", "handover", "spares", "nodes")]
        out += self._kill(now_s, (*self.roster.live(), *self.roster.spares()), end.reason)
        return [*out, *self._when_stopped(now_s)]

    def _when_stopped(self, now_s: float) -> list[Output]:
        if self._several_end or self._somebody_lives():
            return []
        assert self._end is not None
        return self._finish(now_s, self._end)

    def _on_unkillable(self, now_s: float) -> list[Output]:
        """A driver may keep a process in the kernel for ever. Its rank cannot be given away: nobody can say that it will not go on."""
        stuck = [m for m in (*self.roster.live(), *self.roster.spares(), *self.roster.strays.values()) if m.condemned]
        if self.stage is Stage.STOPPING and self._end is not None:
            rare("the run ends with processes that cannot be killed")
            return self._over(self._end)
        if any(m.home in self.nodes.silent for m in stuck):
            rare("those that were killed cannot be heard")
            return [SetTimer("kill", now_s + limits.SILENT_LOOK_S)]
        if not any(m.rank >= 0 for m in stuck):
            return []
        rare("killed ones did not end in time")
        return self._stop_now(now_s, End(1, "failed", f"processes {[m.pid for m in stuck]} cannot be killed: they do not return from the kernel", ""))

    def _finish(self, now_s: float, end: End) -> list[Output]:
        self._end = end
        if self._somebody_lives():
            return self._stop_now(now_s, end)
        return self._over(end)

    def _somebody_lives(self) -> bool:
        return bool(self.roster.any_live() or self.roster.spares() or self.roster.strays)

    def _over(self, end: End) -> list[Output]:
        self.stage = Stage.ENDED
        return [*self._records(), SetTimer("stop", None), SetTimer("kill", None), end]

    # --- the last step -------------------------------------------------------------------------------------------

    def _on_finished(self, now_s: float, members: list[Member], message: Finished) -> list[Output]:
        for member in members:
            member.finished, member.said = True, (message.generation, message.step)
        self._note_step(message.step, message.step)
        return self._resumed(now_s, now_s) if message.generation == self.generation and self.stage is Stage.TRAINING else []

    def _ended_well(self, member: Member, message: WorkerExited) -> bool:
        if self._end is not None and self._by_signal:
            return True  # it was sent SIGTERM: however it ends, it has ended
        return message.exit_code == 0 and (member.finished or not member.attached or self._end is not None)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _on_checkpointed(self, now_s: float, message: Checkpointed) -> list[Output]:
        if not self.saves.takes(message):
            rare("a shard is of a past that was rolled back")
            return []
        if message.error:
            self.saves.fail(message.step)
            return self.on_manifest(now_s=now_s, step=message.step, folder="", error=f"rank {message.rank}: {message.error}")
        shards = self.saves.put(message)
        if not shards:
            return []
        return [Manifest(message.step, self.roster.sharded, tuple((shard.file, shard.length, shard.checksum) for shard in shards))]

    def on_manifest(self, *, now_s: float, step: int, folder: str, error: str) -> list[Output]:
        """A save that failed is told, and ends nothing: the checkpoints before it stand."""
        if error:
            return [self._event(now_s, "checkpoint_failed", {"step": step, "error": error}), Tell(f"the checkpoint of step {step} failed: {error}")]
        self._newest_checkpoint = max(self._newest_checkpoint, (step, folder))
        return [Record(self.event(now_s, "checkpoint", {"step": step, "folder": folder}), at_once=not self.nodes.local)]
