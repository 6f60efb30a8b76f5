"""Ranks that called another collective than the others of their group.

At the same number, they called another operation, type or size.

The majority is taken to be right. Without a majority, these decide, in this order:
    sister groups   same description, or else same size: one of the two is among what they called
                    lately, and the other is not
    the order       in which the ranks call: a rank that reached it by a step that no rank made
                    before is odd (order.py)
Otherwise it is a tie. Dumps of unknown ranks have a vote in groups whose name they know, and may be
the odd ones. Only operations in which some rank waits are compared. Where "finished" may mean
"failed", the last operation of each rank is compared too. A signature leaves out what may rightly
differ.

This module is pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outlast.diagnose.collectives.groups import DumpedGroup, DumpedJob
from outlast.diagnose.collectives.order import odd_ones
from outlast.diagnose.collectives.state import Dump, GroupState

NUMBERS_MAX = 64  # of one group


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks that called different collectives under one number.

    blamed      the minority, or all if `is_tie`
    said        the signature of each of these
    usual       the signature of the majority; "" in a tie
    strangers   odd dumps of unknown ranks, with their signatures; none in a tie
    """

    group: DumpedGroup
    seq: int
    blamed: tuple[int, ...]
    said: dict[int, str]
    usual: str
    is_tie: bool
    strangers: tuple[tuple[Dump, str], ...] = ()


def mismatches(job: DumpedJob, heads: Sequence[Mapping[int, Sequence[int]]]) -> list[Mismatch]:
    """Return the first mismatch of each group. Ties are left out if another group decides.

    `heads` has, at the place of each group, the operations that ranks wait in, with these ranks.
    """
    found = [mismatch for group in job.groups if (mismatch := _of(group, job.groups, job.unknown))]
    decided = [mismatch for mismatch in found if not mismatch.is_tie]
    return decided or [_by_order(mismatch, job, heads) for mismatch in found]


def _by_order(
    tie: Mismatch, job: DumpedJob, heads: Sequence[Mapping[int, Sequence[int]]]
) -> Mismatch:
    odd = odd_ones(job, tie.blamed, heads)
    called = {signature for rank, signature in tie.said.items() if rank not in odd}
    if not odd or len(called) > 1:
        return tie
    return replace(
        tie,
        blamed=tuple(odd),
        said={rank: tie.said[rank] for rank in odd},
        usual=called.pop(),
        is_tie=False,
    )


def _of(
    group: DumpedGroup, groups: Sequence[DumpedGroup], unknown: Sequence[Dump]
) -> Mismatch | None:
    strangers = _strangers(group, unknown)
    states = [*group.states.values(), *(state for _, state in strangers)]
    numbers = {state.head for state in states if state.head is not None}
    if group.backend == "gloo":
        numbers |= {state.enqueued for state in states if state.enqueued}
    for seq in sorted(numbers)[:NUMBERS_MAX]:
        said = {
            rank: signature
            for rank, state in group.states.items()
            if (signature := state.signature(seq)) is not None
        }
        others = [
            (dump, signature)
            for dump, state in strangers
            if (signature := state.signature(seq)) is not None
        ]
        votes = Counter([*said.values(), *(signature for _, signature in others)])
        if len(votes) > 1:
            mismatch = _judged(group, seq, said, votes, groups)
            if not mismatch.is_tie:
                return replace(
                    mismatch,
                    strangers=tuple(
                        (dump, signature)
                        for dump, signature in others
                        if signature != mismatch.usual
                    ),
                )
            if len(set(said.values())) > 1:
                return mismatch
    return None


def _strangers(group: DumpedGroup, unknown: Sequence[Dump]) -> list[tuple[Dump, GroupState]]:
    """Return what dumps of unknown ranks say about this group.

    Torch gives a group the same name on all ranks: a count of the groups made, or a hash of its
    members.
    """
    one = next(iter(group.states.values()), None)
    if one is None or one.members is not None:
        return []
    return [
        (dump, state)
        for dump in unknown
        for state in dump.groups
        if (state.name, state.backend, state.members) == (one.name, one.backend, None)
    ]


def _judged(
    group: DumpedGroup,
    seq: int,
    said: dict[int, str],
    votes: Counter[str],
    groups: Sequence[DumpedGroup],
) -> Mismatch:
    (usual, most), (_, second) = votes.most_common(2)
    if most == second:
        sisters = _sisters(group, groups)
        backed = [signature for signature in votes if signature in sisters]
        usual = backed[0] if len(backed) == 1 else ""
    blamed = {rank: signature for rank, signature in said.items() if signature != usual}
    return Mismatch(group, seq, tuple(sorted(blamed)), blamed, usual, is_tie=not usual)


def _sisters(group: DumpedGroup, groups: Sequence[DumpedGroup]) -> set[str]:
    family = _family(group)
    alike = [
        other
        for other in groups
        if other is not group and other.backend == group.backend and _family(other) == family
    ]
    return {
        signature
        for other in alike
        for state in other.states.values()
        for _, signature in state.recent
    }


def _family(group: DumpedGroup) -> object:
    desc = next(iter(group.states.values())).desc
    return desc if desc not in ("", "undefined") else len(group.members)


def difference(mismatch: Mismatch) -> str:
    """Return "all_reduce Float 8>8 where the others called all_reduce Float 4>4"."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for rank, signature in mismatch.said.items():
        kinds[signature].append(rank)
    if mismatch.usual:
        return f"{' or '.join(kinds)} where the others called {mismatch.usual}"
    return ", ".join(
        f"rank {ranks[0]} {signature}"
        for signature, ranks in sorted(kinds.items(), key=lambda item: item[1])
    )
