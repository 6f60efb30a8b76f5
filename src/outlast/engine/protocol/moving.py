"""Who goes where: the plan of each member of a generation, given once there is a store; spares and forks for lost ranks.

    _move         survivors go on in their processes
    _restart_all  all ranks come anew: at once, or after a survivor has handed its state over

This module is pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outlast.engine.placement import place
from outlast.engine.protocol.ending import Ending
from outlast.engine.protocol.members import Member
from outlast.engine.protocol.outputs import Output, SetTimer, ToAgent
from outlast.engine.protocol.state import Restart, Stage
from outlast.engine.rare import rare
from outlast.engine.recovery import RecoveryVerdict
from outlast.engine.restore import RestoreVerdict
from outlast.model import limits
from outlast.model.messages import Donated, KillWorker, Regroup, StartStore, StartWorker, ToWorker
from outlast.model.terms import Rung


class Moving(Ending):
    """Plans."""

    def _launch_all(self, now_s: float) -> list[Output]:
        """All ranks anew, from `self._restart`."""
        self.generation += 1
        self._planned = self._restart.step
        self.stage = Stage.STARTING
        out: list[Output] = []
        homes = place(range(self.options.world_size), homes=self.roster.homes, room=self.nodes.room(()))
        for rank in range(self.options.world_size):
            member = self.roster.add(rank=rank, kind="rank", home=homes[rank], now_s=now_s)
            member.plan = self._start_plan(rank, self._restart)  # the remains of its predecessor are known
            out.append(ToAgent(StartWorker(member.worker, rank, "rank", self.generation), member.home))
        out.append(SetTimer("move", now_s + limits.BOOT_DEADLINE_S))
        return [*self._record_places(now_s), self._record_generation(now_s), *out, SetTimer("spares", now_s + limits.SPARE_PLAIN_WAIT_S)]

    def _start_plan(self, rank: int, start: Restart, **changes: Any) -> Regroup:
        """Of a process that begins in `rank` from `start`; `changes`: of one that goes on."""
        private = start.private
        if private == "slot" and start.step == 0 and not self.roster.sharded and not self.roster.lies_sealed(rank, 0):
            rare("a rank that nobody has begun")
            private = "none"  # nobody has come so far in this rank: what the script makes is the state before the first step
        if private == "slot" and not self.roster.has_images(rank):
            rare("a rank's private state is lost with its node")
            private = "none"
        host, port = self._store or ("", 0)
        plan: dict[str, Any] = {
            "generation": self.generation, "rank": rank, "world_size": self.options.world_size, "store_host": host, "store_port": port, "settle": "none",
            "then": "start", "step": start.step, "donor": -1, "donate": False, "replicated": start.replicated, "private": private,
            "checkpoint": start.checkpoint, "high_water": max(self.roster.done(rank), self.options.start.step), "fault_s": self._fault_s,
            "detected_s": self._detected_s,
        }  # fmt: skip
        return Regroup(**(plan | changes))

    def _send_plan(self, member: Member) -> list[Output]:
        """Once: to a member that listens, as soon as there is a store, and only while the generation is still to be.

        Who enters main's function again forgets its state: nobody is told to before a donor's image is sealed.
        """
        plan = member.plan
        if plan is None or not member.greeted or member.dead or self._store is None:
            return []
        if plan.generation != self.generation or member.told >= plan.generation or self.stage not in (Stage.STARTING, Stage.MOVING, Stage.HANDOVER):
            return []
        if plan.replicated == "transfer" and not plan.donate and self._donated is None:
            rare("a plan waits for the donor's image")
            return []
        member.told, member.still, member.place = plan.generation, None, 0
        member.victim, member.raised = False, None  # of the last generation: how this one ends for it is another matter
        if (plan.store_host, plan.store_port) != self._store:
            plan = replace(plan, store_host=self._store[0], store_port=self._store[1])
        return [ToAgent(ToWorker(member.worker, plan), member.home)]

    def _ask_store(self, reason: str) -> list[Output]:
        self._stores += 1
        self._store_home = self.nodes.first()
        return [ToAgent(StartStore(reason, self._stores), self._store_home)]

    # --- survivors go on -----------------------------------------------------------------------------------------

    def _move(self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict, start: Restart | None) -> list[Output]:
        """Survivors go on in their processes; lost ranks are given to spares or forks."""
        step = restore.step if restore.step is not None else start.step if start is not None else 0
        self.generation += 1
        self._planned = step
        self.stage = Stage.MOVING
        out: list[Output] = []
        homes = self._homes_for(verdict)
        for rank, worker in verdict.replace.items():
            out += self._replace(now_s, rank, worker, homes[rank])
        sharded = self.roster.sharded
        reenter = verdict.survivors == "reenter"
        heal = () if sharded else tuple(range(self.options.world_size)) if reenter else restore.heal
        for member in self.roster.members():
            fresh = member.rank not in restore.settle and not (sharded and member.still is not None and member.rank not in verdict.replace)
            in_step = member.still is not None and member.still.committed >= 0  # torn: what it holds cannot be gone on from, and it has to leave it
            healed = "none" if sharded else "transfer" if reenter else "donor" if member.rank in heal else "none"
            member.plan = self._start_plan(
                member.rank, Restart(step, healed, "slot" if fresh or reenter or sharded else "keep"),
                settle=restore.settle.get(member.rank, "none"), then="start" if fresh and not (reenter and in_step) else verdict.survivors, donor=restore.donor,
                donate=member.rank == restore.donor and bool(heal), phases=restore.phases,
                replay=fresh and restore.replay and verdict.survivors == "in_place", finish=restore.finish,
            )  # fmt: skip
            member.joined, member.finished, member.committed_s = False, False, None
        if any(member.plan is not None and member.plan.donate for member in self.roster.members()):
            self._donated = None  # is about to be written over
        out += [output for member in self.roster.members() for output in self._send_plan(member)]
        donates = self._donor() is not None  # nobody can be in before it has: that wait is its own
        deadline = limits.REGROUP_DEADLINE_S if donates or (verdict.rung in (Rung.REPEAT, Rung.SPARE) and not reenter) else limits.BOOT_DEADLINE_S
        return [*self._record_places(now_s), self._record_generation(now_s), *out, SetTimer("move", now_s + deadline)]

    def _homes_for(self, verdict: RecoveryVerdict) -> dict[int, str]:
        """Of each rank that is replaced: its spare's node, or where there is room."""
        homes = {rank: self.roster.spare(worker).home for rank, worker in verdict.replace.items() if worker >= 0}
        room = self.nodes.room(member for member in self.roster.live() if member.rank not in verdict.replace)
        for home in homes.values():
            room[home] -= 1
        return homes | place([rank for rank in verdict.replace if rank not in homes], homes=self.roster.homes, room=room)

    def _placeless(self) -> list[int]:
        """Ranks without a holder for whom there is no room. Those that have come to their end need none, unless all come anew."""
        live = {member.rank: member for member in self.roster.live()}
        anew = self.stage is not Stage.LEAVING
        empty = [rank for rank in range(self.options.world_size) if rank not in live and (anew or not self.roster.is_done(rank))]
        return empty[sum(max(room, 0) for room in self.nodes.room(live.values()).values()) :]

    def _short_of_places(self) -> bool:
        return not self.nodes.local and bool(self._placeless())

    def _replace(self, now_s: float, rank: int, worker: int, home: str) -> list[Output]:
        if worker >= 0:
            self.roster.promote(worker, rank, now_s=now_s)
            return []
        member = self.roster.add(rank=rank, kind="rank", home=home, now_s=now_s)
        return [ToAgent(StartWorker(member.worker, rank, "rank", self.generation), home)]

    def _refill_spares(self, now_s: float) -> list[Output]:
        if self.stage in (Stage.STOPPING, Stage.ENDED) or self._spare_failures >= limits.SPARE_FAILURES_COUNT:
            return []
        kind = self.options.spare_kind if self.roster.outlast and not self._spare_failures else "warm"
        out: list[Output] = []
        for spare in self.roster.spares():
            if spare.kind == "warm" and kind == "hot" and not spare.condemned:  # made while nobody knew that the script can park
                rare("a warm spare makes room for a hot one")
                spare.condemned = True
                out.append(ToAgent(KillWorker(spare.worker, "a hot spare takes its place"), spare.home))
        for _ in range(self.options.spares - len(self.roster.spares())):
            spare = self.roster.add(rank=-1, kind=kind, home=self.nodes.least_spares(self.roster.spares()), now_s=now_s)
            out.append(ToAgent(StartWorker(spare.worker, -1, kind, self.generation), spare.home))
        return out

    # --- all come anew -------------------------------------------------------------------------------------------

    def _start_anew(self, restore: RestoreVerdict, *, finished: bool) -> Restart | None:
        """What all ranks begin from if they come anew; None: a survivor has to hand over first."""
        if self.roster.way == "plain":
            return self._from_checkpoint()
        there = self._restart.replicated != "transfer" or self._donated is not None  # False: who was to hand over died before it had
        if self.roster.sharded and self._restart.private == "slot" and not all(map(self.roster.has_images, range(self.options.world_size))):
            rare("what all began from is lost with a node")
            there = False
        if there and restore.step is None and self._restart.step == self.step and self.budgets.at_step < limits.REPEATS_PER_STEP_COUNT:
            rare("all begin again from what they began from")
            return self._restart  # nobody has got further than where all began: what they began from is still there, unless that is the fault
        if self.roster.sharded:
            return self._from_checkpoint() if restore.step is None else Restart(restore.step, "none", "slot")
        if (finished or restore.step is None) and self._donated is not None and self._donated[1] == self.step:
            rare("all begin from a transfer image whose donor is gone")
            return Restart(self.step, "transfer", "slot")
        return self._from_checkpoint() if restore.step is None else None

    def _restart_all(self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict, start: Restart | None) -> list[Output]:
        if start is None:
            return self._hand_over(now_s, restore)
        self._restart = start
        return self._clear(now_s, verdict.reason)

    def _hand_over(self, now_s: float, restore: RestoreVerdict) -> list[Output]:
        """One survivor writes the replicated state where its successors find it; then all come anew."""
        assert restore.step is not None
        self.stage = Stage.HANDOVER
        self.generation += 1
        self._planned = restore.step
        self._restart = Restart(restore.step, "transfer", "slot")
        self._donated = None
        donor = self.roster.holder(restore.donor)
        settle = restore.settle[donor.rank]
        donor.plan = self._start_plan(donor.rank, self._restart, settle=settle, then="exit", donor=donor.rank, donate=True)
        return [*self._record_places(now_s), self._record_generation(now_s), *self._send_plan(donor), SetTimer("handover", now_s + limits.REGROUP_DEADLINE_S)]

    def _on_donated(self, now_s: float, message: Donated, home: str) -> list[Output]:
        if message.generation != self.generation:
            rare("donated for a generation that is over")
        if message.generation == self.generation:
            self._donated, self._donor_home = (message.generation, message.step), home
            if self.stage is Stage.HANDOVER:
                return self._clear(now_s, "state is handed over")
            plans = [output for member in self.roster.members() for output in self._send_plan(member)]
            return [*plans, SetTimer("move", now_s + limits.BOOT_DEADLINE_S)] if self.stage is Stage.MOVING else plans
        return []

    def _donor(self) -> Member | None:
        """Of the newest plan; None: there is none, or it has handed over."""
        return next((m for m in self.roster.live() if m.plan is not None and m.plan.donate), None) if self._donated is None else None

    def _from_checkpoint(self) -> Restart:
        step, folder = self._newest_checkpoint
        return Restart(step, "checkpoint", "checkpoint", folder) if folder else Restart()

    def _clear(self, now_s: float, reason: str) -> list[Output]:
        """All are killed; once they are confirmed dead, all come anew from `self._restart`."""
        self.stage = Stage.CLEARING
        out: list[Output] = [SetTimer("handover", None), *self._kill(now_s, self.roster.live(), reason)]
        return [*out, *self._when_cleared(now_s)]

    def _when_cleared(self, now_s: float) -> list[Output]:
        if self._several_end or self.roster.live() or self.nodes.returning:
            return []
        if self._short_of_places():
            rare("all come anew, and there is too little room")
            return [SetTimer("kill", None), SetTimer("nodes", now_s + limits.NODE_WAIT_S)]
        plain = self.roster.way == "plain"
        self.roster.clear()
        out: list[Output] = [SetTimer("kill", None), SetTimer("nodes", None)]
        if plain:  # torch keys what a script's own init_process_group says by nothing that changes: a new store forgets the dead
            self._store = None
            out += self._ask_store("a new store for a new start")
        if not self._restart.checkpoint and self._restart.step == 0:
            self.step = 0
        return [*out, *self._launch_all(now_s)]
