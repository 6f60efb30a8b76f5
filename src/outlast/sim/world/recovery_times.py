"""The times at which each generation was at work, by the world's own clock.

The times in the ledger are compared with these.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Set

from outlast.sim.options import Options


class RecoveryTimes:
    """The times of all generations, by the world's clock, in seconds."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._did: dict[int, set[int]] = {}  # generation -> ranks that have committed a step in it
        self._runs: set[int] = set()  # workers that have reported that they run
        self.has_steps = False  # a worker has reported that the script has steps
        self._since_s: dict[int, float] = {}
        self._stood_s: dict[int, float] = {}  # when all ranks had committed a step in it
        self._steps: list[tuple[float, int]] = []  # when each step was first committed

    def committed(self, generation: int, rank: int, step: int, *, new: bool, now_s: float) -> None:
        """Note a commit. Under replicated state, one rank's commit counts for all.

        new   True: it is not the step that the plan of the generation goes on from
        """
        if not self._steps or step > self._steps[-1][1]:
            self._steps.append((now_s, step))
        if not new or generation in self._stood_s:
            return
        did = self._did.setdefault(generation, set())
        did.add(rank)
        if len(did) == self._options.ranks:
            self._stood_s[generation] = now_s
        if self._options.recovery_mode != "sharded" or len(did) == self._options.ranks:
            self._since_s.setdefault(generation, now_s)

    def hello_seen(
        self, generation: int, worker: int, *, holders: Callable[[], Set[int]], now_s: float
    ) -> None:
        """Note that a worker runs. `holders` returns the processes that hold a rank.

        Until a worker reports that the script has steps, nothing more is known.
        """
        self._runs.add(worker)
        if self.has_steps or len(self._runs) < self._options.ranks:
            return  # not all ranks can be running yet, so the holders need not be looked up
        holding = holders()
        if len(holding) == self._options.ranks and self._runs >= holding:
            self._since_s.setdefault(generation, now_s)

    def registered(self) -> None:
        """Note that the coordinator learns that the script has steps."""
        self.has_steps = True

    def finished(self, generation: int, *, now_s: float) -> None:
        """Note that the coordinator learns that a rank is past the last step."""
        self._since_s.setdefault(generation, now_s)

    def newest(self, by_s: float) -> int:
        """Return the newest step that any rank had committed by then."""
        place = bisect.bisect_right(self._steps, by_s, key=lambda one: one[0])
        return self._steps[place - 1][1] if place else 0

    def stood(self, generation: int) -> float | None:
        """Return when all ranks had first committed a step in a generation after this one."""
        return min(
            (stood_s for later, stood_s in self._stood_s.items() if later > generation),
            default=None,
        )

    def after(self, generation: int) -> float | None:
        """Return when a generation after this one was first at work."""
        return min(
            (since_s for later, since_s in self._since_s.items() if later > generation),
            default=None,
        )
