"""The places on a node: which LOCAL_RANK, and with it which GPU, each worker has.

This module is pure.
"""

from __future__ import annotations


class LocalSlots:
    """Give each worker that holds a rank a place of its own on this node.

    A rank gets the place that torchrun would give it, if that place is free. Otherwise it gets the
    first free place, because it may have come from another node. On a single node the place is the
    rank itself.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._taken: dict[int, int] = {}  # by worker

    def take(self, worker: int, rank: int) -> int:
        """Return the place of `worker`, which holds `rank` from now on."""
        if worker in self._taken:
            return self._taken[worker]
        usual, taken = rank % self.count, set(self._taken.values())
        free = [place for place in (usual, *range(self.count)) if place not in taken]
        self._taken[worker] = place = free[0] if free else usual
        return place

    def of(self, worker: int) -> int:
        """Return the place of `worker`, or -1 if it has none."""
        return self._taken.get(worker, -1)

    def free(self, worker: int) -> None:
        """Note that `worker` has ended."""
        self._taken.pop(worker, None)
