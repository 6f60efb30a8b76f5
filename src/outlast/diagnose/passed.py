"""Mark what a host suffered for a while before the job's end, and the job went on after.

A mount that does not answer, a link that is down and a task that is blocked are states. They may
pass, as "nfs: server fs01 OK" says. An error of memory that was corrected is over at once. What
ended a container that was started again is over, too. If the job took steps long after such a line,
it ended nothing then. The same line may come again later, and that one counts.

An order in time between a host's log and a job's needs one clock. Where the two times differ by
about a multiple of half an hour, two time zones may be all that lies between them. Then a line is
marked only if another one of its file says that what was lost is there again.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.log_ends import LogEnd, may_be_zones
from outlast.model.texts import duration
from outlast.model.verdict import Role

# lines about a state that may pass, or about what was corrected
STATES = (
    "fs.remote",
    "task.hung",
    "task.disk",
    "task.trace_fs",
    "link.lost",
    "link.ethernet",
    "nic.transmit",
    "cpu.soft_lockup",
    "cpu.rcu",
    "cpu.logged",
    "memory.corrected",
    "kube.oom",
)
FINISHED, FINISHED_LINES = "kube.finished", 8  # lines within which kubectl says when that was
APART_MAX_S = 26.5 * 3_600.0  # no two zones are so far apart
BACK = "fs.back"
PASSED_S = 600.0  # steps that much later were taken after the state, and not before it
STEPS = 10  # and at least this many times the usual time between two of their lines later
ZONES_SLACK_S = 180.0


def with_passed_marked(
    findings: Sequence[Finding], ends: Iterable[LogEnd]
) -> tuple[list[Finding], str]:
    """Mark the findings about states after which the job went on; and say so ("" for none)."""
    findings = _timed(findings)
    last_s, usual_s = 0.0, 0.0
    for end in ends:
        for series in end.series.values():
            if series.last_s is not None and series.last_s > last_s:
                last_s, usual_s = series.last_s, series.gap_s or 0.0
    after_s = max(PASSED_S, STEPS * usual_s)
    back = {(one.evidence.file, one.node): one.order for one in findings if one.rule == BACK}
    passed = {
        id(one): last_s - one.at_s
        for one in findings
        if one.rule in STATES
        and not one.doubt
        and one.rank is None
        and one.at_s is not None
        and last_s - one.at_s > after_s
        and (
            not _may_be_two_zones(last_s - one.at_s, usual_s)
            or back.get((one.evidence.file, one.node), one.order) > one.order
        )
    }
    if not passed:
        return findings, ""
    first = next(one.evidence for one in findings if id(one) in passed)
    more = f" (and {len(passed) - 1} more such)" if len(passed) > 1 else ""
    marked = [
        replace(
            one,
            doubt="handled",
            mechanism=None,
            evidence=replace(one.evidence, role=Role.MESSENGER),
        )
        if id(one) in passed
        else one
        for one in findings
    ]
    return marked, (
        f"{first.file}:{first.line}{more} tells of a state that passed: the job went on for"
        f" {duration(min(passed.values()))} or more after it"
    )


def _timed(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; what ended a container has the time that kubectl describe tells below.

    last State: Terminated, Reason: OOMKilled, Exit Code: 137, Finished: Mon, 02 Mar 2026 ...
    """
    told = [one for one in findings if one.rule == FINISHED and one.at_s is not None]

    def at_s(one: Finding) -> float | None:
        after = (
            other.at_s
            for other in told
            if other.evidence.file == one.evidence.file
            and 0 < other.order - one.order <= FINISHED_LINES
        )
        return next(after, None)

    return [
        replace(one, at_s=at_s(one)) if one.rule == "kube.oom" and one.at_s is None else one
        for one in findings
    ]


def _may_be_two_zones(apart_s: float, usual_s: float) -> bool:
    """Return True if two clocks in two zones could be so far apart."""
    return abs(apart_s) < APART_MAX_S and may_be_zones(apart_s, ZONES_SLACK_S + usual_s)
