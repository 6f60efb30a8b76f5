"""The world's own accounts: when the run was at work, and the use of each rank's seconds."""

from __future__ import annotations

from outlast.sim.options import Options
from outlast.sim.rules.observations import GroupJoined, Observation, RankGiven
from outlast.sim.world.booked_seconds import Lives, Worked
from outlast.sim.world.recovery_times import RecoveryTimes


class RunAccounts:
    """The world's own accounts.

    recovery_times   when each generation was at work
    lives            the lives of the processes, as in the ledger
    worked           how long each rank worked on new steps
    """

    def __init__(self, options: Options) -> None:
        self.recovery_times = RecoveryTimes(options)
        self.lives = Lives()
        self.worked = Worked(options.ranks)
        # when a spare first ended by itself before it could park
        self.spare_ended_early_s: float | None = None
        self._several_nodes = options.nodes > 1

    def look(self, seen: Observation) -> None:
        """Note the steps whose state a rank gets from others, because it did not do them itself."""
        if isinstance(seen, RankGiven) and self._several_nodes:
            self.worked.takes_over(seen.plan.rank, seen.plan.high_water, seen.plan.step)
        elif isinstance(seen, GroupJoined):
            self.worked.given(seen.rank, seen.step)
