"""The course of many runs at once, compiled by numba (extra `outlast[numba]`): what `runs.py` does,
run by run in place of array by array.

Units      seconds; positions inside are in steps, times without maintenance stops.
Method     The rules are those of `course.py`, with the closed forms of `saves.py` for what lies
           between two failures; a run is looked at only where something strikes it. Failures come
           some rows at a time, as their luck is drawn, so that all that is worked on fits into a
           processor's cache.
Limits     The same as `runs.py` replica by replica, but for what rounding leaves. numba takes
           seconds to compile it, once for each version of this file where the folder of it, or the
           user's cache, can be written: for many runs, not for one plan. Importing this module
           needs numba.

This module is pure: no clock, no files (but numba's own cache), no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from outlast.model.terms import Cause
from outlast.planner.histories import ROWS, Histories, Luck
from outlast.planner.outcomes import Outcomes
from outlast.planner.plain import is_plain, run_plain
from outlast.planner.saves import NEVER_STEPS, STANDSTILL_PACE_S, Floats
from outlast.planner.scenario import Extent, Scenario, Unit
from outlast.planner.spread import FAR, MIDDLE, NEAR, Shape, Spread
from outlast.planner.sweep import Summary, Task, simulate

Counts = NDArray[np.int64]
# phases of a recovery, in their order; of World.spreads too: there WAIT is a repair, RESTORE + j
# tier j
DETECT, REGROUP, WAIT, TAKE, RESTORE = range(5)
KINDS = {Shape.CONSTANT: 0, Shape.EXPONENTIAL: 1, Shape.LOGNORMAL: 2, Shape.MEASURED: 3}
NEAR_TABLE, MIDDLE_TABLE, FAR_TABLE = np.array(NEAR), np.array(MIDDLE), np.array(FAR)
# numba knows no enumerations of ours
L_DETECT, L_REGROUP, L_TAKE, L_REPAIR = (
    int(Luck.DETECT),
    int(Luck.REGROUP),
    int(Luck.TAKE),
    int(Luck.REPAIR),
)
L_RESTORE, L_LEMON, L_MENDED, L_DIAGNOSIS = (
    int(Luck.RESTORE),
    int(Luck.LEMON),
    int(Luck.MENDED),
    int(Luck.DIAGNOSIS),
)
PIECE = 512  # replicas at a time: what they are about fits into a processor's cache
ONE_NODE = int(Extent.NODE)
compiled: Any = njit(cache=True, _nrt=False, forceinline=True)  # type: ignore[call-overload]
"""All into one function, and no references are counted: World and Runs are arrays by the dozen, and handing them on took most of the time."""


class World(NamedTuple):
    """A scenario in numbers.

    By stream of failures: class_of, extents, takes (nodes), of_node. By tier: steps, stall_s,
    write_s, survives, is_live.

    stalls           (L, 2): steps and seconds of the intervals that stall, the longest first
    spreads          (S, 3): kind and two numbers, or where the measured ones begin and end in
                     `measured_s`
    """

    step_s: float
    duration_s: float
    nodes: int
    spares: int
    shrinks: bool
    every_s: float
    lasts_s: float
    wrong: float
    missed: float
    has_lemons: bool
    lemons_bound: int
    caught: float
    class_count: int
    class_of: Counts
    extents: Counts
    takes: Counts
    of_node: NDArray[np.bool_]
    steps: Floats
    stall_s: Floats
    write_s: Floats
    survives: Counts
    is_live: NDArray[np.bool_]
    stalls: Floats
    spreads: Floats
    measured_s: Floats


class Runs(NamedTuple):
    """Where each run is, (R,) unless said otherwise; names as in `runs.py`.

    back_s, lost     (R, N): when each loss that is in repair comes back, and how many nodes it is;
                     in_repair: so many losses are there
    """

    struck_s: Floats
    resumes_s: Floats
    position: Floats
    regroup_s: Floats
    stall_s: Floats
    degraded_s: Floats
    repeated_s: Floats
    rejoin_s: Floats
    extent: Counts
    nodes_lost: Counts
    missing: Counts
    charged: Counts
    waits: Counts
    interruptions: Counts
    lemons: Counts
    in_repair: Counts
    beyond_bound: NDArray[np.bool_]
    held: Floats
    phases_s: Floats
    spent_s: Floats
    lost_s: Floats
    back_s: Floats
    lost: Counts


def simulate_compiled(task: Task) -> tuple[Summary, ...]:
    """As `sweep.simulate`."""
    return simulate(task, run_compiled)


def run_compiled(scenario: Scenario, histories: Histories) -> Outcomes:
    """As `monte_carlo.run`."""
    return (
        run_plain(scenario, histories)
        if is_plain(scenario)
        else run_any_compiled(scenario, histories)
    )


def run_any_compiled(scenario: Scenario, histories: Histories) -> Outcomes:
    """As `runs.run_any`."""
    return Outcomes.joined([_piece(scenario, one) for one in histories.pieces(PIECE)])


def _piece(scenario: Scenario, histories: Histories) -> Outcomes:
    world, runs = _world(scenario, histories), _runs(scenario, histories)
    begin = 0
    for luck in _luck(scenario, histories):
        rows = slice(begin, begin + ROWS)
        _strike(
            world,
            runs,
            np.ascontiguousarray(histories.at_s.T[rows]),
            np.ascontiguousarray(histories.stream.T[rows]),
            luck,
        )
        begin += ROWS
    worked_s = scenario.maintenance.worked_s(scenario.job.duration_s)
    position = np.empty(histories.replicas)
    _end(world, runs, worked_s, position)
    return _outcomes(scenario, runs, position, worked_s)


def _world(scenario: Scenario, histories: Histories) -> World:
    job, repair, tiers, recovery = scenario.job, scenario.repair, scenario.tiers, scenario.recovery
    rates = [scenario.failures[index] for index in histories.stream_class.tolist()]
    stalls: dict[float, float] = {}
    for tier in tiers:
        stalls[scenario.interval_steps(tier)] = (
            stalls.get(scenario.interval_steps(tier), 0.0) + tier.stall_s
        )
    stops = scenario.maintenance
    spreads, measured_s = _spreads(
        [
            recovery.detect,
            recovery.regroup,
            repair.time,
            recovery.take,
            *(tier.restore for tier in tiers),
        ]
    )
    return World(
        step_s=job.step_s,
        duration_s=job.duration_s,
        nodes=job.nodes,
        spares=repair.spare_nodes,
        shrinks=recovery.shrinks,
        every_s=stops.every_s if stops.lasts_s else math.inf,
        lasts_s=stops.lasts_s,
        wrong=repair.wrong,
        missed=repair.missed,
        has_lemons=scenario.lemons.factor > 1,
        lemons_bound=scenario.lemons_bound,
        caught=scenario.lemons.caught,
        class_count=histories.class_count,
        class_of=histories.stream_class,
        extents=np.array([int(rate.extent) for rate in rates], dtype=np.int64),
        takes=np.array([scenario.nodes_lost(rate.extent) for rate in rates], dtype=np.int64),
        of_node=np.array([rate.unit in (Unit.GPU, Unit.NODE) for rate in rates], dtype=np.bool_),
        steps=np.array(
            [min(scenario.interval_steps(tier), NEVER_STEPS) for tier in tiers], dtype=np.float64
        ),
        stall_s=np.array([tier.stall_s for tier in tiers], dtype=np.float64),
        write_s=np.array([tier.write_s for tier in tiers], dtype=np.float64),
        survives=np.array([int(tier.survives) for tier in tiers], dtype=np.int64),
        is_live=np.array([scenario.is_live(tier) for tier in tiers], dtype=np.bool_),
        stalls=np.array(
            sorted(
                ((steps, s) for steps, s in stalls.items() if s and math.isfinite(steps)),
                reverse=True,
            )
        ).reshape(-1, 2),
        spreads=spreads,
        measured_s=measured_s,
    )


def _spreads(spreads: list[Spread]) -> tuple[Floats, Floats]:
    table, measured_s = np.zeros((len(spreads), 3)), np.zeros(0)
    for row, spread in zip(table, spreads, strict=True):
        row[0] = KINDS[spread.shape]
        if spread.shape is Shape.MEASURED:
            row[1:] = len(measured_s), len(measured_s) + len(spread.numbers)
            measured_s = np.concatenate([measured_s, spread.numbers])
        else:
            row[1 : 1 + len(spread.numbers)] = spread.numbers
    return table, measured_s


def _runs(scenario: Scenario, histories: Histories) -> Runs:
    replicas, failures = histories.at_s.shape
    each: dict[str, Any] = {name: np.zeros(replicas) for name in Runs._fields[:8]}
    each |= {name: np.zeros(replicas, dtype=np.int64) for name in Runs._fields[8:14]}
    loses = any(scenario.nodes_lost(rate.extent) for rate in scenario.failures)
    back = (replicas, failures if loses else 0)
    return Runs(
        **each,
        lemons=histories.lemons.copy(),
        in_repair=np.zeros(replicas, dtype=np.int64),
        beyond_bound=np.zeros(replicas, dtype=np.bool_),
        held=np.zeros((replicas, len(scenario.tiers))),
        phases_s=np.zeros((replicas, 5)),
        spent_s=np.zeros((replicas, 5)),
        lost_s=np.zeros((replicas, len(scenario.failures))),
        back_s=np.empty(back),
        lost=np.empty(back, dtype=np.int64),
    )


def _luck(scenario: Scenario, histories: Histories) -> Iterator[Floats]:
    """(len(Luck), ROWS, R) at a time, of the columns that anybody asks for; always the same array."""
    recovery, repair = scenario.recovery, scenario.repair
    asks = {
        Luck.DETECT: recovery.detect,
        Luck.REGROUP: recovery.regroup,
        Luck.TAKE: recovery.take,
        Luck.REPAIR: repair.time,
    }
    columns = {column for column, spread in asks.items() if spread.shape is not Shape.CONSTANT}
    columns |= (
        {Luck.RESTORE}
        if any(tier.restore.shape is not Shape.CONSTANT for tier in scenario.tiers)
        else set()
    )
    columns |= {Luck.LEMON, Luck.MENDED} if scenario.lemons.factor > 1 else set()
    columns |= {Luck.DIAGNOSIS} if repair.wrong else set()
    drawn = {column: histories.luck_in_order(column) for column in sorted(columns)}
    luck = np.full((len(Luck), ROWS, histories.replicas), 0.5)
    for _ in range(0, histories.at_s.shape[1], ROWS):
        for column, rows in drawn.items():
            luck[column] = next(rows)
        yield luck


def _outcomes(scenario: Scenario, runs: Runs, position: Floats, worked_s: float) -> Outcomes:
    job, (detect_s, regroup_s, wait_s, take_s, restore_s) = scenario.job, runs.spent_s.T
    seconds = {cause: np.zeros(len(position)) for cause in Cause}
    seconds |= {
        Cause.PRODUCTIVE: position * job.step_s,
        Cause.STALL: runs.stall_s,
        Cause.REPEATED: runs.repeated_s,
        Cause.DETECTION: detect_s,
        Cause.REGROUP: regroup_s + wait_s + take_s + runs.rejoin_s,
        Cause.RESTORE: restore_s,
        Cause.DEGRADED: runs.degraded_s,
    }
    # differences of large numbers: -1e-9 s is none
    seconds = {cause: np.maximum(booked, 0.0) for cause, booked in seconds.items()}
    seconds[Cause.OTHER] += job.duration_s - worked_s
    kept_s = runs.position * job.step_s
    return Outcomes(
        seconds[Cause.PRODUCTIVE],
        kept_s,
        seconds,
        runs.interruptions,
        runs.lost_s,
        wait_s.copy(),
        runs.waits,
        runs.beyond_bound,
    )


# --- compiled: one run at a time ------------------------------------------------------------------


@compiled
def _strike(world, runs, at_s, stream, luck):
    """The next rows of failures."""
    for k in range(at_s.shape[0]):
        for r in range(at_s.shape[1]):
            wall_s = at_s[k, r]
            if wall_s >= world.duration_s:
                continue
            stops = math.floor(wall_s / world.every_s)
            if stops >= 1 and wall_s - stops * world.every_s < world.lasts_s:
                continue
            if world.has_lemons and not _is_struck(
                world, runs, r, stream[k, r], luck[L_LEMON, k, r], luck[L_MENDED, k, r]
            ):
                continue
            _fail(
                world,
                runs,
                r,
                wall_s - stops * world.lasts_s if stops >= 1 else wall_s,
                stream[k, r],
                luck[:, k, r],
            )


@compiled
def _is_struck(world, runs, r, stream, here, mended):
    """Is the lemon there that it was drawn for; and how many there are from now on."""
    now, extra = runs.lemons[r], stream >= world.class_count
    if extra and here >= min(now, world.lemons_bound) / max(1, world.lemons_bound):
        return False
    if world.extents[stream] == ONE_NODE:
        if extra or (world.of_node[stream] and here < now / world.nodes):
            now -= mended < world.caught
        else:
            now += mended < world.missed
        runs.lemons[r] = min(now, world.nodes)
        runs.beyond_bound[r] |= runs.lemons[r] > world.lemons_bound
    return True


@compiled
def _fail(world, runs, r, at_s, stream, luck):
    """Everything that follows is known now, unless another failure cuts it off."""
    recovers = at_s < runs.resumes_s[r]
    position = _go_on_until(world, runs, r, at_s)
    extent, lost = world.extents[stream], world.takes[stream]
    if world.wrong and extent == ONE_NODE and luck[L_DIAGNOSIS] < world.wrong:
        lost += 1
    detect_s, regroup_s = (
        _seconds(world, DETECT, luck[L_DETECT]),
        _seconds(world, REGROUP, luck[L_REGROUP]),
    )
    if lost:
        _lose(runs, r, at_s, at_s + _seconds(world, WAIT, luck[L_REPAIR]), lost)
    if recovers:
        extent, lost = max(extent, runs.extent[r]), lost + runs.nodes_lost[r]
    newest, restore_s = _newest(world, runs, r, extent, luck[L_RESTORE])
    regrouped_s = at_s + detect_s + regroup_s
    ready_s = regrouped_s
    if world.shrinks:
        takes = runs.missing[r] + lost > _lacking(world, runs, r, regrouped_s)
    else:
        takes = lost > 0
        while _in_repair(runs, r, ready_s) > world.spares:
            ready_s = _next_s(runs, r, ready_s)
    phases_s = runs.phases_s[r]
    phases_s[DETECT], phases_s[REGROUP], phases_s[WAIT], phases_s[RESTORE] = (
        detect_s,
        regroup_s,
        ready_s - regrouped_s,
        restore_s,
    )
    phases_s[TAKE] = _seconds(world, TAKE, luck[L_TAKE]) if takes else 0.0
    lost_s = (position - newest) * world.step_s
    runs.repeated_s[r] += lost_s
    runs.charged[r] = world.class_of[stream]
    runs.lost_s[r, runs.charged[r]] += lost_s
    runs.position[r], runs.extent[r], runs.nodes_lost[r], runs.regroup_s[r] = (
        newest,
        extent,
        lost,
        regroup_s,
    )
    runs.struck_s[r], runs.resumes_s[r] = at_s, ready_s + phases_s[TAKE] + restore_s
    runs.interruptions[r] += 1


@compiled
def _newest(world, runs, r, extent, luck):
    """The newest position that survives, and seconds to restore it from the fastest tier that holds
    it.
    """
    newest, restore_s = -1.0, 0.0
    for tier in range(len(world.steps)):
        if world.survives[tier] < extent:
            runs.held[r, tier] = -1.0
        newest = max(newest, runs.held[r, tier])
    if newest >= 0:
        restore_s = math.inf
        for tier in range(len(world.steps)):
            if runs.held[r, tier] == newest:
                restore_s = min(restore_s, _seconds(world, RESTORE + tier, luck))
    return max(newest, 0.0), restore_s


@compiled
def _go_on_until(world, runs, r, until_s):
    """The position then. What the recovery took is booked, and what tiers hold is put down."""
    if runs.interruptions[r]:
        most_s = until_s - runs.struck_s[r]
        before_s = 0.0
        for phase in range(5):
            spent_s = min(runs.phases_s[r, phase], most_s - before_s)
            before_s += spent_s
            runs.spent_s[r, phase] += spent_s
            runs.waits[r] += phase == WAIT and spent_s > 0
        runs.lost_s[r, runs.charged[r]] += before_s
    while world.shrinks and runs.resumes_s[r] <= until_s:
        resumed_s = runs.resumes_s[r]
        runs.missing[r] = _lacking(world, runs, r, resumed_s)
        back_s = _next_s(runs, r, resumed_s) if runs.missing[r] else math.inf
        if back_s >= until_s:
            break
        runs.position[r] = _train(world, runs, r, back_s - resumed_s)
        runs.resumes_s[r] = back_s + runs.regroup_s[r]
        runs.rejoin_s[r] += min(runs.resumes_s[r], until_s) - back_s
    return _train(world, runs, r, max(until_s - runs.resumes_s[r], 0.0))


@compiled
def _train(world, runs, r, left_s):
    """For so long, with nobody coming or going; then what is being written is cut off.

    The position.
    """
    begin, missing, pace = runs.position[r], runs.missing[r], world.step_s
    if missing:
        pace = (
            STANDSTILL_PACE_S
            if missing == world.nodes
            else world.step_s * world.nodes / (world.nodes - missing)
        )
    position, to_come_s = _reached(world, begin, left_s, pace)
    for tier in range(len(world.steps)):
        saved = _saved(world, tier, position, to_come_s)
        if saved > begin and (position - saved) * pace < world.write_s[tier]:
            saved = _saved(
                world, tier, *_reached(world, begin, max(left_s - world.write_s[tier], 0.0), pace)
            )
        if saved > begin or world.is_live[tier]:
            runs.held[r, tier] = saved
    trained_s = left_s if missing == world.nodes else (position - begin) * pace
    runs.stall_s[r] += left_s - trained_s
    runs.degraded_s[r] += trained_s - (position - begin) * world.step_s
    return position


# --- compiled: saves ------------------------------------------------------------------------------


@compiled
def _reached(world, begin, left_s, pace):
    """Position, `left_s` after training went on at `begin`; and seconds of the stalls there that
    are to come.
    """
    at = begin
    for level in range(len(world.stalls)):
        steps, mean_s = world.stalls[level, 0], pace
        for other in range(level, len(world.stalls)):
            mean_s += world.stalls[other, 1] / world.stalls[other, 0]
        none = math.floor(at / steps)
        count = max(math.floor((at + left_s / mean_s) / steps), none)
        while _arrived_s(world, level, at, (count + 1) * steps, pace) <= left_s:
            count += 1
        while count > none and _arrived_s(world, level, at, count * steps, pace) > left_s:
            count -= 1
        newest = count * steps
        if newest > at:
            left_s -= _arrived_s(world, level, at, newest, pace)
            for other in range(level, len(world.stalls)):
                if newest % world.stalls[other, 0] == 0:
                    left_s -= world.stalls[other, 1]
            at = newest
            if left_s < 0:
                return at, -left_s
    return at + left_s / pace, 0.0


@compiled
def _arrived_s(world, level, at, there, pace):
    """Seconds from `at` to `there`, with all stalls of this interval and shorter ones that lie
    between.
    """
    total_s = (there - at) * pace
    for other in range(level, len(world.stalls)):
        steps = world.stalls[other, 0]
        total_s += world.stalls[other, 1] * (math.ceil(there / steps) - 1 - math.floor(at / steps))
    return total_s


@compiled
def _saved(world, tier, position, to_come_s):
    """The newest multiple of this tier's interval whose stall is over."""
    steps = world.steps[tier]
    saved = math.floor(position / steps) * steps
    if to_come_s and position % steps == 0 and not world.is_live[tier]:
        later_s = 0.0
        for other in range(tier + 1, len(world.steps)):
            if position % world.steps[other] == 0:
                later_s += world.stall_s[other]
        if to_come_s > later_s:
            saved -= steps
    return saved


