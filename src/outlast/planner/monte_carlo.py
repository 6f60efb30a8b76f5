"""The course of many runs at once, in NumPy: for sweeps, optimisation and scale. Replica by replica it is what `course.live` says.

Units      seconds; positions inside are in steps, times without maintenance stops.
Method     The k-th failure of all replicas is one round of the loop; between two failures, closed forms (`saves.py`, `repairs.py`) say how far training got,
           what is saved and when nodes come back. Replicas whose k-th failure does not strike (`strikes.py`) sit the round out.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlast.model.terms import Cause
from outlast.planner.histories import Histories, Luck
from outlast.planner.repairs import ALL, Returns, Rows
from outlast.planner.saves import STANDSTILL_PACE_S, Floats, Saves
from outlast.planner.scenario import Scenario
from outlast.planner.strikes import Counts, Flags, Seconds, Strikes


@dataclass(frozen=True)
class Outcomes:
    """One entry, or row, for each of R replicas.

    position_s     productive seconds kept
    kept_s         of these, what had been reached when training last went on after an interruption
    seconds        by cause; they sum to the duration
    interruptions  failures that struck
    lost_s         (R, C): what failures of each class cost: work repeated, and the recovery until the next failure
    wait_s, waits  seconds waited for nodes, and how many recoveries did
    beyond_bound   there were more lemons than `Scenario.lemons_bound`
    """

    position_s: Floats
    kept_s: Floats
    seconds: dict[Cause, Floats]
    interruptions: Counts
    lost_s: Floats
    wait_s: Floats
    waits: Counts
    beyond_bound: Flags


def run(scenario: Scenario, histories: Histories) -> Outcomes:
    """Every replica of these histories, which were drawn for this scenario's job, failures and lemons."""
    strikes = Strikes(scenario, histories)
    runs = _Runs(scenario, histories, strikes)
    for k in range(strikes.count):
        now = strikes.now(k)
        if now.all():
            runs.fail(k, ALL)
        elif now.any():
            runs.fail(k, np.flatnonzero(now))
    return runs.ended()


class _Standing:
    """Phases in which a run stands still, by their ends; each (R,). Before `since_s` all is booked."""

    def __init__(self, replicas: int) -> None:
        self.since_s, self.detected_s, self.regrouped_s, self.ready_s, self.taken_s, self.resumes_s = np.zeros((6, replicas))

    def begin(self, runs: Rows, since_s: Floats, detected_s: Floats, regrouped_s: Floats, ready_s: Floats, taken_s: Floats, resumes_s: Floats) -> None:
        self.since_s[runs], self.detected_s[runs], self.regrouped_s[runs] = since_s, detected_s, regrouped_s
        self.ready_s[runs], self.taken_s[runs], self.resumes_s[runs] = ready_s, taken_s, resumes_s


class _Booked:
    """Seconds so far. `lost_s` has a column more than there are classes: for regroups that take nodes in, which are nobody's."""

    def __init__(self, replicas: int, classes: int) -> None:
        self.detection, self.regroup, self.wait, self.restore, self.stall, self.degraded, self.repeated = np.zeros((7, replicas))
        self.waits = np.zeros(replicas, dtype=np.int64)
        self.lost_s = np.zeros(replicas * (classes + 1))


