"""Reports of workers on their scripts: started, registered, over. This module is pure."""

from __future__ import annotations

from outlast.engine.coordinator.member import Member, said_before
from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.plans import Plans
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Timer, cancel
from outlast.engine.protocol.outputs import Output, Tell
from outlast.model.messages import Registered, WorkerLingers, WorkerStarted

SPARES_IDLE = (
    "the script has made no outlast call so far: a failure restarts all ranks, and spares do"
    " nothing for it; `outlast check` shows which lines to change"
)


class ScriptReports:
    """Handle the reports of workers on their scripts. Each warning is shown once."""

    def __init__(self, run: RunParts, plans: Plans) -> None:
        self.run = run
        self.plans = plans
        self._warned: set[str] = set()

    def on_started(self, now_s: float, member: Member, message: WorkerStarted) -> list[Output]:
        """Note that a process was started. A program that never says Hello is running now."""
        member.process.pid, member.process.host = message.pid, message.node
        return [] if self.run.options.greets else self._on_running(now_s, [member])

    def on_hello(self, now_s: float, members: list[Member]) -> list[Output]:
        """Handle the Hello of workers: they listen now, so send them their plans."""
        for member in members:
            member.process.hello_seen = True
        holders = [member for member in members if member.rank >= 0]
        if not holders:
            return []
        return [*self.plans.send(holders), *self._on_running(now_s, holders)]

    def _on_running(self, now_s: float, members: list[Member]) -> list[Output]:
        """Note that the scripts of these members are running.

        If steps of a plain script cannot be seen, it counts as resumed once all its processes run.
        If they can, its next step shows that it has resumed.
        """
        run = self.run
        for member in members:
            member.process.running = True
        if run.roster.outlast or run.links or run.progress.trained:
            return []  # the next step will show that training goes on
        if run.roster.first("not running", lambda m: not m.process.running) is not None:
            return []  # not all processes run yet
        run.interruptions.book_unseen_steps()
        return run.resumed(now_s, now_s)

    def on_registered(
        self, now_s: float, members: list[Member], message: Registered
    ) -> list[Output]:
        """Note how workers can be recovered, as they report at outlast.join and after changes."""
        reported = message.generation, message.step
        newest = [
            member
            for member in members
            if reported >= member.path.newest_report
            and not said_before(message, member.script.registration)
        ]
        for member in newest:
            member.path.newest_report = reported
            member.script.register(message)
            member.script.finished = False  # the script may call run.steps again
        if not newest:
            return []
        ranks = tuple(member.rank for member in newest)
        return [*self._learn_script(now_s, message), *self._learn_alike(now_s, message, ranks)]

    def _learn_alike(
        self, now_s: float, message: Registered, ranks: tuple[int, ...]
    ) -> list[Output]:
        """Write down which ranks hold the same shards, for a coordinator that follows this one.

        That coordinator cannot ask ranks that are dead by then.
        """
        if not (message.sharded and message.at_steps):
            return []
        alike = bool(message.alike)
        of = message.alike or ranks
        if not self.run.roster.remains.learn_alike(of, alike=alike):
            return []
        return [self.run.noted(now_s, "alike", {"ranks": list(of), "alike": alike})]

    def _learn_script(self, now_s: float, message: Registered) -> list[Output]:
        run, roster = self.run, self.run.roster
        out: list[Output] = []
        first = not roster.outlast
        if first or (message.sharded and not roster.sharded):
            out.append(run.noted(now_s, "script", {"sharded": message.sharded}))
        roster.script.learn(outlast=True, sharded=message.sharded)
        if first:
            # Spares begin with the training: ranks that start need the processors.
            out.append(cancel(Timer.SPARES))
        return [*out, *self.warn(now_s, message.note)] if message.note else out

    def on_steps(self, now_s: float, newest: int) -> list[Output]:
        """Warn once that spares are of no use to a script that trains without outlast calls.

        newest   the newest step that an agent has seen of its ranks
        """
        run = self.run
        # Before its first step a script may still reach outlast.join.
        if run.roster.outlast or newest <= 0 or not run.options.spares:
            return []
        return self.warn(now_s, SPARES_IDLE)

    def on_lingers(self, now_s: float, member: Member, message: WorkerLingers) -> list[Output]:
        """Warn that a process does not end although its script is over. It is not killed.

        Each message is shown, and the first one is kept for the report.
        """
        if member.life.dead or member.life.condemned or member.rank < 0:
            return []  # it is being ended, or it is a spare, for which the run does not wait
        first, member.script.lingers = not member.script.lingers, True
        at = f"it stands at {message.where}" if message.where else "its place is not known"
        text = (
            f"rank {member.rank} (pid {member.process.pid}) has not ended:"
            f" its script was over {message.at_s - message.over_s:.0f} s ago, and {at}"
        )
        kept = [event(now_s, "warning", {"text": text})] if first else []
        return [*kept, Tell(f"warning: {text}")]

    def warn(self, now_s: float, text: str) -> list[Output]:
        """Show a warning to the people who watch, once."""
        if text in self._warned:
            return []
        self._warned.add(text)
        return [event(now_s, "warning", {"text": text}), Tell(f"warning: {text}")]
