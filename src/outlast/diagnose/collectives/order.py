"""Find ranks that called their groups in another order than before, and than the others did.

A program repeats itself. What a rank calls after a certain call, it or a peer has called there
before. So a rank is odd if it reached its present call by a step that no rank was seen to make
before. If most ranks are odd, as at the first evaluation, none is.

Sources: sequences of calls as anomaly detection, Forrest et al., "A sense of self for Unix
processes", IEEE S&P 1996.

This module is pure.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from outlast.diagnose.collectives.groups import DumpedJob
from outlast.diagnose.collectives.state import Dump

_Call = tuple[str, str]  # description or name of the group, and operation
_Step = tuple[_Call, _Call]

STEPS_MIN = 4  # finished calls known of a rank; with fewer everything is new


def odd_ones(
    job: DumpedJob, among: Iterable[int], heads: Sequence[Mapping[int, Sequence[int]]]
) -> list[int]:
    """Return the odd ranks among these; none if half of them or more are odd."""
    last, seen = _steps(job, heads)
    # of a step that others made too, earlier, or as their last by which they came there likewise,
    # nothing is odd
    lasts = Counter(last.values())
    ranks = list(among)
    odd = [
        rank
        for rank in ranks
        if rank in last and not seen[last[rank]] and 2 * lasts[last[rank]] <= len(last)
    ]
    return odd if 2 * len(odd) < max(len(ranks), 3) else []


def came_alone(job: DumpedJob, heads: Sequence[Mapping[int, Sequence[int]]]) -> list[int]:
    """Return the odd ones among all ranks that wait.

    Others reached the same operation by a step that is not new.
    """
    last, seen = _steps(job, heads)
    waiting = [rank for rank in job.dumps if rank in last]
    odd = set(odd_ones(job, waiting, heads))
    found = set()
    for waited in heads:
        for ranks in waited.values():
            usual = [rank for rank in ranks if rank in last and seen[last[rank]]]
            found |= odd.intersection(ranks) if usual else set()
    return sorted(found)


def _steps(
    job: DumpedJob, heads: Sequence[Mapping[int, Sequence[int]]]
) -> tuple[dict[int, _Step], Counter[_Step]]:
    """Return by which step each rank reached its present wait, and how often each step was taken.

    All ranks' earlier steps are counted.
    """
    last: dict[int, _Step] = {}
    seen: Counter[_Step] = Counter()
    awaited = {
        (id(group.states[rank]), seq): rank
        for group, waited in zip(job.groups, heads, strict=True)
        for seq, ranks in waited.items()
        for rank in ranks
    }
    for rank, dump in job.dumps.items():
        if sum(dump.groups[place].has_finished(seq) for place, seq, _ in dump.issued) < STEPS_MIN:
            continue  # a dump of what is active only has no steps
        steps = _of_dump(dump)
        for (place, seq, _), step in zip(dump.issued[1:], steps, strict=True):
            if awaited.get((id(dump.groups[place]), seq)) == rank:
                last[rank] = step
            else:
                seen[step] += 1
    return last, seen


def _of_dump(dump: Dump) -> list[_Step]:
    calls = [
        (dump.groups[place].desc or dump.groups[place].name, said) for place, _, said in dump.issued
    ]
    return list(itertools.pairwise(calls))


def few_of(ring: Iterable[int], heads: Sequence[Mapping[int, Sequence[int]]]) -> list[int]:
    """Return the ranks of a ring that wait elsewhere than most of it; none without a majority.

    Ranks that run one program reach the same place, so a rank that is alone elsewhere has called
    its collectives in another order. Of two ranks that wait for each other the others tell which
    that is, if most of them wait where one of the two does.
    """
    wanted = set(ring)
    places = [
        set(ranks) for waited in heads for ranks in waited.values() if not wanted.isdisjoint(ranks)
    ]
    inside = [wanted & place for place in places]
    alone = wanted - max(inside, key=len, default=set[int]())
    if 3 * len(alone) <= len(wanted):
        return sorted(alone)
    everybody = {rank for waited in heads for ranks in waited.values() for rank in ranks}
    most = max(places, key=len, default=set[int]())
    alone = wanted - most
    is_majority = 2 * len(most) > len(everybody)
    return sorted(alone) if is_majority and 3 * len(alone) <= len(everybody) else []
