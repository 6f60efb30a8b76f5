"""`RunParts`: the state of one run as its parts, and questions and orders that need several parts.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outlast.engine.budget import default_budgets
from outlast.engine.coordinator.cut_links import CutLinks
from outlast.engine.coordinator.group_store import GroupStore
from outlast.engine.coordinator.interruptions import InterruptionLog
from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.members import Roster
from outlast.engine.coordinator.node_membership import NodeMembership
from outlast.engine.coordinator.open_faults import OpenFaults
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.orders import event, kill_orders, tell_orders
from outlast.engine.coordinator.progress import StepProgress
from outlast.engine.coordinator.rank_history import RankHistory
from outlast.engine.coordinator.restore_sources import RestoreSources
from outlast.engine.coordinator.stages import Lifecycle, Stage, Timer, cancel, set_timer
from outlast.engine.protocol.outputs import Output, Record, ToAgent
from outlast.model import limits
from outlast.model.messages import ForWorker, UseStore
from outlast.model.records import NODE_AWAITED, NODE_FOUND, Event, Generation


@dataclass(frozen=True, slots=True)
class RunParts:
    """The state of one run, as the parts that own it.

    The coordinator makes one, and gives it to each component that carries out a part of its work:

        run = RunParts.begin(CoordinatorOptions(world_size=4, start=Restart()))
        run.progress.note(committed=7, executed=8)
        outputs = run.kill(now_s, run.roster.live(), "the run is stopped")

    Each part owns its fields, and only its own methods change them. The methods of `RunParts`
    itself are for what needs several parts at once: orders to workers, records for the ledger, and
    room on nodes. It lives as long as its coordinator.

    It makes no decisions (decisions.py does), and does not check the order of calls.

    options         what the launcher told the coordinator
    lifecycle       the stage and the generation
    roster          which worker holds which rank, the spares, and what dead workers have left
    nodes           the nodes on which processes can be started
    links           pairs of nodes that cannot reach each other
    progress        the newest steps committed and executed
    store           the TCPStore that process groups are built with
    sources         the images, copies and checkpoints that a generation can begin from
    interruptions   the interruptions, as the ledger records them
    faults          the faults of the present regroup, and the budgets that pay for recoveries
    history         the node of each rank, generation by generation
    """

    options: CoordinatorOptions
    lifecycle: Lifecycle
    roster: Roster
    nodes: NodeMembership
    links: CutLinks
    progress: StepProgress
    store: GroupStore
    sources: RestoreSources
    interruptions: InterruptionLog
    faults: OpenFaults
    history: RankHistory

    @classmethod
    def begin(cls, options: CoordinatorOptions) -> RunParts:
        """Return the parts of a run that has not started any process yet."""
        return cls(
            options,
            Lifecycle(generation=options.generation),
            Roster(world_size=options.world_size, next_worker=options.first_worker),
            NodeMembership(local=not options.nodes),
            CutLinks(),
            StepProgress(step=options.start.step),
            GroupStore(),
            RestoreSources(
                start=options.start,
                checkpoint=options.checkpoint,
                generation=options.generation,
                world_size=options.world_size,
            ),
            InterruptionLog(first_id=options.first_interruption),
            OpenFaults(budgets=default_budgets(options.max_restarts)),
            RankHistory(),
        )

    # --- progress ------------------------------------------------------------------------------

    def note_of_rank(self, committed: int, executed: int) -> None:
        """Note the newest steps that one rank has committed and executed."""
        self.progress.note_of_rank(committed, executed, sharded=self.roster.sharded)

    def committed_for_good(self) -> int:
        """Return the newest step of this generation that counts as committed.

        If the run keeps copies or parity on other nodes, a step counts once they are there; see
        `PeerCopies.committed` and `ParityRows.committed`.
        """
        committed, copies = self.progress.since_plan.committed, self.roster.remains.copies
        if self.options.peer_copies != 1 or not self.roster.sharded:
            # No copies are made, or not of each step: a lost node takes the steps since with it.
            return committed
        if self.options.parity is not None:
            return self.roster.remains.parity.committed(committed)
        return copies.committed(committed)

    def first_commit_s(self, members: Iterable[Member]) -> float | None:
        """Return when the first new step of this generation was committed; None: not yet.

        Under sharded state that is when the last owner has committed it, so `members` has to
        include all owners.
        """
        known = [m.path.committed_s for m in members if m.path.committed_s is not None]
        if not self.roster.sharded:
            return min(known, default=None)
        return max(known) if len(known) == self.options.world_size else None

    def resumed(self, now_s: float, at_s: float) -> list[Output]:
        """Close the interruptions before this generation: it committed a step at `at_s`."""
        if not self.interruptions.resumed(at_s=at_s, generation=self.lifecycle.generation):
            return []
        if not self.interruptions.open:
            self.faults.over()
        return [*self.records(), set_timer(Timer.SPARES, now_s + limits.SPARE_REFILL_DELAY_S)]

    # --- orders --------------------------------------------------------------------------------

    def tell(self, messages: Iterable[tuple[Member, ForWorker]]) -> list[Output]:
        """Return the orders that send each worker its message.

        Workers of one node that get the same message object share an order.
        """
        return tell_orders(messages, local=self.nodes.local)

    def spokesman(self) -> Member | None:
        """Return the member that is asked to save, if any can. Its vote informs all others."""
        able = [m for m in self.roster.live() if m.script.attached and not m.script.finished]
        return min(able, key=lambda member: member.rank, default=None)

    def kill(self, now_s: float, members: Iterable[Member], why: str) -> list[Output]:
        """Return the orders to kill `members`.

        A rank is given to another process only once its holder's death is confirmed.
        """
        return kill_orders(now_s, members, why)

    def order_store(self, now_s: float, reason: str) -> list[Output]:
        """Order a new store, if possible on a node that all others can reach."""
        return self.store.order(now_s, reason, nodes=self.nodes, avoided=self.links.ends)

    def name_store(self, nodes: Iterable[str]) -> list[Output]:
        """Tell the agents of `nodes` where the store listens, if it does.

        An agent in the coordinator's own process knows that already. Simulated agents, which serve
        no images, do not need it.
        """
        if self.nodes.local or self.store.address is None:
            return []
        named = UseStore(*self.store.address)
        return [ToAgent(named, node) for node in nodes if self.nodes.serves(node)]

    # --- records -------------------------------------------------------------------------------

    @property
    def at_once(self) -> bool:
        """Return True if a record has to be written before the outputs after it are carried out.

        That is so with several nodes, because another coordinator may take over at any time. On one
        node the coordinator dies together with everything that it leads.
        """
        return not self.nodes.local

    def records(self) -> list[Output]:
        """Return the outputs that write the interruptions that have changed to the ledger."""
        return [Record(record, at_once=self.at_once) for record in self.interruptions.changed()]

    def noted(self, now_s: float, kind: str, data: Mapping[str, object]) -> Record:
        """Return the output that writes an event which the next coordinator has to know."""
        return Record(Event(now_s, 0.0, kind, dict(data)), at_once=self.at_once)

    def record_places(self, now_s: float) -> list[Output]:
        """Write down the nodes of ranks that have moved.

        The next coordinator has to know on which node the images of a rank are valid, and which
        nodes keep copies or parity of them. That depends on the nodes' domains, too.
        """
        moved = self.roster.remains.take_moved()
        if self.nodes.local or not moved:
            return []
        self.history.note(self.lifecycle.generation, moved)
        by_node: dict[str, list[int]] = {}
        for rank, home in sorted(moved.items()):
            by_node.setdefault(home, []).append(rank)
        return [
            self.noted(
                now_s,
                "placed",
                {"node": home, "ranks": ranks, "domain": self.nodes.domains.get(home, "")},
            )
            for home, ranks in by_node.items()
        ]

    def record_generation(self, now_s: float) -> Record:
        """Write down the generation and its members, before any worker is told.

        The next coordinator must not use the number again, even if the only node that was told of
        it does not come back.
        """
        members = tuple(m.worker for m in sorted(self.roster.members(), key=lambda m: m.rank))
        generation = Generation(self.lifecycle.generation, self.options.world_size, now_s, members)
        return Record(generation, at_once=self.at_once)

    # --- room ----------------------------------------------------------------------------------

    def room(self, members: Iterable[Member]) -> dict[str, int]:
        """Return how many ranks fit on each node beside `members`.

        A barred node has room only for ranks of sharded state that live there, because their state
        is nowhere else. It has none for those whose images were moved.
        """
        room, leaving = self.nodes.room(members), self.roster.remains.leaving
        if self.roster.sharded and self.nodes.barred:
            for rank, home in self.roster.homes.items():
                if home in self.nodes.barred and home in room and rank not in leaving:
                    room[home] += 1
        return room

    def room_without(self, ranks: Iterable[int]) -> dict[str, int]:
        """Return how many ranks fit on each node once the holders of `ranks` have left."""
        leaving = frozenset(ranks)
        return self.room(member for member in self.roster.live() if member.rank not in leaving)

    def fits_elsewhere(self, ranks: frozenset[int]) -> bool:
        """Return True if `ranks` fit on other nodes than their own, beside all other ranks.

        Nodes without a connection do not count.
        """
        room, homes = self.room_without(ranks), self.roster.homes
        avoided = self.nodes.silent | {homes[rank] for rank in ranks if rank in homes}
        free = sum(max(0, count) for node, count in room.items() if node not in avoided)
        return free >= len(ranks)

    def await_node(self, now_s: float) -> list[Output]:
        """Wait for a node with room. That the run waits is written down once, for the account."""
        said = event(now_s, NODE_AWAITED, {"places": len(self.placeless())})
        begins = [] if self.nodes.awaited else [said]
        self.nodes.awaited = True
        return [*begins, set_timer(Timer.NODES, now_s + limits.NODE_WAIT_S)]

    def find_room(self, now_s: float) -> list[Output]:
        """Stop waiting for a node, if the run does: all lost ranks have room."""
        if not self.nodes.awaited:
            return []
        self.nodes.awaited = False
        return [event(now_s, NODE_FOUND, {}), cancel(Timer.NODES)]

    def lies_elsewhere(self, rank: int, step: int) -> bool:
        """Return True if the image of `rank` of `step` outlives the node on which the rank lives.

        A copy is on another node, or parity rebuilds it, or a rank that stays has the same shards.
        """
        remains = self.roster.remains
        home = remains.homes.get(rank, "")
        keeps = remains.copies.node_of(rank, step, beside=home)
        if keeps in self.nodes and keeps not in self.nodes.silent:
            return True
        gone = remains.imageless | remains.leaving
        missing = gone | remains.lost_at(step) | {rank}
        rebuilt = step in remains.parity.steps_of(missing).get(rank, ())
        return rebuilt or self.roster.has_twin_elsewhere(rank, step)

    def keep_in_place(self, step: int | None) -> bool:
        """Let ranks that were about to leave their node stay there, if they cannot leave any more.

        That is so if their images are on that node alone, or if the others have no room. Return
        True if some rank stays.

        step   the step that the run goes on from; None: no images are needed
        """
        leaving = self.roster.remains.leaving
        before = len(leaving)
        if step is not None:
            leaving -= {rank for rank in leaving if not self.lies_elsewhere(rank, step)}
        if leaving and self.short_of_places():
            leaving.clear()
        return len(leaving) < before

    def placeless(self) -> list[int]:
        """Return the ranks without a holder for which there is no room on any node.

        Ranks that have ended well need no room, unless all ranks restart.
        """
        live = self.roster.live()
        restarts = self.lifecycle.stage is not Stage.LEAVING
        held = [member.rank for member in live]
        without = sorted(set(range(self.options.world_size)).difference(held))
        empty = [rank for rank in without if restarts or not self.roster.is_done(rank)]
        return empty[sum(max(room, 0) for room in self.room(live).values()) :]

    def short_of_places(self) -> bool:
        """Return True while the run has to wait for a node with room."""
        return not self.nodes.local and bool(self.placeless())
