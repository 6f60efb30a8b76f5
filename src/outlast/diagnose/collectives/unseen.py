"""Find ranks without a dump for which other ranks without a dump may wait.

Some rank waits for rank s, and s left no dump. Then s may be at fault. Or s may wait in an
operation that another rank without a dump, t, has not reached. That can happen in a group that
holds both:
    seen      a group that dumps show, and in which no member waits for s. If ranks call their
              groups in one order, such a member would have reached that operation before, and would
              be seen waiting for t there. This holds for collectives. In a group with send and
              receive, any two may wait for each other
    unseen    a group whose members all left no dump, as there can be where its sisters (same
              description, or else same size) do not cover the job
And so on from t.

This module is pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass

from outlast.diagnose.collectives.groups import DumpedGroup, DumpedJob
from outlast.diagnose.collectives.identity import NO_FAMILY, is_default

# of this search; where thousands of dumps are missing, all of their ranks are named
STEPS_MAX = 4_000_000


@dataclass(frozen=True, slots=True)
class _Row:
    """A group: its members without a dump, and those whose waiting would be seen in it."""

    silent: tuple[int, ...]
    seen: Set[int]


def unseen_waits(job: DumpedJob, waiters: Mapping[int, Set[int]]) -> dict[int, int]:
    """Return silent ranks, each with the rank that may wait for it.

    The `waiters` of a silent rank are those that are seen waiting for it.
    """
    left = sorted(job.silent - waiters.keys())
    if not left or not waiters:
        return {}
    if len(waiters) * len(job.silent) > STEPS_MAX:
        return dict.fromkeys(left, min(waiters))
    rows: dict[int, list[_Row]] = defaultdict(list)
    for row in (*_seen(job), *_unseen(job)):
        for rank in row.silent:
            rows[rank].append(row)
    found: dict[int, int] = {}
    for first in sorted(waiters):
        reached, done = [first], {first}
        for rank in reached:
            for row in rows[rank]:
                if row.seen.isdisjoint(waiters[first]):
                    for other in row.silent:
                        if other not in done:
                            done.add(other)
                            reached.append(other)
                            found.setdefault(other, rank)
    return {rank: found[rank] for rank in left if rank in found}


def _seen(job: DumpedJob) -> list[_Row]:
    rows = []
    for group in job.groups:
        silent = tuple(
            sorted(
                job.silent.intersection(group.members or ())
                | job.silent.intersection(group.possible)
            )
        )
        if len(silent) > 1:
            hides = any(state.traffic or state.hides_p2p for state in group.states.values())
            rows.append(_Row(silent, frozenset() if hides else group.states.keys()))
    return rows


def _unseen(job: DumpedJob) -> list[_Row]:
    families: dict[object, list[DumpedGroup]] = defaultdict(list)
    for group in job.groups:
        one = next(iter(group.states.values()))
        if not is_default(one) and len(group.members) < len(job.ranks):
            families[one.backend, len(group.members) if one.desc in NO_FAMILY else one.desc].append(
                group
            )
    rows = []
    for family in families.values():
        uncovered = sorted(
            job.silent.difference(
                *(group.members for group in family), *(group.possible for group in family)
            )
        )
        if len(uncovered) >= min(len(group.members) for group in family):
            rows.append(_Row(tuple(uncovered), frozenset()))
    return rows