class _Runs:
    """All replicas. Each trains from `_position` on since `_standing.resumes_s`, or will; what happened before that is booked."""

    def __init__(self, scenario: Scenario, histories: Histories, strikes: Strikes) -> None:
        replicas, self._classes = histories.replicas, len(scenario.failures)
        self._scenario, self._strikes = scenario, strikes
        recovery = scenario.recovery
        self._detect, self._regroup = Seconds(recovery.detect, histories, Luck.DETECT), Seconds(recovery.regroup, histories, Luck.REGROUP)
        self._take, self._repair = Seconds(recovery.take, histories, Luck.TAKE), Seconds(scenario.repair.time, histories, Luck.REPAIR)
        self._restore = [Seconds(tier.restore, histories, Luck.RESTORE) for tier in scenario.tiers]
        self._survives = np.array([int(tier.survives) for tier in scenario.tiers], dtype=np.int8)[:, None]
        self._saves = Saves(scenario)
        self._position = np.zeros(replicas)
        self._held = np.zeros((len(scenario.tiers), replicas))  # steps; -1: nothing
        self._standing = _Standing(replicas)
        self._booked = _Booked(replicas, self._classes)
        self._extent = np.zeros(replicas, dtype=np.int8)
        self._numbers = np.arange(replicas)
        self._first_column = self._numbers * (self._classes + 1)
        self._charged = self._first_column + self._classes  # whose the present standstill is
        self._returns = Returns(scenario, replicas) if strikes.loses_nodes else None
        self._nodes_lost = np.zeros(replicas, dtype=np.int64)  # in the present recovery
        self._missing = np.zeros(replicas, dtype=np.int64)  # nodes that the run goes on without
        self._regroup_s = np.zeros(replicas)  # as long as the last one

    # --- between failures ---

    def _go_on_until(self, runs: Rows, until_s: Floats) -> None:
        self._stand(runs, until_s)
        if self._scenario.recovery.shrinks and self._returns:
            self._take_nodes_in(self._returns, self._numbers[runs], until_s)
        self._train(runs, np.maximum(until_s - self._standing.resumes_s[runs], 0.0))

    def _stand(self, runs: Rows, until_s: Floats) -> None:
        standing, booked = self._standing, self._booked
        since, detected = standing.since_s[runs], np.minimum(standing.detected_s[runs], until_s)
        taken, resumed = np.minimum(standing.taken_s[runs], until_s), np.minimum(standing.resumes_s[runs], until_s)
        booked.detection[runs] += detected - since
        booked.regroup[runs] += taken - detected
        booked.restore[runs] += resumed - taken
        booked.lost_s[self._charged[runs]] += resumed - since
        if self._returns:
            waited = np.minimum(standing.ready_s[runs], until_s) - np.minimum(standing.regrouped_s[runs], until_s)
            booked.wait[runs] += waited
            booked.waits[runs] += waited > 0

    def _take_nodes_in(self, returns: Returns, runs: NDArray[np.intp], until_s: Floats) -> None:
        """Runs that train again: with whom, and for those who lack somebody, one regroup after another until nobody comes back in time."""
        standing = self._standing
        while runs.size:
            trains = standing.resumes_s[runs] <= until_s
            runs, until_s = runs[trains], until_s[trains]
            resumed_s = standing.resumes_s[runs]
            self._missing[runs] = returns.lacking(runs, resumed_s)
            back_s = np.where(self._missing[runs] > 0, returns.next_s(runs, resumed_s), np.inf)
            comes = back_s < until_s
            runs, until_s, back_s = runs[comes], until_s[comes], back_s[comes]
            self._train(runs, back_s - standing.resumes_s[runs])
            in_s = back_s + self._regroup_s[runs]
            standing.begin(runs, back_s, back_s, in_s, in_s, in_s, in_s)
            self._extent[runs], self._nodes_lost[runs] = -1, 0
            self._charged[runs] = self._first_column[runs] + self._classes
            self._stand(runs, until_s)

    def _train(self, runs: Rows, left_s: Floats) -> None:
        """For so long, with nobody coming or going; then what is being written is cut off."""
        step_s, nodes, booked = self._scenario.job.step_s, self._scenario.job.nodes, self._booked
        begin = self._position[runs]
        if not self._scenario.recovery.shrinks:
            position, self._held[:, runs] = self._saves.held(begin, left_s, step_s, self._held[:, runs])
            booked.stall[runs] += left_s - (position - begin) * step_s
        else:
            stands = self._missing[runs] == nodes
            pace = np.where(stands, STANDSTILL_PACE_S, step_s * nodes / np.maximum(nodes - self._missing[runs], 1))
            position, self._held[:, runs] = self._saves.held(begin, left_s, pace, self._held[:, runs])
            trained_s = np.where(stands, left_s, (position - begin) * pace)
            booked.stall[runs] += left_s - trained_s
            booked.degraded[runs] += trained_s - (position - begin) * step_s
        self._position[runs] = position

    # --- a failure ---

    def fail(self, k: int, runs: Rows) -> None:
        """The k-th failure strikes these. Everything that follows is known now, unless another failure cuts it off."""
        at_s, standing = self._strikes.at_s[k][runs], self._standing
        self._go_on_until(runs, at_s)
        recovers = at_s < standing.resumes_s[runs]
        extent = self._strikes.extent[k][runs]
        extent = np.where(recovers, np.maximum(self._extent[runs], extent), extent)
        lost_s, restore_s = self._fall_back(k, runs, extent)
        detected_s = at_s + self._detect.at(k, runs)
        regroup_s = self._regroup.at(k, runs)
        regrouped_s = detected_s + regroup_s
        ready_s, taken_s = self._replace(self._returns, k, runs, recovers, regrouped_s) if self._returns else (regrouped_s, regrouped_s)
        standing.begin(runs, at_s, detected_s, regrouped_s, ready_s, taken_s, taken_s + restore_s)
        self._extent[runs], self._regroup_s[runs] = extent, regroup_s
        self._charged[runs] = self._first_column[runs] + self._strikes.failure_class[k][runs]
        self._booked.lost_s[self._charged[runs]] += lost_s

    def _fall_back(self, k: int, runs: Rows, extent: NDArray[np.int8]) -> tuple[Floats, Floats]:
        """Seconds lost, and seconds that the restore will take."""
        held = np.where(self._survives >= extent, self._held[:, runs], -1.0)
        newest = held.max(axis=0, initial=-1.0)
        restored = np.maximum(newest, 0.0)
        restore_s = np.full(newest.shape, np.inf)
        for tier, holds in zip(self._restore, held, strict=True):
            restore_s = np.where(holds == newest, np.minimum(restore_s, tier.at(k, runs)), restore_s)
        lost_s = (self._position[runs] - restored) * self._scenario.job.step_s
        self._held[:, runs], self._position[runs] = held, restored
        self._booked.repeated[runs] += lost_s
        return lost_s, np.where(newest >= 0, restore_s, 0.0)

    def _replace(self, returns: Returns, k: int, runs: Rows, recovers: Flags, regrouped_s: Floats) -> tuple[Floats, Floats]:
        """When nodes are at hand, and when they have been taken in."""
        count, at_s = self._strikes.nodes_lost(k), self._strikes.at_s[k]
        back_s = at_s.copy()
        back_s[runs] += self._repair.at(k, runs)
        returns.lose(at_s, back_s, count)
        lost = count[runs] + np.where(recovers, self._nodes_lost[runs], 0)
        self._nodes_lost[runs] = lost
        if self._scenario.recovery.shrinks:
            ready_s, taken = regrouped_s, self._missing[runs] + lost - returns.lacking(runs, regrouped_s)
        else:
            ready_s, taken = returns.complete_s(runs, regrouped_s), lost
        return ready_s, ready_s + np.where(taken > 0, self._take.at(k, runs), 0.0)

    def ended(self) -> Outcomes:
        """The run is over."""
        scenario, booked = self._scenario, self._booked
        duration_s, step_s = scenario.job.duration_s, scenario.job.step_s
        worked_s = scenario.maintenance.worked_s(duration_s)
        kept_s = self._position * step_s
        self._go_on_until(ALL, np.full(len(self._position), worked_s))
        position_s = self._position * step_s
        seconds = {cause: np.zeros(len(position_s)) for cause in Cause}
        seconds |= {
            Cause.PRODUCTIVE: position_s, Cause.STALL: booked.stall, Cause.REPEATED: booked.repeated, Cause.DETECTION: booked.detection,
            Cause.REGROUP: booked.regroup, Cause.RESTORE: booked.restore, Cause.DEGRADED: booked.degraded,
            Cause.OTHER: np.full(len(position_s), duration_s - worked_s),
        }  # fmt: skip
        lost_s = booked.lost_s.reshape(len(position_s), self._classes + 1)[:, : self._classes]
        return Outcomes(
            position_s, np.minimum(kept_s, position_s), seconds, self._strikes.interruptions, lost_s, booked.wait, booked.waits, self._strikes.beyond_bound
        )  # fmt: skip
