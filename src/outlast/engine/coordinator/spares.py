"""The spares of a run: started while it trains, so that a lost rank need not wait for a process.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.orders import kill_order
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Output, ToAgent
from outlast.model import limits
from outlast.model.messages import StartWorker


class SparePool:
    """Keep the number of spares that was asked for, unless they fail before they can park."""

    def __init__(self, run: RunParts) -> None:
        self.run = run
        self._failures = 0  # spares that ended before they parked, since the last one that parked

    def refill(self, now_s: float) -> list[Output]:
        """Start the spares that are missing."""
        run, roster = self.run, self.run.roster
        over = run.lifecycle.is_in(Stage.STOPPING, Stage.ENDED)
        if over or self._failures >= limits.SPARE_FAILURES_COUNT:
            return []
        kind = run.options.spare_kind if roster.outlast and not self._failures else "warm"
        out: list[Output] = []
        for spare in roster.spares():
            if spare.kind == "warm" and kind == "hot" and not spare.life.condemned:
                # It was started before it was known that the script calls outlast.join.
                out.append(kill_order(spare, "a hot spare takes its place"))
        for _ in range(run.options.spares - len(roster.spares())):
            if (home := run.nodes.least_spares(roster.spares())) is None:
                # There is no node that may be given a spare.
                break
            spare = roster.add(rank=-1, kind=kind, home=home, now_s=now_s)
            order = StartWorker(spare.worker, -1, kind, run.lifecycle.generation)
            out.append(ToAgent(order, spare.home))
        return out

    def on_parked(self, spare: Member) -> list[Output]:
        """Note that `spare` stands ready."""
        spare.process.parked = True
        self._failures = 0
        return []

    def note_ended(self, spare: Member) -> bool:
        """Note that `spare` has ended. Return True if it failed before it could park."""
        failed = not spare.process.parked and not spare.life.condemned
        if failed:
            # After a few spares that end before they can park, no more are started.
            self._failures += 1
        return failed
