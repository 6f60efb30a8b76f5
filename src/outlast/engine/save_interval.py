"""Decide how often a checkpoint pays, by what this run has measured. This module is pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outlast.model import limits
from outlast.model.intervals import best_s
from outlast.model.texts import count, duration


@dataclass(frozen=True, slots=True)
class ExpectedFailures:
    """This says how often the whole run is expected to fail before it has shown that itself.

    mttf_s   seconds between two failures; inf: none are expected
    source   whose figure that is, as a part of a sentence
    """

    mttf_s: float
    source: str


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """This says how long to wait from one checkpoint to the next, and why."""

    interval_s: float
    reason: str


def decide_interval(
    *,
    pause_s: float,
    write_s: float,
    needed_count: int,
    watched_s: float,
    expected: ExpectedFailures,
) -> SaveInterval:
    """Decide the interval that loses the least time, by Daly's cost (`intervals.best_s`).

    It is never shorter than twice the time until a checkpoint is complete, nor than
    `SAVE_LEAST_S`.

    pause_s        seconds for which training pauses for one checkpoint
    write_s        seconds from the request until the checkpoint is on the disk, the step in flight
                   included
    needed_count   how often a recovery went back to a checkpoint or to the beginning
    watched_s      seconds in which that was counted
    expected       the rate that counts while `needed_count` is 0
    """
    if needed_count:
        mttf_s = watched_s / needed_count
        need = f"one was needed {count(needed_count, 'time')} in {duration(watched_s)}"
    else:
        mttf_s = expected.mttf_s
        often = "never" if math.isinf(mttf_s) else f"once in {duration(mttf_s)}"
        need = f"one is expected to be needed {often} ({expected.source}), and none was so far"
    best = best_s(pause_s, mttf_s)
    interval_s = min(max(best, limits.SAVE_LEAST_S, 2 * write_s), limits.SAVE_MOST_S)
    reason = (
        f"a checkpoint each {duration(interval_s)}: it pauses training for {duration(pause_s)}, it"
        f" is complete {duration(write_s)} after it was asked for, and {need}"
    )
    return SaveInterval(interval_s, reason)
