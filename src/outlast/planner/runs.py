"""Monte Carlo: compute many runs of a scenario at once, in NumPy. `monte_carlo.py` calls it.

Units      Times are in seconds. Inside, positions are in steps, and times leave maintenance out.
Method     Each round of a loop handles the k-th failure of all replicas. Between two failures,
           closed forms (`saves.py`, `repairs.py`) say how far training gets, what is saved, and
           when nodes come back. A replica whose k-th failure does not strike (`strikes.py`) does
           not change in that round.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.model.terms import Cause
from outlast.planner.histories import Histories, Luck
from outlast.planner.outcomes import Outcomes
from outlast.planner.repairs import ALL, Returns, Rows
from outlast.planner.saves import STANDSTILL_PACE_S, Floats, ScenarioSaves
from outlast.planner.scenario import Scenario
from outlast.planner.strikes import Counts, Flags, Seconds, SecondsEach, Strike, Strikes

SINCE, RESUMES = 0, 5  # rows of _State.ends_s
REGROUP, WAIT = 1, 2  # rows of _State.spent_s


def run(scenario: Scenario, histories: Histories) -> Outcomes:
    """Return the outcome of each replica. The histories were drawn for this scenario."""
    strikes = Strikes(scenario, histories)
    runs = Runs(scenario, histories, strikes)
    for strike in strikes:
        runs.fail(strike)
    return runs.ended(strikes)


class _State:
    """The state of each replica, in arrays of shape (R,) if not said otherwise.

    ends_s        (6, R): the times of the present or last recovery: the failure, and the ends of
                  detection, of the regroup, of waiting for nodes, of taking them in, and of the
                  restore. At the last one, training goes on
    spent_s       (5, R): the booked seconds of the phases between these times
    position      the step from which the replica trains
    held          (J, R): the newest step that each tier holds; -1: none
    extent        the extent of the present recovery; -1 if it only takes nodes in
    nodes_lost    the number of nodes lost in the present recovery
    missing       the number of nodes that the replica lacks while it trains
    regroup_s     how long the last regroup took
    lost_s        (R x (C + 1),): the seconds that each class of failure cost each replica; the last
                  column of a replica belongs to no class
    charged       the index into lost_s to which the present recovery is charged
    first_column  the index into lost_s of each replica's first class
    """

    ends_s: Floats
    spent_s: Floats
    position: Floats
    held: Floats
    extent: NDArray[np.int8]
    nodes_lost: Counts
    missing: Counts
    regroup_s: Floats
    first_column: Counts
    charged: Counts
    waits: Counts
    stall_s: Floats
    degraded_s: Floats
    repeated_s: Floats

    def __init__(self, replicas: int, tiers: int, classes: int) -> None:
        self._whole: dict[str, NDArray[Any]] = {
            name: np.zeros(replicas)
            for name in ("position", "regroup_s", "stall_s", "degraded_s", "repeated_s")
        }
        self._whole |= {
            name: np.zeros(replicas, dtype=np.int64) for name in ("nodes_lost", "missing", "waits")
        }
        self._whole |= {
            "ends_s": np.zeros((6, replicas)),
            "spent_s": np.zeros((5, replicas)),
            "held": np.zeros((tiers, replicas)),
        }
        self._whole |= {
            "extent": np.zeros(replicas, dtype=np.int8),
            "first_column": np.arange(replicas) * (classes + 1),
        }
        self._whole["charged"] = self._whole["first_column"] + classes
        self.lost_s = np.zeros(replicas * (classes + 1))
        self.narrow(replicas)

    def narrow(self, replicas: int) -> None:
        """Narrow all state to the first `replicas` replicas."""
        for name, values in self._whole.items():
            setattr(self, name, values[..., :replicas])


class Runs:
    """All replicas of some histories. `fail` takes them from one failure to the next."""

    def __init__(self, scenario: Scenario, histories: Histories, strikes: Strikes) -> None:
        self._scenario, self._order = scenario, strikes.order
        self._waits = _Waits(scenario, histories, strikes.order)
        self._survives = np.array([int(tier.survives) for tier in scenario.tiers], dtype=np.int8)[
            :, None
        ]
        self._saves = ScenarioSaves(scenario)
        self._state = _State(histories.replicas, len(scenario.tiers), len(scenario.failures))
        self._returns = Returns(scenario, histories.replicas) if strikes.loses_nodes else None

    @property
    def resumes_s(self) -> Floats:
        """Return when each replica trains again after its newest failure, unless another one
        strikes.
        """
        resumes_s: Floats = self._state.ends_s[RESUMES]
        return resumes_s

    # --- between failures ---

    def _go_on_until(self, until_s: Floats) -> Floats:
        """Train until these times, and return the positions reached, (n,).

        What the tiers hold then is stored in the state. The positions are not: the caller decides
        about them.
        """
        self._stand(until_s)
        if self._scenario.recovery.shrinks and self._returns:
            self._take_nodes_in(self._returns, until_s)
        position, self._state.held[...] = self._train(
            ALL, np.maximum(until_s - self._state.ends_s[RESUMES], 0.0)
        )
        return position

    def _stand(self, until_s: Floats) -> None:
        """Book the seconds of the present recovery up to these times."""
        state = self._state
        reached_s = np.minimum(state.ends_s, until_s)
        spent_s = reached_s[1:] - reached_s[:-1]
        state.spent_s += spent_s
        state.lost_s[state.charged] += reached_s[RESUMES] - reached_s[SINCE]
        if self._returns:
            state.waits += spent_s[WAIT] > 0

    def _take_nodes_in(self, returns: Returns, until_s: Floats) -> None:
        """Let runs that train and lack nodes take in the nodes that come back.

        Each returning node causes a regroup. This is repeated until no node comes back in time.
        """
        state, runs = self._state, np.arange(len(until_s))
        while runs.size:
            runs = runs[state.ends_s[RESUMES, runs] <= until_s[runs]]
            resumed_s = state.ends_s[RESUMES, runs]
            state.missing[runs] = returns.lacking(runs, resumed_s)
            back_s = np.where(state.missing[runs] > 0, returns.next_s(runs, resumed_s), np.inf)
            comes = back_s < until_s[runs]
            runs, back_s = runs[comes], back_s[comes]
            state.position[runs], state.held[:, runs] = self._train(runs, back_s - resumed_s[comes])
            in_s = back_s + state.regroup_s[runs]
            state.ends_s[1:, runs] = in_s
            # booked at once, and charged to no class
            state.spent_s[REGROUP, runs] += np.minimum(in_s, until_s[runs]) - back_s
            state.extent[runs], state.nodes_lost[runs] = -1, 0

    def _train(self, runs: Rows, left_s: Floats) -> tuple[Floats, Floats]:
        """Train for `left_s` seconds, in which no node comes or goes.

        Saves that are unfinished at the end are lost. Return the positions, and what the tiers
        hold.
        """
        step_s, nodes, state = self._scenario.job.step_s, self._scenario.job.nodes, self._state
        begin = state.position[runs]
        if not self._scenario.recovery.shrinks:
            position, held = self._saves.held(begin, left_s, step_s, state.held[:, runs])
            state.stall_s[runs] += left_s - (position - begin) * step_s
        else:
            stands = state.missing[runs] == nodes
            pace = np.where(
                stands,
                STANDSTILL_PACE_S,
                step_s * nodes / np.maximum(nodes - state.missing[runs], 1),
            )
            position, held = self._saves.held(begin, left_s, pace, state.held[:, runs])
            trained_s = np.where(stands, left_s, (position - begin) * pace)
            state.stall_s[runs] += left_s - trained_s
            state.degraded_s[runs] += trained_s - (position - begin) * step_s
        return position, held

    # --- a failure ---

    def fail(self, strike: Strike) -> None:
        """Let a failure strike, and store the times of the recovery from it.

        These times hold unless another failure strikes before the recovery is over. A run that is
        not struck moves by 0 s.
        """
        self._narrow(len(strike.strikes))
        state, strikes = self._state, strike.strikes
        at_s = np.where(strikes, strike.at_s, state.ends_s[SINCE])
        position = self._go_on_until(at_s)
        recovers = at_s < state.ends_s[RESUMES]
        extent = np.where(recovers, np.maximum(state.extent, strike.extent), strike.extent)
        restored, restore_s = self._fall_back(strike, extent)
        lost_s = np.where(strikes, (position - restored) * self._scenario.job.step_s, 0.0)
        state.ends_s[...] = np.where(
            strikes, self._phases(strike, at_s, recovers, restore_s), state.ends_s
        )
        np.copyto(state.position, restored, where=strikes)
        np.copyto(state.extent, extent, where=strikes)
        np.copyto(state.charged, state.first_column + strike.failure_class, where=strikes)
        state.repeated_s += lost_s
        state.lost_s[state.charged] += lost_s

    def _fall_back(self, strike: Strike, extent: NDArray[np.int8]) -> tuple[Floats, Floats]:
        """Return the position to go on from, and the seconds to restore it."""
        held = self._state.held
        np.copyto(held, -1.0, where=(self._survives < extent) & strike.strikes)
        newest = held.max(axis=0, initial=-1.0)
        restore_s = np.where(held == newest, self._waits.restore_s(strike), np.inf).min(
            axis=0, initial=np.inf
        )
        return np.maximum(newest, 0.0), np.where(newest >= 0, restore_s, 0.0)

    def _phases(self, strike: Strike, at_s: Floats, recovers: Flags, restore_s: Floats) -> Floats:
        """Return the times of the recovery, (6, n), in the order of `_State.ends_s`."""
        state, waits, ends_s = self._state, self._waits, np.empty((6, len(at_s)))
        ends_s[SINCE] = at_s
        np.add(at_s, waits.detect.at(strike), out=ends_s[1])
        regroup_s = waits.regroup.at(strike)
        regrouped_s = np.add(ends_s[1], regroup_s, out=ends_s[2])
        if self._returns:
            ends_s[3], taken = self._replace(self._returns, strike, at_s, recovers, regrouped_s)
            np.add(ends_s[3], np.where(taken, waits.take.at(strike), 0.0), out=ends_s[4])
        else:
            ends_s[3:5] = regrouped_s
        np.add(ends_s[4], restore_s, out=ends_s[RESUMES])
        if self._scenario.recovery.shrinks:
            np.copyto(state.regroup_s, regroup_s, where=strike.strikes)
        return ends_s

    def _replace(
        self, returns: Returns, strike: Strike, at_s: Floats, recovers: Flags, regrouped_s: Floats
    ) -> tuple[Floats, Flags]:
        """Return when the needed nodes are at hand, and whether any is taken in."""
        state = self._state
        returns.lose(at_s, strike.at_s + self._waits.repair.at(strike), strike.nodes_lost)
        lost = strike.nodes_lost + recovers * state.nodes_lost
        np.copyto(state.nodes_lost, lost, where=strike.strikes)
        if self._scenario.recovery.shrinks:
            return regrouped_s, state.missing + lost > returns.lacking(ALL, regrouped_s)
        return returns.complete_s(regrouped_s), lost > 0

    def _narrow(self, replicas: int) -> None:
        if replicas == len(self._state.position):
            return  # most rounds have as many replicas as the one before
        self._state.narrow(replicas)
        if self._returns:
            self._returns.narrow(replicas)

    def ended(self, strikes: Strikes) -> Outcomes:
        """End the runs, and put replicas back into the order of their histories."""
        job, state, replicas = self._scenario.job, self._state, len(self._order)
        self._narrow(replicas)
        worked_s = self._scenario.maintenance.worked_s(job.duration_s)
        position = self._go_on_until(np.full(replicas, worked_s))
        place = np.argsort(self._order)
        detect_s, regroup_s, wait_s, take_s, restore_s = state.spent_s
        seconds = {cause: np.zeros(replicas) for cause in Cause}
        for cause, booked in (
            (Cause.PRODUCTIVE, position * job.step_s),
            (Cause.STALL, state.stall_s),
            (Cause.REPEATED, state.repeated_s),
            (Cause.DETECTION, detect_s),
            (Cause.REGROUP, regroup_s + wait_s + take_s),
            (Cause.RESTORE, restore_s),
            (Cause.DEGRADED, state.degraded_s),
        ):
            # These are differences of large numbers, so 0 s may come out as -1e-9 s.
            seconds[cause] = np.maximum(booked[place], 0.0)
        seconds[Cause.OTHER] += job.duration_s - worked_s
        lost_s = state.lost_s.reshape(replicas, -1)[place, :-1]
        return Outcomes(
            seconds[Cause.PRODUCTIVE],
            state.position[place] * job.step_s,
            seconds,
            strikes.interruptions[place],
            lost_s,
            wait_s[place],
            state.waits[place],
            strikes.beyond_bound[place],
        )


class _Waits:
    """This says how long each phase of a recovery lasts."""

    def __init__(self, scenario: Scenario, histories: Histories, order: NDArray[np.intp]) -> None:
        recovery = scenario.recovery
        self.detect, self.regroup = (
            Seconds(recovery.detect, histories, Luck.DETECT, order),
            Seconds(recovery.regroup, histories, Luck.REGROUP, order),
        )
        self.take, self.repair = (
            Seconds(recovery.take, histories, Luck.TAKE, order),
            Seconds(scenario.repair.time, histories, Luck.REPAIR, order),
        )
        self._restore = SecondsEach(
            [tier.restore for tier in scenario.tiers], histories, Luck.RESTORE, order
        )

    def restore_s(self, strike: Strike) -> Floats:
        """Return how long a restore from each tier takes: (J, n), or (J, 1)."""
        return self._restore.at(strike)
