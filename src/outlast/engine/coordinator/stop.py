"""How a run ends: all ranks are done, a stop was asked for, or the run cannot go on.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage, Timer, cancel, set_timer
from outlast.engine.protocol.outputs import End, Output, Record, Tell, ToAgent
from outlast.model import limits
from outlast.model.messages import KillWorker, Stop, TermWorker, WorkerExited
from outlast.model.records import Event

_STOPPED = (Timer.GATHER, Timer.LEAVE, Timer.MOVE, Timer.HANDOVER, Timer.SPARES, Timer.NODES)


class StopRequest:
    """The stop of a run: why and with which exit code it ends, and how the stop is carried out.

        outputs = stop.ask(now_s=now_s, reason="SIGTERM", exit_code=143)   # after this step
        outputs = stop.kill_all(now_s, End(1, "failed", reason, ""))       # now

    A run that is asked to stop commits the step in flight first. Then all processes are killed, and
    the run is over when all are dead.

    end         what the run ends with; None: it is not to end
    at_once     a new coordinator ends the run as soon as it knows which processes are alive
    by_signal   the script makes no outlast calls, so its processes were sent SIGTERM or SIGINT
    """

    def __init__(self, run: RunParts) -> None:
        self.run = run
        self.end: End | None = None
        self.at_once = False
        self.by_signal = False

    def recover(self, end: End | None, *, at_once: bool, by_signal: bool) -> None:
        """Remember the stop that the coordinator before this one was carrying out."""
        self.end, self.at_once, self.by_signal = end, at_once, by_signal

    # --- asking --------------------------------------------------------------------------------

    def ask(self, *, now_s: float, reason: str, exit_code: int) -> list[Output]:
        """Stop the run, because a signal, a person or the policy asks for it.

        The second request stops it at once, and so does one before its first step. During a
        regroup, the run stops once all ranks have joined.
        """
        run = self.run
        if run.lifecycle.is_in(Stage.ENDED):
            return []
        plain = not run.roster.outlast
        starting = run.lifecycle.is_in(Stage.STARTING) and not run.progress.trained
        nothing_yet = run.lifecycle.is_in(Stage.CLEARING) if plain else starting
        if self.end is not None or nothing_yet:
            return self.kill_all(now_s, End(exit_code, "stopped", reason, ""))
        self.end = End(exit_code, "stopped", reason, "")
        self.by_signal = plain and bool(run.roster.live())
        text = f"stopping: {reason}; {self._how(plain=plain)}"
        return [*self._record(now_s), Tell(text), *self.softly(now_s)]

    def _how(self, *, plain: bool) -> str:
        if plain:
            return f"workers are sent {'SIGINT' if self._interrupts() else 'SIGTERM'}"
        if self.run.options.checkpoint_on_stop:
            return "the step in flight is committed first, and saved"
        return (
            "the step in flight is committed first; it is not saved, because checkpoints are off"
            " (--checkpoint-every STEPS)"
        )

    def softly(self, now_s: float) -> list[Output]:
        """Tell all members to stop, and give them time for the step in flight."""
        return [*self.tell_members(), set_timer(Timer.STOP, now_s + self.run.options.term_grace_s)]

    def ends_with(self, now_s: float, end: End) -> list[Output]:
        """Note that the run ends with `end` once all ranks have ended by themselves."""
        self.end = end
        return self._record(now_s)

    def tell_members(self) -> list[Output]:
        """Tell all holders of ranks to stop. It is repeated in each generation, for new members."""
        run = self.run
        if self.end is None:
            return []
        stop = Stop(self.end.reason, run.options.checkpoint_on_stop)
        if run.roster.outlast:
            return run.tell((m, stop) for m in run.roster.live())
        # A process that has not started cannot get SIGTERM, so it is killed instead.
        reason = self.end.reason
        return [
            ToAgent(
                TermWorker(m.worker, reason, self._interrupts())
                if m.process.pid
                else KillWorker(m.worker, reason),
                m.home,
            )
            for m in run.roster.live()
        ]

    def _interrupts(self) -> bool:
        """Return True if a plain script is sent SIGINT rather than SIGTERM, as Ctrl-C asks for.

        Before its first step it gets SIGTERM, because code that imports modules may catch
        KeyboardInterrupt.
        """
        return (
            self.end is not None
            and self.end.exit_code == limits.SIGINT_EXIT_CODE
            and self.run.progress.trained
        )

    def _record(self, now_s: float) -> list[Output]:
        """Write the stop down, so that a coordinator that follows this one ends the run as well."""
        if self.run.nodes.local or self.end is None:
            return []
        end, at_once = self.end, self.run.lifecycle.is_in(Stage.STOPPING) or self.at_once
        data = {
            "exit_code": end.exit_code,
            "state": end.state,
            "reason": end.reason,
            "at_once": at_once,
            "by_signal": self.by_signal,
        }
        return [Record(Event(now_s, 0.0, "ending", data), at_once=True)]

    # --- stopping ------------------------------------------------------------------------------

    def kill_all(self, now_s: float, end: End) -> list[Output]:
        """Kill all living processes, then end the run.

        The run ends with `end`, unless a stop was asked for before and `end` is not a failure. A
        new coordinator that does not know yet which processes are alive notes the end, and stops
        later.
        """
        run = self.run
        if self.end is None or end.state == "failed":
            self.end = end
        if run.lifecycle.is_in(Stage.REBUILDING):
            # It is not known yet which processes are alive, so end the run once it is.
            self.at_once = True
            return self._record(now_s)
        run.lifecycle.enter(Stage.STOPPING)
        out: list[Output] = self._record(now_s)
        out += [cancel(timer) for timer in _STOPPED]
        out += run.kill(now_s, (*run.roster.live(), *run.roster.spares()), end.reason)
        return [*out, *self.when_stopped()]

    def when_due(self, now_s: float) -> list[Output]:
        """Kill all processes that live: the time for the last step is up."""
        assert self.end is not None
        return self.kill_all(now_s, self.end)

    def when_stopped(self) -> list[Output]:
        """End the run if all processes are dead."""
        if self.run.faults.losing_node or self._somebody_lives():
            return []
        assert self.end is not None
        return self._over(self.end)

    def finish(self, now_s: float, end: End) -> list[Output]:
        """End the run with `end`: all ranks are done. Kill every process that is left before."""
        self.end = end
        return self.kill_all(now_s, end) if self._somebody_lives() else self._over(end)

    def on_unkillable(self, now_s: float) -> list[Output]:
        """Handle killed processes that have not ended: a device driver may keep one in the kernel.

        The rank of such a process cannot be given away, because the process may still go on.
        """
        run = self.run
        everybody = (*run.roster.live(), *run.roster.spares(), *run.roster.orphans.values())
        stuck = [m for m in everybody if m.life.condemned]
        if run.lifecycle.is_in(Stage.STOPPING) and self.end is not None:
            # These processes cannot be killed, and the run was to end anyway.
            return self._over(self.end)
        if any(m.home in run.nodes.silent for m in stuck):
            # Their node has no connection now, so look again later.
            return [set_timer(Timer.KILL, now_s + limits.SILENT_LOOK_S)]
        if not any(m.rank >= 0 for m in stuck):
            return []
        # These processes were killed and did not end in time.
        pids = [m.process.pid for m in stuck]
        why = f"processes {pids} cannot be killed: they do not return from the kernel"
        return self.kill_all(now_s, End(1, "failed", why, ""))

    def _somebody_lives(self) -> bool:
        roster = self.run.roster
        return bool(roster.any_live() or roster.spares() or roster.orphans)

    def _over(self, end: End) -> list[Output]:
        self.run.lifecycle.enter(Stage.ENDED)
        return [*self.run.records(), cancel(Timer.STOP), cancel(Timer.KILL), end]

    # --- what a stop means for the end of a process ---------------------------------------------

    def ended_well(self, member: Member, message: WorkerExited) -> bool:
        """Return True if the end of this process is not a fault."""
        if self.end is not None and self.by_signal:
            return True  # it was sent a signal: however it ends, it has ended
        may_end = member.script.finished or not member.script.attached or self.end is not None
        return message.exit_code == 0 and may_end
