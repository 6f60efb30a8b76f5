"""Rows of parity that a simulated node keeps. They stand in for those that `CopyKeeper` keeps.

Parts have no bytes here. A row is complete once each rank of its stripe has sent its part in one
generation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.model.messages import KeptRow, ParityKept, Share

KEPT_COUNT = 2  # rows of one stripe: one is complete, and one is being made


@dataclass(slots=True)
class _Sum:
    """One row of a stripe, and the places whose parts are in it."""

    row: KeptRow
    places: set[int] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        return all(rank < 0 or place in self.places for place, rank in enumerate(self.row.ranks))

    @property
    def age(self) -> tuple[int, int]:
        return self.row.step, self.row.generation


class SimulatedRows:
    """The rows that one node keeps of ranks of others, until it loses power."""

    def __init__(self) -> None:
        self._sums: dict[int, list[_Sum]] = {}  # by stripe
        # of each rank, the newest generation that it has sent in, and its first step
        self._generations: dict[int, tuple[int, int]] = {}

    def put(
        self, share: Share, rank: int, generation: int, step: int
    ) -> tuple[ParityKept, ...] | None:
        """Take a part in, and return what the agent says; None: its sender was given up.

        It says nothing of the row as long as that is not complete.
        """
        known, first = self._generations.get(rank, (0, 0))
        if generation < known:
            return None
        said: tuple[ParityKept, ...] = ()
        if generation > known:
            self._generations[rank] = generation, step
        elif step > first:
            said = self._drop_stale(generation, step)
        row = KeptRow(share.row, share.ranks, generation, step)
        sums = [one for one in self._sums.get(share.stripe, []) if one.row.step <= step]
        if any(one.row.generation > generation for one in sums):
            return None  # another rank of the stripe sends in a later generation already
        coming = next((one for one in sums if one.row == row), None)
        if coming is None:
            coming = _Sum(row)
            whole = [one for one in sums if one.is_complete]
            sums = [*sorted(whole, key=lambda one: one.age)[-1:], coming]
        coming.places.add(share.place)
        self._sums[share.stripe] = sums[-KEPT_COUNT:]
        news = (ParityKept(share.stripe, self.rows(share.stripe)),) if coming.is_complete else ()
        return (*said, *news)

    def _drop_stale(self, generation: int, step: int) -> tuple[ParityKept, ...]:
        """Give back the rows of stripes that no rank has sent here in this generation."""
        stale = [
            stripe
            for stripe, sums in self._sums.items()
            if all(one.row.generation < generation and one.row.step < step for one in sums)
        ]
        for stripe in stale:
            del self._sums[stripe]
        return tuple(ParityKept(stripe, ()) for stripe in sorted(stale))

    def rows(self, stripe: int) -> tuple[KeptRow, ...]:
        """Return the complete rows of a stripe, the newest first."""
        whole = [one for one in self._sums.get(stripe, []) if one.is_complete]
        return tuple(one.row for one in sorted(whole, key=lambda one: one.age, reverse=True))

    def served(self, stripe: int, row: int, step: int) -> tuple[KeptRow, ...]:
        """Return the row that is sent if this row of a step is asked for: the newest one."""
        found = (one for one in self.rows(stripe) if (one.row, one.step) == (row, step))
        return tuple(found)[:1]

    def all_rows(self) -> tuple[ParityKept, ...]:
        """Return all complete rows, for a coordinator that does not know them."""
        found = (ParityKept(stripe, self.rows(stripe)) for stripe in sorted(self._sums))
        return tuple(one for one in found if one.rows)

    def clear(self) -> None:
        """Lose everything: the node has no power."""
        self._sums.clear()
        self._generations.clear()
