"""Stacks of many processes, compared as a prefix tree from the outermost frame inwards.

Tools of high-performance computing call this STAT. A rank whose stack waits is collateral. A single
stack that loads or works while the others wait is the culprit, even against a majority. If all
wait, but in different places of one program, ranks took different paths: an error of the program,
and the smallest branch is where to look.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.rules import RULES
from outlast.diagnose.stacks.reader import Stack, activity, function_of

COLLECTIVE = re.compile(
    r"_?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|reduce|gather"
    r"|scatter)|monitored_barrier|_engine_run_backward|run_backward",
    re.IGNORECASE,
)
POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
# more ranks than these are not outliers, however many processes and threads each has
OUTLIERS_SHARE = 0.34
OUTLIER = "stack.outlier_work"
_BY_KIND = {"loading": "stack.outlier_io", "loader": "stack.outlier_loader"}
OUTLIERS_STILL_SHARE = 0.5  # of a job of which no rank moved between two looks


def compare(stacks: Sequence[Stack]) -> tuple[Finding, ...]:
    """Return what the stacks show together; empty for fewer than two, or if none stands out.

    Each finding points at an outlier's stack.
    """
    newest = list(
        {
            (one.evidence.file, one.process, one.thread, one.rank): one
            for one in stacks
            if activity(one)[0] != "idle"
        }.values()
    )
    if len(newest) < 2:
        return ()
    newest = _without_common(newest)
    kinds = [activity(one)[0] for one in newest]
    waiting = kinds.count("waiting")
    outliers = [(one, kind) for one, kind in zip(newest, kinds, strict=True) if kind != "waiting"]
    share = OUTLIERS_STILL_SHARE if _stood_still(stacks) else OUTLIERS_SHARE
    few = max(1, int(share * len({_owner(one) for one in newest})))
    if outliers and waiting and len({_owner(one) for one, _ in outliers}) <= few:
        outliers = _without_explained_loaders(outliers)
        return tuple(
            _outlier(
                one,
                _BY_KIND.get(kind, OUTLIER),
            )
            for one, kind in outliers
        )
    if waiting == len(newest):
        alone = lone_in_pipeline(newest)
        if alone:
            places = {_way(one) for one in newest if not in_pipeline(one)}
            found = [_outlier(one, "stack.lone_p2p") for one in alone]
            # Where the others do not agree, one of them may be what this rank waits for.
            return tuple(replace(one, rank=None) if len(places) > 1 else one for one in found)
        odd = smallest_branch(newest)
        if not odd and other_line(newest):
            # One is ahead of the other by a call, and it may be either that made one too few or
            # too many.
            return tuple(
                replace(_outlier(one, "stack.divergent"), rank=None) for one in other_line(newest)
            )
        found = [_outlier(one, "stack.divergent") for one in odd if not in_pipeline(one)]
        # Several small branches: the ranks disagree, and none of them is shown to be the odd one.
        several = len({_way(one) for one in odd}) > 1 and len({_owner(one) for one in odd}) > 1
        return tuple(replace(one, rank=None) if several else one for one in found)
    return ()


def of_the_last(stacks: Sequence[Stack], rank: int) -> tuple[Finding, ...]:
    """Return the newest stack of the only rank that others may wait for, as one that stands out."""
    kinds = ("working", "loading", "loader")
    own = [one for one in stacks if one.rank == rank and activity(one)[0] in kinds]
    return (_outlier(own[-1], _BY_KIND.get(activity(own[-1])[0], OUTLIER)),) if own else ()


def lone_in_pipeline(stacks: Sequence[Stack]) -> list[Stack]:
    """Return the stacks of the only rank in a send or receive; empty if the others are elsewhere.

    All others have to be in collectives: a rank that waits for its device may be the other end.
    """
    inside = [one for one in stacks if in_pipeline(one)]
    others = [one for one in stacks if not in_pipeline(one)]
    is_one = len({_owner(one) for one in inside}) == 1 and len({_owner(one) for one in others}) > 1
    return inside if is_one and all(map(_in_collective, others)) else []


def _in_collective(stack: Stack) -> bool:
    return COLLECTIVE.match(activity(stack)[1]) is not None


def other_line(stacks: Sequence[Stack]) -> list[Stack]:
    """Return the stacks of the one rank that waits at another line of the same functions."""
    if len({_way(one) for one in stacks}) != 1:
        return []
    places = Counter(one.frames for one in stacks)
    usual, count = places.most_common(1)[0]
    odd = [one for one in stacks if one.frames != usual]
    return odd if len({_owner(one) for one in odd}) == 1 and count > len(odd) else []


def _stood_still(stacks: Sequence[Stack]) -> bool:
    """Return True if every thread was seen twice at least, and each time in the same functions."""
    looks: dict[tuple[object, ...], list[tuple[str, ...]]] = {}
    for one in stacks:
        if activity(one)[0] != "idle":
            thread = (one.evidence.file, one.process, one.thread, one.rank)
            looks.setdefault(thread, []).append(_way(one))
    return all(len(some) > 1 and len(set(some)) == 1 for some in looks.values())


def _without_explained_loaders(outliers: Sequence[tuple[Stack, str]]) -> list[tuple[Stack, str]]:
    """Leave out main threads that wait for a loader's worker whose own stack is there too.

    The worker's stack shows what the wait is for, so it decides alone.
    """
    explained = {_owner(one) for one, kind in outliers if kind != "loader"}
    return [
        (one, kind) for one, kind in outliers if kind != "loader" or _owner(one) not in explained
    ]


def _without_common(stacks: Sequence[Stack]) -> list[Stack]:
    """Leave out threads that most ranks have in the same place and that wait for no peer.

    They are loggers, watchers and recorders.
    """
    owners = [one.evidence.file if one.rank is None else one.rank for one in stacks]
    ways = Counter(
        way for way, _ in {(_way(one), owner) for one, owner in zip(stacks, owners, strict=True)}
    )
    count = len(set(owners))
    return [
        one
        for one in stacks
        if activity(one)[0] == "waiting" or count < 3 or ways[_way(one)] * 2 <= count
    ]


def _owner(stack: Stack) -> object:
    return (stack.evidence.file, stack.process) if stack.rank is None else stack.rank


def _way(stack: Stack) -> tuple[str, ...]:
    return tuple(function_of(frame) for frame in reversed(stack.frames))


def smallest_branch(stacks: Sequence[Stack]) -> list[Stack]:
    """Return the stacks of the smallest branch where the tree first divides.

    Empty if it never divides, or if no branch is smaller than another.
    """
    ways = [_way(one) for one in stacks]
    for depth in range(max(map(len, ways), default=0)):
        branches = Counter(way[depth] if depth < len(way) else "" for way in ways)
        if len(branches) == 1:
            continue
        few = min(branches.values())
        names = {name for name, count in branches.items() if count == few}
        if few == max(branches.values()) and len(stacks) > 2:
            return []
        return [
            one
            for one, way in zip(stacks, ways, strict=True)
            if (way[depth] if depth < len(way) else "") in names
        ]
    return []  # all stand in the same place, or there are none


def in_pipeline(stack: Stack) -> bool:
    """Return True for a stack in a send or receive.

    It is wherever its stage of the pipeline is, so that being elsewhere says nothing.
    """
    return any(function_of(frame) in POINT_TO_POINT for frame in stack.frames[:3])


def _outlier(stack: Stack, rule: str) -> Finding:
    row = RULES[rule]
    evidence = replace(stack.evidence, role=row.role)
    return Finding(
        evidence,
        rule,
        row.failure_class,
        row.mechanism,
        stack.at_s,
        stack.order,
        stack.rank,
        stack.node,
        stack.device,
    )
