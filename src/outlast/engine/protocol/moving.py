"""Who goes where: the plan of each member of a generation, given once there is a store; spares and forks for lost ranks.

    _move         survivors go on in their processes
    _restart_all  all ranks come anew: at once, or after a survivor has handed its state over

This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outlast.engine.coordinator.members import Member
from outlast.engine.placement import place
from outlast.engine.protocol.ending import Ending
from outlast.engine.protocol.outputs import FindCheckpoint, Output, Record, SetTimer, Tell, ToAgent
from outlast.engine.protocol.plans import Plans, with_store
from outlast.engine.protocol.state import Restart, Stage, Transfer
from outlast.engine.rare import rare
from outlast.engine.recovery import RecoveryVerdict
from outlast.engine.restore import RestoreVerdict, decide_replicated, decide_sharded
from outlast.model import limits
from outlast.model.messages import Donated, KillWorker, Regroup, StartStore, StartWorker, StoreUp
from outlast.model.terms import Rung


class Moving(Ending):
    """Plans."""

    def _launch_all(self, now_s: float) -> list[Output]:
        """All ranks anew, from `self._restart`."""
        self._next_generation(self._restart.step)
        self.stage = Stage.STARTING
        out: list[Output] = []
        start = self._restart
        plans = self._plans(start)
        homes = place(range(self.options.world_size), homes=self.roster.homes, room=self._room(()))
        for rank in range(self.options.world_size):
            member = self.roster.add(rank=rank, kind="rank", home=homes[rank], now_s=now_s)
            member.plan = plans.of(*self._of_rank(rank, start.private, start.step, start.checkpoint))  # the remains of its predecessor are known
            out.append(ToAgent(StartWorker(member.worker, rank, "rank", self.generation), member.home))
        out.append(SetTimer("move", now_s + limits.BOOT_DEADLINE_S))
        return [*self._record_places(now_s), self._record_generation(now_s), *out, SetTimer("spares", now_s + limits.SPARE_PLAIN_WAIT_S)]

    def _plans(self, start: Restart, *own: str, **common: Any) -> Plans:
        """Of the generation that begins, from `start`. `own`: what they differ in, beside what each rank has of its own."""
        host, port = self._store or ("", 0)
        plain = {"settle": "none", "then": "start", "donor": -1, "donate": False, "replicated": start.replicated}
        return Plans(
            "private", "checkpoint", "high_water", *own, generation=self.generation, rank=-1, world_size=self.options.world_size,
            store_host=host, store_port=port, step=start.step, fault_s=self._fault_s, detected_s=self._detected_s,
            **{name: value for name, value in (plain | common).items() if name not in own},
        )  # fmt: skip

    def _of_rank(self, rank: int, private: str, step: int, checkpoint: str = "") -> tuple[str, str, int]:
        """`private`, `checkpoint` and `high_water` of its plan."""
        if private == "slot":
            private, checkpoint = self._own_state(rank, step, checkpoint)
        return private, checkpoint, max(self.roster.done(rank), self.options.start.step)

    def _own_state(self, rank: int, step: int, checkpoint: str) -> tuple[str, str]:
        """Where a rank's private state of `step` lies, if it is to read it: `private` and `checkpoint`."""
        roster = self.roster
        if not roster.sharded and not roster.lies_sealed(rank, step):
            if step == 0:
                rare("a rank that nobody has begun")
                return "none", checkpoint  # nobody has come so far in this rank: what the script makes is the state before the first step
            durable, folder = self._newest_checkpoint
            if (durable, folder) == (step, self._begun_from):  # nobody reads a checkpoint that was not read as a whole before
                rare("a rank that has sealed nothing since all began from a checkpoint")
                return "checkpoint", folder
        if not roster.has_images(rank):
            rare("a rank's private state is lost with its node")
            return "none", checkpoint
        if not roster.sharded and roster.lacks(rank, step):
            rare("a rank's private state is of another step")  # all began anew from an older one, before a node came back with what they start from now
            return "none", checkpoint
        return "slot", checkpoint

    def _send_plans(self, members: Iterable[Member]) -> list[Output]:
        """Once to each: to a member that listens, as soon as there is a store, and only while the generation is still to be."""
        if self._store is None or self.stage not in (Stage.STARTING, Stage.MOVING, Stage.HANDOVER):
            return []
        return self._tell((member, plan) for member in members if (plan := self._due_plan(member)) is not None)

    def _on_store_up(self, message: StoreUp) -> list[Output]:
        """Whoever waits for it is told: plans were made while another one was there, or none."""
        self._store = (message.host, message.port)
        members = [member for member in self.roster.members() if member.plan is not None]
        plans = with_store((member.plan for member in members if member.plan is not None), host=message.host, port=message.port)
        for member in members:
            member.plan = plans[id(member.plan)]
        return self._send_plans(members)

    def _due_plan(self, member: Member) -> Regroup | None:
        """What it is to be told now. Who enters main's function again forgets its state: nobody is told to before a donor's image is sealed."""
        plan = member.plan
        if plan is None or not member.greeted or member.dead or plan.generation != self.generation or member.told >= plan.generation:
            return None
        if plan.replicated == "transfer" and not plan.donate and (self._donating or self._donated is None):
            rare("a plan waits for the donor's image")
            return None
        member.told, member.still, member.place = plan.generation, None, 0
        member.victim = False  # of the last generation: how this one ends for it is another matter
        return plan

    def _ask_store(self, now_s: float, reason: str) -> list[Output]:
        """Written down first: to a coordinator that comes after this one, stores of lower numbers mean nothing."""
        self._stores += 1
        self._store_home = self.nodes.first(self.links.ends)
        noted = [] if self.nodes.local else [Record(self.event(now_s, "store", {"number": self._stores, "node": self._store_home}), at_once=True)]
        return [*noted, ToAgent(StartStore(reason, self._stores), self._store_home)]

    # --- survivors go on -----------------------------------------------------------------------------------------

    def _move(self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict, start: Restart | None) -> list[Output]:
        """Survivors go on in their processes; lost ranks are given to spares or forks."""
        step = restore.step if restore.step is not None else start.step if start is not None else 0
        self._next_generation(step)
        self.stage = Stage.MOVING
        out: list[Output] = []
        homes = self._homes_for(verdict)
        for rank, worker in verdict.replace.items():
            out += self._replace(now_s, rank, worker, homes[rank])
        sharded = self.roster.sharded
        reenter = verdict.survivors == "reenter"
        heal = frozenset() if sharded else frozenset(range(self.options.world_size)) if reenter else frozenset(restore.heal)
        donates = bool(heal) and restore.donor >= 0 and not (reenter and self._lies_there(step, restore.phases))
        replays = restore.replay and verdict.survivors == "in_place"
        plans = self._plans(
            Restart(step), "replicated", "settle", "then", "donate", "replay", donor=restore.donor, phases=restore.phases, finish=restore.finish
        )
        for member in self.roster.members():
            rank, still = member.rank, member.still
            settle = restore.settle.get(rank, "none")
            fresh = settle == "none" and not (sharded and still is not None)
            in_step = still is not None and still.committed >= 0  # torn: what it holds cannot be gone on from, and it has to leave it
            healed = "none" if sharded else "transfer" if reenter else "donor" if rank in heal else "none"
            then = "start" if fresh and not (reenter and in_step) else verdict.survivors
            private = "slot" if fresh or reenter or sharded else "keep"
            member.plan = plans.of(*self._of_rank(rank, private, step), healed, settle, then, donates and rank == restore.donor, fresh and replays)
            member.joined, member.finished, member.committed_s = False, False, None
        if donates:
            self._await_image(step)
        out += self._send_plans(self.roster.members())
        # Nobody can be in before a donor has handed over: that wait is its own.
        deadline = limits.REGROUP_DEADLINE_S if donates or (verdict.rung in (Rung.REPEAT, Rung.SPARE) and not reenter) else limits.BOOT_DEADLINE_S
        return [*self._record_places(now_s), self._record_generation(now_s), *out, SetTimer("move", now_s + deadline)]

    def _homes_for(self, verdict: RecoveryVerdict) -> dict[int, str]:
        """Of each rank that is replaced: its spare's node, or where there is room."""
        homes = {rank: self.roster.spare(worker).home for rank, worker in verdict.replace.items() if worker >= 0}
        room = self._room(member for member in self.roster.live() if member.rank not in verdict.replace)
        for home in homes.values():
            room[home] -= 1
        return homes | place([rank for rank in verdict.replace if rank not in homes], homes=self.roster.homes, room=room)

    def _placeless(self) -> list[int]:
        """Ranks without a holder for whom there is no room. Those that have come to their end need none, unless all come anew."""
        live = self.roster.live()
        anew = self.stage is not Stage.LEAVING
        without = sorted(set(range(self.options.world_size)).difference([member.rank for member in live]))
        empty = [rank for rank in without if anew or not self.roster.is_done(rank)]
        return empty[sum(max(room, 0) for room in self._room(live).values()) :]

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
            if (home := self.nodes.least_spares(self.roster.spares())) is None:
                rare("all nodes that are left are barred")
                break
            spare = self.roster.add(rank=-1, kind=kind, home=home, now_s=now_s)
            out.append(ToAgent(StartWorker(spare.worker, -1, kind, self.generation), spare.home))
        return out

    # --- all come anew -------------------------------------------------------------------------------------------

    def _restore(self) -> RestoreVerdict:
        """What everybody goes on from, by what lives and what lies sealed."""
        holdings = self.roster.holdings()
        if not self.roster.sharded:
            return decide_replicated(holdings=holdings, planned=self._planned)
        restore, (durable, _) = decide_sharded(holdings=holdings), self._newest_checkpoint
        if restore.step is not None and restore.step < durable:
            rare("images that are older than a checkpoint")
            return RestoreVerdict(None, {}, -1, (), f"the images of step {restore.step} are older than the checkpoint of step {durable}")
        return restore

    def _start_anew(self, restore: RestoreVerdict, *, finished: bool) -> Restart | None:
        """What all ranks begin from if they come anew; None: a survivor has to hand over first."""
        if self.roster.way == "plain":
            return self._from_checkpoint()
        if self._source_lives() and restore.step is None and self._restart.step == self.step and self.budgets.at_step < limits.REPEATS_PER_STEP_COUNT:
            rare("all begin again from what they began from")
            return self._restart  # nobody has got further than where all began: what they began from is still there, unless that is the fault
        if self.roster.sharded:
            return self._from_checkpoint() if restore.step is None else Restart(restore.step, "none", "slot")
        if (finished or restore.step is None) and self._donated is not None and self._donated.step == self.step:
            rare("all begin from a transfer image whose donor is gone")
            return Restart(self.step, "transfer", "slot")
        return self._from_checkpoint() if restore.step is None else None

    def _source_lives(self) -> bool:
        """What all ranks begin from is there. Not so if who was to hand over died before it had, or the node that it lay on is lost."""
        if self.roster.sharded and self._restart.private == "slot" and not all(map(self.roster.has_images, range(self.options.world_size))):
            rare("what all began from is lost with a node")
            return False
        if self._restart.step < self._newest_checkpoint[0] or self._restart.checkpoint not in ("", self._newest_checkpoint[1]):
            return False  # there is more by now; or it was refused since
        there = -1 if self._donated is None else self._donated.step  # a node that comes back may have found an older one
        return self._restart.replicated != "transfer" or self._restart.step == there

    def _restart_all(self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict, start: Restart | None) -> list[Output]:
        if start is None:
            return self._hand_over(now_s, restore)
        self._restart = start
        return self._clear(now_s, verdict.reason)

    def _hand_over(self, now_s: float, restore: RestoreVerdict) -> list[Output]:
        """One survivor writes the replicated state where its successors find it; then all come anew."""
        assert restore.step is not None
        self.stage = Stage.HANDOVER
        self._next_generation(restore.step)
        self._restart = Restart(restore.step, "transfer", "slot")
        self._await_image(restore.step)
        donor = self.roster.holder(restore.donor)
        settle = restore.settle[donor.rank]
        plans = self._plans(self._restart, settle=settle, then="exit", donor=donor.rank, donate=True)
        donor.plan = plans.of(*self._of_rank(donor.rank, self._restart.private, restore.step, self._restart.checkpoint))
        out = [*self._record_places(now_s), self._record_generation(now_s), *self._send_plans([donor])]
        return [*out, SetTimer("handover", now_s + limits.REGROUP_DEADLINE_S)]

    def _await_image(self, step: int) -> None:
        """A donor is about to write one: over that which is there, unless it is of the same step. Whoever has begun anew since may have nothing else."""
        self._donating = True
        if self._donated is not None and self._donated.step != step:
            self._donated = None

    def _on_donated(self, now_s: float, message: Donated, donor: Member) -> list[Output]:
        if message.generation != self.generation:
            rare("donated for a generation that is over")
        if message.generation == self.generation:
            self._donating = False
            phases = donor.plan.phases if donor.plan is not None and donor.plan.step == message.step else -1
            self._donated = Transfer(message.generation, message.step, donor.home, phases)
            if self.stage is Stage.HANDOVER:
                return self._clear(now_s, "state is handed over")
            plans = self._send_plans(self.roster.members())
            return [*plans, SetTimer("move", now_s + limits.BOOT_DEADLINE_S)]
        return []

    def _lies_there(self, step: int, phases: int) -> bool:
        """What a donor would write. Unless it is what fails."""
        there = self._donated is not None and (self._donated.step, self._donated.phases) == (step, phases)
        if there:
            rare("the transfer image is there already")
        return there and self.budgets.at_step < limits.REPEATS_PER_STEP_COUNT

    def _donor(self) -> Member | None:
        """Of the newest plan; None: there is none, or it has handed over."""
        return next((m for m in self.roster.live() if m.plan is not None and m.plan.donate), None) if self._donating else None

    def _from_checkpoint(self) -> Restart:
        step, folder = self._newest_checkpoint
        return Restart(step, "checkpoint", "checkpoint", folder) if folder else Restart()

    def _clear(self, now_s: float, reason: str) -> list[Output]:
        """All are killed; once they are confirmed dead, all come anew from `self._restart`."""
        self.stage = Stage.CLEARING
        living = [member for member in self.roster.live() if not member.condemned]  # of the others the end is awaited
        out: list[Output] = [SetTimer("handover", None), *self._kill(now_s, living, reason)]
        return [*out, *self._when_cleared(now_s)]

    def _when_cleared(self, now_s: float, *, looked: bool = False) -> list[Output]:
        """`looked`: what all begin from has just been read, and is good."""
        if self._several_end or self.roster.any_live() or self.nodes.returning:
            return []
        if self._short_of_places():
            rare("all come anew, and there is too little room")
            return [SetTimer("kill", None), SetTimer("nodes", now_s + limits.NODE_WAIT_S)]
        if not self._source_lives():
            rare("what all were to begin from is lost while they are killed")
            self._begin_from(self._from_checkpoint())
        if not looked and self._has_to_look():
            return self._look_for_checkpoint()
        plain = self.roster.way == "plain"
        self.roster.clear()
        out: list[Output] = [SetTimer("kill", None), SetTimer("nodes", None)]
        if plain:  # torch keys what a script's own init_process_group says by nothing that changes: a new store forgets the dead
            self._store = None
            out += self._ask_store(now_s, "a new store for a new start")
        self.step = self._restart.step
        return [*out, *self._launch_all(now_s)]

    def _begin_from(self, restart: Restart) -> int:
        """All are killed, and it shows that they begin from `restart` instead: so many steps further back."""
        further, self._restart = self._restart.step - restart.step, restart
        self.interruptions.went_further_back(steps=further)
        return further

    # --- from a checkpoint ---------------------------------------------------------------------------------------

    def _has_to_look(self) -> bool:
        """Whether somebody has to read the checkpoints first: what was good when it was written may not be so any more."""
        return self.options.durable and self.roster.way != "plain" and self._restart.private != "slot" and self._restart.replicated != "transfer"

    def _look_for_checkpoint(self) -> list[Output]:
        if self._looking:
            return []
        self._looking = True
        return [FindCheckpoint()]

    def on_checkpoint_found(self, *, now_s: float, step: int, folder: str, refused: tuple[str, ...]) -> list[Output]:
        """The newest good one, or step 0 and no folder; `refused`: newer ones that are not, and why."""
        self._looking = False
        self._newest_checkpoint, self._begun_from = (step, folder), folder
        out: list[Output] = []
        for why in refused:
            out += [self._event(now_s, "checkpoint_refused", {"why": why}), Tell(f"warning: a checkpoint was refused: {why}")]
        if self.stage is not Stage.CLEARING or not self._has_to_look():
            rare("what all begin from has changed while checkpoints were read")
            return out
        if self._begin_from(self._start_anew(self._restore(), finished=True) or self._from_checkpoint()) > 0:
            rare("the newest checkpoint is not good any more")
        out += self._records()
        return [*out, *self._when_cleared(now_s, looked=True)]
