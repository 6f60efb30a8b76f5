"""Files that have a defined format: torchelastic's error files, and outlast's ledger.

A ledger may come from a stranger. It is copied, so that nothing is written beside the evidence. The
copy is read with a time limit. Only plain tables are read, and SQLite is told not to trust the
schema of the file.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from outlast.diagnose import standing
from outlast.diagnose.findings import Finding
from outlast.diagnose.ledger import LedgerContents, read_records
from outlast.errors import OutlastError
from outlast.model.beacon import BEACON_BYTES, Beacon, unpack
from outlast.model.limits import (
    EVIDENCE_LEDGER_MAX_BYTES,
    EVIDENCE_LEDGER_READ_S,
    EVIDENCE_READ_BYTES,
    GIVEN_FILE_MAX_BYTES,
)
from outlast.model.pieces import Piece
from outlast.runtime.evidence.opening import Bounded
from outlast.runtime.ledger.rows import TABLES
from outlast.runtime.ledger.store import Ledger

# how many operations of SQLite's machine run between two looks at the clock
_OPERATIONS_COUNT = 100_000


def error_lines(piece: Piece) -> list[bytes]:
    """Return the message and the traceback that torchelastic's `record` wrote.

    Raises OSError, and ValueError if the file is not such a file.
    """
    assert piece.path is not None, piece.name
    if piece.size_bytes > GIVEN_FILE_MAX_BYTES:
        raise ValueError("an error file of torchelastic that is too long")
    with Bounded(piece.path, piece.size_bytes) as file:
        raw = file.read(GIVEN_FILE_MAX_BYTES)
    try:
        message = json.loads(raw.decode("utf-8", "replace"))["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("an error file of torchelastic that was cut or changed") from None
    inner = message if isinstance(message, dict) else {"message": message}
    extra = inner.get("extraInfo")
    said = (extra.get("py_callstack") if isinstance(extra, dict) else None, inner.get("message"))
    return [
        line.encode("utf-8", "replace")
        for text in said
        if isinstance(text, str)
        for line in text.splitlines()
    ]


def read_standing(piece: Piece) -> LedgerContents:
    """Return where the processes of a live run stood.

    Raises OSError, and ValueError if the file is cut or changed.
    """
    assert piece.path is not None, piece.name
    if piece.size_bytes > GIVEN_FILE_MAX_BYTES:
        raise ValueError("a record of where processes stood that is too long")
    with Bounded(piece.path, piece.size_bytes) as file:
        return standing.read_standing(file.read(GIVEN_FILE_MAX_BYTES), name=piece.name)


def read_beacon(piece: Piece) -> Beacon:
    """Return where one worker stood, by its own report.

    Raises OSError, and ValueError if the file is cut, or of another version.
    """
    assert piece.path is not None, piece.name
    with Bounded(piece.path, piece.size_bytes) as file:
        page = file.read(BEACON_BYTES)
    beacon = unpack(memoryview(page)) if len(page) == BEACON_BYTES else None
    if beacon is None:
        raise ValueError("a beacon that was cut, or of another version")
    return beacon


def read(piece: Piece) -> LedgerContents:
    """Return a ledger's interruption.

    Raises OSError, and ValueError if the file is not a ledger of this version.
    """
    assert piece.path is not None, piece.name
    if piece.size_bytes > EVIDENCE_LEDGER_MAX_BYTES:
        raise ValueError(f"a SQLite file of {piece.size_bytes:,} bytes")
    with tempfile.TemporaryDirectory(prefix="outlast-evidence-") as folder:
        copy = Path(folder) / "ledger.db"
        _copy(piece.path, copy, piece.size_bytes)
        wal = Path(f"{piece.path}-wal")
        if wal.is_file() and not wal.is_symlink():
            _copy(str(wal), Path(f"{copy}-wal"), wal.stat().st_size)
        return _read(copy, piece.name)


def without_line(finding: Finding) -> Finding:
    """Return the same evidence, pointing to its file as a whole."""
    return replace(finding, evidence=replace(finding.evidence, line=None))


def _copy(path: str, copy: Path, size: int) -> None:
    with Bounded(path, size) as file, copy.open("xb") as out:
        shutil.copyfileobj(file, out, EVIDENCE_READ_BYTES)


def _read(path: Path, name: str) -> LedgerContents:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)
    try:
        connection.row_factory = sqlite3.Row
        connection.set_progress_handler(
            _until(time.monotonic() + EVIDENCE_LEDGER_READ_S), _OPERATIONS_COUNT
        )
        connection.execute("PRAGMA trusted_schema = OFF")
        kinds = dict(
            connection.execute(
                "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND sql NOT"
                " LIKE '%GENERATED%'"
            ).fetchall()
        )
        if any(
            kinds.get(table) != "table"
            for table in ("meta", "sessions", "snapshot", *TABLES.values())
        ):
            raise ValueError("a SQLite file that is not a ledger of outlast")
        return read_records(Ledger(path, connection, session=0).read(), name=name)
    except (sqlite3.Error, OutlastError, TypeError, AttributeError, OverflowError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(f"a ledger that cannot be read ({first})") from None
    finally:
        connection.close()


def _until(over_s: float) -> Callable[[], int]:
    return lambda: int(time.monotonic() > over_s)
