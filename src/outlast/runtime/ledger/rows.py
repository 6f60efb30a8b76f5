"""Convert records to SQLite rows and back: a table per record type, a column per field.

Whole numbers, reals and texts are columns of their own, so that anyone can query them. Tuples and
mappings are JSON text. Text that is not valid Unicode (a path, a traceback) is kept, with `?` in
place of what cannot be encoded.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sqlite3
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from outlast.errors import CorruptError
from outlast.model.records import (
    Event,
    Generation,
    Interruption,
    Life,
    Meta,
    Record,
    Session,
    StepsBucket,
)
from outlast.model.terms import Cause, Tier

KEYS: dict[type, tuple[str, ...]] = {
    Generation: ("session", "generation"),
    Life: ("session", "worker", "rank"),
    Interruption: ("session", "id"),
    StepsBucket: (),
    Event: (),
}
"""What makes a later record replace an earlier one; without a key it is added."""

TABLES: dict[type, str] = {
    Generation: "generations",
    Life: "lives",
    Interruption: "interruptions",
    StepsBucket: "steps",
    Event: "events",
}

Sql = int | float | str | None

_FIELDS: dict[type, dict[str, Any]] = {}
_READERS: dict[type, dict[str, Callable[[Any], Any]]] = {}


def schema() -> str:
    """Return the whole schema as one script.

    Rows that were added are kept: events and steps cannot be changed, and nothing can be deleted,
    except buckets of steps that were merged into one.
    """
    lines = [
        _table("meta", Meta, (), extra=()),
        _table("sessions", Session, ("session",), extra=()),
    ]
    lines += [
        _table(TABLES[kind], kind, KEYS[kind], extra=("session INTEGER NOT NULL",))
        for kind in TABLES
    ]
    lines.append(
        "CREATE TABLE snapshot (only INTEGER PRIMARY KEY CHECK (only = 1), json TEXT NOT NULL);"
    )
    for kind, table in TABLES.items():
        lines.append(_STEPS_STAY if kind is StepsBucket else _stay(table))
    for kind in (StepsBucket, Event):
        lines.append(
            f"CREATE TRIGGER {TABLES[kind]}_fixed BEFORE UPDATE ON {TABLES[kind]} BEGIN SELECT"
            " RAISE(ABORT, 'the ledger only grows'); END;"
        )
    return "\n".join(lines)


def upgrade(version: int) -> str:
    """Return the script that brings a ledger of an older version up to date."""
    script = ""
    if version < 2:
        script += (
            "ALTER TABLE lives ADD COLUMN stalls TEXT NOT NULL DEFAULT '{}';"
            " ALTER TABLE interruptions ADD COLUMN tier TEXT;"
            f" DROP TRIGGER steps_stay; {_STEPS_STAY}"
        )
    if version < 3:
        script += "ALTER TABLE steps ADD COLUMN logged TEXT NOT NULL DEFAULT '{}';"
    if version < 4:
        script += "ALTER TABLE sessions ADD COLUMN world_size INTEGER NOT NULL DEFAULT 0;"
    return script


def _stay(table: str, *, but: str = "") -> str:
    return (
        f"CREATE TRIGGER {table}_stay BEFORE DELETE ON {table}{but} BEGIN SELECT RAISE(ABORT, 'the"
        " ledger only grows'); END;"
    )


# Buckets of steps may be replaced by the newest one, if that covers them.
_STEPS_STAY = _stay(
    "steps",
    but=" WHEN NOT EXISTS (SELECT 1 FROM steps AS new WHERE new.rowid = (SELECT max(rowid) FROM"
    " steps) AND new.rowid > old.rowid AND new.session = old.session AND new.from_step <="
    " old.from_step AND new.to_step >= old.to_step AND new.from_s <= old.from_s AND new.to_s >="
    " old.to_s)",
)


def put_sql(table: str, kind: type, *, keyed: tuple[str, ...], with_session: bool) -> str:
    """Return the INSERT, or for a record with a key the INSERT ... ON CONFLICT DO UPDATE.

    Its parameters are named.
    """
    names = [*(("session",) if with_session else ()), *_fields(kind)]
    sql = (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES"
        f" ({', '.join(':' + name for name in names)})"
    )
    if keyed:
        sql += (
            f" ON CONFLICT ({', '.join(keyed)}) DO UPDATE SET"
            f" {', '.join(f'{name} = excluded.{name}' for name in names if name not in keyed)}"
        )
    return sql


def to_row(record: Record | Meta | Session) -> dict[str, Sql]:
    return {name: _to_sql(getattr(record, name)) for name in _fields(type(record))}


def from_row(kind: type, row: sqlite3.Row) -> Any:
    """Return the record of a row. Raises CorruptError if a column holds what the field cannot."""
    readers = _readers(kind)
    try:
        try:
            return kind(**{name: read(row[name]) for name, read in readers.items()})
        except IndexError:  # an older ledger lacks columns; their fields have defaults
            there = row.keys()
            return kind(
                **{name: read(row[name]) for name, read in readers.items() if name in there}
            )
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise CorruptError(
            f"the ledger holds a {kind.__name__} that cannot be read: {error}",
            hint="the file was damaged or changed; restore it, or start a new run",
        ) from None


def _table(table: str, kind: type, keyed: tuple[str, ...], *, extra: tuple[str, ...]) -> str:
    columns = [*extra, *(f"{name} {_column(hint)}" for name, hint in _fields(kind).items())]
    if keyed:
        columns.append(f"PRIMARY KEY ({', '.join(keyed)})")
    return f"CREATE TABLE {table} ({', '.join(columns)});"


def _fields(kind: type) -> dict[str, Any]:
    if kind not in _FIELDS:
        hints = typing.get_type_hints(kind)
        _FIELDS[kind] = {one.name: hints[one.name] for one in dataclasses.fields(kind)}
    return _FIELDS[kind]


def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    if kind not in _READERS:
        _READERS[kind] = {name: _reader(hint) for name, hint in _fields(kind).items()}
    return _READERS[kind]


def _required(hint: Any) -> tuple[Any, bool]:
    """Return the type without `| None`, and whether None was part of it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(arg for arg in typing.get_args(hint) if arg is not type(None)), True
    return hint, False


