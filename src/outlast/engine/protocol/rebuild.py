"""A coordinator after another one that died: its picture is built from what the agents house; training does not stop meanwhile.

    REBUILDING ──all nodes have enrolled, or their leases are void──> TRAINING       all ranks are in one generation
                                                                 ├──> STARTING       all processes of a script without outlast calls run
                                                                 └──> GATHERING      anything else: the next generation

What was interrupted, and went on meanwhile, is over since then. What the last coordinator had decided and nobody has carried out is lost, and decided again.
This module is pure.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field

from outlast.engine.cluster.reliable_link import rebased
from outlast.engine.coordinator.members import Member
from outlast.engine.coordinator.rank_history import RankHistory
from outlast.engine.protocol.acting import Acted, Acting
from outlast.engine.protocol.outputs import End, Output, SetTimer
from outlast.engine.protocol.state import Restart, Stage, Transfer
from outlast.engine.rare import rare
from outlast.model import limits
from outlast.model.messages import (
    Broke,
    Committed,
    Donated,
    Enrol,
    Finished,
    Hello,
    Housed,
    Inventory,
    Joined,
    Parked,
    Registered,
    StoreUp,
    Underway,
    WorkerExited,
)
from outlast.model.records import Event, Generation, Interruption, Record
from outlast.model.terms import Mechanism


@dataclass(slots=True)
class Remembered:
    """What the ledger tells a coordinator that comes after another. `outlast`, `sharded`: what is known of the script; `homes`: rank -> node;
    `end`: what the run is to end with, at once or after the step in flight;
    `nodes`: those that were in, each with its session; `interruptions`: by id;
    `checkpoint`: step and folder of the newest that was written; `lived`: where each rank did; `acted`: what came of the policy.
    """

    generation: int = 0
    outlast: bool = False
    sharded: bool = False
    homes: dict[int, str] = field(default_factory=dict)
    stores: int = 0  # orders for one
    end: End | None = None
    ends_at_once: bool = False
    ends_by_signal: bool = False
    nodes: dict[str, int] = field(default_factory=dict)
    interruptions: dict[int, Interruption] = field(default_factory=dict)
    checkpoint: tuple[int, str] = (0, "")
    lived: RankHistory = field(default_factory=RankHistory)
    acted: Acted = field(default_factory=Acted)

    def take(self, record: Record) -> None:
        """In the order in which they were written."""
        if isinstance(record, Generation):
            self.generation = max(self.generation, record.generation)
        elif isinstance(record, Interruption):
            self.interruptions[record.id] = record
        elif isinstance(record, Event):
            self._take_event(record)

    def _take_event(self, event: Event) -> None:
        if event.kind == "script":
            self.outlast, self.sharded = True, self.sharded or bool(event.data["sharded"])
        elif event.kind == "placed":
            homes = dict.fromkeys(typing.cast("list[int]", event.data["ranks"]), str(event.data["node"]))
            self.homes |= homes
            self.lived.note(self.generation + 1, homes)  # written down before the generation in which they live there
        elif event.kind == "store":
            self.stores = typing.cast(int, event.data["number"])
        elif event.kind == "ending":
            self.ends_at_once, self.ends_by_signal = bool(event.data["at_once"]), bool(event.data["by_signal"])
            self.end = End(typing.cast(int, event.data["exit_code"]), str(event.data["state"]), str(event.data["reason"]), "")
        elif event.kind == "checkpoint":
            self.checkpoint = max(self.checkpoint, (typing.cast(int, event.data["step"]), str(event.data["folder"])))
        elif event.kind == "node_joined":
            self.nodes[str(event.data["node"])] = typing.cast(int, event.data["session"])
        elif event.kind == "node_lost":
            self.nodes.pop(str(event.data["node"]), None)
        else:
            self.acted.take(event)


class Rebuilding(Acting):
    """Called by the hub."""

    def rebuild(self, *, now_s: float, nodes: tuple[str, ...], patience_s: float) -> list[Output]:
        """`nodes` had enrolled with the last coordinator. Those that do not come within `patience_s` house nothing any more."""
        self.stage = Stage.REBUILDING
        self._awaited = set(nodes)
        self._adopted: list[Member] = []
        self._exits: list[WorkerExited] = []
        self._cut_off: list[tuple[Member, Broke]] = []
        return [self._event(now_s, "coordinator_rebuilt", {"nodes": list(nodes)}), SetTimer("rebuild", now_s + patience_s), *self._rearm()]

    def remember(self, remembered: Remembered) -> None:
        """Before `rebuild`."""
        self.roster.outlast, self.roster.sharded = remembered.outlast, remembered.sharded
        self.roster.remember(remembered.homes)
        self._stores = remembered.stores
        self._end, self._ends_at_once, self._by_signal = remembered.end, remembered.ends_at_once, remembered.ends_by_signal
        self._newest_checkpoint = max(self._newest_checkpoint, remembered.checkpoint)
        self.interruptions.open = [one for one in remembered.interruptions.values() if one.resumed_s is None]
        for one in remembered.interruptions.values():
            self.interruptions.know(one)
        self.lived = remembered.lived
        self.recall(remembered.acted)
        for one in self.interruptions.open:
            self._fault_s, self._detected_s = one.fault_s or one.detected_s, one.detected_s

    def adopts(self, node: str) -> bool:
        """Whether what `node` houses belongs to the run: only while the picture is built."""
        return self.stage is Stage.REBUILDING and node in self._awaited

    def node_joined(self, *, now_s: float, enrol: Enrol, by_s: float) -> list[Output]:
        if self.stage is not Stage.REBUILDING:
            return super().node_joined(now_s=now_s, enrol=enrol, by_s=by_s)
        self.nodes.join(enrol.node, enrol.capacity)
        self._note_word(enrol.step, enrol.step)
        if enrol.store is not None and enrol.store.number >= self._stores:
            self._store_up(enrol.store, enrol.node)
        elif enrol.store is not None:
            rare("a node hosts a store that another one took the place of")
        self._find_images(enrol)
        for housed in enrol.housed:
            self._adopt(housed, enrol.node, by_s, now_s)
        self._awaited.discard(enrol.node)
        return [] if self._awaited else self._rebuilt(now_s)

    def node_lost(self, *, now_s: float, node: str, reason: str, returns: bool = False) -> list[Output]:
        if self.stage is Stage.REBUILDING:
            gone = {one.worker for one in self._exits}
            for member in self._adopted:
                if member.home == node and member.worker not in gone:
                    rare("what was found alive is gone before the picture is whole")
                    member.node_lost = reason
                    self._exits.append(WorkerExited(member.worker, member.pid, None, None, False, -1, (), (), "", now_s, None, reason))
        return super().node_lost(now_s=now_s, node=node, reason=reason, returns=returns)

    def _store_up(self, store: StoreUp, node: str) -> None:
        self._store, self._stores, self._store_home = (store.host, store.port), store.number, node

    def _adopt(self, housed: Housed, node: str, by_s: float, now_s: float) -> None:
        member = Member(housed.worker, housed.rank, housed.kind, now_s, home=node, pid=housed.pid, plan=housed.plan, condemned=housed.killed)
        member.told = 0 if housed.plan is None else housed.plan.generation
        self.generation = max(self.generation, member.told)
        for said in housed.said:
            self._take_up(member, rebased(said, by_s))
        self._adopted.append(member)
        if housed.exited is not None:
            self._exits.append(rebased(housed.exited, by_s))

    def _take_up(self, member: Member, said: object) -> None:
        """As the last coordinator took it, without acting on it."""
        if isinstance(said, Hello):
            member.greeted = member.running = True
        elif isinstance(said, Parked):
            member.parked = member.rank < 0
        elif isinstance(said, Registered):
            member.way, member.sharded, member.registered, member.attached = said.way, said.sharded, True, said.step >= 0
            member.registration = said
            self.roster.outlast, self.roster.sharded = True, self.roster.sharded or said.sharded
        elif isinstance(said, Donated):
            self._find_transfer(Transfer(said.generation, said.step, member.home))
        elif isinstance(said, Underway):
            member.place = said.place
        elif isinstance(said, Inventory):
            member.still, member.attached = said, member.attached or said.committed >= 0
            self._note_word(said.committed, max(said.passed, said.committed))
        elif isinstance(said, Joined):
            member.joined = member.attached = True
        elif isinstance(said, Committed):
            member.committed_s = said.at_s
            self.roster.note_done(member.rank, said.step)
            self._trained = True
        elif isinstance(said, Finished):
            member.finished = True
        elif isinstance(said, Broke):
            member.victim = said.mechanism == "collective"
            self._cut_off.append((member, said))
            if said.mechanism == "exception":
                member.raised = (said.error, said.traceback)

    # --- the picture is whole --------------------------------------------------------------------------------------

    def _on_rebuild_timer(self, now_s: float) -> list[Output]:
        rare("a node did not come back to the new coordinator")
        return self._rebuilt(now_s)

    def _rebuilt(self, now_s: float) -> list[Output]:
        """The newest in each rank holds it. Whoever else is found in it was to be killed, and is."""
        out: list[Output] = [SetTimer("rebuild", None)]
        gone = {one.worker for one in self._exits}
        for member in sorted(self._adopted, key=lambda m: (m.told, m.worker)):
            if member.rank >= 0 and (other := self.roster.in_rank(member.rank)) is not None and other.worker not in gone:
                rare("two in one rank")
                self.roster.strays[other.worker] = other
                out += self._kill(now_s, [other], "another process was given its rank")
            self.roster.seat(member)
        for member, broke in self._cut_off:
            if broke.generation == self.generation:
                self._note_links(now_s, member, broke)
        out += self._kill(now_s, [m for m in self.roster.live() if m.condemned and m.worker not in gone], "its end is awaited")  # not for ever
        out += self._resumed_meanwhile(now_s)
        if self._end is not None and self._ends_at_once:
            rare("a new coordinator ends the run")
            self.stage = Stage.STOPPING
            for exited in self._exits:
                out += self._on_exit(now_s, exited)
            return out if self.stage is Stage.ENDED else [*out, *self._stop_now(now_s, self._end)]
        lost = [rank for rank in range(self.options.world_size) if self.roster.in_rank(rank) is None]
        members = self.roster.members()
        whole = not lost and not self.roster.strays and all(m.told == self.generation for m in members)
        if whole and all(m.joined and m.still is None and m.raised is None and not m.victim for m in members):
            rare("a new coordinator finds all ranks at work")
            self.stage, self._stands = Stage.TRAINING, True
            plan = members[0].plan
            assert plan is not None
            self._planned = plan.step
            out += self._goes_on(now_s)
        elif whole and not self.roster.outlast and all(m.running and not m.condemned for m in members):
            rare("a new coordinator finds a script without outlast calls at work")
            self.stage = Stage.STARTING  # in which it stays: nothing more is known of it than that it runs
            out += [*self._resumed(now_s, now_s), *self._goes_on(now_s)]
        else:
            out += self._not_whole(now_s, lost)
        if self._store is None:
            out += self._ask_store(now_s, "the new coordinator knows of none")
        for exited in self._exits:
            out += self._on_exit(now_s, exited)
        return [*out, *self._records()]

    def _goes_on(self, now_s: float) -> list[Output]:
        """All are at work, and stay so; unless the run was to end after the step in flight."""
        return [SetTimer("spares", now_s + limits.SPARE_REFILL_DELAY_S), *(self._stop_softly(now_s) if self._end is not None else [])]

    def _take_up_error(self, now_s: float, member: Member, error: tuple[str, str]) -> list[Output]:
        """It raised, and lives. Whether the last coordinator booked that, its interruptions tell."""
        self._raised.add(member.rank)
        self._user_error = error
        known = self.interruptions.open
        if any(member.pid in one.pids for one in known):
            return []
        joins = bool(known) and known[-1].generation == self.generation
        return self._fault(now_s, member, Mechanism.EXCEPTION, None, *error, f"rank {member.rank} raised", joins=joins)

    def _resumed_meanwhile(self, now_s: float) -> list[Output]:
        """The first new step was committed while nobody coordinated: nobody says so again. Sharded: as far as all that hold a rank are there to tell."""
        told = [m for m in self.roster.members() if m.told == self.generation]
        committed = [m.committed_s for m in told if m.committed_s is not None]
        if not committed or (self.roster.sharded and len(committed) < self.options.world_size):
            return []
        rare("a new coordinator finds that the run has gone on")
        return self._resumed(now_s, max(committed) if self.roster.sharded else min(committed))

    def _not_whole(self, now_s: float, lost: list[int]) -> list[Output]:
        rare("a new coordinator finds a generation that does not stand")
        out: list[Output] = []
        if not self.generation:
            rare("a new coordinator finds that nothing was begun")
            self.stage = Stage.ENROLLING
            return self._begin(now_s) if len(self.nodes) >= self.options.nodes else [SetTimer("nodes", now_s + limits.ENROL_WAIT_S)]
        for rank in lost:  # nobody is there, and nobody says how it ended
            member = self.roster.add(rank=rank, kind="rank", now_s=now_s, home=self.roster.homes.get(rank, ""))
            member.dead = member.condemned = True
        given_up = [m for m in self.roster.live() if m.plan is not None and m.plan.then == "exit"]
        if given_up:
            rare("a new coordinator finds a donor that was to be killed")
            out += self._kill(now_s, given_up, "it was given up by its plan")
        if self._donated is not None:
            self._restart = Restart(self._donated.step, "transfer", "slot")
        plans = [m.plan for m in self.roster.members() if m.plan is not None]
        newest = max(plans, key=lambda plan: plan.generation, default=None)
        self._planned = newest.step if newest is not None else self._restart.step
        for member in self.roster.live():
            if member.raised is not None:
                out += self._take_up_error(now_s, member, member.raised)
        if not self.interruptions.open:
            out += self._fault(now_s, self.roster.holder(0), Mechanism.LOST_CONTACT, None, "", "", "")
        found = f"ranks {lost} had no process" if lost else "a regroup was under way"
        self.interruptions.excuse(reason=f"{found} when the coordinator was made anew, and why is lost with the one before")
        self.stage = Stage.GATHERING
        return [*out, SetTimer("gather", now_s + limits.COMPANION_WAIT_S)]
