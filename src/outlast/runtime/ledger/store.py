"""The ledger: one SQLite file in the run's folder.

The launcher writes it, and any process may read it at any time.

Later facts   An interruption or a life is written again, whole, when more of it is known, and
              replaces its row. So a reader can query each row as it stands, and one transaction
              moves it from one true state to the next. What happened in between is kept as events.
              Nothing is ever deleted; events and steps are never changed (triggers). But old
              buckets of steps give way to one that covers them (model/step_buckets.py).
Cost          `add` and `set_snapshot` only queue. `flush` writes all that is queued in one
              transaction, without waiting for the disk (WAL, synchronous=NORMAL): it belongs off
              the recovery path.
Safety        What was flushed survives a SIGKILL of the launcher; after a power loss the newest
              transactions may be missing, but the file is whole. A reader never blocks the writer.
              The run folder's lock makes sure that there is one writer.
Threads       `add` and `set_snapshot` may be called from one thread and `flush` from another.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlast.errors import CapacityError, CorruptError, OutlastError, RunFolderError
from outlast.model.limits import (
    LEDGER_MERGE_S,
    LEDGER_OLDEST_VERSION,
    LEDGER_QUEUE_MAX_COUNT,
    LEDGER_VERSION,
    RUN_RANKS_MAX_COUNT,
)
from outlast.model.records import (
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
from outlast.model.step_buckets import merged, to_merge
from outlast.runtime.ledger.files import BESIDE, is_copy, refuse_odd_files, write_ahead
from outlast.runtime.ledger.rows import (
    KEYS,
    PUT,
    TABLES,
    from_row,
    put_sql,
    schema,
    to_row,
    upgrade,
)
from outlast.runtime.ledger.salvage import Salvage

_BUSY_S = 2.0
_BUSY_AT_START_S = 10.0  # nothing trains yet that this could hold up, and the run ends if it fails
# records that are not written now stay queued for the next flush: a recovery does not wait for a
# lock
_BUSY_FLUSH_S = 0.02
_LOCKED_HINT = "wait until the program that has locked it has ended (`fuser FILE` names it)"


@dataclass(frozen=True, slots=True)
class Newest:
    """The highest numbers ever given. A launcher that goes on gives the next ones.

    If no number was given, the value is -1, and 0 for the step.
    """

    generation: int
    worker: int
    interruption: int
    step: int


class Ledger:
    """The ledger of one run.

    Use `create`, `resume` or `read_only`, and `close` when done. All errors are OutlastErrors.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, session: int) -> None:
        self.path = path
        self.session = session
        self.dropped_count = 0
        self._index_bytes = 0
        self._merged_s = -math.inf
        self._connection = connection
        self._queue: list[Record] = []
        self._snapshot: tuple[float, str] | None = None  # when it was taken, and its JSON text
        self._queueing = threading.Lock()
        self._writing = threading.Lock()

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, meta: Meta, *, pid: int, lasts: bool = True) -> Ledger:
        """Create a new ledger, and begin its first session at meta's start.

        lasts   True if the file must survive a power loss; only then do writes wait for the disk

        Raises RunFolderError if the file exists.
        """
        if path.exists():
            raise RunFolderError(
                f"{path} exists already", hint="go on with --resume, or choose another --run-dir"
            )
        ledger = cls(path, _connect(path, writable=True), session=1)
        with _as_our_errors(path):
            if not lasts:
                ledger._connection.execute("PRAGMA synchronous = OFF")
            write_ahead(ledger._connection, patience_s=_BUSY_AT_START_S)
            ledger._connection.executescript(
                f"BEGIN IMMEDIATE; {schema()} PRAGMA user_version = {LEDGER_VERSION}; COMMIT;"
            )
            ledger._put("meta", meta)
        started_s, size = meta.started_s, meta.world_size
        ledger._begin(
            Session(1, pid, started_s, meta.started_wall_s, seen_s=started_s, world_size=size)
        )
        return ledger

    @classmethod
    def resume(
        cls, path: Path, *, pid: int, started_s: float, started_wall_s: float, world_size: int = 0
    ) -> Ledger:
        """Open an existing ledger, and begin one more session.

        world_size   how many ranks the session asks for; 0: as many as the first session
        """
        connection = _checked(path, writable=True)
        with _as_our_errors(path):
            _upgrade(connection)
            last = connection.execute("SELECT max(session) FROM sessions").fetchone()[0]
        ledger = cls(path, connection, session=(last or 0) + 1)
        number = ledger.session
        ledger._begin(
            Session(number, pid, started_s, started_wall_s, seen_s=started_s, world_size=world_size)
        )
        return ledger

    @classmethod
    def copy_of(cls, path: Path, records: Records) -> Ledger:
        """Create a ledger with these records, in place of what is there, and go on with it.

        The new records are of its last session. It does not survive a power loss.
        """
        for name in (path, *(Path(f"{path}{ending}") for ending in BESIDE)):
            name.unlink(missing_ok=True)
        first, *later = [part.session for part in records.sessions]
        ledger = cls.create(path, records.meta, pid=first.pid, lasts=False)
        with _as_our_errors(path), ledger._connection:
            ledger._connection.execute("DELETE FROM sessions")
        for session in (first, *later):
            ledger._begin(session)
        for part in records.sessions:
            ledger.session = part.session.session
            ledger._queue = [
                *part.generations, *part.lives, *part.interruptions, *part.steps, *part.events
            ]  # fmt: skip  # with one argument per line, this would be hard to read
            ledger.flush(patience_s=_BUSY_S)
        return ledger

    def moved_to(self, path: Path, *, pid: int) -> Ledger:
        """Write everything to `path`, in place of what is there, and go on there. Closes this one.

        The last session is that of the launcher `pid` from now on.
        """
        self.flush(patience_s=_BUSY_S)
        there = _connect(path, writable=True)
        with self._writing, _as_our_errors(path):
            # The coordinator does this while agents wait for it, so it does not wait for the disk.
            there.execute("PRAGMA synchronous = OFF")
            self._connection.backup(there)
            write_ahead(there, patience_s=_BUSY_S)
            there.execute("PRAGMA synchronous = NORMAL")
        self.close()
        ledger = Ledger(path, there, self.session)
        ledger.taken_over(pid=pid)
        return ledger

    def taken_over(self, *, pid: int) -> None:
        """Note that the launcher `pid` goes on with the last session."""
        with self._writing, _as_our_errors(self.path), self._connection:
            self._connection.execute(
                "UPDATE sessions SET pid = ? WHERE session = ?", (pid, self.session)
            )

    @classmethod
    def read_only(cls, path: Path) -> Ledger:
        """Open the ledger for reading, while the run goes on or after it."""
        return cls(path, _checked(path, writable=False), session=0)

    # --- writing ----------------------------------------------------------------------------------

    def add(self, record: Record) -> None:
        """Queue a record.

        If more than LEDGER_QUEUE_MAX_COUNT are queued (because the disk is full, for example), the
        oldest are dropped, and counted.
        """
        with self._queueing:
            self._queue.append(record)
            if len(self._queue) > LEDGER_QUEUE_MAX_COUNT:
                self._shorten()

    def set_snapshot(self, snapshot: Mapping[str, object], *, now_s: float) -> None:
        """Set what `outlast status` shows after the next flush, and the session's sign of life."""
        text = json.dumps(snapshot, default=str)
        with self._queueing:
            self._snapshot = (now_s, text)

    def flush(self, *, patience_s: float = _BUSY_FLUSH_S) -> int:
        """Write everything that is queued, in one transaction. Return the number of records.

        If another process holds the file's lock, this waits `patience_s` for it. Raises
        CapacityError or OutlastError if that was too short or the disk refuses. What was queued
        then stays queued.
        """
        with self._writing:
            self._keep_index_whole()
            self._connection.execute(f"PRAGMA busy_timeout = {int(patience_s * 1000)}")
            with self._queueing:
                queue, self._queue = self._queue, []
                snapshot, self._snapshot = self._snapshot, None
            try:
                with _as_our_errors(self.path), self._connection:
                    self._write(queue, snapshot)
                    if snapshot is not None:
                        self._merge_steps(snapshot[0])
            except OutlastError:
                with self._queueing:
                    self._queue = queue + self._queue
                    if self._snapshot is None:
                        self._snapshot = snapshot
                raise
            return len(queue)

    def end_session(self, *, ended_s: float, state: str, exit_code: int, reason: str) -> None:
        """Flush, and record how this launcher ended: `state` is ended, failed or stopped."""
        self.flush(patience_s=_BUSY_S)
        with self._writing, _as_our_errors(self.path), self._connection:
            self._keep_index_whole()
            self._connection.execute(
                "UPDATE sessions SET seen_s = max(seen_s, ?), ended_s = ?, state = ?, exit_code ="
                " ?, reason = ? WHERE session = ?",
                (
                    ended_s,
                    ended_s,
                    state,
                    exit_code,
                    reason.encode("utf-8", "replace").decode(),
                    self.session,
                ),
            )

    def close(self) -> None:
        """Close without flushing. It may be called twice."""
        self._keep_index_whole()
        self._connection.close()

    # --- reading ----------------------------------------------------------------------------------

    def read(self) -> Records:
        """Return everything that is flushed, as of one moment."""
        with self._writing, _as_our_errors(self.path):
            self._connection.execute("BEGIN")
            try:
                return self._read()
            finally:
                self._connection.rollback()

    def salvage(self) -> Records:
        """Return what can be read of a damaged ledger; `missing` says what cannot.

        Raises CorruptError if too little is left to describe a run.
        """
        with self._writing, _as_our_errors(self.path):
            salvage = Salvage(self._connection)
            return replace(self._read(salvage), missing=salvage.missing)

    def snapshot(self) -> dict[str, object] | None:
        """Return the last flushed snapshot."""
        with self._writing, _as_our_errors(self.path):
            row = self._connection.execute("SELECT json FROM snapshot").fetchone()
        return None if row is None else _object(row[0])

    def newest(self) -> Newest:
        """Return the highest numbers that were given so far, over all sessions."""
        with self._writing, _as_our_errors(self.path):
            highest = [
                self._connection.execute(f"SELECT max({column}) FROM {table}").fetchone()[0]
                for column, table in (
                    ("generation", "generations"),
                    ("worker", "lives"),
                    ("id", "interruptions"),
                    ("to_step", "steps"),
                )
            ]
        generation, worker, interruption = (-1 if value is None else value for value in highest[:3])
        return Newest(generation, worker, interruption, step=highest[3] or 0)

    # --- internal functions -----------------------------------------------------------------------

    def _keep_index_whole(self) -> None:
        """Restore the length of the file ledger.db-shm, if it was cut short.

        SQLite maps that file, and a process that reads past the end of a mapped file dies of
        SIGBUS. SQLite sees from its checksum that the content of the file is gone, and creates it
        again. A cut in the microseconds that a transaction takes is not covered.
        """
        with contextlib.suppress(OSError):
            index = f"{self.path}-shm"
            size_bytes = os.stat(index).st_size
            if size_bytes < self._index_bytes:
                os.truncate(index, self._index_bytes)
            self._index_bytes = max(size_bytes, self._index_bytes)

    def _begin(self, session: Session) -> None:
        with _as_our_errors(self.path), self._connection:
            self._put("sessions", session)

    def _put(self, table: str, record: Meta | Session) -> None:
        self._connection.execute(
            put_sql(table, type(record), keyed=(), with_session=False), to_row(record)
        )
        self._connection.commit()

    def _write(self, queue: Iterable[Record], snapshot: tuple[float, str] | None) -> None:
        for record in queue:
            self._connection.execute(PUT[type(record)], {"session": self.session, **to_row(record)})
        if snapshot is not None:
            self._connection.execute(
                "INSERT INTO snapshot (only, json) VALUES (1, ?) ON CONFLICT (only) DO UPDATE SET"
                " json = excluded.json",
                (snapshot[1],),
            )
            self._connection.execute(
                "UPDATE sessions SET seen_s = max(seen_s, ?) WHERE session = ?",
                (snapshot[0], self.session),
            )

    def _merge_steps(self, now_s: float) -> None:
        """Merge old buckets of steps of this session, once a minute."""
        if now_s < self._merged_s + LEDGER_MERGE_S:
            return
        self._merged_s = now_s
        rows = self._connection.execute(
            "SELECT rowid AS at, * FROM steps WHERE session = ? ORDER BY to_step, rowid",
            (self.session,),
        ).fetchall()
        buckets = [from_row(StepsBucket, row) for row in rows]
        for begin, end in list(to_merge(buckets, now_s=now_s)):
            self._connection.execute(
                PUT[StepsBucket], {"session": self.session, **to_row(merged(buckets[begin:end]))}
            )
            self._connection.executemany(
                "DELETE FROM steps WHERE rowid = ?", [(row["at"],) for row in rows[begin:end]]
            )

    def _shorten(self) -> None:
        newest: dict[object, Record] = {}
        for index, record in enumerate(self._queue):
            key = tuple(getattr(record, name) for name in KEYS[type(record)] if name != "session")
            newest[(type(record), key or index)] = record
        kept = list(newest.values())
        self.dropped_count += max(0, len(kept) - LEDGER_QUEUE_MAX_COUNT // 2)
        self._queue = kept[-(LEDGER_QUEUE_MAX_COUNT // 2) :]

    def _read(self, salvage: Salvage | None = None) -> Records:
        meta = self._rows(salvage, "meta", Meta, "")
        sessions = self._rows(salvage, "sessions", Session, "ORDER BY session")
        if len(meta) != 1 or not sessions:
            raise CorruptError(
                f"{self.path} holds no run",
                hint="the launcher was killed while it made the file; start the run again",
            )
        sizes = (meta[0].world_size, *(one.world_size for one in sessions if one.world_size))
        if wrong := [size for size in sizes if not 0 < size <= RUN_RANKS_MAX_COUNT]:
            raise CorruptError(
                f"{self.path} tells of {wrong[0]:,} ranks; at most {RUN_RANKS_MAX_COUNT:,} can be",
                hint="the file was damaged or replaced; restore it, or start a new run",
            )
        parts = tuple(
            self._session(salvage, session, began_s)
            for session, began_s in zip(sessions, began_on_each_clock(sessions), strict=True)
        )
        newest = sessions[-1]
        # a launcher that has just begun has reported nothing yet: the snapshot is an older one
        begun = newest.seen_s > newest.started_s
        return Records(meta[0], parts, self._said(salvage) if begun else None)

    def _said(self, salvage: Salvage | None) -> dict[str, object] | None:
        try:
            row = self._connection.execute("SELECT json FROM snapshot").fetchone()
            return None if row is None else _object(row[0])
        except (sqlite3.DatabaseError, CorruptError):
            if salvage is None:
                raise
            salvage.missing["snapshot"] = "what the launcher reported last"
            return None

    def _session(self, salvage: Salvage | None, session: Session, began_s: float) -> SessionRecords:
        def of(kind: type, order: str) -> tuple[Any, ...]:
            return tuple(
                self._rows(
                    salvage,
                    TABLES[kind],
                    kind,
                    f"WHERE session = ? ORDER BY {order}",
                    session.session,
                )
            )

        return SessionRecords(
            session,
            began_s,
            of(Generation, "generation"),
            of(Life, "assigned_s, worker"),
            of(Interruption, "id"),
            of(StepsBucket, "to_step, rowid"),
            of(Event, "rowid"),
        )

    def _rows(
        self, salvage: Salvage | None, table: str, kind: type, tail: str, *values: int
    ) -> list[Any]:
        if salvage is not None:
            return salvage.rows(table, kind, values[0] if values else None)
        return [
            from_row(kind, row)
            for row in self._connection.execute(f"SELECT * FROM {table} {tail}", values)
        ]


def _connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    # A reader opens the file for reading only. In a folder in which it may not write, and without a
    # launcher (no -wal file), SQLite has to be told that nothing will change.
    mode = "rwc" if writable else "ro&immutable=1" if is_copy(path) else "ro"
    with _as_our_errors(path):
        try:
            connection = _open(path, mode)
        except sqlite3.OperationalError:
            if writable or "immutable" in mode or Path(f"{path}-wal").exists():
                raise
            connection = _open(path, "ro&immutable=1")
    return connection


def _open(path: Path, mode: str) -> sqlite3.Connection:
    patience_s = _BUSY_S if mode.startswith("ro") else _BUSY_AT_START_S
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=patience_s, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    try:
        if mode.startswith("ro"):
            # Otherwise SQLite reads nothing of a file that is shorter than its header says.
            connection.execute("PRAGMA writable_schema = ON")
        connection.execute("PRAGMA user_version").fetchone()
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _checked(path: Path, *, writable: bool) -> sqlite3.Connection:
    if not path.is_file():
        raise RunFolderError(
            f"there is no ledger at {path}",
            hint="a run that has just been started writes it in a moment: ask again; "
            "if this one is older, its ledger was removed",
        )
    refuse_odd_files(path)
    connection = _connect(path, writable=writable)
    with _as_our_errors(path):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    if not LEDGER_OLDEST_VERSION <= version <= LEDGER_VERSION:
        writer = _writer(connection)
        connection.close()
        if version == 0:
            raise RunFolderError(
                f"the ledger {path} was cut short while it was made",
                hint="nothing had begun in it: start a new run",
            )
        raise RunFolderError(
            f"the ledger {path} has schema {version}; this outlast reads {LEDGER_OLDEST_VERSION} to"
            f" {LEDGER_VERSION}",
            hint=f"it was written by outlast {writer}: install that version or a newer one"
            if writer
            else "install the version of outlast that wrote it (see run.json), or a newer one",
        )
    return connection


def _writer(connection: sqlite3.Connection) -> str:
    """Return the outlast version that wrote a ledger of unknown schema; "" if not known."""
    try:
        row = connection.execute("SELECT version FROM meta").fetchone()
    except sqlite3.Error:
        return ""
    return str(row[0]) if row is not None else ""


def _upgrade(connection: sqlite3.Connection) -> None:
    """Bring the ledger of an older outlast up to date, in one transaction."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != LEDGER_VERSION:
        connection.executescript(
            f"BEGIN IMMEDIATE; {upgrade(version)} PRAGMA user_version = {LEDGER_VERSION}; COMMIT;"
        )


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:  # TypeError: the page was cut off
        raise CorruptError(
            f"the ledger's snapshot cannot be read: {error}",
            hint="the file was damaged or changed; restore it, or start a new run",
        ) from None
    return value if isinstance(value, dict) else {}


class _as_our_errors:  # noqa: N801 - reads as a statement
    """Raise SQLite's errors as outlast's errors, which say what to do about them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, UnicodeDecodeError):  # SQLite quotes what it found in the file
            raise CorruptError(
                f"{self._path} is not a ledger: a name in it is not text",
                hint="the file was damaged or replaced; restore it, or start a new run",
            ) from error
        if not isinstance(error, sqlite3.Error):
            return
        text = str(error)
        if not self._path.exists():
            raise RunFolderError(
                f"the ledger {self._path} was removed while it was in use",
                hint="start the run again, and let nothing clean up its folder",
            ) from error
        if "disk is full" in text or "disk I/O" in text:
            raise CapacityError(
                f"the ledger {self._path} cannot be written: {text}", hint=_room_hint()
            ) from error
        if "not a database" in text or "malformed" in text:
            raise CorruptError(
                f"{self._path} is not a ledger: {text}",
                hint="the file was damaged or replaced; restore it, or start a new run",
            ) from error
        hint = _LOCKED_HINT if "locked" in text else "see that the folder can be read and written"
        raise OutlastError(f"the ledger {self._path}: {text}", hint=hint) from error


def _room_hint() -> str:
    """Say how to make room. SQLite reports a full disk and a limit of the process alike."""
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    other = "free space on that disk, or name another folder with --run-dir"
    if most == resource.RLIM_INFINITY:
        return other
    return f"a file of this process may have {most:,} bytes (`ulimit -f`): allow more, or {other}"


def read_ledger(path: Path, *, whole: bool = False) -> Records:
    """Open the ledger, read everything, and close it. If it is damaged, read the readable part.

    whole   True if a damaged ledger must raise CorruptError, because a run goes on from it
    """
    with closing(Ledger.read_only(path)) as ledger:
        try:
            return ledger.read()
        except CorruptError as error:
            if whole:
                raise
            try:
                return ledger.salvage()
            except CorruptError:
                raise error from None
