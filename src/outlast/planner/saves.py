"""Compute how far training gets in some seconds, and what each tier then holds.

Closed forms do this for many runs at once.

Units      Positions are in steps, all else is in seconds.
Symbols    pace  seconds of training per step, without stalls; larger in a run that has shrunk
           n     number of runs
           J     number of tiers
Method     Training reaches position x after (x - begin) pace seconds, plus the stalls of all saves
           in between. Tiers are handled from the longest interval to the shortest. For each one,
           the last multiple of its interval that training reaches is found. After that position
           there is no save of this tier any more, so the next tier begins there.
             Rounds    If all shorter intervals divide a longer one, all its rounds take equally
                       long. Then a division gives the answer.
             Estimate  Otherwise the answer is estimated from the mean pace, and corrected. The
                       estimate is wrong by at most four intervals: by all stalls of one round,
                       before and after. These are no more than the mean pace spends on one longest
                       interval.
Held       A tier holds a position whose stall was over at least `write` seconds ago. That is
           computed in the same way, only for the runs in which it makes a difference.
Limits     Positions below 2^53 steps are exact.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from outlast.planner.scenario import Scenario

Floats = NDArray[np.float64]

STANDSTILL_PACE_S = 1e200  # pace of a run without nodes; finite, as 0 times infinity is undefined
NEARLY = 1 - 1e-9  # a factor just below 1, to allow for rounding
NEVER_STEPS = 1e300  # interval of a tier that never saves; finite for the same reason


class ScenarioSaves:
    """The saves of one scenario's tiers."""

    def __init__(self, scenario: Scenario) -> None:
        tiers = scenario.tiers
        self._steps = _column(min(scenario.interval_steps(tier), NEVER_STEPS) for tier in tiers)
        self._stall_s, self._write_s = (
            _column(tier.stall_s for tier in tiers),
            _column(tier.write_s for tier in tiers),
        )
        self._live = _column(scenario.is_live(tier) for tier in tiers) > 0
        self._writes = bool(self._write_s.any())
        stalls: dict[float, float] = {}
        for tier in tiers:
            stalls[scenario.interval_steps(tier)] = (
                stalls.get(scenario.interval_steps(tier), 0.0) + tier.stall_s
            )
        self._stalls = sorted(
            (
                (steps, seconds)
                for steps, seconds in stalls.items()
                if seconds and math.isfinite(steps)
            ),
            reverse=True,
        )

    def held(
        self, begin: Floats, left_s: Floats, pace: Floats | float, before: Floats
    ) -> tuple[Floats, Floats]:
        """Return the positions, (n,), and what each tier holds, (J, n), after `left_s` seconds.

        begin   (n,): the position from which training goes on
        before  (J, n): what each tier holds then
        """
        at, left = self._reached(begin, left_s, pace)
        position = at + np.maximum(left, 0.0) / pace
        saved = np.floor(position / self._steps)
        saved *= self._steps
        stands = np.flatnonzero(left < 0)
        if stands.size:
            saved[:, stands] -= np.where(self._cut(at[stands], -left[stands]), self._steps, 0.0)
        if self._writes:
            trained_s = (position - saved) * pace  # the write has lasted at least this long
            tiers, runs = np.nonzero((trained_s < self._write_s) & (saved > begin))
            saved[tiers, runs] = self._written(
                tiers,
                begin[runs],
                left_s[runs],
                pace[runs] if isinstance(pace, np.ndarray) else pace,
            )
        return position, np.where((saved > begin) | self._live, saved, before)

    def _written(
        self, tiers: NDArray[np.intp], begin: Floats, left_s: Floats, pace: Floats | float
    ) -> Floats:
        """Return the newest multiple of a tier's interval whose stall was over `write` seconds ago.

        The entries of the arguments belong to one tier in one run each. A result may lie before the
        beginning of the stretch.
        """
        steps = self._steps[tiers, 0]
        at, left = self._reached(begin, np.maximum(left_s - self._write_s[tiers, 0], 0.0), pace)
        saved: Floats = np.floor((at + np.maximum(left, 0.0) / pace) / steps) * steps
        stands = np.flatnonzero(left < 0)
        if stands.size:
            saved[stands] -= np.where(
                self._cut(at[stands], -left[stands])[tiers[stands], np.arange(stands.size)],
                steps[stands],
                0.0,
            )
        return saved

    def _cut(self, there: Floats, to_come_s: Floats) -> NDArray[np.bool_]:
        """Return the tiers whose own stall is not over, (J, n).

        there      the positions in whose stalls training is
        to_come_s  the seconds of these stalls that are still to come
        """
        due = there % self._steps == 0
        upto_s = np.cumsum(due * self._stall_s, axis=0)
        cut: NDArray[np.bool_] = due & ~self._live & (to_come_s > upto_s[-1:] - upto_s)
        return cut

    def _reached(
        self, begin: Floats, left_s: Floats, pace: Floats | float
    ) -> tuple[Floats, Floats]:
        """Return the last position with a stall that is reached, and the seconds since its stalls.

        If no such position is reached, it is `begin`. If the seconds are negative, so much of the
        stalls is still to come.
        """
        at, left = begin, left_s
        for level, (steps, stall_s) in enumerate(self._stalls):
            shorter = self._stalls[level + 1 :]
            if all(steps % other == 0 for other, _ in shorter):
                newest, arrived_s = _by_rounds(at, left, pace, steps, stall_s, shorter)
                due_s: Floats | float = stall_s + sum(other_s for _, other_s in shorter)
            else:
                newest, arrived_s = _by_guess(at, left, pace, steps, stall_s, shorter)
                due_s = stall_s + sum(
                    np.where(newest % other == 0, other_s, 0.0) for other, other_s in shorter
                )
            arrived_s += due_s
            left = np.where(newest > at, left - arrived_s, left)
            at = np.maximum(newest, at)
        return at, left


