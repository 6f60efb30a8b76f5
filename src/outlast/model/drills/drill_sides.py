"""Lay runs of one training under the same faults side by side, as each is seen from outside.

A drill sees of each run when a step was first there, and nothing else: of `outlast run` by its
beacons, of another launcher by the lines that its script prints. So all are measured alike.

ETTR    the time that the same steps take undisturbed under outlast, over the time that they took.
        It has this one yardstick for all, so a launcher whose steps are slower pays for that.
MTTR    from a strike to the second new step after it, less one undisturbed step. A new step goes
        beyond all before it. The first may have been decided when the fault came. Only of kinds of
        faults that end or block a process for good.
Lost    steps that were done again, because the run went back to a checkpoint: `steps_again`, and
        for outlast what its ledger says.

Where fewer ranks than planned took part in a step, the step counts as their share of it.

Limits  A step is seen up to 0.02 s late. A script that prints every tenth step is seen by tens.

This module is pure.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from outlast.model import intervals
from outlast.model.drills.drill_score import spread

FIRST_STEPS = 3  # a run that has done this many steps trains
STALL_LEAST_S = 1e-4  # of a save, in the choice of an interval
OFTEN = 0.2  # the share of faults that find a run down from which the pace is too fast for it
ROOM = 3.0  # times the MTTR: the distance of faults that a launcher can be measured at


@dataclass(frozen=True, slots=True)
class SeenStep:
    """A step when it was first seen. `share`: of the planned ranks that took part in it."""

    at_s: float
    step: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """A fault that has struck a run. Times are those of the monotonic clock.

    due_s       when the plan has it; None: it has a step and not a time
    interrupts  it ends or blocks a process for good
    """

    due_s: float | None
    at_s: float
    interrupts: bool


@dataclass(frozen=True, slots=True)
class SideRun:
    """A run under faults. `well`: it reached its last step by itself."""

    began_s: float
    ended_s: float
    well: bool
    seen: tuple[SeenStep, ...]
    faults: tuple[FaultSeen, ...]


@dataclass(frozen=True, slots=True)
class Saving:
    """This says how often a script saves. `stall_s`: of one save; `every`: steps between two."""

    every: int
    stall_s: float


def best_saving(stall_s: float, write_s: float, *, mttf_s: float, step_s: float) -> Saving:
    """Return the interval that loses least, by the planner's closed form.

    write_s   how long a save goes on beside the training; a new one does not begin before
    """
    best_s = max(intervals.best_s(max(stall_s, STALL_LEAST_S), mttf_s), write_s)
    return Saving(max(1, round(best_s / max(step_s, 1e-6))), stall_s)


def newest(seen: Sequence[SeenStep]) -> list[SeenStep]:
    """Return those steps that went beyond all before them."""
    out: list[SeenStep] = []
    for one in seen:
        if not out or one.step > out[-1].step:
            out.append(one)
    return out


def began(seen: Sequence[SeenStep]) -> SeenStep | None:
    """Return the step with which a run trains, from which a plan's seconds count."""
    return next((one for one in seen if one.step >= FIRST_STEPS), None)


def steps_again(seen: Sequence[SeenStep]) -> int:
    """Return how many steps were done again."""
    every, again, last = _every(seen), 0, 0
    for one in seen:
        if one.step <= last:
            again += last - max(0, one.step - every)
        last = one.step
    return again


def usual_step_s(news: Sequence[SeenStep]) -> float | None:
    """Return how long a step usually takes: the mean without those that were held up.

    Those are the ones of more than twice the median.
    """
    lengths_s = [
        (after.at_s - before.at_s) / (after.step - before.step) for before, after in pairwise(news)
    ]
    if not lengths_s:
        return None
    most_s = 2 * statistics.median(lengths_s)
    return statistics.fmean(one for one in lengths_s if one <= most_s)


