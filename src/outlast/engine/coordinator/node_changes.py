"""Nodes come and go. Then the run begins, goes on, or waits for another node.

A node is lost when its lease is void: its processes are dead by then, or run no code any more, and
what lay in its memory is gone. This module is pure.
"""

from __future__ import annotations

from dataclasses import replace

from outlast.engine.coordinator import image_keepers
from outlast.engine.coordinator.fault_reports import FaultReports
from outlast.engine.coordinator.orders import lost_node
from outlast.engine.coordinator.policy_actions import UNBARRED
from outlast.engine.coordinator.process_exit import ProcessExits
from outlast.engine.coordinator.regroup import RegroupMachine
from outlast.engine.coordinator.restore_sources import Transfer
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage, Timer, cancel, set_timer
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.protocol.outputs import End, Output, Tell
from outlast.model import limits
from outlast.model.messages import Enrol, Images, StoreLost
from outlast.model.texts import some


class NodeChanges:
    """Take in nodes and let go of them. `run.nodes` keeps the nodes that are in."""

    def __init__(
        self,
        run: RunParts,
        stop: StopRequest,
        regroup: RegroupMachine,
        exits: ProcessExits,
        reports: FaultReports,
    ) -> None:
        self.run = run
        self.stop = stop
        self.regroup = regroup
        self.exits = exits
        self.reports = reports

    # --- the beginning -------------------------------------------------------------------------

    def start(self, now_s: float) -> list[Output]:
        """Begin the run: at once on one node, else when enough nodes have enrolled."""
        if self.run.nodes.local:
            return self._launch(now_s)
        self.run.lifecycle.enter(Stage.ENROLLING)
        return [set_timer(Timer.NODES, now_s + self.run.options.enrol_wait_s)]

    def begin(self, now_s: float) -> list[Output]:
        """Start all ranks on the nodes that are in, if these have room."""
        if self.run.short_of_places():
            # The nodes that are in have too little room, so wait for another.
            return [set_timer(Timer.NODES, now_s + limits.NODE_WAIT_S)]
        self.run.nodes.put_in_order()
        return [cancel(Timer.NODES), *self._launch(now_s)]

    def begin_if_all_are_in(self, now_s: float) -> list[Output] | None:
        """Begin the run if as many nodes are in as are waited for; None: they are not."""
        enough = len(self.run.nodes) >= self.run.options.nodes
        return self.begin(now_s) if enough else None

    def _launch(self, now_s: float) -> list[Output]:
        run = self.run
        # A coordinator that took over before the run had begun may have ordered the store already.
        ordered = run.store.is_ordered(run.nodes)
        store = [] if ordered else run.order_store(now_s, "the run starts")
        return [*store, *self.regroup.plans.launch_all(now_s)]

    # --- a node comes --------------------------------------------------------------------------

    def joined(self, now_s: float, enrol: Enrol) -> list[Output]:
        """Take in a node that houses no processes, but perhaps sealed images."""
        run = self.run
        run.nodes.join(
            enrol.node,
            enrol.capacity,
            place=enrol.place,
            serves=enrol.serves,
            domain=enrol.domain,
        )
        self.find_images(enrol)
        out: list[Output] = []
        if enrol.node in run.nodes.dismissed:
            # The node was drained, and its launcher was started again.
            run.nodes.unbar(enrol.node)
            data = {"node": enrol.node, "reason": "it came back after it was drained"}
            out = [run.noted(now_s, UNBARRED, data), *self._ready(now_s, enrol.node)]
        else:
            out = self._new(now_s, enrol.node)
        if run.lifecycle.is_in(Stage.ENROLLING):
            return [*self._same_place(enrol), *(self.begin_if_all_are_in(now_s) or [])]
        return [*out, *run.name_store([enrol.node]), *self._room_again(now_s)]

    def _ready(self, now_s: float, node: str) -> list[Output]:
        """Let a node that came back stand ready, with spares."""
        refill = set_timer(Timer.SPARES, now_s + limits.SPARE_REFILL_DELAY_S)
        return [Tell(f"node {node} has come back, and stands ready"), refill]

    def _new(self, now_s: float, node: str) -> list[Output]:
        """Say that a node has come after the beginning, and let it have spares."""
        if self.run.lifecycle.is_in(Stage.ENROLLING):
            return []
        if self.run.lifecycle.is_in(Stage.TRAINING):
            refill = [set_timer(Timer.SPARES, now_s + limits.SPARE_REFILL_DELAY_S)]
        else:
            refill = []  # they are started once the run trains
        return [Tell(f"node {node} has joined the run, and stands ready"), *refill]

    def _same_place(self, enrol: Enrol) -> list[Output]:
        """Warn of a --node-rank that two nodes have: their names decide between them then."""
        same = self.run.nodes.at_place(enrol.place)
        if enrol.place < 0 or len(same) < 2:
            return []
        text = f"warning: nodes {' and '.join(same)} were all given --node-rank {enrol.place}"
        return [Tell(f"{text}: their names decide who comes first")]

    def find_images(self, enrol: Enrol) -> None:
        """Take in what an agent found sealed on its node, and what it knows of the script."""
        run, roster = self.run, self.run.roster
        remains = roster.remains
        roster.script.learn(outlast=bool(enrol.script), sharded=enrol.script == "sharded")
        for images in enrol.images:
            remains.note_done(images.rank, images.committed)
            if not run.lifecycle.is_in(Stage.REBUILDING):
                # A new coordinator waits until it knows the newest plan: see `Takeover`.
                self.note_ended(images, run.lifecycle.generation, run.progress.planned)
            lived_here = remains.homes.get(images.rank) == enrol.node
            if images.steps and lived_here and not remains.has_images(images.rank):
                # The node came back with what its ranks had sealed.
                remains.find_images(images.rank, images.steps)
        self._find_copies(enrol)
        if enrol.transfer:
            generation, step = enrol.transfer
            run.sources.find_transfer(Transfer(generation, step, enrol.node))

    def _find_copies(self, enrol: Enrol) -> None:
        """Take in the copies of images that are on a node, if it is the one to keep them.

        Others may be of steps that were rolled back. As long as a node keeps its part, no rank has
        moved, so nothing was.
        """
        remains = self.run.roster.remains
        keeps = image_keepers.place_copies(self.run, remains.homes) if enrol.copies else {}
        for copies in enrol.copies:
            if enrol.node in keeps.get(copies.rank, ()):
                remains.copies.found(copies.rank, enrol.node, copies.steps)
        if not enrol.parity:
            return
        placed = image_keepers.place_parity(self.run, remains.homes)
        of = {
            (stripe.number, row, stripe.ranks)
            for stripe in placed
            for row, node in enumerate(stripe.holders)
            if node == enrol.node
        }
        for one in enrol.parity:
            rows = tuple(row for row in one.rows if (one.stripe, row.row, row.ranks) in of)
            remains.parity.found(replace(one, rows=rows), enrol.node)

    def note_ended(self, images: Images, generation: int, planned: int) -> None:
        """Note the newest step that ended holders of a rank committed, and that nothing has undone.

        All have gone on from the step of the newest plan, whatever was committed before it.

        generation   the generation of the newest plan
        planned      the step that the newest plan goes on from
        """
        in_generation, step = images.ended or (0, 0)
        if in_generation < generation:
            step = min(step, planned)
        self.run.note_of_rank(step, max(step, images.committed))

    def _room_again(self, now_s: float) -> list[Output]:
        """Go on with what waited for a node: one has come."""
        run, plans = self.run, self.regroup.plans
        out: list[Output] = []
        if run.store.address is None and not run.store.is_ordered(run.nodes):
            # No node was left before this one, so there is no store.
            out += run.order_store(now_s, "no node was left to host the store")
        if run.lifecycle.is_in(Stage.CLEARING):
            start = plans.source(plans.restore(), finished=True).start
            if start is not None and start.step > run.sources.begin_from.step:
                # The node came back with a later step than all were to begin from.
                run.sources.choose(start)
        return [*out, *self._look_again(now_s)]

    def _look_again(self, now_s: float) -> list[Output]:
        """Go on if what the run waits for is there now."""
        match self.run.lifecycle.stage:
            case Stage.LEAVING:
                return self.regroup.check_quiesced(now_s)
            case Stage.CLEARING:
                return self.regroup.plans.when_cleared(now_s)
            case Stage.STOPPING:
                return self.stop.when_stopped()
            case _:
                return []

    # --- a node goes ---------------------------------------------------------------------------

    def lost(self, now_s: float, node: str, reason: str, *, returns: bool) -> list[Output]:
        """Count a node out, and each of its ranks with it, as one event.

        returns   its agent has restarted, and is about to enrol again
        """
        run, nodes = self.run, self.run.nodes
        if node in nodes.returning:
            # The node was about to return, and is lost once more.
            nodes.cancel_return(node)
            return self._room_again(now_s)
        if node not in nodes:
            return []
        if node in nodes.dismissed:
            reason = f"node {node} has left the run: it was drained"
        nodes.lose(node, returns=returns)
        run.links.lose(node)
        out = lost_node(now_s, node, reason)
        run.sources.lose_node(node)
        if run.store.home == node and not nodes.local:
            out += self.reports.on_store_lost(now_s, StoreLost(reason, run.store.orders))
        run.faults.begin_node_loss()
        roster = run.roster
        for member in (*roster.live(), *roster.spares(), *roster.orphans.values()):
            if member.home == node:
                if member.rank >= 0:
                    # The rank's own report went with its node, so take what the run knows.
                    roster.remains.note_done(member.rank, run.progress.executed)
                out += self.exits.on_lost_with_node(now_s, member, reason)
        roster.remains.lose_images(node)
        run.faults.end_node_loss()
        return [*out, *self._look_again(now_s)]

    def on_timer(self, now_s: float) -> list[Output]:
        """Begin with the nodes that are in, or end the run: no other node has come in time."""
        run = self.run
        enrolling = run.lifecycle.is_in(Stage.ENROLLING)
        if enrolling and not run.short_of_places():
            # Begin with fewer nodes than were asked for, because these have room.
            return self.begin(now_s)
        waits = run.lifecycle.is_in(Stage.ENROLLING, Stage.LEAVING, Stage.CLEARING)
        if waits and run.short_of_places():
            # No node came in time, so the run ends.
            waited_s = run.options.enrol_wait_s if enrolling else limits.NODE_WAIT_S
            why = f"no node with room for ranks {run.placeless()} in {waited_s:g} s"
            why += f"; in the run: {some(tuple(run.nodes))}" if len(run.nodes) else ""
            return self.stop.kill_all(now_s, End(1, "failed", why, ""))
        return []

    def images_of(self, node: str) -> tuple[int, ...]:
        """Return the ranks that lived on `node` last.

        What they had sealed counts as long as they live nowhere else.
        """
        homes = self.run.roster.homes
        return tuple(sorted(rank for rank, home in homes.items() if home == node))
