"""Jobs that failed, were started again by their launcher, and then finished.

Nothing is broken in such a folder any more, though it shows a failure. What ended the earlier
attempt is what a reader asks for, and to restart is not useful advice.

Only torchrun's own lines count, in one log with the end of the job. If each attempt has a folder,
the newest one shows a job that ended well, and the older ones are set aside (`attempts.py`).

Of a job that was started again and then failed for good, torchrun prints no line about the start
unless its own log level is lowered. The last attempt's table shows that there was an earlier one:
the process in it has another pid. Where the line is there, all before it is of an earlier attempt
if the launcher noticed another failure after it.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.went_on import RESTARTED
from outlast.diagnose.rules import RULES
from outlast.model.verdict import Evidence

# the launcher's own pid, and that of the process that it found to have failed
_NOTICED = re.compile(
    r"^[A-Z]\d{4} [\d:.]{8,20} (\d{1,9}) \S{0,80}\] failed \(exitcode: (-?\d{1,3})\)"
    r".{0,60}?\(pid: (\d{1,9})\)"
)
_IN_TABLE = re.compile(r"^exitcode {1,6}: -?\d{1,3} \(pid: (\d{1,9})\)")
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


def with_earlier_attempts_marked(findings: Sequence[Finding]) -> tuple[list[Finding], str]:
    """Mark what a launcher noticed of an attempt before its last one, and return a note."""
    table: dict[str, set[str]] = defaultdict(set)
    noticed: dict[tuple[str, str], list[tuple[Finding, re.Match[str]]]] = defaultdict(list)
    for one in findings:
        if found := _IN_TABLE.match(one.evidence.text):
            table[one.evidence.file].add(found[1])
        elif found := _NOTICED.match(one.evidence.text):
            noticed[one.evidence.file, found[1]].append((one, found))
    again = [one for one in findings if one.rule == _AGAIN]
    older: dict[int, str] = {}
    for (file, _), lines in noticed.items():
        newest = lines[-1][0].order
        begun = max(
            *(one.order for one in again if one.evidence.file == file and one.order < newest),
            next((one.order for one, found in lines if found[3] in table[file]), 0),
            0,
        )
        older |= {id(one): found[2] for one, found in lines if one.order < begun}
    if not older:
        return list(findings), ""
    codes, row = ", ".join(dict.fromkeys(older.values())), RULES[RESTARTED]
    return [
        replace(
            one,
            rule=row.name,
            evidence=replace(one.evidence, role=row.role),
            failure_class=None,
            mechanism=None,
        )
        if id(one) in older
        else one
        for one in findings
    ], f"the launcher had started the job again after a failure (exit code {codes})"


def finished_well(findings: Sequence[Finding]) -> bool:
    """Return True if the training finished, in the first attempt that the folder tells of."""
    names = {one.rule for one in findings}
    return FINISHED in names and RULE not in names


def has_recovered(findings: Sequence[Finding]) -> bool:
    """Return whether the launcher started the job again, and it then finished."""
    return any(one.rule == RULE for one in findings)