def _every(seen: Sequence[SeenStep]) -> int:
    """Return the usual distance of two steps that are seen."""
    counts = Counter(
        after.step - before.step for before, after in pairwise(seen) if after.step > before.step
    )
    return counts.most_common(1)[0][0] if counts else 1


def side_facts(
    name: str,
    run: SideRun,
    *,
    steps: int,
    step_s: float,
    digest_equal: bool | None,
    steps_lost: int | None,
    saving: Saving | None = None,
) -> dict[str, Any]:
    """Return the row of one run, with the keys that programs may rely on.

    steps       how many the run is to do
    step_s      how long one takes undisturbed under outlast
    steps_lost  how many were done again; None: not known
    """
    news = newest(run.seen)
    back_s = [_back_s(news, fault, steps, step_s) for fault in run.faults]
    first = began(news)
    after = [] if first is None else news[news.index(first) :]
    trained_s = 0.0
    if first is not None:
        trained_s = (news[-1].at_s if run.well else run.ended_s) - first.at_s
    seconds = run.ended_s - run.began_s
    mttr_s = [
        max(0.0, back - fault.at_s)
        for fault, back in zip(run.faults, back_s, strict=True)
        if fault.interrupts and back is not None
    ]
    return {
        "name": name,
        "ended_well": run.well,
        "ettr": _share_of(_work([SeenStep(0.0, 0), *news]) * step_s, seconds),
        "ettr_training": _share_of(_work(after) * step_s, trained_s),
        "mttr_s": spread(mttr_s),
        "steps": news[-1].step if news else 0,
        "steps_lost": steps_lost,
        "steps_with_fewer_ranks": sum(one.share < 1.0 for one in news),
        "digest_equal": digest_equal if run.well else None,
        "faults_fired": len(run.faults),
        "survived": sum(run.well or back is not None for back in back_s),
        "struck_while_down": _while_down(run.faults, back_s),
        "seconds": seconds,
        "step_s": usual_step_s(news),
        "save_every_steps": None if saving is None else saving.every,
        "save_stall_s": None if saving is None else saving.stall_s,
    }


def _work(news: Sequence[SeenStep]) -> float:
    """Return the steps after the first of these, each by the share of ranks that took part."""
    return sum((after.step - before.step) * after.share for before, after in pairwise(news))


def _share_of(part_s: float, whole_s: float) -> float | None:
    return part_s / whole_s if whole_s > 0 else None


def _back_s(news: Sequence[SeenStep], fault: FaultSeen, steps: int, step_s: float) -> float | None:
    """Return when the run was back after a fault, or None if it never was.

    A run that had done its last step is not held up any more.
    """
    before = max((one.step for one in news if one.at_s <= fault.at_s), default=0)
    wanted = min(before + 2 * _every(news), steps)
    if before >= steps:
        return fault.at_s
    for one in news:
        if one.step >= wanted and one.at_s > fault.at_s:
            return max(fault.at_s, one.at_s - (one.step - before) / 2 * step_s)
    return None


def _while_down(faults: Sequence[FaultSeen], back_s: Sequence[float | None]) -> int:
    """Return how many faults were due while the run was not back from an earlier one."""
    count = 0
    for at, fault in enumerate(faults):
        due_s = fault.at_s if fault.due_s is None else fault.due_s
        count += any(
            earlier.interrupts and earlier.at_s < due_s and (back is None or back > due_s)
            for earlier, back in zip(faults[:at], back_s, strict=False)
        )
    return count


def pace_for(facts: Mapping[str, Any], *, mean_gap_s: float, time_scale: float) -> float | None:
    """Return the time scale at which this run could come back between two faults.

    None: it can already. What a table says at a faster pace is said of the pace, and not of the
    launcher.
    """
    median_s: float | None = facts["mttr_s"]["median"]
    if facts["struck_while_down"] <= OFTEN * facts["faults_fired"]:
        return None
    if median_s is None:
        return time_scale / 10
    return min(time_scale * mean_gap_s / (ROOM * median_s), time_scale / 2)
