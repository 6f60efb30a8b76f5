"""Outputs of earlier submissions of one job, and logs that were rotated away before it failed.

A person who submits a job again keeps its first output beside the second ("slurm-1001.out",
"slurm-1002.out", "train.o4711", "attempt2.log"), and a log that is rotated lies beside the one that
goes on ("train.log.1"). What failed then is not what failed now, so the newest output is diagnosed
and the older ones are set aside.

The numbers of ranks and nodes look the same. So a number counts only where a scheduler or a person
puts the number of a submission, and a rotated log only beside the log that goes on.

Outputs are of two submissions if the one ends before the other begins, by their own times. Those of
tasks of one job overlap, and a log that was rotated while the job ran goes on at once. Nothing is
set aside where the newest output tells of no failure: then an older one is what is asked about.

Not seen: outputs without times, and outputs whose names differ in a date only.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from outlast.diagnose.findings import Finding
from outlast.diagnose.same_job import Sample
from outlast.model.verdict import Role

APART_S = 60.0  # a log that is rotated goes on sooner, and a new submission starts later
_NUMBERED = re.compile(
    r"^(?P<form>.*(?:^|[/_.-])(?:(?:try|retry|restart|resume|submit|attempt)[-_.]?|"
    r"(?:slurm|job)[-_.]?(?=\d{3})))(?P<number>\d{1,12})(?!\d)"
    r"|^(?P<form_x>.*[-_.])(?P<number_x>\d{5,12})(?:[-_.]\d{1,5}){0,2}\.(?:out|err|log)$"
    r"|^(?P<form_o>.*\.)[oe](?P<number_o>\d{3,12})$"
)
_ROTATED = re.compile(r"^(?P<form>.*\.(?:log|out|err|txt))(?:\.(?P<number>\d{1,3}))?(?:\.gz)?$")
_ROTATION = ", rotated"
_ENDS = ("elastic.", "exit.", "slurm.")


@dataclass(slots=True)
class _Output:
    """The files of one submission, or one file of a rotated log. Times are Unix seconds."""

    files: list[str] = field(default_factory=list)
    first_s: float | None = None
    last_s: float | None = None

    def take(self, one: Sample) -> None:
        self.files.append(one.name)
        if one.first_s is not None and one.last_s is not None:
            self.first_s = one.first_s if self.first_s is None else min(self.first_s, one.first_s)
            self.last_s = one.last_s if self.last_s is None else max(self.last_s, one.last_s)


def without_earlier_outputs(
    findings: Sequence[Finding], samples: Sequence[Sample]
) -> tuple[list[Finding], list[Sample], str]:
    """Return what belongs to no earlier submission, and a note about the rest; "" for none."""
    told = {one.evidence.file for one in findings if _tells_of_a_failure(one)}
    by_form: dict[str, dict[str, _Output]] = defaultdict(lambda: defaultdict(_Output))
    for one in samples:
        if (key := _key(one.name)) is not None:
            by_form[key[0]][key[1]].take(one)
    old: list[str] = []
    for form, outputs in by_form.items():
        dated = [one for one in outputs.values() if one.first_s is not None]
        is_rotated = form.endswith(_ROTATION)
        if len(dated) < 2 or (is_rotated and "" not in outputs):
            continue
        newest = max(dated, key=lambda one: one.first_s or 0.0)
        if told.isdisjoint(newest.files) or (is_rotated and newest is not outputs[""]):
            continue
        begins_s = (newest.first_s or 0.0) - APART_S
        old += [name for one in dated if (one.last_s or 0.0) <= begins_s for name in one.files]
    if not old:
        return list(findings), list(samples), ""
    aside = set(old)
    count = f"{len(old)} {'file is' if len(old) == 1 else 'files are'}"
    return (
        [one for one in findings if one.evidence.file not in aside],
        [one for one in samples if one.name not in aside],
        f"{count} left out because the newest submission of the job, or its newest log, is"
        f" diagnosed; name one of the earlier submissions or logs ({min(old)}) alone to read it",
    )


def _key(name: str) -> tuple[str, str] | None:
    """Return what names of outputs of one job have in common, and the number that differs."""
    if (found := _NUMBERED.match(name)) is not None:
        said = found.groupdict()
        form = said["form"] or said["form_x"] or said["form_o"] or ""
        return f"{form}#", said["number"] or said["number_x"] or said["number_o"] or ""
    if (rotated := _ROTATED.match(name)) is not None:
        return f"{rotated['form']}{_ROTATION}", rotated["number"] or ""
    return None


def _tells_of_a_failure(one: Finding) -> bool:
    said = one.evidence.role in (Role.ROOT, Role.MESSENGER) and not one.doubt
    return said or one.rule.startswith(_ENDS)
