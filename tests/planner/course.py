"""Compute the course of one run in plain Python, event by event, as `scenario.py` describes it.

The other depths of the planner must agree with this one.

Units      seconds. Inside this module, positions are in steps, so that saves are at whole numbers.
           Times inside are without maintenance stops (`Maintenance.worked_s`).
Method     Between two failures, the code goes from save to save and from one returned node to the
           next, one at a time. It uses no closed form.
Limits     The code is written for readers, and is slow: 10 us a save and 20 us a failure.
           `monte_carlo.py` computes the same for many replicas at once.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from outlast.model.terms import Cause, FailureClass
from outlast.planner.histories import History, Luck
from outlast.planner.scenario import Extent, FailureRate, Scenario, ScenarioTier, Unit


class Phase(str, Enum):
    """The phase of a recovery that a run is in while it does not train."""

    DETECT = "detect"
    REGROUP = "regroup"
    WAIT = "wait"  # for a node to come back
    TAKE = "take"
    RESTORE = "restore"


_CAUSE = {
    Phase.DETECT: Cause.DETECTION,
    Phase.REGROUP: Cause.REGROUP,
    Phase.WAIT: Cause.REGROUP,
    Phase.TAKE: Cause.REGROUP,
    Phase.RESTORE: Cause.RESTORE,
}


@dataclass(slots=True)
class Interruption:
    """One failure and its cost.

    A failure during the recovery from another one is an interruption of its own. The seconds of the
    other one end there.

    at_s         when it struck, by the wall clock
    resumed_s    when training went on, by the wall clock; None: not before the next failure or the
                 end of the run
    extent       what the failure destroys; if it struck during a recovery, the larger of both
    tier         the name of the tier that is restored; None: nothing was saved, and the run starts
                 over
    lost_s       productive seconds that are repeated
    spent_s      seconds of each phase, until the next failure or the end of the run
    nodes_lost   the number of nodes that this failure destroys
    in_repair    the number of nodes in repair right after it
    """

    at_s: float
    failure_class: FailureClass
    extent: Extent
    tier: str | None
    lost_s: float
    spent_s: dict[Phase, float]
    nodes_lost: int
    in_repair: int
    resumed_s: float | None = None

    @property
    def cost_s(self) -> float:
        return self.lost_s + sum(self.spent_s.values())


@dataclass(frozen=True, slots=True)
class Course:
    """The result of one run.

    position_s      productive seconds that are kept
    seconds         seconds by cause; they sum to the duration
    spares_in_use   the largest number of spare nodes in use at one time
    lemons          the number of lemons at the end
    """

    position_s: float
    seconds: dict[Cause, float]
    interruptions: tuple[Interruption, ...]
    spares_in_use: int
    lemons: int
    lemons_beyond_bound: bool


def live(scenario: Scenario, history: History) -> Course:
    """Compute a whole run, and return its course."""
    run = _Run(scenario, history.lemons)
    stops, duration_s = scenario.maintenance, scenario.job.duration_s
    for failure in _failures(scenario, history):
        if not stops.stands_at(failure.at_s) and run.nodes.strikes(failure):
            worked_s = stops.worked_s(failure.at_s)
            run.go_on_until(worked_s)
            run.fail(worked_s, failure)
    run.go_on_until(stops.worked_s(duration_s))
    for interruption in run.interruptions:
        interruption.at_s = stops.wall_s(interruption.at_s)
        interruption.resumed_s = (
            None if interruption.resumed_s is None else stops.wall_s(interruption.resumed_s)
        )
    run.seconds[Cause.OTHER] = duration_s - stops.worked_s(duration_s)
    run.seconds[Cause.PRODUCTIVE] = position_s = run.position * scenario.job.step_s
    nodes = run.nodes
    return Course(
        position_s,
        run.seconds,
        tuple(run.interruptions),
        nodes.spares_in_use,
        nodes.lemons,
        nodes.lemons_beyond_bound,
    )


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failure of the history. Its random numbers are seconds. `restore_s` is for each tier."""

    at_s: float
    rate: FailureRate
    extra: bool
    detect_s: float
    regroup_s: float
    take_s: float
    repair_s: float
    restore_s: tuple[float, ...]
    lemon: float
    mended: float
    diagnosis: float


