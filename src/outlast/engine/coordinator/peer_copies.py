"""`PeerCopies`: copies of images of sharded state, each on another node than its rank (`--keep`).

    a rank seals an image   it is copied to the rank's *keeper*, a node that `placement.keepers`
                            names. The keeper reports CopyKept: `kept`
    a node is lost          the copies that it kept are gone. Those of its own ranks are elsewhere:
                            `lose_node`
    a generation begins     copies of later steps do not count any more: `note_rollback`

A rank votes for a step only once its keeper has the copy of its newest image. So a passed vote
shows that the step before it survives the loss of any one node.

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
        self._newest: dict[int, int] = {}  # the newest step of each rank that was ever copied
        self._without: set[int] = set()  # ranks whose keeper has no room for copies
        self._rollbacks = Rollbacks()

    # --- what happens to copies ------------------------------------------------------------------

    def kept(self, message: CopyKept, node: str) -> None:
        """Note which copies `node` keeps of the images of a rank."""
        made = message.generation
        steps = tuple(
            step for step in message.steps if self._rollbacks.counts(generation=made, step=step)
        )
        self._held.setdefault(message.rank, {})[node] = steps
        self._newest[message.rank] = max((*steps, self._newest.get(message.rank, -1)))
        if message.steps:
            self._without.discard(message.rank)
        else:
            self._without.add(message.rank)

    def found(self, rank: int, node: str, steps: tuple[int, ...]) -> None:
        """Note copies that were found on a node which has come back or has enrolled."""
        self._held.setdefault(rank, {})[node] = steps
        self._newest[rank] = max((*steps, self._newest.get(rank, -1)))

    def note_rollback(self, *, generation: int, step: int) -> None:
        """Drop copies of later steps, which were rolled back: `generation` goes on from `step`."""
        self._rollbacks.note(generation=generation, step=step)
        for nodes in self._held.values():
            for node, steps in nodes.items():
                nodes[node] = tuple(one for one in steps if one <= step)
        self._newest = {rank: min(newest, step) for rank, newest in self._newest.items()}

    def refuse(self, rank: int, step: int) -> None:
        """Forget the copies of one image: one of them could not be read."""
        nodes = self._held.get(rank, {})
        for node, steps in nodes.items():
            nodes[node] = tuple(one for one in steps if one != step)

    def lose_node(self, node: str) -> None:
        """Forget what `node` kept: its memory is gone."""
        for nodes in self._held.values():
            nodes.pop(node, None)

    # --- what there is ---------------------------------------------------------------------------

    def steps(self, rank: int) -> tuple[int, ...]:
        """Return the steps of which some node keeps a copy of the image of `rank`."""
        return tuple(sorted(set().union(*self._held.get(rank, {}).values()), reverse=True))

    def steps_of(self, ranks: Collection[int]) -> dict[int, tuple[int, ...]]:
        """Return `steps` of each of `ranks` that has any."""
        found = {rank: self.steps(rank) for rank in ranks}
        return {rank: steps for rank, steps in found.items() if steps}

    def node_of(self, rank: int, step: int) -> str:
        """Return a node that keeps the copy of the image of `rank` of `step`; "": none does."""
        nodes = self._held.get(rank, {})
        return min((node for node, steps in nodes.items() if step in steps), default="")

    def committed(self, committed: int, *, world_size: int) -> int:
        """Return the newest step that counts as committed, because its copies are at the keepers.

        committed   the newest step that all ranks have sealed

        All ranks have voted for `committed`, so the copies of the step before it are there. Its own
        copies may not, and then its on-commit work has not run. If a keeper has no room for copies,
        no rank waits for them, and `committed` itself counts.
        """
        ranks = range(world_size)
        if self._without or any(rank not in self._newest for rank in ranks):
            return committed
        whole = min(self._newest[rank] for rank in ranks)
        return min(committed, max(whole, committed - 1))

    def survives_loss(self, homes: Mapping[int, str]) -> int:
        """Return how many nodes can be lost now, whichever they are: 1 or 0."""
        common = set.intersection(*(set(self.steps(rank)) for rank in homes)) if homes else set()
        elsewhere = any(
            all(self.node_of(rank, step) not in ("", home) for rank, home in homes.items())
            for step in common
        )
        return int(elsewhere)
