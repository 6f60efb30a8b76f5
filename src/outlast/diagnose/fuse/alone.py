"""The one rank that stands apart from all others: by its stack, by its dump, or by how it ended.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.diagnose.collectives.blame import WaitingRanks
from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.accounts import PEER
from outlast.diagnose.stacks.reader import activity, newest_of_ranks
from outlast.model.terms import Mechanism
from outlast.model.verdict import Role

OF_PEERS = ("gloo.size", "c10d.mismatch", "c10d.unequal_inputs")  # what a rank says of its peers
# all ranks have to come there, and no recorder keeps that
_UNRECORDED = [
    ("waiting", name)
    for name in (
        "_new_process_group_helper",
        "init_process_group",
        "_store_based_barrier",
        "monitored_barrier",
    )
]


def alone_unrecorded(findings: Sequence[Finding]) -> frozenset[int]:
    """Return the one rank whose stack makes a group of processes, or is in a monitored barrier.

    No other rank does that, and it waits for all others to come there. So its wait does not clear
    it, as that in a collective would.
    """
    inside = {
        rank
        for rank, stacks in newest_of_ranks(findings).items()
        if any(activity(one) in _UNRECORDED for one in stacks)
    }
    return frozenset(inside) if len(inside) == 1 else frozenset()


def elsewhere(findings: Sequence[Finding]) -> int | None:
    """Return the one rank whose stack waits in another branch of the program than all others.

    It is asked only where every rank left both a dump and a stack.
    """
    odd = {one.rank for one in findings if one.rule == "stack.divergent"}
    return next(iter(odd)) if len(odd) == 1 else None


def alone_inside(
    waiting: WaitingRanks,
    *,
    seen: frozenset[int],
    dumped: frozenset[int],
    edges: Sequence[tuple[int, int, str]],
) -> int | None:
    """Return the one rank in an operation of a group in which no other rank has called any.

    It is asked only where every rank left a dump, and all others, at least two, wait for this one
    elsewhere. They agree on what comes next, and it waits for one of them.
    """
    if len(waiting.joined) != 1 or not seen <= dumped:
        return None
    (alone,) = waiting.joined
    others = dumped - waiting.joined
    told = {rank for rank, awaited, _ in edges if awaited == alone}
    return alone if len(others) > 1 and others <= told & waiting.waits else None


def alone_in_p2p(findings: Sequence[Finding]) -> int | None:
    """Return the rank that alone waits in a send or receive, while all others wait in collectives.

    Nobody is at the other end: `stacks/tree.py` looks at the stacks.
    """
    ranks = {one.rank for one in findings if one.rule == "stack.lone_p2p"}
    return next(iter(ranks)) if len(ranks) == 1 else None


def ended_alone(findings: Sequence[Finding]) -> frozenset[int]:
    """Return the one rank that ended by itself while the others were closed.

    SIGABRT does not count, because a watchdog ends collateral ranks by it.
    """
    failures = [
        one
        for one in findings
        if one.rule.startswith("elastic.")
        and one.rank is not None
        and one.evidence.role is not Role.EFFECT
    ]
    # raised because a peer was gone, or sent what they did not expect
    cut_off = {one.rank for one in findings if one.rule.startswith(PEER)}
    own = [one for one in failures if ": -6" not in one.evidence.text]
    signals: set[int | None] = {one.rank for one in own if one.mechanism is Mechanism.SIGNAL}
    every: set[int | None] = {one.rank for one in own} - cut_off
    alone: set[int | None] = signals if len(signals) == 1 else every if len(every) == 1 else set()
    if not failures:
        raised: set[int | None] = {
            one.rank
            for one in findings
            if one.rank is not None
            and one.evidence.role is not Role.EFFECT
            and one.mechanism in (Mechanism.SIGNAL, Mechanism.EXIT)
        }
        alone = raised if len(raised) == 1 else set()
        # A rank that received what it did not expect may abort. The log does not say who sent it.
        alone -= {one.rank for one in findings if one.rule in OF_PEERS}
    return frozenset(rank for rank in alone if rank is not None)
