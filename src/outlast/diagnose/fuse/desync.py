"""Which rank is behind, by the watchdog's lines alone, without any dump.

Ranks of one group that wait for different things under one number did not call the same
collectives: the program is at fault. If most ranks of the job report a wait, those that report none
are what the others wait for, unless they only wrote no log. If nothing was ever completed, the
group never communicated.

These lines do not say why the one rank that reports nothing is missing: it may be in the user's
code, in a read that does not return, on a GPU that has stopped, or gone. What the others wait for
is a hint. The gradients of a step are many numbers. One number is what a script reduces by itself:
whether there is another batch, the loss of an epoch, a barrier. A rank that reached all gradients,
and not to that, took another path through the script.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.accounts import TOLD
from outlast.diagnose.logs.watchdog import AwaitedCollective
from outlast.diagnose.rules import RULES
from outlast.diagnose.stacks.reader import Stack
from outlast.model.texts import cut_at_word
from outlast.model.verdict import Evidence, Role, Suspect

RANKS_MIN = 2
ONE_NUMBER = (1, 1)  # what goes into a collective, and what comes out
LEFT_OPEN = "c10d.left_open"  # a program that ends well says this, too
LAST_SAID = 80  # characters of a log's last line that a suspect's sentence repeats
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Desync:
    """The findings of `compare_waits`, and the ranks that it suspects."""

    findings: tuple[Finding, ...] = ()
    suspects: tuple[Suspect, ...] = ()


def compare_waits(findings: Sequence[Finding]) -> Desync:
    """Compare the collectives that the ranks' own watchdogs say they waited in."""
    said = [one for one in findings if isinstance(one, AwaitedCollective) and one.rank is not None]
    waits = [one for one in said if one.rule != TOLD]
    groups: dict[str, list[AwaitedCollective]] = defaultdict(list)
    for one in waits:
        groups[one.group or "?"].append(one)
    found: list[Finding] = []
    suspects: dict[int, Suspect] = {}
    for members in groups.values():
        found += _mismatch(members) or _ahead(members)
        found += _never_met(members)
    found += _behind(waits, [one for one in said if one.rule == TOLD])
    absent = _absent(waits, findings)
    if absent and not any(one.rule == "desync.mismatch" for one in found):
        found.append(_deduced(_rule_for(waits, absent, findings), waits[0]))
        waiting = len({one.rank for one in waits})
        suspects |= {
            rank: Suspect(
                rank,
                f"{waiting} ranks report a collective they wait in, and this rank none"
                + end_of_its_log(rank, findings),
            )
            for rank in absent
        }
    return Desync(tuple(found), tuple(suspects[rank] for rank in sorted(suspects)))


def _mismatch(members: Sequence[AwaitedCollective]) -> list[Finding]:
    """Return a finding if ranks call different operations or sizes under one number of one group.

    The finding is about the minority.
    """
    by_number: dict[int, dict[int, AwaitedCollective]] = defaultdict(dict)
    for one in members:
        if one.sequence is not None and one.operation and one.rank is not None:
            by_number[one.sequence].setdefault(one.rank, one)
    for _, ranks in sorted(by_number.items()):
        calls = Counter(
            (one.operation, one.numel if "GATHER" not in one.operation.upper() else None)
            for one in ranks.values()
        )
        if len(ranks) >= RANKS_MIN and len(calls) > 1:
            usual = calls.most_common(1)[0][0]
            odd = next(
                one
                for one in ranks.values()
                if (one.operation, one.numel if "GATHER" not in one.operation.upper() else None)
                != usual
            )
            return [
                _deduced(
                    "desync.mismatch",
                    odd,
                    shown=calls.most_common(2)[0][1] > calls.most_common(2)[1][1],
                )
            ]
    return []


def _ahead(members: Sequence[AwaitedCollective]) -> list[Finding]:
    newest: dict[int, AwaitedCollective] = {}
    for one in members:
        number = one.sequence if one.sequence is not None else one.enqueued
        if number is not None and one.rank is not None:
            newest.setdefault(one.rank, one)
    numbers = {
        rank: one.sequence if one.sequence is not None else one.enqueued
        for rank, one in newest.items()
    }
    if len(newest) < RANKS_MIN or len(set(numbers.values())) < 2:
        return []
    return [
        _deduced("desync.ahead", newest[min(numbers, key=lambda rank: (numbers[rank] or 0, rank))])
    ]


