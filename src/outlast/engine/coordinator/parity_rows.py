"""`ParityRows`: parity of images of sharded state, in the memory of several nodes (`--keep`).

    a rank seals an image   each part of it goes to the nodes that keep parity of its stripe, which
                            `placement.stripes` names. A node reports ParityKept once it has the
                            parts of all ranks of a stripe: `kept`
    a node is lost          the rows that it kept are gone, and so are the images of its ranks. What
                            is left of each stripe rebuilds them: `steps_of`, `sources`
    a generation begins     rows of later steps do not count any more: `note_rollback`. All ranks
                            send their parts again, so a node that is new in a stripe gets its row

A rank votes for a step only once all its parts of its newest image are in the sums. So a passed
vote shows that the step before it survives the loss of as many nodes as there are rows. Until the
rows of a new generation are complete, those of the one before stay, and still count.

This module is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from outlast.engine.durable import Rollbacks
from outlast.engine.placement import Stripe
from outlast.model.messages import KeptRow, ParityKept, PartSource, Share

Group = tuple[int, ...]  # the ranks of a stripe, by place
_NOTHING: Mapping[int, Collection[int]] = {}


class ParityRows:
    """The rows of parity that nodes keep. It is empty if the run keeps no parity."""

    def __init__(self) -> None:
        self._held: dict[int, dict[str, tuple[KeptRow, ...]]] = {}  # stripe -> node -> its rows
        self._newest: dict[tuple[int, int], int] = {}  # stripe, row -> the newest step ever kept
        self._without: set[tuple[str, int]] = set()  # node and stripe: the node has no room
        self._rollbacks = Rollbacks()
        self._stripes: tuple[Stripe, ...] = ()  # of the present generation

    def place(self, stripes: tuple[Stripe, ...]) -> None:
        """Note in which stripes parity is kept from now on; none if there are too few nodes."""
        self._stripes = stripes

    # --- what happens to rows --------------------------------------------------------------------

    def kept(self, message: ParityKept, node: str) -> None:
        """Note which rows of a stripe `node` keeps."""
        rows = _served(row for row in message.rows if self._counts(row))
        self._held.setdefault(message.stripe, {})[node] = rows
        for row in rows:
            which = message.stripe, row.row
            self._newest[which] = max(row.step, self._newest.get(which, -1))
        if message.rows:
            self._without.discard((node, message.stripe))
        elif any(one.number == message.stripe and node in one.holders for one in self._stripes):
            self._without.add((node, message.stripe))  # others have given back what they had kept

    def found(self, message: ParityKept, node: str) -> None:
        """Note rows that were found on a node which has come back or has enrolled."""
        if message.rows:
            self.kept(message, node)

    def note_rollback(self, *, generation: int, step: int) -> None:
        """Drop rows of later steps, which were rolled back: `generation` goes on from `step`.

        A node that had no room is asked again.
        """
        self._rollbacks.note(generation=generation, step=step)
        self._keep(lambda row: row.step <= step)
        self._newest = {which: min(newest, step) for which, newest in self._newest.items()}
        self._without.clear()

    def refuse(self, rank: int, step: int) -> None:
        """Forget all rows of which the image of `rank` of `step` is a part: it was not rebuilt."""
        self._keep(lambda row: row.step != step or rank not in row.ranks)

    def lose_node(self, node: str) -> None:
        """Forget what `node` kept: its memory is gone."""
        for nodes in self._held.values():
            nodes.pop(node, None)
        self._without = {key for key in self._without if key[0] != node}

    def _keep(self, counts: Callable[[KeptRow], bool]) -> None:
        """Forget all rows that do not count."""
        for nodes in self._held.values():
            for node, rows in nodes.items():
                nodes[node] = tuple(row for row in rows if counts(row))

    def _counts(self, row: KeptRow) -> bool:
        return self._rollbacks.counts(generation=row.generation, step=row.step)

    # --- what can be rebuilt ---------------------------------------------------------------------

    def steps_of(
        self, lost: Collection[int], *, refused: Mapping[int, Collection[int]] = _NOTHING
    ) -> dict[int, tuple[int, ...]]:
        """Return the steps of which the image of each of `lost` ranks can be rebuilt.

        Ranks without any are left out. All other ranks are taken to have their images.

        refused   for each rank that has images: the steps of which its image is damaged, so that it
                  may have to be rebuilt as well
        """
        found: dict[int, list[int]] = {}
        for step in self._steps() if lost or refused else ():
            missing = {*lost, *(rank for rank, steps in refused.items() if step in steps)}
            for rank in missing:
                if self._groups(rank, step, missing):
                    found.setdefault(rank, []).append(step)
        return {rank: tuple(steps) for rank, steps in found.items()}

    def sources(
        self,
        rank: int,
        step: int,
        lost: Collection[int],
        *,
        home: Callable[[int], str],
        serves: Callable[[str], str],
    ) -> tuple[PartSource, ...]:
        """Return from what the image of `rank` of `step` is rebuilt; empty: it cannot be.

        lost     all ranks whose images are lost, `rank` among them
        home     the node on which a rank's image is
        serves   where a node serves images, as HOST:PORT
        """
        out: list[PartSource] = []
        for part, (group, stripe) in enumerate(self._groups(rank, step, lost)):
            out += [
                PartSource(part, stripe, -1, one, place, serves(home(one)))
                for place, one in enumerate(group)
                if one >= 0 and one not in lost
            ]
            out += [
                PartSource(part, stripe, row, -1, -1, serves(node))
                for row, node in sorted(self._rows(group, step, stripe).items())
            ]
        return tuple(out)

    def _groups(self, rank: int, step: int, lost: Collection[int]) -> list[tuple[Group, int]]:
        """Return, for each part of an image, the ranks and the number of a stripe that restores it.

        Empty if some part cannot be restored.
        """
        stripes = sorted(
            {
                (row.ranks, stripe)
                for stripe, nodes in self._held.items()
                for rows in nodes.values()
                for row in rows
                if row.step == step and rank in row.ranks
            }
        )
        found: dict[int, tuple[Group, int]] = {}
        size = len(stripes[0][0]) if stripes else 0
        for group, stripe in stripes:
            missing = sum(1 for one in group if one in lost)
            if len(group) == size and len(self._rows(group, step, stripe)) >= missing:
                found[group.index(rank)] = group, stripe
        return [found[part] for part in range(size)] if len(found) == size else []

    def _rows(self, group: Group, step: int, stripe: int) -> dict[int, str]:
        """Return the node that keeps each row of these ranks' parts of `step`."""
        return {
            row.row: node
            for node, rows in sorted(self._held.get(stripe, {}).items(), reverse=True)
            for row in rows
            if row.ranks == group and row.step == step
        }

    def _steps(self) -> list[int]:
        """Return the steps of all rows, the newest first."""
        all_rows = (rows for nodes in self._held.values() for rows in nodes.values())
        return sorted({row.step for rows in all_rows for row in rows}, reverse=True)

    # --- what is safe now ------------------------------------------------------------------------

    def committed(self, committed: int) -> int:
        """Return the newest step that counts as committed, because its parity is complete.

        committed   the newest step that all ranks have sealed

        All ranks have voted for `committed`, so the parity of the step before it is there. Its own
        may not be, and then its on-commit work has not run. If a node has no room for a row, no
        rank waits for it, and `committed` itself counts.
        """
        newest = [
            self._newest.get((stripe.number, row), -1)
            for stripe in self._stripes
            for row in range(len(stripe.holders))
        ]
        if self._without or not newest or min(newest) < 0:
            return committed
        return min(committed, max(min(newest), committed - 1))

    def survives_losses(self, homes: Mapping[int, str], lost: Collection[int]) -> int:
        """Return how many nodes can be lost now, whichever they are, without losing state.

        homes   the node of each rank
        lost    ranks whose images are lost already
        """
        each = (
            min((self._spare_rows(step, one, homes, lost) for one in self._stripes), default=0)
            for step in self._steps()
        )
        return max(0, *each, 0)

    def _spare_rows(
        self, step: int, stripe: Stripe, homes: Mapping[int, str], lost: Collection[int]
    ) -> int:
        """Return how many nodes `stripe` can lose now without losing parts of `step`."""
        giving = Counter(homes.get(rank, "") for rank in stripe.ranks if rank >= 0)
        rows = self._rows(stripe.ranks, step, stripe.number)
        apart = {node for node in rows.values() if node not in giving}
        missing = sum(1 for rank in stripe.ranks if rank in lost)
        # A rank may have moved to the node of another one since. That node counts for both.
        return (len(apart) - missing) // max(giving.values(), default=1)


def _served(rows: Iterable[KeptRow]) -> tuple[KeptRow, ...]:
    """Return the rows that a node serves: of the same row and step, the one that was made last.

    They are of different ranks if the stripes were placed anew in between.
    """
    newest: dict[tuple[int, int], KeptRow] = {}
    for row in rows:
        known = newest.get((row.row, row.step))
        if known is None or row.generation > known.generation:
            newest[row.row, row.step] = row
    return tuple(newest.values())


def shares_of(
    stripes: Collection[Stripe], serves: Callable[[str], str]
) -> dict[int, tuple[Share, ...]]:
    """Return where each rank sends the parts of its images. `serves` is as for `sources`."""
    out: dict[int, list[Share]] = {}
    for stripe in stripes:
        for place, rank in enumerate(stripe.ranks):
            if rank >= 0:
                out.setdefault(rank, []).extend(
                    Share(stripe.number, place, row, stripe.ranks, serves(node))
                    for row, node in enumerate(stripe.holders)
                )
    return {rank: tuple(shares) for rank, shares in out.items()}
