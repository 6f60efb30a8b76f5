"""Mark lines of hosts that may be of another job.

A kernel's log goes back for weeks, and has lines about everything that runs on the host.

*Older*: the job's own logs show since when the job ran. These are logs with lines of a rank, of
torch's launcher or of a collective. Only logs with a time in their very first lines count. A log
whose first time is that of its failure does not say when it began. A line of another log is marked
if it is OLD_S older. If no log says when it began, a line is marked once it is ZONES_S older than
the job's first report of a failure, or than the end of its logs: what breaks a job does not wait
for a day. The end of a process leaves nothing behind that a later job could suffer from. So a line
about it is marked once it is BEFORE_S older than a log that has the job's start in it. So is an Xid
with the pid of a process that the job's launcher does not name, if it is BEFORE_S older than all
logs of the job.

A marked line weighs little, but not nothing. A host's clock and a container's may be in two zones,
so the line may be of the job after all. It counts for its class alone, and not for how the job
ended. It does not count at all if a newer line says the same, or if no two zones are so far apart.

*Stranger*: a kernel ended a process that is not one of the job's. That shows in its pid, its
command, its cgroup, its time or the exit codes of the ranks (`kernel_kills.py`). Such a line weighs
nothing.

*Untied*: nothing ties the ended process to the job, and nothing excludes it. Such a line alone
never names a class. Where no report of the job's failure has a time, the last time in its logs
counts, or else when these files were last written. Files that were all written in one minute were
copied, so their times say nothing.

Not seen: logs that begin long after the job did (a resumed run, a log that was rotated).

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType

from outlast.diagnose.findings import Doubt, Finding
from outlast.diagnose.kernel_kills import (
    AGREE_S,
    FAILED_WITHIN_S,
    KILLS,
    TRAINS,
    KernelKill,
    Tie,
    job_processes,
    kills_of,
    tie_of,
    with_rank,
)
from outlast.diagnose.same_job import Sample, nearest
from outlast.model.terms import FailureClass
from outlast.model.verdict import Role

# few set a collective's time-out higher, which may pass between the cause and the job's first line
# about it
OLD_S = 3 * 3_600.0
BEFORE_S = 120.0  # clocks of a host and of a job agree so well, where they are in one zone
ZONES_S = 26.5 * 3_600.0  # UTC-12 to UTC+14, and time to spare
ZONE_S = 1_800.0  # two zones differ by multiples
COPIED_S = 60.0
DOUBT_OF: dict[Tie, Doubt] = {Tie.UNTIED: "untied", Tie.EXCLUDED: "stranger"}
_XID_PID = re.compile(r"\bpid='?(\d{1,9})\b")
_XID_NAME = re.compile(r"\bname='?([\w.:/-]{1,40})")
JOBS = ("elastic.", "c10d.", "nccl.", "gloo.", "python.", "ledger.")


def without_foreign_lines(
    findings: Sequence[Finding],
    samples: Sequence[Sample],
    written_s: Mapping[str, float] = MappingProxyType({}),
) -> tuple[list[Finding], str]:
    """Return the findings that may be of the job, with those from before it marked as older.

    The second part is a sentence about what was done; "" for nothing.
    """
    own = _own_files(findings)
    ours = [one for one in samples if one.name in own]
    near_s = max((one.at_s for one in findings if one.at_s is not None), default=None)
    began_s, started_s = (
        _began_s(ours, near_s=near_s),
        _began_s([one for one in ours if one.starts], near_s=near_s),
    )
    since = "the job's own logs"
    if began_s is None and (failed_s := _failed_s(findings, own)) is not None:
        began_s, since = failed_s - ZONES_S + OLD_S, "what the job says of its failure"
    if began_s is None and (ended_s := _ended_s(findings, samples, written_s)) is not None:
        began_s, since = ended_s - ZONES_S + OLD_S, "the end of the job's own logs"
    if began_s is None:
        return list(findings), ""
    pids = job_processes(findings).codes.keys()
    old: dict[int, float] = {}
    for one in findings:
        if one.at_s is None or one.evidence.file in own:
            continue
        killed = (
            one.rule.startswith(KILLS)
            and started_s is not None
            and one.at_s < min(began_s, started_s) - BEFORE_S
        )
        killed |= one.at_s < began_s - BEFORE_S and _is_of_another_process(one, pids)
        if killed or one.at_s < began_s - OLD_S:
            old[id(one)] = began_s - one.at_s
    said = {
        one.failure_class
        for one in findings
        if id(one) not in old and one.evidence.role is Role.ROOT
    }
    kept = [
        one
        for one in findings
        if id(one) not in old
        or (old[id(one)] <= ZONES_S and one.failure_class not in {None, *said})
    ]
    return [_marked(one, "older") if id(one) in old else one for one in kept], _note(
        [one for one in findings if id(one) in old], began_s, since
    )


def _is_of_another_process(one: Finding, pids: Set[int]) -> bool:
    """Return True for an Xid with a pid that is none of those that the job's launcher names."""
    found = _XID_PID.search(one.evidence.text) if one.rule.startswith("xid.") else None
    return found is not None and bool(pids) and int(found[1]) not in pids


