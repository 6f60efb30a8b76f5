"""Rules for the reports of agents to the coordinator, in runs with several nodes.

The reports are complete and true. They wait only for ranks that may still send the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.sim.rules.checker import Checker
from outlast.sim.rules.final_observations import NodeStaysOut
from outlast.sim.rules.observations import (
    Enrolled,
    Observation,
    SharedMessageLate,
    StartOrderedEarly,
)

BACK_S = 5.0


class SharedMessagePassedOn(Checker):
    """If all ranks of a node have sent the same message, the agent passes it on at once."""

    of = (SharedMessageLate,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, SharedMessageLate):
            yield (
                f"workers {list(seen.workers)} are all that live on {seen.node} and have sent a"
                " message, but their agent has waited for more"
            )


class EnrolmentIsTrue(Checker):
    """An agent that enrols names all workers that live on its node.

    It also names those that have ended there without a successor. It names a store only if it hosts
    one.
    """

    of = (Enrolled,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, Enrolled):
            return
        if seen.over:
            yield (
                f"{seen.node} enrols with workers {list(seen.over)}, which have ended and have"
                " successors at work"
            )
        if seen.unnamed:
            yield f"{seen.node} enrols without naming workers {list(seen.unnamed)}"
        if seen.lost_store:
            yield f"{seen.node} enrols with a store that was lost"
        if seen.untold_store:
            yield f"{seen.node} enrols without naming the store that it hosts"


class HeardBeforeOrders(Checker):
    """Nothing is started on a node that has only enrolled. A second message has to come first.

    The enrolment may be so old that the lease of the node is over.
    """

    of = (StartOrderedEarly,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, StartOrderedEarly):
            yield (
                f"something is to be started on {seen.node}, of which nothing was heard since it"
                " enrolled"
            )


class NodeEnrolsAgain(Checker):
    """A node whose agent gave up its processes enrols again once they have all ended."""

    of = (NodeStaysOut,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, NodeStaysOut) and seen.for_s > BACK_S:
            yield (
                f"nothing has lived on {seen.node} for {seen.for_s:.3f} s, and it has not enrolled"
                " again"
            )


AGENT_REPORTS: tuple[type[Checker], ...] = (
    SharedMessagePassedOn,
    EnrolmentIsTrue,
    HeardBeforeOrders,
    NodeEnrolsAgain,
)
