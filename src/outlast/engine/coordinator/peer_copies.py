"""`PeerCopies`: copies of images of sharded state, each on another node than its rank (`--keep`).

    a rank seals an image   it is copied to the rank's *keepers*, the nodes that `placement.keepers`
                            names. Each of them reports CopyKept: `kept`
    a node is lost          the copies that it kept are gone. Those of its own ranks are elsewhere:
                            `lose_node`
    a generation begins     copies of later steps do not count any more: `note_rollback`. All ranks
                            send their images again, so a node that is new as a keeper gets a copy

A rank votes for a step only once all its keepers have the copy of its newest image. So a passed
vote shows that the step before it survives the loss of as many nodes as there are copies. Until
new keepers have their copies, those that are left still count.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from outlast.engine.durable import Rollbacks
from outlast.model.messages import CopyKept


class PeerCopies:
    """The nodes that keep copies of images. It is empty if the run makes no copies."""

    def __init__(self) -> None:
        self._held: dict[int, dict[str, tuple[int, ...]]] = {}  # rank -> node -> steps
        # rank, and place among its keepers -> the newest step that was ever copied there
        self._newest: dict[tuple[int, int], int] = {}
        self._without: set[tuple[str, int]] = set()  # node and rank: the node has no room
        self._rollbacks = Rollbacks()
        self._placed: Mapping[int, tuple[str, ...]] = {}  # of the present generation

    def place(self, keepers: Mapping[int, tuple[str, ...]]) -> None:
        """Note which nodes keep copies for each rank from now on."""
        self._placed = keepers

    # --- what happens to copies ------------------------------------------------------------------

    def kept(self, message: CopyKept, node: str) -> None:
        """Note which copies `node` keeps of the images of a rank."""
        made = message.generation
        steps = tuple(
            step for step in message.steps if self._rollbacks.counts(generation=made, step=step)
        )
        self._note(message.rank, node, steps)
        if message.steps:
            self._without.discard((node, message.rank))
        elif node in self._placed.get(message.rank, ()):
            self._without.add((node, message.rank))  # others have given back what they had kept

    def found(self, rank: int, node: str, steps: tuple[int, ...]) -> None:
        """Note copies that were found on a node which has come back or has enrolled."""
        self._note(rank, node, steps)

    def _note(self, rank: int, node: str, steps: tuple[int, ...]) -> None:
        self._held.setdefault(rank, {})[node] = steps
        placed = self._placed.get(rank, ())
        if node in placed:
            which = rank, placed.index(node)
            self._newest[which] = max((*steps, self._newest.get(which, -1)))

    def note_rollback(self, *, generation: int, step: int) -> None:
        """Drop copies of later steps, which were rolled back: `generation` goes on from `step`.

        A node that had no room is asked again.
        """
        self._rollbacks.note(generation=generation, step=step)
        for nodes in self._held.values():
            for node, steps in nodes.items():
                nodes[node] = tuple(one for one in steps if one <= step)
        self._newest = {which: min(newest, step) for which, newest in self._newest.items()}
        self._without.clear()

    def refuse(self, rank: int, step: int, node: str = "") -> None:
        """Forget the copy of one image on `node`: it could not be read. "": on all nodes."""
        nodes = self._held.get(rank, {})
        for one in (node,) if node else tuple(nodes):
            nodes[one] = tuple(kept for kept in nodes.get(one, ()) if kept != step)

    def lose_node(self, node: str) -> None:
        """Forget what `node` kept: its memory is gone."""
        for nodes in self._held.values():
            nodes.pop(node, None)
        self._without = {key for key in self._without if key[0] != node}

    # --- what there is ---------------------------------------------------------------------------

    def steps(self, rank: int) -> tuple[int, ...]:
        """Return the steps of which some node keeps a copy of the image of `rank`."""
        return tuple(sorted(set().union(*self._held.get(rank, {}).values()), reverse=True))

    def steps_of(self, ranks: Collection[int]) -> dict[int, tuple[int, ...]]:
        """Return `steps` of each of `ranks` that has any."""
        found = {rank: self.steps(rank) for rank in ranks}
        return {rank: steps for rank, steps in found.items() if steps}

    def node_of(self, rank: int, step: int, *, near: str = "", beside: str | None = None) -> str:
        """Return a node that keeps the copy of the image of `rank` of `step`; "": none does.

        beside   a node that does not count
        near     the node that is taken if it keeps one, because nothing has to be sent then
        """
        nodes = {node for node in self._nodes_of(rank, step) if node != beside}
        return near if near in nodes else min(nodes, default="")

    def _nodes_of(self, rank: int, step: int) -> set[str]:
        return {node for node, steps in self._held.get(rank, {}).items() if step in steps}

    def committed(self, committed: int) -> int:
        """Return the newest step that counts as committed, because its copies are at the keepers.

        committed   the newest step that all ranks have sealed

        All ranks have voted for `committed`, so the copies of the step before it are there. Its own
        copies may not, and then its on-commit work has not run. If a keeper has no room for copies,
        no rank waits for them, and `committed` itself counts.
        """
        newest = [
            self._newest.get((rank, place), -1)
            for rank, nodes in self._placed.items()
            for place in range(len(nodes))
        ]
        if self._without or not newest or min(newest) < 0:
            return committed
        return min(committed, max(min(newest), committed - 1))

    def survives_losses(self, homes: Mapping[int, str], lost: Collection[int]) -> int:
        """Return how many nodes can be lost now, whichever they are, without losing state.

        homes   the node of each rank
        lost    ranks whose images are lost already
        """
        common = set.intersection(*(set(self.steps(rank)) for rank in homes)) if homes else set()
        each = (
            min(self._spare_copies(rank, step, home, lost) for rank, home in homes.items())
            for step in common
        )
        return max(0, *each, 0)

    def _spare_copies(self, rank: int, step: int, home: str, lost: Collection[int]) -> int:
        """Return how many nodes can be lost now without losing the image of `rank` of `step`."""
        nodes = self._nodes_of(rank, step)
        if rank in lost:
            return len(nodes) - 1  # one of the copies has to be left, wherever it is
        return len(nodes - {home})  # its own image is lost with its home
