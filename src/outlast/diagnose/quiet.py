"""Decide when a job that is watched through its logs counts as hanging.

A job is quiet once no new line came for `QUIET_FACTOR` times its usual gap, and at least
`QUIET_MIN_S`. A quiet job does not always hang: a checkpoint, an evaluation or a compilation is
quiet too. The job hangs if the stacks of its processes, taken twice, did not move. Where no stacks
can be taken, it must be quiet `BLIND_FACTOR` times as long.

A job that hangs already when it is first followed shows no gaps. It is looked at once it was quiet
for `QUIET_MIN_S`, and hangs if no process moved between two such looks, `AGAIN_S` apart.

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
AGAIN_S = 30.0  # between two looks at a job whose usual gap is not known


class JobState(str, Enum):
    """This is what the job is assumed to be doing."""

    GOES_ON = "goes on"
    QUIET = "quiet"
    STANDS = "stands still"  # in one look, and the usual gap is not known: it is looked at again
    HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class Look:
    """The decision, and the sentence that gives its reason.

    from_s   seconds without a new line from which on the job counts as quiet
    long_s   seconds that are enough even where the usual gap is not known
    is_sure  the usual gap is known, or the job was quiet for `long_s`
    """

    state: JobState
    reason: str
    from_s: float = QUIET_MIN_S
    long_s: float = QUIET_MIN_S
    is_sure: bool = True


def usual_gap_s(gaps_s: Sequence[float]) -> float:
    """Return the gap that nineteen of twenty gaps do not exceed."""
    if len(gaps_s) < GAPS_MIN:
        return UNKNOWN_GAP_S
    ordered = sorted(gaps_s[-GAPS_KEPT:])
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def decide_quiet(
    *, now_s: float, last_line_s: float, gaps_s: Sequence[float], min_s: float = QUIET_MIN_S
) -> Look:
    """Decide whether the time since the last line is unusually long."""
    usual_s, quiet_s = usual_gap_s(gaps_s), now_s - last_line_s
    long_s = max(min_s, QUIET_FACTOR * usual_s)
    is_known = len(gaps_s) >= GAPS_MIN
    from_s = long_s if is_known else min_s
    usually = (
        f"usually one comes within {usual_s:.1f} s"
        if is_known
        else "how often one comes is not known yet"
    )
    said = f"no new line for {quiet_s:.0f} s, and {usually}"
    if quiet_s < from_s:
        said += f"; it counts as quiet from {from_s:.0f} s on"
        return Look(JobState.GOES_ON, said, from_s, long_s, is_known)
    return Look(JobState.QUIET, said, from_s, long_s, is_known or quiet_s >= long_s)


def decide_hang(
    quiet: Look,
    *,
    first: Mapping[int, tuple[str, ...]],
    second: Mapping[int, tuple[str, ...]],
    quiet_s: float,
    blind_after_s: float,
    earlier: Mapping[int, tuple[str, ...]] | None = None,
) -> Look:
    """Decide whether a quiet job hangs, from the stacks of its processes at two moments.

    `first` and `second` are the main thread's frames by pid; `earlier` those of an earlier look, if
    no process moved in it. `blind_after_s` is how long a job must be quiet where no stacks can be
    had.
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
    if not quiet.is_sure and any((earlier or {}).get(pid) != second[pid] for pid in both):
        return Look(JobState.STANDS, f"{quiet.reason}; no process moved between two stacks")
    looks = "two stacks" if quiet.is_sure else "two looks, of two stacks each"
    return Look(JobState.HANGS, f"{quiet.reason}; no process moved between {looks}")
