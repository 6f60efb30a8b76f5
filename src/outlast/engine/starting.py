"""Decide whether a process that could not be started is tried again, and when.

A fork fails at a limit of processes, a new thread at a limit of threads, a spawn where memory is
short. Such limits are lifted again, so a process that never reached its script is started once
more, later each time. None of these failures is an interruption: nothing has happened to the run
but that a process is late.

This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model import limits
from outlast.model.pauses import growing_pause_s


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A process that did not reach its script.

    failures      how often this one has failed in a row, this time included
    first_s       when it failed for the first time
    any_started   some process of this run has reached its script: so starting them is possible
    error         how it failed this time
    """

    failures: int
    first_s: float
    any_started: bool
    error: str


@dataclass(frozen=True, slots=True)
class StartVerdict:
    """This says when the process is started again; None: it is given up. `reason` is for people."""

    again_s: float | None
    reason: str


@dataclass(slots=True)
class LastReport:
    """Remember the failure that was last shown to people, and when."""

    error: str = ""
    at_s: float = 0.0

    def note_if_due(self, error: str, *, now_s: float) -> bool:
        """Return whether to tell people of `error` now, and note that if so.

        They are told of a new one at once, and of the same one now and then.
        """
        if error == self.error and now_s - self.at_s < limits.START_REPORT_S:
            return False
        self.error, self.at_s = error, now_s
        return True


def decide_start(failed: FailedStart, *, now_s: float) -> StartVerdict:
    """Decide whether a process that failed is started again.

    If no process of the run has ever reached its script, something is wrong with the machine or the
    installation. A few tries are enough then.
    """
    times = f"{failed.failures} times" if failed.failures > 1 else "once"
    what = f"a worker could not be started, {times} so far: {failed.error}"
    if not failed.any_started and failed.failures >= limits.FIRST_STARTS_COUNT:
        return StartVerdict(None, f"{what}; none of this run has started")
    waited_s = now_s - failed.first_s
    if waited_s >= limits.START_GIVE_UP_S:
        return StartVerdict(None, f"{what}; it was tried for {waited_s:.0f} s")
    wait_s = retry_wait_s(failed.failures)
    until_s = limits.START_GIVE_UP_S - waited_s
    why = f"{what}; it is tried again in {wait_s:g} s, for up to {until_s:.0f} s"
    return StartVerdict(now_s + wait_s, why)


def retry_wait_s(failures: int) -> float:
    """Return how long to wait before starting a process that has failed `failures` times."""
    return growing_pause_s(failures, first_s=limits.START_RETRY_S, most_s=limits.START_RETRY_MAX_S)
