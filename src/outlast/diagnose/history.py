"""Lines of hosts that are older than the job: a kernel's log goes back for weeks, and what it tells of last night ended another job.

What the job's own logs begin with says when it was there; those are the logs in which a rank, or torch's launcher or a collective, speaks. A line of another
log that is OLD_S older is kept and weighs little: clocks of a host and of a container may be in two zones, so that it may be of the job after all. What is
older than any two zones can make it is left out.

Not seen: a job whose own logs have no dates; logs that were begun anew long after the job (a resumed run, a log that was rotated).

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from outlast.diagnose.findings import Finding
from outlast.diagnose.mixture import Sample

OLD_S = 3 * 3_600.0  # a collective's time-out is seldom longer, and so long may pass from the cause to the first line that a job says of it
ZONES_S = 26.5 * 3_600.0  # UTC-12 to UTC+14, and time to spare
JOBS = ("elastic.", "c10d.", "nccl.", "gloo.", "python.")


def without_history(findings: Sequence[Finding], samples: Sequence[Sample]) -> tuple[list[Finding], str]:
    """The findings that may be of the job, those from hours before it marked as `old`; and what was done, in a sentence ("" for nothing)."""
    own = {one.evidence.file for one in findings if one.rank is not None or one.rule.startswith(JOBS)}
    times = [one.at_s for one in findings if one.at_s is not None]
    began_s = _began_s([one for one in samples if one.name in own], near_s=max(times, default=None))
    if began_s is None:
        return list(findings), ""
    old = {id(one): began_s - one.at_s for one in findings if one.at_s is not None and one.at_s < began_s - OLD_S and one.evidence.file not in own}
    kept = [replace(one, old=True) if id(one) in old else one for one in findings if old.get(id(one), 0.0) <= ZONES_S]
    return kept, _note([one for one in findings if id(one) in old], began_s)


def _began_s(samples: Iterable[Sample], *, near_s: float | None) -> float | None:
    """Dates without a year are of the year that brings them nearest to the other evidence."""
    first = [one.first_s for one in samples if one.first_s is not None]
    if near_s is not None:
        first += [moment for one in samples if one.first_s is None and one.first_day is not None and (moment := _nearest(one.first_day, near_s)) is not None]
    return min(first, default=None)


def _nearest(day: tuple[int, int, int, int, int], near_s: float) -> float | None:
    year = datetime.fromtimestamp(near_s, timezone.utc).year
    moments = []
    for one in (year - 1, year, year + 1):
        try:
            moments.append(datetime(one, *day, tzinfo=timezone.utc).timestamp())
        except ValueError:  # 29 February
            continue
    return min(moments, key=lambda moment: abs(moment - near_s), default=None)


def _note(old: Sequence[Finding], began_s: float) -> str:
    if not old:
        return ""
    files = sorted({one.evidence.file for one in old})
    named = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    newest_s = max(one.at_s or 0.0 for one in old)
    lines = f"{len(old):,} {'line' if len(old) == 1 else 'lines'}"
    return f"{lines} of {named} are {(began_s - newest_s) / 3_600:.1f} hours or more older than the job's own logs, and count for little or nothing"
