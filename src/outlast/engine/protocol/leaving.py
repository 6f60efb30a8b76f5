"""From the first sign of a fault to the decision: companions are gathered, survivors leave their collectives and say what they hold.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.protocol.faults import Faults
from outlast.engine.protocol.members import Member
from outlast.engine.protocol.outputs import End, Output, SetTimer, ToAgent
from outlast.engine.protocol.state import Stage
from outlast.engine.recovery import Situation, decide_rung
from outlast.engine.restore import decide_replicated, decide_sharded
from outlast.model import limits
from outlast.model.messages import Inventory, KillWorker, Leave, ToWorker
from outlast.model.terms import Rung


class Leaving(Faults):
    """Decides once every live member stands still and every lost one is confirmed dead: its rank may be given away."""

    def _after_gathering(self, now_s: float) -> list[Output]:
        self.stage = Stage.LEAVING
        reason = self.interruptions.open[-1].reason if self.interruptions.open else "regroup"
        out: list[Output] = []
        for member in self.roster.live():
            member.joined = False
            if member.answers_leave and member.still is None:
                out.append(ToAgent(ToWorker(member.worker, Leave(self.generation, reason))))
        deadline = limits.LEAVE_DEADLINE_S + limits.LEAVE_STEPS * self.roster.step_s
        if any(not m.attached for m in self.roster.live()):
            deadline = limits.REGROUP_DEADLINE_S
        return [*out, SetTimer("leave", now_s + deadline), *self._check_left(now_s)]

    def _on_inventory(self, now_s: float, member: Member, message: Inventory) -> list[Output]:
        if message.generation != self.generation:
            return []
        member.still = message
        self._note_step(0 if self.roster.sharded else message.committed, max(message.passed, message.committed))
        return self._check_left(now_s) if self.stage is Stage.LEAVING else []

    def _check_left(self, now_s: float) -> list[Output]:
        """Go on once every live member stands still and every lost one is confirmed dead: its rank may be given away."""
        if any(m.condemned and not m.dead for m in self.roster.members()):
            return []
        if any(m.answers_leave and m.still is None for m in self.roster.live()):
            return []
        return [SetTimer("leave", None), *self._decide(now_s)]

    def _decide(self, now_s: float) -> list[Output]:
        sharded = self.roster.sharded
        holdings = self.roster.holdings()
        restore = decide_sharded(holdings=holdings) if sharded else decide_replicated(holdings=holdings)
        finished = any(m.finished or m.done for m in self.roster.members())
        torn = [] if sharded or restore.step is None or finished else self.roster.torn(restore)
        if torn:  # alive, but what it holds is neither step: it comes anew
            return self._kill_those(now_s, torn, "failed after the step was applied; its state is torn")
        lost = tuple(m.rank for m in self.roster.members() if m.dead)
        way = "respawn" if finished and self.roster.way != "plain" else self.roster.way
        situation = Situation(
            lost=lost, raised=tuple(sorted(self._raised - set(lost))), way=way, state=restore.step is not None or (finished and self._donated is not None),
            committed=self.step, error=self._user_error[0], trained=self._trained,
        )  # fmt: skip
        verdict = self._verdict or decide_rung(situation=situation, spares=self.roster.parked(), budgets=self.budgets, world_size=self.options.world_size)
        if not sharded and verdict.survivors == "reenter" and restore.step is None:
            raise AssertionError(f"re-entry without state: {situation}")
        given_up = [m for m in self.roster.live() if m.rank in verdict.replace]
        if given_up:  # a process that cannot get over the step: killed, and confirmed dead, before its rank is given away
            self._verdict = verdict
            for member in given_up:
                member.condemned = True
            return [ToAgent(KillWorker(member.worker, verdict.reason)) for member in given_up]
        self._verdict = None
        step = restore.step if restore.step is not None else self._restart_step()
        in_flight = 0 if any(way == "forward" for way in restore.settle.values()) else 1
        self.interruptions.left(
            now_s=now_s, rung=verdict.rung, reason=f"{verdict.reason}; {restore.reason}",
            repeated=max(0, self.executed - step) if sharded or restore.step is None else in_flight, lost=max(0, self.step - step),
        )  # fmt: skip
        out = self._records()
        if verdict.rung is Rung.STOP:
            return [*out, *self._stop_now(now_s, End(1, "failed", verdict.reason, self._user_error[1]))]
        if verdict.survivors == "exit" and self._end is not None:
            return [*out, *self._stop_now(now_s, self._end)]  # a stop was asked for: nobody is started anew for it
        if verdict.survivors != "exit":
            return [*out, *self._move(now_s, verdict, restore)]
        return [*out, *self._restart_all(now_s, verdict, restore, finished)]
