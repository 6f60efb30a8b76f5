"""The ledger of a run as flat tables, for programs and spreadsheets.

A table of the ledger becomes a table here, with the same columns. These differ:

    moments      count from the start of the run in seconds, as in `outlast report --json`; a row's
                 first moment is also there as `at`, in UTC (ISO 8601)
    run, session are in every row, so that the tables of several runs can be put together
    seconds      of a life, by cause, become one column for each cause: `seconds_productive`
    class        of an interruption is that of its verdict, where the ledger says none

This module is pure: records in, rows out.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from enum import Enum

from outlast.app.reports.failure_classes import classes_of
from outlast.model.records import Event, Interruption, Life, Records, SessionRecords
from outlast.model.terms import CAUSES

Value = None | bool | int | float | str | list[int] | list[str] | dict[str, object]
Row = dict[str, Value]

# the fields that are moments of the session's clock
_MOMENTS = {
    "started_s",
    "seen_s",
    "ended_s",
    "began_s",
    "assigned_s",
    "opened_s",
    "from_s",
    "to_s",
    "at_s",
    "detected_s",
    "fault_s",
    "fault_not_before_s",
    "left_s",
    "regrouped_s",
    "restored_s",
    "resumed_s",
}
# by table: the moment by which its rows are dated
_FIRST = {
    "sessions": "started_s",
    "generations": "began_s",
    "lives": "assigned_s",
    "steps": "from_s",
    "interruptions": "detected_s",
    "events": "at_s",
}
TABLES = tuple(_FIRST)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a cell that begins so for one


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that all have the same columns, in the same order."""

    name: str
    columns: tuple[str, ...]
    rows: list[Row]


def tables_of(records: Records) -> list[Table]:
    """Return all tables of a run, those without a row included."""
    return [_table(name, records) for name in TABLES]


def _table(name: str, records: Records) -> Table:
    rows: list[Row] = []
    columns: tuple[str, ...] = ()
    for part in records.sessions:
        classes = classes_of(part) if name == "interruptions" else {}
        for record in _records_of(name, part):
            row = _row(name, record, part, records)
            if isinstance(record, Interruption):
                row["failure_class"] = classes[record.id].value
            columns = columns or tuple(row)
            rows.append(row)
    return Table(name, columns or ("run", "session", "at"), rows)


def _records_of(name: str, part: SessionRecords) -> Iterable[object]:
    if name == "sessions":
        return [part.session]
    return {
        "generations": part.generations,
        "lives": part.lives,
        "steps": part.steps,
        "interruptions": part.interruptions,
        "events": part.events,
    }[name]


def _row(name: str, record: object, part: SessionRecords, records: Records) -> Row:
    """Return a record as a row: its run, its first moment in UTC, and its fields."""
    fields: dict[str, object] = asdict(record)  # type: ignore[call-overload]  # all are dataclasses
    first_s = float(fields[_FIRST[name]])  # type: ignore[arg-type]  # it is a moment
    wall_s = part.session.started_wall_s + (first_s - part.session.started_s)
    if isinstance(record, Event) and record.wall_s > 0:
        wall_s = record.wall_s
    row: Row = {"run": records.meta.run, "session": part.session.session, "at": _iso(wall_s)}
    if isinstance(record, Life):
        fields.pop("seconds")
        fields |= {f"seconds_{one.value}": record.seconds.get(one, 0.0) for one in CAUSES}
    for key, value in fields.items():
        if key != "session":
            moment = key in _MOMENTS and isinstance(value, int | float)
            row[key] = round(value - part.began_s, 6) if moment else _plain(value)  # type: ignore[operator]
    return row


def _iso(wall_s: float) -> str | None:
    """Write a moment in UTC; None if the calendar has no such moment."""
    try:
        moment = datetime.fromtimestamp(wall_s, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> Value:
    """Return the value of a field as CSV, JSON and Parquet can take it."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value  # type: ignore[return-value]  # the fields of a record hold nothing else


# --- formats --------------------------------------------------------------------------------------


def csv_of(table: Table) -> str:
    """Return a table as CSV. Lists and objects are JSON.

    A text that a spreadsheet would take for a formula begins with an apostrophe: the message of an
    exception may be anything.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([_cell(row[name]) for name in table.columns])
    return out.getvalue()


def _cell(value: Value) -> object:
    """Return a value as a cell of CSV."""
    if isinstance(value, list | dict):
        return json.dumps(value, default=str)
    if isinstance(value, str):
        text = value.replace("\0", "")
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value


def json_lines_of(table: Table) -> str:
    """Return a table as JSON lines: an object a line."""
    return "".join(json.dumps(_strict(row), default=str) + "\n" for row in table.rows)


def _strict(value: object) -> object:
    """Return the value with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _strict(one) for key, one in value.items()}
    return [_strict(one) for one in value] if isinstance(value, list | tuple) else value


def columns_of(table: Table) -> dict[str, Sequence[object]]:
    """Return a table by columns, for Parquet. Objects are JSON, as their keys differ by row."""
    return {
        name: [
            json.dumps(_strict(row[name]), default=str)
            if isinstance(row[name], dict)
            else row[name]
            for row in table.rows
        ]
        for name in table.columns
    }
