"""From the first sign of a fault to the decision: companions are gathered, survivors leave their collectives and say what they hold.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.members import Member
from outlast.engine.placement import offers
from outlast.engine.protocol.faults import Faults
from outlast.engine.protocol.outputs import End, Output, SetTimer
from outlast.engine.protocol.state import Restart, Stage
from outlast.engine.rare import rare
from outlast.engine.recovery import RecoveryVerdict, Situation, decide_rung, replacing
from outlast.engine.restore import RestoreVerdict
from outlast.model import limits
from outlast.model.messages import Inventory, Leave
from outlast.model.terms import Rung


class Leaving(Faults):
    """Decides once every live member stands still and every lost one is confirmed dead: its rank may be given away."""

    def _after_gathering(self, now_s: float) -> list[Output]:
        self.stage = Stage.LEAVING
        reason = self.interruptions.open[-1].reason if self.interruptions.open else "regroup"
        live = self.roster.live()
        for member in live:
            member.joined = False
        leaves = {told: Leave(told, reason) for told in {member.told for member in live}}
        out = self._tell((member, leaves[member.told]) for member in live if member.answers_leave and member.still is None)
        deadline = limits.LEAVE_DEADLINE_S + limits.LEAVE_STEPS * self.roster.step_s + limits.RANK_HEARD_S * self.options.world_size
        if not all(member.attached for member in live):
            deadline = limits.REGROUP_DEADLINE_S
        return [*out, SetTimer("leave", now_s + deadline), *self._check_left(now_s)]

    def _on_inventory(self, now_s: float, members: list[Member], message: Inventory) -> list[Output]:
        for member in (still := [member for member in members if member.told == message.generation]):
            self.roster.note_done(member.rank, message.committed)
            member.still, member.attached = message, member.attached or message.committed >= 0
            if member.attached:  # though nobody has heard yet that it joined
                self.roster.now_attached(member.rank)
        if len(still) < len(members):
            rare("an inventory of a generation that is over")
        if not still:
            return []
        self._note_word(message.committed, max(message.passed, message.committed))
        return self._check_left(now_s) if self.stage is Stage.LEAVING else []

    def _check_left(self, now_s: float) -> list[Output]:
        """Go on once every live member stands still and every lost one is confirmed dead: its rank may be given away."""
        if self.roster.first("not still", lambda m: m.answers_leave and m.still is None) is not None:
            return []
        if self.roster.first("not dead", lambda m: m.condemned and not m.dead) is not None:
            return []
        if self._several_end or self.roster.strays or self.nodes.returning:
            return []
        if self._short_of_places():
            rare("a lost rank finds no place")
            return [SetTimer("leave", None), SetTimer("nodes", now_s + limits.NODE_WAIT_S)]
        waits = self._wait_for_links(now_s)
        return [SetTimer("leave", None), SetTimer("nodes", None), *(self._decide(now_s) if waits is None else waits)]

    def _wait_for_links(self, now_s: float) -> list[Output] | None:
        """Who was in the last generation could not form its group. None: the next one can be tried now."""
        if not self.links:
            return None
        if self.links.is_out(now_s=now_s):
            rare("a link stays cut for too long")
            return self._stop_now(now_s, End(1, "failed", f"{self.links.reason}, for {limits.NODE_WAIT_S:g} s", self._user_error[1]))
        if now_s < self.links.retry_s:
            rare("the next generation waits for a link")
            return [SetTimer("links", self.links.retry_s)]
        if self._store_home in self.links.ends and self.nodes.first(self.links.ends) not in self.links.ends:
            rare("the store moves to where all can reach it")
            self._store = None
            return [*self._ask_store(now_s, self.links.reason), *self._decide(now_s)]
        return None

    def _decide(self, now_s: float) -> list[Output]:
        sharded, restore = self.roster.sharded, self._restore()
        self._note_step(self.roster.committed_by_all(), 0)  # the beacons were read up to a tick ago, and a dead rank's counts only with its end
        finished = any(m.finished or m.done for m in self.roster.members())
        torn = [] if sharded or restore.step is None or finished else self.roster.torn(restore)
        if torn:  # alive, but what it holds is neither step: it comes anew
            rare("a live rank's state is torn")
            return self._kill_those(now_s, torn, "failed after the step was applied; its state is torn")
        start = self._start_anew(restore, finished=finished)
        verdict = self._choose(restore, start, finished=finished)
        given_up = [m for m in self.roster.live() if m.rank in verdict.replace]
        if given_up:  # a process that cannot get over the step: killed, and confirmed dead, before its rank is given away
            rare("a live rank cannot get over the step")
            self._verdict = verdict
            return self._kill(now_s, given_up, verdict.reason)
        self._verdict = None
        self.interruptions.acquit({m.rank: m.pid for m in self.roster.live()})
        self._book(now_s, verdict, restore, start)
        out = self._records()
        if verdict.rung is Rung.STOP:
            return [*out, *self._stop_now(now_s, End(1, "failed", verdict.reason, self._user_error[1]))]
        if verdict.survivors == "exit" and self._end is not None:
            return [*out, *self._stop_now(now_s, self._end)]  # a stop was asked for: nobody is started anew for it
        if verdict.survivors != "exit":
            return [*out, *self._move(now_s, verdict, restore, start)]
        return [*out, *self._restart_all(now_s, verdict, restore, start)]

    def _choose(self, restore: RestoreVerdict, start: Restart | None, *, finished: bool) -> RecoveryVerdict:
        """The rung; one that was chosen already is kept, and extended to those that were lost since."""
        lost = tuple(sorted(m.rank for m in self.roster.members() if m.dead))  # the order in which spares are offered for them
        moving, drained = self._moving_away(lost, restore, finished=finished), self._drained
        self._drained = frozenset()  # whatever befalls them from now on is paid for
        parked = self.roster.parked()
        spares = self._offers((*lost, *moving) or tuple(sorted(self._raised)))
        chosen = self._verdict
        if chosen is not None and len(lost) < self.options.world_size:
            if set(lost) - set(chosen.replace):
                rare("another rank is lost once the rung is chosen")
            sources = {rank: worker if worker in parked else -1 for rank, worker in chosen.replace.items()}
            return replacing(dict.fromkeys(lost, -1) | sources, way=chosen.survivors)
        way = self.roster.way
        unattached = way == "respawn" and not any(m.attached for m in self.roster.live())  # it is the way of any script that is not at run.steps yet
        stands = way == "plain" or not (finished or unattached or (restore.step is None and way == "in_place"))
        if not stands:
            rare("nobody stands in a step with the state of it")
        situation = Situation(
            lost=(*lost, *moving), raised=tuple(sorted(self._raised - set(lost))), way=way if stands else "respawn",
            state=restore.step is not None or (start is not None and start.replicated == "transfer"),
            committed=self.step, reached=self._here[1], error=self._user_error[0], trained=self._trained,
            stands=stands, free=not self._raised and (drained.issuperset(lost) if drained else bool(self.links) and not lost),
        )  # fmt: skip
        return decide_rung(situation=situation, spares=spares, budgets=self.budgets, world_size=self.options.world_size)

    def _moving_away(self, lost: tuple[int, ...], restore: RestoreVerdict, *, finished: bool) -> tuple[int, ...]:
        """Live ranks that are given up for their node's sake, if nothing else has happened, and somebody elsewhere has all that is to be gone on from."""
        drained = self._drained
        if not drained:
            return ()
        if lost or self._raised or finished or drained.issuperset(restore.settle) or not self._fits_elsewhere(drained):
            rare("a drain is called off")
            return ()
        return tuple(sorted(drained))

    def _offers(self, ranks: tuple[int, ...]) -> list[int]:
        """For each of `ranks`, the worker number of the spare that may take it, or -1. Empty: there is none."""
        theirs = frozenset(ranks)
        room = self._room(member for member in self.roster.live() if member.rank not in theirs)
        ready = [(worker, self.roster.spare(worker).home) for worker in self.roster.parked()]
        found = offers(ranks, homes=self.roster.homes, spares=ready, room=room)
        workers = [found.get(rank, (-1, ""))[0] for rank in ranks]
        return workers if max(workers, default=-1) >= 0 else []

    def _book(self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict, start: Restart | None) -> None:
        """Of steps that were executed: how many are executed again, and how many that were committed are not any more."""
        committed, executed = self._here
        if restore.step is not None and not self.roster.sharded:
            cut = restore.begun and not restore.over and "forward" not in restore.settle.values()
            step, again = restore.step, int(cut)
            if not self._cut_short:
                again = max(0, again - sum(one.steps_repeated for one in self.interruptions.open[:-1]))
        else:
            assert start is not None
            step = start.step
            again = max(0, executed - step)
        why = "; ".join([*([self.links.reason] if self.links else []), verdict.reason, restore.reason])
        self.interruptions.left(now_s=now_s, rung=verdict.rung, reason=why, repeated=again, lost=max(0, committed - step))
