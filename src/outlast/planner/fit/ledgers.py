"""Read a ledger as exposure and failures, with the seconds that it booked.

Units      Times are in seconds. Exposure counts only training: from the start of the launcher to
           its end, without startup and shutdown, as in `ettr_training`.
Failures   Each interruption is one failure, also an interruption during a recovery.
Class      It is the ledger's. If that is unknown, it is the verdict's, if the verdict's confidence
           is at least USED_FROM.
Extent     It is the node if the mechanism says so. It is the run if the run ended with it, or if
           the launcher vanished. Otherwise it is the process.
Limits     A session without a committed step is left out, because it failed at its start. A ledger
           has no racks, no repairs and no number of saves.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from outlast.errors import UsageError
from outlast.model.goodput import account
from outlast.model.records import Interruption, Records, SessionRecords
from outlast.model.terms import TAKEN_BY_INTERRUPTIONS, Cause, FailureClass, Mechanism, Rung
from outlast.model.verdict_classes import class_of, sure_verdicts
from outlast.planner.fit.observed import EXTENT_OF, Observed, ObservedFailure
from outlast.planner.foreign_records import IMPORTED, is_imported
from outlast.planner.scenario import Extent, Unit

NO_TRAINING = (Cause.STARTUP, Cause.SHUTDOWN)
STEADY = (Cause.DATA_WAIT, Cause.STALL, Cause.EVALUATION, Cause.OTHER)
LOST_TO_FAILURES = TAKEN_BY_INTERRUPTIONS


@dataclass(frozen=True, slots=True)
class BookedSeconds:
    """The rank-seconds of training in one ledger, by cause, and the number of interruptions.

    `ranks` is the number of ranks that were asked for. If it differed between sessions, it is the
    mean over time.
    """

    ranks: float
    seconds: Mapping[Cause, float]
    interruptions: int
    ettr_training: float

    @property
    def training_s(self) -> float:
        """Return the seconds of training: rank-seconds without startup and shutdown, per rank."""
        return (
            math.fsum(value for cause, value in self.seconds.items() if cause not in NO_TRAINING)
            / self.ranks
        )

    @property
    def steady_s(self) -> dict[Cause, float]:
        """Return the seconds of the run that were not productive, and that no failure took.

        `ettr_training` counts all of them as lost. The ETTR of a plan counts only stalls.
        """
        return {cause: self.seconds[cause] / self.ranks for cause in STEADY}

    @property
    def lost_per_interruption_s(self) -> float | None:
        """Return the seconds that one interruption cost on average; None if there was none.

        They are those that the ledger attributes to interruptions, such as detection and regroup.
        """
        lost_s = math.fsum(self.seconds[cause] for cause in LOST_TO_FAILURES) / self.ranks
        return lost_s / self.interruptions if self.interruptions else None


def booked(records: Records, *, now_s: float | None) -> BookedSeconds:
    """Return the seconds that the run has booked. `now_s` is as in `account`."""
    books = account(records, now_s=now_s)
    roots = sum(one.parent is None for one, _ in records.unique_interruptions())
    return BookedSeconds(books.mean_ranks, books.rank_seconds, roots, books.ettr_training)


def observe(records: Records, *, now_s: float | None, source: str) -> Observed:
    """Return what this ledger observed. `now_s` is as in `account`.

    Raises UsageError if no step was ever committed, because then no training was watched.
    """
    if is_imported(records):
        return _observe_imported(records, source)
    trained = tuple(part for part in records.sessions if part.steps)
    if not trained:
        what = "has no committed step: there was no training in which a failure could be seen"
        raise UsageError(f"{source} {what}", hint="calibrate from a run that has trained")
    records_trained = replace(records, sessions=trained)
    alive = now_s is not None and bool(records.sessions[-1].steps)
    books = booked(records_trained, now_s=now_s if alive else None)
    if books.training_s <= 0:
        raise UsageError(
            f"{source} has not booked any training yet",
            hint="wait until some steps are committed",
        )
    nodes = _nodes(trained)
    exposure_s = {
        Unit.GPU: books.training_s * books.ranks,
        Unit.NODE: books.training_s * nodes,
        Unit.RUN: books.training_s,
    }
    failures, span_s = _failures(trained, alive=alive, now_s=now_s)
    limits = []
    if unknown := sum(one.failure_class is FailureClass.UNKNOWN for one in failures):
        limits.append(
            f"why {unknown:,} of {len(failures):,} failures came: `outlast diagnose` on their"
            " evidence may tell more"
        )
    if left_out := len(records.sessions) - len(trained):
        limits.append(
            f"what a start costs: {left_out} of {len(records.sessions)} sessions never committed a"
            " step, and are left out"
        )
    units = {Unit.GPU: float(books.ranks), Unit.NODE: nodes, Unit.RUN: 1.0}
    return Observed(
        source,
        failures,
        exposure_s,
        span_s,
        units=units,
        limits=tuple(limits),
        assumptions=("a rank is a GPU",),
    )


def _observe_imported(records: Records, source: str) -> Observed:
    """Return what an imported ledger observed. All of its time counts, because it has no steps."""
    said = next(
        event.data for part in records.sessions for event in part.events if event.kind == IMPORTED
    )
    units = {one.name.lower(): one for one in (Unit.GPU, Unit.NODE, Unit.RACK)}
    unit = units.get(str(said.get("unit")), Unit.GPU)
    is_table = said.get("kind") == "csv"
    found: list[ObservedFailure] = []
    rank_s = node_s = wall_s = before_s = 0.0
    for part in records.sessions:
        session = part.session
        verdicts = sure_verdicts(part.events)
        lives = [(life, (life.ended_s or session.over_s) - life.assigned_s) for life in part.lives]
        rank_s += math.fsum(lasted_s for _, lasted_s in lives)
        wall_s += session.over_s - session.started_s
        node_s += (session.over_s - session.started_s) * len({life.node for life, _ in lives})
        for one in part.interruptions:
            failure_class = class_of(one, verdicts)
            extent = EXTENT_OF[failure_class] if is_table else _extent(one, goes_on=False)
            who = ",".join(one.nodes if is_table else map(str, one.ranks))
            at_s = before_s + _at_s(one) - session.started_s
            found.append(ObservedFailure(at_s, failure_class, extent, who))
        before_s += session.over_s - session.started_s
    if rank_s <= 0:
        raise UsageError(f"{source} does not say how long anything was watched")
    exposure_s = {unit: rank_s}
    if not is_table:
        exposure_s = {Unit.NODE: node_s, **exposure_s, Unit.RUN: wall_s}
    return Observed(
        source,
        tuple(sorted(found, key=lambda one: one.at_s)),
        exposure_s,
        wall_s,
        units={one: seconds / wall_s for one, seconds in exposure_s.items()},
        limits=("how long recoveries take, and what a step costs: steps were not seen",),
        assumptions=(f"all of the time counts as watched; imported from {said.get('source')}",),
    )


def _nodes(sessions: Iterable[SessionRecords]) -> float:
    """Return the number of nodes that had ranks, as the mean over generations."""
    counts: list[int] = []
    for part in sessions:
        where = {(life.worker, life.rank): life.node for life in part.lives if life.rank >= 0}
        for generation in part.generations:
            at = {
                where[worker, rank]
                for rank, worker in enumerate(generation.members)
                if (worker, rank) in where
            }
            counts += [len(at)] if at else []
    return statistics.fmean(counts) if counts else 1.0


def _failures(
    sessions: Iterable[SessionRecords], *, alive: bool, now_s: float | None
) -> tuple[tuple[ObservedFailure, ...], float]:
    """Return the failures, with times that leave out the gaps between sessions, and the length."""
    found: list[ObservedFailure] = []
    before_s = 0.0
    parts = list(sessions)
    for index, part in enumerate(parts):
        verdicts = sure_verdicts(part.events)
        goes_on = alive and index == len(parts) - 1
        over_s = now_s if goes_on and now_s is not None else part.session.over_s
        for one in part.interruptions:
            at_s = (
                before_s
                + min(max(_at_s(one), part.session.started_s), over_s)
                - part.session.started_s
            )
            found.append(
                ObservedFailure(
                    at_s,
                    class_of(one, verdicts),
                    _extent(one, goes_on=goes_on),
                    ",".join(map(str, one.ranks)),
                )
            )
        before_s += over_s - part.session.started_s
        if part.session.ended_s is None and not goes_on:
            found.append(ObservedFailure(before_s, FailureClass.UNKNOWN, Extent.RUN, "launcher"))
    return tuple(sorted(found, key=lambda one: one.at_s)), before_s


def _at_s(one: Interruption) -> float:
    return one.detected_s if one.fault_s is None else one.fault_s


def _extent(one: Interruption, *, goes_on: bool) -> Extent:
    if one.rung is Rung.STOP or (one.resumed_s is None and not goes_on):
        return Extent.RUN
    return Extent.NODE if one.mechanism is Mechanism.LOST_NODE else Extent.PROCESS
