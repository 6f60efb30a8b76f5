"""Lines of hosts that are older than the job: a kernel's log goes back for weeks, and what it tells of last night ended another job.

What the job's own logs begin with says since when it was there; those are the logs in which a rank, torch's launcher or a collective speaks, and only those
with a time in their very first lines: a log whose first time is that of its failure does not say when it began. A line of another log that is OLD_S older
is marked. It weighs little, and is not nothing: a host's clock and a container's may be in two zones, so that it may be of the job after all. It counts for
its class alone, not for how the job ended; and not even that where a newer line says the same, or where no two zones are so far apart.

Not seen: a job whose own logs begin without times; logs that were begun anew long after the job (a resumed run, a log that was rotated).

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from outlast.diagnose.findings import Finding
from outlast.diagnose.mixture import Day, Sample
from outlast.model.verdict import Role

OLD_S = 3 * 3_600.0  # few set a collective's time-out higher, and so long may pass from the cause to the first line that a job says of it
ZONES_S = 26.5 * 3_600.0  # UTC-12 to UTC+14, and time to spare
JOBS = ("elastic.", "c10d.", "nccl.", "gloo.", "python.", "ledger.")


def without_history(findings: Sequence[Finding], samples: Sequence[Sample]) -> tuple[list[Finding], str]:
    """The findings that may be of the job, those from hours before it marked as `old`; and what was done, in a sentence ("" for nothing)."""
    own = {one.evidence.file for one in findings if one.rank is not None or one.rule.startswith(JOBS)}
    times = [one.at_s for one in findings if one.at_s is not None]
    began_s = _began_s([one for one in samples if one.name in own], near_s=max(times, default=None))
    if began_s is None:
        return list(findings), ""
    before_s = {id(one): began_s - one.at_s for one in findings if one.at_s is not None and one.evidence.file not in own}
    old = [one for one in findings if before_s.get(id(one), 0.0) > OLD_S]
    new = [one for one in findings if before_s.get(id(one), 0.0) <= OLD_S]
    said = {one.failure_class for one in new if one.evidence.role is Role.ROOT}
    marked = {id(one): replace(one, old=True, mechanism=None) for one in old if before_s[id(one)] <= ZONES_S and one.failure_class not in {None, *said}}
    dropped = {id(one) for one in old} - marked.keys()
    return [marked.get(id(one), one) for one in findings if id(one) not in dropped], _note(old, began_s)


def _began_s(samples: Iterable[Sample], *, near_s: float | None) -> float | None:
    """Unix seconds of the first time in any of them. Those without a year are of the year that brings them nearest to the other evidence."""
    first: list[float | None] = []
    for one in samples:
        first.append(one.began_s)
        if one.began_day is not None and near_s is not None:
            first.append(_nearest(one.began_day, near_s))
    return min((moment for moment in first if moment is not None), default=None)


def _nearest(day: Day, near_s: float) -> float | None:
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
    what, verb = (f"{len(old):,} lines", "are") if len(old) > 1 else ("1 line", "is")
    return f"{what} of {named} {verb} {(began_s - newest_s) / 3_600:.1f} hours or more older than the job's own logs, and of little or no weight"
