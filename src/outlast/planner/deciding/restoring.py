"""Decide from which step a simulated run goes on after a failure.

`engine.restore` and `engine.durable` decide, from what all ranks still hold and from what is on
disks. They are called in the same order as by the coordinator (`engine/coordinator/plans.py`):

1. ranks that hold replicated state
2. images that all owners have sealed, unless a checkpoint is newer
3. the newest good checkpoint
4. the beginning of the run

The state of a real run is either replicated or sharded. A scenario may have tiers of both kinds.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.engine.durable import newest_good
from outlast.engine.restore import Holding, RestoreVerdict, decide_replicated, decide_sharded
from outlast.planner.deciding.membership import SimulatedMembership, StruckRanks
from outlast.planner.deciding.tiers import TierKind, Tiers
from outlast.planner.scenario import Extent

REPLICATED, SHARDED, DURABLE = (
    "engine.restore.decide_replicated",
    "engine.restore.decide_sharded",
    "engine.durable.newest_good",
)


@dataclass(frozen=True, slots=True)
class TierFolder:
    """The folder of one checkpoint."""

    step: int
    has_manifest: bool
    tier: int


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The step that a run goes on from, and its source.

    tier            index of the scenario's tier to restore from; None if the run starts over
    recovery_mode   how survivors go on: see engine/recovery.py
    state           True for live state or a sealed image, False for a checkpoint or the beginning
    """

    step: int
    tier: int | None
    recovery_mode: str
    state: bool
    reason: str


@dataclass(slots=True)
class Restoring:
    """Decide from which step runs go on. `asked` counts the calls of the engine."""

    members: SimulatedMembership
    tiers: Tiers
    asked: Counter[str]
    recovery_mode: str = "in_place"

    def point(
        self,
        *,
        strike: StruckRanks,
        extent: Extent,
        position: float,
        unfinished: Sequence[tuple[int, int]],
        restore_s: Sequence[float],
    ) -> RestorePoint:
        """Return the point that all ranks go on from after a failure.

        strike      the ranks and nodes that are lost
        extent      tiers that do not survive a failure of this extent are lost too
        position    the position of training, in steps
        unfinished  tier and step of each save that was being written
        restore_s   for each tier, the seconds to restore from it after this failure
        """
        kinds, survives = self.tiers.kinds, self.tiers.survives
        images = [index for index, kind in enumerate(kinds) if kind is TierKind.IMAGE]
        live = [index for index, kind in enumerate(kinds) if kind is TierKind.LIVE]
        holdings = self._holdings(strike, extent, position, unfinished)
        if live:
            self.asked[REPLICATED] += 1
            verdict = decide_replicated(holdings=holdings)
            if verdict.step is not None:
                return self._at(
                    verdict.step,
                    [index for index in live if survives[index] >= extent],
                    restore_s,
                    self.recovery_mode,
                    verdict,
                )
        good = self._newest_good(unfinished, restore_s)
        if images or not (live or good):
            self.asked[SHARDED] += 1
            verdict = decide_sharded(holdings=holdings)
            if verdict.step is not None and (good is None or verdict.step >= good.step):
                return self._at(
                    verdict.step,
                    [index for index in images if survives[index] >= extent],
                    restore_s,
                    "reenter",
                    verdict,
                )
        mode = "reenter" if images or not live else "respawn"
        if good is None:
            return RestorePoint(0, None, mode, False, "nothing is left: the run starts over")
        which = (
            f"the checkpoint of step {good.step} is the newest good one"
            if good.step
            else "the run begins again with the state that it began with"
        )
        return RestorePoint(good.step, good.tier, mode, False, which)

    def _holdings(
        self,
        strike: StruckRanks,
        extent: Extent,
        position: float,
        unfinished: Sequence[tuple[int, int]],
    ) -> list[Holding]:
        """Return what each rank holds after a strike, in the form that the engine takes."""
        kinds, survives, held = self.tiers.kinds, self.tiers.survives, self.tiers.sealed
        images = [index for index, kind in enumerate(kinds) if kind is TierKind.IMAGE]
        live = [index for index, kind in enumerate(kinds) if kind is TierKind.LIVE]
        left = sorted(
            {
                step
                for index in images
                if survives[index] >= extent and (step := held[index]) is not None
            },
            reverse=True,
        )
        sealed = {step for index in images if (step := held[index]) is not None} | {
            step for index, step in unfinished if index in images
        }
        return self.members.holdings(
            strike.ranks,
            committed=math.floor(position),
            usable=any(survives[index] >= extent for index in live),
            sealed=tuple(sorted(sealed, reverse=True)),
            left=tuple(left),
            begun=position > math.floor(position),
        )

    def _at(
        self,
        step: int,
        among: Sequence[int],
        restore_s: Sequence[float],
        recovery_mode: str,
        verdict: RestoreVerdict,
    ) -> RestorePoint:
        """Return the point in the fastest of these tiers that hold the step."""
        tier = min(
            (index for index in among if self.tiers.sealed[index] == step),
            key=lambda index: restore_s[index],
        )
        return RestorePoint(step, tier, recovery_mode, True, verdict.reason)

    def _newest_good(
        self, unfinished: Sequence[tuple[int, int]], restore_s: Sequence[float]
    ) -> TierFolder | None:
        """Return the newest good checkpoint; None if there is none.

        A save that was being written has no manifest. If several tiers have the same step, the
        fastest one is returned.
        """
        durable = [
            index for index, survives in enumerate(self.tiers.survives) if survives is Extent.RUN
        ]
        if not durable:
            return None
        folders = [
            TierFolder(step, True, index)
            for index in durable
            if (step := self.tiers.sealed[index]) is not None
        ]
        folders += [
            TierFolder(step, False, index) for index, step in unfinished if index in durable
        ]
        self.asked[DURABLE] += 1
        return newest_good(
            sorted(folders, key=lambda one: restore_s[one.tier]), why_not=lambda _: ""
        )[0]
