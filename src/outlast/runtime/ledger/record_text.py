"""Records of the ledger as texts, for the copies that other nodes keep.

    record     ["Life", SESSION, {column: value, ...}]
    ledger     a text for Meta, then for each session one for itself and those of its records

A copy uses the clock of the node that keeps it, because a coordinator there may go on writing it.
So `moved` adds the difference of the two clocks to all times of a record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from outlast.errors import CorruptError
from outlast.model.records import (
    LEADS,
    Event,
    Generation,
    Interruption,
    Life,
    Meta,
    Record,
    Records,
    Session,
    SessionRecords,
    StepsBucket,
    began_on_each_clock,
)
from outlast.runtime.ledger.rows import from_row, to_row

Written = Record | Meta | Session
_TIMES: dict[type, tuple[str, ...]] = {
    Meta: ("started_s",),
    Session: ("started_s", "seen_s", "ended_s"),
    Generation: ("began_s",),
    Life: ("assigned_s", "opened_s", "ended_s"),
    Interruption: (
        "detected_s",
        "fault_s",
        "fault_not_before_s",
        "left_s",
        "regrouped_s",
        "restored_s",
        "resumed_s",
    ),
    StepsBucket: ("from_s", "to_s"),
    Event: ("at_s",),
}
_KINDS = {kind.__name__: kind for kind in _TIMES}


def write(record: Written, session: int = 0) -> str:
    """Return a record as text. `session`: the session it belongs to, if there are several."""
    return json.dumps([type(record).__name__, session, to_row(record)])


def read(text: str) -> tuple[Any, int]:
    """Return the record of a text, and its session. Raises CorruptError."""
    try:
        name, session, row = json.loads(text)
        kind = _KINDS[name]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise CorruptError("a copy of a record that cannot be read") from None
    return from_row(kind, row), int(session)


def ends_voting(text: str) -> bool:
    """Return whether this record says that the run has no voters any more."""
    if LEADS not in text:
        return False
    record, _ = read(text)
    return isinstance(record, Event) and record.kind == LEADS and not record.data["voters"]


def moved(record: Any, by_s: float) -> Any:
    """Return the record with its times converted to another clock."""
    times = {name: getattr(record, name) for name in _TIMES[type(record)]}
    return replace(
        record, **{name: at_s + by_s for name, at_s in times.items() if at_s is not None}
    )


def write_all(records: Records) -> Iterator[str]:
    """Yield a whole ledger as texts."""
    yield write(records.meta)
    for part in records.sessions:
        number = part.session.session
        yield write(part.session, number)
        rows: tuple[Record, ...] = (
            *part.generations,
            *part.lives,
            *part.interruptions,
            *part.steps,
            *part.events,
        )
        for record in rows:
            yield write(record, number)


def read_all(texts: Iterable[str], *, by_s: float) -> Records:
    """Return the ledger of these texts. The times of its last session are moved by `by_s`.

    Earlier sessions have clocks of their own. Raises CorruptError.
    """
    read_in = [read(text) for text in texts]
    metas = [one for one, _ in read_in if isinstance(one, Meta)]
    sessions = [one for one, _ in read_in if isinstance(one, Session)]
    if len(metas) != 1 or not sessions:
        raise CorruptError("a copy of a ledger that tells of no run")
    last = sessions[-1].session

    def of(kind: type, number: int) -> tuple[Any, ...]:
        return tuple(
            moved(one, by_s) if number == last else one
            for one, session in read_in
            if isinstance(one, kind) and session == number
        )

    sessions = [moved(one, by_s) if one.session == last else one for one in sessions]
    parts = tuple(
        SessionRecords(
            one,
            began_s,
            of(Generation, one.session),
            of(Life, one.session),
            of(Interruption, one.session),
            of(StepsBucket, one.session),
            of(Event, one.session),
        )
        for one, began_s in zip(sessions, began_on_each_clock(sessions), strict=True)
    )
    meta = moved(metas[0], by_s) if len(sessions) == 1 else metas[0]
    return Records(meta, parts)