def with_strangers_marked(
    findings: Sequence[Finding],
    samples: Sequence[Sample] = (),
    *,
    last_signs_s: Iterable[float] = (),
    written_s: Mapping[str, float] = MappingProxyType({}),
) -> tuple[list[Finding], str]:
    """Mark the lines about processes that a kernel ended and that are not shown to be the job's.

    Return the findings, and a sentence ("" for nothing) that says what was set aside, and why.
    Findings that are tied to a rank name it. `last_signs_s` is as `job_processes` takes it, and
    `written_s` has when each file was last written.
    """
    slurm = {one for sample in samples for one in sample.identities.get("Slurm job", ())}
    files = [one.name for one in samples]
    job = job_processes(findings, slurm_jobs=slurm, last_signs_s=last_signs_s, files=files)
    ended_s = None if job.failed_s is not None else _ended_s(findings, samples, written_s)
    changed: dict[int, Finding] = {}
    aside: list[tuple[KernelKill, str]] = []
    for kill in kills_of(findings):
        tie, why = tie_of(kill, job)
        if tie is Tie.FITS and not _is_at_the_end(kill, ended_s):
            tie, why = Tie.UNTIED, "the job's logs end at another time"
        for one in kill.findings:
            if tie is Tie.TIED:
                changed[id(one)] = with_rank(one, kill, job)
            # That a line is older leaves it some weight; that it is of no process of the job, none.
            elif tie in DOUBT_OF and (not one.doubt or tie is Tie.EXCLUDED):
                changed[id(one)] = _marked(one, DOUBT_OF[tie])
        if tie in DOUBT_OF:
            aside.append((kill, why))
    changed |= {
        id(one): _marked(one, "stranger")
        for one in findings
        if _is_of_another_program(one) and {*files} - {one.evidence.file}
    }
    # A group of processes that may not fork is the job's if the job says that it could not.
    if job.is_known and not any(one.rule == "kernel.files" for one in findings):
        changed |= {
            id(one): _marked(one, "untied")
            for one in findings
            if one.rule == "kernel.pids" and not one.doubt
        }
    return [changed.get(id(one), one) for one in findings], _note_of_strangers(aside)


def _ended_s(
    findings: Sequence[Finding], samples: Sequence[Sample], written_s: Mapping[str, float]
) -> float | None:
    """Return when the job's own logs end, by the times in them or else by those of the files."""
    own = _own_files(findings) | {
        one.evidence.file for one in findings if one.rule.startswith("exit.")
    }
    told = [one.last_s for one in samples if one.name in own and one.last_s is not None]
    if told:
        return max(told)
    moments = written_s.values()
    if not moments or max(moments) - min(moments) < COPIED_S:
        return None
    return max((moment for name, moment in written_s.items() if name in own), default=None)


def _is_at_the_end(kill: KernelKill, ended_s: float | None) -> bool:
    """Return True if the kill may have ended the job, if need be with clocks in two zones."""
    if kill.at_s is None or ended_s is None:
        return True
    gap_s = ended_s - kill.at_s
    return abs(gap_s) < ZONES_S and (gap_s + AGREE_S) % ZONE_S <= FAILED_WITHIN_S + AGREE_S


def _own_files(findings: Sequence[Finding]) -> set[str]:
    return {
        one.evidence.file for one in findings if one.rank is not None or one.rule.startswith(JOBS)
    }


def _is_of_another_program(one: Finding) -> bool:
    """Return True for an Xid that ends one program alone, which is none that trains."""
    found = _XID_NAME.search(one.evidence.text) if one.rule.startswith("xid.") else None
    of_software = one.failure_class in (FailureClass.SOFTWARE_BUG, FailureClass.USER_CODE)
    return of_software and found is not None and not TRAINS.match(found[1])


def _note_of_strangers(aside: Sequence[tuple[KernelKill, str]]) -> str:
    if not aside:
        return ""
    kill, why = aside[0]
    first = kill.findings[0].evidence
    what = kill.command or "a process"
    pid = f" (pid {kill.pid})" if kill.pid is not None else ""
    more = f", and {len(aside) - 1} more such" if len(aside) > 1 else ""
    line = "" if first.line is None else f":{first.line}"
    return (
        f"the kernel ended {what}{pid} ({first.file}{line}){more}, which is not shown to be of this"
        f" job: {why}"
    )


def _marked(one: Finding, doubt: Doubt) -> Finding:
    """Mark a finding that does not say how this job ended.

    In what is shown it is a messenger: something failed, elsewhere or earlier.
    """
    return replace(
        one, doubt=doubt, mechanism=None, evidence=replace(one.evidence, role=Role.MESSENGER)
    )


def _began_s(samples: Iterable[Sample], *, near_s: float | None) -> float | None:
    """Return the first time in any of the logs, in Unix seconds.

    Times without a year are taken to be of the year that brings them nearest to the other evidence.
    """
    first: list[float | None] = []
    for one in samples:
        first.append(one.began_s)
        if one.began_day is not None and near_s is not None:
            first.append(nearest(one.began_day, near_s))
    return min((moment for moment in first if moment is not None), default=None)


def _failed_s(findings: Sequence[Finding], own: set[str]) -> float | None:
    """Return when the job's own logs first report a failure."""
    told = (
        one.at_s
        for one in findings
        if one.at_s is not None
        and one.evidence.file in own
        and one.evidence.role in (Role.ROOT, Role.MESSENGER)
    )
    return min(told, default=None)


def _note(old: Sequence[Finding], began_s: float, since: str) -> str:
    if not old:
        return ""
    files = sorted({one.evidence.file for one in old})
    named = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    newest_s = max(one.at_s or 0.0 for one in old)
    what, verb = (f"{len(old):,} lines", "are") if len(old) > 1 else ("1 line", "is")
    return (
        f"{what} of {named} {verb} {(began_s - newest_s) / 3_600:.1f} hours or more older than"
        f" {since}, and of little or no weight"
    )
