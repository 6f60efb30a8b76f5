"""The end of a node's lease, in shared memory. Its workers check it before each vote and commit.

An agent that is stopped cannot end its workers. So they find out by themselves that the lease has
run out.
"""

from __future__ import annotations

import math
from pathlib import Path

from outlast.runtime.tiers.area import allocate, map_file

_BYTES = 8


class LeasePage:
    """One number: the time until which the processes of this node may act, by CLOCK_MONOTONIC.

    The agent creates the page with `create`, and writes it. Workers read it.
    """

    def __init__(self, vault: Path, *, create: bool = False) -> None:
        if create:
            allocate(vault / "lease", _BYTES)
        self._seconds = map_file(vault / "lease")[:_BYTES].cast("d")
        if create:
            self.until_s = -math.inf

    @property
    def until_s(self) -> float:
        """Return when the lease runs out."""
        return float(self._seconds[0])

    @until_s.setter
    def until_s(self, until_s: float) -> None:
        self._seconds[0] = until_s