def _column(values: Iterable[float]) -> Floats:
    return np.array([[float(value)] for value in values]).reshape(-1, 1)


def _by_rounds(
    at: Floats,
    left: Floats,
    pace: Floats | float,
    steps: float,
    stall_s: float,
    shorter: list[tuple[float, float]],
) -> tuple[Floats, Floats]:
    """Return the newest multiple of `steps` that is reached, and after how many seconds.

    The result is not beyond `at` if no multiple is reached, or if stalls are still to come.
    """
    ahead = np.floor(at / steps) + 1
    first_s = (ahead * steps - at) * pace
    round_s = steps * pace + stall_s
    for other, other_s in shorter:
        first_s += (ahead * (steps / other) - 1 - np.floor(at / other)) * other_s
        round_s = round_s + other_s * (steps / other)
    rounds = left - first_s
    rounds /= round_s
    # negative if the first multiple is not reached, which is less than a round away
    np.floor(rounds, out=rounds)
    arrived_s = rounds * round_s
    arrived_s += first_s
    rounds += ahead
    rounds *= steps
    return rounds, arrived_s


def _by_guess(
    at: Floats,
    left: Floats,
    pace: Floats | float,
    steps: float,
    stall_s: float,
    shorter: list[tuple[float, float]],
) -> tuple[Floats, Floats]:
    """Return the same as `_by_rounds`, for intervals that do not divide each other."""
    passed = [(other, other_s, np.floor(at / other)) for other, other_s in shorter]
    none = np.floor(at / steps)

    def after_s(count: Floats, runs: slice | NDArray[np.intp]) -> Floats:
        there = count * steps
        total = (there - at[runs]) * (
            pace[runs] if isinstance(pace, np.ndarray) else pace
        ) + stall_s * (count - none[runs] - 1)
        for other, other_s, already in passed:
            total += other_s * (np.ceil(there / other) - 1 - already[runs])
        return total

    mean_s = pace + stall_s / steps + sum(other_s / other for other, other_s in shorter)
    count = np.maximum(np.floor((at + left / mean_s) / steps), none)
    arrived_s = after_s(count, slice(None))
    # An interval takes at least steps * pace seconds, so few runs need a correction.
    more = np.flatnonzero(left - arrived_s > NEARLY * steps * pace)
    while (more := more[after_s(count[more] + 1, more) <= left[more]]).size:
        count[more] += 1
        arrived_s[more] = after_s(count[more], more)
    fewer = np.flatnonzero(arrived_s > left)
    while (fewer := fewer[(count[fewer] > none[fewer]) & (arrived_s[fewer] > left[fewer])]).size:
        count[fewer] -= 1
        arrived_s[fewer] = after_s(count[fewer], fewer)
    return count * steps, arrived_s
