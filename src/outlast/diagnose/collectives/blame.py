"""What the wait-for graph ends in, and the sentences that say it.

Confidences here are the probability that a rank is at fault, given that the job hangs and that its
dumps were taken while it hung. They are set by judgement, not fitted: two public incidents with
known truth are too few.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outlast.diagnose.findings import Finding
from outlast.model.verdict import Blamed, Suspect

# kind -> confidence in each of its ranks
# "silent": several at once, which closing a job makes too
CONFIDENCE = {
    "self_stuck": 0.9,
    "silent": 0.6,
    "missing": 0.9,
    "p2p": 0.85,
    "mismatch": 0.85,
    "order_inversion": 0.7,
}
CONFIDENCE_ODD = 0.85  # the one of a ring whose order of calls is unlike the others'
CONFIDENCE_TIE = 0.5
# the dumps were taken after the waiting had failed: order of arrival is all that is left
CONFIDENCE_AFTERWARDS = 0.6
CONFIDENCE_IDLE = 0.6  # no rank with a dump waits for it, but it is idle while others wait
CONFIDENCE_HIDDEN = 0.5  # it may wait in a send or receive that its backend does not record


@dataclass(frozen=True, slots=True)
class WaitingRanks:
    """The calls in which ranks wait, by dumps of a backend whose calls block (gloo).

    `find_waiting_ranks` fills it in.

    All fields but the last hold ranks. A rank may be in none of them.

    waits     stand in a collective, or did until it failed
    joined    those of them to whose collective all have come: nobody is missing there, and yet it
              does not end
    through   have finished all operations that they came to, and others wait for them
    older     those that are blamed only because their dump is older than their peers'
    awaited   operations that are waited in, by name
    """

    waits: frozenset[int] = frozenset()
    joined: frozenset[int] = frozenset()
    through: frozenset[int] = frozenset()
    older: frozenset[int] = frozenset()
    awaited: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Blame:
    """This says who is at fault, as far as collectives show.

    kind      why, by the strongest of what was found: "self_stuck" peers finished what the rank has
              not, "mismatch" it called another collective than the others, "missing" others wait in
              a collective that it has not come to, "p2p" the same of a send or receive,
              "order_inversion" ranks wait for each other in a ring, "all_joined" all have come and
              none goes on (transport or device), "nothing"
    ranks     those shown guilty by a dump of their own and of others
    suspects  those without a dump, whom others wait for
    either    the evidence does not tell the ranks apart: one of them
    dumped    all ranks whose dump was read
    is_afterwards  the dumps are from after the failure: some ranks had already been thrown out of
                   the operation that they waited in. A rank that lags may then only have been
                   closed, so its own log counts more than this
    edges     (rank, the rank it waits for, why), at most EDGES_MAX, those that lead to the blamed
              first
    waiting_ranks  where ranks stand, by dumps of a backend whose calls wait
    """

    kind: str = "nothing"
    sentence: str = "No rank is seen waiting for another."
    ranks: tuple[Blamed, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    either: bool = False
    findings: tuple[Finding, ...] = ()
    edges: tuple[tuple[int, int, str], ...] = ()
    dumped: frozenset[int] = frozenset()
    is_afterwards: bool = False
    waiting_ranks: WaitingRanks = WaitingRanks()


def named(ranks: Iterable[int], most: int = 8) -> str:
    """Return "rank 3", "ranks 1, 2 and 5", or "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 120 others"."""
    all_ranks = sorted(ranks)
    if len(all_ranks) == 1:
        return f"rank {all_ranks[0]}"
    shown = all_ranks if len(all_ranks) <= most + 1 else all_ranks[:most]
    last = (
        f"{len(all_ranks) - most} others"
        if len(shown) < len(all_ranks)
        else str(shown.pop())
        if shown
        else "none"
    )
    return f"ranks {', '.join(map(str, shown))} and {last}" if shown else "no rank"
