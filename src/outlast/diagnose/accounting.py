"""Rows of Slurm's accounting (`sacct`, `squeue`) that are about other jobs.

People ask for all jobs of the day and keep the whole table. A row is of this job if its number is
one that the job's own logs say, or that stands in the name of one of them ("slurm-9001.out"). If
neither gives a number, all rows count.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.same_job import Sample
from outlast.model.verdict import Role

# a number, of an array's task or of a step: 9001, 9001_3, 9001.batch
_ROW = re.compile(r"^\s{0,20}(\d{2,12})(?:[_+]\d{1,6})?(?:\.[\w+-]{1,20})?[\s|,]")
_LOG = re.compile(r"slurm-(\d{2,12})(?:[_.]|$)")  # sbatch's own name of a log
_NUMBERS = re.compile(r"(?<!\d)(\d{2,12})(?!\d)")


def with_other_jobs_marked(
    findings: Sequence[Finding], samples: Sequence[Sample]
) -> tuple[list[Finding], str]:
    """Mark the rows of other jobs, and say so in a sentence ("" for none)."""
    rows = {
        id(one): found[1]
        for one in findings
        if one.rule.startswith("slurm.") and (found := _ROW.match(one.evidence.text))
    }
    said = {one for sample in samples for one in sample.identities.get("Slurm job", ())}
    tables = {one.evidence.file for one in findings if id(one) in rows}
    names = [one.name.rpartition("/")[2] for one in samples if one.name not in tables]
    said |= {found[1] for name in names if (found := _LOG.match(name))}
    own = said or {number for name in names for number in _NUMBERS.findall(name)} & {*rows.values()}
    others = {number for number in rows.values() if number not in own}
    if not own or not others:
        return list(findings), ""
    kept = [
        replace(
            one,
            doubt="stranger",
            mechanism=None,
            evidence=replace(one.evidence, role=Role.MESSENGER),
        )
        if rows.get(id(one)) in others
        else one
        for one in findings
    ]
    return kept, (
        f"rows of Slurm's accounting about other jobs ({_few(sorted(others))}) count for nothing:"
        f" this job is {_few(sorted(own))}"
    )


def _few(numbers: Sequence[str]) -> str:
    return ", ".join(numbers[:3]) + (f" and {len(numbers) - 3} more" if len(numbers) > 3 else "")
