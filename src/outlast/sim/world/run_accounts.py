"""The world's own books: when the run was at work, and where the seconds of each rank went."""

from __future__ import annotations

from outlast.sim.options import Options
from outlast.sim.rules.observations import GroupJoined, Observation, RankGiven
from outlast.sim.world.booked_seconds import Lives, Worked
from outlast.sim.world.recovery_times import RecoveryTimes


class RunAccounts:
    """The world's own books.

    `recovery_times`: when each generation was at work. `lives`: of the processes, as the ledger
    has them. `worked`: how long each rank was at new steps.
    """

    def __init__(self, options: Options) -> None:
        self.recovery_times = RecoveryTimes(options)
        self.lives = Lives()
        self.worked = Worked(options.ranks)
        # when a spare first ended by itself before it could park
        self.spare_ended_early_s: float | None = None
        self._several_nodes = options.nodes > 1

    def look(self, seen: Observation) -> None:
        """Note the steps that a rank is told and given: it did not do these itself."""
        if isinstance(seen, RankGiven) and self._several_nodes:
            self.worked.takes_over(seen.plan.rank, seen.plan.high_water, seen.plan.step)
        elif isinstance(seen, GroupJoined):
            self.worked.given(seen.rank, seen.step)
