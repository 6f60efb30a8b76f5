"""The end of a process: well, or a fault; and what is left of it. This module is pure."""

from __future__ import annotations

from outlast.engine.coordinator.members import Member
from outlast.engine.protocol.leaving import Leaving
from outlast.engine.protocol.outputs import End, Output
from outlast.engine.protocol.state import Stage
from outlast.engine.rare import rare
from outlast.model.messages import WorkerExited


class Exits(Leaving):
    """By the kernel's word, or because the node is gone."""

    def _on_exit(self, now_s: float, message: WorkerExited) -> list[Output]:
        if message.worker in self.roster.strays:
            rare("one that had lost its rank before has ended")
            del self.roster.strays[message.worker]
            if self.stage is Stage.STOPPING:
                return self._when_stopped(now_s)
            return self._check_left(now_s) if self.stage is Stage.LEAVING else []
        member = self.roster.of(message.worker)
        if member is None or member.dead:
            rare("an end is said twice, or too late")
            return []
        member.dead = True
        if member.rank < 0:
            return self._on_spare_exit(now_s, member, message)
        self._note_word(message.committed, max(message.committed, *message.prepared, 0))
        self.roster.note_done(member.rank, message.committed)
        self.roster.bury(member, message)
        if self.stage is Stage.STOPPING:
            return self._when_stopped(now_s)
        if self.stage is Stage.CLEARING:
            return self._when_cleared(now_s)
        if self._ended_well(member, message):
            return self._on_done(now_s, member)
        out = self._fault_of_exit(now_s, member, message)
        return [*out, *self._check_left(now_s)] if self.stage is Stage.LEAVING else out

    def _on_done(self, now_s: float, member: Member) -> list[Output]:
        member.done = True
        if self.roster.first("not done", lambda m: not m.done) is None:
            if self._end is None:
                if self.interruptions.open:
                    rare("one that was taken for hung has come to its end after all")
                self.interruptions.resumed(at_s=now_s, generation=self.generation + 1)
            # Written down before anybody is killed for it: whoever coordinates next has to know that the interruptions are over.
            return [*self._records(), *self._finish(now_s, self._end or End(0, "ended", "all ranks ended well", ""))]
        return self._check_left(now_s) if self.stage is Stage.LEAVING else []
