"""Read the rows of a damaged ledger that can still be read, and report what is missing.

If a page of the file cannot be read, the rows on it are lost. Rows are read by their number, so
damaged indices do no harm. After a page that cannot be read, the reader looks for the next readable
row. A row whose values make no record is left out as well.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from outlast.errors import CorruptError
from outlast.model.records import Event, Generation, Interruption, Life, Meta, Session, StepsBucket
from outlast.runtime.ledger.rows import from_row

_WHAT = {
    "meta": "the run's name",
    "sessions": "sessions",
    "generations": "generations",
    "lives": "lives of processes",
    "interruptions": "interruptions",
    "steps": "rows of steps",
    "events": "events",
}
_ORDER: dict[type, Callable[[Any], Any]] = {
    Meta: lambda one: 0,
    Session: lambda one: one.session,
    Generation: lambda one: one.generation,
    Life: lambda one: (one.assigned_s, one.worker),
    Interruption: lambda one: one.id,
    StepsBucket: lambda one: one.to_step,
    Event: lambda one: 0,  # in the order in which they were added
}
_FURTHEST = 1 << 62


class Salvage:
    """The readable rows of a ledger, by table and session.

    missing   for each table that is not whole, what it lacks
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.missing: dict[str, str] = {}
        self._connection = connection
        self._tables: dict[str, list[tuple[int | None, Any]]] = {}

    def rows(self, table: str, kind: type, session: int | None) -> list[Any]:
        """Return the records of a table that can be read, for one session or for all."""
        if table not in self._tables:
            self._tables[table] = self._read(table, kind)
        found = [one for of, one in self._tables[table] if session is None or of == session]
        return sorted(found, key=_ORDER[kind])

    def _read(self, table: str, kind: type) -> list[tuple[int | None, Any]]:
        out: list[tuple[int | None, Any]] = []
        bad_rows, holes = 0, 0
        for row in self._raw(table):
            if row is None:
                holes += 1
                continue
            try:
                of = row["session"] if "session" in row.keys() else None  # noqa: SIM118 - a Row
                out.append((of, from_row(kind, row)))
            except CorruptError:
                bad_rows += 1
        if holes or bad_rows:
            lost = f"{bad_rows:,} that make no sense" if bad_rows else ""
            pages = "those on pages that cannot be read" if holes else ""
            without = " and ".join(part for part in (pages, lost) if part)
            self.missing[table] = f"{_WHAT[table]}: {len(out):,} were read, without {without}"
        return out

    def _raw(self, table: str) -> Iterator[sqlite3.Row | None]:
        """Yield the rows of a table by number, and None for a stretch that cannot be read."""
        after, skip = -1, 1
        while after < _FURTHEST:
            before = after
            try:
                for row in self._connection.execute(
                    f"SELECT rowid AS number, * FROM {table} WHERE rowid > ? ORDER BY rowid",
                    (after,),
                ):
                    yield row
                    after, skip = row["number"], 1
                return
            except sqlite3.DatabaseError:
                if after > before or skip == 1:
                    yield None
                after, skip = after + skip, 2 * skip
