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
from outlast.planner.strikes import Counts, Flags, Seconds, Strike, Strikes


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
    runs = _Runs(scenario, histories, loses_nodes=strikes.loses_nodes)
    for strike in strikes:
        runs.fail(strike)
    return runs.ended(strikes)


class _Standing:
    """Phases in which a run stands still, by their ends; each (R,). Before `since_s` all is booked."""

    def __init__(self, replicas: int) -> None:
        self.since_s, self.detected_s, self.regrouped_s, self.ready_s, self.taken_s, self.resumes_s = np.zeros((6, replicas))

    def begin(self, runs: Flags, since_s: Floats, detected_s: Floats, regrouped_s: Floats, ready_s: Floats, taken_s: Floats, resumes_s: Floats) -> None:
        """All of (R,), of those `runs`."""
        np.copyto(self.since_s, since_s, where=runs)
        np.copyto(self.detected_s, detected_s, where=runs)
        np.copyto(self.regrouped_s, regrouped_s, where=runs)
        np.copyto(self.ready_s, ready_s, where=runs)
        np.copyto(self.taken_s, taken_s, where=runs)
        np.copyto(self.resumes_s, resumes_s, where=runs)


class _Booked:
    """Seconds so far. `lost_s` has a column more than there are classes: for regroups that take nodes in, which are nobody's."""

    def __init__(self, replicas: int, classes: int) -> None:
        self.detection, self.regroup, self.wait, self.restore, self.stall, self.degraded, self.repeated = np.zeros((7, replicas))
        self.waits = np.zeros(replicas, dtype=np.int64)
        self.lost_s = np.zeros(replicas * (classes + 1))


