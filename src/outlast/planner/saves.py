"""How far training gets in some seconds, and what each tier then holds: in closed form, for many runs at once. `course.py` walks from save to save instead.

Units      positions in steps, all else in seconds.
Symbols    pace  seconds of training per step, without stalls; larger in a run that has shrunk
Method     The position x is reached after A(x) = (x - begin) pace + the stalls of all saves that lie strictly between. Tiers are gone through from the longest
           interval to the shortest: how many multiples of this one have been reached? Between the last of these and the answer lies no save of a tier
           already dealt with, so that the next one starts from there. Where all shorter intervals divide a longer one, each round of it takes as long,
           and a division tells; else it is guessed from the mean pace and put right, which takes four rounds at most (the guess is off by no more
           than all stalls of one round, and these lie within one interval of the longest).
Limits     Positions below 2^53 steps are exact.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlast.planner.scenario import Scenario

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

STANDSTILL_PACE_S = 1e200  # of a run without nodes: finite, so that no product of it is undefined


@dataclass(frozen=True)
class Reached:
    """position (n,). Those at `rows` are within stalls, since `since_s` seconds."""

    position: Floats
    rows: Indices
    since_s: Floats


class Saves:
    """Of one scenario's tiers."""

    def __init__(self, scenario: Scenario) -> None:
        self._tiers = [(scenario.interval_steps(tier), tier.stall_s, tier.write_s, scenario.is_live(tier)) for tier in scenario.tiers]
        stalls: dict[float, float] = {}
        for steps, stall_s, _, _ in self._tiers:
            if stall_s and math.isfinite(steps):
                stalls[steps] = stalls.get(steps, 0.0) + stall_s
        self._stalls = sorted(stalls.items(), reverse=True)  # (interval, seconds), the longest interval first

    def held(self, begin: Floats, left_s: Floats, pace: Floats | float, before: Floats) -> tuple[Floats, Floats]:
        """Position, and what each tier holds, after `left_s` seconds from `begin` on; `before` (tiers, n): what it held then."""
        reached = {0.0: self.reached(begin, left_s, pace)}
        now = np.empty_like(before)
        for index, (steps, _, write_s, alive) in enumerate(self._tiers):
            if alive:
                np.floor(reached[0.0].position, out=now[index])
            elif math.isinf(steps):
                now[index] = before[index]
            else:
                if write_s not in reached:
                    reached[write_s] = self.reached(begin, np.maximum(left_s - write_s, 0.0), pace)
                saved = self._saved(index, reached[write_s])
                now[index] = np.where(saved > begin, saved, before[index])
        return reached[0.0].position, now

    def _saved(self, index: int, reached: Reached) -> Floats:
        """The newest multiple of this tier's interval whose stall is over. It may lie before the beginning."""
        steps = self._tiers[index][0]
        saved = np.floor(reached.position / steps) * steps
        if reached.rows.size:
            at = reached.position[reached.rows]
            over_s = np.zeros(at.shape)
            for other, stall_s, _, alive in self._tiers[: index + 1]:
                if not alive and math.isfinite(other):
                    over_s += np.where(at % other == 0, stall_s, 0.0)
            saved[reached.rows] -= np.where((saved[reached.rows] == at) & (reached.since_s < over_s), steps, 0.0)
        return saved

    def reached(self, begin: Floats, left_s: Floats, pace: Floats | float) -> Reached:
        """Where training is, `left_s` seconds after it went on at `begin`."""
        at, left, stood = begin, left_s, np.zeros(0)
        rows: Indices = np.zeros(0, dtype=np.intp)
        for level, (steps, stall_s) in enumerate(self._stalls):
            shorter = self._stalls[level + 1 :]
            nested = all(steps % other == 0 for other, _ in shorter)
            newest, arrived_s = (_by_rounds if nested else _by_guess)(at, left, pace, steps, stall_s, shorter)
            due_s = stall_s + sum(other_s if nested else np.where(newest % other == 0, other_s, 0.0) for other, other_s in shorter)
            over = left - arrived_s - due_s
            saved = newest > at
            inside = saved & (over < 0)
            if inside.any():
                now = np.flatnonzero(inside)
                stood = np.concatenate([stood, (left - arrived_s)[now]])
                rows = np.concatenate([rows, now])
            at, left = np.where(saved, newest, at), np.where(saved, np.maximum(over, 0.0), left)
        return Reached(at + left / pace, rows, stood)


def _by_rounds(at: Floats, left: Floats, pace: Floats | float, steps: float, stall_s: float, shorter: list[tuple[float, float]]) -> tuple[Floats, Floats]:
    """The newest multiple of `steps` that is reached, and after how long. It does not lie beyond `at` where none is."""
    ahead = np.floor(at / steps) + 1
    first_s = (ahead * steps - at) * pace
    round_s = steps * pace + stall_s
    for other, other_s in shorter:
        first_s = first_s + other_s * (ahead * (steps / other) - 1 - np.floor(at / other))
        round_s = round_s + other_s * (steps / other)
    rounds = np.floor((left - first_s) / round_s)  # -1 where the first is not reached: it is less than a round away
    return (ahead + rounds) * steps, first_s + rounds * round_s


def _by_guess(at: Floats, left: Floats, pace: Floats | float, steps: float, stall_s: float, shorter: list[tuple[float, float]]) -> tuple[Floats, Floats]:
    """The same where intervals do not divide each other."""
    passed = [(other, other_s, np.floor(at / other)) for other, other_s in shorter]
    none = np.floor(at / steps)

    def after_s(count: Floats) -> Floats:
        there = count * steps
        total = (there - at) * pace + stall_s * (count - none - 1)
        for other, other_s, already in passed:
            total += other_s * (np.ceil(there / other) - 1 - already)
        return total

    mean_s = pace + stall_s / steps + sum(other_s / other for other, other_s in shorter)
    count = np.maximum(np.floor((at + left / mean_s) / steps), none)
    while (more := after_s(count + 1) <= left).any():
        count += more
    while (fewer := (count > none) & (after_s(count) > left)).any():
        count -= fewer
    return count * steps, after_s(count)
