"""Stacks of another moment than their rank's dump, which do not show where the rank hung.

A stack is often older than the hang. The timer of faulthandler also fires in a slow step. If the
rank is stopped later, or its timer is not set again, that stack stays its newest one. A machine
with much to do has many slow steps. In a backend whose calls wait (gloo) a dump shows where its
rank is:

    waits      it is in a collective. A stack that works or loads is from before
    through    it has finished all that it called, and others wait for it. A stack that waits in
               a collective is from before; one in a send or receive may not be, because those
               are not recorded

Nothing is said of ranks whose dump is older than those of their peers.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.culprits import GraphBlame
from outlast.diagnose.stacks.reader import Stack, activity, function_of

MOVES = "standing.moves"
RECORDED = re.compile(
    (
        r"_?(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|reduce"
        r"|gather|scatter)"
    ),
    re.IGNORECASE,
)


def without_older_stacks(findings: Sequence[Finding], blame: GraphBlame | None) -> list[Finding]:
    """Return the findings without the stacks of another moment, in the same order.

    All stacks of a thread are left out if its newest one does not fit the dump of its rank.
    """
    if blame is None:
        return list(findings)
    newest = {_thread(one): one for one in findings if isinstance(one, Stack)}
    older = {thread for thread, one in newest.items() if _is_older(one, blame)}
    return [one for one in findings if not isinstance(one, Stack) or _thread(one) not in older]


def _thread(one: Stack) -> tuple[int | None, str, str, str]:
    return one.rank, one.evidence.file, one.process, one.thread


def _is_older(one: Stack, blame: GraphBlame) -> bool:
    kind, function = activity(one)
    if kind == "waiting":
        return one.rank in blame.waiting_ranks.through and RECORDED.match(function) is not None
    return kind != "idle" and one.rank in blame.waiting_ranks.waits


def job_runs_on(findings: Sequence[Finding]) -> bool:
    """Return True if most processes moved between two stacks that were taken of each.

    The table of processes, or the recorders, may say so too.

    Such a job does not hang, wherever its ranks were at one of the moments. A process whose frames
    are the same functions has not moved: a loop goes round within its lines.
    """
    if any(one.rule == MOVES for one in findings):
        return True
    looks: dict[tuple[int | None, str, str, str], list[tuple[str, ...]]] = {}
    for one in findings:
        if isinstance(one, Stack) and activity(one)[0] != "idle":
            functions = tuple(function_of(frame) for frame in one.frames)
            looks.setdefault(_thread(one), []).append(functions)
    twice = [some for some in looks.values() if len(some) > 1]
    moved = sum(len(set(some[-2:])) > 1 for some in twice)
    return bool(twice) and 2 * moved > len(twice)