def _behind(waits: Sequence[AwaitedCollective], told: Sequence[AwaitedCollective]) -> list[Finding]:
    """Return a finding for each rank that had not called what the others timed out in.

    A rank that is told to dump by another one says how far it had come in its group by then.
    """
    waiting = {one.rank for one in waits}
    first: dict[str, int] = {}
    for one in waits:
        if one.sequence is not None and one.group:
            first[one.group] = min(one.sequence, first.get(one.group, one.sequence))
    behind = {
        one.rank: one
        for one in told
        if one.rank not in waiting
        and one.enqueued is not None
        and one.enqueued < first.get(one.group, 0)
    }
    if len(waiting) < RANKS_MIN or len(behind) > len(waiting):
        return []
    return [_deduced("desync.behind", one, shown=True) for one in behind.values()]


def _never_met(members: Sequence[AwaitedCollective]) -> list[Finding]:
    completed = [one.completed for one in members if one.completed is not None]
    first = [one for one in members if one.sequence == 1]
    if (completed and max(completed) <= 0) or (
        not completed
        and first
        and len(first) == len([one for one in members if one.sequence is not None])
    ):
        return [_deduced("desync.never_met", members[0])]
    return []


def _absent(waits: Sequence[AwaitedCollective], findings: Sequence[Finding]) -> list[int]:
    """Return the ranks that report no wait, if most of the others do.

    The world goes up to the highest rank that was seen. Fewer than two waiting ranks show nothing.
    """
    waiting = {one.rank for one in waits if one.rank is not None}
    seen = {
        one.rank
        for one in findings
        if one.rank is not None and one.evidence.role not in (Role.EFFECT, Role.ADVICE)
    }
    if len(waiting) < RANKS_MIN:
        return []
    world = range(max(waiting | seen | _with_a_log_like_theirs(waiting, findings)) + 1)
    absent = [rank for rank in world if rank not in waiting]
    return absent if absent and len(absent) <= len(waiting) // 2 else []


def end_of_its_log(rank: int, findings: Sequence[Finding]) -> str:
    """Return the last line of a rank's log, as the end of a sentence; "" if it left none."""
    for one in findings:
        if one.rule == "log.last" and one.rank == rank and one.evidence.text:
            return f"; its log ends: {cut_at_word(one.evidence.text.strip(), LAST_SAID)}"
    return ""


def _with_a_log_like_theirs(waiting: set[int], findings: Sequence[Finding]) -> set[int]:
    """Return ranks known only by a log file whose name is formed like those of the waiting ranks.

    A number in a file's name may not be a rank. It is one where several waiting ranks have files
    that are named in the same way.
    """
    by_form: dict[str, set[int]] = defaultdict(set)
    for one in findings:
        if one.rule == "log.last" and one.rank is not None:
            by_form[_NUMBER.sub("#", one.evidence.file)].add(one.rank)
    alike = [ranks for ranks in by_form.values() if len(ranks & waiting) >= RANKS_MIN]
    return set().union(*alike)


def _rule_for(
    waits: Sequence[AwaitedCollective], absent: Sequence[int], findings: Sequence[Finding]
) -> str:
    if not _one_left(waits, absent):
        return "desync.absent"
    if any(one.rule == LEFT_OPEN and one.rank in absent for one in findings):
        return "desync.left"  # its program reached its end
    own = (one for one in findings if one.rank in absent)
    if any(isinstance(one, Stack) or one.rule == "c10d.heartbeat" for one in own):
        return "desync.silent"  # its stack shows where it is, or it says itself that it is stuck
    numbers = {one.numel for one in waits if one.numel is not None}
    return "desync.left" if numbers == {ONE_NUMBER} else "desync.silent"


def _one_left(waits: Sequence[AwaitedCollective], absent: Sequence[int]) -> bool:
    """Return True if all ranks of one group but one wait for the same next collective.

    They also report how far they had come, so that the remaining rank is known never to have called
    it.
    """
    told = [one for one in waits if one.enqueued is not None and one.completed is not None]
    return (
        len(absent) == 1
        and len({one.rank for one in told}) == len({one.rank for one in waits}) > RANKS_MIN
        and len({(one.group, one.enqueued, one.completed) for one in told}) == 1
        and told[0].completed != -1
    )


def _deduced(rule: str, at: Finding, *, shown: bool = False) -> Finding:
    """Return a deduction that points at a line.

    The rank that wrote the line is a witness, unless it is `shown` to be the odd one.
    """
    row = RULES[rule]
    evidence = Evidence(at.evidence.file, at.evidence.line, at.evidence.text, row.role)
    return Finding(
        evidence,
        rule,
        row.failure_class,
        row.mechanism,
        at.at_s,
        at.order,
        at.rank if shown else None,
        at.node if shown else None,
    )
