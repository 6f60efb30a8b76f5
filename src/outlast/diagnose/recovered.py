"""Jobs that failed, were started again by their launcher, and then finished.

Nothing is broken in such a folder any more, though it tells of a failure. What ended the earlier
attempt is what a reader asks for, and a restart is no advice.

Only torchrun's own lines count, in one log with the end of the job. If each attempt has a folder,
the newest one shows a job that ended well, and the older ones are set aside (`attempts.py`).

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from outlast.diagnose.findings import Finding
from outlast.diagnose.rules import RULES
from outlast.model.verdict import Evidence

RULE, FINISHED = "log.recovered", "log.finished"
_AGAIN, _WELL = "elastic.restart", "launcher.succeeded"


def with_recovery(findings: Sequence[Finding], finished: Set[str]) -> list[Finding]:
    """Return the findings, with one more if the job was started again and then finished.

    `finished` are the files that end with the words of a program that has finished its training.
    """
    well = {
        one.evidence.file: one.order
        for one in sorted(findings, key=lambda one: one.order)
        if one.rule == _WELL
    }
    again = [
        one
        for one in findings
        if one.rule == _AGAIN
        and (one.evidence.file in finished or well.get(one.evidence.file, -1) > one.order)
    ]
    if not again:
        return list(findings)
    row = RULES[RULE]
    at = Evidence(
        again[-1].evidence.file, again[-1].evidence.line, again[-1].evidence.text, row.role
    )
    return [*findings, Finding(at, row.name)]


def finished_well(findings: Sequence[Finding]) -> bool:
    """Return True if the training finished, in the first attempt that the folder tells of."""
    names = {one.rule for one in findings}
    return FINISHED in names and RULE not in names


def has_recovered(findings: Sequence[Finding]) -> bool:
    return any(one.rule == RULE for one in findings)
