"""Ranks that leave the script with exit code 0 in the middle of a step, or before run.steps.

    all ranks do    the script was meant to end there, and the run ends well
    some ranks do   the others wait in the step for ever, so those that left are treated as lost

The coordinator tells these apart when a collective of another rank fails, or after LEFT_IN_STEP_S.
If a rank has left before run.steps, only a failed collective counts, because the others may have
work of their own there. This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.regroup import RegroupMachine
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage, Timer, set_timer
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.protocol.outputs import Output
from outlast.model import limits
from outlast.model.terms import Mechanism


class LeftInStep:
    """Decide about ranks that left in a step. It has no state of its own."""

    def __init__(self, run: RunParts, stop: StopRequest, regroup: RegroupMachine) -> None:
        self.run = run
        self.stop = stop
        self.regroup = regroup

    def on_done(self, now_s: float, member: Member) -> list[Output]:
        """Give the other ranks time to leave at the same place, now that one has ended there."""
        if not member.script.left_in_step:
            return []
        return [set_timer(Timer.LEFT, now_s + limits.LEFT_IN_STEP_S)]

    def on_timer(self, now_s: float) -> list[Output]:
        """Treat the ranks that have left as lost, if another rank is still there."""
        left = self._left(before_steps=False)
        if not left:
            return []
        if not self.run.lifecycle.is_in(Stage.TRAINING):
            # Another fault is being handled, and may take them along.
            return [set_timer(Timer.LEFT, now_s + limits.LEFT_IN_STEP_S)]
        return self._blame(now_s, left)

    def blame(self, now_s: float) -> list[Output]:
        """Book a fault of each rank that has left, because a collective of another rank failed.

        This includes ranks that left before run.steps.
        """
        return self._blame(now_s, self._left(before_steps=True))

    def _blame(self, now_s: float, left: list[Member]) -> list[Output]:
        run = self.run
        others = [m for m in run.roster.live() if not m.script.finished]
        if not others or self.stop.by_signal or self.stop.end is not None:
            return []
        out: list[Output] = []
        for member in left:
            where = "in the middle of a step" if member.script.left_in_step else "before run.steps"
            ended, member.life.done = member.life.dead, False
            member.script.finished = member.script.left_in_step = False
            why = (
                f"rank {member.rank} (pid {member.process.pid}) has left the script {where}, with"
                f" exit code 0, and rank {others[0].rank} has not"
            )
            member.life.condemned = not ended
            out += self.regroup.fault(
                now_s, member, Mechanism.EXIT, None, "the script left with exit code 0", "", why
            )
            if not ended:
                out += run.kill(now_s, [member], why)
        return out

    def _left(self, *, before_steps: bool) -> list[Member]:
        return [
            m
            for m in self.run.roster.members()
            if m.script.left_in_step
            or (before_steps and m.life.done and m.script.registered and not m.script.attached)
        ]
