"""Compute what each tier holds while a run trains, saves and fails.

One call computes a whole stretch of training.

Units      Times are in seconds. Positions are in steps, with a fraction only if training stops
           within a step.
Symbols    p0    position at the beginning of the stretch
           S(k)  seconds from the beginning of a stretch until position k is reached: the time of
                 k - p0 steps, and all stalls at positions before k
Method     S is inverted by bisection. So a stretch with a million saves costs about as much as one
           with ten.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from outlast.planner.scenario import Extent, Scenario


class TierKind(Enum):
    """This says how the engine sees a tier.

    A live tier that survives the loss of the whole run counts as a checkpoint too.
    """

    LIVE = "live"  # replicated state: each survivor holds it (engine.restore.decide_replicated)
    # Each rank seals it in memory, on its own or another node (engine.restore.decide_sharded).
    IMAGE = "image"
    DURABLE = "durable"  # a checkpoint with a manifest (engine.durable.newest_good)


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of a stretch of training.

    position    the position that training has reached, in steps
    stall_s     seconds for which training paused for saves, including a stall that is not over
    written     tier and step of the newest finished save to each tier
    unfinished  tier and step of each save whose stall or write is not over
    overlaps    number of saves that began while the save before, to the same tier, was being
                written
    """

    position: float
    stall_s: float
    written: tuple[tuple[int, int], ...]
    unfinished: tuple[tuple[int, int], ...]
    overlaps: int


@dataclass(frozen=True, slots=True)
class _Saving:
    tier: int
    interval: int  # steps
    stall_s: float
    write_s: float


class Tiers:
    """The contents of each tier.

    held      for each tier, the newest step that can be restored from it by the rules of a
              scenario, or None. A live tier holds the newest whole step
    sealed    the same by the rules of the engine
    kinds     how the engine sees each tier
    survives  for each tier, the largest extent of a failure that it survives

    `held` and `sealed` differ in one case. A rank that takes sharded state from elsewhere seals it
    in its own memory before it trains (`Attachment.attach` in runtime/worker/steps/attach.py). In a
    scenario, that memory is empty until the next save.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.held: list[int | None] = []
        self.sealed: list[int | None] = []
        self.kinds: list[TierKind] = []
        self.survives = [tier.survives for tier in scenario.tiers]
        self._step_s = scenario.job.step_s
        self._saving: list[_Saving] = []  # in the order in which they stall
        for index, tier in enumerate(scenario.tiers):
            live = scenario.is_live(tier)
            self.held.append(0)  # the state that the run begins with
            self.sealed.append(0)
            self.kinds.append(
                TierKind.LIVE
                if live
                else TierKind.DURABLE
                if tier.survives is Extent.RUN
                else TierKind.IMAGE
            )
            interval_s = scenario.interval_s(tier)
            if not live and math.isfinite(interval_s):
                self._saving.append(
                    _Saving(index, round(interval_s / self._step_s), tier.stall_s, tier.write_s)
                )

    def train(self, begin: int, for_s: float) -> Trained:
        """Return the outcome of `for_s` seconds of training from position `begin`.

        The tiers do not change. Pass the result to `hold` if training ends there.
        """
        at_most = begin + math.floor(for_s / self._step_s)
        reached = _largest(begin, at_most, lambda step: self._reached_s(begin, step) <= for_s)
        beyond_s = (
            for_s
            - self._reached_s(begin, reached)
            - (self._stalls_s(reached) if reached > begin else 0.0)
        )
        position = reached + min(max(0.0, beyond_s) / self._step_s, math.nextafter(1.0, 0.0))
        written, unfinished, overlaps = [], [], 0
        for saving in self._saving:
            last = reached // saving.interval * saving.interval
            if last <= begin:
                continue
            newest = self._newest_written(saving, begin, last, for_s)
            written += [(saving.tier, newest)] if newest > begin else []
            unfinished += [(saving.tier, last)] if last != newest else []
            overlaps += (
                last // saving.interval - begin // saving.interval - 1
                if saving.write_s > saving.interval * self._step_s
                else 0
            )
        return Trained(
            position,
            max(0.0, for_s - (position - begin) * self._step_s),
            tuple(written),
            tuple(unfinished),
            overlaps,
        )

    def hold(self, trained: Trained) -> None:
        """Store the finished saves of a stretch in the tiers. Unfinished saves are lost."""
        for index, step in trained.written:
            self.held[index] = self.sealed[index] = step
        self._hold_live(math.floor(trained.position))

    def fall_back(self, extent: Extent, to: int) -> None:
        """Empty the tiers that do not survive this extent, and go back to step `to`."""
        self.held = [
            held if survives >= extent else None
            for held, survives in zip(self.held, self.survives, strict=True)
        ]
        self.sealed = [
            sealed if survives >= extent else None
            for sealed, survives in zip(self.sealed, self.survives, strict=True)
        ]
        self._hold_live(to)

    def attach(self, step: int) -> None:
        """Note that all ranks have restored `step`, so each has sealed it in its own memory."""
        for index, kind in enumerate(self.kinds):
            if kind is TierKind.IMAGE and self.survives[index] is Extent.PROCESS:
                self.sealed[index] = step

    def _hold_live(self, step: int) -> None:
        for index, kind in enumerate(self.kinds):
            if kind is TierKind.LIVE:
                self.held[index] = self.sealed[index] = step

    def _reached_s(self, begin: int, step: int) -> float:
        if step <= begin:
            return 0.0
        stalls_s = sum(
            one.stall_s * ((step - 1) // one.interval - begin // one.interval)
            for one in self._saving
        )
        return (step - begin) * self._step_s + stalls_s

    def _stalls_s(self, step: int, upto: int | None = None) -> float:
        """Return the seconds for which training pauses for saves at this step.

        They include the saves up to that to tier `upto`; None stands for all tiers.
        """
        return sum(
            one.stall_s
            for one in self._saving
            if step % one.interval == 0 and (upto is None or one.tier <= upto)
        )

    def _newest_written(self, saving: _Saving, begin: int, last: int, for_s: float) -> int:
        """Return the newest step after `begin` whose save is finished after `for_s` seconds.

        If there is none, a step up to `begin` is returned.
        """

        def is_written(number: int) -> bool:
            step = number * saving.interval
            return (
                step <= begin
                or self._reached_s(begin, step) + self._stalls_s(step, saving.tier) + saving.write_s
                <= for_s
            )

        return (
            _largest(begin // saving.interval, last // saving.interval, is_written)
            * saving.interval
        )


def _largest(low: int, high: int, is_so: Callable[[int], bool]) -> int:
    """Return the largest whole number from `low` to `high` for which `is_so` is true.

    It is true for `low`. If it is false for a number, it is false for all larger ones.
    """
    if is_so(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if is_so(middle):
            low = middle
        else:
            high = middle
    return low