class _Runs:
    """All replicas. Each trains from `_position` on since `_standing.resumes_s`, or will; what happened before that is booked."""

    def __init__(self, scenario: Scenario, histories: Histories, *, loses_nodes: bool) -> None:
        replicas, self._classes = histories.replicas, len(scenario.failures)
        self._scenario = scenario
        self._waits = _Waits(scenario, histories)
        self._survives = np.array([int(tier.survives) for tier in scenario.tiers], dtype=np.int8)[:, None]
        self._saves = Saves(scenario)
        self._position = np.zeros(replicas)
        self._held = np.zeros((len(scenario.tiers), replicas))  # steps; -1: nothing
        self._standing = _Standing(replicas)
        self._booked = _Booked(replicas, self._classes)
        self._extent = np.zeros(replicas, dtype=np.int8)
        self._first_column = np.arange(replicas) * (self._classes + 1)
        self._charged = self._first_column + self._classes  # whose the present standstill is
        self._returns = Returns(scenario, replicas) if loses_nodes else None
        self._nodes_lost = np.zeros(replicas, dtype=np.int64)  # in the present recovery
        self._missing = np.zeros(replicas, dtype=np.int64)  # nodes that the run goes on without
        self._regroup_s = np.zeros(replicas)  # as long as the last one

    # --- between failures ---

    def _go_on_until(self, until_s: Floats) -> Floats:
        """Where they are then, (R,). What tiers hold is put down; the position is for the caller to decide."""
        self._stand(until_s)
        if self._scenario.recovery.shrinks and self._returns:
            self._take_nodes_in(self._returns, until_s)
        position, self._held = self._train(ALL, np.maximum(until_s - self._standing.resumes_s, 0.0))
        return position

    def _stand(self, until_s: Floats) -> None:
        standing, booked = self._standing, self._booked
        detected_s, taken_s = np.minimum(standing.detected_s, until_s), np.minimum(standing.taken_s, until_s)
        resumed_s = np.minimum(standing.resumes_s, until_s)
        booked.detection += detected_s - standing.since_s
        booked.regroup += taken_s - detected_s
        booked.restore += resumed_s - taken_s
        booked.lost_s[self._charged] += resumed_s - standing.since_s
        if self._returns:
            waited_s = np.minimum(standing.ready_s, until_s) - np.minimum(standing.regrouped_s, until_s)
            booked.wait += waited_s
            booked.waits += waited_s > 0

    def _take_nodes_in(self, returns: Returns, until_s: Floats) -> None:
        """Runs that train again: with whom, and for those who lack somebody, one regroup after another until nobody comes back in time."""
        standing = self._standing
        runs = np.arange(len(until_s))
        while runs.size:
            runs = runs[standing.resumes_s[runs] <= until_s[runs]]
            resumed_s = standing.resumes_s[runs]
            self._missing[runs] = returns.lacking(runs, resumed_s)
            back_s = np.where(self._missing[runs] > 0, returns.next_s(runs, resumed_s), np.inf)
            comes = back_s < until_s[runs]
            runs, back_s = runs[comes], back_s[comes]
            self._position[runs], self._held[:, runs] = self._train(runs, back_s - standing.resumes_s[runs])
            self._regroup_again(runs, back_s, until_s[runs])

    def _regroup_again(self, runs: NDArray[np.intp], back_s: Floats, until_s: Floats) -> None:
        """To take somebody in. It is booked at once, as nobody's."""
        standing, in_s = self._standing, back_s + self._regroup_s[runs]
        for ends_s in (standing.detected_s, standing.regrouped_s, standing.ready_s, standing.taken_s, standing.resumes_s):
            ends_s[runs] = in_s
        self._booked.regroup[runs] += np.minimum(in_s, until_s) - back_s
        self._extent[runs], self._nodes_lost[runs] = -1, 0

    def _train(self, runs: Rows, left_s: Floats) -> tuple[Floats, Floats]:
        """For so long, with nobody coming or going; then what is being written is cut off. Positions and what tiers hold."""
        step_s, nodes, booked = self._scenario.job.step_s, self._scenario.job.nodes, self._booked
        begin = self._position[runs]
        if not self._scenario.recovery.shrinks:
            position, held = self._saves.held(begin, left_s, step_s, self._held[:, runs])
            booked.stall[runs] += left_s - (position - begin) * step_s
        else:
            stands = self._missing[runs] == nodes
            pace = np.where(stands, STANDSTILL_PACE_S, step_s * nodes / np.maximum(nodes - self._missing[runs], 1))
            position, held = self._saves.held(begin, left_s, pace, self._held[:, runs])
            trained_s = np.where(stands, left_s, (position - begin) * pace)
            booked.stall[runs] += left_s - trained_s
            booked.degraded[runs] += trained_s - (position - begin) * step_s
        return position, held

    # --- a failure ---

    def fail(self, strike: Strike) -> None:
        """Everything that follows is known now, unless another failure cuts it off. Runs that are not struck stand still since they last did: 0 s."""
        standing, strikes = self._standing, strike.strikes
        at_s = np.where(strikes, strike.at_s, standing.since_s)
        position = self._go_on_until(at_s)
        recovers = at_s < standing.resumes_s
        extent = np.where(recovers, np.maximum(self._extent, strike.extent), strike.extent)
        restored, restore_s = self._fall_back(strike, extent)
        lost_s = np.where(strikes, (position - restored) * self._scenario.job.step_s, 0.0)
        detected_s = at_s + self._waits.detect.at(strike.k)
        regroup_s = self._waits.regroup.at(strike.k)
        regrouped_s = detected_s + regroup_s
        ready_s, taken_s = self._replace(self._returns, strike, recovers, regrouped_s) if self._returns else (regrouped_s, regrouped_s)
        standing.begin(strikes, at_s, detected_s, regrouped_s, ready_s, taken_s, taken_s + restore_s)
        np.copyto(self._position, restored, where=strikes)
        np.copyto(self._extent, extent, where=strikes)
        np.copyto(self._regroup_s, regroup_s, where=strikes)
        np.copyto(self._charged, self._first_column + strike.failure_class, where=strikes)
        self._booked.repeated += lost_s
        self._booked.lost_s[self._charged] += lost_s

    def _fall_back(self, strike: Strike, extent: NDArray[np.int8]) -> tuple[Floats, Floats]:
        """The position to go on from, and seconds that it takes to restore it."""
        np.copyto(self._held, -1.0, where=(self._survives < extent) & strike.strikes)
        newest = self._held.max(axis=0, initial=-1.0)
        restore_s = np.full(newest.shape, np.inf)
        for tier, held in zip(self._waits.restore, self._held, strict=True):
            np.minimum(restore_s, np.where(held == newest, tier.at(strike.k), np.inf), out=restore_s)
        return np.maximum(newest, 0.0), np.where(newest >= 0, restore_s, 0.0)

    def _replace(self, returns: Returns, strike: Strike, recovers: Flags, regrouped_s: Floats) -> tuple[Floats, Floats]:
        """When nodes are at hand, and when they have been taken in."""
        returns.lose(strike.at_s, strike.at_s + self._waits.repair.at(strike.k), strike.nodes_lost)
        lost = strike.nodes_lost + np.where(recovers, self._nodes_lost, 0)
        np.copyto(self._nodes_lost, lost, where=strike.strikes)
        if self._scenario.recovery.shrinks:
            ready_s, taken = regrouped_s, self._missing + lost - returns.lacking(ALL, regrouped_s)
        else:
            ready_s, taken = returns.complete_s(ALL, regrouped_s), lost
        return ready_s, ready_s + np.where(taken > 0, self._waits.take.at(strike.k), 0.0)

    def ended(self, strikes: Strikes) -> Outcomes:
        """The run is over."""
        scenario, booked = self._scenario, self._booked
        duration_s, step_s, replicas = scenario.job.duration_s, scenario.job.step_s, len(self._position)
        worked_s = scenario.maintenance.worked_s(duration_s)
        position_s = self._go_on_until(np.full(replicas, worked_s)) * step_s
        seconds = {cause: np.zeros(replicas) for cause in Cause}
        seconds |= {
            Cause.PRODUCTIVE: position_s, Cause.STALL: booked.stall, Cause.REPEATED: booked.repeated, Cause.DETECTION: booked.detection,
            Cause.REGROUP: booked.regroup, Cause.RESTORE: booked.restore, Cause.DEGRADED: booked.degraded,
            Cause.OTHER: np.full(replicas, duration_s - worked_s),
        }  # fmt: skip
        lost_s = booked.lost_s.reshape(replicas, self._classes + 1)[:, : self._classes]
        return Outcomes(position_s, self._position * step_s, seconds, strikes.interruptions, lost_s, booked.wait, booked.waits, strikes.beyond_bound)


class _Waits:
    """How long each phase lasts."""

    def __init__(self, scenario: Scenario, histories: Histories) -> None:
        recovery = scenario.recovery
        self.detect, self.regroup = Seconds(recovery.detect, histories, Luck.DETECT), Seconds(recovery.regroup, histories, Luck.REGROUP)
        self.take, self.repair = Seconds(recovery.take, histories, Luck.TAKE), Seconds(scenario.repair.time, histories, Luck.REPAIR)
        self.restore = [Seconds(tier.restore, histories, Luck.RESTORE) for tier in scenario.tiers]