# --- compiled: nodes in repair --------------------------------------------------------------------


@compiled
def _lose(runs, r, at_s, back_s, lost):
    """And forget those that have come back: no later question is about a time before this."""
    kept = 0
    for row in range(runs.in_repair[r]):
        if runs.back_s[r, row] > at_s:
            runs.back_s[r, kept], runs.lost[r, kept] = runs.back_s[r, row], runs.lost[r, row]
            kept += 1
    runs.back_s[r, kept], runs.lost[r, kept] = back_s, lost
    runs.in_repair[r] = kept + 1


@compiled
def _in_repair(runs, r, at_s):
    nodes = 0
    for row in range(runs.in_repair[r]):
        if runs.back_s[r, row] > at_s:
            nodes += runs.lost[r, row]
    return nodes


@compiled
def _lacking(world, runs, r, at_s):
    return min(max(_in_repair(runs, r, at_s) - world.spares, 0), world.nodes)


@compiled
def _next_s(runs, r, at_s):
    """When the next one comes back; inf: nobody is in repair."""
    next_s = math.inf
    for row in range(runs.in_repair[r]):
        if runs.back_s[r, row] > at_s:
            next_s = min(next_s, runs.back_s[r, row])
    return next_s


# --- compiled: durations --------------------------------------------------------------------------


