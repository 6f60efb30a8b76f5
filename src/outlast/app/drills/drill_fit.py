"""Whether a plan of faults fits a training: its length, and the pace at which faults come."""

from __future__ import annotations

import math
from dataclasses import replace

from outlast.app import words
from outlast.errors import UsageError
from outlast.model.drills.drill_plan import DrillPlan
from outlast.runtime.drill.drill_runs import DrilledRun
from outlast.sim.drill_calendar import Calendar

TAIL_S = 5.0  # of training after the last fault, in which it is survived
NEAREST_S = 0.5  # faults that come nearer than this on average come faster than a recovery


def shortened(plan: DrillPlan, calm: DrilledRun, *, more_s: float = 0.0) -> DrillPlan | None:
    """Return a plan at a larger time scale, so that it is over before the training is.

    None: the training is long enough, or too short for any plan. `more_s`: of training after it.
    """
    length_s = calm.trained_s - more_s - TAIL_S
    if plan.over_steps or length_s <= 0.0 or length_s + TAIL_S / 2 >= plan.length_s:
        return None
    return replace(plan, time_scale=plan.time_scale * plan.length_s / length_s)


def shortened_note(
    plan: DrillPlan, shorter: DrillPlan, calm: DrilledRun, *, more_s: float = 0.0
) -> str:
    """Say that the plan was shortened, and how many steps it takes as it is."""
    return (
        f"The script trains for {words.duration(calm.trained_s)}, and the plan {plan.name} lasts"
        f" {words.duration(plan.length_s)}. So its faults came closer together, within"
        f" {words.duration(shorter.length_s)} (--time-scale {shorter.time_scale:.4g}). At the"
        f" plan's own pace it takes {steps_needed(plan, calm, more_s=more_s):,} steps."
    )


def steps_needed(plan: DrillPlan, calm: DrilledRun, *, more_s: float = 0.0) -> int:
    """Return how many steps the script has to train for the seconds of a plan."""
    return math.ceil((plan.length_s + more_s + TAIL_S) / max(calm.pace_s, 1e-6))


def least_gap_s(calm: DrilledRun) -> float:
    """Return how far apart faults have to come on average."""
    return max(NEAREST_S, 2 * calm.pace_s)


def has_room(calendar: Calendar, plan: DrillPlan, calm: DrilledRun) -> bool:
    """Return whether a run can recover and do a step between two faults."""
    timed = sum(one.at_s is not None for one in calendar.faults)
    return timed < 3 or plan.length_s / timed >= least_gap_s(calm)


def refuse_pace(calendar: Calendar, plan: DrillPlan, calm: DrilledRun) -> None:
    """Refuse a plan whose faults come faster than a run can recover and do a step."""
    if has_room(calendar, plan, calm):
        return
    timed = sum(one.at_s is not None for one in calendar.faults)
    least_s = least_gap_s(calm)
    scale = plan.time_scale * plan.length_s / timed / least_s
    raise UsageError(
        f"{timed} faults in {plan.length_s:.1f} s come faster than this run can recover: it"
        f" needs {least_s:.2f} s for each, with steps of {calm.pace_s:.3f} s",
        hint=f"--time-scale {math.floor(scale * 100) / 100:g} or less",
    )


def refuse_length(
    calendar: Calendar, plan: DrillPlan, calm: DrilledRun, *, more_s: float = 0.0
) -> None:
    """Refuse a plan that is longer than the script trains. `more_s`: of training after it."""
    last_step = max((one.at_step or 0 for one in calendar.faults), default=0)
    needed = max(steps_needed(plan, calm, more_s=more_s), last_step + 5)
    timed = any(one.at_s is not None for one in calendar.faults)
    enough = calm.trained_s >= plan.length_s + more_s + TAIL_S / 2 or not timed
    if enough and calm.step >= last_step + 2:
        return
    what = f"for {plan.length_s:.0f} s" if timed else f"up to step {last_step}"
    raise UsageError(
        f"the plan {plan.name} strikes {what}, and the script trained {calm.step:,} steps in"
        f" {calm.trained_s:.1f} s: it needs {needed:,} steps",
        hint=f"let the script train {needed:,} steps, or shorten the plan by --time-scale",
    )
