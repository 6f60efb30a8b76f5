"""Decision mode: one run of a scenario in which the engine decides at every interruption.

The engine's own functions are called. No messages are sent: the scenario says how long each phase
takes.

The engine decides the following, each time with the full membership of the job:

    decision                     engine's module    called in        remark
    which rank hangs, since when engine.hang        hangs.py         for the classes of failure in
                                                                     `Rules.hangs`
    the step to go on from       engine.restore     restoring.py     with engine.durable
    who takes a lost rank        engine.placement   membership.py
    which rung, or to stop       engine.recovery    decided_run.py   with the budgets of
                                                                     engine.budget
    what a verdict leads to      engine.policy      acting.py        only if `Rules.diagnosis` gives
                                                                     verdicts

The scenario decides when failures come, and what each tier holds at each time. It also decides how
long detection, regroup, replacement, repair and restore take. So this computes the same run as
`runs.py` (Monte Carlo), in another way. Both agree as long as the engine decides nothing that a
scenario cannot express. Such decisions are counted by kind (`decided.Unmodelled`), and listed with
the interruption that they belong to. If the engine ends a run, the rest of its time is booked as
`shutdown`.

Units      Times are seconds of wall-clock time. Inside, maintenance stops are left out of them, as
           in `runs.py`.
Limits     A failure always strikes the body of a step, before any rank has voted, so the step is
           repeated. All ranks of a live tier hold the same state; replicas that are made of several
           ranks are not simulated. A repaired node keeps its name.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, replace

from outlast.model.terms import Cause
from outlast.planner.deciding.decided import Decided, Rules, Unmodelled
from outlast.planner.deciding.decided_run import DecidedRun
from outlast.planner.deciding.failures import LemonCount, failures
from outlast.planner.histories import Histories, History
from outlast.planner.scenario import Scenario


def live(scenario: Scenario, history: History, rules: Rules | None = None) -> Decided:
    """Run one history in decision mode, from the beginning to the end.

    `rules` holds the options of outlast. None stands for their defaults.
    """
    lemons, stops, duration_s = (
        LemonCount(scenario, history.lemons),
        scenario.maintenance,
        scenario.job.duration_s,
    )
    run = DecidedRun(scenario, rules or Rules())
    out = run.out
    for failure in failures(scenario, history):
        if not stops.stands_at(failure.at_s) and lemons.happens(failure):
            run.go_on_until(failure.worked_s)
            if out.ended_s is not None:
                break
            lemons.book(failure)
            run.fail(failure)
    run.finish(stops.worked_s(duration_s))
    for answer in out.answers:
        answer.at_s = stops.wall_s(answer.at_s)
        if answer.chosen is not None:
            decided_s = stops.wall_s(answer.chosen.decided_s)
            answer.chosen = replace(answer.chosen, decided_s=decided_s)
        answer.resumed_s = None if answer.resumed_s is None else stops.wall_s(answer.resumed_s)
    over_s = duration_s if out.ended_s is None else stops.wall_s(out.ended_s)
    out.ended_s = None if out.ended_s is None else over_s
    out.seconds[Cause.OTHER] = over_s - stops.worked_s(over_s)
    out.seconds[Cause.SHUTDOWN] = duration_s - over_s
    out.seconds[Cause.PRODUCTIVE] = out.position_s
    out.unmodelled = +out.unmodelled  # drops the kinds that were counted 0 times
    return out


@dataclass(frozen=True, slots=True)
class DecisionEstimate:
    """The results over all replicas.

    ETTR is `position_s` over the duration of the job. So the ETTR of a run that the engine ended
    early is lower.

    ettr_mean_se      standard error of the mean
    seconds           mean seconds by cause
    interruptions     number of interruptions in all replicas together
    decisions         number of calls of the engine in all replicas together
    per_interruption  decisions for each interruption, at least 1; NaN if there was none
    ended             number of replicas that the engine ended
    unmodelled        by kind, the number of replicas in which the engine decided, or met, something
                      that a scenario cannot express
    """

    replicas: int
    ettr_mean: float
    ettr_mean_se: float
    seconds: dict[Cause, float]
    interruptions: int
    decisions: int
    ended: int
    unmodelled: dict[Unmodelled, int]

    @property
    def per_interruption(self) -> float:
        """Calls of the engine for each interruption; NaN if there was none."""
        return self.decisions / self.interruptions if self.interruptions else math.nan


def estimate(
    scenario: Scenario, histories: Histories, rules: Rules | None = None
) -> DecisionEstimate:
    """Run every replica of these histories, one after the other.

    A replica of 16,384 GPUs and 54 days takes under a second.
    """
    runs = [live(scenario, histories.one(replica), rules) for replica in range(histories.replicas)]
    ettr = [run.position_s / scenario.job.duration_s for run in runs]
    unmodelled = Counter(kind for run in runs for kind in run.unmodelled)
    return DecisionEstimate(
        len(runs),
        statistics.fmean(ettr),
        statistics.stdev(ettr) / math.sqrt(len(runs)) if len(runs) > 1 else math.inf,
        {cause: statistics.fmean(run.seconds[cause] for run in runs) for cause in Cause},
        sum(len(run.answers) for run in runs),
        sum(run.decisions for run in runs),
        sum(run.ended_s is not None for run in runs),
        dict(unmodelled),
    )
