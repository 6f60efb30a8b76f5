"""Evidence of an older attempt of the job in the same folder, and of a second incident.

A folder often holds more than the incident that it is asked about: torchrun starts a failed job
again (`attempt_0`, `attempt_1`), and a person collects twice. If two dumps of one rank were merged,
they would show waiting that never happened. So the newest incident is diagnosed. The rest is set
aside, and a note says so.

    logs      of torchrun's `<run>/attempt_N/<rank>/`: the newest attempt of each run, and of
              several runs the one that was written last
    dumps     two of one rank with different last entries; dumps up to the last entry of the older
              one are older too, even if their ranks left only one; and all whose files were written
              long before the last line of the ranks' logs, for the job went on after them
    stacks    files written before that moment, if a newer file has the same rank

Not seen: two incidents whose dumps have no times, and logs outside of torchrun's folders.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outlast.diagnose.collectives import Dump
from outlast.diagnose.findings import Finding
from outlast.diagnose.stacks.reader import Stack

APART_S = 1.0  # dumps of one rank whose last entries are closer are of one incident
LATER_S = 600.0  # a dump is older than what the logs show if they go on for this long after it
_ENDS = ("elastic.", "exit.")
_LOGS = ("log.", "python.", "c10d.", "gloo.", "nccl.", "torch.", "cuda.", "elastic.")
STACKS_APART_S = 60.0  # two stacks of one rank within this are two looks at one incident
_ATTEMPT = re.compile(r"^(.*?)([^/]+)/attempt_(\d{1,4})/\d{1,6}/[^/]*$")


@dataclass(frozen=True, slots=True)
class Split:
    """The evidence of the newest incident, and sentences about what was set aside."""

    findings: Sequence[Finding]
    dumps: Sequence[Dump]
    notes: tuple[str, ...] = ()


def split_attempts(
    findings: Sequence[Finding], dumps: Sequence[Dump], written_s: Mapping[str, float]
) -> Split:
    """Return the evidence of the newest incident, and notes about what was set aside.

    `written_s`: when each file was last written, in Unix seconds, by its name.
    """
    notes: list[str] = []
    old_logs = _older_attempts({one.evidence.file for one in findings}, written_s)
    if old_logs:
        notes.append(
            f"{_files(old_logs)} left out because the newest attempt of the job is diagnosed; name"
            " the folder of earlier attempts alone to diagnose one of them"
        )
    before_the_end = _dumps_before_the_end(findings, dumps, written_s)
    if before_the_end:
        notes.append(
            f"{_files(before_the_end)} left out because the ranks' logs go on long after these"
            f" dumps ({before_the_end[0]}); name their folder alone to diagnose what they show"
        )
        dumps = [dump for dump in dumps if dump.name not in set(before_the_end)]
    boundary_ns, old_dumps = _older_dumps(dumps)
    if old_dumps:
        names = sorted(dump.name for dump in old_dumps)
        notes.append(
            f"{_files(names)} left out because there are two incidents or attempts among the dumps"
            f" ({names[0]} is of the earlier one); name that folder alone to diagnose it"
        )
    kept = [one for one in findings if one.evidence.file not in old_logs]
    old_stacks = _older_stacks(kept, written_s, boundary_ns / 1e9 if old_dumps else None)
    if old_stacks:
        notes.append(
            f"{_files(sorted(old_stacks))} left out because the stacks are of an earlier moment"
        )
    kept = [
        one for one in kept if not isinstance(one, Stack) or one.evidence.file not in old_stacks
    ]
    older = {id(dump) for dump in old_dumps}
    return Split(kept, [dump for dump in dumps if id(dump) not in older], tuple(notes))


def _files(names: Sequence[str]) -> str:
    return f"{len(names)} {'file is' if len(names) == 1 else 'files are'}"


def _older_attempts(files: set[str], written_s: Mapping[str, float]) -> list[str]:
    """Return the files of all attempts but the newest, which is chosen for each folder of logs."""
    by_folder: dict[str, dict[tuple[str, int], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(files):
        if found := _ATTEMPT.match(name):
            by_folder[found[1]][found[2], int(found[3])].append(name)
    old: list[str] = []
    for attempts in by_folder.values():
        runs = {run for run, _ in attempts}
        # Several runs without times: which is newer cannot be told, and all are read.
        if len(runs) > 1 and not all(
            name in written_s for some in attempts.values() for name in some
        ):
            continue
        newest = (
            max(
                attempts,
                key=lambda key: (max(written_s.get(name, 0.0) for name in attempts[key]), key[1]),
            )
            if len(runs) > 1
            else max(attempts, key=lambda key: key[1])
        )
        old += [name for key, some in attempts.items() if key != newest for name in some]
    return old


def _older_dumps(dumps: Sequence[Dump]) -> tuple[int, list[Dump]]:
    """Return the dumps of an earlier incident, and the last moment that they know of."""
    of_rank: dict[int, list[Dump]] = defaultdict(list)
    for dump in dumps:
        if dump.rank >= 0 and dump.newest_ns:
            of_rank[dump.rank].append(dump)
    boundary_ns = 0
    newest_ns = max((dump.newest_ns for dump in dumps), default=0)
    for some in of_rank.values():
        latest = max(dump.newest_ns for dump in some)
        for dump in some:
            if latest - dump.newest_ns > APART_S * 1e9:
                boundary_ns = max(boundary_ns, dump.newest_ns)
    if not boundary_ns or newest_ns - boundary_ns <= APART_S * 1e9:
        return 0, []
    return boundary_ns, [dump for dump in dumps if 0 < dump.newest_ns <= boundary_ns]


def _dumps_before_the_end(
    findings: Sequence[Finding], dumps: Sequence[Dump], written_s: Mapping[str, float]
) -> list[str]:
    """Return the names of dumps that were written long before the ranks printed their last line.

    Only of a job that has ended: one that hangs prints nothing after its dumps. Nothing is known
    where files have no times, or all the same because they were copied.
    """
    if not any(one.rule.startswith(_ENDS) for one in findings):
        return []
    logs = {
        one.evidence.file
        for one in findings
        if one.rank is not None and not isinstance(one, Stack) and one.rule.startswith(_LOGS)
    }
    ended_s = max((written_s[name] for name in logs if name in written_s), default=None)
    if ended_s is None:
        return []
    return sorted(
        dump.name
        for dump in dumps
        if dump.newest_ns
        and max(dump.newest_ns / 1e9, written_s.get(dump.name, ended_s)) < ended_s - LATER_S
    )


def _older_stacks(
    findings: Sequence[Finding], written_s: Mapping[str, float], boundary_s: float | None
) -> set[str]:
    """Return the files of stacks of a rank that has a newer file of another process."""
    of_rank: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one in findings:
        if isinstance(one, Stack) and one.rank is not None and one.evidence.file in written_s:
            of_rank[one.rank][one.evidence.file].add(one.process)
    old: set[str] = set()
    for files in of_rank.values():
        latest = max(files, key=lambda name: written_s[name])
        for name in files:
            apart_s = written_s[latest] - written_s[name]
            before = boundary_s is not None and written_s[name] <= boundary_s
            if files[name].isdisjoint(files[latest]) and (
                apart_s > STACKS_APART_S or (before and apart_s > APART_S)
            ):
                old.add(name)
    return old
