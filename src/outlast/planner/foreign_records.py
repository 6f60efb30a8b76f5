"""Make the records of a run that outlast did not lead.

Wall-clock seconds take the place of monotonic ones, so all sessions share one time scale. Nothing
is known about steps: the seconds of a life are booked as "other", and the steps that an
interruption cost are UNSEEN_COUNT.

This module is pure: data in, data out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.errors import UsageError
from outlast.model.records import (
    UNSEEN_COUNT,
    Event,
    Interruption,
    Life,
    Meta,
    Records,
    Session,
    SessionRecords,
)
from outlast.model.terms import Cause, FailureClass, Mechanism

IMPORTED = "imported"  # kind of the event that says where the records come from
UNITS_MAX_COUNT = 1_000_000  # number of ranks, or of units in a table


@dataclass(frozen=True, slots=True)
class ForeignLife:
    """One rank, or one unit of a table, from its beginning to its end; `name` names its node."""

    rank: int
    name: str
    from_s: float
    to_s: float
    end: str = ""


@dataclass(frozen=True, slots=True)
class ForeignFailure:
    """One failure. `resumed_s` is the time at which the job ran again; None if it did not.

    verdict   the result of a diagnosis (`Verdict.public`), if there was one
    """

    at_s: float
    mechanism: Mechanism
    failure_class: FailureClass = FailureClass.UNKNOWN
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    resumed_s: float | None = None
    reason: str = ""
    error: str = ""
    traceback: str = ""
    verdict: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class ForeignSession:
    """One start of a job, until its end. `state` is "ended", "failed" or "stopped"."""

    from_s: float
    to_s: float
    state: str
    lives: tuple[ForeignLife, ...]
    failures: tuple[ForeignFailure, ...] = ()
    exit_code: int | None = None
    reason: str = ""


def is_imported(records: Records) -> bool:
    """Return True if `outlast import` has made this ledger, so outlast did not lead the run."""
    return any(event.kind == IMPORTED for part in records.sessions for event in part.events)


def records_of(
    sessions: Sequence[ForeignSession],
    *,
    name: str,
    kind: str,
    source: str,
    unit: str,
    version: str,
) -> Records:
    """Return the records of the sessions, in the order of their times.

    kind   the kind of the source, such as "csv"
    unit   the unit that a rank stands for: "gpu", "node" or "rack"

    Raises UsageError if there is no session, or if there are more than UNITS_MAX_COUNT ranks.
    """
    ordered = sorted(sessions, key=lambda one: (one.from_s, one.to_s))
    if not ordered:
        raise UsageError(
            f"{source} does not say of any job when it ran", hint="perhaps the file was cut off"
        )
    size = 1 + max((life.rank for one in ordered for life in one.lives), default=0)
    if size > UNITS_MAX_COUNT:
        raise UsageError(f"{source}: {size:,} are more than {UNITS_MAX_COUNT:,} ranks")
    began_s = ordered[0].from_s
    meta = Meta(name, name, size, version, began_s, began_s)
    said = {"source": source, "kind": kind, "unit": unit}
    parts, worker, number = [], 0, 0
    for at, one in enumerate(ordered, 1):
        events = [Event(one.from_s, one.from_s, IMPORTED, said)]
        interruptions = []
        for failure in sorted(one.failures, key=lambda each: each.at_s):
            number += 1
            interruptions.append(_interruption(number, failure, one))
            if failure.verdict is not None:
                data = {"interruption": number, "verdict": failure.verdict}
                events.append(Event(failure.at_s, failure.at_s, "verdict", data))
        lives = []
        for life in one.lives:
            worker += 1
            lives.append(_life(worker, life))
        session = Session(
            at, 0, one.from_s, one.from_s, one.to_s, one.to_s, one.state, one.exit_code, one.reason
        )
        parts.append(
            SessionRecords(
                session,
                began_s,
                lives=tuple(lives),
                interruptions=tuple(interruptions),
                events=tuple(events),
            )
        )
    return Records(meta, tuple(parts))


def _life(worker: int, life: ForeignLife) -> Life:
    seconds = {Cause.OTHER: life.to_s - life.from_s}
    return Life(
        worker,
        0,
        life.name,
        life.rank,
        "rank",
        life.from_s,
        life.from_s,
        life.to_s,
        seconds,
        Cause.OTHER,
        life.end,
    )


def _interruption(number: int, failure: ForeignFailure, session: ForeignSession) -> Interruption:
    at_s = min(max(failure.at_s, session.from_s), session.to_s)
    return Interruption(
        number,
        failure.mechanism,
        at_s,
        failure_class=failure.failure_class,
        ranks=failure.ranks,
        nodes=failure.nodes,
        fault_s=at_s,
        resumed_s=failure.resumed_s,
        steps_repeated=UNSEEN_COUNT,
        steps_lost=UNSEEN_COUNT,
        reason=failure.reason,
        error=failure.error,
        traceback=failure.traceback,
    )
