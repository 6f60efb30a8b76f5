"""When a job that is followed by its logs is taken to hang.

A job is quiet once no new line came for `QUIET_FACTOR` times its usual gap, and at least
`QUIET_MIN_S`. Quiet alone is no hang: a checkpoint, an evaluation or a compilation is quiet too. It
hangs if the stacks of its processes, taken twice, did not move. Where no stacks can be had, it
must be quiet `BLIND_FACTOR` times as long.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

QUIET_FACTOR = 10.0
QUIET_MIN_S = 60.0
BLIND_FACTOR = 5.0
GAPS_MIN = 5  # with fewer gaps seen, the usual gap is not known
GAPS_KEPT = 500
UNKNOWN_GAP_S = 60.0


class JobState(str, Enum):
    """What the job is taken to be doing."""

    GOES_ON = "goes on"
    QUIET = "quiet"
    HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class Look:
    """The decision, and the sentence that gives its reason."""

    state: JobState
    reason: str


def usual_gap_s(gaps_s: Sequence[float]) -> float:
    """Return the gap that nineteen of twenty gaps do not exceed."""
    if len(gaps_s) < GAPS_MIN:
        return UNKNOWN_GAP_S
    ordered = sorted(gaps_s[-GAPS_KEPT:])
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def decide_quiet(
    *, now_s: float, last_line_s: float, gaps_s: Sequence[float], min_s: float = QUIET_MIN_S
) -> Look:
    """Decide whether no new line for so long is unusual."""
    usual_s, quiet_s = usual_gap_s(gaps_s), now_s - last_line_s
    limit_s = max(min_s, QUIET_FACTOR * usual_s)
    said = f"no new line for {quiet_s:.0f} s, and usually one comes within {usual_s:.1f} s"
    if quiet_s < limit_s:
        return Look(JobState.GOES_ON, f"{said}; it counts as quiet from {limit_s:.0f} s on")
    return Look(JobState.QUIET, said)


def decide_hang(
    quiet: Look,
    *,
    first: Mapping[int, tuple[str, ...]],
    second: Mapping[int, tuple[str, ...]],
    quiet_s: float,
    blind_after_s: float,
) -> Look:
    """Decide whether a quiet job hangs, from the stacks of its processes at two moments.

    `first` and `second` are the main thread's frames by pid. `blind_after_s` is how long a job must
    be quiet where no stacks can be had.
    """
    if quiet.state is not JobState.QUIET:
        return quiet
    both = first.keys() & second.keys()
    if not both:
        if quiet_s < blind_after_s:
            return Look(JobState.QUIET, f"{quiet.reason}; there are no stacks that show more")
        return Look(JobState.HANGS, f"{quiet.reason}; there were no stacks to confirm it")
    moved = sorted(pid for pid in both if first[pid] != second[pid])
    if moved:
        return Look(JobState.QUIET, f"{quiet.reason}; pid {moved[0]} moves, by its stacks")
    return Look(JobState.HANGS, f"{quiet.reason}; no process moved between two stacks")
