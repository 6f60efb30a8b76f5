"""The plainest scenario, which sweeps ask for most: one class of failures, one tier that survives
them, durations that do not vary, no node is lost.

Each failure then falls back to a save of this tier, so that what lies between two failures depends
on its length alone: all of it is arithmetic on the gaps, and it is many times as fast as the
general way in `monte_carlo.py`, with the same result.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import numpy as np

from outlast.model.terms import Cause
from outlast.planner.histories import Histories
from outlast.planner.outcomes import Outcomes
from outlast.planner.saves import NEVER_STEPS
from outlast.planner.scenario import Scenario
from outlast.planner.spread import Shape


def is_plain(scenario: Scenario) -> bool:
    if (
        len(scenario.failures) != 1
        or len(scenario.tiers) != 1
        or scenario.lemons.factor > 1
        or scenario.maintenance.lasts_s
    ):
        return False
    rate, tier, recovery = scenario.failures[0], scenario.tiers[0], scenario.recovery
    fixed = all(
        spread.shape is Shape.CONSTANT
        for spread in (recovery.detect, recovery.regroup, tier.restore)
    )
    return (
        fixed
        and not scenario.nodes_lost(rate.extent)
        and tier.survives >= rate.extent
        and not tier.write_s
        and not scenario.is_live(tier)
    )


def run_plain(scenario: Scenario, histories: Histories) -> Outcomes:
    """As `monte_carlo.run`, of a scenario that is plain."""
    tier, recovery, duration_s = scenario.tiers[0], scenario.recovery, scenario.job.duration_s
    detected_s = recovery.detect.mean_s
    regrouped_s = detected_s + recovery.regroup.mean_s
    restored_s = regrouped_s + tier.restore.mean_s
    interval_s = min(scenario.interval_steps(tier), NEVER_STEPS) * scenario.job.step_s
    round_s = interval_s + tier.stall_s

    replicas = histories.replicas
    detect_s, regroup_s, stood_s, saves, since_save_s, gap_s, part_s, before_s = np.zeros(
        (8, replicas)
    )
    for k, at_s in enumerate([*histories.at_s.T, np.full(replicas, duration_s)]):
        until_s = np.minimum(at_s, duration_s)
        np.subtract(until_s, before_s, out=gap_s)
        before_s = until_s
        if k:
            detect_s += np.minimum(gap_s, detected_s, out=part_s)
            regroup_s += np.minimum(gap_s, regrouped_s, out=part_s)
            stood_s += np.minimum(gap_s, restored_s, out=part_s)
            gap_s -= part_s
        np.divide(gap_s, round_s, out=part_s)
        saves += np.floor(part_s, out=part_s)
        part_s *= round_s
        gap_s -= part_s
        since_save_s += np.minimum(gap_s, interval_s, out=gap_s)

    struck = (histories.at_s < duration_s).sum(axis=1)  # they may have been drawn for a longer run
    last_s = np.full(replicas, duration_s)  # trained, or in stalls, since the last failure
    some = np.flatnonzero(struck)
    last_s[some] = np.maximum(duration_s - histories.at_s[some, struck[some] - 1] - restored_s, 0.0)
    last_saves = np.floor(last_s / round_s)
    kept_s = (saves - last_saves) * interval_s
    last_since_s = np.minimum(last_s - last_saves * round_s, interval_s)
    position_s = saves * interval_s + last_since_s

    seconds = {cause: np.zeros(replicas) for cause in Cause}
    seconds |= {
        Cause.PRODUCTIVE: position_s,
        Cause.REPEATED: since_save_s - last_since_s,
        Cause.STALL: duration_s - stood_s - saves * interval_s - since_save_s,
        Cause.DETECTION: detect_s,
        Cause.REGROUP: regroup_s - detect_s,
        Cause.RESTORE: stood_s - regroup_s,
    }
    # a difference of large numbers: -1e-9 s is none
    seconds[Cause.STALL] = np.maximum(seconds[Cause.STALL], 0.0)
    lost_s = (seconds[Cause.REPEATED] + stood_s)[:, None]
    none = np.zeros(replicas)
    return Outcomes(position_s, kept_s, seconds, struck, lost_s, none, struck * 0, none > 0)
