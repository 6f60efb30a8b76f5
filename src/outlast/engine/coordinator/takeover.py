"""A coordinator takes over a run whose coordinator has died.

It reconstructs the state of the run from the ledger and from what the agents house. Training does
not stop meanwhile.

    REBUILDING ──all nodes have enrolled, or are known to be lost───┐
        ┌───────────────────────────────────────────────────────────┘
        ├──> TRAINING    all ranks are in one generation
        ├──> STARTING    all processes of a script without outlast calls run
        └──> GATHERING   anything else: the next generation is made

An interruption that ended during the takeover is closed at that time. A decision of the last
coordinator that was not carried out is lost, and is made again. This module is pure.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field

from outlast.engine.coordinator.fault_reports import FaultReports
from outlast.engine.coordinator.member import Member, MemberLife, MemberPath, MemberProcess
from outlast.engine.coordinator.node_changes import NodeChanges
from outlast.engine.coordinator.orders import event, lost_node
from outlast.engine.coordinator.policy_actions import PolicyActions, PolicyHistory
from outlast.engine.coordinator.process_exit import ProcessExits, lost_with_node
from outlast.engine.coordinator.rank_history import RankHistory
from outlast.engine.coordinator.regroup import RegroupMachine
from outlast.engine.coordinator.remains import ScriptFacts
from outlast.engine.coordinator.restore_sources import Restart, Transfer
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage, Timer, cancel, set_timer
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.protocol.outputs import End, Output
from outlast.engine.protocol.reliable_link import rebased
from outlast.model import limits
from outlast.model.messages import (
    Broke,
    Committed,
    Donated,
    Enrol,
    Finished,
    FromAgent,
    FromWorker,
    FromWorkers,
    Hello,
    Housed,
    Images,
    Inventory,
    Joined,
    Parked,
    Registered,
    Sealed,
    Underway,
    WorkerExited,
)
from outlast.model.records import Event, Generation, Interruption, Record
from outlast.model.terms import Mechanism

_NOT_COME = "did not come to the new coordinator before its lease was void"


@dataclass(slots=True)
class RecoveredEnd:
    """The end of the run that the last coordinator had decided.

    end         what it ends with; None: it goes on
    at_once     it ends before the step in flight is committed
    by_signal   its workers were sent SIGTERM
    """

    end: End | None = None
    at_once: bool = False
    by_signal: bool = False


@dataclass(slots=True)
class RecoveredState:
    """This is what the ledger tells a coordinator that comes after another one.

    generation      the newest generation that was begun; 0: none was
    script          what is known of the script
    homes           the node of each rank
    stores          how many orders for a store were given
    ending          whether the run is to end, and how
    nodes           the nodes that were in, each with its session
    interruptions   the interruptions, by id
    checkpoint      step and folder of the newest checkpoint that was written
    history         on which nodes each rank has lived
    policy_history  what the policy has done
    """

    generation: int = 0
    script: ScriptFacts = field(default_factory=ScriptFacts)
    homes: dict[int, str] = field(default_factory=dict)
    stores: int = 0
    ending: RecoveredEnd = field(default_factory=RecoveredEnd)
    nodes: dict[str, int] = field(default_factory=dict)
    interruptions: dict[int, Interruption] = field(default_factory=dict)
    checkpoint: tuple[int, str] = (0, "")
    history: RankHistory = field(default_factory=RankHistory)
    policy_history: PolicyHistory = field(default_factory=PolicyHistory)

    def take(self, record: Record) -> None:
        """Learn from the next record. They come in the order in which they were written."""
        if isinstance(record, Generation):
            self.generation = max(self.generation, record.generation)
        elif isinstance(record, Interruption):
            self.interruptions[record.id] = record
        elif isinstance(record, Event):
            self._take_event(record)

    def _take_event(self, event: Event) -> None:
        if event.kind == "script":
            self.script.learn(outlast=True, sharded=bool(event.data["sharded"]))
        elif event.kind == "alike":
            ranks = tuple(typing.cast("list[int]", event.data["ranks"]))
            self.script.alike.append((ranks, bool(event.data["alike"])))
        elif event.kind == "placed":
            homes = dict.fromkeys(
                typing.cast("list[int]", event.data["ranks"]), str(event.data["node"])
            )
            self.homes |= homes
            # written down before the generation in which they live there
            self.history.note(self.generation + 1, homes)
            self.history.domains[str(event.data["node"])] = str(event.data["domain"])
        elif event.kind == "store":
            self.stores = typing.cast(int, event.data["number"])
        elif event.kind == "ending":
            code, data = typing.cast(int, event.data["exit_code"]), event.data
            end = End(code, str(data["state"]), str(data["reason"]), "")
            self.ending = RecoveredEnd(end, bool(data["at_once"]), bool(data["by_signal"]))
        elif event.kind == "checkpoint":
            self.checkpoint = max(
                self.checkpoint, (typing.cast(int, event.data["step"]), str(event.data["folder"]))
            )
        elif event.kind == "node_joined":
            self.nodes[str(event.data["node"])] = typing.cast(int, event.data["session"])
        elif event.kind == "node_lost":
            self.nodes.pop(str(event.data["node"]), None)
        else:
            self.policy_history.take(event)


@dataclass(frozen=True, slots=True)
class FoundOnNodes:
    """Collect what agents report that they house, until the state is reconstructed. The lists grow.

    awaited     nodes that had enrolled with the last coordinator, and have not come yet
    lost        nodes that are not waited for any more, each with the reason
    adopted     processes, as the last coordinator knew them
    exits       ends of processes that the last coordinator may not have heard of
    broke       reports of members that could not go on in their generation
    images      what the ended holders of each rank had committed
    early       messages that came before the state was reconstructed, and the node of each
    """

    awaited: set[str]
    lost: dict[str, str] = field(default_factory=dict)
    adopted: list[Member] = field(default_factory=list)
    exits: list[WorkerExited] = field(default_factory=list)
    broke: list[tuple[Member, Broke]] = field(default_factory=list)
    images: list[Images] = field(default_factory=list)
    early: list[tuple[FromWorker | FromAgent | FromWorkers, str]] = field(default_factory=list)

    def ended(self) -> set[int]:
        """Return the workers that are known to have ended."""
        return {one.worker for one in self.exits}


class Takeover:
    """Reconstruct the state for a new coordinator, and go on from it."""

    def __init__(
        self,
        run: RunParts,
        stop: StopRequest,
        regroup: RegroupMachine,
        exits: ProcessExits,
        reports: FaultReports,
        changes: NodeChanges,
        policy: PolicyActions,
    ) -> None:
        self.run = run
        self.stop = stop
        self.regroup = regroup
        self.exits = exits
        self.reports = reports
        self.changes = changes
        self.policy = policy
        self._found = FoundOnNodes(set())

    # --- what the last coordinator knew ----------------------------------------------------------

    def recover(self, state: RecoveredState) -> None:
        """Give each part what the ledger says of it. Call it before `begin`."""
        run = self.run
        run.roster.script.learn(outlast=state.script.outlast, sharded=state.script.sharded)
        run.roster.remains.remember(state.homes)
        for ranks, alike in state.script.alike:
            run.roster.remains.learn_alike(ranks, alike=alike)
        run.store.recover(state.stores)
        ending = state.ending
        self.stop.recover(ending.end, at_once=ending.at_once, by_signal=ending.by_signal)
        run.sources.written(*state.checkpoint)
        run.interruptions.recover(state.interruptions.values())
        run.history.recover(state.history)
        run.nodes.recover(state.history.domains)
        self.policy.recover(state.policy_history)
        for one in run.interruptions.open:
            fault_s = one.fault_s or one.detected_s
            run.faults.set_times(fault_s=fault_s, detected_s=one.detected_s)

    def begin(self, now_s: float, *, nodes: tuple[str, ...], patience_s: float) -> list[Output]:
        """Wait for `nodes`, which had enrolled with the last coordinator.

        Nodes that do not come within `patience_s` house nothing any more.
        """
        run = self.run
        run.lifecycle.enter(Stage.REBUILDING)
        run.progress.set_generation_live(True)  # all reports from now on are of the newest plan
        self._found = FoundOnNodes(set(nodes))
        noted = event(now_s, "coordinator_rebuilt", {"nodes": list(nodes)})
        return [noted, set_timer(Timer.REBUILD, now_s + patience_s), *self.policy.rearm()]

    # --- the picture is built --------------------------------------------------------------------

    def adopts(self, node: str) -> bool:
        """Return True while what `node` houses belongs to the run."""
        return self.run.lifecycle.is_in(Stage.REBUILDING) and node in self._found.awaited

    def node_joined(self, now_s: float, enrol: Enrol, by_s: float) -> list[Output]:
        """Adopt what a node houses. `by_s`: from its clock to the coordinator's."""
        run, found = self.run, self._found
        run.nodes.join(
            enrol.node,
            enrol.capacity,
            place=enrol.place,
            serves=enrol.serves,
            domain=enrol.domain,
        )
        run.note_of_rank(enrol.step, enrol.step)
        if enrol.store is not None and enrol.store.number >= run.store.orders:
            run.store.note_found(enrol.store, enrol.node)
        self.changes.find_images(enrol)
        found.images.extend(enrol.images)
        for housed in enrol.housed:
            self._adopt(housed, enrol.node, by_s, now_s)
        found.awaited.discard(enrol.node)
        return [] if found.awaited else self._rebuilt(now_s)

    def node_does_not_come(self, now_s: float, node: str, reason: str) -> list[Output]:
        """Go on without a node that will not come."""
        found = self._found
        if node not in found.awaited:
            return []
        found.awaited.discard(node)
        found.lost[node] = reason
        noted = lost_node(now_s, node, reason)
        return noted if found.awaited else [*noted, *self._rebuilt(now_s)]

    def node_lost(self, now_s: float, node: str, reason: str) -> None:
        """Note that a node is lost during the takeover, with all processes found there."""
        gone = self._found.ended()
        for member in self._found.adopted:
            if member.home == node and member.worker not in gone:
                self._found.exits.append(lost_with_node(member, now_s, reason))

    def keep_for_later(self, message: FromWorker | FromAgent | FromWorkers, node: str) -> None:
        """Keep a message until the state is reconstructed. `node`: the node that it came from."""
        self._found.early.append((message, node))

    def take_kept(self) -> list[tuple[FromWorker | FromAgent | FromWorkers, str]]:
        """Return what was kept, once."""
        kept = list(self._found.early)
        self._found.early.clear()
        return kept

    def _adopt(self, housed: Housed, node: str, by_s: float, now_s: float) -> None:
        """Make a member of a process that a node houses, as the last coordinator knew it."""
        member = Member(
            housed.worker,
            housed.rank,
            housed.kind,
            now_s,
            home=node,
            process=MemberProcess(pid=housed.pid),
            path=MemberPath(plan=housed.plan),
            life=MemberLife(condemned=housed.killed),
        )
        member.path.plan_generation = 0 if housed.plan is None else housed.plan.generation
        self.run.lifecycle.saw_generation(member.path.plan_generation)
        for said in housed.said:
            self._take_up(member, rebased(said, by_s))
        self._found.adopted.append(member)
        if housed.exited is not None:
            self._found.exits.append(rebased(housed.exited, by_s))

    def _take_up(self, member: Member, said: object) -> None:
        """Take in an old message of a worker, as the last coordinator did, without acting on it."""
        run = self.run
        match said:
            case Hello():
                member.process.hello_seen = member.process.running = True
            case Parked():
                member.process.parked = member.rank < 0
            case Registered():
                member.script.register(said)
                run.roster.script.learn(outlast=True, sharded=said.sharded)
                if said.alike:
                    run.roster.remains.learn_alike(said.alike)
            case Donated():
                run.sources.find_transfer(Transfer(said.generation, said.step, member.home))
            case Underway():
                member.path.come_to(said.place)
            case Inventory():
                member.path.inventory = said
                member.script.attached = member.script.attached or said.committed >= 0
                run.note_of_rank(said.committed, max(said.passed, said.committed))
            case Joined():
                member.path.joined = member.script.attached = True
            case Committed():
                if said.is_new:
                    member.path.committed_s = said.at_s
                run.roster.remains.note_done(member.rank, said.step)
                run.progress.note_trained()
            case Sealed():
                member.script.seals_in = said.generation
            case Finished():
                member.script.finished = True
                member.script.left_in_step = said.in_step
            case Broke():
                member.path.note_break(said.mechanism)
                self._found.broke.append((member, said))
                if said.mechanism == "exception":
                    member.path.raised = (said.error, said.traceback)
            case _:
                pass  # says nothing that lasts

    # --- the picture is whole --------------------------------------------------------------------

    def on_timer(self, now_s: float) -> list[Output]:
        """Go on without the nodes that did not come in time."""
        awaited, out = sorted(self._found.awaited), []
        for node in awaited:
            out += self.node_does_not_come(now_s, node, f"node {node} {_NOT_COME}")
        return out if awaited else self._rebuilt(now_s)

    def _rebuilt(self, now_s: float) -> list[Output]:
        """Give the processes that were found their ranks. Go on with training or a regroup."""
        run = self.run
        out: list[Output] = [cancel(Timer.REBUILD), *self._seat(now_s)]
        self._note_progress()
        out += self._resumed_meanwhile(now_s)
        if self.stop.end is not None and self.stop.at_once:
            return [*out, *self._end_at_once(now_s, self.stop.end)]
        world = range(run.options.world_size)
        lost = [rank for rank in world if run.roster.in_rank(rank) is None]
        members = run.roster.members()
        generation = run.lifecycle.generation
        # Each rank has a process, and all of them are in the newest generation.
        whole = not lost and not run.roster.orphans
        whole = whole and all(m.path.plan_generation == generation for m in members)
        if whole and all(map(_at_work, members)):
            run.lifecycle.enter(Stage.TRAINING)
            run.progress.set_generation_live(True)
            out += self._goes_on(now_s)
        elif (
            whole
            and not run.roster.outlast
            and all(m.process.running and not m.life.condemned for m in members)
        ):
            # All processes of a script without outlast calls are at work.
            # The run stays in STARTING, because such a script never joins.
            run.lifecycle.enter(Stage.STARTING)
            out += [*run.resumed(now_s, now_s), *self._goes_on(now_s)]
        else:
            out += self._not_whole(now_s, lost)
        if run.store.address is None:
            out += run.order_store(now_s, "the new coordinator knows of none")
        for exited in self._found.exits:
            out += self.exits.on_exit(now_s, exited)
        return [*out, *run.records()]

    def _note_progress(self) -> None:
        """Note the step of the newest plan that was found, and what ended processes committed.

        A plan that no worker has received has undone nothing, although its generation is recorded.
        """
        run = self.run
        plans = [m.path.plan for m in run.roster.members() if m.path.plan is not None]
        newest = max(plans, key=lambda plan: plan.generation, default=None)
        source = run.sources.transfer or run.sources.begin_from
        generation, planned = (newest.generation, newest.step) if newest else (0, source.step)
        run.progress.note_plan_start(planned)
        for images in self._found.images:
            self.changes.note_ended(images, generation, planned)
        run.progress.set_generation_live(False)

    def _seat(self, now_s: float) -> list[Output]:
        """Give each rank to the newest process that was found in it.

        An older one was to be killed by the last coordinator, and is killed now.
        """
        run, roster = self.run, self.run.roster
        out: list[Output] = []
        gone = self._found.ended()
        for member in sorted(self._found.adopted, key=lambda m: (m.path.plan_generation, m.worker)):
            other = roster.in_rank(member.rank) if member.rank >= 0 else None
            if other is not None and other.worker not in gone:
                # Another process holds the same rank: the older one is killed.
                roster.adopt_orphan(other)
                out += run.kill(now_s, [other], "another process was given its rank")
            roster.assign(member)
        for member, broke in self._found.broke:
            if broke.generation == run.lifecycle.generation:
                self.reports.note_links(now_s, member, broke)
        # The deaths of condemned processes are awaited only up to a deadline.
        dying = [m for m in roster.live() if m.life.condemned and m.worker not in gone]
        return [*out, *run.kill(now_s, dying, "its end is awaited")]

    def _end_at_once(self, now_s: float, end: End) -> list[Output]:
        """End the run at once, as the coordinator before this one had decided.

        It is known by now which processes live.
        """
        lifecycle = self.run.lifecycle
        lifecycle.enter(Stage.STOPPING)
        out: list[Output] = []
        for exited in self._found.exits:
            out += self.exits.on_exit(now_s, exited)
        return out if lifecycle.is_in(Stage.ENDED) else [*out, *self.stop.kill_all(now_s, end)]

    def _goes_on(self, now_s: float) -> list[Output]:
        """Let all go on with their work, unless the run was to end after the step in flight."""
        stop = self.stop.softly(now_s) if self.stop.end is not None else []
        return [set_timer(Timer.SPARES, now_s + limits.SPARE_REFILL_DELAY_S), *stop]

    def _resumed_meanwhile(self, now_s: float) -> list[Output]:
        """Close interruptions if the first new step was committed without a coordinator.

        That commit is not reported again. Under sharded state it counts only if the processes of
        all ranks have said so.
        """
        run = self.run
        present = [
            m for m in run.roster.members() if m.path.plan_generation == run.lifecycle.generation
        ]
        at_s = run.first_commit_s(present)
        return [] if at_s is None else run.resumed(now_s, at_s)

    def _not_whole(self, now_s: float, lost: list[int]) -> list[Output]:
        """Make the next generation, because not all members are in the present one.

        If no generation was ever begun, begin the run.
        """
        run = self.run
        if not run.lifecycle.generation:
            return self._nothing_begun(now_s)
        out = self._add_dead_holders(now_s, lost)
        if run.sources.transfer is not None:
            run.sources.choose(Restart(run.sources.transfer.step, "transfer", "slot"))
        for member in run.roster.live():
            if member.path.raised is not None:
                out += self._take_up_error(now_s, member, member.path.raised)
        if not run.interruptions.open:
            out += self._book_lost_nodes(now_s, lost)
        if not run.interruptions.open:
            first, kind = run.roster.holder(0), Mechanism.LOST_CONTACT
            out += self.regroup.fault(now_s, first, kind, None, "", "", "")
        found = f"ranks {lost} had no process" if lost else "a regroup was under way"
        why = f"{found} when another coordinator took over; the reason is lost with the one before"
        run.interruptions.excuse(reason=why)
        run.lifecycle.enter(Stage.GATHERING)
        return [*out, set_timer(Timer.GATHER, now_s + limits.COMPANION_WAIT_S)]

    def _book_lost_nodes(self, now_s: float, lost: list[int]) -> list[Output]:
        """Book the loss of nodes that did not come, as one fault of the ranks that lived there."""
        run, out = self.run, []
        for rank in lost:
            holder = run.roster.holder(rank)
            if holder.home in self._found.lost:
                holder.process.host = holder.home
                joins = bool(run.interruptions.open)
                out += self.regroup.fault(
                    now_s,
                    holder,
                    Mechanism.LOST_NODE,
                    None,
                    "",
                    "",
                    self._found.lost[holder.home],
                    joins=joins,
                )
        return out

    def _nothing_begun(self, now_s: float) -> list[Output]:
        """Begin the run, or wait for its nodes: no process was ever started."""
        self.run.lifecycle.enter(Stage.ENROLLING)
        begun = self.changes.begin_if_all_are_in(now_s)
        return (
            [set_timer(Timer.NODES, now_s + self.run.options.enrol_wait_s)]
            if begun is None
            else begun
        )

    def _add_dead_holders(self, now_s: float, lost: list[int]) -> list[Output]:
        """Give each rank without a process a dead holder, and kill a donor that was given up."""
        run, roster = self.run, self.run.roster
        for rank in lost:  # its process is gone, and it is not known how it ended
            home = roster.homes.get(rank, "")
            member = roster.add(rank=rank, kind="rank", now_s=now_s, home=home)
            member.life.dead = member.life.condemned = True
        given_up = [
            m for m in roster.live() if m.path.plan is not None and m.path.plan.then == "exit"
        ]
        if not given_up:
            return []
        # The coordinator before this one had decided to kill this donor.
        return run.kill(now_s, given_up, "it was given up by its plan")

    def _take_up_error(self, now_s: float, member: Member, error: tuple[str, str]) -> list[Output]:
        """Book the error of a member that raised and lives, unless an open interruption has it."""
        run = self.run
        run.faults.note_raised(member.rank, error)
        known = run.interruptions.open
        if any(member.process.pid in one.pids for one in known):
            return []
        joins = bool(known) and known[-1].generation == run.lifecycle.generation
        why, kind = f"rank {member.rank} raised", Mechanism.EXCEPTION
        return self.regroup.fault(now_s, member, kind, None, *error, why, joins=joins)


def _at_work(member: Member) -> bool:
    """Return True if `member` trains: it has joined, and has had no fault since."""
    broken = member.path.raised is not None or member.path.collateral
    return member.path.joined and member.path.inventory is None and not broken
