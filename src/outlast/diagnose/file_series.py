"""Files that are named alike but for a number, which is the rank that wrote each of them.

`srun --output=train-%j-%t.out` and many scripts give each rank a file whose name does not say
"rank". Such a number is the rank if lines in these files say so: exceptions have the rank as a
prefix. If no line names a rank, the numbers have to be those of all ranks, by the world size in the
logs. Lines of a launcher in these files show that they are of nodes.

Stacks are collected that way too ("stack.0", "pyspy_r6.txt"). Such files are of ranks if each of
them has the stack of another process: a person who takes stacks of one process again and again also
numbers the files.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.prefixes import rank_of_name
from outlast.diagnose.rules import RULES
from outlast.diagnose.stacks.reader import Stack
from outlast.model.verdict import Evidence

NUMBERS_MAX = 8  # in one name
_NUMBER = re.compile(r"(?<!\d)(?<!\d\.)\d{1,6}(?!\d)")


def with_ranks_of_series(
    findings: Sequence[Finding], names: Iterable[str], world_size: int
) -> list[Finding]:
    """Return the findings; those in a file of a series have its rank.

    One is added for each file of a series, so that it is known that its rank left a log.
    """
    ranks = _ranks_by_name(findings, names, world_size)
    if not ranks:
        return list(findings)
    row = RULES["log.last"]
    named = {one.evidence.file for one in findings if one.rule == row.name}
    return [
        *(
            replace(one, rank=ranks[one.evidence.file])
            if one.rank is None and one.evidence.file in ranks
            else one
            for one in findings
        ),
        *(
            Finding(Evidence(name, None, "", row.role), row.name, rank=rank)
            for name, rank in ranks.items()
            if name not in named
        ),
    ]


def _ranks_by_name(
    findings: Sequence[Finding], names: Iterable[str], world_size: int
) -> dict[str, int]:
    said: dict[str, set[int]] = defaultdict(set)
    stood: dict[str, set[str]] = defaultdict(set)
    of_launcher = set()
    for one in findings:
        if isinstance(one, Stack):
            stood[one.evidence.file].add(one.process)
        if one.rule.startswith("elastic."):
            of_launcher.add(one.evidence.file)
        elif one.rank is not None:
            said[one.evidence.file].add(one.rank)
    ranks: dict[str, int] = {}
    sure: list[set[int]] = []  # numbers of series that are ranks; one of the same numbers is, too
    for series in _series(names):
        files = set(series.values())
        if len(series) < 2 or files & of_launcher or files & ranks.keys():
            continue
        if (
            _are_ranks(series, said, world_size)
            or _has_each_a_process(series, stood)
            or (set(series) in sure and not any(said.get(name) for name in files))
        ):
            sure.append(set(series))
            ranks |= {name: number for number, name in sorted(series.items())}
    return ranks


def _series(names: Iterable[str]) -> list[dict[int, str]]:
    """Return the files of each form of a name, by the number that differs."""
    forms: dict[str, dict[int, str]] = defaultdict(dict)
    for name in sorted(set(names)):
        if rank_of_name(name) is None:
            for found in list(_NUMBER.finditer(name))[-NUMBERS_MAX:]:
                form = f"{name[: found.start()]}#{name[found.end() :]}"
                forms[form].setdefault(int(found[0]), name)
    return sorted(forms.values(), key=len, reverse=True)


def _has_each_a_process(series: Mapping[int, str], stood: Mapping[str, set[str]]) -> bool:
    """Return True if the files number all processes of a job from 0, each by its own stack."""
    owners = [stood.get(name, set()) for name in series.values()]
    is_whole = sorted(series) == list(range(len(series)))
    different = set().union(*owners)
    return is_whole and all(len(one) == 1 for one in owners) and len(different) == len(owners) > 2


def _are_ranks(series: Mapping[int, str], said: Mapping[str, set[int]], world_size: int) -> bool:
    is_whole = sorted(series) == list(range(len(series)))
    told = {number: said[name] for number, name in series.items() if said.get(name)}
    if any(ranks != {number} for number, ranks in told.items()):
        return False
    if not told:
        return is_whole and len(series) == world_size
    return is_whole or len(told) > 1