@compiled
def _seconds(world, spread, u):
    """`Spread.quantile` of one number."""
    kind, first, second = world.spreads[spread]
    if kind == 0:
        return first
    if kind == 1:
        return -first * math.log1p(-u)
    if kind == 2:
        return first * math.exp(second * _normal_quantile(u))
    begin, count = int(first), int(second - first)
    place = u * (count - 1)
    below = min(int(place), max(count - 2, 0))
    above = min(below + 1, count - 1)
    return world.measured_s[begin + below] + (place - below) * (
        world.measured_s[begin + above] - world.measured_s[begin + below]
    )


@compiled
def _normal_quantile(u):
    """As in `spread.py`."""
    q = u - 0.5
    if abs(q) <= 0.425:
        return q * _ratio(NEAR_TABLE, 0.180625 - q * q)
    r = math.sqrt(-math.log(min(u, 1 - u)))
    return math.copysign(_ratio(MIDDLE_TABLE, r - 1.6) if r <= 5 else _ratio(FAR_TABLE, r - 5), q)


@compiled
def _ratio(polynomials, r):
    over, under = 0.0, 0.0
    for place in range(polynomials.shape[1]):
        over, under = over * r + polynomials[0, place], under * r + polynomials[1, place]
    return over / under


@compiled
def _end(world, runs, worked_s, position):
    for r in range(len(position)):
        position[r] = _go_on_until(world, runs, r, worked_s)
