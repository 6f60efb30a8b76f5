"""The figures of a report that add up over runs: costs of failures, their rates, and money.

Each function takes the facts of one run or of several, as `report_facts` makes them.

Intervals  They are credible intervals of level LEVEL. It is assumed that failures come at a
           constant rate, and that durations of recoveries are exponential. The posterior of both
           rates is that of Jeffreys, Gamma(n + 1/2, E), as in the planner (model/reliability.py).
           For the rate of failures, E is the training time. For the rate at which recoveries end, E
           is the sum of their durations.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outlast.app.words import Facts
from outlast.model.goodput import Accounting
from outlast.model.reliability import rate_interval_per_s
from outlast.model.terms import TAKEN_BY_INTERRUPTIONS, Cause
from outlast.model.time_units import HOUR_S

LEVEL = 0.9
UNTRAINED = (Cause.STARTUP.value, Cause.SHUTDOWN.value)
TOLERANCE = 1e-9  # the share of the sum by which rounding may change it


@dataclass(frozen=True, slots=True)
class Given:
    """Hold the facts that a ledger cannot know, and that the user gives.

    price   of one GPU for an hour, in any currency
    """

    tokens_per_step: float | None = None
    flops_per_step: float | None = None
    price: float | None = None


NOTHING_GIVEN = Given()


def sums(some: Sequence[Facts], given: Given) -> dict[str, typing.Any]:
    """Return the figures of these runs together."""
    return {
        "lost": lost(some),
        "reliability": reliability(some),
        "goodput": goodput(some, given),
        "cost": cost(some, given),
    }


def balance(books: Accounting) -> dict[str, typing.Any]:
    """Compare the sums of the account with what they should be.

    sums    True if all are right
    wrong   a sentence for each that is not
    """
    expected_s = books.held_s
    taken_s = math.fsum(
        value for session in books.taken for one in session.values() for value in one.values()
    )
    booked_s = math.fsum(books.rank_seconds.values())
    seconds = books.rank_seconds
    lost_s = math.fsum(seconds[cause] for cause in TAKEN_BY_INTERRUPTIONS)
    attributed_s = taken_s + math.fsum(books.without_interruption.values())
    by_node_s = math.fsum(value for spent in books.by_node.values() for value in spent.values())
    wrong = [
        f"{what} {found_s:.6f} s, and should be {due_s:.6f} s"
        for what, found_s, due_s in (
            ("the causes sum to", booked_s, expected_s),
            ("the nodes sum to", by_node_s, expected_s),
            ("what interruptions took sums to", attributed_s, lost_s),
        )
        if not abs(found_s - due_s) <= max(1e-6, TOLERANCE * expected_s)
    ]
    return {
        "expected_s": expected_s,
        "booked_s": booked_s,
        "sums": not wrong,
        "wrong": wrong,
    }


def lost(some: Sequence[Facts]) -> dict[str, typing.Any]:
    """Return the rank-seconds that interruptions took: by cause, class, node and tier.

    For the sums by class, a parent and its children count as one. If several nodes are blamed, each
    of them gets an equal part.
    """
    by_cause: dict[str, float] = {}
    by_class: dict[str, dict[str, float]] = {}
    by_node: dict[str, dict[str, float]] = {}
    by_tier: dict[str, dict[str, float]] = {}
    for facts in some:
        for one in facts["interruptions"]:
            lost_s = one["lost_rank_s"]
            _add(by_class, one["class"], 1, lost_s)
            _add(by_tier, one["tier"] or "none", 1, lost_s)
            for node in one["blamed_nodes"]:
                _add(by_node, node, 1, lost_s / len(one["blamed_nodes"]))
            for cause, value in one["seconds"].items():
                by_cause[cause] = by_cause.get(cause, 0.0) + value
    without_interruption_s = math.fsum(
        value for facts in some for value in facts["lost_to_nobody"].values()
    )
    return {
        "rank_s": math.fsum(by_cause.values()),
        "by_cause": by_cause,
        "by_class": by_class,
        "by_node": by_node,
        "by_tier": by_tier,
        "without_interruption_s": without_interruption_s,
    }


def _add(to: dict[str, dict[str, float]], name: str, count: int, rank_s: float) -> None:
    entry = to.setdefault(name, {"count": 0, "rank_s": 0.0})
    entry["count"] += count
    entry["rank_s"] += rank_s


def reliability(some: Sequence[Facts]) -> dict[str, typing.Any]:
    """Return MTTF and MTTR, over all and by class, with credible intervals.

    Every interruption counts as a failure, also one that came during a recovery. The time to
    recover is counted once for those that were over together.
    """
    exposure_s = math.fsum(training_s(facts) for facts in some)
    rank_exposure_s = math.fsum(training_s(facts) * facts["mean_ranks"] for facts in some)
    everything = [one for facts in some for one in facts["interruptions"]]
    classes = sorted({one["class"] for one in everything})
    return {
        "level": LEVEL,
        "exposure_s": exposure_s,
        "rank_exposure_s": rank_exposure_s,
        "all": _rates(everything, exposure_s, rank_exposure_s),
        "by_class": {
            name: _rates(
                [one for one in everything if one["class"] == name], exposure_s, rank_exposure_s
            )
            for name in classes
        },
    }


def training_s(facts: Facts) -> float:
    """Return the seconds in which a run trained: launcher start to end, less start-up and end."""
    wall_s: float = facts["wall_s"]
    untrained_s = math.fsum(facts["rank_seconds"].get(name) or 0.0 for name in UNTRAINED)
    ranks: float = facts["mean_ranks"]
    return max(0.0, wall_s - untrained_s / max(1, ranks))


def _rates(
    some: Sequence[Mapping[str, typing.Any]], exposure_s: float, rank_exposure_s: float
) -> dict[str, typing.Any]:
    count = len(some)
    low_s, high_s = _interval_s(count, exposure_s)
    rank_low_s, rank_high_s = _interval_s(count, rank_exposure_s)
    took_s = [value for one in some if (value := recovered_s(one)) is not None]
    mttr_low_s, mttr_high_s = (
        _interval_s(len(took_s), math.fsum(took_s)) if took_s else (None, None)
    )
    return {
        "count": count,
        "mttf_s": exposure_s / count if count else None,
        "mttf_range_s": [low_s, high_s],
        "rank_mttf_s": rank_exposure_s / count if count else None,
        "rank_mttf_range_s": [rank_low_s, rank_high_s],
        "recovered_count": len(took_s),
        "mttr_s": math.fsum(took_s) / len(took_s) if took_s else None,
        "mttr_range_s": [mttr_low_s, mttr_high_s],
    }


def recovered_s(one: Mapping[str, typing.Any]) -> float | None:
    """Return how long a recovery took. Return None for a child, and if that is not known.

    If the time of the fault is unknown, the middle of its interval is taken.
    """
    if one["parent"] is not None or one["resumed_s"] is None or not one["steps_seen"]:
        return None
    fault_s = one["fault_s"]
    if fault_s is None:
        earliest_s = one["fault_not_before_s"]
        fault_s = one["detected_s"] if earliest_s is None else (earliest_s + one["detected_s"]) / 2
    return max(0.0, float(one["resumed_s"] - fault_s))


def _interval_s(count: int, exposure_s: float) -> tuple[float | None, float | None]:
    """Return the credible interval of a mean time between events; None where nothing bounds it."""
    if exposure_s <= 0:
        return None, None
    low, high = rate_interval_per_s(failures=count, exposure_s=exposure_s, level=LEVEL)
    return 1 / high, (1 / low if count and low > 0 else None)


def goodput(some: Sequence[Facts], given: Given) -> dict[str, typing.Any]:
    """Return the committed steps, and their tokens and FLOPs if those of a step are given.

    They are null if the ledger of any run is damaged and lacks steps.
    """
    steps = sum(facts["steps"] for facts in some if facts["steps_seen"])
    wall_s = math.fsum(facts["wall_s"] for facts in some if facts["steps_seen"])
    per_s = steps / wall_s if wall_s > 0 else None
    known = any(facts["steps_seen"] for facts in some)
    if any("steps" in facts["lacks"] for facts in some):
        known, per_s = False, None
    return {
        "steps": steps if known else None,
        "steps_per_s": per_s if known else None,
        "tokens": _times(given.tokens_per_step, steps if known else None),
        "tokens_per_s": _times(given.tokens_per_step, per_s),
        "flops": _times(given.flops_per_step, steps if known else None),
        "flops_per_s": _times(given.flops_per_step, per_s),
    }


def _times(each: float | None, count: float | None) -> float | None:
    return None if each is None or count is None else each * count


def cost(some: Iterable[Facts], given: Given) -> dict[str, typing.Any]:
    """Return GPU-hours, and money if a price is given. A rank counts as one GPU.

    All time that was not productive is a loss. The time of spares is listed separately.
    """
    total_s = productive_s = spare_s = lost_s = 0.0
    is_known = True
    for facts in some:
        total_s += facts["mean_ranks"] * facts["wall_s"]
        kept_s = facts["rank_seconds"]["productive"]
        is_known = is_known and kept_s is not None
        productive_s += kept_s or 0.0
        spare_s += facts["spare_seconds"]
        lost_s += math.fsum(one["lost_rank_s"] for one in facts["interruptions"])
    hours = {
        "gpu_hours": total_s / HOUR_S,
        "productive_gpu_hours": productive_s / HOUR_S if is_known else None,
        "lost_gpu_hours": lost_s / HOUR_S,
        "spare_gpu_hours": spare_s / HOUR_S,
    }
    price = given.price
    return {
        **hours,
        "price_per_gpu_hour": price,
        "money": _times(price, hours["gpu_hours"]),
        "lost_money": _times(price, hours["lost_gpu_hours"]),
    }