def _failures(scenario: Scenario, history: History) -> Iterator[_Failure]:
    luck, recovery = history.luck, scenario.recovery
    spreads = (
        (recovery.detect, Luck.DETECT),
        (recovery.regroup, Luck.REGROUP),
        (recovery.take, Luck.TAKE),
        (scenario.repair.time, Luck.REPAIR),
    )
    detect, regroup, take, repair = (
        [float(second) for second in spread.quantile(luck[:, column])] for spread, column in spreads
    )
    restores = [
        [float(second) for second in tier.restore.quantile(luck[:, Luck.RESTORE])]
        for tier in scenario.tiers
    ]
    for k, at_s in enumerate(history.at_s.tolist()):
        if at_s < scenario.job.duration_s:
            restore = tuple(restore[k] for restore in restores)
            lemon, mended, diagnosis = (
                float(luck[k, column]) for column in (Luck.LEMON, Luck.MENDED, Luck.DIAGNOSIS)
            )
            rate = scenario.failures[history.which[k]]
            yield _Failure(
                at_s,
                rate,
                bool(history.extra[k]),
                detect[k],
                regroup[k],
                take[k],
                repair[k],
                restore,
                lemon,
                mended,
                diagnosis,
            )


class _Saves:
    """The saves that each tier holds, and those that are being written. Positions are in steps."""

    def __init__(self, scenario: Scenario) -> None:
        self._tiers = scenario.tiers
        self._steps = [scenario.interval_steps(tier) for tier in scenario.tiers]
        self._live = [scenario.is_live(tier) for tier in scenario.tiers]
        self._held: list[int | None] = [0 for _ in scenario.tiers]
        self._writing: list[tuple[float, int, int]] = []  # the end of the write, tier, position

    def next_due(self, position: float) -> float:
        """Return the next position at which a tier saves. Live tiers do not count."""
        saving = [
            steps
            for steps, alive in zip(self._steps, self._live, strict=True)
            if not alive and math.isfinite(steps)
        ]
        return min(
            ((math.floor(position / steps) + 1) * steps for steps in saving), default=math.inf
        )

    def due_at(self, position: float) -> Iterator[tuple[int, ScenarioTier]]:
        for index, tier in enumerate(self._tiers):
            if not self._live[index] and position % self._steps[index] == 0:
                yield index, tier

    def write(self, index: int, position: float, done_s: float) -> None:
        self._writing.append((done_s, index, int(position)))

    def cut_off(self, now_s: float, position: float) -> None:
        """End all writes: a save that is complete by now is held, and the others are lost."""
        for done_s, index, saved in self._writing:
            if done_s <= now_s:
                self._held[index] = saved  # later ones are newer
        self._writing.clear()
        self._held = [
            math.floor(position) if alive else held
            for alive, held in zip(self._live, self._held, strict=True)
        ]

    def fall_back(
        self, extent: Extent, restore_s: tuple[float, ...]
    ) -> tuple[int, float, str | None]:
        """Return the restored position, the seconds that takes, and the name of the tier.

        Tiers that do not survive the failure are empty from now on.
        """
        self._held = [
            held if tier.survives >= extent else None
            for held, tier in zip(self._held, self._tiers, strict=True)
        ]
        newest = max((held for held in self._held if held is not None), default=None)
        if newest is None:
            return 0, 0.0, None
        seconds, index = min(
            (restore_s[index], index) for index, held in enumerate(self._held) if held == newest
        )
        return newest, seconds, self._tiers[index].name


