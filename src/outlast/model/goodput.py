"""Compute goodput, badput by cause, and MTTR from the records of a ledger.

Units      Times are in seconds. `rank_seconds` are seconds times ranks.
Symbols    wall_s       time from the start of the launcher to its end, summed over sessions. The
                        time between two sessions does not count, because no ranks were held
           productive   first execution of each step that stays committed, less booked stall and
                        data wait
           ETTR         productive / (ranks asked for x wall_s), summed over sessions;
                        `ettr_training` leaves startup and shutdown out of the total
           MTTR         time from the fault to the first new commit, over interruptions without a
                        parent. Children are part of their parents
           lost         productive seconds of steps that the run has lost and has not done again,
                        because a later session went on from an earlier step
Method     The time line of each rank is cut into pieces, and each piece gets one cause. So the
           causes of a session sum to its ranks x wall_s by construction. Sessions may have
           different numbers of ranks. The causes are:
             during a life      those that the process has booked itself
             before the first   startup
             after the last     shutdown
             between two lives  until the fault, what the process was doing (`productive` becomes
                                `repeated`); then detection, and then regroup
           Regroup while the run waits for a node is idle. What is left of regroup and restore in a
           drain is drain.
           The last part of a dead process's life, which it had not settled, is booked like the time
           between two lives. Startup of a replacement is regroup. From the first new commit on, a
           rank without a process is degraded. The seconds that an interruption took are attributed
           to it (attribution.py). Stalls are split over tiers as workers measured them.
Limits     If a life has booked more seconds than it lasted, they are scaled down. The unsettled
           part of a dead process's life, up to the fault, goes to a single cause.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from outlast.model.attribution import Attribution, Seconds
from outlast.model.records import Interruption, Life, Records
from outlast.model.terms import CAUSES, TIERS, Cause, Tier
from outlast.model.waits import Spans, drains, node_waits

_NO_WAITS = Spans()


@dataclass(frozen=True, slots=True)
class Accounting:
    """The seconds of a session, or of a run, by cause.

    `by_rank[r]` sums to the wall_s of the sessions that had rank r. `rank_seconds` and `by_node`
    sum to `held_s`.

    world_size  number of ranks of the session, or of the newest session of the run
    held_s      world_size x wall_s, summed over sessions
    by_node     seconds by cause of the ranks on each node; "" for ranks that never had a process
    taken       for each session, the seconds that each of its interruptions took, by id
    without_interruption
                seconds of detection, regroup and so on that belong to no interruption
    stalls      seconds of stall by tier; empty if no worker measured that
    """

    wall_s: float
    world_size: int
    by_rank: tuple[Mapping[Cause, float], ...]
    spare_seconds: float
    by_node: Mapping[str, Seconds] = field(default_factory=dict)
    taken: tuple[Mapping[int, Seconds], ...] = ()
    without_interruption: Mapping[Cause, float] = field(default_factory=dict)
    stalls: Mapping[Tier, float] = field(default_factory=dict)
    held_s: float = 0.0

    @property
    def mean_ranks(self) -> float:
        """Return the mean number of ranks over time. It is exact if the number never changed."""
        constant = self.wall_s * self.world_size
        if self.wall_s <= 0 or abs(self.held_s - constant) <= 1e-9 * constant:
            return self.world_size
        return self.held_s / self.wall_s

    @property
    def rank_seconds(self) -> Seconds:
        return {cause: math.fsum(rank[cause] for rank in self.by_rank) for cause in CAUSES}

    @property
    def ettr(self) -> float:
        """Return the ETTR in [0, 1]; 0 for a run that has just begun."""
        return _share(self.rank_seconds, without=())

    @property
    def ettr_training(self) -> float:
        return _share(self.rank_seconds, without=(Cause.STARTUP, Cause.SHUTDOWN))


@dataclass(frozen=True, slots=True)
class RecoverySummary:
    """The MTTR over interruptions without a parent.

    median_s, max_s   over those whose fault time is known; None if there is none
    *_range_s         over all that resumed; None if there is none. One whose fault time is unknown
                      counts as the interval from (resumed - detected) to (resumed -
                      fault_not_before)
    """

    count: int
    open_count: int
    median_s: float | None
    max_s: float | None
    median_range_s: tuple[float, float] | None
    max_range_s: tuple[float, float] | None


def account(records: Records, *, now_s: float | None) -> Accounting:
    """Account for the whole run.

    `now_s` is the present time on the monotonic clock of the launcher's node. It is None if the run
    is over.
    """
    newest = len(records.sessions) - 1
    # the script of a run that still goes on may reach its first step later
    seen = records.steps_seen or now_s is not None
    parts = [
        account_session(
            world_size=records.sizes[index],
            started_s=part.session.started_s,
            over_s=part.session.over_s
            if part.session.ended_s is not None or index < newest
            else None,
            now_s=part.session.over_s if now_s is None else now_s,
            alive=now_s is not None and index == newest and part.session.ended_s is None,
            lives=part.lives if seen else [_at_work(life) for life in part.lives],
            interruptions=part.interruptions,
            waits=node_waits(
                part.events,
                part.generations,
                end_s=part.session.over_s if now_s is None else max(part.session.over_s, now_s),
            ),
            drained=drains(part.events),
        )
        for index, part in enumerate(records.sessions)
    ]
    by_rank = tuple(
        {
            cause: math.fsum(part.by_rank[rank][cause] for part in parts if rank < part.world_size)
            for cause in CAUSES
        }
        for rank in range(max(records.sizes, default=0))
    )
    by_node = _summed(part.by_node for part in parts)
    lost_share = _lost_share(records, parts)
    for seconds in (*by_rank, *by_node.values()):
        lost_s = seconds[Cause.PRODUCTIVE] * lost_share
        seconds[Cause.LOST] += lost_s
        seconds[Cause.PRODUCTIVE] -= lost_s
    return Accounting(
        math.fsum(part.wall_s for part in parts),
        records.world_size,
        by_rank,
        math.fsum(part.spare_seconds for part in parts),
        by_node,
        tuple(one for part in parts for one in part.taken),
        _sum_of(part.without_interruption for part in parts),
        {tier: math.fsum(part.stalls.get(tier, 0.0) for part in parts) for tier in TIERS}
        if any(part.stalls for part in parts)
        else {},
        math.fsum(part.held_s for part in parts),
    )


def _lost_share(records: Records, parts: Sequence[Accounting]) -> float:
    """Return the share of productive seconds whose steps are lost and were not done again.

    A step that is done again is booked as repeated, so each step is productive once. The lost steps
    are those above the newest step of the run.
    """
    newest, seen = records.newest_step, 0
    lost_s = 0.0  # rank-seconds
    if records.highest_step <= newest:
        return 0.0
    for part, size in zip(records.sessions, records.sizes, strict=True):
        for bucket in part.steps:
            gone = bucket.to_step - max(bucket.from_step, newest, seen)
            if gone > 0:
                lost_s += gone * bucket.median_s * size
        seen = max(seen, part.steps[-1].to_step if part.steps else 0)
    productive_s = math.fsum(rank[Cause.PRODUCTIVE] for part in parts for rank in part.by_rank)
    return min(1.0, lost_s / productive_s) if productive_s > 0 else 0.0


def _sum_of(some: Iterable[Mapping[Cause, float]]) -> Seconds:
    out: Seconds = {}
    for one in some:
        for cause, value in one.items():
            out[cause] = out.get(cause, 0.0) + value
    return out


def _summed(some: Iterable[Mapping[str, Seconds]]) -> dict[str, Seconds]:
    """Add up the seconds of each node."""
    out: dict[str, Seconds] = {}
    for one in some:
        for node, seconds in one.items():
            mine = out.setdefault(node, dict.fromkeys(CAUSES, 0.0))
            for cause, value in seconds.items():
                mine[cause] += value
    return out


def _at_work(life: Life) -> Life:
    """Return the life of a script whose steps are not seen.

    Its startup is booked as other, because such a script may train from the start of its process.
    """
    seconds: dict[Cause, float] = {}
    for one, value in life.seconds.items():
        known_as = Cause.OTHER if one is Cause.STARTUP else one
        seconds[known_as] = seconds.get(known_as, 0.0) + value
    cause = Cause.OTHER if life.cause is Cause.STARTUP else life.cause
    return replace(life, seconds=seconds, cause=cause)


def account_session(
    *,
    world_size: int,
    started_s: float,
    over_s: float | None,
    now_s: float,
    alive: bool,
    lives: Iterable[Life],
    interruptions: Iterable[Interruption],
    waits: Spans = _NO_WAITS,
    drained: Collection[int] = (),
) -> Accounting:
    """Account for one session, up to `over_s`, or up to `now_s` if that is None.

    alive     whether the launcher still runs
    waits     when the run waited for a node
    drained   the ids of the interruptions in which a node was given up on purpose
    """
    end_s = max(started_s, now_s if over_s is None else over_s)
    of_rank: dict[int, list[Life]] = {}
    for life in lives:
        of_rank.setdefault(life.rank, []).append(life)
    hits = sorted(interruptions, key=lambda one: one.detected_s)
    taken = Attribution(hits, end_s=end_s, waits=waits, drains=drained)
    line = _TimeLine(started_s, end_s, alive, hits, taken, waits)
    by_rank = tuple(
        line.book(rank, _one_after_the_other(of_rank.get(rank, ()))) for rank in range(world_size)
    )
    taken.close()
    spare_s = math.fsum(
        line.lasted(life) for rank, spares in of_rank.items() if rank < 0 for life in spares
    )
    return Accounting(
        end_s - started_s,
        world_size,
        by_rank,
        spare_s,
        line.by_node,
        (taken.seconds,),
        taken.without_interruption,
        _split_stalls(
            math.fsum(rank[Cause.STALL] for rank in by_rank),
            (life for rank, some in of_rank.items() if rank >= 0 for life in some),
        ),
        world_size * (end_s - started_s),
    )


def _split_stalls(stall_s: float, lives: Iterable[Life]) -> dict[Tier, float]:
    """Split the stall over tiers as workers measured it. Return {} if none measured it."""
    measured = dict.fromkeys(TIERS, 0.0)
    for life in lives:
        for tier, value in life.stalls.items():
            measured[tier] += value if 0 < value < math.inf else 0.0
    total_s = math.fsum(measured.values())
    if total_s <= 0:
        return {} if stall_s > 0 else measured
    return {tier: stall_s * (value / total_s) for tier, value in measured.items()}


def _one_after_the_other(lives: Sequence[Life]) -> list[Life]:
    """Return the lives of one rank in the order in which they began.

    A process that began after its successor and never held the rank is left out. A node may start
    one too late.
    """
    kept: list[Life] = []
    held_until_s = -math.inf
    for life in sorted(lives, key=lambda life: life.assigned_s):
        if life.opened_s is None and life.assigned_s < held_until_s:
            continue
        kept.append(life)
        if life.opened_s is not None:
            ended_s = math.inf if life.ended_s is None else life.ended_s
            held_until_s = max(held_until_s, ended_s)
    return kept


def recovery(interruptions: Iterable[Interruption]) -> RecoverySummary:
    """Return the MTTR over interruptions without a parent.

    A parent without a time of resuming resumes with its last child. If the steps of the script are
    not seen, an interruption is counted, but its time to recovery is not known.
    """
    everything = list(interruptions)
    roots = [one for one in everything if one.parent is None]
    by_children: dict[int, float] = {}
    for one in everything:
        if one.parent is not None and one.resumed_s is not None:
            by_children[one.parent] = max(one.resumed_s, by_children.get(one.parent, one.resumed_s))
    known: list[float] = []
    low: list[float] = []
    high: list[float] = []
    open_count = 0
    for root in roots:
        resumed_s = by_children.get(root.id) if root.resumed_s is None else root.resumed_s
        open_count += resumed_s is None
        if resumed_s is None or not root.steps_seen:
            continue
        if root.fault_s is not None:
            known.append(max(0.0, resumed_s - root.fault_s))
        earliest_s = next(
            at_s
            for at_s in (root.fault_s, root.fault_not_before_s, root.detected_s)
            if at_s is not None
        )
        low.append(
            max(0.0, resumed_s - (root.detected_s if root.fault_s is None else root.fault_s))
        )
        high.append(max(low[-1], resumed_s - earliest_s))
    return RecoverySummary(
        count=len(roots),
        open_count=open_count,
        median_s=statistics.median(known) if known else None,
        max_s=max(known, default=None),
        median_range_s=(statistics.median(low), statistics.median(high)) if low else None,
        max_range_s=(max(low), max(high)) if low else None,
    )


def _share(seconds: Mapping[Cause, float], *, without: tuple[Cause, ...]) -> float:
    total_s = math.fsum(value for cause, value in seconds.items() if cause not in without)
    return min(1.0, seconds[Cause.PRODUCTIVE] / total_s) if total_s > 0 else 0.0


class _TimeLine:
    """The time line of one session, on which the seconds of one rank after another are booked.

    `interruptions` are in the order of their detection.
    """

    def __init__(
        self,
        started_s: float,
        end_s: float,
        alive: bool,
        interruptions: Sequence[Interruption],
        taken: Attribution,
        waits: Spans,
    ) -> None:
        self.started_s = started_s
        self.end_s = end_s
        self.alive = alive
        self.interruptions = interruptions
        self.by_node: dict[str, Seconds] = {}
        self._taken = taken
        self._waits = waits
        self._detected_s = [one.detected_s for one in interruptions]

    def lasted(self, life: Life) -> float:
        """Return the seconds of a life that are inside the session."""
        begin_s = _within(life.assigned_s, self.started_s, self.end_s)
        return (
            _within(self.end_s if life.ended_s is None else life.ended_s, begin_s, self.end_s)
            - begin_s
        )

    def book(self, rank: int, lives: Sequence[Life]) -> Seconds:
        """Book the seconds of one rank by cause; they sum to end - started."""
        total: Seconds = dict.fromkeys(CAUSES, 0.0)
        at_s = self.started_s
        hit: Interruption | None = None
        for index, life in enumerate(lives):
            out: Seconds = dict.fromkeys(CAUSES, 0.0)
            last = index == len(lives) - 1
            begin_s = _within(life.assigned_s, at_s, self.end_s)
            until_s = (
                self.end_s if last else _within(lives[index + 1].assigned_s, begin_s, self.end_s)
            )
            opened_s = _within(
                begin_s if life.opened_s is None else life.opened_s, begin_s, until_s
            )
            if index:
                self._book_gap(out, hit, Cause.REGROUP, at_s, opened_s, waits=True)
            else:
                out[Cause.STARTUP] += (begin_s - at_s) + (opened_s - begin_s)
            hit = self._book_life(out, rank, life, opened_s, until_s, first=index == 0, last=last)
            at_s = until_s
            self._add(total, life.node, out)
        never = dict.fromkeys(CAUSES, 0.0) | {Cause.STARTUP: self.end_s - at_s}
        if not lives:
            self._add(total, "", never)  # a rank that never had a process
        return total

    def _book_gap(
        self,
        out: Seconds,
        hit: Interruption | None,
        cause: Cause,
        from_s: float,
        until_s: float,
        *,
        waits: bool,
    ) -> None:
        """Book a span in which the rank had no process, or one whose last step was lost.

        waits   the rank waited for another process
        """
        idle_s = self._waits.inside(from_s, until_s) if waits else 0.0
        drained = waits and hit is not None and hit.id in self._taken.drains
        if drained and cause is Cause.REGROUP:
            cause = Cause.DRAIN
        for known_as, seconds in ((Cause.IDLE, idle_s), (cause, until_s - from_s - idle_s)):
            if seconds > 0:
                out[known_as] += seconds
                self._taken.gap(hit, known_as, seconds)

    def _add(self, total: Seconds, node: str, out: Seconds) -> None:
        mine = self.by_node.setdefault(node, dict.fromkeys(CAUSES, 0.0))
        for cause, value in out.items():
            total[cause] += value
            mine[cause] += value

    def _book_life(
        self,
        out: Seconds,
        rank: int,
        life: Life,
        opened_s: float,
        until_s: float,
        *,
        first: bool,
        last: bool,
    ) -> Interruption | None:
        """Book one process. Return the interruption that ended it, or None."""

        def known_as(cause: Cause) -> Cause:
            return Cause.REGROUP if cause is Cause.STARTUP and not first else cause

        lives_on = last and life.ended_s is None
        stop_s = until_s if life.ended_s is None else _within(life.ended_s, opened_s, until_s)
        # a torn beacon may hold any number, even NaN
        said = {
            cause: min(value, stop_s - opened_s)
            for cause, value in life.seconds.items()
            if value > 0
        }
        said_s = math.fsum(said.values())
        settled_s = min(said_s, stop_s - opened_s)
        lived: Seconds = {}
        scale = settled_s / said_s if said_s > 0 else 0.0
        for cause, value in said.items():
            lived[known_as(cause)] = lived.get(known_as(cause), 0.0) + value * scale
        # by rounding, the sum may be larger than its parts
        cause, from_s = known_as(life.cause), min(opened_s + settled_s, stop_s)
        hit, known_until_s = None, from_s
        if lives_on and self.alive:
            lived[cause] = lived.get(cause, 0.0) + (stop_s - from_s)
            known_until_s = stop_s
        else:
            lost = Cause.REPEATED if cause is Cause.PRODUCTIVE else cause
            hit = self._book_loss(out, rank, (from_s, stop_s, until_s), lost, last=last)
        # A process that waits for a node books that as regroup.
        idle_s = min(self._waits.inside(opened_s, known_until_s), lived.get(Cause.REGROUP, 0.0))
        if idle_s > 0:
            lived[Cause.IDLE] = lived.get(Cause.IDLE, 0.0) + idle_s
            lived[Cause.REGROUP] -= idle_s
        drained = self._taken.lived(opened_s, stop_s, lived)
        for one, value in lived.items():
            out[one] += value - drained.get(one, 0.0)
            out[Cause.DRAIN] += drained.get(one, 0.0)
        return hit

    def _book_loss(
        self,
        out: Seconds,
        rank: int,
        span_s: tuple[float, float, float],
        lost: Cause,
        *,
        last: bool,
    ) -> Interruption | None:
        """Book the time from the last settled second to the next life, or to the end.

        span_s  the last settled second, the end of the process, and the beginning of the next life
        lost    the cause of the time up to the fault

        Return the interruption that took this time, or None.
        """
        from_s, stop_s, until_s = span_s
        hit = self._first_hit(from_s, until_s)
        gone = not last or (self.alive and hit is not None and hit.resumed_s is None)
        after = Cause.REGROUP if gone else Cause.SHUTDOWN
        waits = gone or (hit is not None and lost is not Cause.SHUTDOWN)
        if hit is None:
            ends_s = [(lost, stop_s, False), (after, until_s, waits)]
        else:
            fault_s = _within(
                hit.detected_s if hit.fault_s is None else hit.fault_s, from_s, until_s
            )
            detected_s = _within(hit.detected_s, fault_s, until_s)
            resumed_s = (
                until_s
                if hit.resumed_s is None or rank not in hit.ranks
                else _within(hit.resumed_s, detected_s, until_s)
            )
            ends_s = [
                (lost, fault_s, False),
                (Cause.DETECTION, detected_s, False),
                (after, resumed_s, waits),
                (Cause.DEGRADED, until_s, False),
            ]
        for cause, end_s, is_waiting in ends_s:
            self._book_gap(out, hit, cause, from_s, end_s, waits=is_waiting)
            from_s = end_s
        return hit

    def _first_hit(self, from_s: float, until_s: float) -> Interruption | None:
        index = bisect_left(self._detected_s, from_s)
        if index == len(self.interruptions):
            return None
        hit = self.interruptions[index]
        return hit if (hit.detected_s if hit.fault_s is None else hit.fault_s) < until_s else None


def _within(value_s: float, low_s: float, high_s: float) -> float:
    return min(max(value_s, low_s), high_s)
