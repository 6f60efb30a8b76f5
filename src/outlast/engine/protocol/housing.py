"""Several nodes: those that come, those that are lost, and waiting for one when a rank finds no place.

A node is lost when its lease is void: its processes are dead by then, or run no code any more, and what lay in its memory is gone.
This module is pure.
"""

from __future__ import annotations

from outlast.engine.protocol.hearing import Hearing
from outlast.engine.protocol.outputs import End, Output, SetTimer, Tell
from outlast.engine.protocol.state import Stage, Transfer
from outlast.engine.rare import rare
from outlast.model import limits
from outlast.model.messages import Enrol, StoreLost, WorkerExited


class Housing(Hearing):
    """Called by the hub."""

    def start(self, *, now_s: float) -> list[Output]:
        if self.nodes.local:
            return [*self._ask_store(now_s, "the run starts"), *self._launch_all(now_s)]
        self.stage = Stage.ENROLLING
        return [SetTimer("nodes", now_s + limits.ENROL_WAIT_S)]

    def node_joined(self, *, now_s: float, enrol: Enrol, by_s: float) -> list[Output]:
        """It houses nothing, or what it houses is adopted. `by_s`: from its clock to the coordinator's."""
        self.nodes.join(enrol.node, enrol.capacity)
        self._find_images(enrol)
        if self.stage is Stage.ENROLLING:
            return self._begin(now_s) if len(self.nodes) >= self.options.nodes else []
        return self._room_again(now_s)

    def images_of(self, node: str) -> tuple[int, ...]:
        """Ranks that lived there last: what they had sealed counts as long as they live nowhere else."""
        return tuple(sorted(rank for rank, home in self.roster.homes.items() if home == node))

    def _find_images(self, enrol: Enrol) -> None:
        self.roster.outlast = self.roster.outlast or bool(enrol.script)
        self.roster.sharded = self.roster.sharded or enrol.script == "sharded"
        for images in enrol.images:
            self.roster.note_done(images.rank, images.committed)
            self._note_word(images.committed, images.committed)
            if images.steps and self.roster.homes.get(images.rank) == enrol.node and not self.roster.has_images(images.rank):
                rare("a node comes back with what its ranks had sealed")
                self.roster.find_images(images.rank, images.steps)
        if enrol.transfer:
            self._find_transfer(Transfer(enrol.transfer[0], enrol.transfer[1], enrol.node))

    def _find_transfer(self, found: Transfer) -> None:
        if self._donated is None or found.generation > self._donated.generation:
            self._donated = found

    def _begin(self, now_s: float) -> list[Output]:
        if self._short_of_places():
            rare("the nodes that are there have too little room")
            return [SetTimer("nodes", now_s + limits.NODE_WAIT_S)]
        return [SetTimer("nodes", None), *self._ask_store(now_s, "the run starts"), *self._launch_all(now_s)]

    def _room_again(self, now_s: float) -> list[Output]:
        """A node has come: what waited for one goes on."""
        out: list[Output] = []
        if self._store is None and self._store_home not in self.nodes:
            rare("the first node after none was left")
            out += self._ask_store(now_s, "no node was left to host the store")
        if self.stage is Stage.CLEARING:
            start = self._start_anew(self._restore(), finished=True)
            if start is not None and start.step > self._restart.step:
                rare("a node comes back with more than all were to begin from")
                self._restart = start
        return [*out, *self._look_again(now_s)]

    def _look_again(self, now_s: float) -> list[Output]:
        """Whether what the run waits for is there now."""
        if self.stage is Stage.LEAVING:
            return self._check_left(now_s)
        if self.stage is Stage.CLEARING:
            return self._when_cleared(now_s)
        return self._when_stopped(now_s) if self.stage is Stage.STOPPING else []

    def node_lost(self, *, now_s: float, node: str, reason: str, returns: bool = False) -> list[Output]:
        """Each of its ranks is lost in one event. `returns`: it is about to be in again, or to be lost once more."""
        if node in self.nodes.returning:
            rare("a node that was about to return does not")
            self.nodes.returning.discard(node)
            return self._room_again(now_s)
        if node not in self.nodes:
            return []
        if returns:
            self.nodes.returning.add(node)
        self.nodes.lose(node)
        self.links.lose(node)
        out: list[Output] = [self._event(now_s, "node_lost", {"node": node, "reason": reason}), Tell(reason)]
        if self._donated is not None and self._donated.home == node:
            rare("a transfer image is lost with its node")
            self._donated = None
        if self._store_home == node and not self.nodes.local:
            out += self._on_store_lost(now_s, StoreLost(reason, self._stores))
        self._several_end, self._node_faults = True, 0
        for member in (*self.roster.live(), *self.roster.spares(), *self.roster.strays.values()):
            if member.home == node:
                member.node_lost = reason
                if member.rank >= 0:
                    self.roster.note_done(member.rank, self.executed)  # as far as is known: its own word is gone with it
                out += self._on_exit(now_s, WorkerExited(member.worker, member.pid, None, None, False, -1, (), (), "", now_s, None, reason))
        self.roster.lose_images(node)
        self._several_end = False
        return [*out, *self._look_again(now_s)]

    def _on_nodes_timer(self, now_s: float) -> list[Output]:
        if self.stage is Stage.ENROLLING and not self._short_of_places():
            rare("fewer nodes than were asked for")
            return self._begin(now_s)
        if self.stage in (Stage.ENROLLING, Stage.LEAVING, Stage.CLEARING) and self._short_of_places():
            rare("no node came in time")
            waited_s = limits.ENROL_WAIT_S if self.stage is Stage.ENROLLING else limits.NODE_WAIT_S
            return self._stop_now(now_s, End(1, "failed", f"no node with room for ranks {self._placeless()} in {waited_s:g} s", ""))
        return []