class _Run:
    """A run up to `_now_s`.

    While it has `_phases`, it does not train: it recovers from its last interruption, or takes
    returned nodes in.
    """

    def __init__(self, scenario: Scenario, lemons: int) -> None:
        self._scenario = scenario
        self._saves = _Saves(scenario)
        self._now_s = 0.0
        self.position = 0.0  # steps
        self.seconds = dict.fromkeys(Cause, 0.0)
        self._phases: list[tuple[Phase, float]] = []  # each with the time at which it ends
        self._recovers = False
        self.interruptions: list[Interruption] = []
        self._regroup_s = 0.0  # the duration of the last regroup
        self.nodes = _Nodes(scenario, lemons)
        self._nodes_lost = 0  # so far in the present recovery
        self._missing = 0  # nodes that the run goes on without

    def go_on_until(self, until_s: float) -> None:
        while self._now_s < until_s:
            if self._phases:
                self._stand(until_s)
                continue
            back_s = self.nodes.next_return_s(self._now_s) if self._missing else math.inf
            self._train(min(until_s, back_s))
            if back_s < until_s:
                self._saves.cut_off(back_s, self.position)
                self._phases = [(Phase.REGROUP, back_s + self._regroup_s)]

    def _stand(self, until_s: float) -> None:
        """Go through the phases. After the last one, training goes on with the present nodes."""
        for phase, ends_s in self._phases:
            reached_s = max(self._now_s, min(ends_s, until_s))
            spent_s, self._now_s = reached_s - self._now_s, reached_s
            self.seconds[_CAUSE[phase]] += spent_s
            if self._recovers:
                self.interruptions[-1].spent_s[phase] += spent_s
        resumes_s = self._phases[-1][1]
        if resumes_s <= until_s:
            if self._recovers:
                self.interruptions[-1].resumed_s = resumes_s
            self._phases, self._recovers = [], False
            self._missing = self.nodes.lacking(resumes_s) if self._scenario.recovery.shrinks else 0

    def _train(self, until_s: float) -> None:
        """Train from save to save. Nodes come and go only at `until_s`."""
        step_s = self._scenario.job.step_s
        steps_per_s = (self._scenario.job.nodes - self._missing) / self._scenario.job.nodes / step_s
        while self._now_s < until_s:
            due = self._saves.next_due(self.position)
            due_s = self._now_s + (due - self.position) / steps_per_s if steps_per_s else math.inf
            reached = (
                due if due_s <= until_s else self.position + (until_s - self._now_s) * steps_per_s
            )
            reached_s = min(due_s, until_s)
            if self._missing:
                self.seconds[Cause.DEGRADED] += (reached_s - self._now_s) - (
                    reached - self.position
                ) * step_s
            self.position, self._now_s = reached, reached_s
            if due_s <= until_s:
                self._save(until_s)

    def _save(self, until_s: float) -> None:
        for index, tier in self._saves.due_at(self.position):
            over_s = self._now_s + tier.stall_s
            self.seconds[Cause.STALL] += min(over_s, until_s) - self._now_s
            self._now_s = min(over_s, until_s)
            if over_s > until_s:
                return
            self._saves.write(index, self.position, over_s + tier.write_s)

    def fail(self, at_s: float, failure: _Failure) -> None:
        """Let a failure strike at `at_s`, up to which the run has gone on.

        The whole recovery is planned here. Another failure may replace the plan.
        """
        before = self.interruptions[-1] if self._recovers else None
        extent = failure.rate.extent if before is None else max(before.extent, failure.rate.extent)
        lost_nodes = self.nodes.lose(at_s, failure)
        self._nodes_lost = lost_nodes + (0 if before is None else self._nodes_lost)

        self._saves.cut_off(at_s, self.position)
        restored, restore_s, tier = self._saves.fall_back(extent, failure.restore_s)
        lost_s = (self.position - restored) * self._scenario.job.step_s
        self.position = restored
        self.seconds[Cause.REPEATED] += lost_s

        detected_s = at_s + failure.detect_s
        regrouped_s = detected_s + failure.regroup_s
        if self._scenario.recovery.shrinks:
            ready_s, taken = (
                regrouped_s,
                self._missing + self._nodes_lost - self.nodes.lacking(regrouped_s),
            )
        else:
            ready_s, taken = self.nodes.complete_s(regrouped_s), self._nodes_lost
        taken_s = ready_s + (failure.take_s if taken > 0 else 0.0)
        self._phases = [
            (Phase.DETECT, detected_s),
            (Phase.REGROUP, regrouped_s),
            (Phase.WAIT, ready_s),
            (Phase.TAKE, taken_s),
            (Phase.RESTORE, taken_s + restore_s),
        ]
        self._recovers, self._regroup_s = True, failure.regroup_s
        self.interruptions.append(
            Interruption(
                at_s,
                failure.rate.failure_class,
                extent,
                tier,
                lost_s,
                dict.fromkeys(Phase, 0.0),
                lost_nodes,
                self.nodes.in_repair(at_s),
            )
        )


