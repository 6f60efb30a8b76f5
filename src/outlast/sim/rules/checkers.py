"""All rules together. They must hold in every simulated run, for all faults at all times.

The rules know nothing of the world, the workload or the faults. They only see observations.

Safety      There is one generation, one owner of each rank, and one restore point. No stale process
            contributes. No rank reads state that does not exist. No step is lost.
Liveness    The run ends within the bound, with all steps committed or with a verdict.
"""

from __future__ import annotations

from outlast.sim.rules.agent_reports import AGENT_REPORTS
from outlast.sim.rules.checker import Checker, Violation
from outlast.sim.rules.final_observations import NothingMoves, RunEnded
from outlast.sim.rules.hang_verdicts import HANG_VERDICTS
from outlast.sim.rules.interruption_records import INTERRUPTION_RECORDS
from outlast.sim.rules.kept_checkpoints import (
    FailedSaveEndsNoRun,
    LastGoodStays,
    ManifestOnceAllShards,
    OldCheckpointsRemoved,
    OnlyGoodOffered,
    ShardsOfOneHistory,
)
from outlast.sim.rules.named_culprits import (
    MechanismFitsFault,
    NoFalseAlarm,
    OnlyStruckBlamed,
    StoppedProcessEnded,
    TimesWithinRun,
)
from outlast.sim.rules.observations import (
    Observation,
)
from outlast.sim.rules.policy_limits import POLICY_LIMITS
from outlast.sim.rules.power_loss import DeadNodeCountedOut
from outlast.sim.rules.recovery_answers import RECOVERY_ANSWERS
from outlast.sim.rules.restore_points import (
    CopiedElsewhere,
    Fenced,
    HandedOverOnce,
    NewestStore,
    NothingCopiedLost,
    NothingDurableLost,
    NothingLost,
    OneOwner,
    OneStepPerGeneration,
    PauseAfterCutLink,
    ReturningNodeAwaited,
    SealedStateExists,
    SealedStateUsed,
    StateFitsStep,
)
from outlast.sim.rules.run_end import RUN_END
from outlast.sim.rules.run_progress import (
    AllRanksJoined,
    CausesShown,
    FreshStore,
    NodesAwaitedAtStart,
    RoomOnNodes,
    SecondsSum,
    SparesReplaced,
)
from outlast.sim.rules.stop_requests import STOP_REQUESTS

ALL: tuple[type[Checker], ...] = (
    OneStepPerGeneration,
    PauseAfterCutLink,
    OneOwner,
    Fenced,
    StateFitsStep,
    SealedStateExists,
    SealedStateUsed,
    SparesReplaced,
    OnlyGoodOffered,
    ShardsOfOneHistory,
    LastGoodStays,
    OldCheckpointsRemoved,
    ManifestOnceAllShards,
    FreshStore,
    NodesAwaitedAtStart,
    FailedSaveEndsNoRun,
    CopiedElsewhere,
    NothingCopiedLost,
    NothingDurableLost,
    NothingLost,
    HandedOverOnce,
    ReturningNodeAwaited,
    NewestStore,
    NoFalseAlarm,
    OnlyStruckBlamed,
    MechanismFitsFault,
    TimesWithinRun,
    RoomOnNodes,
    AllRanksJoined,
    StoppedProcessEnded,
    SecondsSum,
    CausesShown,
    DeadNodeCountedOut,
    *RUN_END,
    *STOP_REQUESTS,
    *RECOVERY_ANSWERS,
    *INTERRUPTION_RECORDS,
    *HANG_VERDICTS,
    *AGENT_REPORTS,
    *POLICY_LIMITS,
)


class Checkers:
    """Run all checkers, and note each violation once.

    `result` is "bad" if there is a violation, "unknown" if the run was not watched to its end, and
    otherwise "ok".
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._checkers: dict[type[Observation], list[Checker]] = {}
        for checker in [make() for make in ALL]:
            for sort in checker.of:
                self._checkers.setdefault(sort, []).append(checker)
        self._over = False

    def see(self, at_s: float, seen: Observation) -> None:
        self._over = self._over or isinstance(seen, (RunEnded, NothingMoves))
        for checker in self._checkers.get(type(seen), ()):
            checker.now_s = at_s
            for what in checker.see(seen):
                self.violations.append(Violation(type(checker).__name__, at_s, what))

    @property
    def result(self) -> str:
        return "bad" if self.violations else "ok" if self._over else "unknown"
