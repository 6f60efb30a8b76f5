"""Rules for the whole run: all ranks are there, spares are replaced, seconds are booked once."""

from __future__ import annotations

import math
from collections.abc import Iterator

from outlast.model import limits
from outlast.model.records import DRAINING, NODE_AWAITED, NODE_FOUND
from outlast.model.terms import Cause
from outlast.sim.rules.checker import NEAR_S, Checker
from outlast.sim.rules.final_observations import EventWritten, RunEnded, SecondsAtEnd
from outlast.sim.rules.observations import (
    Observation,
    RankGiven,
    Regrouped,
    RunBegun,
    SpareCount,
)

# a warm spare may have to make room for a hot one first
RESTOCKED_S = 2 * limits.SPARE_REFILL_DELAY_S + 0.5


class SparesReplaced(Checker):
    """Used spares are replaced by spares of the right kind. There are never more than asked for."""

    of = (SpareCount,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, SpareCount):
            return
        if seen.spares > seen.wanted:
            yield f"{seen.spares} spares live, but {seen.wanted} were asked for"
        if seen.spares < seen.wanted and seen.quiet_s > RESTOCKED_S:
            yield (
                f"{seen.spares} spares live, but {seen.wanted} were asked for, {seen.quiet_s:.3f} s"
                " after the last event"
            )
        if seen.others and seen.quiet_s > RESTOCKED_S and not seen.ended_early:
            yield (
                f"{seen.others} spares live that are not of the kind that was asked for,"
                f" {seen.quiet_s:.3f} s after the last event"
            )


class FreshStore(Checker):
    """A plain script gets a new store for each generation.

    It builds its group with the same keys each time, and an old store still has keys of dead ranks.
    """

    of = (RankGiven, RunEnded)

    def __init__(self) -> None:
        self._stores: dict[int, tuple[str, int]] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RankGiven):
            self._stores[seen.plan.generation] = seen.plan.store_host, seen.plan.store_port
        elif (
            isinstance(seen, RunEnded)
            and seen.plain
            and len(set(self._stores.values())) < len(self._stores)
        ):
            yield (
                f"a plain script is given {len(set(self._stores.values()))} stores in"
                f" {len(self._stores)} generations"
            )


class NodesAwaitedAtStart(Checker):
    """A run begins when all its nodes have joined, or when the wait for the others is over."""

    of = (RunBegun,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, RunBegun)
            and seen.there < seen.nodes
            and self.now_s < limits.ENROL_WAIT_S - NEAR_S
        ):
            yield (
                f"the run begins {self.now_s:.3f} s after its start with {seen.there} of"
                f" {seen.nodes} nodes"
            )


class RoomOnNodes(Checker):
    """No node houses more ranks than it has room for."""

    of = (RankGiven,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RankGiven) and seen.neighbours >= seen.room:
            yield (
                f"rank {seen.plan.rank} is given to worker {seen.worker} on a node with"
                f" {seen.neighbours} other ranks and room for {seen.room}"
            )


class AllRanksJoined(Checker):
    """Training goes on when all ranks are in the generation, and not before.

    Until then, the coordinator waits for the others with a deadline.
    """

    of = (Regrouped,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Regrouped) and len(seen.there) < seen.ranks:
            yield (
                f"generation {seen.generation} counts as complete, but only ranks"
                f" {list(seen.there)} are in it"
            )


class SecondsSum(Checker):
    """Each second of a rank is booked under one cause.

    An undisturbed run has no seconds of repeated work or detection.
    """

    of = (SecondsAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, SecondsAtEnd):
            return
        for rank, seconds in enumerate(seen.by_rank):
            said_s = math.fsum(seconds.values())
            if abs(said_s - seen.wall_s) > 1e-6 * max(1.0, seen.wall_s):
                yield f"rank {rank} has {said_s:.6f} s booked in a run of {seen.wall_s:.6f} s"
            if min(seconds.values()) < 0:
                yield f"rank {rank} has negative seconds booked: {dict(seconds)}"
            good_s, worked_s, slack_s = (
                seconds[Cause.PRODUCTIVE],
                seen.worked_s[rank],
                seen.unsure_s[rank] + 1e-6,
            )
            if not good_s - slack_s <= worked_s <= good_s + seconds[Cause.STALL] + slack_s:
                yield (
                    f"rank {rank} worked on new steps for {worked_s:.6f} s, but has {good_s:.6f}"
                    f" productive and {seconds[Cause.STALL]:.6f} stall seconds booked"
                )
            if not seen.interrupted and (
                seconds[Cause.REPEATED] or seconds[Cause.DETECTION] or seconds[Cause.DEGRADED]
            ):
                yield (
                    f"rank {rank} has lost seconds booked, but the run was not interrupted:"
                    f" {dict(seconds)}"
                )


class CausesShown(Checker):
    """A run waits for a node only if it has lost one or gives it no more work.

    Seconds are booked as idle only if the run has waited for a node, and as drain only if a node
    was drained.
    """

    of = (EventWritten, SecondsAtEnd)

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, EventWritten):
            self._kinds.add(seen.kind)
            if seen.kind == NODE_AWAITED and not self._kinds & {"node_lost", "node_barred"}:
                yield "the run waits for a node, but has all of its nodes"
            if seen.kind == NODE_AWAITED and seen.data.get("places", 0) == 0:
                yield "the run waits for a node, but every rank has a place"
            if seen.kind == NODE_FOUND and NODE_AWAITED not in self._kinds:
                yield "the run waits for a node no longer, but did not wait"
        elif isinstance(seen, SecondsAtEnd):
            for cause, kind in ((Cause.IDLE, NODE_AWAITED), (Cause.DRAIN, DRAINING)):
                booked_s = math.fsum(one[cause] for one in seen.by_rank)
                if booked_s and kind not in self._kinds:
                    yield f"{booked_s:.6f} s are booked as {cause.value} without a {kind}"