def _column(hint: Any) -> str:
    inner, optional = _required(hint)
    name = {int: "INTEGER", float: "REAL"}.get(inner, "TEXT")
    return name if optional else f"{name} NOT NULL"


def _to_sql(value: Any) -> Sql:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return json.dumps(
            {key.value if isinstance(key, Enum) else key: item for key, item in value.items()},
            default=str,
        )
    if isinstance(value, tuple):
        return json.dumps(value)
    return typing.cast(Sql, value)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no finite number")
    return number


def _whole(value: Any) -> int:
    number = int(value)
    if number != value and str(number) != value:
        raise ValueError(f"{value!r} is no whole number")
    return number


_SCALARS: dict[Any, Callable[[Any], Any]] = {float: _finite, int: _whole}


def _read_tuple(hint: Any) -> Callable[[str], tuple[Any, ...]]:
    of = typing.get_args(hint)[0]
    read = _SCALARS.get(of, str)

    # Thousands of interruptions name the same few ranks and nodes.
    @functools.lru_cache(maxsize=1024)
    def read_tuple(text: str) -> tuple[Any, ...]:
        return tuple(read(one) for one in json.loads(text))

    return read_tuple


def _read_seconds(of: type[Cause] | type[Tier]) -> Callable[[str], dict[Any, float]]:
    members = {one.value: one for one in of}

    # a torn beacon may contain any number, so the accounts limit it to what is possible
    def read_seconds(text: str) -> dict[Any, float]:
        return {members[key]: float(item) for key, item in _read_object(text).items()}

    return read_seconds


def _read_numbers(text: str) -> dict[str, float]:
    return {name: _finite(value) for name, value in _read_object(text).items()}


def _read_object(text: str) -> dict[str, Any]:
    if text == "{}":  # most are empty
        return {}
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _reader(hint: Any) -> Callable[[Any], Any]:
    inner, optional = _required(hint)
    origin = typing.get_origin(inner)
    if origin is tuple:
        read: Callable[[Any], Any] = _read_tuple(inner)
    elif origin is not None and issubclass(origin, Mapping):
        of, what = typing.get_args(inner)
        if of in (Cause, Tier):
            read = _read_seconds(of)
        else:
            read = _read_numbers if what is float else _read_object
    else:
        read = _SCALARS.get(inner, inner)
    return (lambda value: None if value is None else read(value)) if optional else read


PUT: dict[type, str] = {
    kind: put_sql(TABLES[kind], kind, keyed=KEYS[kind], with_session=True) for kind in TABLES
}