class _Nodes:
    """The nodes in repair, and the number of lemons."""

    def __init__(self, scenario: Scenario, lemons: int) -> None:
        self._scenario = scenario
        self._returns: list[tuple[float, int]] = []  # when nodes come back, and how many
        self.lemons = lemons
        self.lemons_beyond_bound = False
        self.spares_in_use = 0

    def strikes(self, failure: _Failure) -> bool:
        """Return whether a failure strikes. Extra failures strike in proportion to the lemons."""
        bound = self._scenario.lemons_bound
        return not failure.extra or failure.lemon < min(self.lemons, bound) / bound

    def lose(self, at_s: float, failure: _Failure) -> int:
        """Send the nodes of a failure to repair, and return their number."""
        scenario, rate = self._scenario, failure.rate
        count = scenario.nodes_lost(rate.extent)
        if rate.extent is Extent.NODE:
            self._mend(failure)
            count += failure.diagnosis < scenario.repair.wrong
        if count:
            self._returns = [(back_s, nodes) for back_s, nodes in self._returns if back_s > at_s]
            self._returns.append((at_s + failure.repair_s, count))
        self.spares_in_use = max(
            self.spares_in_use, min(scenario.repair.spare_nodes, self.in_repair(at_s))
        )
        return count

    def _mend(self, failure: _Failure) -> None:
        """Repair one node: a lemon may be found, and a healthy node may become a lemon."""
        lemons, nodes = self._scenario.lemons, self._scenario.job.nodes
        if lemons.factor == 1:
            return
        if failure.extra or (
            failure.rate.unit in (Unit.GPU, Unit.NODE) and failure.lemon < self.lemons / nodes
        ):
            self.lemons -= failure.mended < lemons.caught
        else:
            self.lemons = min(self.lemons + (failure.mended < self._scenario.repair.missed), nodes)
        self.lemons_beyond_bound |= self.lemons > self._scenario.lemons_bound

    def in_repair(self, at_s: float) -> int:
        return sum(nodes for back_s, nodes in self._returns if back_s > at_s)

    def lacking(self, at_s: float) -> int:
        """Return how many nodes the job lacks: those in repair, less the spare nodes."""
        return min(
            self._scenario.job.nodes,
            max(0, self.in_repair(at_s) - self._scenario.repair.spare_nodes),
        )

    def complete_s(self, at_s: float) -> float:
        """Return the first time from `at_s` on at which the job lacks no node."""
        times_s = [at_s, *sorted(back_s for back_s, _ in self._returns if back_s > at_s)]
        return next(time_s for time_s in times_s if not self.lacking(time_s))

    def next_return_s(self, at_s: float) -> float:
        return min((back_s for back_s, _ in self._returns if back_s > at_s), default=math.inf)
