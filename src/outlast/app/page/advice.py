"""Advice after a run: sentences about what would have helped, each with its figures.

The planner computes the interval and the spares from this run's own failures, recoveries and steps
(`outlast plan --ledger RUN` says more). All other advice follows from the report.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from outlast.app import words
from outlast.app.words import Facts
from outlast.errors import OutlastError
from outlast.planner.fit.calibration import calibrate
from outlast.planner.fit.cluster import LIVE, cluster_of
from outlast.planner.fit.ledgers import booked, observe
from outlast.planner.fit.phases import phases_of
from outlast.planner.resolve import resolve
from outlast.planner.scenario import Scenario
from outlast.runtime.ledger.view import RunView

LITTLE = 0.01  # a smaller share of all rank-seconds gets no advice
OFTEN = 3  # this many failures alike get advice
FEWEST_FOR_RATES = 3  # with fewer interruptions, the planner knows only a bound of the rate
MOST_FOR_A_GLANCE = 1_000  # interruptions that the planner reads fast enough for a live page
RANKS_MOST = 4_096  # ranks that the planner reads fast enough for a live page
SLOW_START = ("respawn", "restart", "reenter")


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice: what to do, and why that would have helped."""

    do: str
    why: str


def advice(view: RunView, report: Facts) -> tuple[Advice, ...]:
    """Return the advice for this run, or one line that says that nothing would have helped."""
    found = [
        *_alike(report),
        *_spares(view, report),
        *_stalls(report),
        *_waits(report),
        *_planned(view, report),
    ]
    do = "Not known." if report["damage"] else "Nothing to change."
    return tuple(found) or (Advice(do, _no_advice(report)),)


def _no_advice(report: Facts) -> str:
    if report["ettr"] is None:
        return "How much of the time was productive is not known."
    return f"{words.percent(report['ettr'])} of the time was productive."


def _share(report: Facts, *causes: str) -> float:
    total_s = sum(value or 0.0 for value in report["rank_seconds"].values())
    some_s = sum(report["rank_seconds"].get(cause) or 0.0 for cause in causes)
    return some_s / total_s if total_s > 0 else 0.0


def _alike(report: Facts) -> Iterator[Advice]:
    """Yield advice if the same place fails often, or the script raises the same error often."""
    roots = [one for one in report["interruptions"] if one["parent"] is None]
    errors = Counter(
        one["error"].strip().rpartition("\n")[2]
        for one in roots
        if one["mechanism"] == "exception" and one["error"].strip()
    )
    for error, count in errors.most_common(1):
        if count >= OFTEN:
            yield Advice(
                "Mend the script: it raises the same error again and again.",
                f"{words.count(count, 'time')}: {error}",
            )
    nodes = Counter(node for one in roots for node in one["nodes"])
    for node, count in nodes.most_common(1):
        if count >= OFTEN and len(nodes) > 1 and count > len(roots) / 2:
            yield Advice(
                f"Take node {node} out.", f"{count} of {len(roots)} interruptions were there."
            )


def _spares(view: RunView, report: Facts) -> Iterator[Advice]:
    slow = [
        one["restored_s"] - one["detected_s"]  # a spare does nothing for the time until detection
        for one in report["interruptions"]
        if one["rung"] in SLOW_START and one["restored_s"] is not None
    ]
    had = any(life.rank < 0 for part in view.records.sessions for life in part.lives)
    if slow and not had and sum(slow) >= LITTLE * report["wall_s"]:
        yield Advice(
            "Keep a hot spare: `--spares 1`.",
            f"{words.count(len(slow), 'recovery', 'recoveries')} started a process and took"
            f" {words.duration(sum(slow))}. A spare that stands ready saves most of that.",
        )


def _stalls(report: Facts) -> Iterator[Advice]:
    share = _share(report, "stall", "checkpoint_stall")
    if share >= LITTLE:
        yield Advice(
            "Save less often, or to a faster place.",
            f"Training paused for saves for {words.percent(share)} of the time.",
        )
    lost = sum(one["steps_lost"] or 0 for one in report["interruptions"])
    lost += report["steps_lost_between_sessions"] or 0
    if lost and report["step_median_s"]:
        lost_s = lost * report["step_median_s"]
        yield Advice(
            "Save more often: `--checkpoint-every STEPS`."
            if report["calls_outlast"]
            else "Let the script save more often and load that at its start, or call outlast.",
            f"{lost:,} steps were thrown away, about {words.duration(lost_s)} of training.",
        )


def _waits(report: Facts) -> Iterator[Advice]:
    for cause, do in (
        ("data_wait", "Feed the data faster: more loader workers, or a faster disk."),
        ("detection", "Hangs took long to see."),
        ("idle", "Keep a node ready: `--spare-nodes 1`."),
        ("startup", "Import less at the start, or `--preload` it."),
    ):
        share = _share(report, cause)
        least = LITTLE if cause in ("detection", "idle") else 0.05
        if share >= least and report["wall_s"] > 600:
            name = cause.replace("_", " ")
            yield Advice(do, f"{words.percent(share)} of the time was {name}.")


def _planned(view: RunView, report: Facts) -> Iterator[Advice]:
    """Yield what the planner would choose for a run that fails as often as this one did."""
    if len(report["interruptions"]) < FEWEST_FOR_RATES or not report["calls_outlast"]:
        return
    if len(report["interruptions"]) > MOST_FOR_A_GLANCE or report["world_size"] > RANKS_MOST:
        yield Advice("Ask the planner: `outlast plan --ledger RUN`.", "It takes some seconds.")
        return
    scenario = _scenario(view)
    if scenario is None:
        return
    tiers = ", ".join(
        f"{tier.name} each step"
        if scenario.interval_steps(tier) == 1
        else f"{tier.name} every {words.long_duration(scenario.interval_s(tier))}"
        for tier in scenario.tiers
        if tier.name != LIVE
    )
    saves = f"save to {tiers}" if tiers else "save as this run did"
    spares = words.count(scenario.repair.spare_nodes, "spare node")
    yield Advice(
        f"The planner would {saves}, and keep {spares}.",
        "It takes its rates from this run alone. `outlast plan --ledger RUN --optimise"
        " interval,spares` searches, and says how sure that is.",
    )


def _scenario(view: RunView) -> Scenario | None:
    try:
        record = observe(view.records, now_s=view.now_s, source=view.path.name)
        fitted = calibrate(
            [record],
            phases=phases_of([view.records]),
            booked=[booked(view.records, now_s=view.now_s)],
        )
        return resolve(cluster_of(fitted, name=view.path.name)).scenario
    except OutlastError:  # no step was committed, or too little is known for a plan
        return None
